package config

import (
	"fmt"
	"slices"
)

// checkEffects warns of what is legal and has no effect, or another than it
// seems to have.
func checkEffects(f *routesFile, p *plansFile) {
	if f == nil {
		return
	}
	f.warnUses()
	for _, l := range f.order {
		f.auth.warnStandIn(l)
		asked := f.askedBy(l.Name)
		l.warnCap(asked)
		l.warnCandidate(asked)
		l.warnLease(f, asked)
	}
	if p == nil {
		return
	}
	f.auth.warnOverrides(p)
	who := reachable(f, p)
	for _, d := range p.plans {
		asked := who.routes(f, d)
		d.warnCap(asked)
		for _, l := range d.limits {
			f.auth.warnStandIn(l)
			l.warnCandidate(asked)
			l.warnLease(f, asked)
		}
	}
	warnRejected(f, who)
}

// warnUses warns of named limits that are never asked, and of what they have
// that is never used.
func (f *routesFile) warnUses() {
	routes, edge := map[string]bool{}, map[string]bool{}
	known := f.usesKnown
	for _, r := range f.edge {
		edge[r.name] = true
		known = known && f.limits[r.name] != nil
	}
	for _, route := range f.routes {
		for _, r := range route.limits {
			routes[r.name] = true
			known = known && f.limits[r.name] != nil
		}
		if route.costOK && route.Cost == 0 && len(route.limits) > 0 {
			route.limitsAt.keyWarnf("has no effect: the route costs 0, so that no limit is asked; want a cost of 1 or more, or no limits")
		}
	}
	if !known {
		return // the limit that was meant looks unused
	}
	for _, l := range f.order {
		if edge[l.Name] && !routes[l.Name] && l.leaseAt.given() {
			l.leaseAt.keyWarnf("has no effect: the limit is used at the edge only, where it is counted in this process' memory; remove it")
		}
		switch {
		case !isName(l.Name): // nothing could name it
		case !edge[l.Name] && !routes[l.Name]:
			l.at.keyWarnf("nothing uses this limit: no route names it, and it is not under edge; remove it, or name it")
		case !routes[l.Name] && l.capAt.given():
			l.capAt.keyWarnf("has no effect: the limit is used at the edge only, where it is counted in this process' memory, which is never away; remove it")
		}
	}
}

// warnStandIn warns of a limit per something that no caller can have.
func (a *authSection) warnStandIn(l *limitDecl) {
	if a.unsure || a.hasKeys || !l.perAt.given() {
		return
	}
	for _, d := range l.Per {
		switch {
		case d.Kind == PerAPIKey:
			l.perAt.warnf("no caller has an API key, since auth.api_keys is not there, so that the address always stands in; want auth.api_keys, or per: ip")
		case d.Kind == PerTenant && !a.claimsTenant:
			l.perAt.warnf("no caller has a tenant, since auth.api_keys is not there and no issuer has claims.tenant, so that the address always stands in; " +
				"want one of these, or per: ip")
		}
	}
}

// warnOverrides warns of overrides for what no caller can have. Keys that are
// not in the key file are found where the references are checked.
func (a *authSection) warnOverrides(p *plansFile) {
	if a.unsure || a.hasKeys {
		return
	}
	for _, o := range p.overrides {
		switch {
		case o.Key != "":
			o.subjectAt.warnf("no caller has the key %s, since auth.api_keys is not there; want auth.api_keys, or remove the override", quote(o.Key))
		case o.Tenant != "" && !a.claimsTenant:
			o.subjectAt.warnf("no caller has the tenant %s, since auth.api_keys is not there and no issuer has claims.tenant; "+
				"want one of these, or remove the override", quote(o.Tenant))
		}
	}
}

// askedBy returns the routes whose requests ask a named limit.
func (f *routesFile) askedBy(name string) []*routeDecl {
	var asked []*routeDecl
	for _, route := range f.routes {
		if route.charges() && slices.ContainsFunc(route.limits, func(r ref) bool { return r.name == name }) {
			asked = append(asked, route)
		}
	}
	return asked
}

// routes returns the routes whose requests can be those of a plan's callers.
func (r reach) routes(f *routesFile, d *planDecl) []*routeDecl {
	var asked []*routeDecl
	for _, route := range f.routes {
		if route.charges() && slices.Contains(r.plans(route), d) {
			asked = append(asked, route)
		}
	}
	return asked
}

// charges reports whether requests of the route ask any limit.
func (r *routeDecl) charges() bool { return r.costOK && r.Cost > 0 }

