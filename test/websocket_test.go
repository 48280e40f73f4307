package test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/golang-jwt/jwt/v5"
)

// A socketUpstream takes WebSockets at /socket and echoes what comes, refuses
// handshakes at /refuses, breaks off at /dies, and answers everything else.
type socketUpstream struct {
	*upstream
	ended chan websocket.StatusCode // how each WebSocket came to its end, as it was told
}

func newSocketUpstream(t testing.TB) *socketUpstream {
	u := &socketUpstream{ended: make(chan websocket.StatusCode, 64)}
	u.upstream = newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/refuses":
			http.Error(w, "no sockets today", http.StatusForbidden)
		case "/dies":
			panic(http.ErrAbortHandler)
		case "/socket":
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				return // no handshake
			}
			defer c.CloseNow()
			for {
				kind, b, err := c.Read(context.Background())
				if err == nil {
					err = c.Write(context.Background(), kind, b)
				}
				if err != nil {
					u.ended <- websocket.CloseStatus(err)
					return
				}
			}
		default:
			_, _ = io.WriteString(w, "ok")
		}
	})
	return u
}

// socketSite has a route for WebSockets with these settings, and an edge limit.
func socketSite(t testing.TB, u *socketUpstream, settings, edge string) *weatherSite {
	s := newWeatherSite(t, u.upstream, "")
	s.write("plans.yaml", "default_plan: free\nanonymous_plan: free\nplans:\n  free: {limits: [{name: per-hour, algorithm: fixed_window, limit: 1000/hour}]}\n")
	s.routes(u, settings, edge)
	return s
}

