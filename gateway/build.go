package gateway

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"reflect"
	"slices"
	"time"

	"bouncer/gateway/auth"
	"bouncer/gateway/clientip"
	"bouncer/gateway/config"
	"bouncer/gateway/proxy"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/rewrite"
	"bouncer/gateway/telemetry"
	"bouncer/gateway/tracing"
)

// A snapshot is one configuration, compiled into stages. It is never modified;
// a request uses the one it arrived under from its first stage to its last.
type snapshot struct {
	gw        *Gateway
	cfg       *config.Config
	loaded    time.Time
	traced    *traced // nil: no traces
	clientIP  *clientip.Resolver
	routes    router
	limited   []*route // those that cost something, for usage
	edge      []*limit
	edgeStore ratelimit.Store
	looking   ratelimit.Store     // the store for who only looks: while it is away, what this instance knows
	failures  *ratelimit.Policy   // of one address; nil: failed attempts are not limited
	guesses   *ratelimit.Policy   // at one key; nil: not limited
	auth      *auth.Authenticator // nil: no route needs it
	plans     plans
	asking    *tls.Config // of the HTTPS listener, if it asks for certificates of clients; nil: it does not
}

// stores gives the limit store for routes of a fail mode.
type stores func(config.FailMode) ratelimit.Store

// Check builds everything that serving cfg would need and starts nothing. The
// configuration's own checks should leave nothing for it to find; what it finds
// all the same must not wait for the restart.
func Check(cfg *config.Config) error {
	up, err := makeUpstreams(cfg, nil, proxy.Hooks{})
	if err != nil {
		return err
	}
	providers, err := makeProviders(cfg, nil, nil)
	if err != nil {
		return err
	}
	if _, err := makeTraced(cfg, nil, "", "", tracing.Hooks{}); err != nil {
		return err
	}
	_, err = build(cfg, nil, up, keySources{providers: providers}, func(config.FailMode) ratelimit.Store { return nil }, nil)
	return err
}

// build compiles cfg. It starts nothing and changes nothing, so a configuration
// that fails leaves nothing behind.
func build(
	cfg *config.Config, gw *Gateway, up map[string]*pooled, sources keySources, storeFor stores, previous *auth.Authenticator,
) (*snapshot, error) {
	s := &snapshot{gw: gw, cfg: cfg, loaded: time.Now()}
	if gw != nil {
		s.edgeStore = gw.edgeStore
		if gw.listenerTLS != nil { // a rehearsal has none
			if c := cfg.Auth.ClientCerts; c != nil {
				s.asking = askingTLS(gw.listenerTLS, c.CAs)
			}
		}
	}
	var err error
	s.clientIP, err = clientip.New(clientip.Options{
		Trusted: cfg.ClientIP.TrustedProxies, TrustUnix: cfg.ClientIP.TrustUnix, Header: cfg.ClientIP.Header, IPv6Prefix: cfg.ClientIP.IPv6Prefix,
	})
	if err != nil {
		return nil, fmt.Errorf("client_ip: %w", err)
	}
	if s.auth, err = makeAuth(cfg, sources, previous); err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	if s.failures, err = failurePolicy("failure-limit", cfg.Auth.FailureLimit); err != nil {
		return nil, fmt.Errorf("auth.failure_limit: %w", err)
	}
	if keys := cfg.Auth.APIKeys; keys != nil {
		if s.guesses, err = failurePolicy("key-failure-limit", keys.FailureLimit); err != nil {
			return nil, fmt.Errorf("auth.api_keys.failure_limit: %w", err)
		}
	}

	s.looking = storeFor(config.FailLocalCap)
	named := map[string]*limit{}
	for _, l := range cfg.Limits {
		if named[l.Name], err = makeLimit(l, "limit/", nil); err != nil {
			return nil, fmt.Errorf("limits.%s: %w", l.Name, err)
		}
	}
	for _, l := range cfg.Edge {
		// An edge limit counts on this instance alone; a route that names the
		// same limit counts in the shared store, hence a key of its own.
		e, err := makeLimit(l, "edge/", nil)
		if err != nil {
			return nil, fmt.Errorf("edge: %s: %w", l.Name, err)
		}
		s.edge = append(s.edge, e)
	}
	if err := s.plans.build(cfg); err != nil {
		return nil, err
	}
	hashBy := map[string]*config.Dimension{}
	noSockets := map[string]bool{} // upstreams with nobody to ask for a WebSocket
	for _, c := range cfg.Upstreams {
		hashBy[c.Name] = c.HashBy
		noSockets[c.Name] = !slices.ContainsFunc(c.Targets, func(t config.Target) bool { return t.URL.Scheme != "h2c" })
	}
	for _, c := range cfg.Routes {
		rt := &route{
			name: c.Name, template: c.Path, methods: c.Methods, headers: c.Headers, auth: c.Auth, cost: c.Cost,
			store: storeFor(c.OnStoreFailure), upstreamName: c.Upstream, upstream: up[c.Upstream].upstream, hashBy: hashBy[c.Upstream],
		}
		rt.access = makeAccess(c, &s.plans, len(cfg.Auth.JWT) > 0)
		if s.auth != nil && c.Auth != config.AuthNone && !c.ForwardCredentials {
			rt.forward.Strip, rt.stripQuery = s.auth.Strip, s.auth.StripQuery
		}
		rt.forward.ClientField, rt.forward.NoWebSocket = cfg.ClientIP.Header, noSockets[c.Upstream]
		if err := rt.reshape(c); err != nil {
			return nil, fmt.Errorf("%s: routes: %s: %w", c.Pos, c.Name, err)
		}
		for _, l := range c.Limits {
			rt.limits = append(rt.limits, named[l.Name])
		}
		if err := s.routes.add(c.Host, c.Path, rt); err != nil {
			return nil, fmt.Errorf("%s: routes: %s: path %s: %w", c.Pos, c.Name, c.Path, err)
		}
		if rt.cost > 0 {
			s.limited = append(s.limited, rt)
		}
	}
	if cfg.UsagePath != "" {
		if err := s.routes.add("", cfg.UsagePath, makeUsageRoute(cfg, s, storeFor)); err != nil {
			return nil, fmt.Errorf("usage_path %s: %w", cfg.UsagePath, err)
		}
	}
	return s, nil
}

