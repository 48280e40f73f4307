package config

import (
	"bytes"
	"fmt"
	"net/url"
	"strconv"
	"time"

	yaml "go.yaml.in/yaml/v4"
)

// Summary counts what the configuration holds: "3 plans, 5 routes, 6 limits".
func (c *Config) Summary() string {
	limits := len(c.Limits)
	for _, p := range c.Plans {
		limits += len(p.Limits)
	}
	return count(len(c.Plans), "plan") + ", " + count(len(c.Routes), "route") + ", " + count(limits, "limit")
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// Print writes the effective configuration as YAML: routes.yaml, plans.yaml
// and, if there is one, the key file, each as a document. Defaults are filled
// in, variables are expanded, paths are absolute, passwords are masked, and of
// keys there are ids and no digests. What comes out can be loaded again where
// nothing was masked.
func Print(c *Config) []byte {
	var b bytes.Buffer
	document := func(title string, n *yaml.Node) {
		if b.Len() > 0 {
			b.WriteString("---\n")
		}
		b.WriteString("# " + title + "\n")
		d, err := yaml.NewDumper(&b, yaml.WithIndent(2), yaml.WithLineWidth(-1))
		if err == nil {
			err = d.Dump(n)
		}
		if err == nil {
			err = d.Close()
		}
		if err != nil {
			panic("bug: print the configuration: " + err.Error()) // a buffer takes everything
		}
	}
	document("routes.yaml", c.routesNode())
	document("plans.yaml", c.plansNode())
	if c.Auth.APIKeys != nil && c.Auth.APIKeys.File != "" {
		document("keys: "+c.Auth.APIKeys.File+" (digests are not shown)", keysNode(c.Auth.APIKeys.Keys))
	}
	return b.Bytes()
}

// mapping builds a mapping field by field.
type mapping struct{ n *yaml.Node }

func newMapping(flow bool) mapping {
	m := mapping{&yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}}
	if flow {
		m.n.Style = yaml.FlowStyle
	}
	return m
}

// node adds a field; nil is left out.
func (m mapping) node(name string, n *yaml.Node) {
	if n != nil {
		m.n.Content = append(m.n.Content, scalarNode(name), n)
	}
}

// text adds a string; the empty one is left out.
func (m mapping) text(name, s string) {
	if s != "" {
		m.node(name, scalarNode(escape(s)))
	}
}

func (m mapping) number(name string, n int64) {
	m.node(name, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(n, 10)})
}

func (m mapping) boolean(name string, b bool) {
	m.node(name, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(b)})
}

func (m mapping) duration(name string, d time.Duration) { m.text(name, formatDuration(d)) }

func (m mapping) rate(name string, r *Rate) {
	if r != nil {
		m.text(name, r.String())
	}
}

func (m mapping) list(name string, items []string) {
	if len(items) == 0 {
		return
	}
	l := listNode(true)
	for _, s := range items {
		l.Content = append(l.Content, scalarNode(escape(s)))
	}
	m.node(name, l)
}

func listNode(flow bool) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	if flow {
		n.Style = yaml.FlowStyle
	}
	return n
}

func scalarNode(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
}

// escape writes a value so that reading it again expands nothing.
func escape(s string) string {
	return string(bytes.ReplaceAll([]byte(s), []byte("${"), []byte("$${")))
}

const masked = "********"

