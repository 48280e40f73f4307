package gateway

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/cors"

	"bouncer/gateway/config"
)

// legible are the fields of ours that a page of another origin may read: without
// leave it would see a 429 and not know how long to wait.
var legible = []string{
	"Retry-After", "RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Request-Id",
}

// usual are the methods that pages may use of a route that takes all.
var usual = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
}

// makeCORS returns who tells browsers which pages may use a route (the Fetch
// standard, section 3.2); nil if that is the upstream's business.
func makeCORS(rt *config.Route) *cors.Cors {
	c := rt.CORS
	if c == nil {
		return nil
	}
	methods := c.Methods
	if len(methods) == 0 {
		methods = rt.Methods
	}
	switch {
	case len(methods) == 0:
		methods = usual
	case slices.Contains(methods, http.MethodGet) && !slices.Contains(methods, http.MethodHead):
		methods = append(slices.Clone(methods), http.MethodHead)
	}
	return cors.New(cors.Options{
		AllowedOrigins: c.Origins, AllowedMethods: methods, AllowedHeaders: c.Headers,
		ExposedHeaders: slices.Concat(legible, c.Expose), AllowCredentials: c.Credentials, MaxAge: int(c.MaxAge / time.Second),
	})
}

// preflightOf returns the method that a preflight asks about, or "" if r is none
// (the Fetch standard, section 3.2.2).
func preflightOf(r *http.Request) string {
	if r.Method != http.MethodOptions || len(r.Header["Origin"]) == 0 {
		return ""
	}
	return r.Header.Get("Access-Control-Request-Method")
}

// A browser is what is told to one whose page asks from another site.
type browser struct {
	cors    *cors.Cors // nil: it is told nothing, or by the upstream
	asks    bool       // with a preflight, whether the page may use the route
	refused bool       // no route takes the request, or what the preflight asks about
}

// tell puts into the head of an answer what a browser wants to know of it.
// What an upstream says of the same is left out: two answers are none.
func (b *browser) tell(h http.Header, r *http.Request) {
	if b.cors == nil {
		return
	}
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(h, name)
		}
	}
	b.cors.HandlerFunc(headOnly(h), b.seen(r))
}

// seen is the request as rs/cors is to see it, which says yes to a method only that
// pages may use, and repeats any Origin. Without one it only says what the answer
// depends on (Vary).
func (b *browser) seen(r *http.Request) *http.Request {
	good := goodOrigin(r.Header["Origin"])
	if good && !b.refused {
		return r
	}
	as := &http.Request{Method: http.MethodOptions, Header: http.Header{}}
	switch {
	case b.asks || preflightOf(r) != "":
		as.Header["Access-Control-Request-Method"] = []string{r.Method}
	case good:
		// The page may see that there is no such method, so the method is one that
		// pages may always use.
		as.Header["Origin"] = r.Header["Origin"]
	}
	return as
}

// goodOrigin reports whether a request names no origin, or one as browsers write it
// (RFC 6454 section 6.1). Anything else a page cannot have sent, and it would be
// repeated in the answer.
func goodOrigin(fields []string) bool {
	switch len(fields) {
	case 0:
		return true
	case 1:
		return wellFormed(fields[0])
	}
	return false
}

// wellFormed reports whether an origin is a scheme, a host in lower case, and perhaps
// a port; or null, which a page has that may be anybody's: only "*" lets it in.
func wellFormed(origin string) bool {
	const most = 300 // the longest name of a host, with scheme and port
	scheme, host, ok := strings.Cut(origin, "://")
	if !ok || len(origin) > most {
		return origin == "null"
	}
	for i := range len(scheme) {
		if c := scheme[i]; !lower(c) && (i == 0 || !digit(c) && strings.IndexByte("+-.", c) < 0) {
			return false
		}
	}
	end := strings.IndexByte(host, ']') + 1 // of an IPv6 address
	if port := strings.IndexByte(host[end:], ':'); port >= 0 {
		digits := host[end+port+1:]
		if len(digits) == 0 || len(digits) > 5 || strings.Trim(digits, "0123456789") != "" {
			return false
		}
		host = host[:end+port]
	}
	if host == "" || scheme == "" {
		return false
	}
	if end > 0 {
		return host[0] == '[' && end == len(host) && strings.Trim(host[1:end-1], "0123456789abcdef:.") == ""
	}
	for i := range len(host) {
		switch c := host[i]; {
		case lower(c), digit(c), c == '-', c == '_':
		case c == '.' && i > 0 && host[i-1] != '.':
		default:
			return false
		}
	}
	return true
}

func lower(c byte) bool { return 'a' <= c && c <= 'z' }
func digit(c byte) bool { return '0' <= c && c <= '9' }

// headOnly is a head that is sent later.
type headOnly http.Header

func (h headOnly) Header() http.Header       { return http.Header(h) }
func (headOnly) Write(b []byte) (int, error) { return len(b), nil }
func (headOnly) WriteHeader(int)             {}