// failurePolicy is how often one may fail to authenticate; nil for any number.
func failurePolicy(name string, f *config.Rate) (*ratelimit.Policy, error) {
	if f == nil {
		return nil, nil //nolint:nilnil // no limit
	}
	return ratelimit.NewPolicy(ratelimit.Policy{
		Name: name, Scope: "auth/" + name, Algorithm: ratelimit.FixedWindow, Quota: f.Quota, Window: f.Window,
	})
}

// reshape compiles what a route changes in requests and answers.
func (rt *route) reshape(c *config.Route) (err error) {
	switch {
	case c.StripPrefix != "":
		rt.path, err = rewrite.StripPrefix(c.StripPrefix)
	case c.Rewrite != nil:
		rt.path, err = rewrite.Replace(c.Rewrite.Match, c.Rewrite.Replace)
	}
	if err != nil {
		return err
	}
	if c.RequestHeaders != nil {
		if rt.forward.Fields, err = rewrite.NewFields(*c.RequestHeaders); err != nil {
			return fmt.Errorf("request_headers: %w", err)
		}
	}
	if c.ResponseHeaders != nil {
		if rt.answer, err = rewrite.NewFields(*c.ResponseHeaders); err != nil {
			return fmt.Errorf("response_headers: %w", err)
		}
	}
	if c.MaxBody != config.AnySize {
		most := int64(c.MaxBody)
		rt.forward.MaxBody = &most
	}
	rt.forward.Timeout = c.Timeout
	if w := c.WebSocket; w != nil {
		rt.sockets = w.MaxConnections
		rt.forward.WebSocket = proxy.WebSocket{Idle: w.Idle, Lifetime: w.Lifetime}
	}
	rt.cors = makeCORS(c)
	rt.credentialed = c.CORS != nil && c.CORS.Credentials
	return nil
}

// algorithms are the names the configuration uses.
var algorithms = map[string]ratelimit.Algorithm{
	"token_bucket":           ratelimit.TokenBucket,
	"fixed_window":           ratelimit.FixedWindow,
	"sliding_window_log":     ratelimit.SlidingWindowLog,
	"sliding_window_counter": ratelimit.SlidingWindowCounter,
	"leaky_bucket":           ratelimit.LeakyBucket,
}

var calendarUnits = map[string]ratelimit.CalendarUnit{
	"minute": ratelimit.CalendarMinute,
	"hour":   ratelimit.CalendarHour,
	"day":    ratelimit.CalendarDay,
	"week":   ratelimit.CalendarWeek,
	"month":  ratelimit.CalendarMonth,
}

