package gateway

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
	"github.com/rs/cors"

	"bouncer/gateway/config"
	"bouncer/gateway/httperr"
	"bouncer/gateway/proxy"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/rewrite"
)

// A route is one configured route, compiled: everything a request needs to
// know after it was matched, so that nothing is looked up by name again.
type route struct {
	name         string
	template     string          // the path as the operator wrote it
	methods      []string        // empty: all; GET includes HEAD
	headers      []rewrite.Field // that requests have; empty: none is looked at
	auth         config.AuthMode
	access       access // what callers have to have besides credentials
	cost         int64
	limits       []*limit        // the named limits, after the plan's
	store        ratelimit.Store // the store in the route's fail mode
	upstreamName string
	upstream     *proxy.Upstream
	hashBy       *config.Dimension // what requests of one target have in common; nil for nothing
	forward      proxy.Forward
	stripQuery   func(raw string) string // takes API keys out of a query; nil: they stay
	sockets      int                     // WebSockets that a caller may have here at the same time; 0: any number
	path         *rewrite.Path           // what the upstream gets for the path; nil for the path as it came
	answer       *rewrite.Fields         // what is changed in answers; nil for nothing
	cors         *cors.Cors              // nil: what browsers are told is the upstream's business
	credentialed bool                    // cors lets pages send cookies
	usage        bool                    // answered here, with the caller's own limits
	challenge    string                  // answered here, with this; empty: it is none
}

// allows reports whether the route takes the method; GET includes HEAD
// (RFC 9110 section 9.3.2).
func (rt *route) allows(method string) bool {
	if len(rt.methods) == 0 || slices.Contains(rt.methods, method) {
		return true
	}
	return method == http.MethodHead && slices.Contains(rt.methods, http.MethodGet)
}

// wants reports whether a request has the fields that the route is for.
func (rt *route) wants(h http.Header) bool {
	for _, f := range rt.headers {
		if !slices.Contains(h[f.Name], f.Value) {
			return false
		}
	}
	return true
}

// wantsNamed is wants for a preflight, which only names the fields that the request
// will have (the Fetch standard, section 3.2.2).
func (rt *route) wantsNamed(preflight http.Header) bool {
	for _, f := range rt.headers {
		if !named(preflight["Access-Control-Request-Headers"], f.Name) {
			return false
		}
	}
	return true
}

func named(lists []string, name string) bool {
	for _, list := range lists {
		for one := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(one), name) {
				return true
			}
		}
	}
	return false
}

// specific orders the routes of a place: who wants more fields comes first, and
// equals by what they want, so that the order in the file makes no difference.
func specific(a, b *route) int {
	if c := len(b.headers) - len(a.headers); c != 0 {
		return c
	}
	return slices.CompareFunc(a.headers, b.headers, func(x, y rewrite.Field) int {
		return cmp.Or(strings.Compare(x.Name, y.Name), strings.Compare(x.Value, y.Value))
	})
}

// A router finds the route of a request. The most specific path wins, by chi's
// tree: static before parameter before wildcard, segment by segment, whatever
// the order in the file; a route with the request's host beats one without.
// The path is decided first and the method afterwards, so that a method the
// right route refuses is a 405 and never falls through to a wider route with
// other limits.
type router struct {
	hosts map[string]*pathTree
	any   *pathTree
}

// A pathTree is chi's tree, used for paths only: chi knows a fixed set of
// methods and would answer 405 for PROPFIND on a route that takes them all.
type pathTree struct {
	mux    *chi.Mux
	places map[string]*place // by the pattern that chi knows
	shapes map[string]string // that pattern, by its shape
}

// A place is the routes of one pattern.
type place struct {
	routes []*route
	rank   int // how much of a path, and of a host, the pattern says
}

func newPathTree() *pathTree {
	return &pathTree{mux: chi.NewMux(), places: map[string]*place{}, shapes: map[string]string{}}
}

// add reports a pattern that chi refuses. chi panics on one, because its
// patterns are usually written by programmers; ours come out of a file.
func (t *pathTree) add(host, pattern string, rt *route) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("not a usable pattern: %v", p)
		}
	}()
	// chi keeps one pattern for a path, whatever its parameters are called:
	// /users/{id} and /users/{name} are the same place in its tree.
	same := shape(pattern)
	if first, ok := t.shapes[same]; ok {
		pattern = first
	} else {
		t.mux.Get(pattern, func(http.ResponseWriter, *http.Request) {})
		t.shapes[same] = pattern
	}
	p := t.places[pattern]
	if p == nil {
		p = &place{rank: rank(pattern, host)}
		t.places[pattern] = p
	}
	p.routes = append(p.routes, rt)
	slices.SortStableFunc(p.routes, specific)
	return nil
}

