package gateway

import (
	"net/http"

	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/scope"
)

// A limit is a policy and what it is counted per.
type limit struct {
	policy    *ratelimit.Policy
	candidate *ratelimit.Policy // another number on trial beside it; nil: none
	per       []config.Dimension
	words     string // what it grants: 100/minute, burst 20
	// byCaller: per is [user], the common case, whose partition is the caller's.
	byCaller bool
}

// A plan is one plan, compiled.
type plan struct {
	name   string
	limits []*limit
}

// plans says which plan a caller has.
type plans struct {
	byName    map[string]*plan
	fallback  *plan // default_plan; nil if none
	anonymous *plan // anonymous_plan; nil if none

	// overrides beat what the credential says: key over user over tenant.
	byKey, byUser, byTenant map[string]*plan
}

// A planSource says who gave a caller its plan.
type planSource string

// The sources of a plan, in the words of an explanation.
const (
	planNone       planSource = ""
	planAnonymous  planSource = "anonymous_plan"
	planByKey      planSource = "an override of the key"
	planByUser     planSource = "an override of the user"
	planByTenant   planSource = "an override of the tenant"
	planCredential planSource = "the credential" //nolint:gosec // words, and no secret
	planDefault    planSource = "default_plan"
	// planUnknown: the credential names a plan that does not exist. The caller
	// then has the default plan, because neither no limit nor no service is what
	// the mistake asked for.
	planUnknown planSource = "default_plan, since the credential names a plan that does not exist"
)

// choose returns the plan of a caller and who says so.
func (ps *plans) choose(s *scope.Request) (p *plan, from planSource) {
	if s.AuthMethod == "" {
		if ps.anonymous == nil {
			return nil, planNone
		}
		return ps.anonymous, planAnonymous
	}
	// No override is written for an empty name, so absent parts match nothing.
	if p := ps.byKey[s.KeyID]; p != nil {
		return p, planByKey
	}
	if p := ps.byUser[s.User]; p != nil {
		return p, planByUser
	}
	if p := ps.byTenant[s.Tenant]; p != nil {
		return p, planByTenant
	}
	if s.TokenPlan == "" {
		return ps.fallback, planDefault
	}
	if p := ps.byName[s.TokenPlan]; p != nil {
		return p, planCredential
	}
	return ps.fallback, planUnknown
}

// caller is the partition of whoever is asking: the user, else the address.
func caller(s *scope.Request) string {
	if s.User != "" {
		return ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: s.User})
	}
	return ratelimit.Partition(ratelimit.Part{Dimension: "ip", Value: s.IPBucket})
}

// charges appends what the request has to pay: its plan's limits in plan order,
// then the limits its route names. Where a part of a partition is missing (no
// tenant in the token, no key), the address stands in.
func charges(dst []ratelimit.Charge, r *http.Request, s *scope.Request, p *plan, rt *route) []ratelimit.Charge {
	if p == nil && len(rt.limits) == 0 {
		return dst
	}
	who := caller(s)
	add := func(ls []*limit) {
		for _, l := range ls {
			dst = appendCharge(dst, s, l, ratelimit.Charge{Partition: l.partition(who, r, s), Caller: who, Cost: rt.cost})
		}
	}
	if p != nil {
		add(p.limits)
	}
	add(rt.limits)
	return dst
}

// appendCharge appends what a limit asks for: its own charge, and right behind
// it that of its candidate.
func appendCharge(dst []ratelimit.Charge, s *scope.Request, l *limit, c ratelimit.Charge) []ratelimit.Charge {
	c = l.charge(s, c)
	dst = append(dst, c)
	if l.candidate != nil {
		c.Policy = l.candidate
		dst = append(dst, c)
	}
	return dst
}

// charge is c for the limit itself, by the clock of the request.
func (l *limit) charge(s *scope.Request, c ratelimit.Charge) ratelimit.Charge {
	c.Policy = l.policy
	if cal := l.policy.Calendar; cal != nil {
		c.Windows = cal.Windows(s.Arrived.UnixMicro())
	}
	return c
}

// partition names the bucket of one request of who under the limit.
func (l *limit) partition(who string, r *http.Request, s *scope.Request) string {
	if l.byCaller {
		return who
	}
	return partition(l.per, r, s)
}

// partition names the bucket of one request under a limit counted per dims.
func partition(dims []config.Dimension, r *http.Request, s *scope.Request) string {
	var buf [4]ratelimit.Part
	parts := buf[:0]
	for _, d := range dims {
		parts = append(parts, part(d, r, s))
	}
	return ratelimit.Partition(parts...)
}

func part(d config.Dimension, r *http.Request, s *scope.Request) ratelimit.Part {
	value := ""
	name := string(d.Kind)
	switch d.Kind {
	case config.PerGlobal:
		return ratelimit.Part{Dimension: name}
	case config.PerUser:
		value = s.User
	case config.PerAPIKey:
		value = s.KeyID
	case config.PerTenant:
		value = s.Tenant
	case config.PerRoute:
		value = s.Route
	case config.PerHeader:
		// Several lines of one field have no one value; picking one would let
		// the sender choose its bucket.
		name = "header." + d.Header
		if values := r.Header[d.Header]; len(values) == 1 {
			value = values[0]
		}
	case config.PerIP:
		value = s.IPBucket
	}
	if value == "" {
		return ratelimit.Part{Dimension: "ip", Value: s.IPBucket}
	}
	return ratelimit.Part{Dimension: name, Value: value}
}
