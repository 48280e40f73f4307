package config

import (
	"fmt"
	"slices"
	"strings"
)

// The checks below see both files. They look at what was read, also where
// other fields are wrong, and say nothing that only follows from a mistake
// already reported.

// checkReferences finds names that stand for nothing.
func checkReferences(f *routesFile, p *plansFile) {
	plan := func(r ref) {
		if p == nil || !r.at.given() {
			return
		}
		if _, ok := p.byName[r.name]; !ok {
			r.at.errorf("no plan %s in %s%s", quote(r.name), p.root.d.name, suggestKey(r.name, p.byName))
		}
	}
	if p != nil {
		plan(p.def)
		plan(p.anon)
		for _, o := range p.overrides {
			plan(o.plan)
		}
	}
	if f == nil {
		return
	}
	ids := map[string]bool{}
	for _, k := range f.auth.keys {
		ids[k.ID] = true
		if k.Plan != "" {
			plan(ref{k.Plan, k.planAt})
		}
	}
	if p != nil && f.auth.keysKnown && f.auth.keysSure() {
		for _, o := range p.overrides {
			// Only a warning: revoking a key must not make the file unusable.
			if o.Key != "" && !ids[o.Key] {
				o.subjectAt.warnf("no key %s in %s%s", quote(o.Key), f.auth.keysName, suggestKey(o.Key, ids))
			}
		}
	}
	limit := func(r ref) {
		if _, ok := f.limits[r.name]; !ok {
			r.at.errorf("no limit %s under limits%s", quote(r.name), suggestKey(r.name, f.limits))
		}
	}
	for _, r := range f.edge {
		limit(r)
	}
	for _, r := range f.routes {
		for _, l := range r.limits {
			limit(l)
		}
		for _, name := range r.access.plans {
			plan(name)
		}
		if _, ok := f.upstreams[r.upstream.name]; !ok && r.upstream.at.given() {
			r.upstream.at.errorf("no upstream %s under upstreams%s", quote(r.upstream.name), suggestKey(r.upstream.name, f.upstreams))
		}
	}
}

// checkRoutes finds routes that exclude each other or want what there is not.
func checkRoutes(f *routesFile) {
	names := map[string]value{}
	places := map[string][]*routeDecl{}
	for _, r := range f.routes {
		if r.Name != "" {
			if first, twice := names[r.Name]; twice {
				r.nameAt.errorf("two routes are named %s; the first one is at line %d, column %d",
					quote(r.Name), first.n.Line, first.n.Column)
			} else {
				names[r.Name] = r.nameAt
			}
		}
		if !f.auth.given && (r.Auth == AuthRequired || r.Auth == AuthOptional) {
			r.authAt.errorf("auth is %s here, but no auth is configured, so that nobody has credentials; "+
				"want auth.jwt, auth.api_keys or auth.client_certs, or auth: none on the route", r.Auth)
		}
		if r.shape == "" || !r.hostOK || !r.methodsOK || !r.headersOK {
			continue
		}
		place := r.Host + r.shape + fieldsKey(r.Headers)
		for _, other := range places[place] {
			if m, ok := overlap(other.Methods, r.Methods); ok {
				r.pathAt.errorf("route %s cannot be told from route %s at %s:%d:%d: both answer %s on %s; want another path, host, headers or methods",
					quote(r.Name), quote(other.Name), f.root.d.name, other.pathAt.n.Line, other.pathAt.n.Column, m, quote(r.Host+r.Path))
				break
			}
		}
		// A place has as many routes as there are methods; more were reported.
		if len(places[place]) < 64 {
			places[place] = append(places[place], r)
		}
	}
	f.checkUsagePath()
	if at := f.auth.redisKeys; at.given() && !f.redisGiven {
		at.keyErrorf("there is no store.redis to look keys up in; want store.redis, or remove it")
	}
	for _, r := range f.edge {
		l, ok := f.limits[r.name]
		if !ok {
			continue
		}
		if l.Algorithm == LeakyBucket {
			r.at.errorf("limit %s is a leaky_bucket, whose requests wait their turn, and a crowd must not be queued at the edge; "+
				"use a token_bucket", quote(r.name))
		}
		for _, d := range l.Per {
			if d.Kind == PerUser || d.Kind == PerAPIKey || d.Kind == PerTenant {
				r.at.errorf("limit %s is per %s, which is not known before authentication; an edge limit is per ip, route, global or header:NAME",
					quote(r.name), d.Kind)
			}
		}
	}
}

