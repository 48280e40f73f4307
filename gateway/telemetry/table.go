package telemetry

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
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
	upstreams map[string]bool // those that have series
	forbidden map[Forbidden]prometheus.Counter
}

// A cell is a counter that is made when it is first needed.
type cell = atomic.Pointer[prometheus.Counter]

// A route is the series of one route.
type route struct {
	name            string
	duration, added latency
	inFlight        prometheus.Gauge
	sockets         prometheus.Gauge
	requests        [len(methodLabels)][maxCodes]cell

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
	return fill(&r.requests[method][code], t.requests, clean(r.name), methodLabels[method], codes.labels[code])
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
	return fill(&d.counts[outcome][source], t.decisions,
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
	return fill(&tg.counts[code], t.upRequests, clean(tg.labels.Upstream), clean(tg.labels.Target), label)
}

// fill makes the counter of a cell. The caller holds Telemetry.mu.
func fill(c *cell, vec *prometheus.CounterVec, labels ...string) *prometheus.Counter {
	if old := c.Load(); old != nil {
		return old
	}
	counter := vec.WithLabelValues(labels...)
	c.Store(&counter)
	return &counter
}
