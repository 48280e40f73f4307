package telemetry

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"bouncer/gateway/pulse"
)

// maxRead bounds how many routes one sample reads the latencies of. Of more, those
// have their turn that have waited with the most requests; what was observed in the
// meantime is in what they are read for then.
const maxRead = 256

// idleEvery is how many samples it may take to notice requests that hang on a route on
// which nothing else moves.
const idleEvery = 4

// A Sampler reads what was counted from one time to the next. It costs requests
// nothing: it walks the counters that were made, and reads the verdicts and the
// latencies of routes that moved. With 10,000 routes of one counter each, of which few
// move, a reading takes some 8 ms of one CPU; if all of them move, some 30 ms. See
// BenchmarkSample.
//
// A counter that goes with a reload goes with all it has; one that comes begins at
// 0. So nothing that is read is ever negative. One goroutine may use it at a time.
type Sampler struct {
	t         *Telemetry
	table     *table
	routes    map[*route]*readRoute
	order     []*readRoute // the same, to walk
	round     int
	byName    map[string]*readRoute
	decisions map[*decisions]*readDecisions
	targets   map[*target]*readTarget
	upstreams map[*upstream]*readUpstream
	store     readHistogram
	errors    map[string]float64
	overflow  float64
	dropped   float64
	metric    dto.Metric // used again for each reading
}

// A madeCell is a counter that was made since a Sampler last looked.
type madeCell struct {
	of any // *route, *decisions or *target
	at int
	c  prometheus.Counter
}

type readCell struct {
	at   int
	c    prometheus.Counter
	last float64
}

type readRoute struct {
	route                   *route
	cells                   []readCell
	decisions               []*readDecisions
	passedDenials, passedOn uint64
	uncheckable             uint64
	waiting                 float64 // requests that the histograms were not read for
	total, added            readHistogram
	counts                  pulse.RouteCounts
	moved                   bool
}

type readDecisions struct {
	labels Limit
	cells  []readCell
}

type readTarget struct {
	labels Target
	cells  []readCell
}

type readUpstream struct {
	name             string
	refused, retries float64
	took             pulse.Latencies
}

// A readHistogram is a native histogram as it was last.
type readHistogram struct {
	bins   pulse.Latencies
	count  uint64
	schema int32
	known  bool
}