// checkPlans finds plans that are wanted but not there.
func checkPlans(f *routesFile, p *plansFile) {
	var anonymous, credentials *routeDecl
	for _, r := range f.routes {
		if anonymous == nil && (r.Auth == AuthOptional || r.Auth == AuthNone) && r.costOK && r.Cost > 0 {
			anonymous = r
		}
		if credentials == nil && (r.Auth == AuthRequired || r.Auth == AuthOptional) {
			credentials = r
		}
	}
	if anonymous != nil && !p.hasAnon {
		p.root.missing("anonymous_plan", fmt.Sprintf("the plan of callers without credentials, since route %s at %s has auth: %s",
			quote(anonymous.Name), anonymous.Pos, anonymous.Auth))
	}
	if credentials == nil || !f.auth.given || p.hasDefault {
		return
	}
	reason := ""
	if len(f.auth.JWT) > 0 {
		reason = "a token can name none"
	} else if f.auth.ClientCerts != nil {
		reason = "a client certificate can name none"
	} else if f.auth.redisKeys.given() {
		reason = "a key in Redis can name none"
	}
	for _, k := range f.auth.keys {
		if k.Plan == "" && !k.planAt.given() {
			reason = fmt.Sprintf("the key %s at %s names none", quote(k.ID), k.Pos)
			break
		}
	}
	if reason != "" {
		p.root.missing("default_plan", "the plan of callers whose credentials name none, since "+reason)
	}
}

// reach says which plans a request of a route can have.
type reach struct {
	credentials []*planDecl // of callers with credentials, in file order
	anonymous   *planDecl   // nil if there is none
}

// reachable works out which plans credentials can lead to.
func reachable(f *routesFile, p *plansFile) reach {
	r := reach{anonymous: p.byName[p.anon.name]}
	named := map[string]bool{p.def.name: true}
	for _, o := range p.overrides {
		named[o.plan.name] = true
	}
	for _, k := range f.auth.keys {
		named[k.Plan] = true
	}
	// A token may name any plan, also that of callers without credentials; a
	// key file that could not be read and keys in Redis, too.
	all := f.auth.claimsPlan || !f.auth.keysSure()
	for _, d := range p.plans {
		if named[d.Name] || all {
			r.credentials = append(r.credentials, d)
		}
	}
	return r
}

// plans returns the plans that requests of a route can have, of those that it
// takes.
func (r reach) plans(route *routeDecl) []*planDecl {
	var ps []*planDecl
	if route.Auth == AuthRequired || route.Auth == AuthOptional {
		ps = r.credentials
	}
	if (route.Auth == AuthOptional || route.Auth == AuthNone) && r.anonymous != nil && !slices.Contains(ps, r.anonymous) {
		ps = append(slices.Clone(ps), r.anonymous)
	}
	if len(route.Plans) > 0 {
		ps = slices.DeleteFunc(slices.Clone(ps), func(d *planDecl) bool { return !route.admits(d.Name) })
	}
	return ps
}

