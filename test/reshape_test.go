package test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// shaped is a site whose routes change what they forward.
func shaped(t testing.TB, target string) *site {
	s := newSite(t)
	s.write("keys.yaml", "keys: []\n")
	s.write("plans.yaml", `
anonymous_plan: strangers
default_plan: strangers
plans:
  strangers: {limits: [{name: per-hour, per: ip, algorithm: fixed_window, limit: 3/hour}]}
`)
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
auth: {api_keys: {file: keys.yaml}}
upstreams:
  api: {targets: ["`+target+`"]}
  gone: {targets: ["http://127.0.0.1:1"]}
routes:
  - {name: stripped, path: "/shop/v1/*", upstream: api, auth: none, cost: 0, strip_prefix: /shop/v1}
  - {name: moved, path: "/old/*", upstream: api, auth: none, cost: 0, rewrite: {match: "/old/([^/]+)/(.*)", replace: "/new/$2/of/$1"}}
  - {name: loose, path: "/loose/*", upstream: api, auth: none, cost: 0, rewrite: {match: "/loose/(.*)x(.*)", replace: "/$1$2"}}
  - name: fields
    path: /fields
    upstream: api
    auth: none
    cost: 0
    request_headers: {set: {Host: "{host}", X-From: "{client_ip} by {method} to {route}"}, add: {X-List: [b, c]}, remove: [Cookie]}
    response_headers: {set: {X-Frame-Options: DENY, X-Seen: "{request_id}"}, add: {Vary: Accept}, remove: [Server]}
  - {name: small, path: /small, upstream: api, auth: none, max_body: 1KiB, response_headers: {set: {Content-Type: text/x, Cache-Control: public, X-Frame-Options: DENY}}}
  - {name: empty, path: /empty, upstream: api, auth: none, max_body: 0}
  - {name: hasty, path: /hasty, upstream: api, auth: none, cost: 0, timeout: 50ms}
  - {name: page, path: /page, methods: [GET, PUT], upstream: api, auth: optional, cors: {origins: ["https://app.example.com"], headers: [X-API-Key], expose: [ETag], credentials: true, max_age: 10m}}
  - {name: member, path: /member, methods: [GET], upstream: api, cors: {origins: ["https://*.example.com"]}}
  - {name: lost, path: /lost, upstream: gone, auth: none, cost: 0, cors: {origins: ["*"]}}
  - {name: plain, path: /plain, upstream: api, auth: none, cost: 0}
`)
	return s
}

func TestTheUpstreamGetsThePathThatTheRouteMakes(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	g := shaped(t, u.URL).start()
	for _, test := range []struct{ target, reached string }{
		{"/shop/v1/weather?a=1;b=%zz", "/weather?a=1;b=%zz"},
		{"/shop/v1/", "/"},
		{"/shop/v1/a%2Fb//c", "/a%2Fb//c"},
		{"/%73hop//v1/weather", "/weather"},
		{"/old/7/posts/today?x", "/new/posts/today/of/7?x"},
		{"/o%6Cd/caf%c3%a9/p", "/new/p/of/caf%C3%A9"},
		{"/old/7", "/old/7"},
		{"/plain", "/plain"},
	} {
		if a := g.ask("GET " + test.target + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); a.status != 200 {
			t.Errorf("%s: %d %s", test.target, a.status, a.body)
		} else if got := u.last(t).RequestURI; got != test.reached {
			t.Errorf("%s reaches the upstream as %s, want %s", test.target, got, test.reached)
		}
	}
	before := u.count()
	if a := g.ask("GET /loose/.x./secret HTTP/1.1\r\nHost: a\r\n\r\n"); a.status != 400 || u.count() != before {
		t.Errorf("a path that comes out with a dot segment: %d, want 400, and nothing at the upstream", a.status)
	}
}

func TestARouteChangesFields(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "old")
		w.Header().Set("Vary", "Cookie")
		w.Header().Set("X-Frame-Options", "ALLOWALL")
	})
	g := shaped(t, u.URL).start()
	a := g.ask("GET /fields HTTP/1.1\r\nHost: shop.example:8080\r\nCookie: a=b\r\nX-List: a\r\nX-From: forged\r\nConnection: X-List\r\n\r\n")
	r := u.last(t)
	if r.Host != "shop.example:8080" || r.Header.Get("X-From") != "127.0.0.1 by GET to fields" || r.Header.Get("Cookie") != "" ||
		strings.Join(r.Header["X-List"], "|") != "b|c" {
		t.Errorf("the upstream gets %s and %v", r.Host, r.Header)
	}
	if a.field("X-Frame-Options") != "DENY" || a.field("X-Seen") != a.field("X-Request-Id") || a.field("Server") != "" ||
		strings.Join(a.header["Vary"], "|") != "Cookie|Accept" {
		t.Errorf("the client gets %v", a.header)
	}
	// Another route's are its own.
	if a := g.get("/plain"); a.field("X-Seen") != "" || u.last(t).Host == "shop.example:8080" || a.field("Server") != "old" {
		t.Errorf("a route without changes: %v", a.header)
	}
}

func TestABodyBeyondTheBoundReachesNobody(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	g := shaped(t, u.URL).start()
	// Known beforehand: refused unread, not charged, and the connection ends.
	for range 4 {
		c := g.dial()
		c.say("POST /small HTTP/1.1\r\nHost: a\r\nContent-Length: 1025\r\nExpect: 100-continue\r\n\r\n")
		if a := c.hearAll("POST"); a.status != 413 || a.problem(t)["detail"] != "The request body is too large: this route takes 1024 bytes at most." {
			t.Fatalf("%d %v %s", a.status, a.header, a.body)
		}
		if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Fatalf("the connection goes on: %v", err)
		}
	}
	if u.count() != 0 {
		t.Errorf("%d requests reached the upstream", u.count())
	}
	if a := send(t, "POST", g.url+"/small", strings.NewReader(strings.Repeat("x", 1024))); a.status != 200 || u.last(t).ContentLength != 1024 || a.field("X-RateLimit-Remaining") != "2" {
		t.Errorf("a body of the size allowed: %d, %v", a.status, a.header)
	}
	// Only found out while it is read.
	c := g.dial()
	c.say("POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + strings.Repeat("x", 1024) + "\r\n1\r\nx\r\n0\r\n\r\n")
	if a := c.hearAll("POST"); a.status != 413 {
		t.Errorf("a body in chunks that becomes too large: %d %s", a.status, a.body)
	}
	if a := send(t, "POST", g.url+"/empty", strings.NewReader("x")); a.status != 413 {
		t.Errorf("a body where none may be: %d", a.status)
	}
	// Its fields are changed like an upstream's, but for what it is.
	if a := send(t, "POST", g.url+"/small", strings.NewReader(strings.Repeat("x", 1025))); a.field("X-Frame-Options") != "DENY" || a.field("Content-Type") != "application/problem+json" || a.field("Cache-Control") != "no-store" {
		t.Errorf("an answer of the gateway's own: %v", a.header)
	}
	if a := g.get("/empty"); a.status != 200 {
		t.Errorf("no body where none may be: %d", a.status)
	}
}

func TestARouteWaitsNoLongerThanItSays(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "begins" {
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
		}
		<-release
		_, _ = io.WriteString(w, "end")
	})
	g := shaped(t, u.URL).start()
	a := g.get("/hasty")
	if a.status != 504 || g.requestLine(a.field("X-Request-Id"))["status"] != 504.0 {
		t.Errorf("an answer that does not begin: %d %s", a.status, a.body)
	}
	// One that has begun may take as long as it likes.
	c := g.dial()
	c.say("GET /hasty?begins HTTP/1.1\r\nHost: a\r\n\r\n")
	res := c.hear("GET")
	time.Sleep(100 * time.Millisecond) // twice the timeout: it is over by now
	close(release)
	if b, err := io.ReadAll(res.Body); string(b) != "end" || err != nil {
		t.Errorf("an answer that had begun: %q, %v", b, err)
	}
}

// A page of another origin sees what became of its request, whatever it was, or
// it would report a CORS error in place of a 429.
func TestABrowserSeesTheAnswerNotACORSError(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*") // its own idea
		w.Header().Set("Access-Control-Max-Age", "86400")
	})
	g := shaped(t, u.URL).start()
	const app = "https://app.example.com"
	preflight := func(path, origin, method string, more ...string) answer {
		return send(t, "OPTIONS", g.url+path, nil, append(more, "Origin", origin, "Access-Control-Request-Method", method)...)
	}
	const asks = "Access-Control-Request-Headers"
	// Preflights cost nothing, and nobody is asked who he is.
	for range 10 {
		a := preflight("/page", app, "PUT", asks, "x-api-key")
		if a.status != 204 || a.field("Access-Control-Allow-Origin") != app || a.field("Access-Control-Allow-Methods") != "PUT" ||
			!strings.EqualFold(a.field("Access-Control-Allow-Headers"), "x-api-key") || a.field("Access-Control-Allow-Credentials") != "true" ||
			a.field("Access-Control-Max-Age") != "600" || !strings.Contains(strings.Join(a.header["Vary"], ","), "Origin") || a.field("RateLimit") != "" {
			t.Fatalf("%d %v", a.status, a.header)
		}
	}
	if u.count() != 0 {
		t.Errorf("%d preflights reached the upstream", u.count())
	}
	if a := preflight("/page", "https://evil.example", "PUT"); a.status != 204 || a.field("Access-Control-Allow-Origin") != "" {
		t.Errorf("another site: %d %v", a.status, a.header)
	}
	if a := preflight("/member", app, "GET"); a.status != 204 || a.field("Access-Control-Allow-Origin") != app {
		t.Errorf("a route that wants credentials: %d %v", a.status, a.header)
	}
	if a := preflight("/member", app, "GET", asks, "x-api-key"); a.field("Access-Control-Allow-Origin") != "" {
		t.Errorf("a field that pages may not send: %v", a.header)
	}
	if a := preflight("/page", app, "DELETE"); a.status != 204 || a.field("Access-Control-Allow-Origin") != "" {
		t.Errorf("a method that no route takes: %d %v", a.status, a.header)
	}
	for _, origins := range [][]string{{app, app}, {"https://evil.com/.example.com"}} {
		r, err := http.NewRequest("GET", g.url+"/member", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header["Origin"] = origins
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%q: %v", origins, res.Header)
		}
	}
	// Without CORS a preflight is the upstream's business.
	if a := preflight("/plain", app, "GET"); a.status != 200 || a.field("Access-Control-Allow-Origin") != "*" || u.count() != 1 {
		t.Errorf("a route without CORS: %d %v, %d at the upstream", a.status, a.header, u.count())
	}
	seen := func(a answer, status int, origin string) {
		t.Helper()
		if a.status != status || strings.Join(a.header["Access-Control-Allow-Origin"], "|") != origin {
			t.Errorf("%d %v; want %d, seen by %s", a.status, a.header, status, origin)
		}
		for _, field := range []string{"Retry-After", "RateLimit", "X-RateLimit-Remaining", "X-Request-Id"} {
			if !strings.Contains(a.field("Access-Control-Expose-Headers"), http.CanonicalHeaderKey(field)) && !strings.Contains(a.field("Access-Control-Expose-Headers"), field) {
				t.Errorf("%d: %s cannot be read, of %q", status, field, a.field("Access-Control-Expose-Headers"))
			}
		}
	}
	for range 3 {
		a := g.get("/page", "Origin", app)
		seen(a, 200, app)
		if a.field("Access-Control-Max-Age") != "" || !strings.Contains(strings.ToLower(a.field("Access-Control-Expose-Headers")), "etag") {
			t.Errorf("%v", a.header)
		}
	}
	denied := g.get("/page", "Origin", app)
	seen(denied, 429, app)
	if denied.field("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	seen(g.get("/member", "Origin", "https://www.example.com"), 401, "https://www.example.com")
	seen(g.get("/lost", "Origin", "https://any.example"), 502, "*")
	none := send(t, "POST", g.url+"/member", nil, "Origin", "https://www.example.com")
	seen(none, 405, "https://www.example.com")
	if none.field("Allow") != "GET, HEAD" || none.field("Access-Control-Allow-Credentials") != "" {
		t.Errorf("a method that no route takes: %v", none.header)
	}
	if a := g.get("/plain", "Origin", app); a.field("Access-Control-Allow-Origin") != "*" {
		t.Errorf("what an upstream says itself: %v", a.header)
	}
}
