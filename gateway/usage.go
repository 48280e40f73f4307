package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"bouncer/gateway/config"
	"bouncer/gateway/httperr"
	"bouncer/gateway/ratelimit"
)

// usageRoute is the name of the route at usage_path in logs and metrics. The
// configuration's own names have no colon.
const usageRoute = "gateway:usage"

// usage answers a caller's own limits, free of charge: what each grants, what
// is used, what is left, and when more is. It speaks of nobody else: every
// bucket it looks at is one that this very request could have been charged to.
type usage struct {
	User   string       `json:"user,omitempty"`
	Tenant string       `json:"tenant,omitempty"`
	Plan   string       `json:"plan,omitempty"`
	Limits []usageLimit `json:"limits"`
	// More is how many further limits there are, beyond maxUsage.
	More int `json:"more,omitempty"`
}

// maxUsage bounds how many limits one answer looks at: a plan that counts each
// of a thousand routes must not cost the store a thousand look-ups a request.
const maxUsage = 128

type usageLimit struct {
	Name      string   `json:"name"`
	Route     string   `json:"route,omitempty"` // of a limit that counts each route, or that a route names
	Per       []string `json:"per"`
	Algorithm string   `json:"algorithm"`
	Quota     int64    `json:"quota"`     // units per window
	Window    int64    `json:"window_s"`  // nominal for a month
	Capacity  int64    `json:"capacity"`  // what could be spent at once: the burst, the queue, else the quota
	Used      int64    `json:"used"`      // of the capacity
	Remaining int64    `json:"remaining"` // what could be spent now
	Reset     *int64   `json:"reset_s"`   // seconds until more remains, rounded up; null when nothing is spent
}

// makeUsageRoute is the route at usage_path: whoever may call any route with
// an identity may ask, and where there is a plan for strangers they may too.
func makeUsageRoute(cfg *config.Config, s *snapshot, storeFor stores) *route {
	rt := &route{
		name: usageRoute, methods: []string{http.MethodGet}, auth: config.AuthNone,
		store: storeFor(config.FailLocalCap), usage: true,
	}
	if s.auth != nil {
		rt.auth = config.AuthRequired
		if cfg.AnonymousPlan != "" {
			rt.auth = config.AuthOptional
		}
	}
	return rt
}

// answerUsage looks at every limit the caller has, without charging any.
func (s *snapshot) answerUsage(x *exchange, r *http.Request) *httperr.Error {
	out := usage{User: x.User, Tenant: x.Tenant, Plan: x.Plan, Limits: []usageLimit{}}
	var cs []ratelimit.Charge
	look := func(rt *route, l *limit) {
		if !callersOwn(l) {
			return
		}
		if len(out.Limits) == maxUsage {
			out.More++
			return
		}
		as := x.Request
		told := usageLimit{Name: l.policy.Name, Per: names(l.per)}
		if rt != nil {
			as.Route, told.Route = rt.name, rt.name
			if rt.auth == config.AuthNone { // nobody is known there
				as.User, as.Tenant, as.KeyID = "", "", ""
			}
		}
		who := caller(&as)
		part := who
		if !l.byCaller {
			part = partition(l.per, r, &as)
		}
		own := len(cs) + 1
		cs = appendCharge(cs, &as, l, ratelimit.Charge{Partition: part, Caller: who})
		cs = cs[:own] // a candidate is the operator's trial, not the caller's limit
		out.Limits = append(out.Limits, told)
	}
	for _, l := range x.planLimits() {
		if !perRoute(l) {
			look(nil, l)
			continue
		}
		for _, rt := range s.limited {
			if rt.auth != config.AuthNone || x.AuthMethod == "" {
				look(rt, l)
			}
		}
	}
	for _, rt := range s.limited {
		for _, l := range rt.limits {
			look(rt, l)
		}
	}
	ds, err := s.lookAt(x, cs)
	if err != nil {
		return storeFailed(err)
	}
	for i := range out.Limits {
		out.Limits[i].tell(ds[i])
	}
	body, err := json.Marshal(out)
	if err != nil {
		panic("bug: usage does not marshal: " + err.Error())
	}
	h := x.response.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	h.Set("Cache-Control", "no-store") // it is about this caller and this moment
	x.response.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = x.response.Write(append(body, '\n')) // a client that left is noticed by the server
	}
	return nil
}

// lookAt asks the store for the state of all buckets, at most maxLook in one
// call so that a large plan does not hold the store up for others.
func (s *snapshot) lookAt(x *exchange, cs []ratelimit.Charge) ([]ratelimit.Decision, error) {
	const maxLook = 32
	var all []ratelimit.Decision
	for len(cs) > 0 {
		n := min(len(cs), maxLook)
		ds, err := x.route.store.Take(&x.deciding, cs[:n], nil)
		if err != nil {
			return nil, err
		}
		all = append(all, ds...)
		cs = cs[n:]
	}
	return all, nil
}

func (u *usageLimit) tell(d ratelimit.Decision) {
	p := d.Policy
	u.Algorithm, u.Quota, u.Window, u.Capacity = p.Algorithm.String(), p.Quota, int64(p.Window/time.Second), p.Capacity()
	u.Remaining = d.Remaining
	u.Used = max(0, u.Capacity-d.Remaining)
	if d.Reset > 0 {
		t := ratelimit.Seconds(d.Reset)
		u.Reset = &t
	}
}

// planLimits are the limits of the caller's plan, if it has one.
func (x *exchange) planLimits() []*limit {
	if x.plan == nil {
		return nil
	}
	return x.plan.limits
}

// callersOwn reports whether a limit is enforced and counts this caller alone.
// A tenant's or a global bucket would tell what others have used.
func callersOwn(l *limit) bool {
	if l.policy.Role != ratelimit.Enforce {
		return false
	}
	for _, d := range l.per {
		switch d.Kind {
		case config.PerUser, config.PerAPIKey, config.PerIP, config.PerHeader:
			return true
		case config.PerTenant, config.PerRoute, config.PerGlobal:
		}
	}
	return false
}

func perRoute(l *limit) bool {
	for _, d := range l.per {
		if d.Kind == config.PerRoute {
			return true
		}
	}
	return false
}

func names(dims []config.Dimension) []string {
	out := make([]string, len(dims))
	for i, d := range dims {
		out[i] = d.String()
	}
	return out
}
