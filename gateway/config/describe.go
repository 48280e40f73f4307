package config

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Describe says in words what changed between two configurations, a line each,
// for the log of a reload. Secrets are said to have changed and never shown;
// keys stand by their ids. What only a restart applies is said to be so. It
// returns nil if nothing that matters changed: another spelling of the same, a
// comment, the tests beside the plans, the order of what has none.
func Describe(old, new *Config) []string {
	var d differ
	for _, s := range settings(old, new) {
		before := len(d.lines)
		d.change(s.name, s.old, s.new)
		if s.restart && len(d.lines) > before {
			d.lines[before] += " (at the next restart)"
		}
	}
	if !bytes.Equal(old.Admin.Token, new.Admin.Token) {
		d.say("admin.token_file: the token changed")
	}
	if a, b := &old.Admin, &new.Admin; a.ClientCAFile != "" && b.ClientCAFile != "" && !sameAuthorities(a.ClientCAs, b.ClientCAs) {
		d.say("admin.client_ca_file: the authorities changed")
	}
	if a, b := old.Store.Redis, new.Store.Redis; a != nil && b != nil && !bytes.Equal(a.Password, b.Password) {
		d.say("store.redis: the password changed")
	}
	if a, b := sentinel(old), sentinel(new); !bytes.Equal(a.Password, b.Password) {
		d.say("store.redis.sentinel: the password changed")
	}
	if a, b := old.Traces, new.Traces; a != nil && b != nil && !bytes.Equal(a.Headers, b.Headers) {
		d.say("traces.headers_file: the fields changed")
	}
	for _, path := range slices.Compact(slices.Sorted(slices.Values(tlsFiles(new)))) {
		if a, b := contentOf(old, path), contentOf(new, path); a != nil && b != nil && *a != *b {
			d.say("%s changed", path)
		}
	}
	describeIssuers(&d, old.Auth.JWT, new.Auth.JWT)
	describeKeys(&d, old.Auth.APIKeys, new.Auth.APIKeys)
	describeClientCerts(&d, old.Auth.ClientCerts, new.Auth.ClientCerts)

	compare(&d, "limit", old.Limits, new.Limits, func(l *Limit) string { return l.Name }, describeLimit)
	compare(&d, "upstream", old.Upstreams, new.Upstreams, func(u *Upstream) string { return u.Name }, describeUpstream)
	compare(&d, "route", old.Routes, new.Routes, func(r *Route) string { return r.Name }, describeRoute)
	compare(&d, "plan", old.Plans, new.Plans, func(p *Plan) string { return p.Name }, describePlan)
	compare(&d, "override", old.Overrides, new.Overrides, Override.subject, func(d *differ, what string, a, b Override) {
		d.change(what, a.Plan, b.Plan)
	})
	return d.lines
}

// sentinel is that of c, an empty one if there is none.
func sentinel(c *Config) Sentinel {
	if c.Store.Redis == nil || c.Store.Redis.Sentinel == nil {
		return Sentinel{}
	}
	return *c.Store.Redis.Sentinel
}

// tlsFiles are the files whose content matters beyond what a Config holds.
func tlsFiles(c *Config) []string {
	paths := []string{c.Admin.CertFile, c.Admin.KeyFile}
	if h := c.Listen.HTTPS; h != nil {
		paths = append(paths, h.CertFile, h.KeyFile)
		if h.ACME != nil {
			paths = append(paths, h.ACME.CAFile)
		}
	}
	if r := c.Store.Redis; r != nil && r.TLS != nil {
		paths = append(paths, r.TLS.CAFile, r.TLS.CertFile, r.TLS.KeyFile)
	}
	if t := c.Traces; t != nil && t.TLS != nil {
		paths = append(paths, t.TLS.CAFile, t.TLS.CertFile, t.TLS.KeyFile)
	}
	for _, is := range c.Auth.JWT {
		if p := is.Provider; p != nil && p.TLS != nil {
			paths = append(paths, p.TLS.CAFile, p.TLS.CertFile, p.TLS.KeyFile)
		}
	}
	for _, u := range c.Upstreams {
		if u.TLS != nil {
			paths = append(paths, u.TLS.CAFile, u.TLS.CertFile, u.TLS.KeyFile)
		}
	}
	return paths
}