func (c *Config) routesNode() *yaml.Node {
	m := newMapping(false)
	l := newMapping(false)
	l.text("http", c.Listen.HTTP)
	if h := c.Listen.HTTPS; h != nil {
		n := newMapping(true)
		n.text("address", h.Address)
		n.text("cert_file", h.CertFile)
		n.text("key_file", h.KeyFile)
		if h.ACME != nil {
			n.node("acme", h.ACME.mapping().n)
		}
		l.node("https", n.n)
	}
	l.text("admin", c.Listen.Admin)
	l.number("max_connections_per_ip", int64(c.Listen.MaxConnectionsPerIP))
	m.node("listen", l.n)
	if c.Admin.TokenFile != "" || c.Admin.HTTPS() {
		n := newMapping(true)
		n.text("token_file", c.Admin.TokenFile)
		n.text("client_ca_file", c.Admin.ClientCAFile)
		n.text("cert_file", c.Admin.CertFile)
		n.text("key_file", c.Admin.KeyFile)
		m.node("admin", n.n)
	}
	m.node("log", c.Log.node().n)
	if c.Traces != nil {
		m.node("traces", c.Traces.node().n)
	}
	m.duration("shutdown_timeout", c.ShutdownTimeout)
	m.duration("drain_delay", c.DrainDelay)

	ip := newMapping(false)
	var trusted []string
	for _, p := range c.ClientIP.TrustedProxies {
		trusted = append(trusted, p.String())
	}
	if c.ClientIP.TrustUnix {
		trusted = append(trusted, trustsUnix)
	}
	ip.list("trusted_proxies", trusted)
	ip.text("header", c.ClientIP.Header)
	ip.number("ipv6_prefix", int64(c.ClientIP.IPv6Prefix))
	ip.boolean("proxy_protocol", c.ClientIP.ProxyProtocol)
	m.node("client_ip", ip.n)

	st := newMapping(false)
	mem := newMapping(true)
	mem.number("max_keys", int64(c.Store.MemoryMaxKeys))
	st.node("memory", mem.n)
	if r := c.Store.Redis; r != nil {
		st.node("redis", r.node())
	}
	m.node("store", st.n)
	m.node("auth", c.Auth.node())

	if len(c.Limits) > 0 {
		limits := newMapping(false)
		for _, l := range c.Limits {
			limits.node(l.Name, l.node(false))
		}
		m.node("limits", limits.n)
	}
	if len(c.Edge) > 0 {
		edge := listNode(false)
		for _, l := range c.Edge {
			n := scalarNode(l.Name)
			n.LineComment = "# per instance: N instances together admit N times " + l.Rate.String()
			edge.Content = append(edge.Content, n)
		}
		m.node("edge", edge)
	}
	ups := newMapping(false)
	for _, u := range c.Upstreams {
		ups.node(u.Name, u.node())
	}
	m.node("upstreams", ups.n)
	routes := listNode(false)
	for _, r := range c.Routes {
		routes.Content = append(routes.Content, r.node())
	}
	m.node("routes", routes)

	h := newMapping(true)
	h.text("ietf", c.ClientHeaders.IETF)
	h.text("legacy", onOff(c.ClientHeaders.Legacy))
	m.node("client_headers", h.n)
	usage := c.UsagePath
	if usage == "" {
		usage = "off"
	}
	m.text("usage_path", usage)
	return m.n
}

func (r *Redis) node() *yaml.Node {
	m := newMapping(false)
	switch {
	case r.Sentinel != nil:
		s := newMapping(false)
		s.text("master", r.Sentinel.Master)
		s.list("addresses", r.Sentinel.Addresses)
		s.login(r.Sentinel.Username, r.Sentinel.Password, r.Sentinel.PasswordFile)
		m.node("sentinel", s.n)
	case len(r.Addresses) > 0:
		m.list("urls", r.urls())
	default:
		m.text("url", r.urls()[0])
	}
	m.login(r.Username, r.Password, r.PasswordFile)
	// No scheme says that sentinels and their servers speak TLS.
	if t := r.TLS; t != nil && (*t != (TLS{}) || r.Sentinel != nil) {
		m.node("tls", t.node())
	}
	m.duration("timeout", r.Timeout)
	m.text("key_prefix", r.KeyPrefix)
	return m.n
}

func (t *TLS) node() *yaml.Node {
	n := newMapping(true)
	n.text("ca_file", t.CAFile)
	n.text("cert_file", t.CertFile)
	n.text("key_file", t.KeyFile)
	n.text("server_name", t.ServerName)
	return n.n
}

// login writes who logs in, with the password masked.
func (m mapping) login(username string, password Secret, passwordFile string) {
	m.text("username", username)
	switch {
	case passwordFile != "":
		m.text("password_file", passwordFile)
	case password != nil:
		m.text("password", masked)
	}
}

// urls writes the address, or those of a cluster, as URLs without user and
// password.
func (r *Redis) urls() []string {
	switch {
	case r.Network == "unix" && r.DB == 0:
		return []string{"unix://" + r.Address}
	case r.Network == "unix":
		return []string{fmt.Sprintf("unix://%s?db=%d", r.Address, r.DB)}
	}
	u := url.URL{Scheme: "redis", Host: r.Address, Path: "/" + strconv.Itoa(r.DB)}
	if r.TLS != nil {
		u.Scheme = "rediss"
	}
	if len(r.Addresses) == 0 {
		return []string{u.String()}
	}
	var urls []string
	for _, a := range r.Addresses {
		u.Host, u.Path = a, ""
		urls = append(urls, u.String())
	}
	return urls
}

