package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v4"
)

// Access is what a route wants of its callers besides credentials: from where
// they come, on which plan they are, and what their credential grants. The zero
// value wants nothing.
type Access struct {
	// Scopes are words that the credential has to grant, all of them.
	Scopes []string
	// Claims are claims that the token has to have, each of them.
	Claims []ClaimRule
	// Plans are names of the plans whose callers may come; empty: those of any.
	Plans []string
	// AllowIPs are the networks whose clients may come (empty: all), DenyIPs those
	// whose clients may not, which wins; masked.
	AllowIPs, DenyIPs []netip.Prefix
}

// ClaimRule says what a claim of a token has to be: one of the values, or a list
// that has one of them.
type ClaimRule struct {
	Name   string // the exact name first, then each dot goes one object down
	Values []ClaimValue
}

// ClaimValue is a value of a claim: a string, a bool or an int64. The string "1" is
// another than the number 1.
type ClaimValue struct{ V any }

// String is the value as the files have it.
func (c ClaimValue) String() string {
	b, err := yaml.Dump(c.node(), yaml.WithLineWidth(-1))
	if err != nil {
		return fmt.Sprint(c.V)
	}
	return strings.TrimSpace(string(b))
}

func (c ClaimValue) node() *yaml.Node {
	switch v := c.V.(type) {
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v)}
	case int64:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(v, 10)}
	}
	return scalarNode(escape(fmt.Sprint(c.V)))
}

// Bounds on what one route may want.
const (
	maxScopes      = 64
	maxClaims      = 16
	maxClaimValues = 100
	maxClaimNumber = 1<<53 - 1 // beyond it a number of JSON may be another one
	maxNetworks    = 1000
)

// accessDecl is where the parts of an Access stand, if they are given.
type accessDecl struct {
	scopesAt, claimsAt, plansAt, allowAt, denyAt value
	plans                                        []ref
	plansOK                                      bool // all of their names could be read
}

// readAccess reads what the route wants of its callers.
func (r *routeDecl) readAccess(o *object) {
	const wantedNet = "addresses and networks such as 203.0.113.7 or 10.0.0.0/8"
	if v, ok := o.get("scopes", "a list of scopes"); ok {
		r.access.scopesAt = v
		r.Scopes = v.scopes()
	}
	if v, ok := o.get("claims", "names of claims and their values"); ok {
		r.access.claimsAt = v
		r.Claims = v.claimRules()
	}
	if v, ok := o.get("plans", "names of plans"); ok {
		r.access.plansAt = v
		var vs []value
		vs, r.Plans, r.access.plansOK = v.words("names of plans", false)
		for i := range vs {
			r.access.plans = append(r.access.plans, ref{r.Plans[i], vs[i]})
		}
		if r.access.plansOK && len(vs) == 0 {
			v.errorf("names no plan, so that nobody may come; want at least one, or leave it out for all")
		}
	}
	if v, ok := o.get("allow_ips", wantedNet); ok {
		r.access.allowAt = v
		if r.AllowIPs, ok = v.networks(wantedNet); ok && len(r.AllowIPs) == 0 {
			v.errorf("names no address, so that nobody may come; want at least one, or leave it out for all")
		}
	}
	if v, ok := o.get("deny_ips", wantedNet); ok {
		r.access.denyAt = v
		r.DenyIPs, _ = v.networks(wantedNet)
	}
}

// scopes reads words as tokens carry them (scope-token of RFC 6749 section 3.3).
func (v value) scopes() []string {
	vs, words, ok := v.words("scopes", false)
	switch {
	case ok && len(vs) == 0:
		v.errorf("names no scope; leave it out to want none")
	case len(vs) > maxScopes:
		v.errorf("%d scopes; want at most %d", len(vs), maxScopes)
		return nil
	}
	for i, s := range words {
		if !IsScope(s) {
			vs[i].errorf("%s is no scope; want one word of at most %d visible ASCII characters, without quotes and backslashes", quote(s), maxName)
		}
	}
	return words
}

