package test

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// upstreamSite forwards everything to one upstream, with what it says of that.
func upstreamSite(t testing.TB, upstream string) *site {
	s := newSite(t)
	s.write("plans.yaml", "plans: {}\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
upstreams:
  api: {`+upstream+`}
routes:
  - {name: all, path: "/*", upstream: api, auth: none, cost: 0}
`)
	return s
}

// A server that speaks HTTP/2 in the clear, as those of gRPC do, gets HTTP/2 from
// clients of either version, with trailers both ways.
func TestAnUpstreamOfHTTP2InTheClear(t *testing.T) {
	t.Parallel()
	u := &upstream{Server: httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Seen", strings.TrimSpace(r.Proto+" "+r.Host+" "+r.Header.Get("Te")+r.Header.Get("Upgrade")+" "+r.Trailer.Get("X-Client-Sum")))
		_, _ = w.Write(b)
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("X-Sum", "42")
	}))}
	u.Config.Protocols = new(http.Protocols)
	u.Config.Protocols.SetUnencryptedHTTP2(true)
	u.Start()
	t.Cleanup(u.Close)
	host := strings.TrimPrefix(u.URL, "http://")
	g := upstreamSite(t, "targets: [\"h2c://"+host+"/base\"]").start()
	for _, version := range []int{1, 2} {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(version == 1)
		tr.Protocols.SetUnencryptedHTTP2(version == 2)
		t.Cleanup(tr.CloseIdleConnections)
		r, _ := http.NewRequestWithContext(t.Context(), "POST", g.url+"/a", struct{ io.Reader }{strings.NewReader("hello")})
		r.Header.Set("TE", "trailers")
		r.Trailer = http.Header{"X-Client-Sum": {"41"}}
		res, err := (&http.Client{Transport: tr, Timeout: patience}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if got, want := res.Header.Get("X-Seen"), "HTTP/2.0 "+host+" trailers 41"; string(b) != "hello" || err != nil || got != want || res.Trailer.Get("X-Sum") != "42" {
			t.Errorf("HTTP/%d: %q, want %q; body %q %v, trailers %v", version, got, want, b, err, res.Trailer)
		}
	}
	// It can be asked for no WebSocket: whoever wants one is told.
	a := g.ask("GET /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	if a.status != 501 || a.field("X-Seen") != "" {
		t.Errorf("a WebSocket: %d %q", a.status, a.field("X-Seen"))
	}
	if g.value(`gateway_upstream_up{target="`+host+`",upstream="api"}`) != 1 {
		t.Error("the upstream is not told to be up")
	}
}

// An upstream of HTTP/2 that breaks off, or has said all it has to say, is told of at
// once, and not only when its client, who may wait for that, sends more of the body.
func TestAnUpstreamOfHTTP2EndsDuringTheUpload(t *testing.T) {
	t.Parallel()
	u := &upstream{Server: httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 5))
		switch r.URL.Path {
		case "/begun":
			_ = http.NewResponseController(w).Flush()
			_, _ = io.ReadFull(r.Body, make([]byte, 5))
		case "/enough":
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "enough")
			return
		}
		panic(http.ErrAbortHandler)
	}))}
	u.Config.Protocols = new(http.Protocols)
	u.Config.Protocols.SetUnencryptedHTTP2(true)
	u.Start()
	t.Cleanup(u.Close)
	g := upstreamSite(t, "targets: [\"h2c://"+strings.TrimPrefix(u.URL, "http://")+"\"]").start()
	for path, want := range map[string]int{"/a": 502, "/enough": 200} {
		c := g.dial()
		c.say("POST " + path + " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		if a := c.hearAll("POST"); a.status != want || want == 200 && a.body != "enough" {
			t.Errorf("HTTP/1 %s: %d %q", path, a.status, a.body)
		}
	}
	for path, want := range map[string]int{"/a": 502, "/begun": 200, "/enough": 200} {
		body, feed := io.Pipe()
		t.Cleanup(func() { _ = feed.Close() })
		go func() { _, _ = io.WriteString(feed, "hello") }()
		res, err := h2cClient(t).Post(g.url+path, "text/plain", body)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if path == "/begun" {
			_, _ = io.WriteString(feed, "hello")
		}
		if b, err := io.ReadAll(res.Body); res.StatusCode != want || (path == "/begun") != (err != nil) || path == "/enough" && string(b) != "enough" {
			t.Errorf("%s: %d %q %v", path, res.StatusCode, b, err)
		}
		_ = res.Body.Close()
	}
}

func TestAnUpstreamBehindASocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{Server: httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Host+" "+r.RequestURI)
	}))}
	u.Listener = l
	u.Start()
	t.Cleanup(u.Close)
	g := upstreamSite(t, `targets: ["unix://`+path+`"]`).start()
	a := g.get("/a%2Fb?c=1;d")
	if a.status != 200 || a.body != "localhost /a%2Fb?c=1;d" {
		t.Errorf("%d %q", a.status, a.body)
	}
	if line := g.requestLine(a.field("X-Request-Id")); line["target"] != nil && line["target"] != "unix:"+path {
		t.Errorf("the log calls it %v", line["target"])
	}
	u.Close()
	if a := g.get("/a"); a.status != 502 {
		t.Errorf("nobody there: %d", a.status)
	}
}

// The gateway trusts whom it is told to, shows its own certificate, and calls the
// server by the name that it is told.
func TestTLSToAnUpstream(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	s := upstreamSite(t, "targets: [http://127.0.0.1:1]")
	ca.issue(t, s, 1, time.Now().Add(time.Hour))
	cert, err := tls.LoadX509KeyPair(s.path("cert.pem"), s.path("key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})))
	u := &upstream{Server: httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.ServerName+" "+r.TLS.PeerCertificates[0].SerialNumber.String())
	}))}
	u.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool}
	u.Config.ErrorLog = log.New(io.Discard, "", 0) // half of the handshakes fail
	u.StartTLS()
	t.Cleanup(u.Close)
	with := func(more string) {
		s.write("routes.yaml", strings.Replace(`
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
upstreams:
  api: {targets: ["`+u.URL+`"], MORE}
routes:
  - {name: all, path: "/*", upstream: api, auth: none, cost: 0}
`, "MORE", more, 1))
	}
	const right = "tls: {ca_file: ca.pem, cert_file: cert.pem, key_file: key.pem, server_name: gateway.example.test}"
	with(right)
	g := s.start()
	if a := g.get("/"); a.status != 200 || a.body != "gateway.example.test 1" {
		t.Errorf("%d %q, want the name and our certificate", a.status, a.body)
	}
	// A renewed certificate is taken over, though no word of the files changed.
	ca.issue(t, s, 2, time.Now().Add(time.Hour))
	eventually(t, "the renewed certificate is shown", func() bool { return g.get("/").body == "gateway.example.test 2" })
	for _, more := range []string{
		"tls: {cert_file: cert.pem, key_file: key.pem}", // of an authority that nobody trusts
		"tls: {ca_file: ca.pem}",                        // no certificate of ours
		"tls: {ca_file: ca.pem, cert_file: cert.pem, key_file: key.pem, server_name: other.example.test}", // another's name
	} {
		// Not by reload: the watch may tell of the change before this one meanwhile.
		with(right)
		eventually(t, "a handshake that succeeds", func() bool { return g.get("/").status == 200 })
		with(more)
		eventually(t, more+": 502", func() bool { return g.get("/").status == 502 })
		if a := g.get("/"); a.status != 502 || strings.Contains(a.body, "x509") {
			t.Errorf("%s: %d %s", more, a.status, a.body)
		}
	}
}

// FIELD-REPORTS I04: what an upstream has no room for, because it hangs, is not charged, and neither is what it would only
// fail at.
func TestWhatAnUpstreamCannotTakeCostsNothing(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			arrived <- struct{}{}
			<-release
		case "/bad":
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	s := newSite(t)
	s.write("plans.yaml", "anonymous_plan: strangers\nplans: {strangers: {limits: [{name: per-hour, per: ip, algorithm: fixed_window, limit: 1000/hour}]}}\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
upstreams:
  narrow: {targets: ["`+u.URL+`"], max_in_flight: 2}
  frail: {targets: ["`+u.URL+`"], circuit: {errors: 50%, window: 10s, open: 1h}}
routes:
  - {name: slow, path: /slow, upstream: narrow, auth: none}
  - {name: bad, path: /bad, upstream: frail, auth: none}
`)
	g := s.start()
	left := func(a answer) string { return a.field("X-RateLimit-Remaining") }
	var streams sync.WaitGroup
	for range 2 {
		streams.Go(func() { g.get("/slow") })
		<-arrived
	}
	for range 5 {
		if a := g.get("/slow"); a.status != 503 || a.field("Retry-After") != "1" || left(a) != "" || u.count() != 2 {
			t.Fatalf("beyond two in flight: %d %v", a.status, a.header)
		}
	}
	if v := g.value(`gateway_upstream_refused_total{reason="no_room",upstream="narrow"}`); v != 5 {
		t.Errorf("%v refusals counted, want 5", v)
	}
	close(release)
	streams.Wait()
	if a := g.get("/slow"); a.status != 200 || left(a) != "997" {
		t.Errorf("with room again: %d, %s left, want 997: only three were carried", a.status, left(a))
	}

	for range 20 {
		if a := g.get("/bad"); a.status != 500 {
			t.Fatalf("%d, want the upstream's own 500", a.status)
		}
	}
	before := u.count()
	for range 5 {
		if a := g.get("/bad"); a.status != 503 || a.field("Retry-After") != "3600" || u.count() != before {
			t.Fatalf("an upstream that fails: %d %v", a.status, a.header)
		}
	}
	if g.value(`gateway_upstream_circuit_open{upstream="frail"}`) != 1 || g.value(`gateway_upstream_circuit_open{upstream="narrow"}`) != 0 {
		t.Error("the metric does not say which upstream is left alone")
	}
	if a := g.get("/slow?"); left(a) != "976" {
		t.Errorf("%s left, want 976: 24 were carried", left(a))
	}
	// Another configuration of it starts anew.
	s.write("routes.yaml", strings.Replace(string(must(os.ReadFile(s.path("routes.yaml")))), "window: 10s", "window: 20s", 1))
	eventually(t, "the changed circuit is closed", func() bool { return g.value(`gateway_upstream_circuit_open{upstream="frail"}`) == 0 })
}

