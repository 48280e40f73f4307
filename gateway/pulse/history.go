package pulse

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// tiers are what is kept: the last five minutes by the second, the last hour by ten
// seconds, the last day by five minutes.
var tiers = [...]struct {
	name  string
	step  time.Duration
	steps int
}{
	{"5m", time.Second, 300},
	{"1h", 10 * time.Second, 360},
	{"24h", 5 * time.Minute, 288},
}

const (
	// labelled is how many labels of a family have series of their own.
	labelled = 20
	// MaxSeries bounds how many series there are: those without labels, three
	// families of denials, and three series for each upstream; each with its others.
	MaxSeries = 17 + 3*(labelled+1) + 3*(labelled+1)
	// candidates bounds how many labels are waiting for series of their own.
	candidates = 256
	// forgetLabels is how often what was busy counts half for who is.
	forgetLabels = 10 * time.Minute
)

// A kind says what a step's value is made of.
type kind uint8

const (
	rate     kind = iota // what was counted, per second
	mean                 // of what was seen
	highest              // of what was seen
	quantile             // of durations; see timing
)

// A series is one line of a chart, in every tier.
type series struct {
	name, unit string
	kind       kind

	sum  float64 // since the beginning
	seen float64 // how many values; not of a rate
	base [len(tiers)]struct{ sum, seen, high float64 }
	// values are the rings: a step has the same place in all of them. NaN is nothing
	// known.
	values [len(tiers)][]float32
}

func newSeries(name, unit string, k kind) *series {
	s := &series{name: name, unit: unit, kind: k}
	for i := range s.values {
		s.values[i] = make([]float32, tiers[i].steps)
		for j := range s.values[i] {
			s.values[i][j] = float32(math.NaN())
		}
	}
	return s
}

func (s *series) add(v float64) {
	s.sum += v
	s.seen++
	for i := range s.base {
		s.base[i].high = max(s.base[i].high, v)
	}
}

// over is the value of a step that took elapsed and ends now.
func (s *series) over(tier int, elapsed time.Duration) float64 {
	b := &s.base[tier]
	switch s.kind {
	case rate:
		return (s.sum - b.sum) / elapsed.Seconds()
	case mean:
		return (s.sum - b.sum) / (s.seen - b.seen) // NaN of none
	case highest:
		if s.seen == b.seen {
			return math.NaN()
		}
		return b.high
	default:
		return math.NaN()
	}
}

// begin lets a step begin now.
func (s *series) begin(tier int) {
	s.base[tier].sum, s.base[tier].seen, s.base[tier].high = s.sum, s.seen, 0
}

// A timing is durations, and the series of their quantiles, in milliseconds.
type timing struct {
	total Latencies
	base  [len(tiers)]Latencies
	at    []struct {
		q float64
		s *series
	}
}

// A family is series that differ in a label: the busiest have their own.
type family struct {
	make  func(label string) *member
	own   map[string]*member
	rest  *member
	queue map[string]float64 // who has none of its own, and how busy it is
}

// A member is all series of one label.
type member struct {
	series []*series
	took   *timing // nil: none
	weight float64
}

// history is the rings. It is not safe for concurrent use.
type history struct {
	began    bool
	axis     time.Duration // where the last sample stands, from 1970 on
	at       time.Time     // of the last sample
	since    time.Duration
	every    time.Duration
	open     [len(tiers)]int64         // the number of the step that has not ended
	base     [len(tiers)]time.Duration // where its counting began
	sorted   time.Duration             // when families were last looked through
	fixed    []*series
	timings  []*timing
	families []*family

	allowed, denied, failed, refused      *series
	inFlight, away, blocks, entries       *series
	storeErrors, answers                  *series
	added, total, store                   *timing
	byPlan, byLimit, byRoute, byUpstreams *family
}

func newHistory() *history {
	h := &history{}
	one := func(name, unit string, k kind) *series {
		s := newSeries(name, unit, k)
		h.fixed = append(h.fixed, s)
		return s
	}
	h.allowed = one("requests.allowed", "requests/s", rate)
	h.denied = one("requests.denied", "requests/s", rate)
	h.failed = one("requests.failed", "requests/s", rate)
	h.refused = one("requests.refused", "requests/s", rate)
	timed := func(name string) *timing {
		t := &timing{}
		for _, q := range [...]struct {
			name string
			q    float64
		}{{"p50", .5}, {"p99", .99}} {
			t.at = append(t.at, struct {
				q float64
				s *series
			}{q.q, one(name+"."+q.name+"_ms", "ms", quantile)})
		}
		h.timings = append(h.timings, t)
		return t
	}
	h.added, h.total = timed("latency.added"), timed("latency.total")
	h.inFlight = one("in_flight", "requests", mean)
	h.store = timed("store")
	h.storeErrors = one("store.errors", "errors/s", rate)
	h.away = one("store.away", "", highest)
	h.blocks = one("leases.blocks", "blocks", mean)
	h.entries = one("deny_cache.entries", "denials", mean)
	h.answers = one("deny_cache.answers", "decisions/s", rate)
	denials := func(by string) *family {
		return h.newFamily(func(label string) *member {
			return &member{series: []*series{newSeries("denied."+by+":"+label, "requests/s", rate)}}
		})
	}
	h.byPlan, h.byLimit, h.byRoute = denials("plan"), denials("limit"), denials("route")
	h.byUpstreams = h.newFamily(func(label string) *member {
		p99 := newSeries("upstream."+label+".p99_ms", "ms", quantile)
		m := &member{took: &timing{}, series: []*series{
			newSeries("upstream."+label+".requests", "requests/s", rate), newSeries("upstream."+label+".errors", "errors/s", rate), p99,
		}}
		m.took.at = append(m.took.at, struct {
			q float64
			s *series
		}{.99, p99})
		return m
	})
	return h
}

