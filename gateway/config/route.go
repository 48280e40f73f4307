package config

import (
	"math"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"

	"bouncer/gateway/rewrite"
)

// routeDecl is a route and where its parts stand.
type routeDecl struct {
	Route
	at, nameAt, pathAt, costAt, failAt, authAt, methodsAt value
	upstream                                              ref
	limits                                                []ref
	limitsAt                                              value  // limits, if given
	shape                                                 string // the path, parameters without their names; empty if it was wrong
	costOK, hostOK, methodsOK, headersOK                  bool
	access                                                accessDecl
}

const wantedRoute = "name, path and upstream"

// readRoutes reads routes.
func (f *routesFile) readRoutes(top *object, forward bool) {
	v, ok := top.need("routes", "a list of routes")
	if !ok {
		return
	}
	items, ok := v.list("a list of routes")
	if !ok {
		return
	}
	f.usesKnown = true
	if len(items) == 0 {
		v.errorf("holds no route, so that nothing is forwarded; want at least one")
	}
	for _, item := range items {
		o, ok := item.object(wantedRoute)
		if !ok {
			f.usesKnown = false
			continue
		}
		r := &routeDecl{at: item, Route: Route{
			Pos: item.pos(), Auth: AuthRequired, Cost: 1, OnStoreFailure: FailLocalCap, ForwardCredentials: forward,
		}}
		f.usesKnown = r.read(o) && f.usesKnown
		f.routes = append(f.routes, r)
	}
}

// read reads one route. It returns whether the names of its limits are known.
func (r *routeDecl) read(o *object) (usesKnown bool) {
	r.nameAt, r.pathAt, r.costAt, r.failAt, r.authAt, r.methodsAt = r.at, r.at, r.at, r.at, r.at, r.at
	if v, ok := o.need("name", "a name"); ok {
		r.nameAt = v
		r.Name = v.name("a route")
	}
	r.hostOK = true
	if v, ok := o.get("host", "a host name"); ok {
		r.Host, r.hostOK = v.host()
	}
	if v, ok := o.need("path", "a path such as /api/weather"); ok {
		r.pathAt = v
		if s, ok := v.word("a path such as /api/weather"); ok {
			shape, err := pathShape(s)
			if err != nil {
				v.errorf("%s: %v", quote(s), err)
			} else {
				r.Path, r.shape = s, shape
			}
		}
	}
	r.methodsOK = true
	if v, ok := o.get("methods", "a list of methods such as [GET, POST]"); ok {
		r.methodsAt = v
		r.Methods, r.methodsOK = readMethods(v)
	}
	r.headersOK = true
	if v, ok := o.get("headers", "header names and their values"); ok {
		r.Headers, r.headersOK = v.matchedFields()
	}
	if v, ok := o.need("upstream", "the name of an upstream"); ok {
		if s, ok := v.word("the name of an upstream"); ok {
			r.upstream = ref{s, v}
		}
	}
	if v, ok := o.get("auth", "required, optional or none"); ok {
		r.authAt = v
		if s, ok := v.choice([]string{string(AuthRequired), string(AuthOptional), string(AuthNone)}); ok {
			r.Auth = AuthMode(s)
		} else {
			r.Auth = ""
		}
	}
	r.readAccess(o)
	r.costOK = true
	if v, ok := o.get("cost", "a whole number, 0 or more"); ok {
		r.costAt = v
		r.Cost, r.costOK = v.integer(0, math.MaxInt64)
	}
	if v, ok := o.get("limits", "a list of limits"); ok {
		r.limitsAt = v
		r.limits, usesKnown = v.refs("names of limits")
	} else {
		usesKnown = !o.has("limits")
	}
	if v, ok := o.get("on_store_failure", "local_cap, deny or allow"); ok {
		r.failAt = v
		if s, ok := v.choice([]string{string(FailLocalCap), string(FailDeny), string(FailAllow)}); ok {
			r.OnStoreFailure = FailMode(s)
		}
	}
	r.ForwardCredentials = o.boolean("forward_credentials", r.ForwardCredentials)
	r.readReshaping(o)
	o.done()
	return usesKnown
}

// maxMatched bounds how many fields a route looks at.
const maxMatched = 8

