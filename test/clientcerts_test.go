package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// person is a certificate of a client before somebody signs it.
func person(name string, change func(*x509.Certificate)) *x509.Certificate {
	c := &x509.Certificate{
		Subject:   pkix.Name{CommonName: name, Organization: []string{"acme"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(c)
	}
	return c
}

// sign makes a certificate of c, with the certificates that lead from it to ca.
func (ca *testCA) sign(t testing.TB, c *x509.Certificate, between ...*testCA) *tls.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber = serial
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, c, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	chain := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	for _, b := range between {
		chain.Certificate = append(chain.Certificate, b.cert.Raw)
	}
	return chain
}

// deputy is an authority under ca.
func (ca *testCA) deputy(t testing.TB, name string) *testCA {
	t.Helper()
	c := ca.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	})
	cert, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return &testCA{cert: cert, key: c.PrivateKey.(*ecdsa.PrivateKey)}
}

// bundle is PEM of authorities.
func bundle(cas ...*testCA) string {
	var b strings.Builder
	for _, ca := range cas {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}))
	}
	return b.String()
}

// A certSite has a listener of HTTPS, for whose clients some authority vouches.
type certSite struct {
	*site
	server, clients *testCA
}

func newCertSite(t testing.TB, u *upstream, clientCerts string) *certSite {
	s := &certSite{site: newSite(t), server: newTestCA(t), clients: newTestCA(t)}
	s.server.issue(t, s.site, 2, time.Now().Add(time.Hour))
	s.write("plans.yaml", "default_plan: free\nanonymous_plan: free\nplans: {free: {limits: []}, pro: {limits: []}}\n")
	s.write("clients-ca.pem", bundle(s.clients))
	s.write("keys.yaml", "keys: []\n")
	s.auth(u, clientCerts)
	return s
}

// auth writes the routes, with this as auth.client_certs; empty: none.
func (s *certSite) auth(u *upstream, clientCerts string) {
	if clientCerts != "" {
		clientCerts = "\n  client_certs: " + clientCerts
	}
	s.write("routes.yaml", `
listen: {https: {address: "127.0.0.1:0", cert_file: cert.pem, key_file: key.pem}, admin: "127.0.0.1:0"}
auth:
  failure_limit: off
  api_keys: {file: keys.yaml}`+clientCerts+`
upstreams: {api: {targets: ["`+u.URL+`"]}}
routes:
  - {name: api, path: "/*", upstream: api}
  - {name: optional, path: /optional, upstream: api, auth: optional}
  - {name: open, path: /open, upstream: api, auth: none}
`)
}

// A certClient is a client of HTTPS that shows a certificate, whoever is asked for.
type certClient struct {
	t      testing.TB
	g      *gateway
	client *http.Client
	asked  int      // how often it was asked for a certificate
	hints  [][]byte // whose it was told to show
	reused bool     // the last request came by a connection that was there
	state  *tls.ConnectionState
}

// show returns a client that shows cert, nil for none, over HTTP/1.1 or 2.
func (s *certSite) show(g *gateway, cert *tls.Certificate, http2 bool, sessions tls.ClientSessionCache) *certClient {
	c := &certClient{t: s.t, g: g}
	p := &http.Protocols{}
	p.SetHTTP1(!http2)
	p.SetHTTP2(http2)
	tr := &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{
		RootCAs: s.server.pool, ServerName: "gateway.example.test", ClientSessionCache: sessions,
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c.asked++
			c.hints = info.AcceptableCAs
			if cert == nil {
				return &tls.Certificate{}, nil
			}
			return cert, nil
		},
	}}
	s.t.Cleanup(tr.CloseIdleConnections)
	c.client = &http.Client{Transport: tr, Timeout: patience}
	return c
}