// makeLimit compiles one limit. standIn is the plan's own local cap, if any.
func makeLimit(l *config.Limit, scope string, standIn *ratelimit.Policy) (*limit, error) {
	spec := ratelimit.Policy{
		Name: l.Name, Scope: scope + l.Name, Algorithm: algorithms[l.Algorithm],
		Quota: l.Rate.Quota, Window: l.Rate.Window, Burst: l.Burst, Queue: l.Queue, MaxDelay: l.MaxDelay,
		CountRejected: l.CountRejected, LocalCap: standIn,
	}
	if c := l.Lease; c != nil {
		spec.Lease = ratelimit.Lease{TTL: c.TTL, Size: c.Size}
	}
	if l.Shadow {
		// The plan's cap denies, and this limit never does.
		spec.Role, spec.LocalCap = ratelimit.Shadow, nil
	}
	if c := l.Calendar; c != nil {
		spec.Window = 0
		spec.Calendar = &ratelimit.Calendar{Unit: calendarUnits[c.Unit], Location: c.Location, WeekStart: c.WeekStart}
	}
	if l.LocalCap != nil {
		// The limit's own cap keeps its name and is counted as the limit is.
		c, err := localCap(l.Name, spec.Scope, l.LocalCap, spec.Role)
		if err != nil {
			return nil, err
		}
		spec.LocalCap = c
	}
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		return nil, err
	}
	compiled := &limit{policy: p, per: l.Per, words: l.Words(), byCaller: len(l.Per) == 1 && l.Per[0].Kind == config.PerUser}
	if c := l.Candidate; c != nil {
		spec.Role, spec.Quota, spec.Burst, spec.CountRejected = ratelimit.Candidate, c.Quota, c.Burst, false
		if compiled.candidate, err = ratelimit.NewPolicy(spec); err != nil {
			return nil, fmt.Errorf("candidate: %w", err)
		}
	}
	return compiled, nil
}

// localCap is N/unit with a burst of N: what one instance grants by itself
// while the shared store is away. It has the role of what it stands in for: a
// limit in shadow denies nobody then either.
func localCap(name, scope string, r *config.Rate, role ratelimit.Role) (*ratelimit.Policy, error) {
	p, err := ratelimit.NewPolicy(ratelimit.Policy{
		Name: name, Scope: scope, Algorithm: ratelimit.TokenBucket,
		Quota: r.Quota, Window: r.Window, Burst: max(r.Quota, 1), Role: role,
	})
	if err != nil {
		return nil, fmt.Errorf("local_cap: %w", err)
	}
	return p, nil
}

func (ps *plans) build(cfg *config.Config) error {
	ps.byName = map[string]*plan{}
	for _, c := range cfg.Plans {
		p := &plan{name: c.Name}
		var standIn *ratelimit.Policy
		if c.LocalCap != nil {
			var err error
			if standIn, err = localCap("local-cap", "plan/local-cap", c.LocalCap, ratelimit.Enforce); err != nil {
				return fmt.Errorf("plans.%s: %w", c.Name, err)
			}
		}
		for _, l := range c.Limits {
			compiled, err := makeLimit(l, "plan/", standIn)
			if err != nil {
				return fmt.Errorf("plans.%s: %s: %w", c.Name, l.Name, err)
			}
			p.limits = append(p.limits, compiled)
		}
		ps.byName[c.Name] = p
	}
	ps.fallback, ps.anonymous = ps.byName[cfg.DefaultPlan], ps.byName[cfg.AnonymousPlan]
	ps.byKey, ps.byUser, ps.byTenant = map[string]*plan{}, map[string]*plan{}, map[string]*plan{}
	for _, o := range cfg.Overrides {
		p := ps.byName[o.Plan]
		switch {
		case o.Key != "":
			ps.byKey[o.Key] = p
		case o.User != "":
			ps.byUser[o.User] = p
		case o.Tenant != "":
			ps.byTenant[o.Tenant] = p
		}
	}
	return nil
}

// realm is that of every challenge (RFC 9110 section 11.5).
const realm = "gateway"

// keySources are where keys come from that are no part of a configuration: those of
// issuers, and API keys; and who is told which of these are used.
type keySources struct {
	providers map[string]*provider
	keys      auth.KeyTable // nil: none
	uses      *auth.UseLog  // told which API keys are used; nil: nobody is
}