// contentOf returns the digest of a file of c; nil if it is none of its files.
func contentOf(c *Config, path string) *[32]byte {
	for i := range c.Files {
		if c.Files[i].Path == path {
			return &c.Files[i].SHA256
		}
	}
	return nil
}

// NeedsRestart names the changed settings that only a restart applies: where
// the listeners are, since their sockets outlive every reload, and the size of
// the tables in memory, since they keep what they count. A certificate is not
// among them; its files are read again with every configuration.
func NeedsRestart(old, new *Config) []string {
	var names []string
	for _, s := range settings(old, new) {
		if s.restart && s.old != s.new {
			names = append(names, s.name)
		}
	}
	return names
}

// setting is one value of both configurations, as text.
type setting struct {
	name, old, new string
	restart        bool
}

// settings are the single values, in the order of the files.
func settings(a, b *Config) []setting {
	both := func(name string, of func(*Config) string) setting { return setting{name: name, old: of(a), new: of(b)} }
	restart := func(s setting) setting { s.restart = true; return s }
	https := func(of func(*HTTPS) string) func(*Config) string {
		return func(c *Config) string {
			if c.Listen.HTTPS == nil {
				return ""
			}
			return of(c.Listen.HTTPS)
		}
	}
	acme := func(of func(*ACME) string) func(*Config) string {
		return https(func(h *HTTPS) string {
			if h.ACME == nil {
				return ""
			}
			return of(h.ACME)
		})
	}
	redis := func(of func(*Redis) string) func(*Config) string {
		return func(c *Config) string {
			if c.Store.Redis == nil {
				return ""
			}
			return of(c.Store.Redis)
		}
	}
	redisTLS := func(of func(*TLS) string) func(*Config) string {
		return redis(func(r *Redis) string {
			if r.TLS == nil {
				return ""
			}
			return of(r.TLS)
		})
	}
	return append([]setting{
		restart(both("listen.http", func(c *Config) string { return c.Listen.HTTP })),
		restart(both("listen.https.address", https(func(h *HTTPS) string { return h.Address }))),
		both("listen.https.cert_file", https(func(h *HTTPS) string { return h.CertFile })),
		both("listen.https.key_file", https(func(h *HTTPS) string { return h.KeyFile })),
		both("listen.https.acme.domains", acme(func(a *ACME) string { return strings.Join(a.Domains, ", ") })),
		both("listen.https.acme.email", acme(func(a *ACME) string { return a.Email })),
		both("listen.https.acme.cache_dir", acme(func(a *ACME) string { return a.CacheDir })),
		both("listen.https.acme.directory_url", acme(func(a *ACME) string { return a.DirectoryURL })),
		both("listen.https.acme.ca_file", acme(func(a *ACME) string { return a.CAFile })),
		restart(both("listen.admin", func(c *Config) string { return c.Listen.Admin })),
		both("listen.max_connections_per_ip", func(c *Config) string { return orAny(c.Listen.MaxConnectionsPerIP) }),
		both("admin.token_file", func(c *Config) string { return c.Admin.TokenFile }),
		both("admin.client_ca_file", func(c *Config) string { return c.Admin.ClientCAFile }),
		both("admin.cert_file", func(c *Config) string { return c.Admin.CertFile }),
		both("admin.key_file", func(c *Config) string { return c.Admin.KeyFile }),
		restart(both("the admin listener", func(c *Config) string {
			if c.Admin.HTTPS() {
				return "HTTPS"
			}
			return "HTTP"
		})),
		both("shutdown_timeout", func(c *Config) string { return formatDuration(c.ShutdownTimeout) }),
		both("drain_delay", func(c *Config) string { return formatDuration(c.DrainDelay) }),
		both("client_ip.trusted_proxies", func(c *Config) string {
			var ps []string
			for _, p := range c.ClientIP.TrustedProxies {
				ps = append(ps, p.String())
			}
			if c.ClientIP.TrustUnix {
				ps = append(ps, trustsUnix)
			}
			return strings.Join(ps, ", ")
		}),
		both("client_ip.header", func(c *Config) string { return c.ClientIP.Header }),
		both("client_ip.proxy_protocol", func(c *Config) string { return strconv.FormatBool(c.ClientIP.ProxyProtocol) }),
		both("client_ip.ipv6_prefix", func(c *Config) string { return strconv.Itoa(c.ClientIP.IPv6Prefix) }),
		both("store", func(c *Config) string {
			if c.Store.Redis == nil {
				return "memory"
			}
			return "redis"
		}),
		both("store.redis.url", redis(func(r *Redis) string {
			if r.Sentinel != nil || len(r.Addresses) > 0 {
				return ""
			}
			return r.urls()[0]
		})),
		both("store.redis.urls", redis(func(r *Redis) string {
			if len(r.Addresses) == 0 {
				return ""
			}
			return strings.Join(r.urls(), ", ")
		})),
		both("store.redis.sentinel.master", func(c *Config) string { return sentinel(c).Master }),
		both("store.redis.sentinel.addresses", func(c *Config) string { return strings.Join(sentinel(c).Addresses, ", ") }),
		both("store.redis.sentinel.username", func(c *Config) string { return sentinel(c).Username }),
		both("store.redis.sentinel.password_file", func(c *Config) string { return sentinel(c).PasswordFile }),
		restart(both("store.memory.max_keys", func(c *Config) string { return strconv.Itoa(c.Store.MemoryMaxKeys) })),
		both("store.redis.username", redis(func(r *Redis) string { return r.Username })),
		both("store.redis.password_file", redis(func(r *Redis) string { return r.PasswordFile })),
		both("store.redis.tls", redis(func(r *Redis) string {
			if r.TLS == nil {
				return "off"
			}
			return "on"
		})),
		both("store.redis.tls.ca_file", redisTLS(func(t *TLS) string { return t.CAFile })),
		both("store.redis.tls.cert_file", redisTLS(func(t *TLS) string { return t.CertFile })),
		both("store.redis.tls.key_file", redisTLS(func(t *TLS) string { return t.KeyFile })),
		both("store.redis.tls.server_name", redisTLS(func(t *TLS) string { return t.ServerName })),
		both("store.redis.timeout", redis(func(r *Redis) string { return formatDuration(r.Timeout) })),
		both("store.redis.key_prefix", redis(func(r *Redis) string { return r.KeyPrefix })),
		both("auth.failure_limit", func(c *Config) string {
			if c.Auth.FailureLimit == nil {
				return "off"
			}
			return c.Auth.FailureLimit.String()
		}),
		both("edge", func(c *Config) string { return limitNames(c.Edge) }),
		both("client_headers.ietf", func(c *Config) string { return c.ClientHeaders.IETF }),
		both("client_headers.legacy", func(c *Config) string { return onOff(c.ClientHeaders.Legacy) }),
		both("usage_path", func(c *Config) string { return c.UsagePath }),
		both("default_plan", func(c *Config) string { return c.DefaultPlan }),
		both("anonymous_plan", func(c *Config) string { return c.AnonymousPlan }),
	}, describeSignals(both)...)
}

