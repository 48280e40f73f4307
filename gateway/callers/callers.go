package callers

import (
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// DefaultPerKind is Options.PerKind when it is 0.
	DefaultPerKind = 4096
	// MaxText is how many bytes of a name, or of whatever else a caller decides, are kept.
	MaxText = 256
	// Minutes is how many minutes are told apart.
	Minutes = 60
	// Addresses is how many addresses of one caller are remembered.
	Addresses = 5

	shards = 16
	// maxAgent is how much of a user agent is looked at, in bytes.
	maxAgent = 512
)

// A Kind is what callers are known by.
type Kind uint8

// The kinds.
const (
	User Kind = iota
	Key       // an API key, by its id
	IP        // an address as limits count it: 203.0.113.7, 2001:db8::/64 or unix
	kinds
)

var kindNames = [kinds]string{"user", "key", "ip"}

// String is the word for k: user, key or ip.
func (k Kind) String() string {
	if k >= kinds {
		return "unknown"
	}
	return kindNames[k]
}

// KindOf is the kind that a word is for.
func KindOf(word string) (k Kind, ok bool) {
	for k := range kinds {
		if kindNames[k] == word {
			return k, true
		}
	}
	return 0, false
}

// An Outcome is what became of a request.
type Outcome uint8

// The outcomes.
const (
	Allowed  Outcome = iota // no limit denied it, and nothing else refused it
	Denied                  // a limit denied it
	Refused                 // something else of the gateway refused it: 401, 403, 404, …
	outcomes = iota
)

// A Request is what is noted of one request. Strings are not kept as they are, so
// they may be parts of larger ones.
type Request struct {
	// At is when it was asked.
	At time.Time
	// User, Tenant, KeyID and Method say who asked, and how that is known; empty
	// where nobody is.
	User, Tenant, KeyID, Method string
	// TokenPlan is the plan that the credential names, Plan the one that counted.
	TokenPlan, Plan string
	// Address is the client's, Bucket how limits count it; never empty.
	Address netip.Addr
	Bucket  string
	// UserAgent is what the client says it is.
	UserAgent string
	Outcome   Outcome
}

// An Identity is who a caller was when it was last seen.
type Identity struct {
	User, Tenant, KeyID, Method, TokenPlan, Plan string
}

// A Caller is what is known of one caller.
type Caller struct {
	Kind     Kind
	Name     string
	Identity Identity // of an address: of its last request without an identity
	// Addresses are where it came from, the last one first.
	Addresses []netip.Addr
	LastSeen  time.Time
	// Counts are requests by minute and [Outcome], oldest first; the last is the
	// minute of the question.
	Counts [Minutes][outcomes]uint32
	// Crowd is who is behind an address; nil of other kinds.
	Crowd *Crowd
}

// Sum is how many requests there were in the last 60 minutes, and how many of
// them were denied.
func (c *Caller) Sum() (requests, denied int64) {
	for _, m := range c.Counts {
		requests += int64(m[Allowed]) + int64(m[Denied]) + int64(m[Refused])
		denied += int64(m[Denied])
	}
	return requests, denied
}

// Options are the settings of a [Table]. The zero value is usable.
type Options struct {
	// PerKind is how many callers of each kind are held at most, 16 or more;
	// 0 means [DefaultPerKind].
	PerKind int
}

// A Table is the callers of late. It is safe for concurrent use and needs no Close.
// A nil Table knows nobody. Make it with [New].
type Table struct {
	seed   maphash.Seed
	shards [kinds][shards]shard
}

// A shard is some of the callers of one kind.
type shard struct {
	mu sync.Mutex
	// mu protects the following field, and all that is in it.
	lru *simplelru.LRU[string, *entry]

	_ [40]byte // keeps the locks of neighbours apart
}

// An entry is what is remembered of one caller.
//
// Of most callers little is remembered, since they came in one minute, from one
// address; so what grows is kept outside.
type entry struct {
	name  string
	id    Identity
	last  int64 // when it was last seen, µs
	addr  netip.Addr
	addrs []netip.Addr // those before addr, the last one first; Addresses-1 at most
	// counts are of the minutes that had any, oldest first: Minutes at most.
	counts []minuteCount
	crowd  *crowd // of an address
}

// A minuteCount is one minute of a caller that came in it.
type minuteCount struct {
	minute uint32 // since 1970
	n      [outcomes]uint32
}

// New returns an empty table. The error says which option is wrong.
func New(o Options) (*Table, error) {
	if o.PerKind == 0 {
		o.PerKind = DefaultPerKind
	}
	if o.PerKind < shards {
		return nil, fmt.Errorf("make the table of callers: per kind: want %d or more, got %d", shards, o.PerKind)
	}
	t := &Table{seed: maphash.MakeSeed()}
	for k := range t.shards {
		for i := range t.shards[k] {
			lru, err := simplelru.NewLRU[string, *entry](o.PerKind/shards, nil)
			if err != nil {
				return nil, fmt.Errorf("make the table of callers: %w", err)
			}
			t.shards[k][i].lru = lru
		}
	}
	return t, nil
}