func (a *Auth) node() *yaml.Node {
	m := newMapping(false)
	if len(a.JWT) > 0 {
		list := listNode(false)
		for _, is := range a.JWT {
			n := newMapping(false)
			n.text("issuer", is.Issuer)
			n.list("audience", is.Audience)
			n.list("algorithms", is.Algorithms)
			if len(is.Secrets) > 0 {
				n.list("secret_file", is.KeyFiles)
				n.text("secret_encoding", string(is.SecretEncoding))
			} else {
				is.keysInto(n)
			}
			n.text("cookie", is.Cookie)
			if is.Cookie != "" {
				n.text("cookie_cross_origin", refuseOrAllow(is.CookieCrossOrigin))
			}
			n.duration("leeway", is.Leeway)
			claims := newMapping(true)
			claims.text("user", is.Claims.User)
			claims.text("tenant", is.Claims.Tenant)
			claims.text("plan", is.Claims.Plan)
			claims.text("scopes", is.Claims.Scopes)
			n.node("claims", claims.n)
			list.Content = append(list.Content, n.n)
		}
		m.node("jwt", list)
	}
	if k := a.APIKeys; k != nil {
		n := newMapping(true)
		n.text("file", k.File)
		if k.RedisHash != "" {
			r := newMapping(true)
			r.text("hash", k.RedisHash)
			n.node("redis", r.n)
		}
		n.text("header", k.Header)
		n.text("query", k.Query)
		n.rateOrOff("failure_limit", k.FailureLimit)
		m.node("api_keys", n.n)
	}
	if c := a.ClientCerts; c != nil {
		n := newMapping(true)
		n.text("ca_file", c.CAFile)
		n.text("user", c.User)
		n.text("tenant", c.Tenant)
		n.text("plan", c.Plan)
		m.node("client_certs", n.n)
	}
	m.rateOrOff("failure_limit", a.FailureLimit)
	return m.n
}

// rateOrOff adds a rate, or that there is none.
func (m mapping) rateOrOff(name string, r *Rate) {
	if r != nil {
		m.rate(name, r)
	} else {
		m.text(name, "off")
	}
}

// keysInto writes where the public keys are.
func (is *Issuer) keysInto(n mapping) {
	p := is.Provider
	switch {
	case is.KeySet != nil:
		n.text("jwks_file", is.KeyFiles[0])
	case p != nil:
		n.text("jwks_url", p.URL)
		n.duration("refresh", p.Refresh)
		n.duration("max_stale", p.MaxStale)
		if p.TLS != nil {
			n.node("tls", p.TLS.node())
		}
	default:
		n.list("public_key_file", is.KeyFiles)
	}
}

// mode is whether the limit denies, as the files have it.
func (l *Limit) mode() string {
	if l.Shadow {
		return "shadow"
	}
	return "enforce"
}

// node writes a limit; with its name if it is one of a plan.
func (l *Limit) node(withName bool) *yaml.Node {
	m := newMapping(true)
	if withName {
		m.text("name", l.Name)
	}
	if len(l.Per) == 1 {
		m.text("per", l.Per[0].String())
	} else {
		var per []string
		for _, d := range l.Per {
			per = append(per, d.String())
		}
		m.list("per", per)
	}
	m.text("algorithm", l.Algorithm)
	m.text("limit", l.Rate.String())
	switch l.Algorithm {
	case TokenBucket:
		m.number("burst", l.Burst)
	case LeakyBucket:
		m.number("queue", l.Queue)
		if l.MaxDelay > 0 {
			m.duration("max_delay", l.MaxDelay)
		}
	case FixedWindow:
		if c := l.Calendar; c == nil {
			m.text("anchor", "first_request")
		} else {
			m.text("anchor", "calendar")
			m.text("timezone", c.Location.String())
			if c.Unit == "week" {
				m.text("week_start", weekdays[c.WeekStart])
			}
		}
	}
	m.boolean("count_rejected", l.CountRejected)
	m.text("mode", l.mode())
	if c := l.Candidate; c != nil {
		n := newMapping(true)
		n.rate("limit", &Rate{c.Quota, l.Rate.Window})
		if l.Algorithm == TokenBucket {
			n.number("burst", c.Burst)
		}
		m.node("candidate", n.n)
	}
	if c := l.Lease; c != nil {
		n := newMapping(true)
		if c.Size == 0 {
			n.text("size", "auto")
		} else {
			n.number("size", c.Size)
		}
		n.duration("ttl", c.TTL)
		m.node("lease", n.n)
	}
	m.rate("local_cap", l.LocalCap)
	return m.n
}

