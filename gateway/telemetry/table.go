package telemetry

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"bouncer/gateway/pulse"
)

// A table holds the series that the configuration in force gives rise to. It
// is not modified once it is in force; the counters in it are.
//
// What is not in the table has no labels of its own: a request that outlived
// the configuration of its route counts under "other", so that totals stay
// right and a deleted series stays deleted.
type table struct {
	routes    map[string]*route
	decisions map[Limit]*decisions
	targets   map[Target]*target
	upstreams map[string]*upstream
	forbidden map[Forbidden]prometheus.Counter
}

// A cell is a counter that is made when it is first needed.
type cell = atomic.Pointer[prometheus.Counter]

// A route is the series of one route.
type route struct {
	name            string
	duration, added latency
	streams         prometheus.Observer
	inFlight        prometheus.Gauge
	sockets         prometheus.Gauge
	requests        [len(methodLabels)][maxCodes]cell

	// What the code of an answer does not say: that a 429, or another refusal, is the
	// upstream's own, and that a 503 is for want of a limit that can be checked.
	passedDenials, passedOn, uncheckable atomic.Uint64

	retired bool // its series are deleted; guarded by Telemetry.mu
}

// decisions is the series of one limit on one route under one plan.
type decisions struct {
	labels Limit
	ratio  prometheus.Observer // shared by all routes; nil under "other"
	counts [len(outcomeLabels)][len(sourceLabels)]cell

	retired bool // guarded by Telemetry.mu
}

// A target is the series of one server of an upstream.
type target struct {
	labels Target
	up     prometheus.Gauge // nil under "other"
	out    atomic.Bool      // it is left out, whatever an attempt says
	counts [maxCodes + 2]cell

	retired bool // guarded by Telemetry.mu
}

// An upstream is what is counted of an upstream as a whole.
type upstream struct {
	name    string
	refused [2]prometheus.Counter
	retried prometheus.Counter
	// took is how long attempts took: for whoever samples, and no metric.
	took [pulse.Bins]atomic.Uint32
}

// read returns how long attempts took since last, which it brings up to date.
func (u *upstream) read(last *pulse.Latencies) (took pulse.Latencies, some bool) {
	for i := range u.took {
		n := u.took[i].Load()
		took[i] = n - last[i]
		some = some || took[i] != 0
		last[i] = n
	}
	return took, some
}

// Indexes of target.counts beyond those of codes.
const (
	codeError    = maxCodes     // no answer came
	codeCanceled = maxCodes + 1 // the client left before one could come
)

// newRoute makes the series of a route that start at 0.
func (t *Telemetry) newRoute(name string) *route {
	label := clean(name)
	return &route{
		name:     name,
		duration: latency{Observer: t.duration.WithLabelValues(label)},
		added:    latency{Observer: t.added.WithLabelValues(label)},
		streams:  t.streams.WithLabelValues(label),
		inFlight: t.inFlight.WithLabelValues(label),
		sockets:  t.sockets.WithLabelValues(label),
	}
}

// route finds the series of a route by name.
func (t *Telemetry) route(name string) *route {
	if name == "" || name == Unmatched {
		return t.unmatched
	}
	if r := t.current.Load().routes[name]; r != nil {
		return r
	}
	return t.otherRoute()
}

// countRequest counts one request of r.
func (t *Telemetry) countRequest(r *route, method, code int) {
	c := r.requests[method][code].Load()
	if c == nil {
		c = t.newRequestCell(r, method, code)
	}
	(*c).Inc()
}

func (t *Telemetry) newRequestCell(r *route, method, code int) *prometheus.Counter {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.retired {
		r = t.otherRoute() // see table
	}
	return t.fillLocked(&r.requests[method][code], r, method*maxCodes+code, t.requests, clean(r.name), methodLabels[method], codes.labels[code])
}

// countDecision counts one verdict of d.
func (t *Telemetry) countDecision(d *decisions, outcome, source int) {
	c := d.counts[outcome][source].Load()
	if c == nil {
		t.mu.Lock()
		c = t.fillDecisionLocked(d, outcome, source)
		t.mu.Unlock()
	}
	(*c).Inc()
}

func (t *Telemetry) fillDecisionLocked(d *decisions, outcome, source int) *prometheus.Counter {
	if d.retired {
		d = t.otherDecisions
	}
	return t.fillLocked(&d.counts[outcome][source], d, outcome*len(sourceLabels)+source, t.decisions,
		clean(d.labels.Route), clean(d.labels.Plan), clean(d.labels.Limit), outcomeLabels[outcome], sourceLabels[source])
}

// countAttempt counts one attempt at tg.
func (t *Telemetry) countAttempt(tg *target, code int) {
	c := tg.counts[code].Load()
	if c == nil {
		c = t.newAttemptCell(tg, code)
	}
	(*c).Inc()
}

func (t *Telemetry) newAttemptCell(tg *target, code int) *prometheus.Counter {
	var label string
	switch code {
	case codeError:
		label = "error"
	case codeCanceled:
		label = "canceled"
	default:
		label = codes.labels[code]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if tg.retired {
		tg = t.otherTarget
	}
	return t.fillLocked(&tg.counts[code], tg, code, t.upRequests, clean(tg.labels.Upstream), clean(tg.labels.Target), label)
}

// fillLocked makes the counter of a cell, which is number at of those of one thing.
func (t *Telemetry) fillLocked(c *cell, of any, at int, vec *prometheus.CounterVec, labels ...string) *prometheus.Counter {
	if old := c.Load(); old != nil {
		return old
	}
	counter := vec.WithLabelValues(labels...)
	c.Store(&counter)
	if t.sampled {
		t.made = append(t.made, madeCell{of, at, counter})
	}
	return &counter
}