// differ collects what changed.
type differ struct{ lines []string }

func (d *differ) say(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// change says that a value changed, if it did.
func (d *differ) change(what, a, b string) {
	show := func(s string) string {
		if s == "" {
			return "none"
		}
		return s
	}
	if a != b {
		d.say("%s: %s → %s", what, show(a), show(b))
	}
}

// compare says which of two lists of named things were added and removed, and
// lets changed tell what is different in those that are in both.
func compare[T any](d *differ, what string, old, new []T, name func(T) string, changed func(d *differ, what string, a, b T)) {
	before := map[string]T{}
	for _, t := range old {
		before[name(t)] = t
	}
	after := map[string]bool{}
	for _, t := range new {
		after[name(t)] = true
	}
	for _, t := range old {
		if !after[name(t)] {
			d.say("%s %s removed", what, name(t))
		}
	}
	for _, t := range new {
		if o, ok := before[name(t)]; ok {
			changed(d, what+" "+name(t), o, t)
		} else {
			d.say("%s %s added", what, name(t))
		}
	}
}

// describeLimit says what a limit's change does. Buckets are kept by algorithm,
// window and partition key, so that another of these starts the limit anew, and
// another number does not.
func describeLimit(d *differ, what string, a, b *Limit) {
	anew := a.Algorithm != b.Algorithm || a.Rate.Window != b.Rate.Window || a.Calendar.String() != b.Calendar.String()
	if anew {
		d.say("%s: %s → %s (starts anew)", what, a.shape(), b.shape())
	} else {
		d.change(what, a.Rate.String(), b.Rate.String())
	}
	if from, to := perText(a.Per), perText(b.Per); from != to {
		d.say("%s per: %s → %s (starts anew)", what, from, to)
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	if a.Algorithm == b.Algorithm {
		// A burst that follows the number says nothing new.
		if a.Burst != a.Rate.Quota || b.Burst != b.Rate.Quota {
			d.change(what+" burst", number(a.Burst), number(b.Burst))
		}
		d.change(what+" queue", number(a.Queue), number(b.Queue))
	}
	delay := func(l *Limit) string {
		if l.MaxDelay == 0 {
			return ""
		}
		return formatDuration(l.MaxDelay)
	}
	d.change(what+" max_delay", delay(a), delay(b))
	d.change(what+" count_rejected", strconv.FormatBool(a.CountRejected), strconv.FormatBool(b.CountRejected))
	d.change(what+" mode", a.mode(), b.mode())
	d.change(what+" candidate", a.candidateText(), b.candidateText())
	d.change(what+" lease", a.Lease.text(), b.Lease.text())
	d.change(what+" local_cap", capText(a.LocalCap), capText(b.LocalCap))
}

// shape is what the limit's buckets are kept by, and its number.
func (l *Limit) shape() string {
	return strings.TrimSpace(l.Algorithm + " " + l.Rate.String() + " " + l.Calendar.String())
}

// candidateText is the candidate's numbers; empty if there is none.
func (l *Limit) candidateText() string {
	c := l.Candidate
	if c == nil {
		return ""
	}
	s := Rate{c.Quota, l.Rate.Window}.String()
	if l.Algorithm == TokenBucket {
		s += " burst " + strconv.FormatInt(c.Burst, 10)
	}
	return s
}

// text is the lease as the files have it; empty if there is none.
func (l *Lease) text() string {
	if l == nil {
		return ""
	}
	size := "auto"
	if l.Size > 0 {
		size = strconv.FormatInt(l.Size, 10)
	}
	return size + " for " + formatDuration(l.TTL)
}

func describeUpstream(d *differ, what string, a, b *Upstream) {
	d.change(what+" targets", targetText(a.Targets), targetText(b.Targets))
	d.change(what+" balance", a.balanceText(), b.balanceText())
	d.change(what+" timeout.connect", formatDuration(a.ConnectTimeout), formatDuration(b.ConnectTimeout))
	d.change(what+" timeout.response_header", formatDuration(a.ResponseHeaderTimeout), formatDuration(b.ResponseHeaderTimeout))
	d.change(what+" timeout.idle", formatDuration(a.IdleTimeout), formatDuration(b.IdleTimeout))
	describeTLS(d, what, a.TLS, b.TLS)
	d.change(what+" max_in_flight", orAny(a.MaxInFlight), orAny(b.MaxInFlight))
	d.change(what+" circuit", a.Circuit.text(), b.Circuit.text())
	d.change(what+" retries", a.Retries.text(), b.Retries.text())
	was, now := orNew(a.Health), orNew(b.Health)
	d.change(what+" health.path", was.Path, now.Path)
	if a.Health != nil && b.Health != nil {
		d.change(what+" health.interval", formatDuration(was.Interval), formatDuration(now.Interval))
		d.change(what+" health.timeout", formatDuration(was.Timeout), formatDuration(now.Timeout))
		d.change(what+" health.healthy", strconv.Itoa(was.Healthy), strconv.Itoa(now.Healthy))
		d.change(what+" health.unhealthy", strconv.Itoa(was.Unhealthy), strconv.Itoa(now.Unhealthy))
	}
	d.change(what+" slow_start", formatDuration(a.SlowStart), formatDuration(b.SlowStart))
}

// orAny is a number that may be none.
func orAny(n int) string {
	if n == 0 {
		return "any"
	}
	return strconv.Itoa(n)
}

// text is the circuit in a line; empty if there is none.
func (c *Circuit) text() string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s of %s, open for %s", c.Errors, formatDuration(c.Window), formatDuration(c.Open))
}

// text is the retries in a line; empty if there are none.
func (r *Retries) text() string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("%d within %s", r.Attempts, r.Budget)
}

