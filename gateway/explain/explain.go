// Package explain says what the gateway would do with one request, and why:
// which route, who is asking, which plan and where it comes from, which limits
// in which order with which keys and cost, and which of them binds.
//
// It decides nothing. A request is walked through the code that a running
// gateway decides with (gateway.Rehearse), on a store that is only looked at, so
// that nothing is consumed. With the store of the configuration the answer is
// about this very moment; without it, about a caller who has spent nothing. Edge
// limits live in each instance's own memory and are always shown as unspent.
//
// A store that cannot be asked is an error of the answer's Store field, never a
// guess.
//
//	answer, err := explain.Explain(cfg, explain.Query{Request: r, Store: store})
//	answer.WriteText(os.Stdout)
package explain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"bouncer/gateway"
	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/scope"
)

// A Query is one request to be explained.
type Query struct {
	// Request has method, URL, host, fields and the address of the peer.
	Request *http.Request
	// As is who asks, where it is said rather than shown by a credential.
	As *gateway.Caller
	// Store, if set, is looked at for the live state of each limit.
	Store ratelimit.Store
	// At is the time of the request.
	At time.Time
}

// An Answer explains one request. Its JSON is for scripts; fields that do not
// apply are absent.
type Answer struct {
	Request string  `json:"request"` // GET /api/weather
	Client  Client  `json:"client"`
	Route   *Route  `json:"route,omitempty"` // nil: none matched
	Caller  Caller  `json:"caller"`
	Plan    *Plan   `json:"plan,omitempty"`  // nil: the caller has none
	Wants   []Want  `json:"wants,omitempty"` // of the route, besides credentials
	Cost    int64   `json:"cost"`
	Live    bool    `json:"live"` // the numbers are those of the store, now
	Limits  []Limit `json:"limits"`
	Verdict Verdict `json:"verdict"`
	// Store says why the store could not be looked at.
	Store string `json:"store_error,omitempty"`
	// Keys says why the keys of issuers could not be fetched, a line each.
	Keys []string `json:"keys_error,omitempty"`
}

// Client is whose address it is.
type Client struct {
	IP     string `json:"ip"`
	Bucket string `json:"bucket"` // as limits count it
	Peer   string `json:"peer"`
	Why    string `json:"why"`
}

// Route is the route that was chosen.
type Route struct {
	Name           string `json:"name"`
	Path           string `json:"path"`
	Host           string `json:"host,omitempty"`
	At             string `json:"at"` // file:line:column
	Auth           string `json:"auth"`
	OnStoreFailure string `json:"on_store_failure"`
	Upstream       string `json:"upstream,omitempty"`
	// Target is what the upstream is asked for, where the route changes it.
	Target string `json:"target,omitempty"`
	Why    string `json:"why"`
}

