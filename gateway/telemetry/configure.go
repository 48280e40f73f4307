package telemetry

import "github.com/prometheus/client_golang/prometheus"

// maxAtStart bounds how many series of decisions are made before there is
// anything to count. A configuration with many routes times many plans would
// otherwise fill every scrape with zeros; beyond the bound a series begins
// with its first verdict.
const maxAtStart = 10_000

// Configure makes the series of l, at 0, and deletes those of what is gone. It
// is to be called with every configuration, just before it comes into force.
// What stays keeps its counts.
func (t *Telemetry) Configure(l Labels) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.current.Load()
	next := &table{
		routes:    t.routesLocked(old.routes, l.Routes),
		decisions: t.decisionsLocked(old.decisions, l.Limits, l.Trials, l.Sources),
		targets:   t.targetsLocked(old.targets, l.Targets),
		upstreams: t.upstreamsLocked(old.upstreams, l.Upstreams),
		forbidden: t.forbiddenLocked(old.forbidden, l.Forbidden),
	}
	t.current.Store(next)
	t.modesLocked(l.Modes)
}

// upstreamsLocked makes the series of upstreams as a whole.
func (t *Telemetry) upstreamsLocked(old map[string]*upstream, names []string) map[string]*upstream {
	next := make(map[string]*upstream, len(names))
	for _, name := range names {
		if old[name] != nil {
			next[name] = old[name]
			continue
		}
		t.circuit.WithLabelValues(clean(name)).Set(0)
		t.retries.WithLabelValues(clean(name), "budget")
		next[name] = &upstream{
			name:    name,
			refused: [2]prometheus.Counter{t.noRoom.WithLabelValues(clean(name), "no_room"), t.noRoom.WithLabelValues(clean(name), "circuit_open")},
			retried: t.retries.WithLabelValues(clean(name), "done"),
		}
	}
	for name := range old {
		if next[name] == nil {
			t.circuit.DeleteLabelValues(clean(name))
			t.noRoom.DeletePartialMatch(prometheus.Labels{"upstream": clean(name)})
			t.retries.DeletePartialMatch(prometheus.Labels{"upstream": clean(name)})
		}
	}
	return next
}

func (t *Telemetry) routesLocked(old map[string]*route, names []string) map[string]*route {
	next := make(map[string]*route, len(names))
	for _, name := range names {
		switch {
		case name == Unmatched || name == "":
			// always there
		case name == other:
			next[name] = t.otherRoute() // a route may be called that; it shares the series
		case old[name] != nil:
			next[name] = old[name]
		default:
			next[name] = t.newRoute(name)
		}
	}
	for name, r := range old {
		if next[name] != nil || name == other {
			continue
		}
		r.retired = true
		gone := prometheus.Labels{"route": clean(name)}
		t.requests.DeletePartialMatch(gone)
		t.duration.Delete(gone)
		t.added.Delete(gone)
		t.streams.Delete(gone)
		t.inFlight.Delete(gone)
		t.sockets.Delete(gone)
	}
	return next
}

func (t *Telemetry) decisionsLocked(old map[Limit]*decisions, limits []Limit, trials []Trial, sources []string) map[Limit]*decisions {
	type ratioLabels struct{ plan, limit string }
	next := make(map[Limit]*decisions, len(limits))
	ratios := make(map[ratioLabels]bool)
	for _, l := range limits {
		d := old[l]
		if d == nil {
			d = &decisions{labels: l, ratio: t.remaining.WithLabelValues(clean(l.Plan), clean(l.Limit))}
		}
		next[l] = d
		ratios[ratioLabels{l.Plan, l.Limit}] = true
	}
	for l, d := range old {
		if next[l] != nil {
			continue
		}
		d.retired = true
		t.decisions.DeletePartialMatch(prometheus.Labels{
			"route": clean(l.Route), "plan": clean(l.Plan), "limit": clean(l.Limit),
		})
		if !ratios[ratioLabels{l.Plan, l.Limit}] {
			t.remaining.Delete(prometheus.Labels{"plan": clean(l.Plan), "limit": clean(l.Limit)})
		}
	}
	if (len(next)+len(trials))*len(sources)*2 <= maxAtStart {
		start := func(d *decisions, role Role) {
			for _, source := range sources {
				t.fillDecisionLocked(d, outcomeIndex(role, true), sourceIndex(source))
				t.fillDecisionLocked(d, outcomeIndex(role, false), sourceIndex(source))
			}
		}
		for _, d := range next {
			start(d, Enforced)
		}
		for _, trial := range trials {
			if d := next[trial.Limit]; d != nil {
				start(d, trial.Role)
			}
		}
	}
	return next
}

func (t *Telemetry) targetsLocked(old map[Target]*target, targets []Target) map[Target]*target {
	next := make(map[Target]*target, len(targets))
	for _, l := range targets {
		if tg := old[l]; tg != nil {
			next[l] = tg
			continue
		}
		tg := &target{labels: l, up: t.up.WithLabelValues(clean(l.Upstream), clean(l.Target))}
		tg.up.Set(1) // until an attempt says otherwise
		next[l] = tg
	}
	for l, tg := range old {
		if next[l] != nil {
			continue
		}
		tg.retired = true
		gone := prometheus.Labels{"upstream": clean(l.Upstream), "target": clean(l.Target)}
		t.upRequests.DeletePartialMatch(gone)
		t.up.Delete(gone)
	}
	return next
}

func (t *Telemetry) forbiddenLocked(old map[Forbidden]prometheus.Counter, all []Forbidden) map[Forbidden]prometheus.Counter {
	next := make(map[Forbidden]prometheus.Counter, len(all))
	for _, f := range all {
		next[f] = t.forbidden.WithLabelValues(clean(f.Route), clean(f.Reason))
	}
	for f := range old {
		if next[f] == nil {
			t.forbidden.DeleteLabelValues(clean(f.Route), clean(f.Reason))
		}
	}
	return next
}

func (t *Telemetry) modesLocked(modes []string) {
	next := make(map[string]bool, len(modes))
	for _, mode := range modes {
		next[mode] = true
		t.fallback.WithLabelValues(clean(mode)).Set(gaugeOf(t.away))
	}
	for mode := range t.modes {
		if !next[mode] {
			t.fallback.DeleteLabelValues(clean(mode))
		}
	}
	t.modes = next
}

func gaugeOf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
