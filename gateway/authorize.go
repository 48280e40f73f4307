package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"bouncer/gateway/auth"
	"bouncer/gateway/config"
	"bouncer/gateway/httperr"
	"bouncer/gateway/telemetry"
)

// An access is what a route wants of its callers besides credentials, compiled.
// The zero value wants nothing.
type access struct {
	allow, deny []netip.Prefix // masked, in order, none within another
	scopes      []string
	claims      []claimRule
	plans       []*plan // empty: any
	// challenge is the WWW-Authenticate of a missing scope (RFC 6750 section 3.1);
	// nil where tokens are not configured.
	challenge []string
}

// A claimRule is a claim that a token has to have with one of some values.
type claimRule struct {
	text string // for explanations
	any  []auth.Claim
}

// The reasons for a 403, as the access log and the metrics have them.
const (
	forbiddenIP   = "forbidden_ip"
	missingScope  = "missing_scope"
	missingClaim  = "missing_claim"
	forbiddenPlan = "forbidden_plan"
	notForRoute   = "not_for_route"
	crossOrigin   = "cross_origin"
)

// makeAccess compiles what a route wants; ps are the plans.
func makeAccess(c *config.Route, ps *plans, tokens bool) access {
	a := access{allow: disjoint(c.AllowIPs), deny: disjoint(c.DenyIPs), scopes: c.Scopes}
	for _, r := range c.Claims {
		rule := claimRule{text: r.String()}
		for _, v := range r.Values {
			rule.any = append(rule.any, auth.Claim{Name: r.Name, Value: v.V})
		}
		a.claims = append(a.claims, rule)
	}
	for _, name := range c.Plans {
		a.plans = append(a.plans, ps.byName[name])
	}
	if tokens && len(a.scopes) > 0 {
		a.challenge = []string{`Bearer realm="` + realm + `", error="insufficient_scope", scope="` + strings.Join(a.scopes, " ") + `"`}
	}
	return a
}

// asksOf adds to o what some route wants of tokens.
func asksOf(cfg *config.Config, o *auth.Options) {
	for _, rt := range cfg.Routes {
		o.Scopes = append(o.Scopes, rt.Scopes...)
		for _, rule := range makeAccess(rt, &plans{}, false).claims {
			o.TokenClaims = append(o.TokenClaims, rule.any...)
		}
	}
}

// forbidden lists why routes may refuse with 403, for the metrics.
func forbidden(cfg *config.Config) (all []telemetry.Forbidden) {
	bound := cookiesBound(cfg)
	keysForRoutes := cfg.Auth.APIKeys != nil && (cfg.Auth.APIKeys.RedisHash != "" || slices.ContainsFunc(cfg.Auth.APIKeys.Keys, func(k config.Key) bool { return len(k.Routes) > 0 }))
	for _, rt := range cfg.Routes {
		add := func(can bool, reason string) {
			if can {
				all = append(all, telemetry.Forbidden{Route: rt.Name, Reason: reason})
			}
		}
		add(len(rt.AllowIPs)+len(rt.DenyIPs) > 0, forbiddenIP)
		add(len(rt.Scopes) > 0, missingScope)
		add(len(rt.Claims) > 0, missingClaim)
		add(len(rt.Plans) > 0, forbiddenPlan)
		add(bound && rt.Auth != config.AuthNone, crossOrigin)
		add(keysForRoutes && rt.Auth != config.AuthNone, notForRoute)
	}
	return all
}

// disjoint returns the prefixes in order and without those that lie in another.
func disjoint(ps []netip.Prefix) []netip.Prefix {
	ps = slices.Clone(ps)
	slices.SortFunc(ps, netip.Prefix.Compare) // what holds another comes before it
	var apart []netip.Prefix
	for _, p := range ps {
		if n := len(apart); n == 0 || !apart[n-1].Contains(p.Addr()) {
			apart = append(apart, p)
		}
	}
	return apart
}

// within reports whether ip is in one of the prefixes, which disjoint returned: then
// it is in the last that does not begin behind it. No address is in none.
func within(ps []netip.Prefix, ip netip.Addr) bool {
	n, _ := slices.BinarySearchFunc(ps, ip, func(p netip.Prefix, ip netip.Addr) int {
		if p.Addr().Compare(ip) <= 0 {
			return -1
		}
		return 1
	})
	return n > 0 && ps[n-1].Contains(ip)
}

// admits reports whether the address may use the route. Deny wins.
func (a *access) admits(ip netip.Addr) bool {
	if len(a.deny) > 0 && within(a.deny, ip) {
		return false
	}
	return len(a.allow) == 0 || within(a.allow, ip)
}

// checkAddress refuses clients whose address the route is not for.
func (s *snapshot) checkAddress(x *exchange) *httperr.Error {
	if x.route.access.admits(x.ClientIP) {
		return nil
	}
	return s.forbid(x, forbiddenIP, "This path cannot be used from this address.")
}