// NewSampler returns a Sampler. Call it before anything is counted, and once.
func (t *Telemetry) NewSampler() *Sampler {
	s := &Sampler{
		t: t, routes: map[*route]*readRoute{}, byName: map[string]*readRoute{}, decisions: map[*decisions]*readDecisions{},
		targets: map[*target]*readTarget{}, upstreams: map[*upstream]*readUpstream{}, errors: map[string]float64{},
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sampled = true
	s.addRoute(t.unmatched)
	return s
}

func (s *Sampler) addRoute(r *route) *readRoute {
	read := &readRoute{route: r}
	s.routes[r], s.byName[r.name] = read, read
	s.order = append(s.order, read)
	return read
}

// Read returns what was counted since the last Read, or since New. What is not the
// telemetry's to know is left for the caller.
func (s *Sampler) Read() *pulse.Sample {
	out := &pulse.Sample{StoreErrors: map[string]float64{}}
	s.follow()
	s.readRoutes(out)
	s.readTargets(out)
	s.readHistogram(&s.store, s.t.storeTook, &out.Store)
	for kind, c := range s.t.storeErrors {
		if n := s.counter(c); n > s.errors[kind] {
			out.StoreErrors[kind] = n - s.errors[kind]
			s.errors[kind] = n
		}
	}
	overflow, dropped := s.counter(s.t.overflow), float64(s.t.lines.dropped.Load())
	out.Overflow, out.LogDropped = overflow-s.overflow, dropped-s.dropped
	s.overflow, s.dropped = overflow, dropped
	out.LeaseBlocks = s.gauge(s.t.leased)
	return out
}

// follow takes over what was made, and lets go of what a reload has retired.
func (s *Sampler) follow() {
	t := s.t
	t.mu.Lock()
	made, current := t.made, t.current.Load()
	t.made = nil
	t.mu.Unlock()
	if current != s.table {
		s.table = current
		s.retire()
	}
	for _, m := range made {
		cell := readCell{at: m.at, c: m.c}
		switch of := m.of.(type) {
		case *route:
			r := s.routes[of]
			if r == nil {
				if of.name != other {
					continue // retired meanwhile
				}
				r = s.addRoute(of)
			}
			r.cells = append(r.cells, cell)
		case *decisions:
			d := s.decisions[of]
			if d == nil {
				if of != t.otherDecisions && current.decisions[of.labels] != of {
					continue
				}
				d = &readDecisions{labels: of.labels}
				s.decisions[of] = d
				s.assign(d)
			}
			d.cells = append(d.cells, cell)
		case *target:
			g := s.targets[of]
			if g == nil {
				if of != t.otherTarget && current.targets[of.labels] != of {
					continue
				}
				g = &readTarget{labels: of.labels}
				s.targets[of] = g
			}
			g.cells = append(g.cells, cell)
		}
	}
}

// assign gives the verdicts of a limit to the route that they are read with.
func (s *Sampler) assign(d *readDecisions) {
	r := s.byName[d.labels.Route]
	if r == nil {
		r = s.byName[Unmatched] // which is always looked at
	}
	r.decisions = append(r.decisions, d)
}

// retire drops what is not in the table any more, and takes in its new routes.
func (s *Sampler) retire() {
	s.order = s.order[:0]
	maps.DeleteFunc(s.routes, func(r *route, read *readRoute) bool {
		gone := r != s.t.unmatched && r.name != other && s.table.routes[r.name] != r
		if gone && s.byName[r.name] == s.routes[r] {
			delete(s.byName, r.name)
		}
		if !gone {
			s.order = append(s.order, read)
		}
		return gone
	})
	clear(s.order[len(s.order):cap(s.order)])
	for _, r := range s.table.routes {
		if s.routes[r] == nil {
			s.addRoute(r)
		}
	}
	maps.DeleteFunc(s.decisions, func(d *decisions, _ *readDecisions) bool {
		return d != s.t.otherDecisions && s.table.decisions[d.labels] != d
	})
	for _, r := range s.routes {
		r.decisions = nil
	}
	for _, d := range s.decisions {
		s.assign(d)
	}
	maps.DeleteFunc(s.targets, func(g *target, _ *readTarget) bool {
		return g != s.t.otherTarget && s.table.targets[g.labels] != g
	})
	maps.DeleteFunc(s.upstreams, func(u *upstream, _ *readUpstream) bool { return s.table.upstreams[u.name] != u })
	for _, u := range s.table.upstreams {
		if s.upstreams[u] == nil {
			s.upstreams[u] = &readUpstream{name: u.name}
		}
	}
}

func (s *Sampler) readRoutes(out *pulse.Sample) {
	var moved []*readRoute
	s.round++
	for i, r := range s.order {
		s.readRoute(r, (i+s.round)%idleEvery == 0)
		if r.waiting > 0 {
			moved = append(moved, r)
		}
		if !r.moved && r.counts.InFlight == 0 && r.route != s.t.unmatched {
			continue
		}
		// A verdict is counted before its request ends.
		for _, d := range r.decisions {
			if c, any := s.readDecisions(d); any {
				out.Limits = append(out.Limits, c)
			}
		}
	}
	slices.SortFunc(moved, func(a, b *readRoute) int {
		return cmp.Or(cmp.Compare(b.waiting, a.waiting), strings.Compare(a.route.name, b.route.name))
	})
	for _, r := range moved[:min(len(moved), maxRead)] {
		r.waiting = 0
		var total pulse.Latencies
		s.readHistogram(&r.total, r.route.duration.Observer, &total)
		s.readHistogram(&r.added, r.route.added.Observer, &out.Added)
		out.Total.Add(&total)
		r.counts.Total = &total
		r.moved = true
	}
	for _, r := range s.order {
		if r.moved || r.counts.InFlight > 0 {
			out.Routes = append(out.Routes, r.counts)
		}
	}
}

// readRoute finds out what became of the requests of a route. Unless it is its turn,
// of one on which nothing moves it is not asked whether requests hang.
func (s *Sampler) readRoute(r *readRoute, turn bool) {
	c := pulse.RouteCounts{Route: r.route.name}
	ended := false
	for i := range r.cells {
		cell := &r.cells[i]
		n := s.counter(cell.c) - cell.last
		if n == 0 {
			continue
		}
		cell.last += n
		ended = true
		switch outcomes[cell.at%maxCodes] {
		case isDenied:
			c.Denied += n
		case isRefused:
			c.Refused += n
		case isFailed:
			c.Failed += n
		case isLeft:
			c.Left += n
		default:
			c.Allowed += n
		}
	}
	if r.moved = ended; !ended && !turn && r.counts.InFlight == 0 {
		r.counts = c
		return
	}
	c.InFlight = s.gauge(r.route.inFlight)
	// What has the code of a refusal and is none, or the other way round. A request is
	// told apart just before it is counted, so what is not counted yet waits.
	move := func(now uint64, last *uint64, from, to *float64) {
		n := min(float64(now-*last), *from)
		*last += uint64(n)
		*from -= n
		*to += n
	}
	move(r.route.passedDenials.Load(), &r.passedDenials, &c.Denied, &c.Allowed)
	move(r.route.passedOn.Load(), &r.passedOn, &c.Refused, &c.Allowed)
	move(r.route.uncheckable.Load(), &r.uncheckable, &c.Failed, &c.Denied)
	r.waiting += c.Requests()
	r.counts = c
}

func (s *Sampler) readDecisions(d *readDecisions) (c pulse.LimitCounts, any bool) {
	c.Limit = pulse.Limit{Plan: d.labels.Plan, Limit: d.labels.Limit, Route: d.labels.Route}
	for i := range d.cells {
		cell := &d.cells[i]
		n := s.counter(cell.c) - cell.last
		if n == 0 {
			continue
		}
		cell.last += n
		any = true
		c.Sources[cell.at%len(sourceLabels)] += n
		*[...]*float64{&c.Denied, &c.Allowed, &c.ShadowDenied, &c.ShadowAllowed, &c.CandidateDenied, &c.CandidateAllowed}[cell.at/len(sourceLabels)] += n
	}
	return c, any
}

func (s *Sampler) readTargets(out *pulse.Sample) {
	for _, g := range s.targets {
		c := pulse.TargetCounts{Target: pulse.Target{Upstream: g.labels.Upstream, Target: g.labels.Target}}
		any := false
		for i := range g.cells {
			cell := &g.cells[i]
			n := s.counter(cell.c) - cell.last
			if n == 0 {
				continue
			}
			cell.last += n
			any = true
			switch cell.at {
			case codeError:
				c.Errors += n
			case codeCanceled:
				c.Canceled += n
			default:
				if class := int(codes.labels[cell.at][0] - '1'); class >= 0 && class < len(c.Classes) {
					c.Classes[class] += n
				} else {
					c.Classes[4] += n // no status of HTTP
				}
			}
		}
		if any {
			out.Targets = append(out.Targets, c)
		}
	}
	for u, read := range s.upstreams {
		refused := s.counter(u.refused[0]) + s.counter(u.refused[1])
		retries := s.counter(u.retried)
		c := pulse.UpstreamCounts{Upstream: u.name, Refused: refused - read.refused, Retries: retries - read.retries}
		read.refused, read.retries = refused, retries
		if took, any := u.read(&read.took); any {
			c.Took = &took
		}
		if c.Refused > 0 || c.Retries > 0 || c.Took != nil {
			out.Upstreams = append(out.Upstreams, c)
		}
	}
}

// readHistogram adds what a histogram observed since it was last read.
func (s *Sampler) readHistogram(last *readHistogram, o prometheus.Observer, out *pulse.Latencies) {
	m, ok := o.(prometheus.Metric)
	if !ok {
		return
	}
	s.metric.Reset()
	if m.Write(&s.metric) != nil {
		return
	}
	h := s.metric.GetHistogram()
	now := readHistogram{count: h.GetSampleCount(), schema: h.GetSchema(), known: true}
	// No duration is negative, and those of no time at all are below the lowest bin.
	now.bins[0] = uint32(h.GetZeroCount()) //nolint:gosec // it may run over
	index, count, delta := int32(0), int64(0), h.GetPositiveDelta()
	for _, span := range h.GetPositiveSpan() {
		index += span.GetOffset()
		for range span.GetLength() {
			if len(delta) == 0 {
				break
			}
			count += delta[0]
			delta = delta[1:]
			spread(&now.bins, now.schema, int(index), count)
			index++
		}
	}
	switch {
	case now.count == last.count && last.known:
		return
	case !last.known || now.count < last.count:
		out.Add(&now.bins) // all of it is new: it began, or began anew, since then
	case now.schema != last.schema:
		// It has taken to coarser buckets. What is new is not to be told apart.
	default:
		d := now.bins.Less(&last.bins)
		out.Add(&d)
	}
	*last = now
}

// spread counts a bucket in the bins that it covers, evenly. Whatever count grows by,
// no bin's share shrinks.
func spread(bins *pulse.Latencies, schema int32, index int, count int64) {
	if schema >= 3 {
		at := index >> (schema - 3)
		if at<<(schema-3) < index {
			at++
		}
		bins[pulse.Bin(at)] += uint32(count) //nolint:gosec // it may run over
		return
	}
	n := 1 << (3 - schema)
	for i := range n {
		bins[pulse.Bin((index-1)*n+1+i)] += uint32((count + int64(i)) / int64(n)) //nolint:gosec // as above
	}
}

func (s *Sampler) counter(c prometheus.Metric) float64 {
	s.metric.Reset()
	if c.Write(&s.metric) != nil {
		return 0
	}
	return s.metric.GetCounter().GetValue()
}

func (s *Sampler) gauge(g prometheus.Metric) float64 {
	s.metric.Reset()
	if g.Write(&s.metric) != nil {
		return 0
	}
	return s.metric.GetGauge().GetValue()
}

// The outcomes of requests, by the index of their code.
const (
	isAllowed = iota
	isDenied
	isRefused
	isFailed
	isLeft
)

var outcomes = func() (of [maxCodes]uint8) {
	for i, label := range codes.labels {
		status, _ := strconv.Atoi(label) // 0 of a class, and of other
		switch {
		case status == http.StatusTooManyRequests:
			of[i] = isDenied
		case status == statusClientClosed:
			of[i] = isLeft
		case status >= 500 || label == "5xx" || label == other:
			of[i] = isFailed
		case status >= 400 || label == "4xx":
			of[i] = isRefused
		}
	}
	return of
}()

// UpstreamTook says how long an attempt took, from choosing the target to the end of
// the answer. An upstream that is not in [Labels.Upstreams] is not counted.
func (t *Telemetry) UpstreamTook(name string, d time.Duration) {
	if u := t.current.Load().upstreams[name]; u != nil {
		u.took[pulse.BinOf(d)].Add(1)
	}
}

// Reloads is how many configurations were applied, the first not counted, and how many
// were rejected.
func (t *Telemetry) Reloads() (applied, rejected int) {
	count := func(c prometheus.Metric) int {
		var m dto.Metric
		if c.Write(&m) != nil {
			return 0
		}
		return int(m.GetCounter().GetValue())
	}
	return count(t.applied), count(t.rejected)
}