func (h *history) newFamily(makeMember func(string) *member) *family {
	f := &family{make: makeMember, own: map[string]*member{}, queue: map[string]float64{}}
	h.families = append(h.families, f)
	return f
}

// of is where a label is counted; weight is how busy it was just now.
func (f *family) of(label string, weight float64) *member {
	m := f.own[label]
	if m == nil && len(f.own) < labelled {
		m = f.make(label)
		f.own[label] = m
	}
	if m != nil {
		m.weight += weight
		return m
	}
	if _, waits := f.queue[label]; waits || len(f.queue) < candidates {
		f.queue[label] += weight
	}
	if f.rest == nil {
		f.rest = f.make("(others)")
	}
	return f.rest
}

// reconsider gives the busiest label without series of its own the place of the
// least busy one that has them, if that is far less busy; what was kept of it goes.
func (f *family) reconsider(elapsed time.Duration) {
	fade := math.Exp2(-float64(elapsed) / float64(forgetLabels))
	var least, most string
	first := true
	for label, m := range f.own {
		m.weight *= fade
		if first || m.weight < f.own[least].weight || m.weight == f.own[least].weight && label < least {
			least, first = label, false
		}
	}
	best := 0.0
	for label, w := range f.queue {
		if w *= fade; w < 0.01 {
			delete(f.queue, label)
			continue
		}
		f.queue[label] = w
		if w > best || w == best && label < most {
			most, best = label, w
		}
	}
	if best > 0 && best > 2*f.own[least].weight {
		f.queue[least] = f.own[least].weight
		delete(f.own, least)
		delete(f.queue, most)
		m := f.make(most)
		m.weight = best
		f.own[most] = m
	}
}

// members are all of a family, its others last.
func (f *family) members() []*member {
	list := make([]*member, 0, len(f.own)+1)
	for _, m := range f.own {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *member) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), strings.Compare(a.series[0].name, b.series[0].name))
	})
	if f.rest != nil {
		list = append(list, f.rest)
	}
	return list
}

// all are the series there are, those without labels first.
func (h *history) all() []*series {
	list := slices.Clone(h.fixed)
	for _, f := range h.families {
		for _, m := range f.members() {
			list = append(list, m.series...)
		}
	}
	return list
}

func (h *history) allTimings() []*timing {
	list := slices.Clone(h.timings)
	for _, f := range h.families {
		for _, m := range f.members() {
			if m.took != nil {
				list = append(list, m.took)
			}
		}
	}
	return list
}

// Beyond stepped, the time of day and the clock that never steps do not agree: the
// machine slept, or somebody has set its clock.
const stepped = 2 * time.Second

// add takes a sample in. It reports false if nothing is known of the time since the
// one before, which then stays empty: the process, or the machine, stood still.
func (h *history) add(s *Sample) (continuous bool) {
	if !h.began {
		h.began = true
		h.axis = time.Duration(s.At.UnixNano())
		h.at, h.since, h.every = s.At, s.Since, s.Every
		h.record(s)
		h.restart()
		return false
	}
	moved := max(s.Since-h.since, 0)
	jump := time.Duration(s.At.UnixNano()-h.at.UnixNano()) - moved // without their monotonic clocks
	continuous = moved <= 2*h.every+time.Second
	h.at, h.since, h.every = s.At, s.Since, s.Every
	h.axis += moved
	if jump > stepped {
		// Ahead: nobody knows what was meanwhile. Back, nothing is missing, and what
		// is kept moves with the clock.
		h.axis += jump
		continuous = false
	}
	h.record(s)
	if !continuous {
		h.skip()
		h.restart()
		return false
	}
	h.close()
	if h.axis-h.sorted >= tiers[1].step {
		for _, f := range h.families {
			f.reconsider(h.axis - h.sorted)
		}
		h.sorted = h.axis
	}
	return true
}

