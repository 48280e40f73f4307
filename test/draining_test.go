package test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/net/http2"
)

// A keptConnection is one connection that a client goes on using.
type keptConnection struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func keep(t testing.TB, g *gateway) *keptConnection {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &keptConnection{t, c, bufio.NewReader(c)}
}

func (c *keptConnection) get(path string) *http.Response {
	c.t.Helper()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path); err != nil {
		c.t.Fatal(err)
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatalf("no answer on a connection that was kept: %v", err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		c.t.Fatal(err)
	}
	return res
}

// FIELD-REPORTS I02: during drain_delay balancers still send and clients still use the
// connections they have: all of it is served, and each answer asks to go elsewhere. Who
// waits in a queue has its turn.
func TestDrainingLosesNoRequest(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := openSite(t, u)
	s.write("plans.yaml", "anonymous_plan: all\nplans: {all: {limits: []}}\n")
	s.write("routes.yaml", openRoutes(u, "127.0.0.1:0")+`  - {name: queued, path: /queued, upstream: weather, auth: none, limits: [drip]}
limits: {drip: {per: ip, algorithm: leaky_bucket, limit: 2/second, queue: 3}}
drain_delay: 1s
`)
	g := s.start()
	var others sync.WaitGroup
	quit := make(chan struct{})
	for range 4 { // of which each request is a connection of its own from the signal on
		others.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
				}
				a, err := trySend("GET", g.url+"/api/weather", nil)
				if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) {
					return // the listener is closed, and a balancer has known for long
				}
				if err != nil || a.status != 200 {
					t.Errorf("a request among many: %d, %v", a.status, err)
					return
				}
			}
		})
	}
	for range 4 {
		others.Go(func() {
			if a, err := trySend("GET", g.url+"/queued", nil); err != nil || a.status != 200 {
				t.Errorf("one that waited in the queue: %d, %v", a.status, err)
			}
		})
	}
	eventually(t, "some wait", func() bool { return g.value(`gateway_in_flight{route="queued"}`) > 0 })
	idle, busy := keep(t, g), keep(t, g)
	for _, c := range []*keptConnection{idle, busy} {
		if res := c.get("/api/weather"); res.StatusCode != 200 || res.Close {
			t.Fatalf("before: %d, close %v", res.StatusCode, res.Close)
		}
	}
	g.signal(syscall.SIGTERM)
	eventually(t, "it is not ready", func() bool {
		a, err := trySend("GET", g.admin+"/readyz", nil)
		return err == nil && a.status == 503
	})
	for _, c := range []*keptConnection{idle, busy, keep(t, g)} {
		if res := c.get("/api/weather"); res.StatusCode != 200 || !res.Close {
			t.Errorf("while draining: %d, close %v; want 200 and Connection: close", res.StatusCode, res.Close)
		}
	}
	close(quit)
	others.Wait()
	if code := g.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// FIELD-REPORTS I02: SIGTERM does not wait for ever: what shutdown_timeout does not suffice for is
// cut, the exit code is still 0, and the request still has its line.
func TestACutRequestHasItsLine(t *testing.T) {
	arrived := make(chan struct{})
	u := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	s := openSite(t, u)
	s.write("routes.yaml", openRoutes(u, "127.0.0.1:0")+"shutdown_timeout: 200ms\n")
	g := s.start()
	told := make(chan answer, 1)
	go func() {
		a, err := trySend("GET", g.url+"/api/weather", nil)
		if err != nil {
			t.Errorf("the client was told nothing: %v", err)
		}
		told <- a
	}()
	<-arrived
	g.stop()
	if line := g.logged("request"); line == nil || line["route"] != "weather" || line["denied_by"] != "shutting_down" || line["status"] != 503.0 {
		t.Errorf("the line of the request that was cut: %v", line)
	}
	if a := <-told; a.status != 503 || !strings.Contains(a.body, "may have been carried out") {
		t.Errorf("the client was told %d %s", a.status, a.body)
	}
}

