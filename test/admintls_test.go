package test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// An adminSite has an admin listener that operators use with certificates.
type adminSite struct {
	*certSite
	operators *testCA
}

func newAdminSite(t testing.TB) *adminSite {
	s := &adminSite{newCertSite(t, newUpstream(t, nil), ""), newTestCA(t)}
	s.write("operators.pem", bundle(s.operators))
	s.write("token", adminToken)
	return s
}

// configure writes listen and admin as they are given.
func (s *adminSite) configure(listen, admin string) {
	s.write("routes.yaml", listen+"\nadmin: "+admin+`
auth: {failure_limit: off, api_keys: {file: keys.yaml}}
edge: [crowd]
limits: {crowd: {per: ip, algorithm: fixed_window, limit: 1000/hour}}
upstreams: {api: {targets: ["http://127.0.0.1:1"]}}
routes:
  - {name: api, path: "/*", upstream: api}
`)
}

// operator is a client of the admin listener that shows a certificate; nil: none.
func (s *adminSite) operator(t testing.TB, cert *tls.Certificate) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(s.server.cert)
	config := &tls.Config{RootCAs: roots, ServerName: "gateway.example.test"}
	if cert != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func askBy(t testing.TB, c *http.Client, method, url, body string, fields ...string) answer {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(b)}
}