// Note remembers a request with those it came from: its user, its key and its
// address, as far as they are known.
func (t *Table) Note(r *Request) {
	if t == nil {
		return
	}
	if r.User != "" {
		t.note(User, r.User, r)
	}
	if r.KeyID != "" {
		t.note(Key, r.KeyID, r)
	}
	if r.Bucket != "" {
		t.note(IP, r.Bucket, r)
	}
}

func (t *Table) note(k Kind, name string, r *Request) {
	name = bounded(name)
	var user, agent uint64
	if k == IP {
		// Outside of the lock.
		if r.User != "" {
			user = maphash.String(t.seed, r.User)
		}
		if r.UserAgent != "" {
			agent = maphash.String(t.seed, r.UserAgent[:min(len(r.UserAgent), maxAgent)])
		}
	}
	s := t.shard(k, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.lru.Get(name)
	if !ok {
		e = s.add(k, name)
	}
	e.note(r)
	if k == IP {
		e.crowd.note(e.minute(), user, agent)
	}
	if k != IP || r.Method == "" {
		e.id.take(r)
	}
}

func (t *Table) shard(k Kind, name string) *shard {
	return &t.shards[k][maphash.String(t.seed, name)%shards]
}

// add returns a new entry, in the place of whoever was not seen for longest if the
// shard is full.
func (s *shard) add(k Kind, name string) *entry {
	name = strings.Clone(name)
	e := &entry{name: name}
	if k == IP {
		e.crowd = &crowd{}
	}
	s.lru.Add(name, e)
	return e
}

func (e *entry) note(r *Request) {
	e.last = max(e.last, r.At.UnixMicro())
	n := &e.advance(r.At.Unix() / 60).n[r.Outcome]
	if *n+1 != 0 {
		*n++
	}
	if !r.Address.IsValid() || e.addr == r.Address {
		return
	}
	if e.addr.IsValid() {
		i := slices.Index(e.addrs, r.Address)
		if i < 0 {
			if len(e.addrs) < Addresses-1 {
				e.addrs = append(e.addrs, netip.Addr{})
			}
			i = len(e.addrs) - 1
		}
		copy(e.addrs[1:i+1], e.addrs[:i])
		e.addrs[0] = e.addr
	}
	e.addr = r.Address.WithZone("")
}

// minute is that of the last count; 0 if there is none.
func (e *entry) minute() int64 {
	if len(e.counts) == 0 {
		return 0
	}
	return int64(e.counts[len(e.counts)-1].minute)
}

// advance goes on to a minute, unless it is later already: a clock that is set back
// does not begin anew.
func (e *entry) advance(minute int64) *minuteCount {
	if last := len(e.counts) - 1; last >= 0 && minute <= e.minute() {
		return &e.counts[last]
	}
	old := 0
	for old < len(e.counts) && int64(e.counts[old].minute) <= minute-Minutes {
		old++
	}
	e.counts = append(e.counts[:copy(e.counts, e.counts[old:])], minuteCount{minute: uint32(max(minute, 0))}) //nolint:gosec // it is 32 bits for eight thousand years
	return &e.counts[len(e.counts)-1]
}

// take has i be who r is. It allocates only for what has changed.
func (i *Identity) take(r *Request) {
	set(&i.User, r.User)
	set(&i.Tenant, r.Tenant)
	set(&i.KeyID, r.KeyID)
	set(&i.Method, r.Method)
	set(&i.TokenPlan, r.TokenPlan)
	set(&i.Plan, r.Plan)
}

func set(to *string, from string) {
	if *to == from {
		return // what is kept is bounded
	}
	if from = bounded(from); *to != from {
		*to = strings.Clone(from)
	}
}

// bounded is s, if it is short and valid UTF-8, and else what can be kept of it.
func bounded(s string) string {
	if len(s) > MaxText {
		n := MaxText
		for n > MaxText-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	if utf8.ValidString(s) {
		return s
	}
	// Three bytes stand for each that is no text, so it may be longer than before.
	s = strings.ToValidUTF8(s, "�")
	for len(s) > MaxText {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// Get returns what is known of a caller at a time.
func (t *Table) Get(k Kind, name string, now time.Time) (c Caller, known bool) {
	if t == nil || k >= kinds {
		return Caller{}, false
	}
	name = bounded(name)
	s := t.shard(k, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.lru.Peek(name)
	if !ok {
		return Caller{Kind: k, Name: name}, false
	}
	return e.tell(k, now), true
}

// tell copies e, as it is at a time.
func (e *entry) tell(k Kind, now time.Time) Caller {
	c := Caller{Kind: k, Name: e.name, Identity: e.id, LastSeen: time.UnixMicro(e.last).UTC()}
	if e.addr.IsValid() {
		c.Addresses = append([]netip.Addr{e.addr}, e.addrs...)
	}
	minute := max(now.Unix()/60, e.minute())
	for _, m := range e.counts {
		if i := Minutes - 1 - (minute - int64(m.minute)); i >= 0 {
			c.Counts[i] = m.n
		}
	}
	if e.crowd != nil {
		crowd := e.crowd.tell(minute)
		c.Crowd = &crowd
	}
	return c
}
