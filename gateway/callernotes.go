package gateway

import (
	"net/http"
	"time"

	"bouncer/gateway/callers"
	"bouncer/gateway/config"
	"bouncer/gateway/denials"
	"bouncer/gateway/httperr"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/scope"
)

// This file is what is remembered of each request for who looks at its caller later:
// that it came, and, if a limit denied it, what was decided.

// keepDenial keeps what was decided on a request that a limit denies, if there is
// room for one more of its caller. The rest is known when the answer is.
func (s *snapshot) keepDenial(x *exchange, cs []ratelimit.Charge, ds []ratelimit.Decision) {
	x.limited = true
	if !s.gw.denials.Room(denialOf(&x.Request), x.Arrived) {
		return
	}
	d := &denials.Denial{Decisions: make([]denials.Decision, 0, len(ds))}
	for i := range ds {
		if i > 0 && ds[i].Policy == ds[i-1].Policy {
			continue // several limits answered by one local cap are one verdict
		}
		d.Decisions = append(d.Decisions, s.tellDecision(x, &cs[i], &ds[i]))
	}
	x.denial = d
}

// denialOf is whose denials are bounded together: the user's, else the address'.
func denialOf(r *scope.Request) string {
	if r.User != "" {
		return r.User
	}
	return r.IPBucket
}

// tellDecision is one decision in the operator's terms.
func (s *snapshot) tellDecision(x *exchange, c *ratelimit.Charge, d *ratelimit.Decision) denials.Decision {
	p := d.Policy
	out := denials.Decision{
		Limit: p.Name, Per: []string{}, Partition: c.Partition, Mode: p.Role.String(), Allowed: d.Allowed, Remaining: d.Remaining,
		Capacity: p.Capacity(), Quota: p.Quota, WindowS: int64(p.Window / time.Second), Source: string(d.Source),
		Reset: secondsOrNil(d.Reset),
	}
	if !d.Allowed {
		out.RetryAfter = secondsOrNil(d.RetryAfter)
	}
	l, ofPlan := s.limitOf(x, c.Policy)
	if l != nil {
		out.Per = names(l.per)
	}
	if ofPlan {
		out.Plan = x.Plan
		if p != c.Policy { // the plan's own cap is counted by who asks
			out.Partition = c.Caller
		}
	}
	return out
}

// limitOf is the limit whose policy, or candidate, p is, and whether it is one of the
// caller's plan; nil for those of failed attempts to authenticate.
func (s *snapshot) limitOf(x *exchange, p *ratelimit.Policy) (l *limit, ofPlan bool) {
	is := func(list []*limit) *limit {
		for _, l := range list {
			if l.policy == p || l.candidate == p {
				return l
			}
		}
		return nil
	}
	if x.plan != nil {
		if l := is(x.plan.limits); l != nil {
			return l, true
		}
	}
	if x.route != nil {
		if l := is(x.route.limits); l != nil {
			return l, false
		}
	}
	return is(s.edge), false
}

// secondsOrNil is d in whole seconds, rounded up; nil if it is no wait.
func secondsOrNil(d time.Duration) *int64 {
	if d <= 0 {
		return nil
	}
	n := ratelimit.Seconds(d)
	return &n
}

// noteCaller remembers a request that has ended, with its answer.
func (g *Gateway) noteCaller(x *exchange, r *http.Request) {
	note := callers.Request{
		At: x.Arrived, User: x.User, Tenant: x.Tenant, KeyID: x.KeyID, Method: x.AuthMethod, TokenPlan: x.TokenPlan, Plan: x.Plan,
		Address: x.ClientIP, Bucket: x.IPBucket, Outcome: x.outcome(),
	}
	if agents := r.Header["User-Agent"]; len(agents) > 0 {
		note.UserAgent = agents[0]
	}
	g.callers.Note(&note)
	d := x.denial
	if d == nil {
		return
	}
	d.Time, d.RequestID, d.ClientIP = denials.Time{Time: x.Arrived}, x.ID, scope.AddressName(x.ClientIP)
	d.Method, d.Host, d.Path, d.Route = r.Method, r.Host, r.URL.EscapedPath(), x.Request.Route
	d.User, d.Tenant, d.KeyID, d.Plan, d.Cost = x.User, x.Tenant, x.KeyID, x.Plan, x.Cost
	d.Status, d.DeniedBy, d.Source = x.Status, x.DeniedBy, x.Source
	d.DurationMS = float64(time.Since(x.Arrived).Microseconds()) / 1000
	g.denials.Add(denialOf(&x.Request), x.IPBucket, d)
}

// outcome is what became of a request, for the counts of its caller.
func (x *exchange) outcome() callers.Outcome {
	switch {
	case x.limited:
		return callers.Denied
	case x.response.own && x.Status >= 400 && x.Status < 500 && x.Status != httperr.StatusClientClosedRequest,
		x.DeniedBy == "store_unavailable":
		return callers.Refused
	}
	return callers.Allowed
}

// ownsNothing reports whether limits counted per dims have a bucket that nobody has to
// himself.
func ownsNothing(dims []config.Dimension) bool {
	for _, d := range dims {
		switch d.Kind {
		case config.PerIP, config.PerUser, config.PerAPIKey, config.PerTenant:
			return false
		case config.PerRoute, config.PerGlobal, config.PerHeader:
		}
	}
	return true
}