// checkNames finds limits of one name that meet on one request: a client could
// not tell them apart.
func checkNames(f *routesFile, p *plansFile) {
	edge := map[string]ref{}
	for _, r := range f.edge {
		edge[r.name] = r
	}
	for _, d := range p.plans {
		for _, l := range d.limits {
			if r, ok := edge[l.Name]; ok {
				l.nameAt.errorf("the edge limit at %s has the name %s too, and both meet on one request; want another name",
					r.at.pos(), quote(l.Name))
			}
		}
	}
	who := reachable(f, p)
	for _, route := range f.routes {
		if len(route.limits) == 0 || route.costOK && route.Cost == 0 {
			continue
		}
		plans := who.plans(route)
		for _, r := range route.limits {
			if e, ok := edge[r.name]; ok {
				r.at.errorf("%s is an edge limit already, at %s; it would be charged twice", quote(r.name), e.at.pos())
				continue
			}
			for _, d := range plans {
				i := slices.IndexFunc(d.limits, func(l *limitDecl) bool { return l.Name == r.name })
				if i >= 0 {
					r.at.errorf("plan %s has a limit named %s too, at %s, and both meet on one request; want another name",
						quote(d.Name), quote(r.name), d.limits[i].nameAt.pos())
					break
				}
			}
		}
	}
}

// deniesSome reports whether the limit is one that denies, other than by a 0,
// which means what it says. A shadow denies nobody.
func (l *limitDecl) deniesSome() bool { return l.ok && !l.Shadow && l.Rate.Quota > 0 }

// deniesAll reports whether the limit is an enforced 0.
func (l *limitDecl) deniesAll() bool { return l.ok && !l.Shadow && l.Rate.Quota == 0 }

// cannotPay returns a limit among ls that can never pay cost; nil if there is
// none.
func cannotPay(ls []*limitDecl, cost int64) *limitDecl {
	for _, l := range ls {
		if l.deniesSome() && cost > l.capacity() {
			return l
		}
	}
	return nil
}

// checkCosts finds routes that cost more than a caller can ever pay.
func checkCosts(f *routesFile, p *plansFile) {
	who := reachable(f, p)
	for _, route := range f.routes {
		if !route.costOK || route.Cost <= 0 {
			continue
		}
		for _, r := range route.limits {
			l, ok := f.limits[r.name]
			if ok && cannotPay([]*limitDecl{l}, route.Cost) != nil {
				route.costAt.errorf("nobody can ever pay %d: limit %s at %s admits at most %d at once",
					route.Cost, quote(l.Name), l.Pos, l.capacity())
			}
		}
		plans := who.plans(route)
		var poor []string
		var reason string
		for _, d := range plans {
			if l := cannotPay(d.limits, route.Cost); l != nil {
				poor = append(poor, d.Name)
				if reason == "" {
					reason = fmt.Sprintf("limit %s at %s admits at most %d at once", quote(l.Name), l.Pos, l.capacity())
				}
			}
		}
		switch {
		case len(poor) == 0:
		case len(poor) == len(plans):
			route.costAt.errorf("no plan that can reach the route can ever pay %d: %s; want a lower cost, or a larger burst or limit",
				route.Cost, reason)
		default:
			route.costAt.warnf("plan %s can never pay %d, so that its callers are denied: %s",
				strings.Join(poor, ", "), route.Cost, reason)
		}
	}
}

// checkDangers warns of what is legal but dangerous.
func checkDangers(f *routesFile, p *plansFile) {
	if f != nil {
		for _, r := range f.routes {
			if r.OnStoreFailure == FailAllow {
				text := strings.ToLower(r.Name + " " + r.Path)
				for _, word := range []string{"login", "password", "reset"} {
					if strings.Contains(text, word) {
						r.failAt.warnf("while the store is away, guessing here is not limited at all (the route is called %s); "+
							"local_cap or deny are safer", word)
						break
					}
				}
			}
		}
		if !f.trusted {
			for _, l := range f.order {
				l.warnHeader()
			}
		}
		f.warnSockets(p)
	}
	if p == nil {
		return
	}
	for _, d := range p.plans {
		for i, l := range d.limits {
			if f != nil && !f.trusted {
				l.warnHeader()
			}
			d.warnSmaller(l, d.limits[:i])
		}
	}
	// Where a name stands for nothing, the plan that was meant looks unused.
	dangling := func(r ref) bool { return r.at.given() && p.byName[r.name] == nil }
	unsure := dangling(p.def) || dangling(p.anon) ||
		slices.ContainsFunc(p.overrides, func(o overrideDecl) bool { return dangling(o.plan) })
	if f != nil && !unsure && !f.auth.claimsPlan && f.auth.keysSure() {
		used := map[string]bool{p.anon.name: true}
		for _, d := range reachable(f, p).credentials {
			used[d.Name] = true
		}
		for _, d := range p.plans {
			if !used[d.Name] {
				d.at.keyWarnf("nobody has this plan: it is neither default_plan nor anonymous_plan, and no override, key or plan claim names it")
			}
		}
	}
}