func (u *Upstream) node() *yaml.Node {
	m := newMapping(false)
	targets := listNode(true)
	for _, t := range u.Targets {
		n := scalarNode(escape(t.URL.String()))
		if t.Weight != 1 {
			weighted := newMapping(true)
			weighted.node("url", n)
			weighted.number("weight", int64(t.Weight))
			n = weighted.n
		}
		targets.Content = append(targets.Content, n)
	}
	m.node("targets", targets)
	if u.HashBy == nil {
		m.text("balance", u.Balance)
	} else {
		by, hash := newMapping(true), newMapping(true)
		by.text("by", u.HashBy.String())
		hash.node("hash", by.n)
		m.node("balance", hash.n)
	}
	t := newMapping(true)
	t.duration("connect", u.ConnectTimeout)
	t.duration("response_header", u.ResponseHeaderTimeout)
	t.duration("idle", u.IdleTimeout)
	m.node("timeout", t.n)
	if u.TLS != nil {
		m.node("tls", u.TLS.node())
	}
	if u.MaxInFlight > 0 {
		m.number("max_in_flight", int64(u.MaxInFlight))
	}
	if c := u.Circuit; c != nil {
		n := newMapping(true)
		n.text("errors", c.Errors.String())
		n.duration("window", c.Window)
		n.duration("open", c.Open)
		m.node("circuit", n.n)
	}
	if r := u.Retries; r != nil {
		n := newMapping(true)
		n.number("attempts", int64(r.Attempts))
		n.text("budget", r.Budget.String())
		m.node("retries", n.n)
	}
	if h := u.Health; h != nil {
		n := newMapping(true)
		n.text("path", h.Path)
		n.duration("interval", h.Interval)
		n.duration("timeout", h.Timeout)
		n.number("healthy", int64(h.Healthy))
		n.number("unhealthy", int64(h.Unhealthy))
		m.node("health", n.n)
	}
	m.duration("slow_start", u.SlowStart)
	return m.n
}

func (r *Route) node() *yaml.Node {
	m := newMapping(false)
	m.text("name", r.Name)
	m.text("host", r.Host)
	m.text("path", r.Path)
	m.list("methods", r.Methods)
	if len(r.Headers) > 0 {
		n := newMapping(true)
		for _, f := range r.Headers {
			n.text(f.Name, shownValue(f))
		}
		m.node("headers", n.n)
	}
	m.text("upstream", r.Upstream)
	m.text("auth", string(r.Auth))
	m.access(&r.Access)
	m.number("cost", r.Cost)
	var limits []string
	for _, l := range r.Limits {
		limits = append(limits, l.Name)
	}
	m.list("limits", limits)
	m.text("on_store_failure", string(r.OnStoreFailure))
	m.boolean("forward_credentials", r.ForwardCredentials)
	m.reshaping(r)
	return m.n
}

func (c *Config) plansNode() *yaml.Node {
	m := newMapping(false)
	m.text("default_plan", c.DefaultPlan)
	m.text("anonymous_plan", c.AnonymousPlan)
	plans := newMapping(len(c.Plans) == 0)
	for _, p := range c.Plans {
		n := newMapping(false)
		n.rate("local_cap", p.LocalCap)
		limits := listNode(len(p.Limits) == 0)
		for _, l := range p.Limits {
			limits.Content = append(limits.Content, l.node(true))
		}
		n.node("limits", limits)
		plans.node(p.Name, n.n)
	}
	m.node("plans", plans.n)
	if len(c.Overrides) > 0 {
		list := listNode(false)
		for _, o := range c.Overrides {
			n := newMapping(true)
			n.text("key", o.Key)
			n.text("user", o.User)
			n.text("tenant", o.Tenant)
			n.text("plan", o.Plan)
			list.Content = append(list.Content, n.n)
		}
		m.node("overrides", list)
	}
	return m.n
}

func keysNode(keys []Key) *yaml.Node {
	m := newMapping(false)
	list := listNode(len(keys) == 0)
	for _, k := range keys {
		list.Content = append(list.Content, k.node(false))
	}
	m.node("keys", list)
	return m.n
}

// node writes a key as the key file has it; without its digest for showing.
func (k Key) node(digest bool) *yaml.Node {
	m := newMapping(true)
	// Written as data: a key file is not expanded, so nothing is escaped.
	text := func(name, s string) {
		if s != "" {
			m.node(name, scalarNode(s))
		}
	}
	text("id", k.ID)
	if digest {
		text("sha256", fmt.Sprintf("%x", k.SHA256))
	}
	text("user", k.User)
	text("tenant", k.Tenant)
	text("plan", k.Plan)
	if !k.Expires.IsZero() {
		m.node("expires", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!timestamp", Value: FormatExpiry(k.Expires)})
	}
	words := func(name string, items []string) {
		if len(items) == 0 {
			return
		}
		l := listNode(true)
		for _, s := range items {
			l.Content = append(l.Content, scalarNode(s))
		}
		m.node(name, l)
	}
	words("routes", k.Routes)
	words("allow_ips", k.allowed())
	words("scopes", k.Scopes)
	return m.n
}

// FormatExpiry writes when a key ends as the key file has it: a date if it
// ends with a day in UTC, else an RFC 3339 time. It is the inverse of
// [ParseExpiry].
func FormatExpiry(t time.Time) string {
	t = t.UTC()
	if t.Equal(t.Truncate(day)) {
		return t.AddDate(0, 0, -1).Format(time.DateOnly)
	}
	return t.Format(time.RFC3339Nano)
}
