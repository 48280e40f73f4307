package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/redis/go-redis/v9"

	"bouncer/internal/redistest"
)

// A countingUpstream counts the connections that were opened to it.
type countingUpstream struct {
	*httptest.Server
	opened atomic.Int64
}

func newCountingUpstream(t testing.TB) *countingUpstream {
	u := &countingUpstream{}
	u.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	u.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			u.opened.Add(1)
		}
	}
	u.Start()
	t.Cleanup(u.Close)
	return u
}

// FIELD-REPORTS I04: connections to an upstream are used again and again: of a crowd each has one at most.
func TestUpstreamConnectionsAreReused(t *testing.T) {
	t.Parallel()
	const parallel, each = 150, 28
	u := newCountingUpstream(t)
	g := proxySite(t, u.URL).start()
	var clients sync.WaitGroup
	for range parallel {
		clients.Go(func() {
			for i := range each {
				method, body := "GET", io.Reader(nil)
				if i%4 == 0 {
					method, body = "POST", strings.NewReader("some weather")
				}
				if a, err := trySend(method, g.url+"/a", body); err != nil || a.status != 200 {
					t.Errorf("%s: %d, %v", method, a.status, err)
				}
			}
		})
	}
	clients.Wait()
	// More than 95 % go over one that is there.
	if got := u.opened.Load(); got > parallel*each/20 {
		t.Errorf("%d upstream connections for %d requests, %d at a time; want at most %d", got, parallel*each, parallel, parallel*each/20)
	}
	if files := g.openFiles(); files > 2*parallel+64 {
		t.Errorf("%d files are open for %d clients", files, parallel)
	}
}

// openFiles counts the file descriptors of the process.
func (g *gateway) openFiles() int {
	g.t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.cmd.Process.Pid))
	if err != nil {
		g.t.Skip("needs /proc")
	}
	return len(files)
}