// warnSockets warns of limits per address where nobody has one: the peer of a
// unix socket has none, and it is not trusted to tell the client's.
func (f *routesFile) warnSockets(p *plansFile) {
	if len(f.sockets) == 0 || f.clientIP.TrustUnix {
		return
	}
	var shared []string // fields
	add := func(path string, l *limitDecl, anonymous bool) {
		if l != nil && l.ok && l.Rate.Quota > 0 && !slices.Contains(shared, path) && l.byAddress(anonymous) {
			shared = append(shared, path)
		}
	}
	for _, r := range f.edge {
		add("limits."+r.name, f.limits[r.name], true)
	}
	anonymous := false
	for _, r := range f.routes {
		if r.costOK && r.Cost == 0 {
			continue
		}
		open := r.Auth == AuthOptional || r.Auth == AuthNone
		anonymous = anonymous || open
		for _, n := range r.limits {
			add("limits."+n.name, f.limits[n.name], open)
		}
	}
	if p != nil {
		for _, d := range p.plans {
			for _, l := range d.limits {
				add(fmt.Sprintf("plans.%s.%s", d.Name, l.Name), l, anonymous && d.Name == p.anon.name)
			}
		}
	}
	if f.auth.given && f.auth.FailureLimit != nil {
		shared = append(shared, "auth.failure_limit")
	}
	if len(shared) == 0 {
		return
	}
	names := strings.Join(shared, ", ")
	if n := len(shared) - 8; n > 0 {
		names = fmt.Sprintf("%s and %d more", strings.Join(shared[:8], ", "), n)
	}
	for _, at := range f.sockets {
		at.warnf("nobody has an address on a socket, and client_ip.trusted_proxies has no unix, so that all callers share one count "+
			"in what is counted per ip (%s); want unix there if the peer is a proxy of yours that says who its client is", names)
	}
}

// byAddress reports whether requests from one address share one count (or one
// for each route), since nothing else tells them apart. The address stands in
// for what anonymous callers do not have.
func (l *limitDecl) byAddress(anonymous bool) bool {
	address := false
	for _, d := range l.Per {
		switch d.Kind {
		case PerIP:
			address = true
		case PerUser, PerAPIKey, PerTenant:
			if !anonymous {
				return false
			}
			address = true
		case PerHeader:
			return false
		}
	}
	return address
}

// warnHeader warns of a limit per header that every client can set.
func (l *limitDecl) warnHeader() {
	for _, d := range l.Per {
		if d.Kind == PerHeader {
			l.at.warnf("is counted per header %s, but client_ip.trusted_proxies names nobody: every client can set the header "+
				"and have a new count with each value", d.Header)
		}
	}
}

// warnSmaller warns where a longer window grants less than a shorter one of
// the same plan, so that the shorter one can never be used up.
func (d *planDecl) warnSmaller(l *limitDecl, others []*limitDecl) {
	for _, o := range others {
		long, short := l, o
		if long.Rate.Window < short.Rate.Window {
			long, short = short, long
		}
		if l.ok && o.ok && !l.Shadow && !o.Shadow && slices.Equal(l.Per, o.Per) && long.Rate.Window > short.Rate.Window &&
			long.Rate.Quota > 0 && long.Rate.Quota < short.Rate.Quota {
			long.at.warnf("%s (%s) grants less than %s (%s), though its window is longer",
				quote(long.Name), long.Rate, quote(short.Name), short.Rate)
		}
	}
}