func describeRoute(d *differ, what string, a, b *Route) {
	d.change(what+" host", a.Host, b.Host)
	d.change(what+" path", a.Path, b.Path)
	d.change(what+" methods", strings.Join(a.Methods, ", "), strings.Join(b.Methods, ", "))
	describeFields(d, what+" headers", a.Headers, b.Headers)
	d.change(what+" upstream", a.Upstream, b.Upstream)
	d.change(what+" auth", string(a.Auth), string(b.Auth))
	describeAccess(d, what, &a.Access, &b.Access)
	d.change(what+" cost", strconv.FormatInt(a.Cost, 10), strconv.FormatInt(b.Cost, 10))
	d.change(what+" limits", limitNames(a.Limits), limitNames(b.Limits))
	d.change(what+" on_store_failure", string(a.OnStoreFailure), string(b.OnStoreFailure))
	d.change(what+" forward_credentials", strconv.FormatBool(a.ForwardCredentials), strconv.FormatBool(b.ForwardCredentials))
	describeReshaping(d, what, a, b)
}

func describePlan(d *differ, what string, a, b *Plan) {
	compare(d, what+": limit", a.Limits, b.Limits, func(l *Limit) string { return l.Name },
		func(d *differ, _ string, la, lb *Limit) { describeLimit(d, what+": "+la.Name, la, lb) })
	// It is the order of the fields that clients see.
	if from, to := limitNames(a.Limits), limitNames(b.Limits); sameWords(from, to) {
		d.change(what+" order of limits", from, to)
	}
	d.change(what+" local_cap", capText(a.LocalCap), capText(b.LocalCap))
}