// Nor does it matter to the answer that the client's body stands still. The log says
// what was sent.
func TestAnUploadThatStandsStillIsToldOfTheEnd(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 4)
	u := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
	})
	s := proxySite(t, u.URL)
	s.write("routes.yaml", proxyRoutes(u.URL, `http: "127.0.0.1:0"`, "")+"shutdown_timeout: 200ms\n")
	g := s.start()
	h1, h2 := g.dial(), g.dialHTTP2()
	h1.say("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\nabc")
	for i, fields := range [][]string{nil, {"content-length", "99"}} {
		stream := uint32(2*i + 1)
		h2.request(stream, false, fields...)
		if err := h2.WriteData(stream, false, []byte("abc")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all three arrive", func() bool { return len(arrived) == 3 })
	g.signal(syscall.SIGTERM)
	told := map[string]int{}
	a := h1.hearAll("POST")
	if a.status != 503 || !strings.Contains(a.body, "may have been carried out") {
		t.Errorf("over HTTP/1.1 the client was told %d %s", a.status, a.body)
	}
	told[a.field("X-Request-Id")] = len(a.body)
	// Both streams end, and neither by a reset.
	for ended, id := 0, map[uint32]string{}; ended < 2; {
		frame, err := h2.ReadFrame()
		if err != nil {
			t.Fatalf("the connection of HTTP/2 ends before its streams: %v", err)
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			if frame.PseudoValue("status") != "503" {
				t.Errorf("over HTTP/2 the client was told %v", frame.Fields)
			}
			for _, field := range frame.RegularFields() {
				if field.Name == "x-request-id" {
					id[frame.StreamID] = field.Value
				}
			}
		case *http2.DataFrame:
			told[id[frame.StreamID]] += len(frame.Data())
			if frame.StreamEnded() {
				ended++
			}
		}
	}
	if code := g.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, line := range g.all("request") {
		if line["status"] != 503.0 || line["denied_by"] != "shutting_down" || line["bytes"] != float64(told[str(line, "request_id")]) {
			t.Errorf("logged %v, and told %v", line, told)
		}
	}
	if len(told) != 3 {
		t.Errorf("%d were told, want 3", len(told))
	}
}

// An admin listener that everybody can reach stays behind its token, whatever a
// reload says about an address that only a restart could change.
func TestAReloadDoesNotOpenTheAdminListener(t *testing.T) {
	u := newUpstream(t, nil)
	s := openSite(t, u)
	s.write("token", "admin-token-of-this-test\n")
	open := openRoutes(u, "127.0.0.1:0")
	s.write("routes.yaml", strings.Replace(open, `admin: "127.0.0.1:0"`, `admin: "0.0.0.0:0"`, 1)+"admin: {token_file: token}\n")
	g := s.start()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(g.admin, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	g.admin = "http://127.0.0.1:" + port
	look := func() int { return send(t, "GET", g.admin+"/api/status", nil).status }
	if got := look(); got != 401 {
		t.Fatalf("without a token: %d, want 401", got)
	}
	s.write("routes.yaml", open)
	eventually(t, "the reload", func() bool { return g.logged(reloadApplied) != nil })
	if got := look(); got != 401 && got != 403 {
		t.Errorf("after a reload to a loopback address that is not bound: %d", got)
	}
	if line := g.logged("some changes take effect at the next restart only"); line == nil {
		t.Error("the log does not say that the address needs a restart")
	}
	if got := send(t, "GET", g.admin+"/metrics", nil).status; got != 200 {
		t.Errorf("/metrics: %d", got)
	}
}

// A deployment that replaces the whole directory is noticed like any other,
// and so is every edit after it.
func TestAReplacedDirectoryIsNoticed(t *testing.T) {
	u := newUpstream(t, nil)
	s := openSite(t, u)
	conf := func(name, extra string) {
		if err := os.Mkdir(s.path(name), 0o755); err != nil {
			t.Fatal(err)
		}
		plans, err := os.ReadFile(s.path("plans.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{"plans.yaml": string(plans), "routes.yaml": openRoutes(u, "127.0.0.1:0") + extra} {
			if err := os.WriteFile(s.path(name+"/"+file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	conf("conf", "")
	g := s.startWith("-routes", "conf/routes.yaml", "-plans", "conf/plans.yaml")
	for i := range 3 {
		path := fmt.Sprintf("/replaced-%d", i)
		conf("next", "  - {name: new, path: "+path+", upstream: weather, auth: none}\n")
		if err := os.Rename(s.path("conf"), s.path(fmt.Sprintf("old-%d", i))); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(s.path("next"), s.path("conf")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new directory's configuration is in force", func() bool { return g.get(path).status == 200 })
	}
	if n := len(g.all(reloadRejected)); n > 3 {
		t.Errorf("%d complaints about the moments in between", n)
	}
}

// -print is a configuration and nothing else, so that it can be read as one.
func TestCheckPrintsWhatCanBeReadAgain(t *testing.T) {
	u := newUpstream(t, nil)
	s := openSite(t, u)
	s.write("plans.yaml", `
anonymous_plan: anonymous
plans:
  anonymous: {limits: [{name: per-minute, per: ip, algorithm: token_bucket, limit: 600/minute}]}
  nobody: {limits: []}
`)
	r := s.command("check", "-print")
	if r.code != 0 || !contains(r.stderr, "warning") || strings.Contains(r.stdout, "warning") || !contains(r.stdout, "upstreams:") {
		t.Errorf("exit %d\nstdout: %s\nstderr: %s", r.code, r.stdout, r.stderr)
	}
	if r := s.command("check", "-print", "-json"); r.code != 2 {
		t.Errorf("-print with -json: exit %d, want 2", r.code)
	}
	if r := s.command("keys", "list", "-user", "x", "-file", "keys.yaml"); r.code != 2 {
		t.Errorf("a flag of another verb: exit %d, want 2", r.code)
	}
}
