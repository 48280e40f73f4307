package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"bouncer/gateway/config"
	"bouncer/gateway/httperr"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/scope"
)

// UsageRoute is the name of the route at usage_path in logs and metrics. The
// configuration's own names have no colon.
const UsageRoute = "gateway:usage"

// usage answers a caller's own limits, free of charge: what each grants, what
// is used, what is left, and when more is. It speaks of nobody else: every
// bucket it looks at is one that this very request could have been charged to.
type usage struct {
	User   string       `json:"user,omitempty"`
	Tenant string       `json:"tenant,omitempty"`
	Plan   string       `json:"plan,omitempty"`
	Limits []usageLimit `json:"limits"`
	// Reduced says that the shared count cannot be asked at the moment, and that
	// this instance answers with its own.
	Reduced bool `json:"temporary_reduced_capacity,omitempty"`
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
	Used      *int64   `json:"used"`      // of the capacity; null while only a local cap is known
	Remaining int64    `json:"remaining"` // what could be spent now
	Reset     *int64   `json:"reset_s"`   // seconds until more remains, rounded up; null when nothing is spent
}

// makeUsageRoute is the route at usage_path: whoever may call any route with
// an identity may ask, and where there is a plan for strangers they may too.
func makeUsageRoute(cfg *config.Config, s *snapshot, storeFor stores) *route {
	rt := &route{
		name: UsageRoute, methods: []string{http.MethodGet}, auth: config.AuthNone,
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
	own, more := s.limitsOf(&x.Request, x.plan, r, callersOwn, maxUsage)
	out.More = more
	ds, err := look(&x.deciding, x.route.store, own)
	if err != nil {
		return storeFailed(err)
	}
	for i, o := range own {
		told := usageLimit{Name: o.limit.policy.Name, Per: names(o.limit.per)}
		if o.route != nil {
			told.Route = o.route.name
		}
		told.tell(o.limit.policy, ds[i])
		out.Limits = append(out.Limits, told)
		out.Reduced = out.Reduced || ds[i].Source == ratelimit.SourceLocalCap
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

// tell fills in what d says of p. While the shared store is away a plan's local
// cap may stand in for all its limits; what was used of each is not known then.
func (u *usageLimit) tell(p *ratelimit.Policy, d ratelimit.Decision) {
	u.Algorithm, u.Quota, u.Window, u.Capacity = p.Algorithm.String(), p.Quota, int64(p.Window/time.Second), p.Capacity()
	u.Remaining = d.Remaining
	if d.Policy == p {
		used := max(0, u.Capacity-d.Remaining)
		u.Used = &used
	} else {
		u.Remaining = min(d.Remaining, u.Capacity)
	}
	if d.Reset > 0 {
		t := ratelimit.Seconds(d.Reset)
		u.Reset = &t
	}
}

// callersOwn reports whether a limit is enforced and counts this caller alone:
// by who it is, or, for somebody unknown, by the address, which is all such a
// caller is. A tenant's or a global bucket, and that of an address or of a field
// which others may share, would tell what they have used.
func callersOwn(l *limit, s *scope.Request) bool {
	if l.policy.Role != ratelimit.Enforce {
		return false
	}
	for _, d := range l.per {
		switch d.Kind {
		case config.PerUser:
			return true // a stranger's is the address's
		case config.PerAPIKey:
			return s.KeyID != "" || s.User == ""
		case config.PerIP:
			if s.User == "" {
				return true
			}
		case config.PerTenant, config.PerRoute, config.PerGlobal, config.PerHeader:
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