// makeAuth returns nil when nothing is configured; config refuses routes that
// would need it.
func makeAuth(cfg *config.Config, sources keySources, previous *auth.Authenticator) (*auth.Authenticator, error) {
	if len(cfg.Auth.JWT) == 0 && cfg.Auth.APIKeys == nil && cfg.Auth.ClientCerts == nil {
		return nil, nil
	}
	o := auth.Options{Realm: realm, Previous: previous}
	asksOf(cfg, &o)
	for _, c := range cfg.Auth.JWT {
		i := auth.Issuer{
			Issuer: c.Issuer, Audience: c.Audience, Algorithms: c.Algorithms, PublicKeys: c.PublicKeys, KeySet: keySource(c, sources.providers),
			Cookie: c.Cookie, CookieCrossOrigin: c.CookieCrossOrigin, Leeway: c.Leeway,
			Claims: auth.Claims{User: c.Claims.User, Tenant: c.Claims.Tenant, Plan: c.Claims.Plan, Scopes: c.Claims.Scopes},
		}
		for _, secret := range c.Secrets {
			i.Secrets = append(i.Secrets, secret)
		}
		o.Issuers = append(o.Issuers, i)
	}
	if c := cfg.Auth.ClientCerts; c != nil {
		o.ClientCerts = &auth.ClientCerts{
			CAs: c.CAs, User: auth.CertField(c.User), Tenant: auth.CertField(c.Tenant), Plan: auth.CertField(c.Plan),
		}
	}
	if c := cfg.Auth.APIKeys; c != nil {
		o.APIKeys, o.KeyHeader, o.KeyQuery, o.KeyTable, o.UseLog = true, c.Header, c.Query, sources.keys, sources.uses
		for _, k := range c.Keys {
			o.Keys = append(o.Keys, authKey(k))
		}
	}
	return auth.New(o)
}

// A pooled upstream lives as long as its configuration does not change, over
// any number of reloads, so that connections and what is known of its targets
// survive them.
type pooled struct {
	cfg      *config.Upstream
	tlsFiles [sha256.Size]byte // of their contents
	upstream *proxy.Upstream
}

// makeUpstreams returns the upstreams of cfg: those of old that have not
// changed, and new ones.
func makeUpstreams(cfg *config.Config, old map[string]*pooled, hooks proxy.Hooks) (map[string]*pooled, error) {
	up := make(map[string]*pooled, len(cfg.Upstreams))
	for _, c := range cfg.Upstreams {
		files := digest(c.TLS)
		if p := old[c.Name]; p != nil && sameUpstream(p.cfg, c) && p.tlsFiles == files {
			up[c.Name] = p
			continue
		}
		tlsConfig, err := clientTLS(c.TLS)
		if err != nil {
			return nil, fmt.Errorf("upstreams.%s: tls: %w", c.Name, err)
		}
		targets := make([]proxy.Target, len(c.Targets))
		for i, t := range c.Targets {
			targets[i] = proxy.Target{URL: t.URL, Weight: t.Weight}
		}
		o := proxy.Options{
			Name: c.Name, Targets: targets, TLS: tlsConfig, Balance: c.Balance,
			ConnectTimeout: c.ConnectTimeout, ResponseHeaderTimeout: c.ResponseHeaderTimeout, IdleTimeout: c.IdleTimeout, ClientTimeout: idleTimeout,
			MaxInFlight: c.MaxInFlight, Circuit: circuitOf(c.Circuit), Retries: retriesOf(c.Retries),
			Health: healthOf(c.Health), SlowStart: c.SlowStart, Hooks: hooks,
		}
		if p := old[c.Name]; p != nil {
			o.Previous = p.upstream
		}
		u, err := proxy.New(o)
		if err != nil {
			return nil, fmt.Errorf("upstreams.%s: %w", c.Name, err)
		}
		up[c.Name] = &pooled{cfg: c, tlsFiles: files, upstream: u}
	}
	return up, nil
}

func circuitOf(c *config.Circuit) *proxy.Circuit {
	if c == nil {
		return nil
	}
	return &proxy.Circuit{Errors: float64(c.Errors) / 100, Window: c.Window, Open: c.Open}
}

func retriesOf(c *config.Retries) *proxy.Retries {
	if c == nil {
		return nil
	}
	return &proxy.Retries{Attempts: c.Attempts, Budget: float64(c.Budget) / 100}
}