// claimRules reads what claims have to be.
func (v value) claimRules() (rules []ClaimRule) {
	const wanted = "a string, a whole number, true or false, or a list of them"
	o, ok := v.object("names of claims and their values")
	if !ok {
		return nil
	}
	for _, name := range o.names {
		at := o.fields[name]
		switch {
		case name == "" || len(name) > maxIdentity || strings.ContainsFunc(name, isControl):
			at.keyErrorf("is no name of a claim; want at most %d bytes without control characters", maxIdentity)
			continue
		case isNull(at.n):
			at.keyErrorf("has no value; want %s", wanted)
			continue
		}
		items := []value{at}
		if at.n.Kind == yaml.SequenceNode {
			if items, ok = at.list("a list of values"); !ok {
				continue
			}
			if len(items) == 0 {
				at.errorf("names no value, so that no token would do; want at least one")
			}
		}
		if len(items) > maxClaimValues {
			at.errorf("%d values; want at most %d", len(items), maxClaimValues)
			continue
		}
		rule := ClaimRule{Name: name}
		for _, item := range items {
			c, ok := item.claimValue(wanted)
			switch {
			case !ok:
			case slices.Contains(rule.Values, c):
				item.errorf("given twice; remove one")
			default:
				rule.Values = append(rule.Values, c)
			}
		}
		rules = append(rules, rule)
	}
	switch {
	case len(o.names) == 0:
		v.errorf("names no claim; leave it out to want none")
	case len(rules) > maxClaims:
		v.errorf("%d claims; want at most %d", len(rules), maxClaims)
	}
	return rules
}

// claimValue reads a value by the type that YAML says it has.
func (v value) claimValue(wanted string) (c ClaimValue, ok bool) {
	if v.n.Kind != yaml.ScalarNode {
		v.errorf("want %s, got %s", wanted, v.kind())
		return c, false
	}
	switch v.n.Tag {
	case "!!bool":
		c.V, ok = v.boolean()
	case "!!int":
		c.V, ok = v.integer(-maxClaimNumber, maxClaimNumber)
	case "!!str", "!!timestamp":
		var s string
		if s, ok = v.word("a value"); ok && len(s) > maxIdentity {
			v.errorf("%d bytes long; want at most %d", len(s), maxIdentity)
			ok = false
		}
		c.V = s
	default:
		v.errorf("want %s, got %s", wanted, v.kind())
	}
	return c, ok
}

// networks reads addresses and networks.
func (v value) networks(wanted string) (ps []netip.Prefix, ok bool) {
	vs, texts, ok := v.words(wanted, false)
	if len(vs) > maxNetworks {
		v.errorf("%d networks; want at most %d", len(vs), maxNetworks)
		return nil, false
	}
	for i, s := range texts {
		p, good := parseNetwork(s)
		switch {
		case !good:
			vs[i].errorf("%s is not an address and not a network; want one such as 203.0.113.7, 10.0.0.0/8 or 2001:db8::/32", quote(s))
			ok = false
		case slices.Contains(ps, p):
			vs[i].errorf("%s is there already, as %s; remove one", quote(s), p)
			ok = false
		default:
			ps = append(ps, p)
		}
	}
	return ps, ok
}

// lookForScopes has the scopes of tokens looked at where a route wants some, by the
// claim's usual name (RFC 8693 section 4.2) where none is given. Else a claim that
// is none, which nobody asks for, would make good tokens bad.
func (a *authSection) lookForScopes(routes []*routeDecl) {
	if !slices.ContainsFunc(routes, func(r *routeDecl) bool { return len(r.Scopes) > 0 }) {
		return
	}
	for _, is := range a.JWT {
		if is.Claims.Scopes == "" {
			is.Claims.Scopes = "scope"
		}
	}
}

// admits reports whether the route takes callers of a plan.
func (a *Access) admits(plan string) bool {
	return len(a.Plans) == 0 || slices.Contains(a.Plans, plan)
}

// access writes what a route wants of its callers.
func (m mapping) access(a *Access) {
	m.list("scopes", a.Scopes)
	if len(a.Claims) > 0 {
		claims := newMapping(true)
		for _, rule := range a.Claims {
			if len(rule.Values) == 1 {
				claims.node(rule.Name, rule.Values[0].node())
				continue
			}
			l := listNode(true)
			for _, v := range rule.Values {
				l.Content = append(l.Content, v.node())
			}
			claims.node(rule.Name, l)
		}
		m.node("claims", claims.n)
	}
	m.list("plans", a.Plans)
	m.list("allow_ips", networkTexts(a.AllowIPs))
	m.list("deny_ips", networkTexts(a.DenyIPs))
}

func networkTexts(ps []netip.Prefix) (texts []string) {
	for _, p := range ps {
		texts = append(texts, p.String())
	}
	return texts
}