// FIELD-REPORTS F10: what is attempted again arrives whole, once at each server, and the
// client sees nothing of the attempt that failed.
func TestAFailureIsAttemptedAgain(t *testing.T) {
	t.Parallel()
	var bodies sync.Map // by server
	serve := func(name string, fail func(w http.ResponseWriter) bool) *upstream {
		return newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			bodies.Store(name+r.URL.Path, string(b)+" "+r.Header.Get("Content-Length"))
			if err != nil || int64(len(b)) != r.ContentLength {
				t.Errorf("%s of %d bytes ended after %d: %v", r.URL.Path, r.ContentLength, len(b), err)
			}
			if !fail(w) {
				_, _ = io.WriteString(w, "well")
			}
		})
	}
	busy := serve("busy", func(w http.ResponseWriter) bool {
		w.Header().Set("X-Busy", "yes")
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	lost := serve("lost", func(http.ResponseWriter) bool { panic(http.ErrAbortHandler) })
	well := serve("well", func(http.ResponseWriter) bool { return false })
	s := newSite(t)
	s.write("plans.yaml", "anonymous_plan: strangers\nplans: {strangers: {limits: [{name: per-hour, per: ip, algorithm: fixed_window, limit: 1000/hour}]}}\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
upstreams:
  api: {targets: ["`+busy.URL+`", "`+lost.URL+`", "`+well.URL+`"], balance: round_robin, retries: {attempts: 2, budget: 100%}}
  sick: {targets: ["`+busy.URL+`"], retries: {attempts: 1, budget: 10%}}
routes:
  - {name: api, path: "/api/*", upstream: api, auth: none}
  - {name: sick, path: "/sick/*", upstream: sick, auth: none, cost: 0}
`)
	g := s.start()
	body := strings.Repeat("0123456789", 100)
	post := func(path, key string) string {
		return "POST " + path + " HTTP/1.1\r\nHost: a\r\n" + key + "Content-Length: 1000\r\n\r\n" + body
	}
	// In turn: busy, lost, well; the next request begins at the second, the third is well.
	a := g.ask(post("/api/1", "Idempotency-Key: k1\r\n"))
	if a.status != 200 || a.body != "well" || a.field("X-Busy") != "" || a.field("X-RateLimit-Remaining") != "999" {
		t.Fatalf("%d %q %v", a.status, a.body, a.header)
	}
	for _, name := range []string{"busy", "lost", "well"} {
		if got, _ := bodies.Load(name + "/api/1"); got != body+" 1000" {
			t.Errorf("%s got %v", name, got)
		}
	}
	if line := g.requestLine(a.field("X-Request-Id")); line["upstream_attempts"] != 3.0 || "http://"+line["target"].(string) != well.URL || line["status"] != 200.0 {
		t.Errorf("the log says %v", line)
	}
	// The same without a key fails at the second, and at the first after the third.
	if a := g.ask(post("/api/2", "")); a.status != 502 {
		t.Errorf("a POST that was lost: %d", a.status)
	}
	if a := g.get("/api/3"); a.status != 200 {
		t.Errorf("at the third: %d", a.status)
	}
	if a := g.ask(post("/api/4", "")); a.status != 503 || a.field("X-Busy") != "yes" {
		t.Errorf("a POST that is refused: %d", a.status)
	}
	if busy.count() != 2 || lost.count() != 2 || well.count() != 2 {
		t.Errorf("%d, %d and %d arrived, want two each", busy.count(), lost.count(), well.count())
	}
	for series, want := range map[string]float64{
		`gateway_upstream_retries_total{outcome="done",upstream="api"}`:                                                         2,
		`gateway_upstream_retries_total{outcome="budget",upstream="api"}`:                                                       0,
		`gateway_upstream_requests_total{code="503",target="` + strings.TrimPrefix(busy.URL, "http://") + `",upstream="api"}`:   2,
		`gateway_upstream_requests_total{code="error",target="` + strings.TrimPrefix(lost.URL, "http://") + `",upstream="api"}`: 2,
		`gateway_upstream_requests_total{code="200",target="` + strings.TrimPrefix(well.URL, "http://") + `",upstream="api"}`:   2,
	} {
		if got := g.value(series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}

	// An upstream that is away for all gets a tenth more, and the three there are.
	before := busy.count()
	for range 50 {
		if a := g.get("/sick/1"); a.status != 503 {
			t.Fatalf("got %d", a.status)
		}
	}
	if n := busy.count() - before; n != 58 {
		t.Errorf("50 requests became %d, want 58", n)
	}
	if done, spent := g.value(`gateway_upstream_retries_total{outcome="done",upstream="sick"}`), g.value(`gateway_upstream_retries_total{outcome="budget",upstream="sick"}`); done != 8 || spent != 42 {
		t.Errorf("%v done and %v not, want 8 and 42", done, spent)
	}
}