// matchedFields reads the fields that requests of a route have, and sorts them by
// name. ok says that all could be read.
func (v value) matchedFields() (fs []rewrite.Field, ok bool) {
	o, ok := v.object("header names and their values")
	if !ok {
		return nil, false
	}
	for _, name := range o.names {
		at := o.fields[name]
		field, good := at.matchedField(name)
		if !good {
			ok = false
			continue
		}
		if slices.ContainsFunc(fs, func(f rewrite.Field) bool { return f.Name == field.Name }) {
			at.keyErrorf("is there already: case makes no difference in the names of headers")
			ok = false
			continue
		}
		fs = append(fs, field)
	}
	switch {
	case ok && len(fs) == 0:
		v.errorf("names no header; leave it out to take requests with any")
		return nil, false
	case len(fs) > maxMatched:
		v.errorf("%d headers; want at most %d", len(fs), maxMatched)
		return nil, false
	}
	slices.SortFunc(fs, func(a, b rewrite.Field) int { return strings.Compare(a.Name, b.Name) })
	return fs, ok
}

func (v value) matchedField(name string) (f rewrite.Field, ok bool) {
	switch {
	case !isToken(name):
		v.keyErrorf("%s is not the name of a header; want letters, digits and -", quote(name))
		return f, false
	case strings.EqualFold(name, "Host"):
		v.keyErrorf("is what host is for; want host: and a name on the route")
		return f, false
	case isNull(v.n):
		v.keyErrorf("has no value; want the one that requests of the route have")
		return f, false
	}
	s, ok := v.word("the value that requests of the route have")
	if ok && strings.TrimSpace(s) != s {
		v.errorf("has white space around it, which no value of a header has; want it without")
		return f, false
	}
	return rewrite.Field{Name: textproto.CanonicalMIMEHeaderKey(name), Value: s, Secret: v.fromEnvironment()}, ok
}

// readMethods reads the methods of a route.
func readMethods(v value) ([]string, bool) {
	vs, methods, ok := v.words("methods", false)
	if ok && len(vs) == 0 {
		v.errorf("names no method, so that no request would match; leave it out for all methods")
		return nil, false
	}
	for i, m := range methods {
		switch {
		case !isToken(m):
			vs[i].errorf("%s is not a method; want one such as GET", quote(m))
			ok = false
		case strings.EqualFold(m, "CONNECT") || strings.EqualFold(m, "TRACE"):
			vs[i].errorf("requests with %s are refused whatever the route, so that none matches; remove it", quote(m))
			ok = false
		case m != strings.ToUpper(m):
			vs[i].errorf("%s: methods are written in upper case (did you mean %q?)", quote(m), strings.ToUpper(m))
			ok = false
		}
	}
	return methods, ok
}

// host reads the host of a route as requests are matched on it: lower case,
// without port and final dot, an IPv6 address in brackets and in its shortest
// form (RFC 5952).
func (v value) host() (string, bool) {
	s, ok := v.word("a host name")
	if !ok {
		return "", false
	}
	h := strings.ToLower(s)
	if name, port, ok := cutPort(h); ok && strings.Trim(port, "0123456789") == "" {
		h = name
	}
	h = strings.TrimSuffix(h, ".")
	literal, bracketed := h, false
	if strings.HasPrefix(h, "[") && strings.HasSuffix(h, "]") {
		literal, bracketed = h[1:len(h)-1], true
	}
	hint := ""
	switch ip, err := netip.ParseAddr(literal); {
	case err == nil && ip.Zone() != "":
		hint = "; the zone of an address means something on one machine only, and clients do not send it"
	case err == nil && ip.Is6():
		return "[" + ip.String() + "]", true
	case bracketed:
		hint = "; only an IPv6 address stands in brackets"
	case strings.ContainsAny(h, "/*"):
		hint = "; no scheme, no path, and no * is possible"
	case strings.ContainsFunc(h, func(r rune) bool { return r >= 0x80 }):
		hint = "; clients send such a name in its xn-- form"
	case isHost(h) && !strings.HasSuffix(h, "."):
		return h, true
	}
	v.errorf("%s is not a host name; want one such as api.example.com%s", quote(s), hint)
	return "", false
}

// cutPort cuts the port from host:port or [::1]:port.
func cutPort(s string) (host, port string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.Contains(s[:i], ":") && !strings.HasSuffix(s[:i], "]") {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// answers reports whether a route with these methods answers method m; no
// methods are all, and GET includes HEAD.
func answers(methods []string, m string) bool {
	return len(methods) == 0 || slices.Contains(methods, m) || m == "HEAD" && slices.Contains(methods, "GET")
}

// overlap returns a method that both answer.
func overlap(a, b []string) (string, bool) {
	if len(a) == 0 && len(b) == 0 {
		return "every method", true
	}
	for _, m := range slices.Concat(a, b) {
		if answers(a, m) && answers(b, m) {
			return m, true
		}
	}
	return "", false
}