// sameWords reports whether two lists have the same items in any order.
func sameWords(a, b string) bool {
	sorted := func(s string) []string { return slices.Sorted(slices.Values(strings.Split(s, ", "))) }
	return slices.Equal(sorted(a), sorted(b))
}

func describeIssuers(d *differ, old, new []*Issuer) {
	compare(d, "issuer", old, new, func(is *Issuer) string { return is.Issuer }, func(d *differ, what string, a, b *Issuer) {
		d.change(what+" audience", strings.Join(a.Audience, ", "), strings.Join(b.Audience, ", "))
		d.change(what+" algorithms", strings.Join(a.Algorithms, ", "), strings.Join(b.Algorithms, ", "))
		d.change(what+" "+a.keyField(), strings.Join(a.KeyFiles, ", "), strings.Join(b.KeyFiles, ", "))
		describeProvider(d, what, a.Provider, b.Provider)
		d.change(what+" secret_encoding", string(a.SecretEncoding), string(b.SecretEncoding))
		if !reflect.DeepEqual(a.PublicKeys, b.PublicKeys) || !reflect.DeepEqual(a.Secrets, b.Secrets) ||
			a.KeySet != b.KeySet && !(a.KeySet != nil && a.KeySet.Equal(b.KeySet)) {
			d.say("%s: the keys changed", what)
		}
		d.change(what+" cookie", a.Cookie, b.Cookie)
		d.change(what+" cookie_cross_origin", refuseOrAllow(a.CookieCrossOrigin), refuseOrAllow(b.CookieCrossOrigin))
		d.change(what+" leeway", formatDuration(a.Leeway), formatDuration(b.Leeway))
		d.change(what+" claims.user", a.Claims.User, b.Claims.User)
		d.change(what+" claims.tenant", a.Claims.Tenant, b.Claims.Tenant)
		d.change(what+" claims.plan", a.Claims.Plan, b.Claims.Plan)
		d.change(what+" claims.scopes", a.Claims.Scopes, b.Claims.Scopes)
	})
}

