package pulse

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// The bounds of the lists of [Rates].
const (
	MaxRoutes    = 100
	MaxLimits    = 100
	MaxUpstreams = 100
	MaxTargets   = 32 // of one upstream
)

// A Pulse keeps what samples say: the rates of the last ten seconds, and the history.
// It is safe for concurrent use.
type Pulse struct {
	mu        sync.Mutex // protects the following fields
	history   *history
	since     time.Duration
	routes    *window[string]
	limits    *window[Limit]
	targets   *window[Target]
	upstreams *window[string]
	errors    *window[string]    // of the store, by kind
	whole     *window[string]    // of all routes: wholeRequests and wholeStore
	inFlight  map[string]float64 // by route, where there is any
}

// New returns a Pulse that knows nothing yet.
func New() *Pulse {
	return &Pulse{
		history: newHistory(), routes: newWindow[string](), limits: newWindow[Limit](), targets: newWindow[Target](),
		upstreams: newWindow[string](), errors: newWindow[string](), whole: newWindow[string](), inFlight: map[string]float64{},
	}
}

// Where the counts of a window stand.
const (
	atAllowed = iota
	atDenied
	atFailed
	atRefused
	atLeft
)

const (
	atShadowAllowed = iota + 2 // after atAllowed and atDenied
	atShadowDenied
	atCandidateAllowed
	atCandidateDenied
	atSources
)

const (
	atErrors = iota + 5 // after the classes
	atCanceled
)

const (
	atOverflow = iota
	atLogDropped
)

// What is counted of all routes together.
const wholeRequests, wholeStore = "requests", "store"

// Add takes a sample in. The sample is not kept. It reports false if nothing is known
// of the time since the one before: it is the first, or the process or its machine
// stood still.
func (p *Pulse) Add(s *Sample) (continuous bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	span := s.Since - p.since
	p.since = s.Since
	if !p.history.add(s) {
		// Nobody knows when that was counted.
		p.routes.clear()
		p.limits.clear()
		p.targets.clear()
		p.upstreams.clear()
		p.errors.clear()
		p.whole.clear()
		p.noteInFlight(s)
		return false
	}
	routes := make([]entry[string], 0, len(s.Routes))
	for i := range s.Routes {
		r := &s.Routes[i]
		if r.Requests() == 0 && r.Total == nil {
			continue
		}
		e := entry[string]{key: r.Route}
		e.counts[atAllowed], e.counts[atDenied], e.counts[atFailed], e.counts[atRefused], e.counts[atLeft] = r.Allowed, r.Denied, r.Failed, r.Refused, r.Left
		if r.Total != nil {
			e.latencies = r.Total.sparse()
		}
		routes = append(routes, e)
	}
	p.routes.add(span, routes)
	limits := make([]entry[Limit], len(s.Limits))
	for i := range s.Limits {
		l := &s.Limits[i]
		c := counts{l.Allowed, l.Denied, l.ShadowAllowed, l.ShadowDenied, l.CandidateAllowed, l.CandidateDenied}
		copy(c[atSources:], l.Sources[:])
		limits[i] = entry[Limit]{key: l.Limit, counts: c}
	}
	p.limits.add(span, limits)
	targets := make([]entry[Target], len(s.Targets))
	for i := range s.Targets {
		t := &s.Targets[i]
		e := entry[Target]{key: t.Target}
		copy(e.counts[:], t.Classes[:])
		e.counts[atErrors], e.counts[atCanceled] = t.Errors, t.Canceled
		targets[i] = e
	}
	p.targets.add(span, targets)
	upstreams := make([]entry[string], len(s.Upstreams))
	for i := range s.Upstreams {
		u := &s.Upstreams[i]
		upstreams[i] = entry[string]{key: u.Upstream, counts: counts{u.Refused, u.Retries}}
		if u.Took != nil {
			upstreams[i].latencies = u.Took.sparse()
		}
	}
	p.upstreams.add(span, upstreams)
	var failed []entry[string]
	for kind, n := range s.StoreErrors {
		failed = append(failed, entry[string]{key: kind, counts: counts{n}})
	}
	p.errors.add(span, failed)
	p.whole.add(span, []entry[string]{
		{key: wholeRequests, counts: counts{s.Overflow, s.LogDropped}, latencies: s.Added.sparse()},
		{key: wholeStore, latencies: s.Store.sparse()},
	})
	p.noteInFlight(s)
	return true
}

func (p *Pulse) noteInFlight(s *Sample) {
	clear(p.inFlight)
	for i := range s.Routes {
		if r := &s.Routes[i]; r.InFlight > 0 {
			p.inFlight[r.Route] = r.InFlight
		}
	}
}

// History is one of the windows 5m, 1h and 24h; false: there is none of that name.
func (p *Pulse) History(name string) (Window, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.history.window(name)
}

// Now is every series' value of the last whole second.
func (p *Pulse) Now() map[string]Value {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.history.all()
	now := make(map[string]Value, len(all))
	for _, s := range all {
		now[s.name] = Value(p.history.last(s))
	}
	return now
}

// Usual is the value that an upstream's p99 has had most of the time, in
// milliseconds, but for the last half minute: the median of the last hour, or of the
// last minutes while there is no hour. NaN: it is not known yet.
func (p *Pulse) Usual(upstream string) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.history.byUpstreams.own[upstream]
	if m == nil {
		return math.NaN()
	}
	s := m.series[2]
	for _, from := range [...]struct{ tier, skip, least int }{{1, 3, 12}, {0, 30, 10}} {
		ring := s.values[from.tier]
		n := int64(len(ring))
		var known []float32
		for j := range n - int64(from.skip) {
			if v := ring[(p.history.open[from.tier]+j)%n]; v == v {
				known = append(known, v)
			}
		}
		if len(known) >= from.least {
			slices.Sort(known)
			return float64(known[len(known)/2])
		}
	}
	return math.NaN()
}