// describeAccess says what changed in what a route wants of its callers.
func describeAccess(d *differ, what string, a, b *Access) {
	d.change(what+" scopes", strings.Join(a.Scopes, ", "), strings.Join(b.Scopes, ", "))
	d.change(what+" claims", claimTexts(a.Claims), claimTexts(b.Claims))
	d.change(what+" plans", strings.Join(a.Plans, ", "), strings.Join(b.Plans, ", "))
	d.change(what+" allow_ips", strings.Join(networkTexts(a.AllowIPs), ", "), strings.Join(networkTexts(b.AllowIPs), ", "))
	d.change(what+" deny_ips", strings.Join(networkTexts(a.DenyIPs), ", "), strings.Join(networkTexts(b.DenyIPs), ", "))
}

func claimTexts(rules []ClaimRule) string {
	var texts []string
	for _, r := range rules {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, ", ")
}

// String is the rule in words: role: admin or owner.
func (r ClaimRule) String() string {
	var values []string
	for _, v := range r.Values {
		values = append(values, v.String())
	}
	return r.Name + ": " + oneOf(values)
}

// checkAccess finds routes that nobody can come to for what they want, and warns
// of wishes that mean nothing. p may be nil.
func checkAccess(f *routesFile, p *plansFile) {
	tokens := f.auth.unsure || len(f.auth.JWT) > 0
	for _, r := range f.routes {
		for _, want := range []struct {
			at    value
			given bool // some credential can have it
			how   string
		}{
			{r.access.scopesAt, tokens || f.auth.keysGrant(), "no credential grants any scope, since auth.jwt is not there and no key has scopes, so that nobody may come; want one of these, or remove it"},
			{r.access.claimsAt, tokens, "only tokens have claims, and auth.jwt is not there, so that nobody may come; want auth.jwt, or remove it"},
		} {
			switch {
			case !want.at.given():
			case r.Auth == AuthNone:
				want.at.keyErrorf("no credential is looked at, since the route has auth: none, so that nobody has any; want auth: required or optional")
			case r.Auth != "" && f.auth.given && !want.given:
				want.at.keyWarnf(want.how)
			}
		}
		r.warnNetworks(f)
		if p != nil {
			r.warnPlans(f, p)
		}
	}
}

// keysGrant reports whether some key may grant a scope.
func (a *authSection) keysGrant() bool {
	return !a.keysSure() || slices.ContainsFunc(a.keys, func(k keyDecl) bool { return len(k.Scopes) > 0 })
}

// warnNetworks warns of addresses that are allowed and denied, and of lists that
// look at an address that nobody has.
func (r *routeDecl) warnNetworks(f *routesFile) {
	if len(r.AllowIPs) > 0 && len(r.DenyIPs) > 0 {
		open := slices.ContainsFunc(r.AllowIPs, func(a netip.Prefix) bool {
			return !slices.ContainsFunc(r.DenyIPs, func(d netip.Prefix) bool { return d.Bits() <= a.Bits() && d.Contains(a.Addr()) })
		})
		if !open {
			r.access.denyAt.keyWarnf("denies all that allow_ips allows, so that nobody may come; want fewer networks here, or more there")
		}
	}
	if len(f.sockets) == 0 || f.clientIP.TrustUnix {
		return
	}
	const nobody = "nobody has an address on a unix socket, and client_ip.trusted_proxies has no unix, so that "
	const want = "; want unix there if the peer is a proxy of yours that says who its client is"
	if r.access.allowAt.given() {
		r.access.allowAt.keyWarnf(nobody + "nobody who comes over it may use the route" + want)
	}
	if r.access.denyAt.given() {
		r.access.denyAt.keyWarnf(nobody + "whoever comes over it may use the route" + want)
	}
}

// warnPlans warns of a list that no caller's plan is on. It is no mistake: whoever
// revokes the last key of a plan must not make the file unusable.
func (r *routeDecl) warnPlans(f *routesFile, p *plansFile) {
	if !r.access.plansOK || len(r.Plans) == 0 || r.Auth == "" || f.auth.unsure {
		return
	}
	for _, name := range append([]string{p.def.name, p.anon.name}, r.Plans...) {
		if name != "" && p.byName[name] == nil {
			return // the plan that was meant looks out of reach
		}
	}
	if len(reachable(f, p).plans(r)) == 0 {
		r.access.plansAt.keyWarnf("no caller of the route can have one of these plans, so that nobody may come; want a plan that a key, a token, an override or a default gives")
	}
}
