package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"golang.org/x/time/rate"

	"bouncer/gateway/auth"
	"bouncer/gateway/config"
	"bouncer/gateway/httperr"
	"bouncer/gateway/proxy"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/memory"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/gateway/scope"
	"bouncer/gateway/telemetry"
	"bouncer/gateway/topk"
)

// A Rehearsal decides requests as a running gateway would, with the same code
// (pipeline.go, decide), and carries none of them: no listener, no upstream, no
// network. Its time is that of the attempts, so a day passes in milliseconds.
// "gateway test", "simulate" and "explain" are made of it.
//
// It rehearses one instance. Limits are counted in its own memory, where a
// shared store would give the same answers, or in the store it is given.
//
// It is not safe for concurrent use.
type Rehearsal struct {
	s         *snapshot
	now       int64 // µs since the epoch: the time of the attempt, never going back
	asked     recorder
	x         exchange
	providers map[string]*provider // of keys, by issuer
}

// RehearsalOptions tune a [Rehearsal]; the zero value is good.
type RehearsalOptions struct {
	// MaxKeys bounds how many buckets are counted, of the edge and of the limits
	// each; 0 means what store.memory says. Memory is taken for those that exist.
	MaxKeys int
	// Store, if set, is asked in place of memory for all but the edge, by its own
	// time.
	Store ratelimit.Store
}

// An Attempt is one request of a rehearsal.
type Attempt struct {
	// At is when it arrives. Time does not go back: an earlier one than the last
	// is decided at the last one's time.
	At time.Time
	// Request has Method, URL, Host, Header and RemoteAddr, as a server would
	// have read them. It is not kept.
	Request *http.Request
	// As is who asks, where that is known without a credential. nil: who the
	// request's own credentials say, verified as ever.
	As *Caller
}

// A Caller is who asks, as authentication would have found out. The zero Caller
// is somebody who showed credentials that name nobody: limited by address, with
// the default plan.
type Caller struct {
	User, Tenant, KeyID string
	// Plan is what the credential says; overrides beat it, and "" is default_plan.
	Plan string
	// Unknown is somebody of whom it is not known whether there was a credential,
	// as of most lines of a log: anonymous on a route that takes callers without
	// one, and elsewhere as the zero Caller, with Plan.
	Unknown bool
	// Routes are the names of the routes that the caller's key is for; empty: any.
	Routes []string
	// Scopes are what the caller's key grants. What a token would, scopes and claims,
	// is taken as granted to a caller without KeyID, and so is what any credential
	// would if it is Unsaid what the key grants.
	Scopes []string
	Unsaid bool
	// AllowIPs are the networks that the key is for; empty: any. From elsewhere it is
	// Refused.
	AllowIPs []netip.Prefix
	// Refused is somebody whose credential is not good: 401 on every route that
	// looks at it, and on none is anybody charged for it but the edge.
	Refused bool
}

// A Verdict is what became of an attempt. It is good until the next one.
type Verdict struct {
	// Request is all that was found out: the client's address, route, caller,
	// plan, cost, and DeniedBy, which limit or stage refused.
	Request *scope.Request
	// PlanFrom says who gave the plan, in words; "" where there is none.
	PlanFrom string
	// Refused is the answer the gateway would give; nil if it would carry the
	// request.
	Refused *httperr.Error
	// Delay is how long the request would wait in the queue of a leaky bucket.
	Delay time.Duration
	// To is what an upstream would be asked for, as the route changes it; nil where
	// it is what the client asks for.
	To *url.URL
	// Preflight says that a browser only asks whether a page may use the route: it
	// is answered here, free of charge.
	Preflight bool
	// Edge and Limits are what was asked of the limits of the edge (and, of an
	// attempt with a bad credential, of auth.failure_limit), and of the plan's and
	// the route's, in this order; empty where none was asked.
	Edge, Limits []Asked
}

// Asked is one charge and the decision on it.
type Asked struct {
	Charge   ratelimit.Charge
	Decision ratelimit.Decision
}

// Rehearse builds what a gateway would build to serve cfg, and starts nothing.
// Close it.
func Rehearse(cfg *config.Config, o RehearsalOptions) (*Rehearsal, error) {
	h := &Rehearsal{}
	g := &Gateway{telemetry: telemetry.New(telemetry.Options{Out: io.Discard, StoreErrorKinds: storeErrorKinds(), AuthReason: authReason})}
	g.log = g.telemetry.Logger()
	g.untrusted = rate.Sometimes{First: 1, Interval: time.Hour}
	if o.MaxKeys == 0 {
		o.MaxKeys = cfg.Store.MemoryMaxKeys
	}
	g.sockets = newTally[string](1, func() {}) // there is one at a time
	var err error
	if g.topDenied, err = topk.New(topDeniedKeys, 10*time.Minute); err != nil {
		return nil, fmt.Errorf("make the list of denied keys: %w", err)
	}
	table := memory.Options{MaxKeys: o.MaxKeys, Now: func() int64 { return h.now }}
	if g.edgeStore, err = memory.New(table); err != nil {
		return nil, fmt.Errorf("make the table of edge limits: %w", err)
	}
	if o.Store == nil {
		if o.Store, err = memory.New(table); err != nil {
			return nil, fmt.Errorf("make the table of limits: %w", err)
		}
	}
	up, err := makeUpstreams(cfg, nil, proxy.Hooks{})
	if err != nil {
		return nil, err
	}
	// They are not started, so that no attempt asks anybody.
	if h.providers, err = makeProviders(cfg, nil, nil); err != nil {
		return nil, err
	}
	store := recording{o.Store, &h.asked.limits}
	if h.s, err = build(cfg, g, up, keySources{providers: h.providers, keys: unasked(cfg)}, func(config.FailMode) ratelimit.Store { return store }, nil); err != nil {
		return nil, err
	}
	h.s.edgeStore = recording{g.edgeStore, &h.asked.edge}
	return h, nil
}

