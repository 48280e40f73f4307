package test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
	"github.com/golang-jwt/jwt/v5"
)

// FIELD-REPORTS H01: however many different things callers send, there are as many series as before, and the
// memory does not grow with them: 100,000 paths, hosts, methods, keys, users and agents,
// no two of them the same (a fifth of that with the race detector).
func TestH01PathAsALabel(t *testing.T) {
	t.Parallel()
	u := httptestPlain(t)
	s := newSite(t)
	secret := []byte(strings.Repeat("s", 40))
	s.write("secret", string(secret))
	s.write("keys.yaml", "keys: []\n")
	s.write("plans.yaml", "default_plan: free\nanonymous_plan: free\nplans: {free: {limits: [{name: m, algorithm: fixed_window, limit: 1000/minute}]}}\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
log: {sample_allowed: 0}
store: {memory: {max_keys: 2000}}
auth:
  failure_limit: off
  jwt: [{issuer: a, audience: weather-api, algorithms: [HS256], secret_file: secret}]
  api_keys: {file: keys.yaml, failure_limit: off}
upstreams: {a: {targets: ["`+u+`"]}}
routes:
  - {name: open, path: "/open/*", upstream: a, auth: none, cost: 0}
  - {name: closed, path: "/closed/*", upstream: a, methods: [GET]}
`)
	g := s.start()
	const mark = "zq7mark"
	kinds := []struct {
		n, status int
		request   func(i int) string
	}{
		{70_000, 200, func(i int) string { // nothing of it is what another has; it is served, and has no line in the log
			return fmt.Sprintf("%[1]s%[2]d /open/%[1]s%[2]d HTTP/1.1\r\nHost: %[1]s%[2]d.example.com\r\nUser-Agent: %[1]s%[2]d\r\nReferer: %[1]s%[2]d\r\n\r\n", mark, i)
		}},
		{10_000, 404, func(i int) string {
			return fmt.Sprintf("GET /%[1]s%[2]d HTTP/1.1\r\nHost: %[1]s%[2]d.example.com\r\n\r\n", mark, i)
		}},
		{10_000, 401, func(i int) string {
			return fmt.Sprintf("GET /closed/a HTTP/1.1\r\nHost: a\r\nX-API-Key: %s%d\r\n\r\n", mark, i)
		}},
		{10_000, 200, func(i int) string {
			token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
				"iss": "a", "aud": "weather-api", "sub": mark + strconv.Itoa(i), "exp": time.Now().Add(time.Hour).Unix(),
			}).SignedString(secret)
			if err != nil {
				panic(err)
			}
			return "GET /closed/a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + token + "\r\n\r\n"
		}},
	}
	var mu sync.Mutex // protects statuses
	statuses := map[int]map[int]int{}
	for kind := range kinds {
		statuses[kind] = map[int]int{}
		if raceEnabled {
			kinds[kind].n /= 5 // they take as long as all of them without
		}
	}
	send := func(kind, from, to int) error {
		const together = 50
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(g.url, "http://"), patience)
		if err != nil {
			return err
		}
		defer c.Close()
		in := bufio.NewReader(c)
		for i := from; i < to; i += together {
			_ = c.SetDeadline(time.Now().Add(2 * patience))
			var b strings.Builder
			n := min(together, to-i)
			for j := range n {
				b.WriteString(kinds[kind].request(i + j))
			}
			if _, err := io.WriteString(c, b.String()); err != nil {
				return err
			}
			for range n {
				res, err := http.ReadResponse(in, nil)
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
				}
				if err != nil {
					return fmt.Errorf("kind %d, near %d: %w", kind, i, err)
				}
				mu.Lock()
				statuses[kind][res.StatusCode]++
				mu.Unlock()
			}
		}
		return nil
	}
	// all sends those from one tenth to another.
	all := func(from, to int) {
		t.Helper()
		var sending sync.WaitGroup
		for kind, k := range kinds {
			const parts = 3 // a connection each
			first, n := k.n*from/10, k.n*(to-from)/10
			for part := range parts {
				sending.Go(func() {
					if err := send(kind, first+n*part/parts, first+n*(part+1)/parts); err != nil {
						t.Error(err)
					}
				})
			}
		}
		sending.Wait()
	}
	before := len(g.metrics())
	all(0, 5) // by then the tables are full
	early := g.value("process_resident_memory_bytes")
	all(5, 10)
	late := g.value("process_resident_memory_bytes")
	if after := len(g.metrics()); after-before >= 50 {
		t.Errorf("there are %d series after all those different requests, and %d before: want fewer than 50 more", after, before)
	}
	if grown := (late - early) / (1 << 20); grown > 100 { // with the race detector; a few without
		t.Errorf("the process has grown by %.0f MiB over the second half of the requests", grown)
	}
	for kind, k := range kinds {
		// Users for whom there is no room of their own share a budget.
		if statuses[kind][k.status]+statuses[kind][http.StatusTooManyRequests] != k.n {
			t.Errorf("kind %d is answered %v, want %d of %d", kind, statuses[kind], k.n, k.status)
		}
	}
	for _, accept := range []string{"", "application/openmetrics-text; version=1.0.0"} {
		if a := scrapeAs(t, g.admin+"/metrics", accept); strings.Contains(a.body, mark) {
			t.Errorf("what a caller chose is in the metrics (%s)", accept)
		}
	}
	t.Logf("%d series before, %d after; %.0f MiB after half of them, %.0f MiB after all", before, len(g.metrics()), early/(1<<20), late/(1<<20))
}

// scrapeAs asks for the metrics in a format.
func scrapeAs(t testing.TB, url, accept string) answer {
	t.Helper()
	a := send(t, http.MethodGet, url, nil, "Accept", accept)
	if a.status != 200 {
		t.Fatalf("%s: %d", url, a.status)
	}
	return a
}

// httptestPlain is an upstream that keeps nothing of what it was asked.
func httptestPlain(t testing.TB) (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok")
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return "http://" + l.Addr().String()
}

// FIELD-REPORTS H02: bytes that are no text, wherever a caller can put them, break neither the process nor any
// scrape after them, nor a line of the log.
func TestH02InvalidUTF8PanicsTheMetricsClient(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := newSite(t)
	secret := []byte(strings.Repeat("s", 40))
	s.write("secret", string(secret))
	s.write("keys.yaml", "keys: []\n")
	s.write("plans.yaml", "default_plan: free\nanonymous_plan: free\nplans: {free: {limits: [{name: d, algorithm: fixed_window, limit: 1/day}]}}\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [127.0.0.1]}
auth:
  failure_limit: off
  jwt: [{issuer: a, audience: weather-api, algorithms: [HS256], secret_file: secret}]
  api_keys: {file: keys.yaml}
limits: {account: {per: "header:X-Account-Id", algorithm: fixed_window, limit: 2/day}}
upstreams: {a: {targets: ["`+u.URL+`"]}}
routes:
  - {name: a, path: "/a/*", upstream: a, auth: none, limits: [account]}
  - {name: who, path: /who, upstream: a}
`)
	g := s.start()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"iss": "a", "aud": "weather-api", "sub": "x", "exp": time.Now().Add(time.Hour).Unix()}).SignedString(secret)
	if err != nil {
		t.Fatal(err)
	}
	// A sub of bytes that are no text: the library would not write it.
	parts := strings.Split(token, ".")
	claims := fmt.Sprintf("{\"iss\":\"a\",\"aud\":\"weather-api\",\"sub\":\"\xff\xc0.\",\"exp\":%d}", time.Now().Add(time.Hour).Unix())
	raw := parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	signature, err := jwt.SigningMethodHS256.Sign(raw, secret)
	if err != nil {
		t.Fatal(err)
	}
	raw += "." + base64.RawURLEncoding.EncodeToString(signature)
	sent := 0
	for _, request := range []string{
		"GET /%ff HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /a/%ff%fe HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /\xc0.\xc0./winnt HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /a/\xc0.\xc0./winnt?\xff HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /a/x HTTP/1.1\r\nHost: \xff\xfe.example.com\r\n\r\n",
		"GET /a/x HTTP/1.1\r\nHost: xn--\xc3\x28\r\n\r\n",
		"G\xffT /a/x HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /a/x HTTP/1.1\r\nHost: a\r\nX-Account-Id: \xff\r\n\r\n",
		"GET /a/x HTTP/1.1\r\nHost: a\r\nX-Account-Id: \xed\xa0\x80\xff\r\n\r\n",
		"GET /a/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: \xff\r\nX-Forwarded-For: \xff, 192.0.2.1\r\nTraceparent: \xff\r\n\r\n",
		"GET /who HTTP/1.1\r\nHost: a\r\nX-API-Key: \xff\xfe\r\n\r\n",
		"GET /who HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xff.\xfe.\xfd\r\n\r\n",
		"GET /who HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + raw + "\r\n\r\n",
		"GET /who HTTP/1.1\r\nHost: a\r\nCookie: \xff=\xfe\r\nUser-Agent: \xff\r\n\r\n",
	} {
		for range 4 { // so that it comes to denials, and onto their list
			a := g.ask(request)
			sent++
			if a.status == 0 || a.status >= 500 {
				t.Errorf("%q is answered with %d", request, a.status)
			}
		}
	}
	for _, accept := range []string{
		"", "application/openmetrics-text; version=1.0.0",
		"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
	} {
		a := scrapeAs(t, g.admin+"/metrics", accept)
		if strings.Contains(a.body, "\xff") && !strings.Contains(accept, "protobuf") || a.body == "" {
			t.Errorf("%s: bytes of a caller are in the metrics", accept)
		}
	}
	for _, path := range []string{"/api/top-denied", "/api/status", "/api/live?once", "/api/denials"} {
		if a := send(t, http.MethodGet, g.admin+path, nil); a.status != 200 || !json.Valid([]byte(a.body)) || !utf8.ValidString(a.body) {
			t.Errorf("%s: %d, or no JSON", path, a.status)
		}
	}
	if a := g.get("/a/fine"); a.status != 200 && a.status != 429 {
		t.Errorf("afterwards: %d", a.status)
	}
	g.stop()
	for line := range strings.Lines(g.output()) {
		if !utf8.ValidString(line) || !json.Valid([]byte(line)) {
			t.Errorf("no line of JSON: %q", line)
		}
	}
	if strings.Contains(g.output()+g.stderr.String(), "panic") {
		t.Errorf("something panicked:\n%s", g.stderr.String())
	}
	if sent < 50 {
		t.Errorf("%d requests", sent)
	}
}

