package simulate

import (
	"net/http"

	"bouncer/gateway"
	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit"
)

// A ledger replays records under one configuration and counts what becomes of
// them.
type ledger struct {
	cfg  *config.Config
	ask  *asker
	room int // for timelines

	requests, allowed, denied, refused, unmatched int64
	longestWait, longestQueue                     int64 // µs
	first, last                                   int64
	firstDenied                                   int64

	named, unnamed map[string]*caller
	limits         map[*ratelimit.Policy]*limit
	order          []*limit
	routes         map[string]*asked
	rows           []*row
	axis           axis
	observe        func(*record, *gateway.Verdict) // nil but in tests
}

// A caller is who asked, and what became of it.
type caller struct {
	name             string // or the address
	named            bool
	plan             string
	requests, denied int64
	firstDenied      int64
	newly            int64 // denied, and not under the other configuration

	buckets []*bucket // by limit: the last one that it charged
	patient felt      // nobody's but of the patience
}

// asked is what the limits were asked on one route.
type asked struct{ rows []*row }

// A limit is one limit of the configuration that was asked.
type limit struct {
	cfg   *config.Limit // nil: auth.failure_limit
	from  string        // edge, plan or route
	plan  string        // that it stands in, for from plan
	index int           // among the ledger's limits
	meter *meter        // nil: no number is looked for
	slots []slot
}

// A row is one limit on one route under one plan.
type row struct {
	policy        *ratelimit.Policy
	plan, route   string
	limit         *limit
	asked, denied int64
	firstDenied   int64
	longest       int64 // µs
	never         bool  // some denial was one that no wait would lift
	deniedCallers map[*caller]struct{}
}

func newLedger(cfg *config.Config, o *Options) (*ledger, error) {
	ask, err := newAsker(cfg, o)
	if err != nil {
		return nil, err
	}
	return &ledger{
		cfg: cfg, ask: ask, room: maxTimeline, named: map[string]*caller{}, unnamed: map[string]*caller{},
		limits: map[*ratelimit.Policy]*limit{}, routes: map[string]*asked{},
	}, nil
}

// decide replays a batch and notes the outcomes.
func (l *ledger) decide(batch []*record, out []outcome) []outcome {
	for _, r := range batch {
		denied, who := l.one(r)
		out = append(out, outcome{who, denied})
	}
	return out
}

func (l *ledger) one(r *record) (denied bool, who *caller) {
	if l.requests == 0 {
		l.first = r.at
		l.axis.start(r.at)
	}
	l.last = r.at
	l.requests++
	v := l.ask.do(r, r.at)
	if l.observe != nil {
		l.observe(r, &v)
	}
	who = l.caller(&v)
	who.requests++
	if v.Request.Plan != "" {
		who.plan = v.Request.Plan
	}
	for range l.axis.reach(r.at) {
		for _, x := range l.order {
			x.slots = fold(x.slots)
		}
	}
	on := l.routes[v.Request.Route]
	if on == nil {
		on = &asked{}
		l.routes[v.Request.Route] = on
	}
	for i := range v.Edge {
		l.count(r.at, on, &v, &v.Edge[i], "edge", who)
	}
	for i := range v.Limits {
		l.count(r.at, on, &v, &v.Limits[i], "", who)
	}
	switch {
	case v.Refused == nil:
		l.allowed++
		l.longestQueue = max(l.longestQueue, v.Delay.Microseconds())
	case v.Refused.Status == http.StatusTooManyRequests:
		l.denied++
		if l.firstDenied == 0 {
			l.firstDenied = r.at
		}
		if who.denied == 0 {
			who.firstDenied = r.at
		}
		who.denied++
		l.longestWait = max(l.longestWait, v.Refused.RetryAfter.Microseconds())
		return true, who
	default:
		l.refused++
		if v.Request.Route == "unmatched" {
			l.unmatched++
		}
	}
	return false, who
}

func (l *ledger) caller(v *gateway.Verdict) *caller {
	name, named := l.ask.callerOf(v)
	of := l.unnamed
	if named {
		of = l.named
	}
	who := of[name]
	if who == nil {
		who = &caller{name: name, named: named}
		of[name] = who
	}
	return who
}