// rank is higher for a pattern that says more of a path: a host counts more than
// all segments, a segment in letters more than one that may be anything.
func rank(pattern string, host string) (n int) {
	if host != "" {
		n = 1 << 20
	}
	for segment := range strings.SplitSeq(pattern, "/") {
		switch {
		case strings.Contains(segment, "*"):
		case strings.Contains(segment, "{"):
			n++
		default:
			n += 1 << 10
		}
	}
	return n
}

// shape is a pattern without the names of its parameters. Their regular
// expressions count; braces inside of one are balanced, or chi refuses it.
func shape(pattern string) string {
	var b strings.Builder
	depth, naming := 0, false
	for i := range len(pattern) {
		c := pattern[i]
		switch c {
		case '{':
			depth++
			if depth == 1 {
				naming = true
				b.WriteByte(c)
				continue
			}
		case '}':
			depth--
			naming = naming && depth > 0
		case ':':
			naming = false
		}
		if !naming {
			b.WriteByte(c)
		}
	}
	return b.String()
}

var chiContexts = sync.Pool{New: func() any { return chi.NewRouteContext() }}

// find returns the place of the most specific pattern for path, or nil.
func (t *pathTree) find(path string) *place {
	if t == nil {
		return nil
	}
	rctx, _ := chiContexts.Get().(*chi.Context)
	rctx.Reset()
	pattern := t.mux.Find(rctx, http.MethodGet, path)
	chiContexts.Put(rctx)
	return t.places[pattern]
}

func (rs *router) add(host, pattern string, rt *route) error {
	if host == "" {
		if rs.any == nil {
			rs.any = newPathTree()
		}
		return rs.any.add(host, pattern, rt)
	}
	if rs.hosts == nil {
		rs.hosts = map[string]*pathTree{}
	}
	if rs.hosts[host] == nil {
		rs.hosts[host] = newPathTree()
	}
	return rs.hosts[host].add(host, pattern, rt)
}

// A match is what became of looking for a request's route.
type match struct {
	route   *route // nil if none takes the request
	browser browser
}

// match returns the request's route, or the answer if there is none. A preflight
// is of the route that it asks about, if that has CORS; of a path that has it the
// gateway answers all that no other route takes.
func (rs *router) match(r *http.Request) (match, *httperr.Error) {
	if r.Method == http.MethodConnect { // its target is no path
		return match{}, (&proxy.Forward{}).Refuse(r)
	}
	path, ok := matchPath(r)
	if !ok {
		return match{}, badPath()
	}
	host := hostname(r.Host)
	found := rs.find(host, path)
	if found == nil {
		return match{}, noRoute()
	}
	if strings.ContainsAny(path, ";%") && rs.misread(host, path, found) {
		return match{}, badPath()
	}
	about := preflightOf(r)
	if about != "" {
		for _, rt := range found.routes {
			if rt.cors != nil && rt.allows(about) && rt.wantsNamed(r.Header) {
				return match{rt, browser{cors: rt.cors, asks: true}}, nil
			}
		}
	}
	var wanted []*route
	for _, rt := range found.routes {
		if !rt.wants(r.Header) {
			continue
		}
		if rt.allows(r.Method) && (about == "" || rt.cors == nil) {
			return match{rt, browser{cors: rt.cors}}, nil
		}
		wanted = append(wanted, rt)
	}
	var none match
	if teller := found.teller(r); teller != nil {
		none.browser = browser{cors: teller.cors, asks: about != "", refused: true}
		if about != "" {
			none.route = teller
			return none, nil
		}
	}
	if wanted == nil {
		return none, noRoute()
	}
	return none, &httperr.Error{
		Status: http.StatusMethodNotAllowed, Reason: "method_not_allowed",
		Detail: "This path does not take this method; the Allow field lists those it takes.",
		Header: http.Header{"Allow": {allowed(wanted)}},
	}
}

// teller returns the route of the place whose CORS tells a browser of an answer that is
// no route's; nil if none has any. It is the first that lets the request's page in.
func (p *place) teller(r *http.Request) (first *route) {
	for _, rt := range p.routes {
		if rt.cors == nil {
			continue
		}
		if rt.cors.OriginAllowed(r) {
			return rt
		}
		if first == nil {
			first = rt
		}
	}
	return first
}

