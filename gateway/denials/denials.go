package denials

import (
	"container/list"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// The settings where nothing else is said.
const (
	DefaultMax       = 2000
	DefaultPerCaller = 200
	DefaultPerSecond = 4
)

// MaxText is how many bytes of a text are kept.
const MaxText = 512

// MaxDecisions is how many decisions of one request are kept.
const MaxDecisions = 32

// A Denial is a request that a limit denied. The fields are named as in the access
// log, which docs/OPERATING.md explains.
type Denial struct {
	Time       Time       `json:"time"`
	RequestID  string     `json:"request_id"`
	ClientIP   string     `json:"client_ip"`
	Method     string     `json:"method"`
	Host       string     `json:"host"`
	Path       string     `json:"path"`
	Route      string     `json:"route"`
	User       string     `json:"user"`
	Tenant     string     `json:"tenant"`
	KeyID      string     `json:"key_id"`
	Plan       string     `json:"plan"`
	Cost       int64      `json:"cost"`
	Status     int        `json:"status"`
	DeniedBy   string     `json:"denied_by"`
	Source     string     `json:"source"`
	DurationMS float64    `json:"duration_ms"`
	Decisions  []Decision `json:"decisions"`

	bucket string // the client's address as limits count it
}

// timeLayout is that of the access log: always six digits.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// A Time is written as the access log writes its own, digit for digit, so that a denial
// and its line are found by each other's text.
type Time struct{ time.Time }

// MarshalJSON implements [json.Marshaler].
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(t.UTC().Format(`"` + timeLayout + `"`)), nil
}

// A Decision is what one limit said.
type Decision struct {
	Limit      string   `json:"limit"`
	Plan       string   `json:"plan"` // "" of a limit that is no plan's
	Per        []string `json:"per"`
	Partition  string   `json:"partition"`
	Mode       string   `json:"mode"` // enforce, shadow or candidate
	Allowed    bool     `json:"allowed"`
	Remaining  int64    `json:"remaining"`
	Capacity   int64    `json:"capacity"`
	Quota      int64    `json:"quota"`
	WindowS    int64    `json:"window_s"`
	RetryAfter *int64   `json:"retry_after_s"` // nil: it allowed, or no wait would help
	Reset      *int64   `json:"reset_s"`       // nil: nothing is spent
	Source     string   `json:"source"`
}

// Options are the settings of a [Log]. The zero value is usable; 0 means the
// default of each.
type Options struct {
	// Max is how many are kept.
	Max int
	// PerCaller is how many of one caller are.
	PerCaller int
	// PerSecond is how many of one caller are taken in a second of the clock.
	PerSecond int
}

// A Log is the last denials. It is safe for concurrent use and needs no Close. A nil
// Log has no room. Make it with [New].
type Log struct {
	o Options

	mu sync.Mutex
	// mu protects the following fields.
	all     *list.List         // of *kept, oldest first
	callers map[string]*caller // those of whom some are kept, or were in this second
	skipped uint64
}

// kept is one that is kept.
type kept struct {
	denial *Denial
	caller *caller
}

// A caller is whose denials are bounded together.
type caller struct {
	name   string
	own    []*list.Element // oldest first
	second int64           // of the last that was asked for
	taken  int             // in that second
}

// New returns an empty log. The error says which option is wrong.
func New(o Options) (*Log, error) {
	for _, s := range []struct {
		name     string
		value    *int
		standard int
	}{{"max", &o.Max, DefaultMax}, {"per caller", &o.PerCaller, DefaultPerCaller}, {"per second", &o.PerSecond, DefaultPerSecond}} {
		if *s.value == 0 {
			*s.value = s.standard
		}
		if *s.value < 1 {
			return nil, fmt.Errorf("make the log of denials: %s: want 1 or more, got %d", s.name, *s.value)
		}
	}
	return &Log{o: o, all: list.New(), callers: make(map[string]*caller)}, nil
}