func (s *weatherSite) routes(u *socketUpstream, settings, edge string) {
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
auth:
  jwt: [{issuer: "https://login.example.com/", audience: weather-api, algorithms: [HS256], secret_file: secret}]
  api_keys: {file: keys.yaml}
limits:
  edge-ip: {per: ip, algorithm: fixed_window, limit: `+edge+`}
edge: [edge-ip]
upstreams:
  weather: {targets: ["`+u.URL+`"]}
routes:
  - {name: sockets, path: "/*", upstream: weather, auth: optional`+settings+`}
`)
}

// dial opens a WebSocket, and returns it with the answer to its handshake.
func (g *gateway) socket(path string, fields ...string) (*websocket.Conn, *http.Response) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	h := http.Header{}
	for i := 0; i < len(fields); i += 2 {
		h.Add(fields[i], fields[i+1])
	}
	c, res, _ := websocket.Dial(ctx, g.url+path, &websocket.DialOptions{HTTPHeader: h})
	if c != nil {
		g.t.Cleanup(func() { _ = c.CloseNow() })
	}
	if res == nil {
		g.t.Fatalf("no answer to the handshake at %s", path)
	}
	return c, res
}

// open opens a WebSocket that has to be let in.
func (g *gateway) openSocket(fields ...string) *websocket.Conn {
	g.t.Helper()
	c, res := g.socket("/socket", fields...)
	if c == nil {
		g.t.Fatalf("the handshake is answered with %d", res.StatusCode)
	}
	return c
}

// echoes sends a message there and back.
func echoes(t testing.TB, c *websocket.Conn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		return err
	}
	_, b, err := c.Read(ctx)
	if err == nil && string(b) != "hello" {
		err = fmt.Errorf("an echo of hello is %q", b)
	}
	return err
}

// toldEnd waits for the end of a WebSocket and returns what the client is told.
func toldEnd(t testing.TB, c *websocket.Conn) websocket.StatusCode {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, _, err := c.Read(ctx)
	return websocket.CloseStatus(err)
}

func (u *socketUpstream) toldEnd(t testing.TB) websocket.StatusCode {
	t.Helper()
	select {
	case code := <-u.ended:
		return code
	case <-time.After(patience):
		t.Fatal("the upstream does not learn of the end")
		return 0
	}
}

// The timeout of a route is about how long an answer takes to begin (F08).
func TestAWebSocketOutlivesTheTimeoutOfItsRoute(t *testing.T) {
	t.Parallel()
	u := newSocketUpstream(t)
	g := socketSite(t, u, ", timeout: 150ms", "1000/hour").start()
	c := g.openSocket()
	for end := time.Now().Add(400 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err := echoes(t, c); err != nil {
			t.Fatalf("cut: %v", err)
		}
	}
}

// A caller has so many WebSockets on an instance and no more, and each way in which
// one comes to its end, or to nothing, gives its place back once (F27).
func TestOneCallerOpensOnlySoManyWebSockets(t *testing.T) {
	t.Parallel()
	u := newSocketUpstream(t)
	s := socketSite(t, u, ", websocket: {max_connections: 2}", "1000/hour")
	priya, ravi := s.key("-user", "priya123"), s.key("-user", "ravi")
	g := s.start()
	as := func(key string) []string { return []string{"X-API-Key", key} }
	full := func(when string) {
		t.Helper()
		charged := g.get("/", as(priya)...).field("X-RateLimit-Remaining")
		c, res := g.socket("/socket", as(priya)...)
		if c != nil || res.StatusCode != 429 || res.Header.Get("Retry-After") == "" || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Fatalf("%s: the third of two: %d %v", when, res.StatusCode, res.Header)
		}
		b, _ := io.ReadAll(res.Body)
		if !strings.Contains(string(b), "As many WebSockets are open as may be at the same time, 2.") {
			t.Errorf("%s: %s", when, b)
		}
		var before, after int
		_, _ = fmt.Sscan(charged, &before)
		if _, _ = fmt.Sscan(g.get("/", as(priya)...).field("X-RateLimit-Remaining"), &after); after != before-1 {
			t.Errorf("%s: a refused handshake is charged: %d left, then %d", when, before, after)
		}
	}
	first, second := g.openSocket(as(priya)...), g.openSocket(as(priya)...)
	full("two are open")
	if g.get("/", as(priya)...).status != 200 {
		t.Error("a plain request is refused as well")
	}
	if err := echoes(t, g.openSocket(as(ravi)...)); err != nil { // as many for another
		t.Error(err)
	}
	anonymous := g.openSocket()
	if err := echoes(t, anonymous); err != nil {
		t.Error(err)
	}
	if n := g.value(`gateway_websockets{route="sockets"}`); n != 4 {
		t.Errorf("%v WebSockets are said to be open, want 4", n)
	}

	// The count outlives a configuration, and a smaller number holds for those to come.
	s.routes(u, ", websocket: {max_connections: 2, lifetime: 1d}", "1000/hour")
	if !g.reload() {
		t.Fatal("the reload is refused")
	}
	full("after a reload")

	reopened := func(how string) {
		t.Helper()
		var c *websocket.Conn
		eventually(t, "a place is given back when "+how, func() bool {
			c, _ = g.socket("/socket", as(priya)...)
			return c != nil
		})
		second = c
		full("after " + how)
	}
	_ = first.Close(websocket.StatusNormalClosure, "")
	reopened("the client says farewell")
	_ = second.CloseNow()
	reopened("the client is gone")
	_ = second.CloseNow()
	eventually(t, "two places are there", func() bool { return g.value(`gateway_websockets{route="sockets"}`) == 3 })
	for _, path := range []string{"/refuses", "/dies", "/refuses", "/dies", "/plain"} {
		if c, res := g.socket(path, as(priya)...); c != nil || res.StatusCode == 429 {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
	reopened("handshakes came to nothing")
	if n := g.value("gateway_websockets_refused_total"); n < 5 {
		t.Errorf("%v refused handshakes are counted", n)
	}
	for _, line := range g.all("request") {
		if line["status"] == 429.0 && line["denied_by"] != "websocket_connections" {
			t.Errorf("a refused handshake in the log: %v", line)
		}
	}
}

// A client that connects anew all the time is stopped at the edge (F27).
func TestRefusedHandshakesAreLimited(t *testing.T) {
	t.Parallel()
	u := newSocketUpstream(t)
	g := socketSite(t, u, ", websocket: {max_connections: 1}", "5/hour").start()
	g.openSocket()
	for range 4 {
		if c, res := g.socket("/socket"); c != nil || res.StatusCode != 429 || res.Header.Get("Retry-After") != "5" {
			t.Fatalf("%d, Retry-After %q", res.StatusCode, res.Header.Get("Retry-After"))
		}
	}
	if _, res := g.socket("/socket"); res.StatusCode != 429 || !strings.Contains(res.Header.Get("RateLimit"), `"edge-ip"`) {
		t.Errorf("the sixth handshake of five: %d %v", res.StatusCode, res.Header)
	}
	if u.count() != 1 {
		t.Errorf("%d handshakes reached the upstream, want 1", u.count())
	}
}

// Both sides are told why a WebSocket is ended.
func TestAWebSocketEndsWhereItsRouteSaysSo(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{"idle": "idle: 1s", "lifetime": "lifetime: 1s, idle: 1m"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newSocketUpstream(t)
			g := socketSite(t, u, ", websocket: {"+settings+"}", "1000/hour").start()
			c := g.openSocket()
			if err := echoes(t, c); err != nil {
				t.Fatal(err)
			}
			if client, upstream := toldEnd(t, c), u.toldEnd(t); client != websocket.StatusGoingAway || upstream != websocket.StatusGoingAway {
				t.Errorf("the client is told %d, the upstream %d; want 1001", client, upstream)
			}
			eventually(t, "the end is counted", func() bool {
				return g.value(`gateway_websockets_ended_total{reason="`+name+`"}`) == 1 && g.value(`gateway_websockets{route="sockets"}`) == 0
			})
		})
	}
}

// A token opens a WebSocket, and does not keep it open beyond its own end (F27).
func TestAWebSocketEndsWithItsToken(t *testing.T) {
	t.Parallel()
	u := newSocketUpstream(t)
	s := socketSite(t, u, "", "1000/hour")
	exp := time.Now().Add(2 * time.Second).Truncate(time.Second)
	token := s.token("priya123", func(c jwt.MapClaims) { c["exp"] = exp.Unix() })
	g := s.start()
	c := g.openSocket("Authorization", "Bearer "+token)
	other := g.openSocket("Authorization", "Bearer "+s.token("ravi", nil))
	if err := echoes(t, c); err != nil {
		t.Fatal(err)
	}
	if client, upstream := toldEnd(t, c), u.toldEnd(t); client != websocket.StatusPolicyViolation || upstream != websocket.StatusPolicyViolation {
		t.Errorf("the client is told %d, the upstream %d; want 1008", client, upstream)
	}
	if time.Now().Before(exp) {
		t.Error("it ended before its token")
	}
	if err := echoes(t, other); err != nil {
		t.Errorf("one with a good token: %v", err)
	}
	if n := g.value(`gateway_websockets_ended_total{reason="credential"}`); n != 1 {
		t.Errorf("%v ends for a credential are counted, want 1", n)
	}
}

// FIELD-REPORTS I02: a gateway that has to stop says so to those who are still there.
func TestSIGTERMTellsWebSockets(t *testing.T) {
	t.Parallel()
	u := newSocketUpstream(t)
	s := socketSite(t, u, "", "1000/hour")
	text, err := os.ReadFile(s.path("routes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("routes.yaml", "shutdown_timeout: 1h\n"+string(text))
	g := s.start()
	c := g.openSocket()
	if err := echoes(t, c); err != nil {
		t.Fatal(err)
	}
	g.signal(syscall.SIGTERM)
	if client, upstream := toldEnd(t, c), u.toldEnd(t); client != websocket.StatusGoingAway || upstream != websocket.StatusGoingAway {
		t.Errorf("the client is told %d, the upstream %d; want 1001", client, upstream)
	}
	if code := g.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if line := g.logged("request"); line == nil || line["denied_by"] != "shutting_down" {
		t.Errorf("the line of the WebSocket: %v", line)
	}
	if n := len(g.all("requests are still in flight after shutdown_timeout and are cut")); n > 0 {
		t.Error("the log says that requests were cut")
	}
}