// authorize asks whether the caller, who is known by now as far as ever, has what
// the route wants. It costs nobody anything: the credential was good. Somebody
// without credentials is told to show some, where that may help.
func (s *snapshot) authorize(x *exchange, r *http.Request) *httperr.Error {
	x.authorized = true
	if x.unasked && x.fromElsewhere(r) {
		return s.forbid(x, crossOrigin, "A cookie does not count for requests that pages of other sites make. Send the token in Authorization: Bearer.")
	}
	a := &x.route.access
	reason := a.lacks(x)
	if reason == "" {
		return nil
	}
	if x.AuthMethod == "" && x.route.auth == config.AuthOptional {
		s.gw.telemetry.Auth("", telemetry.AuthMissing)
		return s.unauthorized()
	}
	switch reason {
	case missingScope:
		e := s.forbid(x, reason, fmt.Sprintf("This path needs credentials with the scope %q.", strings.Join(a.scopes, " ")))
		if a.challenge != nil {
			e.Header = http.Header{"Www-Authenticate": a.challenge}
		}
		return e
	case notForRoute:
		return s.forbid(x, reason, "The credentials are good, but not for this path.")
	case missingClaim:
		return s.forbid(x, reason, "These credentials do not have what this path needs.")
	case forbiddenPlan:
		if x.plan == nil {
			return s.forbid(x, reason, "This path is for callers with certain plans, and this one has none.")
		}
		return s.forbid(x, reason, fmt.Sprintf("This path is not part of the plan %q.", x.plan.name))
	}
	return s.forbid(x, reason, "This path cannot be used with these credentials.")
}

// lacks returns the first of what the route wants that the caller does not have, as
// the reason of a 403; empty if there is none. What a caller has left is told on
// usage_path to every key.
func (a *access) lacks(x *exchange) string {
	if len(x.onlyFor) > 0 && !x.route.usage && !slices.Contains(x.onlyFor, x.route.name) {
		return notForRoute
	}
	for _, s := range a.scopes {
		if !x.hasScope(s) {
			return missingScope
		}
	}
	for i := range a.claims {
		if !x.hasClaim(&a.claims[i]) {
			return missingClaim
		}
	}
	if len(a.plans) > 0 && !slices.Contains(a.plans, x.plan) {
		return forbiddenPlan
	}
	return ""
}

// A Want is one thing that a route wants of who asks, besides credentials, in words.
type Want struct {
	What string // scope reports.read
	// Has says that it is there; Known, that it was looked at: what only credentials
	// tell is not known of a request that did not come so far.
	Has, Known bool
}

// wants lists what a route wants, for explanations. The verdict is that of
// checkAddress and authorize.
func (a *access) wants(x *exchange) (list []Want) {
	known := x.authorized
	if len(a.allow) > 0 {
		list = append(list, Want{"an address in " + joined(a.allow), within(a.allow, x.ClientIP), true})
	}
	if len(a.deny) > 0 {
		list = append(list, Want{"no address in " + joined(a.deny), !within(a.deny, x.ClientIP), true})
	}
	if len(x.onlyFor) > 0 {
		list = append(list, Want{"a key that is for this route (it is for " + strings.Join(x.onlyFor, ", ") + ")", slices.Contains(x.onlyFor, x.route.name), known})
	}
	for _, s := range a.scopes {
		list = append(list, Want{"scope " + s, known && x.hasScope(s), known})
	}
	for i := range a.claims {
		list = append(list, Want{"claim " + a.claims[i].text, known && x.hasClaim(&a.claims[i]), known})
	}
	if len(a.plans) > 0 {
		names := make([]string, 0, len(a.plans))
		for _, p := range a.plans {
			names = append(names, p.name)
		}
		list = append(list, Want{"plan " + strings.Join(names, " or "), known && slices.Contains(a.plans, x.plan), known})
	}
	return list
}

func joined(ps []netip.Prefix) string {
	names := make([]string, 0, len(ps))
	for _, p := range ps {
		names = append(names, p.String())
	}
	return strings.Join(names, ", ")
}

func (x *exchange) hasScope(scope string) bool {
	return x.trusted() || slices.Contains(x.scopes, scope)
}

func (x *exchange) hasClaim(rule *claimRule) bool {
	if x.trusted() {
		return true
	}
	for _, c := range rule.any {
		if slices.Contains(x.claims, c) {
			return true
		}
	}
	return false
}

// trusted reports whether a rehearsal says who asks, so that there is no token to
// read: what it would grant is taken as granted. What a key grants is mostly known.
func (x *exchange) trusted() bool {
	return x.assumed != nil && x.AuthMethod != "" && (x.KeyID == "" || x.assumed.Unsaid)
}

// forbid counts a refusal and makes its answer.
func (s *snapshot) forbid(x *exchange, reason, detail string) *httperr.Error {
	s.gw.telemetry.Forbidden(x.Request.Route, reason)
	return &httperr.Error{Status: http.StatusForbidden, Reason: reason, Detail: detail}
}
