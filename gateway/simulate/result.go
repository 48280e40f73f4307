package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"bouncer/gateway/config"
)

// A Result is what a replay came to. Its JSON is for scripts.
type Result struct {
	Lines     int64 `json:"lines"`
	Malformed int64 `json:"malformed"`
	// Requests are the lines that were replayed. Those that are neither Allowed
	// nor Denied were refused for another reason: see Refused.
	Requests int64 `json:"requests"`
	Allowed  int64 `json:"allowed"`
	Denied   int64 `json:"denied"`
	// LongestWaitS is the longest that a denied request would have had to wait.
	LongestWaitS float64  `json:"longest_wait_s"`
	Limits       []Limit  `json:"limits"`
	Callers      []Caller `json:"callers"` // those denied most first
	// Against is the same of the configuration it is compared with.
	Against *Result `json:"against,omitempty"`

	Other     int64 `json:"other"`     // lines that are about no request
	Refused   int64 `json:"refused"`   // no route, wrong method, no good credentials
	Unmatched int64 `json:"unmatched"` // of these: no route
	// Late are lines that stand in the log so far behind their time that they were
	// decided at the time of the line before.
	Late           int64       `json:"late"`
	From           *time.Time  `json:"from"`
	To             *time.Time  `json:"to"`
	FirstDenied    *time.Time  `json:"first_denied"`
	LongestQueueS  float64     `json:"longest_queue_s"` // in a leaky bucket
	CallerCount    int         `json:"caller_count"`
	DeniedCallers  int         `json:"denied_callers"`
	NewlyDenied    *int64      `json:"newly_denied,omitempty"`  // requests that Against allows
	NewlyAllowed   *int64      `json:"newly_allowed,omitempty"` // requests that Against denies
	Patient        Patient     `json:"patient"`
	MalformedLines []Malformed `json:"malformed_lines,omitempty"`
	Notes          []string    `json:"notes,omitempty"`

	slotWidth time.Duration
	columns   int
}

// A Limit is one limit on one route under one plan.
type Limit struct {
	Plan  string `json:"plan"` // "" on the edge, and of callers without a plan
	Route string `json:"route"`
	Limit string `json:"limit"`
	// Denied counts requests that this limit denied, whatever others said. In mode
	// shadow or candidate nobody was denied for it.
	Denied int64 `json:"denied"`
	// SmallestOK is the smallest number that denies nobody, Smallest99 the one
	// that denies at most one caller in a hundred: of all requests that ask the
	// limit, on any route, whatever other limits say, so that all such numbers
	// hold together. null: no number would do, or none is known (see Notes).
	SmallestOK *int64 `json:"smallest_ok"`
	Smallest99 *int64 `json:"smallest_99"`

	// SmallestBurst and SmallestQueue would deny nobody at the number as it is, of
	// a limit that has one of its own.
	SmallestBurst int64      `json:"smallest_burst,omitempty"`
	SmallestQueue *int64     `json:"smallest_queue,omitempty"`
	From          string     `json:"from"` // edge, plan or route
	Mode          string     `json:"mode"` // enforce, shadow or candidate
	Rule          string     `json:"rule"`
	Number        int64      `json:"number"`
	Unit          string     `json:"unit"`
	Asked         int64      `json:"asked"`
	DeniedCallers int        `json:"denied_callers"`
	FirstDenied   *time.Time `json:"first_denied"`
	LongestWaitS  float64    `json:"longest_wait_s"`
	Never         bool       `json:"never,omitempty"` // some denial was one that no wait lifts

	slots []slot
}

// A Caller is who asked: the user, else the address as limits count it.
type Caller struct {
	Caller      string     `json:"caller"`
	Plan        string     `json:"plan"`
	Requests    int64      `json:"requests"`
	Denied      int64      `json:"denied"`
	FirstDenied *time.Time `json:"first_denied"`
	By          string     `json:"by"` // user or ip
	// NewlyDenied counts requests that the other configuration allows.
	NewlyDenied int64 `json:"newly_denied,omitempty"`
	// TotalDelayS and LongestDelayS are what the caller would have felt had it
	// obeyed Retry-After.
	TotalDelayS   float64 `json:"total_delay_s"`
	LongestDelayS float64 `json:"longest_delay_s"`
}

// Patient is what clients that obey Retry-After would have felt, together.
type Patient struct {
	Delayed       int64   `json:"delayed"` // requests that came later than they were sent
	TotalDelayS   float64 `json:"total_delay_s"`
	LongestDelayS float64 `json:"longest_delay_s"`
	// Lost are requests that no wait would have helped.
	Lost int64 `json:"lost"`
	// NotFollowed are requests whose wait was not followed to its end, since too
	// many waited or tried again.
	NotFollowed int64 `json:"not_followed"`
}

// Malformed is a line that could not be read.
type Malformed struct {
	At  string `json:"at"` // file:line
	Why string `json:"why"`
}

// Worse reports whether somebody would be denied: of two configurations, who is
// not denied today.
func (r *Result) Worse() bool {
	if r.NewlyDenied != nil {
		return *r.NewlyDenied > 0
	}
	return r.Denied > 0
}