func healthOf(c *config.Health) *proxy.Health {
	if c == nil {
		return nil
	}
	return &proxy.Health{Path: c.Path, Interval: c.Interval, Timeout: c.Timeout, Healthy: c.Healthy, Unhealthy: c.Unhealthy}
}

// sameUpstream compares all but where it stands in the file.
func sameUpstream(a, b *config.Upstream) bool {
	x, y := *a, *b
	x.Pos, y.Pos = config.Pos{}, config.Pos{}
	return reflect.DeepEqual(x, y)
}

// labels lists what cfg can put into metrics, so that every series stands at 0
// from the start and none outlives its configuration.
func labels(cfg *config.Config) telemetry.Labels {
	l := telemetry.Labels{Sources: []string{string(ratelimit.SourceMemory)}}
	if cfg.Store.Redis != nil {
		l.Sources = []string{
			string(ratelimit.SourceRedis), string(ratelimit.SourceDenyCache), string(ratelimit.SourceLocalCap), string(ratelimit.SourceMemory),
		}
	}
	if leases(cfg) {
		l.Sources = append(l.Sources, string(ratelimit.SourceLease))
	}
	l.Modes, l.Forbidden = modes(cfg), forbidden(cfg)
	for _, rt := range cfg.Routes {
		l.Routes = append(l.Routes, rt.Name)
		for _, e := range cfg.Edge {
			addLimit(&l, rt.Name, "", e)
		}
		if rt.Cost == 0 {
			continue
		}
		for _, p := range cfg.Plans {
			if !reachable(cfg, rt, p) {
				continue
			}
			for _, pl := range p.Limits {
				addLimit(&l, rt.Name, p.Name, pl)
			}
			if p.LocalCap != nil {
				l.Limits = append(l.Limits, telemetry.Limit{Route: rt.Name, Plan: p.Name, Limit: "local-cap"})
			}
			for _, nl := range rt.Limits {
				addLimit(&l, rt.Name, p.Name, nl)
			}
		}
		for _, nl := range rt.Limits {
			addLimit(&l, rt.Name, "", nl)
		}
	}
	for _, e := range cfg.Edge {
		addLimit(&l, telemetry.Unmatched, "", e)
		if cfg.UsagePath != "" {
			addLimit(&l, UsageRoute, "", e)
		}
	}
	if cfg.UsagePath != "" {
		l.Routes = append(l.Routes, UsageRoute)
	}
	if h := cfg.Listen.HTTPS; h != nil && h.ACME != nil {
		l.Routes = append(l.Routes, ChallengeRoute)
	}
	for _, u := range cfg.Upstreams {
		l.Upstreams = append(l.Upstreams, u.Name)
		for _, t := range u.Targets {
			l.Targets = append(l.Targets, telemetry.Target{Upstream: u.Name, Target: proxy.TargetName(t.URL)})
		}
	}
	return l
}

// leases reports whether some limit is taken out of a shared store in advance.
func leases(cfg *config.Config) bool {
	leased := func(l *config.Limit) bool { return l.Lease != nil }
	return cfg.Store.Redis != nil && (slices.ContainsFunc(cfg.Limits, leased) ||
		slices.ContainsFunc(cfg.Plans, func(p *config.Plan) bool { return slices.ContainsFunc(p.Limits, leased) }))
}

// modes are the fail modes that some route uses.
func modes(cfg *config.Config) (used []string) {
	for _, rt := range cfg.Routes {
		if m := string(rt.OnStoreFailure); !slices.Contains(used, m) {
			used = append(used, m)
		}
	}
	return used
}

func addLimit(l *telemetry.Labels, route, plan string, c *config.Limit) {
	named := telemetry.Limit{Route: route, Plan: plan, Limit: c.Name}
	l.Limits = append(l.Limits, named)
	if c.Shadow {
		l.Trials = append(l.Trials, telemetry.Trial{Limit: named, Role: telemetry.Shadow})
	}
	if c.Candidate != nil {
		l.Trials = append(l.Trials, telemetry.Trial{Limit: named, Role: telemetry.Candidate})
	}
}

// reachable reports whether a caller on plan p can come to route rt.
func reachable(cfg *config.Config, rt *config.Route, p *config.Plan) bool {
	if len(rt.Plans) > 0 && !slices.Contains(rt.Plans, p.Name) {
		return false
	}
	// A credential may name any plan, that of strangers too.
	return rt.Auth != config.AuthNone || p.Name == cfg.AnonymousPlan
}