// redisConnections counts the gateway's connections to Redis.
func redisConnections(t testing.TB, rdb *redis.Client) (n int) {
	t.Helper()
	list, err := rdb.ClientList(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(list, "\n") // those of rdb are in every count alike
}

// FIELD-REPORTS I05: many configurations of two hundred routes in a row under traffic: nobody notices. No request
// fails, no count is lost, and nothing of a former configuration is left.
func TestManyReloadsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const clients, reloads = 8, 36
	u := newCountingUpstream(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	s := newSite(t)
	plans := func(n int) string {
		return plansWith(fmt.Sprintf("      - {name: per-day, algorithm: fixed_window, limit: %d/day}\n", n))
	}
	const start = 1_000_000
	var many strings.Builder
	for i := range 200 {
		fmt.Fprintf(&many, "  - {name: r%d, path: \"/r%d/*\", upstream: weather}\n", i, i)
	}
	s.write("plans.yaml", plans(start))
	s.write("keys.yaml", "keys: []\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
store: {redis: {url: "`+srv.URL()+`", timeout: 5s}}
auth: {api_keys: {file: keys.yaml}}
limits:
  edge-ip: {per: ip, algorithm: fixed_window, limit: 1000000/day}
edge: [edge-ip]
upstreams:
  weather: {targets: ["`+u.URL+`"]}
routes:
  - {name: weather, path: /api/weather, upstream: weather, on_store_failure: deny}
`+many.String())
	key := s.key("-user", "priya123")
	g := s.start()

	var sent atomic.Int64
	quit := make(chan struct{})
	var traffic sync.WaitGroup
	tr := &http.Transport{MaxIdleConnsPerHost: clients}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr, Timeout: patience}
	for range clients {
		traffic.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
				}
				r, err := http.NewRequest("GET", g.url+"/api/weather", nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("X-API-Key", key)
				res, err := c.Do(r)
				if err != nil {
					t.Errorf("a request under reload: %v", err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				sent.Add(1)
				if res.StatusCode != 200 {
					t.Errorf("a request under reload: %d", res.StatusCode)
					return
				}
			}
		})
	}
	flowing := func() {
		t.Helper()
		want := sent.Load() + 50*clients
		eventually(t, "traffic flows", func() bool { return sent.Load() >= want })
	}
	flowing()
	goroutines, files, conns, opened := g.value("go_goroutines"), g.openFiles(), redisConnections(t, rdb), u.opened.Load()

	for i := range reloads {
		n := start + 1 + i
		s.write("plans.yaml", plans(n))
		g.signal(syscall.SIGHUP)
		eventually(t, "the new number is in force", func() bool {
			a := g.get("/api/weather", "X-API-Key", key)
			sent.Add(1)
			return strings.Contains(a.field("RateLimit-Policy"), fmt.Sprintf(";q=%d;", n))
		})
	}
	flowing()
	if got := u.opened.Load() - opened; got > clients {
		t.Errorf("%d upstream connections were opened anew over %d reloads", got, reloads)
	}
	// In full flow, as it was before. The pools may have become a little fuller;
	// one left behind by every other reload would be more than that.
	back := func(what string, was int, now func() int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s are back to the %d before", what, was), func() bool {
			return now() < was+reloads/2
		})
	}
	back("goroutines", int(goroutines), func() int { return int(g.value("go_goroutines")) })
	back("open files", files, g.openFiles)
	back("connections to Redis", conns, func() int { return redisConnections(t, rdb) })

	close(quit)
	traffic.Wait()
	a := g.get("/api/weather", "X-API-Key", key)
	if want := start + reloads - sent.Load() - 1; remaining(t, a) != want {
		t.Errorf("%d remaining after %d requests over %d reloads, want %d: a count was lost or made twice", remaining(t, a), sent.Load()+1, reloads, want)
	}
	if got := len(g.all(reloadRejected)); got != 0 {
		t.Errorf("%d reloads were rejected", got)
	}
}

// HTTP/2 is spoken on the plain listener with prior knowledge, and never by
// Upgrade.
func TestThePlainListenerSpeaksHTTP2(t *testing.T) {
	u := newUpstream(t, nil)
	g := proxySite(t, u.URL).start()
	h2 := h2cClient(t)
	var streams sync.WaitGroup
	for range 20 { // at once, over one connection
		streams.Go(func() {
			res, err := h2.Post(g.url+"/a", "text/plain", strings.NewReader("hello"))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); res.ProtoMajor != 2 || res.StatusCode != 200 || string(b) != `{"ok":true}` || err != nil {
				t.Errorf("%s %d %q %v", res.Proto, res.StatusCode, b, err)
			}
			if res.Header.Get("RateLimit") == "" {
				t.Error("no limits told over HTTP/2")
			}
		})
	}
	streams.Wait()
	if got := u.last(t).Header.Get("Via"); got != "2.0 gateway" {
		t.Errorf("Via %q", got)
	}
	a := g.ask("GET /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n")
	if a.status == 101 {
		t.Error("HTTP/2 by Upgrade is accepted")
	}
	if h := u.last(t).Header; h.Get("Upgrade") != "" || h.Get("HTTP2-Settings") != "" {
		t.Errorf("the offer of h2c reached the upstream: %v", h)
	}
}

// A testCA signs certificates for 127.0.0.1.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newTestCA(t testing.TB) *testCA {
	t.Helper()
	ca := &testCA{key: newKey(t), pool: x509.NewCertPool()}
	spec := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, spec, spec, &ca.key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.pool.AddCert(ca.cert)
	return ca
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issue writes a certificate and its key into the site.
func (ca *testCA) issue(t testing.TB, s *site, serial int64, until time.Time) {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "gateway.example.test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"gateway.example.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	s.write("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	s.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})))
}

// The HTTPS listener speaks both versions of HTTP, and shows a renewed
// certificate to new connections without a restart, while the old ones go on.
func TestHTTPSAndARenewedCertificate(t *testing.T) {
	u := newUpstream(t, nil)
	ca := newTestCA(t)
	s := proxySite(t, "")
	s.write("routes.yaml", proxyRoutes(u.URL, `https: {address: "127.0.0.1:0", cert_file: cert.pem, key_file: key.pem}`, ""))
	first := time.Now().Add(20 * time.Minute).Truncate(time.Second)
	ca.issue(t, s, 100, first)
	g := s.start()
	for _, line := range g.all("listening") {
		if line["for"] == "https" {
			g.url = "https://" + str(line, "address")
		}
	}
	httpsClient := func(version int) *http.Client {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool}, Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(version == 1)
		tr.Protocols.SetHTTP2(version == 2)
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: patience}
	}
	get := func(c *http.Client, version int, serial int64) {
		t.Helper()
		res, err := c.Get(g.url + "/a")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != 200 || res.ProtoMajor != version || string(b) != `{"ok":true}` {
			t.Errorf("%s %d %q, want HTTP/%d", res.Proto, res.StatusCode, b, version)
		}
		if got := res.TLS.PeerCertificates[0].SerialNumber.Int64(); got != serial {
			t.Errorf("HTTP/%d: certificate %d, want %d", version, got, serial)
		}
		h := u.last(t).Header
		if h.Get("X-Forwarded-Proto") != "https" || h.Get("X-Forwarded-Host") != strings.TrimPrefix(g.url, "https://") {
			t.Errorf("the upstream is told %q, %q", h["X-Forwarded-Proto"], h["X-Forwarded-Host"])
		}
	}
	old := map[int]*http.Client{1: httpsClient(1), 2: httpsClient(2)}
	for version, c := range old {
		get(c, version, 100)
	}
	const series = `gateway_certificate_expiry_timestamp_seconds{subject="gateway.example.test"}`
	if got := g.value(series); int64(got) != first.Unix() {
		t.Errorf("%s is %v, want %d", series, got, first.Unix())
	}

	// A certificate that does not fit its key changes nothing.
	key, err := os.ReadFile(s.path("key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	second := time.Now().Add(40 * time.Minute).Truncate(time.Second)
	ca.issue(t, s, 200, second)
	good, err := os.ReadFile(s.path("key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("key.pem", string(key))
	eventually(t, "half a renewal is refused", func() bool { return g.logged(reloadRejected) != nil })
	get(httpsClient(1), 1, 100)

	s.write("key.pem", string(good))
	eventually(t, "the renewed certificate is in force by itself", func() bool { return int64(g.value(series)) == second.Unix() })
	for version, c := range old {
		get(httpsClient(version), version, 200)
		get(c, version, 100) // on the connection that it has
	}
	if strings.Contains(g.output(), "PRIVATE KEY") {
		t.Error("the key is in the log")
	}

	// Plain HTTP on the TLS port, and clients that speak no TLS of today.
	c := g.dialTLSPort()
	c.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if res := c.hear("GET"); res.StatusCode != 400 {
		t.Errorf("plain HTTP on the TLS port: %d, want 400", res.StatusCode)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	weak := tls.Dialer{Config: &tls.Config{RootCAs: ca.pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}} // to see it refused
	if conn, err := weak.DialContext(ctx, "tcp", strings.TrimPrefix(g.url, "https://")); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
}

// dialTLSPort opens a connection to the HTTPS listener without speaking TLS.
func (g *gateway) dialTLSPort() *rawConn {
	plain := &gateway{t: g.t, url: strings.TrimPrefix(g.url, "https://")}
	return plain.dial()
}

// FIELD-REPORTS I02: whatever is in flight when the end comes is finished: a plain answer, a
// stream, over either version of HTTP.
func TestSIGTERMFinishesStreams(t *testing.T) {
	arrived, finish := make(chan string, 8), make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			_, _ = io.WriteString(w, "not yet ")
			_ = http.NewResponseController(w).Flush()
		}
		arrived <- r.URL.Path
		<-finish
		_, _ = io.WriteString(w, "done")
	})
	g := proxySite(t, u.URL).start()
	finished := sync.OnceFunc(func() { close(finish) })
	defer finished()

	var asking sync.WaitGroup
	for name, c := range protocols(t) {
		for path, want := range map[string]string{"/plain": "done", "/stream": "not yet done"} {
			asking.Go(func() {
				res, err := c.Get(g.url + path)
				if err != nil {
					t.Errorf("%s %s: %v", name, path, err)
					return
				}
				defer res.Body.Close()
				if b, err := io.ReadAll(res.Body); string(b) != want || err != nil {
					t.Errorf("%s %s: %q, %v; want %q", name, path, b, err, want)
				}
			})
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 4 {
		select {
		case <-arrived:
		case <-ctx.Done():
			t.Fatal("not all requests arrived at the upstream")
		}
	}
	g.signal(syscall.SIGTERM)
	eventually(t, "new connections are refused", func() bool {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(g.url, "http://"), time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	finished()
	asking.Wait()
	if code := g.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := len(g.all("request")); n != 4 {
		t.Errorf("%d requests in the log, want all 4", n)
	}
}

// FIELD-REPORTS I02: a WebSocket that has no end does not keep the gateway from its own, however long
// others have: its client is told at the beginning, and whoever does not answer is cut.
func TestSIGTERMEndsAnEndlessSocket(t *testing.T) {
	gone := make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		if c, err := websocket.Accept(w, r, nil); err == nil {
			_, _, _ = c.Read(context.Background())
			_ = c.CloseNow()
		}
	})
	s := proxySite(t, "")
	s.write("routes.yaml", proxyRoutes(u.URL, `http: "127.0.0.1:0"`, "")+"shutdown_timeout: 1h\n")
	g := s.start()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, g.url+"/socket", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	g.stop()
	select {
	case <-gone:
	case <-ctx.Done():
		t.Error("the upstream's end stays open")
	}
	if line := g.logged("request"); line == nil || line["status"] != 101.0 || line["denied_by"] != "shutting_down" {
		t.Errorf("the line of a socket that was cut: %v", line)
	}
}