// row is that of a limit on a route, under the plan of the request.
func (l *ledger) row(on *asked, v *gateway.Verdict, p *ratelimit.Policy, from string) *row {
	for _, x := range on.rows { // a handful
		if x.policy == p && (x.plan == v.Request.Plan || x.limit.from == "edge") {
			return x
		}
	}
	lim := l.limits[p]
	if lim == nil {
		lim = l.newLimit(p, from, v.Request.Plan)
	}
	x := &row{policy: p, route: v.Request.Route, limit: lim, deniedCallers: map[*caller]struct{}{}}
	if lim.from != "edge" {
		x.plan = v.Request.Plan
	}
	on.rows, l.rows = append(on.rows, x), append(l.rows, x)
	return x
}

// count counts what one limit was asked and has answered.
func (l *ledger) count(at int64, on *asked, v *gateway.Verdict, a *gateway.Asked, from string, who *caller) {
	x := l.row(on, v, a.Charge.Policy, from)
	lim := x.limit
	x.asked++
	denied := !a.Decision.Allowed
	lim.slots = l.axis.count(lim.slots, at, denied)
	if denied {
		if x.denied == 0 {
			x.firstDenied = at
		}
		x.denied++
		x.deniedCallers[who] = struct{}{}
		if w := a.Decision.RetryAfter; w == ratelimit.Never {
			x.never = true
		} else {
			x.longest = max(x.longest, w.Microseconds())
		}
	}
	if lim.meter != nil && a.Charge.Cost > 0 {
		for len(who.buckets) <= lim.index {
			who.buckets = append(who.buckets, nil)
		}
		lim.meter.charge(at, &a.Charge, who, &who.buckets[lim.index], &l.room)
	}
}

// newLimit finds the limit of a policy in the configuration.
func (l *ledger) newLimit(p *ratelimit.Policy, from, plan string) *limit {
	lim := &limit{from: from, index: len(l.order)}
	if from == "edge" {
		lim.cfg = named(l.cfg.Edge, p.Name)
	} else {
		for _, c := range l.cfg.Plans {
			if c.Name == plan {
				lim.cfg = named(c.Limits, p.Name)
			}
		}
		if lim.from, lim.plan = "plan", plan; lim.cfg == nil || p.Scope != "plan/"+p.Name {
			lim.from, lim.plan, lim.cfg = "route", "", named(l.cfg.Limits, p.Name)
		}
	}
	if lim.cfg != nil {
		byCaller := len(lim.cfg.Per) == 1 && lim.cfg.Per[0].Kind == config.PerUser
		lim.meter = newMeter(p, from == "edge" || !byCaller)
	}
	l.limits[p] = lim
	l.order = append(l.order, lim)
	return lim
}

func named(ls []*config.Limit, name string) *config.Limit {
	for _, l := range ls {
		if l.Name == name {
			return l
		}
	}
	return nil
}

// A slot is one piece of the time line of a limit.
type slot struct{ allowed, denied int64 }

// slotCount is how many pieces the time of a log is told in, at most.
const slotCount = 120

// An axis lays slots along the time of a log whose length is not known yet:
// when it is full, two slots become one.
type axis struct{ base, width int64 }

func (a *axis) start(at int64) { *a = axis{base: at - at%1e6, width: 1e6} }

// reach makes room for at and returns how often slots have to be folded for it.
func (a *axis) reach(at int64) (folds int) {
	for at >= a.base+slotCount*a.width {
		a.width *= 2
		folds++
	}
	return folds
}

// fold makes two slots one.
func fold(s []slot) []slot {
	for i, x := range s {
		if i%2 == 0 {
			s[i/2] = x
		} else {
			s[i/2].allowed += x.allowed
			s[i/2].denied += x.denied
		}
	}
	return s[:(len(s)+1)/2]
}

func (a *axis) count(s []slot, at int64, denied bool) []slot {
	i := int((at - a.base) / a.width)
	for len(s) <= i {
		s = append(s, slot{})
	}
	if denied {
		s[i].denied++
	} else {
		s[i].allowed++
	}
	return s
}