// FetchKeys asks the providers of keys that are not in files, once, for as long as
// ctx says at most, and returns why keys could not be fetched, a line each. It is
// called once at most. Without it, nobody is asked, and tokens of their issuers are
// refused.
func (h *Rehearsal) FetchKeys(ctx context.Context) (wrong []string) {
	return fetchKeys(ctx, h.providers)
}

// Close lets go of what a gateway would have.
func (h *Rehearsal) Close() error { return h.s.gw.telemetry.Close() }

// Do decides one attempt. Where the store of the options fails, the verdict is
// what the route does without it.
func (h *Rehearsal) Do(a Attempt) Verdict {
	h.now = max(h.now, a.At.UnixMicro())
	h.asked.edge, h.asked.limits = h.asked.edge[:0], h.asked.limits[:0]
	h.x = exchange{assumed: a.As}
	x := &h.x
	x.Arrived = time.UnixMicro(h.now)
	x.deciding = decisionContext{Context: context.Background(), x: x}
	v := Verdict{Request: &x.Request}
	asked := a.Request.URL
	v.Refused = h.s.decide(x, a.Request)
	a.Request.URL = asked // a key is taken out of its query
	x.place.Leave()
	x.socket.leave()
	x.flight.Done()
	if v.Refused == nil {
		v.Delay = ratelimit.Delay(x.response.decisions)
	} else if x.DeniedBy == "" {
		x.DeniedBy = v.Refused.Reason
	}
	v.PlanFrom, v.To, v.Preflight = string(x.planFrom), x.to, x.preflight
	v.Edge, v.Limits = h.asked.edge, h.asked.limits
	return v
}

// Wants is what the route of the last attempt wants of who asks, besides credentials.
func (h *Rehearsal) Wants() []Want {
	if h.x.route == nil || h.x.preflight {
		return nil
	}
	return h.x.route.access.wants(&h.x)
}

// assume takes a rehearsal's word for who asks, or for its not being good.
func (s *snapshot) assume(x *exchange) *httperr.Error {
	if x.assumed.Refused || !auth.Within(x.assumed.AllowIPs, x.ClientIP) {
		return s.unauthorized()
	}
	if x.assumed.Unknown && x.route.auth == config.AuthOptional {
		return nil
	}
	x.AuthMethod, x.onlyFor, x.scopes = "assumed", x.assumed.Routes, x.assumed.Scopes
	x.User, x.Tenant, x.KeyID, x.TokenPlan = x.assumed.User, x.assumed.Tenant, x.assumed.KeyID, x.assumed.Plan
	return nil
}

// A recorder keeps what one attempt asked.
type recorder struct{ edge, limits []Asked }

// A recording store remembers the charges and decisions of each call.
type recording struct {
	store ratelimit.Store
	into  *[]Asked
}

// Take implements ratelimit.Store.
func (r recording) Take(ctx context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	ds, err := r.store.Take(ctx, cs, dst)
	for i := range ds {
		*r.into = append(*r.into, Asked{cs[i], ds[i]})
	}
	return ds, err
}

// OpenStore opens the store that cfg names, for looking at it. It connects to
// nothing yet. An error says what cannot be used, or that there is only memory.
func OpenStore(cfg *config.Config) (*redisstore.Store, error) {
	c := cfg.Store.Redis
	if c == nil {
		return nil, errors.New("the configuration has no store.redis: limits are counted in the memory of each instance")
	}
	client, err := openRedis(c)
	if err != nil {
		return nil, err
	}
	store, err := redisstore.New(client, redisstore.Options{KeyPrefix: c.KeyPrefix, Timeout: c.Timeout})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store.redis: %w", err), client.Close())
	}
	return store, nil
}

// Matches reports whether a route by itself would take r.
func Matches(c *config.Route, r *http.Request) bool {
	var rs router
	if err := rs.add(c.Host, c.Path, &route{name: c.Name, methods: c.Methods, headers: c.Headers, cors: makeCORS(c)}); err != nil {
		return false
	}
	m, _ := rs.match(r)
	return m.route != nil && !m.browser.refused
}

// ShownURI is what a request asked for, or an upstream is asked for, without the
// value of an API key in its query.
func (h *Rehearsal) ShownURI(u *url.URL) string {
	if h.s.auth == nil || u.RawQuery == "" {
		return u.RequestURI()
	}
	shown := *u
	shown.RawQuery = h.s.auth.MaskQuery(u.RawQuery)
	return shown.RequestURI()
}

// KeyCaller is who has the key of that id, by the key file; nil if there is none.
func KeyCaller(cfg *config.Config, id string) *Caller {
	if cfg.Auth.APIKeys == nil {
		return nil
	}
	for _, k := range cfg.Auth.APIKeys.Keys {
		if k.ID == id {
			return &Caller{User: cmp.Or(k.User, "key:"+k.ID), Tenant: k.Tenant, KeyID: k.ID, Plan: k.Plan, Routes: k.Routes, AllowIPs: k.AllowIPs, Scopes: k.Scopes}
		}
	}
	return nil
}