// Room reports whether a denial of a caller at a time is to be kept, and takes the
// place if so. What is not kept is counted as skipped.
func (l *Log) Room(name string, at time.Time) bool {
	if l == nil {
		return false
	}
	second := at.Unix()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.callers[name]
	if c == nil {
		if len(l.callers) >= 2*l.o.Max {
			// So many have asked and not added yet.
			l.skipped++
			return false
		}
		c = &caller{name: strings.Clone(name)}
		l.callers[c.name] = c
	}
	if second > c.second {
		c.second, c.taken = second, 0
	}
	if c.taken >= l.o.PerSecond {
		l.skipped++
		return false
	}
	c.taken++
	return true
}

// Add keeps a denial for which there is room. The caller is that of Room, bucket the
// client's address as limits count it. d is not to be changed any more.
func (l *Log) Add(name, bucket string, d *Denial) {
	d.bound()
	d.bucket = strings.Clone(bucket)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.callers[name]
	if c == nil { // its others have made room meanwhile
		c = &caller{name: strings.Clone(name)}
		l.callers[c.name] = c
	}
	switch {
	case len(c.own) >= l.o.PerCaller:
		l.drop(c.own[0])
		l.callers[c.name] = c
	case l.all.Len() >= l.o.Max:
		l.drop(l.all.Front())
		l.callers[c.name] = c
	}
	c.own = append(c.own, l.all.PushBack(&kept{d, c}))
	if len(l.callers) > l.o.Max {
		l.forget(d.Time.Unix())
	}
}

// drop lets go of one, which is the oldest of its caller.
func (l *Log) drop(e *list.Element) {
	k, _ := l.all.Remove(e).(*kept)
	c := k.caller
	c.own[0] = nil
	if c.own = c.own[1:]; len(c.own) == 0 {
		c.own = nil
		delete(l.callers, c.name)
	}
}

// forget lets go of callers of whom nothing is kept, and who asked before a second.
func (l *Log) forget(second int64) {
	for name, c := range l.callers {
		if len(c.own) == 0 && c.second < second {
			delete(l.callers, name)
		}
	}
}

// Stats is what a log has.
type Stats struct {
	// Kept is how many there are, Skipped how many were left out since the start
	// because their caller had enough.
	Kept    int
	Skipped uint64
	// Oldest is when the oldest of them came; zero if there is none.
	Oldest time.Time
}

// Stats says what l has.
func (l *Log) Stats() Stats {
	if l == nil {
		return Stats{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{Kept: l.all.Len(), Skipped: l.skipped}
	if e := l.all.Front(); e != nil {
		k, _ := e.Value.(*kept)
		s.Oldest = k.denial.Time.Time
	}
	return s
}

// List returns the last n that match, newest first. They are not to be changed.
func (l *Log) List(f Filter, n int) []*Denial {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	all := make([]*Denial, 0, l.all.Len())
	for e := l.all.Back(); e != nil; e = e.Prev() {
		k, _ := e.Value.(*kept)
		all = append(all, k.denial)
	}
	l.mu.Unlock()
	// Outside of the lock: they do not change.
	found := all[:0]
	m := f.matcher()
	for _, d := range all {
		if len(found) < n && m(d) {
			found = append(found, d)
		}
	}
	return found
}

// bound cuts what a client decides.
func (d *Denial) bound() {
	d.Time.Time = d.Time.UTC().Truncate(time.Microsecond)
	for _, s := range []*string{
		&d.RequestID, &d.ClientIP, &d.Method, &d.Host, &d.Path, &d.Route, &d.User, &d.Tenant, &d.KeyID, &d.Plan, &d.DeniedBy,
	} {
		*s = cut(*s)
	}
	if len(d.Decisions) > MaxDecisions {
		d.Decisions = d.Decisions[:MaxDecisions]
	}
	if d.Decisions == nil {
		d.Decisions = []Decision{}
	}
	for i := range d.Decisions {
		d.Decisions[i].Partition = cut(d.Decisions[i].Partition)
	}
}

// cut is a copy of s, bounded, without splitting a character, and valid UTF-8.
func cut(s string) string {
	if len(s) > MaxText {
		n := MaxText
		for n > MaxText-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	if utf8.ValidString(s) {
		return strings.Clone(s)
	}
	s = strings.ToValidUTF8(s, "�")
	for len(s) > MaxText {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}