// FIELD-REPORTS H08: each request that does not simply end is logged with what became of it, the gauges are
// back at 0 after all of them, and how long a WebSocket or a stream lasted spoils no latency.
func TestH08LatencyHistogramsAndInFlightGaugesWrongForStreamsAndPanics(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		flush := func() { _ = http.NewResponseController(w).Flush() }
		switch r.URL.Path {
		case "/fresh":
			w.WriteHeader(http.StatusNotModified)
		case "/hints":
			w.Header().Set("Link", "</a.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "ok")
		case "/half":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			flush()
			panic(http.ErrAbortHandler)
		case "/dies":
			panic(http.ErrAbortHandler)
		case "/socket":
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer c.CloseNow()
			_, _, _ = c.Read(context.WithoutCancel(r.Context()))
		case "/events", "/slow":
			if r.URL.Path == "/events" {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: 1\n\n")
				flush()
			}
			select {
			case <-leave:
			case <-r.Context().Done():
			case <-time.After(2 * patience):
			}
		default:
			_, _ = io.WriteString(w, "ok")
		}
	})
	s := newSite(t)
	s.write("plans.yaml", "anonymous_plan: open\nplans: {open: {limits: []}}\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
upstreams: {a: {targets: ["`+u.URL+`"]}}
routes:
  - {name: all, path: "/*", upstream: a, auth: none}
`)
	g := s.start()
	const inFlight, sockets = `gateway_in_flight{route="all"}`, `gateway_websockets{route="all"}`
	const rounds = 5
	var leavers []*rawConn
	var open []*websocket.Conn
	for range rounds {
		c := g.openSocket()
		open = append(open, c)
		for _, path := range []string{"/slow", "/events"} {
			l := g.dial()
			l.say("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
			if path == "/events" {
				if res := l.hear("GET"); res.StatusCode != 200 {
					t.Errorf("a stream is answered with %d", res.StatusCode)
				}
			}
			leavers = append(leavers, l)
		}
		for _, request := range []string{"GET /fresh", "HEAD /a", "GET /hints", "GET /dies", "GET /a"} {
			l := g.dial()
			l.say(request + " HTTP/1.1\r\nHost: a\r\n\r\n")
			method, _, _ := strings.Cut(request, " ")
			res := l.hear(method)
			if res.StatusCode == http.StatusEarlyHints {
				res = l.hear(method)
			}
			want := map[string]int{"GET /fresh": 304, "HEAD /a": 200, "GET /hints": 200, "GET /dies": 502, "GET /a": 200}[request]
			if res.StatusCode != want {
				t.Errorf("%s is answered with %d, want %d", request, res.StatusCode, want)
			}
			_ = l.Close()
		}
		half := g.dial()
		half.say("GET /half HTTP/1.1\r\nHost: a\r\n\r\n")
		res := half.hear("GET")
		if _, err := io.ReadAll(res.Body); err == nil {
			t.Error("half an answer passes for a whole one")
		}
	}
	eventually(t, "all streams are in flight", func() bool { return g.value(inFlight) == 3*rounds && g.value(sockets) == rounds })
	for _, l := range leavers {
		_ = l.Close()
	}
	eventually(t, "those that left are not in flight any more", func() bool { return g.value(inFlight) == rounds })
	ended := g.value(`gateway_request_duration_seconds_count{route="all"}`)
	close(leave)
	for _, c := range open {
		_ = c.CloseNow()
	}
	eventually(t, "nothing is in flight", func() bool { return g.value(inFlight) == 0 && g.value(sockets) == 0 })
	// What lasts as long as its two sides want is not among what is fast or slow.
	if now := g.value(`gateway_request_duration_seconds_count{route="all"}`); now != ended || ended != 7*rounds {
		t.Errorf("%v requests are in the histogram, and %v with the WebSockets, want %d", ended, now, 7*rounds)
	}
	if n := g.value(`gateway_stream_duration_seconds_count{route="all"}`); n != 2*rounds {
		t.Errorf("%v streams and WebSockets are in the histogram of their own, want %d", n, 2*rounds)
	}
	// A stream lasts as long as its two sides want: that is no latency that the gateway adds.
	if slow := g.value(`gateway_added_latency_seconds_count{route="all"}`) - g.value(`gateway_added_latency_seconds_bucket{route="all",le="1"}`); slow > 0 {
		t.Errorf("%v requests count as delayed by more than a second", slow)
	}
	g.stop()
	want := map[string]string{
		"/socket": "101", "/slow": "499", "/events": "499", "/fresh": "304", "/hints": "200", "/dies": "502", "/half": "200", "/a": "200",
	}
	seen := map[string]int{}
	for _, line := range g.all("request") {
		path := fmt.Sprint(line["path"])
		seen[path]++
		if got := fmt.Sprint(line["status"]); got != want[path] {
			t.Errorf("%s %s is logged with status %s, want %s", line["method"], path, got, want[path])
		}
		if path == "/half" && line["upstream_error"] == nil {
			t.Error("half an answer is logged without what went wrong")
		}
	}
	for path := range want {
		if n := seen[path]; n != rounds && path != "/a" || path == "/a" && n != 2*rounds {
			t.Errorf("%s has %d lines", path, n)
		}
	}
}