// Rates are means over the last ten seconds, per second; the busiest first.
type Rates struct {
	Routes    []RouteRates
	Limits    []LimitRates
	Targets   map[string][]TargetRates // by upstream
	Upstreams map[string]UpstreamRates
	// MoreRoutes and MoreLimits are how many are left out.
	MoreRoutes, MoreLimits int

	// Of all routes.
	Requests, Denied, Failed float64

	// What nine requests, and decisions of the store, of ten do not take, and 99 of a
	// hundred, in seconds; NaN if unknown.
	AddedP90, AddedP99, StoreP90 float64
	StoreErrors                  map[string]float64
	Overflow, LogDropped         float64
}

// RouteRates are those of one route. Its latencies are of whole requests, in seconds.
type RouteRates struct {
	Route                    string
	Requests, Denied, Failed float64
	P50, P99                 float64
	InFlight                 float64
}

// LimitRates are those of one limit.
type LimitRates struct {
	Limit

	Allowed, Denied, ShadowDenied, CandidateDenied float64
	Sources                                        map[string]float64 // those that decided
}

// TargetRates are those of one target: Status by class, from 1xx on.
type TargetRates struct {
	Target           string
	Requests, Errors float64 // Errors: no answer, or 500 and above
	Status           [5]float64
	NoAnswer         float64
}

// UpstreamRates are those of an upstream as a whole; how long attempts took in seconds.
type UpstreamRates struct{ Refused, Retries, P50, P90, P99 float64 }

// Rates returns them.
func (p *Pulse) Rates() *Rates {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &Rates{
		Targets: map[string][]TargetRates{}, Upstreams: map[string]UpstreamRates{}, StoreErrors: map[string]float64{},
		Routes: []RouteRates{}, Limits: []LimitRates{}, AddedP90: math.NaN(), AddedP99: math.NaN(), StoreP90: math.NaN(),
	}
	for name, s := range p.routes.sums {
		requests := s.counts[atAllowed] + s.counts[atDenied] + s.counts[atFailed] + s.counts[atRefused] + s.counts[atLeft]
		one := RouteRates{
			Route: name, Requests: p.routes.per(requests), Denied: p.routes.per(s.counts[atDenied]), Failed: p.routes.per(s.counts[atFailed]),
			P50: s.latencies.Quantile(.5), P99: s.latencies.Quantile(.99), InFlight: p.inFlight[name],
		}
		r.Requests, r.Denied, r.Failed = r.Requests+one.Requests, r.Denied+one.Denied, r.Failed+one.Failed
		r.Routes = append(r.Routes, one)
	}
	for name, n := range p.inFlight {
		if p.routes.sums[name] == nil {
			r.Routes = append(r.Routes, RouteRates{Route: name, InFlight: n, P50: math.NaN(), P99: math.NaN()})
		}
	}
	slices.SortFunc(r.Routes, func(a, b RouteRates) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(b.InFlight, a.InFlight), strings.Compare(a.Route, b.Route))
	})
	r.MoreRoutes = max(len(r.Routes)-MaxRoutes, 0)
	r.Routes = r.Routes[:len(r.Routes)-r.MoreRoutes]
	for l, s := range p.limits.sums {
		one := LimitRates{
			Limit: l, Allowed: p.limits.per(s.counts[atAllowed]), Denied: p.limits.per(s.counts[atDenied]),
			ShadowDenied: p.limits.per(s.counts[atShadowDenied]), CandidateDenied: p.limits.per(s.counts[atCandidateDenied]),
			Sources: map[string]float64{},
		}
		for i, name := range Sources {
			if n := s.counts[atSources+i]; n > 0 {
				one.Sources[name] = p.limits.per(n)
			}
		}
		r.Limits = append(r.Limits, one)
	}
	slices.SortFunc(r.Limits, func(a, b LimitRates) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.Allowed, a.Allowed),
			strings.Compare(a.Plan, b.Plan), strings.Compare(a.Limit.Limit, b.Limit.Limit), strings.Compare(a.Route, b.Route))
	})
	r.MoreLimits = max(len(r.Limits)-MaxLimits, 0)
	r.Limits = r.Limits[:len(r.Limits)-r.MoreLimits]
	for t, s := range p.targets.sums {
		one := TargetRates{Target: t.Target, NoAnswer: p.targets.per(s.counts[atErrors])}
		one.Requests = one.NoAnswer
		for i := range one.Status {
			one.Status[i] = p.targets.per(s.counts[i])
			one.Requests += one.Status[i]
		}
		one.Errors = one.NoAnswer + one.Status[4]
		r.Targets[t.Upstream] = append(r.Targets[t.Upstream], one)
	}
	for name, s := range p.upstreams.sums {
		r.Upstreams[name] = UpstreamRates{
			Refused: p.upstreams.per(s.counts[0]), Retries: p.upstreams.per(s.counts[1]),
			P50: s.latencies.Quantile(.5), P90: s.latencies.Quantile(.9), P99: s.latencies.Quantile(.99),
		}
	}
	for kind, s := range p.errors.sums {
		r.StoreErrors[kind] = p.errors.per(s.counts[0])
	}
	if s := p.whole.sums[wholeRequests]; s != nil {
		r.Overflow, r.LogDropped = p.whole.per(s.counts[atOverflow]), p.whole.per(s.counts[atLogDropped])
		r.AddedP90, r.AddedP99 = s.latencies.Quantile(.9), s.latencies.Quantile(.99)
		r.StoreP90 = p.whole.sums[wholeStore].latencies.Quantile(.9)
	}
	return r
}