func (w *world) result() *Result {
	l, p := w.ledger, w.patient
	r := &Result{
		Requests: l.requests, Allowed: l.allowed, Denied: l.denied, Refused: l.refused, Unmatched: l.unmatched,
		LongestWaitS: seconds6(l.longestWait), LongestQueueS: seconds6(l.longestQueue), CallerCount: len(l.named) + len(l.unnamed),
		Limits: []Limit{}, Callers: []Caller{}, slotWidth: time.Duration(l.axis.width) * time.Microsecond,
		Patient: Patient{Delayed: p.delayed, TotalDelayS: p.total, LongestDelayS: p.longest, Lost: p.lost, NotFollowed: p.left},
	}
	if l.requests > 0 {
		r.From, r.To = timeOf(l.first), timeOf(l.last)
		r.columns = int((l.last-l.axis.base)/l.axis.width) + 1
	}
	r.FirstDenied = timeOf(l.firstDenied)
	for _, callers := range []map[string]*caller{l.named, l.unnamed} {
		for _, c := range callers {
			if c.denied > 0 {
				r.DeniedCallers++
			}
			out := Caller{
				Caller: c.name, By: "user", Plan: c.plan, Requests: c.requests, Denied: c.denied,
				FirstDenied: timeOf(c.firstDenied), NewlyDenied: c.newly, TotalDelayS: c.patient.total, LongestDelayS: c.patient.longest,
			}
			if !c.named {
				out.By = "ip"
			}
			r.Callers = append(r.Callers, out)
		}
	}
	slices.SortFunc(r.Callers, func(a, b Caller) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Caller, b.Caller), cmp.Compare(a.By, b.By))
	})
	type numbers struct {
		ok, most     *int64
		burst, queue int64
	}
	found := map[*limit]numbers{}
	for _, x := range l.rows {
		n, known := found[x.limit]
		if m := x.limit.meter; m != nil && !known && len(m.order) > 0 {
			if v, ok := m.ok(); ok {
				n.ok = &v
			}
			if v, ok := m.most(); ok {
				n.most = &v
			}
			n.burst, n.queue = m.larger()
			found[x.limit] = n
		}
		p := x.policy
		out := Limit{
			Plan: x.plan, Route: x.route, Limit: p.Name, Denied: x.denied, SmallestOK: n.ok, Smallest99: n.most,
			SmallestBurst: n.burst, From: x.limit.from, Mode: p.Role.String(), Number: p.Quota, Asked: x.asked,
			DeniedCallers: len(x.deniedCallers), FirstDenied: timeOf(x.firstDenied), LongestWaitS: seconds6(x.longest), Never: x.never,
			slots: x.limit.slots,
		}
		if x.limit.cfg != nil && x.limit.cfg.Algorithm == config.LeakyBucket && n.ok != nil {
			out.SmallestQueue = &n.queue
		}
		rate := config.Rate{Quota: p.Quota, Window: p.Window}.String()
		_, out.Unit, _ = strings.Cut(rate, "/")
		out.Rule = p.Algorithm.String() + " " + rate
		if p.Burst > 0 && p.Burst != p.Quota {
			out.Rule += fmt.Sprintf(", burst %d", p.Burst)
		}
		r.Limits = append(r.Limits, out)
	}
	place := map[string]int{"edge": 0, "plan": 1, "route": 2}
	slices.SortFunc(r.Limits, func(a, b Limit) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(place[a.From], place[b.From]), cmp.Compare(a.Plan, b.Plan),
			cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Route, b.Route), cmp.Compare(a.Mode, b.Mode))
	})
	return r
}

// Unread reports whether there were lines and none of them could be replayed: then
// that nobody is denied means nothing.
func (r *Result) Unread() bool { return r.Requests == 0 && r.Malformed > 0 }

// note says what a reader of the numbers should know.
func (r *Result) note(in *merged, worlds []*world) {
	note := func(format string, a ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, a...)) }
	switch {
	case r.Unread():
		note("none of %s could be read as a request, so nothing was replayed; -format says how lines are written, -fields what a line of JSON calls things", count(r.Malformed, "line"))
	case r.Lines == 0:
		note("there is no line in what was read, so nothing was replayed")
	case 2*r.Unmatched > r.Requests:
		// That nobody is denied then says little about the plans.
		note("%d of %s match no route, so that no plan was asked: is this a log of what routes.yaml serves? -routes names another file, -host the host of lines that have none",
			r.Unmatched, count(r.Requests, "request"))
	}
	if in.counts.sampled > 0 {
		note("the log is a sample: the gateway that wrote %d of these lines left out others like them (log.sample_allowed), so that callers spent more than is seen here, and more would be denied; replay a log of all requests, which is log.sample_allowed: 100%%",
			in.counts.sampled)
	}
	if in.counts.late > 0 {
		note("%d lines stand more than %d lines behind their time; they were decided at the time of the line before", in.counts.late, window)
	}
	if r.Patient.NotFollowed > 0 {
		note("of %d requests the wait was not followed to its end: too many waited, or tried again too often", r.Patient.NotFollowed)
	}
	for _, lim := range worlds[0].ledger.order {
		switch {
		case lim.meter == nil:
		case lim.meter.lost:
			note("limit %s: no smallest number is known, since some bucket was filled faster and faster for too long", lim.cfg.Name)
		case lim.meter.shared && lim.meter.timeline == nil && len(lim.meter.callers) >= 100:
			note("limit %s: its buckets are shared and there were too many requests to try numbers on; smallest_99 is not known", lim.cfg.Name)
		}
		if lim.cfg == nil {
			continue
		}
		for _, d := range lim.cfg.Per {
			if d.Kind == config.PerHeader {
				note("limit %s is counted per %s, which logs do not have: the address stands in", lim.cfg.Name, d)
			}
		}
	}
}

func timeOf(us int64) *time.Time {
	if us == 0 {
		return nil
	}
	t := time.UnixMicro(us).UTC()
	return &t
}

func seconds6(us int64) float64 { return float64(us) / 1e6 }

// Keep leaves the first n callers.
func (r *Result) Keep(n int) {
	for ; r != nil; r = r.Against {
		r.Callers = r.Callers[:min(n, len(r.Callers))]
	}
}