// An operator with a certificate needs no token, and what it does is in the log under
// its name. A certificate travels by itself, so that pages of other sites are refused.
func TestOperatorsShowCertificates(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t)
	s.configure(`listen: {http: "127.0.0.1:0", admin: "0.0.0.0:0"}`, `{client_ca_file: operators.pem, cert_file: cert.pem, key_file: key.pem}`)
	g := s.start()
	at := "https://localhost:" + g.admin[strings.LastIndexByte(g.admin, ':')+1:]
	ann := s.operator(t, s.operators.sign(t, person("ann", nil)))
	const body = `{"kind":"ip","name":"203.0.113.7","limit":"crowd","plan":"","route":""}`
	reset := func(c *http.Client, fields ...string) answer {
		return askBy(t, c, "POST", at+"/api/reset", body, append([]string{"Content-Type", "application/json"}, fields...)...)
	}
	if a := askBy(t, ann, "GET", at+"/api/session", ""); !contains(strings.Join(strings.Fields(a.body), ""), `"token_needed":true,"token_configured":false,"signed_in":true,"may_change":true`) {
		t.Errorf("session: %s", a.body)
	}
	if a := askBy(t, ann, "GET", at+"/api/status", ""); a.status != 200 {
		t.Errorf("status: %d %s", a.status, a.body)
	}
	if a := reset(ann); a.status != 200 {
		t.Errorf("reset: %d %s", a.status, a.body)
	}
	eventually(t, "the audit line", func() bool { return g.logged("audit: a limit was reset") != nil })
	if line := g.logged("audit: a limit was reset"); line["who"] != "certificate CN=ann,O=acme" {
		t.Errorf("audit: %v", line)
	}
	if a := askBy(t, ann, "POST", at+"/-/reload", ""); a.status != 200 {
		t.Errorf("reload: %d %s", a.status, a.body)
	}
	for what, fields := range map[string][]string{
		"another site": {"Sec-Fetch-Site", "cross-site"}, "another port": {"Sec-Fetch-Site", "same-site"}, "an old browser": {"Origin", "https://attacker.example"},
	} {
		if a := reset(ann, fields...); a.status != 403 {
			t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}
	if a := askBy(t, ann, "GET", at+"/debug/pprof/goroutine", "", "Sec-Fetch-Site", "cross-site"); a.status != 403 {
		t.Errorf("a profile for another site's page: %d", a.status)
	}
	if a := askBy(t, ann, "GET", at+"/debug/pprof/goroutine", ""); a.status != 200 {
		t.Errorf("a profile: %d", a.status)
	}

	for what, cert := range map[string]*tls.Certificate{
		"none":                      nil,
		"of another authority":      s.server.sign(t, person("ann", nil)),
		"of a server":               s.operators.sign(t, person("ann", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })),
		"that has expired":          s.operators.sign(t, person("ann", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })),
		"of whom its clients trust": s.clients.sign(t, person("ann", nil)),
	} {
		c := s.operator(t, cert)
		if a := reset(c); a.status != 401 || !contains(fmt.Sprint(a.problem(t)["detail"]), "admin.client_ca_file") {
			t.Errorf("a certificate %s: %d %s", what, a.status, a.body)
		}
		if a := askBy(t, c, "GET", at+"/api/status", ""); a.status != 401 {
			t.Errorf("a certificate %s reads: %d", what, a.status)
		}
		if a := askBy(t, c, "GET", at+"/healthz", ""); a.status != 200 {
			t.Errorf("a certificate %s: healthz %d", what, a.status)
		}
		if a := askBy(t, c, "GET", at+"/", "", "Accept", "text/html"); a.status != 401 || !contains(a.body, "<script") {
			t.Errorf("a certificate %s: the page %d", what, a.status)
		}
	}
	// An authority that is no longer named vouches for nobody, on no connection, and
	// nobody goes on watching whom it has vouched for.
	watching, err := ann.Get(at + "/api/live")
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Body.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, watching.Body)
		ended <- err
	}()
	s.write("operators.pem", bundle(s.clients))
	eventually(t, "the authorities have changed", func() bool {
		return contains(g.output(), "admin.client_ca_file: the authorities changed")
	})
	if a := reset(ann); a.status != 401 {
		t.Errorf("of a former authority: %d %s", a.status, a.body)
	}
	if err := <-ended; err != nil { // the client's patience ends it at the latest
		t.Errorf("whom a former authority vouched for still watches: %v", err)
	}
	if a := reset(s.operator(t, s.clients.sign(t, person("bob", nil)))); a.status != 200 {
		t.Errorf("of the new authority: %d %s", a.status, a.body)
	}
	// A certificate of the listener that was renewed is shown at once.
	s.server.issue(t, s.site, 77, time.Now().Add(time.Hour))
	eventually(t, "the listener's new certificate is shown", func() bool {
		c, err := tls.Dial("tcp", strings.TrimPrefix(at, "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64() == 77
	})
}

// Without a certificate of its own the admin listener shows that of listen.https; and a
// token counts beside certificates.
func TestAdminShowsTheCertificateOfHTTPS(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t)
	s.configure(`listen: {https: {address: "127.0.0.1:0", cert_file: cert.pem, key_file: key.pem}, admin: "127.0.0.1:0"}`, `{client_ca_file: operators.pem, token_file: token}`)
	g := s.start()
	at := "https://localhost:" + g.admin[strings.LastIndexByte(g.admin, ':')+1:]
	nobody := s.operator(t, nil)
	if a := askBy(t, nobody, "POST", at+"/-/reload", "", "Authorization", "Bearer "+adminToken); a.status != 200 {
		t.Errorf("with the token: %d %s", a.status, a.body)
	}
	if a := askBy(t, nobody, "POST", at+"/-/reload", ""); a.status != 401 {
		t.Errorf("with neither: %d %s", a.status, a.body)
	}
	if a := askBy(t, nobody, "GET", at+"/api/status", ""); a.status != 200 {
		t.Errorf("on loopback: %d %s", a.status, a.body)
	}
	if a := askBy(t, s.operator(t, s.operators.sign(t, person("ann", nil))), "POST", at+"/-/reload", ""); a.status != 200 {
		t.Errorf("with a certificate: %d %s", a.status, a.body)
	}
	// HTTP again is for the next restart; until then it is HTTPS, and asks as it says.
	s.configure(`listen: {https: {address: "127.0.0.1:0", cert_file: cert.pem, key_file: key.pem}, admin: "127.0.0.1:0"}`, `{token_file: token}`)
	eventually(t, "the reload says what needs a restart", func() bool {
		return contains(fmt.Sprint(g.logged("some changes take effect at the next restart only")), "the admin listener")
	})
	if a := askBy(t, nobody, "POST", at+"/-/reload", "", "Authorization", "Bearer "+adminToken); a.status != 200 {
		t.Errorf("with the token, after it: %d %s", a.status, a.body)
	}
	if a := askBy(t, s.operator(t, s.operators.sign(t, person("ann", nil))), "POST", at+"/-/reload", ""); a.status != 401 {
		t.Errorf("with a certificate, after it: %d %s", a.status, a.body)
	}
}

// Nobody starts an admin listener for everyone by mistake.
func TestAnOpenAdminListenerDoesNotStart(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t)
	for admin, want := range map[string]string{
		`{}`: "want admin.token_file or admin.client_ca_file, or a loopback address",
		`{cert_file: cert.pem, key_file: key.pem}`: "want admin.token_file or admin.client_ca_file, or a loopback address",
		`{client_ca_file: operators.pem}`:          "want admin.cert_file and admin.key_file, or listen.https",
	} {
		s.configure(`listen: {http: "127.0.0.1:0", admin: "0.0.0.0:0"}`, admin)
		for _, command := range []string{"check", "run"} {
			if r := s.command(command); r.code == 0 || !contains(r.stdout+r.stderr, want) {
				t.Errorf("gateway %s with admin: %s exits %d: %s%s", command, admin, r.code, r.stdout, r.stderr)
			}
		}
	}
}
