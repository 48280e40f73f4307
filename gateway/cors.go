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

// tellBrowser puts into the head of an answer what a browser wants to know of it.
// What an upstream says of the same is left out: two answers are none.
func tellBrowser(c *cors.Cors, h http.Header, r *http.Request) {
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(h, name)
		}
	}
	c.HandlerFunc(headOnly(h), r)
}

// headOnly is a head that is sent later.
type headOnly http.Header

func (h headOnly) Header() http.Header       { return http.Header(h) }
func (headOnly) Write(b []byte) (int, error) { return len(b), nil }
func (headOnly) WriteHeader(int)             {}