func (c *certClient) get(path string, fields ...string) answer {
	c.t.Helper()
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { c.reused = i.Reused }})
	var address string
	for _, line := range c.g.all("listening") {
		if line["for"] == "https" {
			address, _ = line["address"].(string)
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	res, err := c.client.Do(r)
	if err != nil {
		c.t.Fatalf("%s: %v", path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	c.state = res.TLS
	return answer{res.StatusCode, res.Header, string(b)}
}

// A certificate is a credential like any other: a good one is its caller, a bad one is
// the 401 of any bad credential, and neither matters where nobody looks.
func TestACertificateOfAClientIsACredential(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := newCertSite(t, u, "{ca_file: clients-ca.pem, tenant: subject.o, plan: subject.ou}")
	key := s.key("-user", "keyholder")
	deputy := s.clients.deputy(t, "a deputy")
	foreign := newTestCA(t)
	of := func(name string, change func(*x509.Certificate)) *tls.Certificate {
		return s.clients.sign(t, person(name, change))
	}
	self := func() *tls.Certificate {
		k := newKey(t)
		c := person("priya123", nil)
		c.SerialNumber = big.NewInt(7)
		der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}
	}
	var long []*testCA
	for range 10 {
		long = append(long, deputy)
	}
	rows := []struct {
		name   string
		cert   *tls.Certificate
		user   string // empty: 401
		plan   string
		reason string
	}{
		{name: "good", cert: of("priya123", nil), user: "priya123", plan: "free"},
		{name: "a plan", cert: of("priya123", func(c *x509.Certificate) { c.Subject.OrganizationalUnit = []string{"pro"} }), user: "priya123", plan: "pro"},
		{name: "for anything", cert: of("robot", func(c *x509.Certificate) { c.ExtKeyUsage = nil }), user: "robot", plan: "free"},
		{name: "by a deputy", cert: deputy.sign(t, person("priya123", nil), deputy), user: "priya123", plan: "free"},
		{name: "by a deputy who is not sent along", cert: deputy.sign(t, person("priya123", nil)), reason: "untrusted"},
		{name: "a long way", cert: deputy.sign(t, person("priya123", nil), long...), reason: "oversize"},
		{name: "none", reason: "missing"},
		{name: "expired", cert: of("priya123", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), reason: "expired"},
		{name: "not valid yet", cert: of("priya123", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), reason: "not_yet_valid"},
		{name: "of a foreign authority", cert: foreign.sign(t, person("priya123", nil)), reason: "untrusted"},
		{name: "of the server's authority", cert: s.server.sign(t, person("priya123", nil)), reason: "untrusted"},
		{name: "of itself", cert: self(), reason: "untrusted"},
		{name: "for servers", cert: of("priya123", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), reason: "wrong_usage"},
		{name: "of nobody", cert: of("", nil), reason: "missing_claim"},
		{name: "of two", cert: of("priya123", func(c *x509.Certificate) {
			c.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 3}, Value: "a"}, {Type: []int{2, 5, 4, 3}, Value: "b"}}
		}), reason: "bad_claim"},
		{name: "of two tenants", cert: of("priya123", func(c *x509.Certificate) { c.Subject.Organization = []string{"acme", "other"} }), reason: "bad_claim"},
		{name: "of a key", cert: of("key:k-1", nil), reason: "bad_claim"},
		{name: "with a line end", cert: of("priya123\r\nX-Auth-Plan: pro", nil), reason: "bad_claim"},
		{name: "a long name", cert: of(strings.Repeat("x", 257), nil), reason: "bad_claim"},
	}
	g := s.start()
	for _, http2 := range []bool{false, true} {
		var refused string
		for _, r := range rows {
			name := fmt.Sprintf("%s, HTTP/2 %t", r.name, http2)
			c := s.show(g, r.cert, http2, nil)
			a := c.get("/weather", "X-Forwarded-Client-Cert", "forged", "Client-Cert", "forged", "X_SSL_Client_S_DN", "forged", "X-Client-Cert-Verified", "forged")
			if (c.state.NegotiatedProtocol == "h2") != http2 || c.asked != 1 {
				t.Errorf("%s: spoke %q, and was asked for a certificate %d times", name, c.state.NegotiatedProtocol, c.asked)
			}
			if open := c.get("/open"); open.status != 200 {
				t.Errorf("%s: %d where nobody looks", name, open.status)
			}
			// On an optional route, none is anonymous and a bad one is 401.
			want := 200
			if r.user == "" && r.cert != nil {
				want = 401
			}
			if o := c.get("/optional"); o.status != want {
				t.Errorf("%s: %d where it is optional, want %d", name, o.status, want)
			}
			line := g.requestLine(a.field("X-Request-Id"))
			if r.user == "" {
				body := strings.Replace(a.body, fmt.Sprint(a.problem(t)["request_id"]), "", 1)
				if refused == "" {
					refused = body
				}
				if a.status != 401 || body != refused || a.field("WWW-Authenticate") == "" {
					t.Errorf("%s: %d\n%s\nwant the 401 of the others:\n%s", name, a.status, body, refused)
				}
				if fmt.Sprint(line["auth_error"]) != r.reason {
					t.Errorf("%s: the log says %v of why, want %s: %v", name, line["auth_error"], r.reason, line)
				}
				continue
			}
			if a.status != 200 || line["user"] != r.user || line["plan"] != r.plan || line["tenant"] != "acme" {
				t.Errorf("%s: %d, and the log says %v", name, a.status, line)
			}
		}
		seen := s.show(g, rows[0].cert, http2, nil)
		seen.get("/weather", "X-Forwarded-Client-Cert", "forged", "Client-Cert", "forged", "X_SSL_Client_S_DN", "forged", "X-Client-Cert-Verified", "forged", "X-Client", "kept")
		h := u.last(t).Header
		if h.Get("X-Auth-User") != "priya123" || h.Get("X-Auth-Tenant") != "acme" || h.Get("X-Client") != "kept" || strings.Contains(fmt.Sprint(h), "forged") {
			t.Errorf("the upstream gets %v", h)
		}
	}
	// It ranks last: what comes with the request itself is meant more.
	c := s.show(g, rows[0].cert, true, nil)
	if a := c.get("/weather", "X-API-Key", "guess"); a.status != 401 {
		t.Errorf("a bad key beside a good certificate: %d", a.status)
	}
	if a := c.get("/weather", "X-API-Key", key); a.status != 200 || u.last(t).Header.Get("X-Auth-User") != "keyholder" {
		t.Errorf("a good key beside a good certificate: %d, as %q", a.status, u.last(t).Header.Get("X-Auth-User"))
	}
	m := g.metrics()
	if m[`gateway_auth_total{method="client_cert",outcome="accepted"}`] == "" || m[`gateway_auth_total{method="client_cert",outcome="accepted"}`] == "0" ||
		m[`gateway_certificate_expiry_timestamp_seconds{subject="client CA test CA"}`] == "" {
		t.Errorf("the metrics say nothing of certificates:\n%v", m)
	}
	s.write("client.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rows[0].cert.Certificate[0]})))
	if r := s.command("explain", "/weather", "-cert", "client.pem"); r.code != 0 || !strings.Contains(r.stdout, "a client certificate") || !strings.Contains(r.stdout, "priya123") {
		t.Errorf("explain -cert: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := s.command("doctor"); !strings.Contains(r.stdout, "client CA test CA expires on") {
		t.Errorf("doctor says nothing of an authority that ends today:\n%s", r.stdout)
	}
}

// The name may stand elsewhere, once.
func TestTheUserOfACertificateStandsWhereItIsSaid(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	spiffe := &url.URL{Scheme: "spiffe", Host: "example.com", Path: "/weather"}
	all := person("cn", func(c *x509.Certificate) {
		c.DNSNames, c.EmailAddresses, c.URIs = []string{"robot.example.com"}, []string{"priya@example.com"}, []*url.URL{spiffe}
	})
	for field, want := range map[string]string{
		"subject.cn": "cn", "san.dns": "robot.example.com", "san.email": "priya@example.com", "san.uri": "spiffe://example.com/weather",
	} {
		s := newCertSite(t, u, "{ca_file: clients-ca.pem, user: "+field+"}")
		g := s.start()
		if a := s.show(g, s.clients.sign(t, all), true, nil).get("/"); a.status != 200 || u.last(t).Header.Get("X-Auth-User") != want {
			t.Errorf("%s: %d, as %q", field, a.status, u.last(t).Header.Get("X-Auth-User"))
		}
		if h := u.last(t).Header; h.Get("X-Auth-Tenant") != "" {
			t.Errorf("%s: a tenant nobody asked for: %v", field, h)
		}
		if field == "subject.cn" {
			continue
		}
		two := person("cn", func(c *x509.Certificate) {
			c.DNSNames, c.EmailAddresses = []string{"a.example.com", "b.example.com"}, []string{"a@example.com", "b@example.com"}
			c.URIs = []*url.URL{spiffe, spiffe}
		})
		for _, c := range []*x509.Certificate{two, person("cn", nil)} {
			if a := s.show(g, s.clients.sign(t, c), true, nil).get("/"); a.status != 401 {
				t.Errorf("%s: %d for %d of the name", field, a.status, len(c.DNSNames))
			}
		}
		g.stop()
	}
}

// Who is vouched for by nobody any more has no credential with its next request, also
// on a connection that stays open, and also with a session that is resumed.
func TestAChangedBundleCountsAtOnce(t *testing.T) {
	t.Parallel()
	u := newSocketUpstream(t)
	s := newCertSite(t, u.upstream, "{ca_file: clients-ca.pem}")
	next := newTestCA(t)
	g := s.start()
	before, after := s.clients.sign(t, person("before", nil)), next.sign(t, person("after", nil))
	for _, http2 := range []bool{false, true} {
		s.write("clients-ca.pem", bundle(s.clients))
		g.reload()
		sessions, others := tls.NewLRUClientSessionCache(8), tls.NewLRUClientSessionCache(8)
		kept, stranger := s.show(g, before, http2, nil), s.show(g, after, http2, others)
		if a, b := kept.get("/"), stranger.get("/"); a.status != 200 || b.status != 401 {
			t.Fatalf("HTTP/2 %t: %d and %d at first", http2, a.status, b.status)
		}
		// A session may be resumed, and is the same caller.
		for i := range 2 {
			c := s.show(g, before, http2, sessions)
			if a := c.get("/"); a.status != 200 || c.state.DidResume != (i == 1) {
				t.Errorf("HTTP/2 %t: %d, resumed %t", http2, a.status, c.state.DidResume)
			}
		}

		s.write("clients-ca.pem", bundle(next)) // nobody tells the process
		eventually(t, "the old authority vouches for nobody", func() bool { return kept.get("/").status == 401 })
		if !kept.reused {
			t.Errorf("HTTP/2 %t: the connection was not kept, so that this shows nothing", http2)
		}
		c := s.show(g, before, http2, sessions)
		if a := c.get("/"); a.status != 401 || c.state.DidResume {
			t.Errorf("HTTP/2 %t: %d by a session from before, resumed %t", http2, a.status, c.state.DidResume)
		}
		if a := stranger.get("/"); a.status != 200 || !stranger.reused {
			t.Errorf("HTTP/2 %t: %d for the new authority's, on the same connection %t", http2, a.status, stranger.reused)
		}
		if len(c.hints) != 1 || !strings.Contains(string(c.hints[0]), "test CA") {
			t.Errorf("HTTP/2 %t: clients are told to show a certificate of %q", http2, c.hints)
		}
	}
}

// Nobody is asked for a certificate until one counts, and then everybody, also who
// resumes a session from before; and nobody when that is over.
func TestCertificatesAreAskedForOnlyWhereTheyCount(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := newCertSite(t, u, "")
	g := s.start()
	cert := s.clients.sign(t, person("priya123", nil))
	sessions := tls.NewLRUClientSessionCache(8)
	for i, step := range []struct {
		auth          string
		asked, status int
	}{{"", 0, 401}, {"{ca_file: clients-ca.pem}", 1, 200}, {"", 0, 401}} {
		if i > 0 {
			s.auth(u, step.auth)
			if !g.reload() {
				t.Fatal("the change is not taken")
			}
		}
		c := s.show(g, cert, true, sessions)
		if a := c.get("/"); a.status != step.status || c.asked != step.asked {
			t.Errorf("step %d: %d, asked %d times, want %d and %d", i, a.status, c.asked, step.status, step.asked)
		}
	}
}

// A WebSocket is opened with a certificate as well.
func TestAWebSocketWithACertificate(t *testing.T) {
	t.Parallel()
	u := newSocketUpstream(t)
	s := newCertSite(t, u.upstream, "{ca_file: clients-ca.pem}")
	g := s.start()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for status, cert := range map[int]*tls.Certificate{101: s.clients.sign(t, person("priya123", nil)), 401: newTestCA(t).sign(t, person("priya123", nil))} {
		c := s.show(g, cert, false, nil)
		ws, res, err := websocket.Dial(ctx, "https://"+fmt.Sprint(g.all("listening")[0]["address"])+"/socket", &websocket.DialOptions{HTTPClient: c.client})
		if res == nil || res.StatusCode != status {
			t.Errorf("want %d, got %v, %v", status, res, err)
		}
		if err == nil {
			if err := echoes(t, ws); err != nil {
				t.Error(err)
			}
			_ = ws.CloseNow()
		}
	}
}