// tooDear returns in words which of the routes cost more than most and pass ok,
// the dearest by name, and what that one costs; 0 if there is none.
func tooDear(routes []*routeDecl, most int64, ok func(*routeDecl) bool) (words string, cost int64) {
	var dearest *routeDecl
	n := 0
	for _, r := range routes {
		if r.Cost <= most || !ok(r) {
			continue
		}
		n++
		if dearest == nil || r.Cost > dearest.Cost {
			dearest = r
		}
	}
	if dearest == nil {
		return "", 0
	}
	words = fmt.Sprintf("route %s at %s costs %d", quote(dearest.Name), dearest.Pos, dearest.Cost)
	if n > 1 {
		words += fmt.Sprintf(" (the dearest of %d)", n)
	}
	return words, dearest.Cost
}

// warnCap warns of a plan's local cap that denies what the plan admits, or
// admits what it denies.
func (d *planDecl) warnCap(asked []*routeDecl) {
	if d.LocalCap == nil || d.LocalCap.Quota == 0 {
		return
	}
	enforced := false
	for _, l := range d.limits {
		enforced = enforced || l.deniesSome()
		if l.deniesAll() {
			d.capAt.warnMoreThanNothing(l)
			return
		}
	}
	if !enforced {
		return // the cap is never asked
	}
	d.capAt.warnTooSmall(d.LocalCap, asked, d.limits)
}

// warnCap warns of a named limit's local cap that denies what the limit
// admits, or admits what it denies.
func (l *limitDecl) warnCap(asked []*routeDecl) {
	switch {
	case l.LocalCap == nil || l.LocalCap.Quota == 0:
	case l.deniesAll():
		l.capAt.warnMoreThanNothing(l)
	case l.deniesSome():
		l.capAt.warnTooSmall(l.LocalCap, asked, []*limitDecl{l})
	}
}

// warnMoreThanNothing warns of a local cap, at v, in place of a limit of 0.
func (v value) warnMoreThanNothing(l *limitDecl) {
	v.warnf("stands in for limit %s at %s, which denies everything (%s), so that requests are admitted while the store is away and only then; "+
		"want 0/second, or no local_cap", quote(l.Name), l.Pos, l.Rate)
}

// warnTooSmall warns of a local cap, at v, that never admits what the limits
// for which it stands in do.
func (v value) warnTooSmall(c *Rate, asked []*routeDecl, limits []*limitDecl) {
	words, cost := tooDear(asked, c.Quota, func(r *routeDecl) bool {
		return r.OnStoreFailure == FailLocalCap && cannotPay(limits, r.Cost) == nil
	})
	if cost > 0 {
		v.warnf("admits at most %d at once, and %s, so that it is always denied while the store is away; "+
			"want %d or more, over a longer time if need be, or on_store_failure: deny on the route", c.Quota, words, cost)
	}
}

// warnCandidate warns of a candidate that no request of a route can pass,
// though its limit admits them.
func (l *limitDecl) warnCandidate(asked []*routeDecl) {
	if l.Candidate == nil || !l.ok || l.Candidate.Quota == 0 {
		return
	}
	other := l.Limit
	other.Rate.Quota, other.Burst = l.Candidate.Quota, l.Candidate.Burst
	words, cost := tooDear(asked, other.capacity(), func(r *routeDecl) bool { return r.Cost <= l.capacity() })
	if cost > 0 {
		l.candidateAt.warnf("admits at most %d at once, and %s, which the limit itself can pay, so that every request there counts as denied; "+
			"want %d or more", other.capacity(), words, cost)
	}
}

// warnRejected warns where attempts are charged that could never have been
// admitted: with them callers use up what they have for other routes. Routes
// that nobody can pay are errors.
func warnRejected(f *routesFile, who reach) {
	warned := map[*limitDecl]bool{}
	for _, route := range f.routes {
		if !route.charges() {
			continue
		}
		plans := who.plans(route)
		poor := slices.DeleteFunc(slices.Clone(plans), func(d *planDecl) bool { return cannotPay(d.limits, route.Cost) == nil })
		if len(poor) == len(plans) {
			continue
		}
		for _, d := range poor {
			ls := slices.Clone(d.limits)
			for _, r := range route.limits {
				if l := f.limits[r.name]; l != nil {
					ls = append(ls, l)
				}
			}
			for _, l := range ls {
				if l.CountRejected && l.deniesSome() && !warned[l] {
					warned[l] = true
					l.rejectedAt.warnf("route %s at %s costs %d, which plan %s can never pay: each attempt is denied and charged here all the same, "+
						"until nothing is left for other routes; want a lower cost, a larger limit, or count_rejected: false",
						quote(route.Name), route.Pos, route.Cost, d.Name)
				}
			}
		}
	}
}