// find returns the place of the most specific pattern, or nil.
func (rs *router) find(host, path string) *place {
	if len(rs.hosts) > 0 {
		if found := rs.hosts[host].find(path); found != nil {
			return found
		}
	}
	return rs.any.find(path)
}

// misread reports whether a server that reads more into path than was done here
// would carry it out as something that another pattern is about, one that says
// no less than that of found: with the parameters of segments (";") taken away,
// with what is still escaped decoded once more, or with both. So "/api/export;x/1"
// and "/api%2Fexport/1" do not get round the limits of "/api/export/*", while
// "/files/a%2Fb" is a name under "/files/*" either way.
func (rs *router) misread(host, path string, found *place) bool {
	decoded := decode(path, true)
	for _, other := range [...]string{withoutParameters(path), decoded, withoutParameters(decoded)} {
		other, ok := plain(other)
		if !ok {
			return true
		}
		if p := rs.find(host, other); p != nil && p != found && p.rank >= found.rank {
			return true
		}
	}
	return false
}

func noRoute() *httperr.Error {
	return &httperr.Error{
		Status: http.StatusNotFound, Reason: "no_route",
		Detail: "There is nothing here under this path.",
	}
}

func badPath() *httperr.Error {
	return &httperr.Error{
		Status: http.StatusBadRequest, Reason: "bad_path", Close: true,
		Detail: "The path can be read in more than one way: it has a dot segment, a backslash, a control character, bytes that are no UTF-8, or an escape or a semicolon that others would read as another path. Send it in its plain form.",
	}
}

// allowed is the Allow field of a 405 (RFC 9110 section 10.2.1).
func allowed(routes []*route) string {
	var methods []string
	for _, rt := range routes {
		methods = append(methods, rt.methods...)
		if slices.Contains(rt.methods, http.MethodGet) {
			methods = append(methods, http.MethodHead)
		}
	}
	slices.Sort(methods)
	return strings.Join(slices.Compact(methods), ", ")
}

// hostname is the host of a Host field as routes are written: lower case,
// without port and trailing dot.
func hostname(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// matchPath is the path that routes are matched on: every percent-escape
// decoded except that of a slash, which stays inside its segment, and empty
// segments dropped. Deciding on the plain form means that no spelling of a
// path gets round a stricter route: "/api//%65xport/1" is "/api/export/1".
// What the upstream receives is the path as it came. A path that another
// server could read differently (a dot segment however spelled, a backslash, a
// control character, bytes that are no UTF-8) is not ok.
func matchPath(r *http.Request) (path string, ok bool) {
	path = r.URL.Path
	if r.URL.RawPath != "" {
		path = decode(r.URL.RawPath, false)
	}
	return plain(path)
}

// plain drops the empty segments of a path, and reports whether it can be read
// in one way.
func plain(path string) (string, bool) {
	if path == "" || path[0] != '/' {
		return "", false
	}
	ascii := true
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c < 0x20, c == 0x7f, c == '\\':
			return "", false
		case c == '.' && startsSegment(path[:i]) && dotSegment(path[i:]):
			return "", false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	if !ascii && !utf8.ValidString(path) {
		return "", false
	}
	return rewrite.MergeSlashes(path), true
}

// startsSegment reports whether what follows before begins a segment, counting
// an encoded slash as a slash because many servers do.
func startsSegment(before string) bool {
	return strings.HasSuffix(before, "/") || strings.HasSuffix(before, "%2F") || strings.HasSuffix(before, "%2f")
}

// dotSegment reports whether s begins with a whole segment "." or "..",
// also when path parameters (";") or an encoded slash end it.
func dotSegment(s string) bool {
	s = strings.TrimPrefix(s[1:], ".")
	return s == "" || s[0] == '/' || s[0] == ';' || strings.HasPrefix(s, "%2F") || strings.HasPrefix(s, "%2f")
}

// withoutParameters takes away what stands in each segment from a semicolon on
// (RFC 3986 section 3.3), as servers of Java do.
func withoutParameters(path string) string {
	if !strings.Contains(path, ";") {
		return path
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return strings.Join(segments, "/")
}

// decode decodes the escapes of raw, those of slashes only if told so. What is no
// escape stays.
func decode(raw string, slashes bool) string {
	if !strings.Contains(raw, "%") {
		return raw
	}
	b := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if d, ok := rewrite.Unescape(raw[i:]); ok && (d != '/' || slashes) {
			b = append(b, d)
			i += 2
			continue
		}
		b = append(b, c)
	}
	return string(b)
}