// record counts what a sample has.
func (h *history) record(s *Sample) {
	for i := range s.Routes {
		r := &s.Routes[i]
		h.allowed.add(r.Allowed)
		h.denied.add(r.Denied)
		h.failed.add(r.Failed)
		h.refused.add(r.Refused)
		if r.Denied > 0 || h.byRoute.own[r.Route] != nil {
			h.byRoute.of(r.Route, r.Denied).series[0].add(r.Denied)
		}
	}
	for i := range s.Limits {
		l := &s.Limits[i]
		h.answers.add(l.Sources[denyCache])
		if l.Denied == 0 {
			continue
		}
		if l.Plan != "" {
			h.byPlan.of(l.Plan, l.Denied).series[0].add(l.Denied)
		}
		h.byLimit.of(l.Limit.Limit, l.Denied).series[0].add(l.Denied)
	}
	for i := range s.Targets {
		t := &s.Targets[i]
		n := t.Errors
		for _, c := range t.Classes {
			n += c
		}
		m := h.byUpstreams.of(t.Upstream, n)
		m.series[0].add(n)
		m.series[1].add(t.Errors + t.Classes[4])
	}
	for i := range s.Upstreams {
		if u := &s.Upstreams[i]; u.Took != nil {
			h.byUpstreams.of(u.Upstream, 0).took.total.Add(u.Took)
		}
	}
	for _, n := range s.StoreErrors {
		h.storeErrors.add(n)
	}
	h.added.total.Add(&s.Added)
	h.total.total.Add(&s.Total)
	h.store.total.Add(&s.Store)
	h.inFlight.add(s.InFlight)
	h.blocks.add(s.LeaseBlocks)
	h.entries.add(s.DenyCacheEntries)
	away := 0.0
	if s.StoreAway {
		away = 1
	}
	h.away.add(away)
}

// restart lets the steps that are open be counted from here on.
func (h *history) restart() {
	for i := range tiers {
		h.open[i], h.base[i] = int64(h.axis/tiers[i].step), h.axis
		for _, s := range h.all() {
			s.begin(i)
		}
		for _, t := range h.allTimings() {
			t.base[i] = t.total
		}
	}
	h.sorted = h.axis
}

// skip empties the steps that ended, of which nothing is known.
func (h *history) skip() {
	for i := range tiers {
		if until := int64(h.axis / tiers[i].step); until > h.open[i] {
			for _, s := range h.all() {
				s.put(i, h.open[i], until, math.NaN())
			}
		}
	}
}

// close gives the steps that ended their values: the same to all where a sample was
// late and several did.
func (h *history) close() {
	for i := range tiers {
		until := int64(h.axis / tiers[i].step)
		if until <= h.open[i] {
			continue
		}
		elapsed := h.axis - h.base[i]
		known := elapsed >= tiers[i].step/2
		value := func(v float64) float64 {
			if !known {
				return math.NaN()
			}
			return v
		}
		for _, s := range h.all() {
			if s.kind != quantile {
				s.put(i, h.open[i], until, value(s.over(i, elapsed)))
			}
			s.begin(i)
		}
		for _, t := range h.allTimings() {
			took := t.total.Less(&t.base[i])
			for _, q := range t.at {
				q.s.put(i, h.open[i], until, value(1000*took.Quantile(q.q)))
			}
			t.base[i] = t.total
		}
		h.open[i], h.base[i] = until, h.axis
	}
}

// put sets the steps from from to before until.
func (s *series) put(tier int, from, until int64, v float64) {
	ring := s.values[tier]
	n := int64(len(ring))
	for at := max(from, until-n); at < until; at++ {
		ring[at%n] = float32(v)
	}
}

// last is the value of the last second.
func (h *history) last(s *series) float64 {
	if !h.began {
		return math.NaN()
	}
	ring := s.values[0]
	n := int64(len(ring))
	return float64(ring[(h.open[0]-1+n)%n])
}

// A Line is one series of a window.
type Line struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Values []Value `json:"values"` // oldest first
}

// A Window is what is kept of one: all lines have as many values, and the last of
// each ends at Until.
type Window struct {
	Window string    `json:"window"`
	StepS  int       `json:"step_s"`
	Until  time.Time `json:"until"`
	Series []Line    `json:"series"`
}

// window reads one of the tiers; false: there is none of that name.
func (h *history) window(name string) (w Window, ok bool) {
	for i := range tiers {
		if tiers[i].name != name {
			continue
		}
		w = Window{Window: name, StepS: int(tiers[i].step / time.Second), Series: []Line{}}
		end := time.Duration(h.open[i]) * tiers[i].step
		w.Until = h.at.Add(end - h.axis).UTC().Round(0)
		n := int64(tiers[i].steps)
		for _, s := range h.all() {
			l := Line{Name: s.name, Unit: s.unit, Values: make([]Value, n)}
			for j := range n {
				l.Values[j] = Value(s.values[i][(h.open[i]+j)%n])
			}
			w.Series = append(w.Series, l)
		}
		return w, true
	}
	return w, false
}