// Caller is who asks.
type Caller struct {
	User   string `json:"user,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	KeyID  string `json:"key_id,omitempty"`
	How    string `json:"how"` // by which credential, or why nobody is known
}

// Plan is the plan and where it comes from.
type Plan struct {
	Name string `json:"name"`
	From string `json:"from"`
}

// Want is one thing that a route wants of who asks.
type Want struct {
	What string `json:"what"` // scope reports.read
	// Has is absent where it was not looked at, since the request was refused before.
	Has *bool `json:"has,omitempty"`
}

// Limit is one limit of the request, in the order of the decision.
type Limit struct {
	Name string `json:"name"`
	// From is edge, plan or route.
	From string   `json:"from"`
	Per  []string `json:"per"`
	// Rule is the limit in words: token_bucket 100/minute, burst 20.
	Rule string `json:"rule"`
	At   string `json:"at"`
	// Key names the bucket; the key in Redis is store.redis.key_prefix, ":v1:"
	// and this.
	Key       string `json:"key"`
	Note      string `json:"note,omitempty"` // what stands in for what is missing
	Mode      string `json:"mode"`           // enforce, shadow or candidate
	Cost      int64  `json:"cost"`
	Allows    bool   `json:"allows"`
	Capacity  int64  `json:"capacity"`
	Remaining int64  `json:"remaining"`
	// ResetS is the seconds until more remains, absent when nothing is spent.
	ResetS float64 `json:"reset_s,omitempty"`
	Source string  `json:"source"`
	// Binds marks the limit that decides: the one that denies, or that would be
	// the first to.
	Binds bool `json:"binds"`
}

// Verdict is what the client would get.
type Verdict struct {
	Allowed bool   `json:"allowed"`
	Status  int    `json:"status,omitempty"` // of the gateway's own answer
	By      string `json:"by,omitempty"`     // which limit or stage refuses
	Why     string `json:"why"`
}

// fetchKeysFor is how long the providers of keys have to answer.
const fetchKeysFor = 5 * time.Second

// Explain answers q under cfg. An error means that cfg cannot be built.
func Explain(cfg *config.Config, q Query) (*Answer, error) {
	look := &peek{store: q.Store}
	o := gateway.RehearsalOptions{}
	if q.Store != nil {
		o.Store = look
	}
	h, err := gateway.Rehearse(cfg, o)
	if err != nil {
		return nil, err
	}
	defer h.Close() //nolint:errcheck // it logs to nobody
	var missing []string
	if q.As == nil && (q.Request.Header["Authorization"] != nil || q.Request.Header["Cookie"] != nil) {
		ctx, cancel := context.WithTimeout(q.Request.Context(), fetchKeysFor) // a token may be in it
		defer cancel()
		missing = h.FetchKeys(ctx)
	}
	v := h.Do(gateway.Attempt{At: q.At, Request: q.Request, As: q.As})
	if look.err != nil {
		return explainAway(cfg, q, look.err, verdictOf(v))
	}

	a := &Answer{
		Request: q.Request.Method + " " + h.ShownURI(q.Request.URL),
		Client:  clientOf(cfg, v.Request, q.Request),
		Caller:  callerOf(v.Request, q.As != nil),
		Cost:    v.Request.Cost,
		Live:    q.Store != nil,
		Limits:  []Limit{},
		Verdict: verdictOf(v),
		Keys:    missing,
	}
	rt := routeNamed(cfg, v.Request.Route)
	if rt != nil {
		a.Route = &Route{
			Name: rt.Name, Path: rt.Path, Host: rt.Host, At: rt.Pos.String(), Auth: string(rt.Auth),
			OnStoreFailure: string(rt.OnStoreFailure), Upstream: rt.Upstream, Why: whyRoute(cfg, rt, q.Request),
		}
		if v.To != nil {
			a.Route.Target = h.ShownURI(v.To)
		}
		if v.Preflight {
			a.Route.Why += "; a preflight, answered here, free of charge"
		}
	} else if v.Request.Route == gateway.UsageRoute {
		a.Route = &Route{Name: v.Request.Route, Path: cfg.UsagePath, Auth: "as configured", Why: "usage_path: answered here, free of charge"}
	}
	if v.Request.Plan != "" {
		a.Plan = &Plan{Name: v.Request.Plan, From: v.PlanFrom}
	}
	for _, want := range h.Wants() {
		w := Want{What: want.What}
		if want.Known {
			w.Has = &want.Has
		}
		a.Wants = append(a.Wants, w)
	}
	for _, asked := range v.Edge {
		a.add(limitNamed(cfg.Edge, asked), "edge", asked, v.Request)
	}
	plan := planLimits(cfg, v.Request.Plan)
	for _, asked := range v.Limits {
		if l := limitNamed(plan, asked); l != nil {
			a.add(l, "plan", asked, v.Request)
		} else if rt != nil {
			a.add(limitNamed(rt.Limits, asked), "route", asked, v.Request)
		}
	}
	a.bind()
	return a, nil
}

// explainAway answers q where the store could not be looked at: with limits of
// which nothing is spent, and with what the route does without the store. denied is
// the verdict of a route that denies then.
func explainAway(cfg *config.Config, q Query, away error, denied Verdict) (*Answer, error) {
	q.Store = nil
	a, err := Explain(cfg, q)
	if err != nil {
		return nil, err
	}
	a.Store = away.Error()
	if !a.Verdict.Allowed || a.Route == nil {
		return a, nil
	}
	switch mode := config.FailMode(a.Route.OnStoreFailure); mode {
	case config.FailDeny:
		a.Verdict = denied
	case config.FailAllow:
		a.Verdict.Why = "a gateway without the store would carry it uncounted (on_store_failure: allow)"
	case config.FailLocalCap:
		a.Verdict.Why = "a gateway without the store would carry it as far as its own memory allows (on_store_failure: local_cap)"
	}
	return a, nil
}

// add appends what was asked of a limit; l is nil for a limit of the gateway's
// own, which has no place in the files.
func (a *Answer) add(l *config.Limit, from string, asked gateway.Asked, s *scope.Request) {
	p, d := asked.Charge.Policy, asked.Decision
	out := Limit{
		Name: p.Name, From: from, Key: asked.Charge.Partition + ":" + p.Key(), Mode: p.Role.String(),
		Cost: asked.Charge.Cost, Allows: d.Allowed, Capacity: p.Capacity(), Remaining: d.Remaining,
		ResetS: d.Reset.Seconds(), Source: string(d.Source),
	}
	if l == nil {
		out.Rule = fmt.Sprintf("%s %d in %s", p.Algorithm, p.Quota, p.Window)
	} else {
		out.Rule, out.At = rule(l), l.Pos.String()
		for _, dim := range l.Per {
			out.Per = append(out.Per, dim.String())
		}
		out.Note = standIn(l, s)
	}
	if p.Role == ratelimit.Candidate && l != nil && l.Candidate != nil {
		c := *l
		c.Rate.Quota, c.Burst = l.Candidate.Quota, l.Candidate.Burst
		out.Rule = rule(&c)
	}
	if !a.Live || from == "edge" { // it was charged for the look, in a table of its own
		out.Remaining, out.ResetS = p.Capacity(), 0
	}
	a.Limits = append(a.Limits, out)
}

// bind marks the limit that decides: of those that are enforced the one that
// denies or, where all allow, that would be used up by the fewest such requests.
func (a *Answer) bind() {
	best, fewest := -1, int64(0)
	for i, l := range a.Limits {
		if l.Mode != "enforce" || l.Cost == 0 {
			continue
		}
		n := l.Remaining / l.Cost
		if !l.Allows {
			n = -1
		}
		if best < 0 || n < fewest {
			best, fewest = i, n
		}
	}
	if best >= 0 {
		a.Limits[best].Binds = true
	}
}

func verdictOf(v gateway.Verdict) Verdict {
	if v.Refused == nil {
		out := Verdict{Allowed: true, Why: "it would be carried"}
		if v.Delay > 0 {
			out.Why = fmt.Sprintf("it would be carried after %s in the queue", v.Delay)
		}
		return out
	}
	out := Verdict{Status: v.Refused.Status, By: v.Request.DeniedBy, Why: v.Refused.Detail}
	if v.Request.AuthError != nil && v.Refused.Status == http.StatusUnauthorized {
		// The client is told nothing; whoever holds the configuration may know.
		out.Why = v.Request.AuthError.Error()
	}
	return out
}

func clientOf(cfg *config.Config, s *scope.Request, r *http.Request) Client {
	c := Client{IP: scope.AddressName(s.ClientIP), Bucket: s.IPBucket, Peer: scope.AddressName(s.Peer)}
	field := cfg.ClientIP.Header
	sent := len(r.Header.Values(field)) > 0
	switch {
	case s.PeerTrusted && sent && s.ClientIP != s.Peer:
		c.Why = "the peer is trusted and says so in " + field
	case s.PeerTrusted:
		c.Why = "the peer is trusted, and names nobody else in " + field
	case sent:
		c.Why = "it is the peer; " + field + " is not believed, since the peer is not among client_ip.trusted_proxies"
	default:
		c.Why = "it is the peer"
	}
	return c
}

func callerOf(s *scope.Request, said bool) Caller {
	c := Caller{User: s.User, Tenant: s.Tenant, KeyID: s.KeyID}
	switch {
	case s.AuthMethod == "":
		c.How = "nobody is known"
	case said:
		c.How = "as given"
	default:
		c.How = map[string]string{"jwt": "a bearer token", "cookie": "a token in a cookie", "api_key": "an API key", "client_cert": "a client certificate"}[s.AuthMethod]
	}
	return c
}

func routeNamed(cfg *config.Config, name string) *config.Route {
	for _, rt := range cfg.Routes {
		if rt.Name == name {
			return rt
		}
	}
	return nil
}

func planLimits(cfg *config.Config, name string) []*config.Limit {
	for _, p := range cfg.Plans {
		if p.Name == name {
			return p.Limits
		}
	}
	return nil
}

func limitNamed(ls []*config.Limit, asked gateway.Asked) *config.Limit {
	for _, l := range ls {
		if l.Name == asked.Charge.Policy.Name {
			return l
		}
	}
	return nil
}

// rule is a limit in words.
func rule(l *config.Limit) string { return l.Algorithm + " " + l.Words() }

// standIn says which parts of a key are missing, so that the address stands in.
func standIn(l *config.Limit, s *scope.Request) string {
	for _, d := range l.Per {
		missing := false
		switch d.Kind {
		case config.PerUser:
			missing = s.User == ""
		case config.PerTenant:
			missing = s.Tenant == ""
		case config.PerAPIKey:
			missing = s.KeyID == ""
		case config.PerIP, config.PerRoute, config.PerGlobal, config.PerHeader:
		}
		if missing {
			return fmt.Sprintf("no %s is known: the address stands in", d)
		}
	}
	return ""
}

// A peek is a store that is looked at and not charged.
type peek struct {
	store ratelimit.Store
	err   error // of the last look
}

// Take implements ratelimit.Store. What the charges would get follows from what
// is left: a cost is admitted if that much remains.
func (p *peek) Take(ctx context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	free := make([]ratelimit.Charge, len(cs))
	copy(free, cs)
	for i := range free {
		free[i].Cost = 0
	}
	ds, err := p.store.Take(ctx, free, dst)
	if err != nil {
		p.err = err
		if errors.Is(err, ratelimit.ErrUnavailable) {
			return ds, err
		}
		return ds, &ratelimit.UnavailableError{RetryAfter: time.Second, Err: err}
	}
	for i := range ds {
		d, cost := &ds[i], cs[i].Cost
		if d.Allowed = cost <= d.Remaining; d.Allowed {
			continue
		}
		// How long more than one unit takes to come back, a look does not tell; it
		// is no sooner than the first.
		d.RetryAfter = max(d.Reset, time.Microsecond)
		if cost > d.Policy.Capacity() || d.Policy.Quota == 0 {
			d.RetryAfter = ratelimit.Never
		}
	}
	return ds, nil
}