// keyField is the field that names the key files.
func (is *Issuer) keyField() string {
	switch {
	case len(is.Secrets) > 0:
		return "secret_file"
	case is.KeySet != nil:
		return "jwks_file"
	}
	return "public_key_file"
}

func describeProvider(d *differ, what string, a, b *Provider) {
	d.change(what+" jwks_url", a.text(), b.text())
	if a == nil || b == nil {
		return
	}
	if a.URL == b.URL && !bytes.Equal(a.Address, b.Address) {
		d.say("%s: the login or the query of jwks_url changed", what)
	}
	d.change(what+" refresh", formatDuration(a.Refresh), formatDuration(b.Refresh))
	d.change(what+" max_stale", formatDuration(a.MaxStale), formatDuration(b.MaxStale))
	describeTLS(d, what, a.TLS, b.TLS)
}

func describeTLS(d *differ, what string, a, b *TLS) {
	from, to := orNew(a), orNew(b)
	d.change(what+" tls.ca_file", from.CAFile, to.CAFile)
	d.change(what+" tls.cert_file", from.CertFile, to.CertFile)
	d.change(what+" tls.key_file", from.KeyFile, to.KeyFile)
	d.change(what+" tls.server_name", from.ServerName, to.ServerName)
}

func refuseOrAllow(allow bool) string {
	if allow {
		return "allow"
	}
	return "refuse"
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// failures is the limit of guesses at a key, in words; nothing where there are no keys.
func (k *APIKeys) failures() string {
	switch {
	case k.Header == "":
		return ""
	case k.FailureLimit == nil:
		return "off"
	}
	return k.FailureLimit.String()
}

func describeKeys(d *differ, old, new *APIKeys) {
	if old == nil {
		old = &APIKeys{}
	}
	if new == nil {
		new = &APIKeys{}
	}
	d.change("auth.api_keys.file", old.File, new.File)
	d.change("auth.api_keys.redis.hash", old.RedisHash, new.RedisHash)
	d.change("auth.api_keys.header", old.Header, new.Header)
	d.change("auth.api_keys.query", old.Query, new.Query)
	d.change("auth.api_keys.failure_limit", old.failures(), new.failures())
	compare(d, "key", old.Keys, new.Keys, func(k Key) string { return k.ID }, func(d *differ, what string, a, b Key) {
		if a.SHA256 != b.SHA256 {
			d.say("%s: another key", what)
		}
		d.change(what+" user", a.User, b.User)
		d.change(what+" tenant", a.Tenant, b.Tenant)
		d.change(what+" plan", a.Plan, b.Plan)
		expiry := func(k Key) string {
			if k.Expires.IsZero() {
				return ""
			}
			return FormatExpiry(k.Expires)
		}
		d.change(what+" expires", expiry(a), expiry(b))
		d.change(what+" routes", bracketed(a.Routes), bracketed(b.Routes))
		d.change(what+" allow_ips", bracketed(a.allowed()), bracketed(b.allowed()))
		d.change(what+" scopes", bracketed(a.Scopes), bracketed(b.Scopes))
	})
}

// subject names whom an override is for.
func (o Override) subject() string {
	switch {
	case o.Key != "":
		return "of key " + o.Key
	case o.User != "":
		return "of user " + o.User
	}
	return "of tenant " + o.Tenant
}

func perText(per []Dimension) string {
	var s []string
	for _, d := range per {
		s = append(s, d.String())
	}
	return strings.Join(s, ", ")
}

func capText(r *Rate) string {
	if r == nil {
		return "its share"
	}
	return r.String()
}

func targetText(targets []Target) string {
	var s []string
	for _, t := range targets {
		text := t.URL.String()
		if t.Weight != 1 {
			text += " of weight " + strconv.Itoa(t.Weight)
		}
		s = append(s, text)
	}
	return strings.Join(s, ", ")
}

func (u *Upstream) balanceText() string {
	if u.HashBy == nil {
		return u.Balance
	}
	return u.Balance + " by " + u.HashBy.String()
}

func limitNames(ls []*Limit) string {
	var names []string
	for _, l := range ls {
		names = append(names, l.Name)
	}
	return strings.Join(names, ", ")
}
