package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// An authority is a certificate authority that speaks as much of RFC 8555 as it takes
// to get a certificate from it. It looks at challenges at the addresses it is told,
// whatever DNS says of a domain.
type authority struct {
	*httptest.Server
	t  testing.TB
	ca *testCA

	mu       sync.Mutex
	offers   []string // kinds of challenges
	refuses  string   // what it says of each challenge that it looks at; empty: the truth
	lifetime time.Duration
	accounts int
	nonces   map[string]bool
	keys     map[string]*ecdsa.PublicKey // of accounts, by their URL
	thumbs   map[string]string
	orders   []*order
	looked   func(challenge, token string) // while a challenge is open

	at          chan struct{} // closed when it is known where to look
	http, https string
}

type order struct {
	domain, account, token string
	status, authz          string
	problem                string
	cert                   []byte
}

func newAuthority(t testing.TB, offers ...string) *authority {
	a := &authority{
		t: t, ca: newTestCA(t), offers: offers, lifetime: 90 * 24 * time.Hour, at: make(chan struct{}),
		nonces: map[string]bool{}, keys: map[string]*ecdsa.PublicKey{}, thumbs: map[string]string{},
	}
	a.Server = httptest.NewTLSServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.Close)
	return a
}

// found says where the gateway is.
func (a *authority) found(g *gateway) {
	for _, line := range g.all("listening") {
		switch line["for"] {
		case "http":
			a.http = str(line, "address")
		case "https":
			a.https = str(line, "address")
		}
	}
	select {
	case <-a.at:
	default:
		close(a.at)
	}
}

var unpadded = base64.RawURLEncoding

// signed reads a request, which is a JWS (RFC 8555 section 6.2), and holds it against
// the account's key.
func (a *authority) signed(r *http.Request) (payload []byte, account string, err error) {
	var jws struct{ Protected, Payload, Signature string }
	if err := json.NewDecoder(r.Body).Decode(&jws); err != nil {
		return nil, "", err
	}
	raw, err := unpadded.DecodeString(jws.Protected)
	if err != nil {
		return nil, "", err
	}
	var head struct {
		Alg, Nonce, URL, Kid string
		Jwk                  *struct{ Crv, Kty, X, Y string }
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, "", err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.nonces[head.Nonce] || head.URL != a.URL+r.URL.Path || head.Alg != "ES256" {
		return nil, "", fmt.Errorf("not for here: %s", raw)
	}
	delete(a.nonces, head.Nonce)
	account = head.Kid
	if k := head.Jwk; k != nil {
		x, errX := unpadded.DecodeString(k.X)
		y, errY := unpadded.DecodeString(k.Y)
		if errX != nil || errY != nil {
			return nil, "", errors.Join(errX, errY)
		}
		thumb := sha256.Sum256(fmt.Appendf(nil, `{"crv":"%s","kty":"%s","x":"%s","y":"%s"}`, k.Crv, k.Kty, k.X, k.Y))
		account = a.URL + "/account/" + unpadded.EncodeToString(thumb[:8])
		key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y)) // SEC 1, section 2.3.3
		if err != nil {
			return nil, "", err
		}
		a.keys[account] = key
		a.thumbs[account] = unpadded.EncodeToString(thumb[:])
	}
	signature, err := unpadded.DecodeString(jws.Signature)
	key := a.keys[account]
	if err != nil || key == nil || len(signature) != 64 {
		return nil, "", fmt.Errorf("no signature of %s", account)
	}
	sum := sha256.Sum256([]byte(jws.Protected + "." + jws.Payload))
	if !ecdsa.Verify(key, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])) {
		return nil, "", errors.New("a wrong signature")
	}
	payload, err = unpadded.DecodeString(jws.Payload)
	return payload, account, err
}

func (a *authority) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	nonce := rand.Text()
	a.nonces[nonce] = true
	a.mu.Unlock()
	w.Header().Set("Replay-Nonce", nonce)
	say := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	kind, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch kind {
	case "directory":
		say(200, map[string]any{
			"newNonce": a.URL + "/nonce", "newAccount": a.URL + "/account", "newOrder": a.URL + "/order",
			"meta": map[string]string{"termsOfService": a.URL + "/terms"},
		})
		return
	case "nonce":
		return
	}
	payload, account, err := a.signed(r)
	if err != nil {
		say(400, map[string]string{"type": "urn:ietf:params:acme:error:malformed", "detail": err.Error()})
		return
	}
	if kind == "account" {
		var asked struct{ TermsOfServiceAgreed bool }
		if err := json.Unmarshal(payload, &asked); err != nil || !asked.TermsOfServiceAgreed {
			a.t.Errorf("the terms are not accepted: %s", payload)
		}
		a.mu.Lock()
		a.accounts++
		a.mu.Unlock()
		w.Header().Set("Location", account)
		say(201, map[string]string{"status": "valid"})
		return
	}
	if kind == "order" && rest == "" {
		var asked struct{ Identifiers []struct{ Value string } }
		if err := json.Unmarshal(payload, &asked); err != nil || len(asked.Identifiers) != 1 {
			a.t.Errorf("an order of %s", payload)
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.orders = append(a.orders, &order{domain: asked.Identifiers[0].Value, account: account, token: rand.Text(), status: "pending", authz: "pending"})
		n := len(a.orders) - 1
		w.Header().Set("Location", fmt.Sprintf("%s/order/%d", a.URL, n))
		say(201, a.order(n))
		return
	}
	var n int
	number, challenge, _ := strings.Cut(rest, "/")
	_, _ = fmt.Sscan(number, &n)
	if kind == "challenge" {
		a.look(n, challenge)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.orders[n]
	switch kind {
	case "order":
		w.Header().Set("Location", fmt.Sprintf("%s/order/%d", a.URL, n))
		say(200, a.order(n))
	case "authz":
		var challenges []any
		for _, kind := range a.offers {
			challenges = append(challenges, a.challenge(n, kind))
		}
		say(200, map[string]any{"status": o.authz, "identifier": map[string]string{"type": "dns", "value": o.domain}, "challenges": challenges})
	case "challenge":
		say(200, a.challenge(n, challenge))
	case "finalize":
		o.cert = a.issue(o, payload)
		o.status = "valid"
		w.Header().Set("Location", fmt.Sprintf("%s/order/%d", a.URL, n))
		say(200, a.order(n))
	case "cert":
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		_, _ = w.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.cert}))
	}
}

func (a *authority) order(n int) map[string]any {
	o := a.orders[n]
	return map[string]any{
		"status": o.status, "identifiers": []any{map[string]string{"type": "dns", "value": o.domain}},
		"authorizations": []string{fmt.Sprintf("%s/authz/%d", a.URL, n)}, "finalize": fmt.Sprintf("%s/finalize/%d", a.URL, n),
		"certificate": fmt.Sprintf("%s/cert/%d", a.URL, n),
	}
}

func (a *authority) challenge(n int, kind string) map[string]any {
	o := a.orders[n]
	c := map[string]any{"type": kind, "url": fmt.Sprintf("%s/challenge/%d/%s", a.URL, n, kind), "token": o.token, "status": o.authz}
	if o.problem != "" {
		c["error"] = map[string]string{"type": "urn:ietf:params:acme:error:unauthorized", "detail": o.problem}
	}
	return c
}

// look sees whether a challenge is met.
func (a *authority) look(n int, kind string) {
	select {
	case <-a.at:
	case <-time.After(patience):
		a.t.Error("nobody says where the gateway is")
		return
	}
	a.mu.Lock()
	o, looked, refuses := a.orders[n], a.looked, a.refuses
	meets := o.token + "." + a.thumbs[o.account]
	a.mu.Unlock()
	var err error
	switch {
	case refuses != "":
		err = errors.New(refuses)
	case kind == "tls-alpn-01":
		err = a.lookTLS(o.domain, meets)
	case kind == "http-01":
		err = a.lookHTTP(o.domain, o.token, meets)
	}
	if looked != nil {
		looked(kind, o.token)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		o.status, o.authz, o.problem = "invalid", "invalid", err.Error()
		return
	}
	o.status, o.authz = "ready", "valid"
}

// lookTLS is the side of an authority in RFC 8737 section 3.
func (a *authority) lookTLS(domain, meets string) error {
	c, err := tls.Dial("tcp", a.https, &tls.Config{ServerName: domain, NextProtos: []string{"acme-tls/1"}, InsecureSkipVerify: true})
	if err != nil {
		return err
	}
	defer c.Close()
	state := c.ConnectionState()
	if state.NegotiatedProtocol != "acme-tls/1" {
		return errors.New("it speaks no acme-tls/1")
	}
	sum := sha256.Sum256([]byte(meets))
	want, err := asn1.Marshal(sum[:])
	if err != nil {
		return err
	}
	leaf := state.PeerCertificates[0]
	if !slices.Equal(leaf.DNSNames, []string{domain}) {
		return fmt.Errorf("the certificate is for %q", leaf.DNSNames)
	}
	for _, e := range leaf.Extensions {
		if e.Id.Equal(asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}) && e.Critical && string(e.Value) == string(want) {
			if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
				return errors.New("it goes on speaking")
			}
			return nil
		}
	}
	return errors.New("the certificate does not meet the challenge")
}

// lookHTTP is that of RFC 8555 section 8.3.
func (a *authority) lookHTTP(domain, token, meets string) error {
	got, err := trySend(http.MethodGet, "http://"+a.http+"/.well-known/acme-challenge/"+token, nil, "Host", domain)
	if err == nil && (got.status != 200 || strings.TrimSpace(got.body) != meets) {
		err = fmt.Errorf("%d %q", got.status, got.body)
	}
	return err
}

func (a *authority) issue(o *order, payload []byte) []byte {
	var asked struct{ CSR string }
	if err := json.Unmarshal(payload, &asked); err != nil {
		a.t.Error(err)
	}
	der, _ := unpadded.DecodeString(asked.CSR)
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil || csr.CheckSignature() != nil || !slices.Equal(csr.DNSNames, []string{o.domain}) {
		a.t.Errorf("a request for %v: %v", csr, err)
		return nil
	}
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(int64(1000 + len(a.orders))), DNSNames: csr.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(a.lifetime).Truncate(time.Second),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.ca.cert, csr.PublicKey, a.ca.key)
	if err != nil {
		a.t.Error(err)
	}
	return cert
}

func (a *authority) ordered() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.orders)
}

// acmeSite gets the certificates of domains from a.
func acmeSite(t testing.TB, a *authority, target, listen, domains, settings string) *site {
	s := proxySite(t, "")
	s.write("acme-ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})))
	s.write("routes.yaml", acmeRoutes(a, target, listen, domains, settings))
	return s
}

func acmeRoutes(a *authority, target, listen, domains, settings string) string {
	return proxyRoutes(target, listen+`https: {address: "127.0.0.1:0", acme: {domains: [`+domains+`], cache_dir: certs, directory_url: "`+a.URL+`/directory", ca_file: acme-ca.pem, accept_terms: true`+settings+`}}`, "")
}

// shake shakes hands for a name and returns the certificate.
func (a *authority) shake(name string, protocols ...string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	c, err := (&tls.Dialer{Config: &tls.Config{ServerName: name, NextProtos: protocols, RootCAs: a.ca.pool, InsecureSkipVerify: name == ""}}).DialContext(ctx, "tcp", a.https)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

const (
	issued   = "a certificate was issued"
	notGot   = "no certificate could be got from the certificate authority"
	expiryOf = `gateway_certificate_expiry_timestamp_seconds{subject="%s"}`
)

// Certificates are got by TLS-ALPN-01, for the names that are configured and no
// others, and a restart asks for none again.
func TestCertificatesAreGotByThemselves(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	a := newAuthority(t, "http-01", "tls-alpn-01")
	s := acmeSite(t, a, u.URL, "", "api.example.test, www.example.test", ", email: ops@example.test")
	g := s.start()
	a.found(g)
	eventually(t, "both certificates are there", func() bool { return len(g.all(issued)) == 2 })
	for _, name := range []string{"api.example.test", "www.example.test", "WWW.example.test"} {
		c := &http.Client{Timeout: patience, Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: a.ca.pool, ServerName: name}, ForceAttemptHTTP2: true, DisableKeepAlives: true,
		}}
		res, err := c.Get("https://" + a.https + "/a")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != 200 || res.ProtoMajor != 2 || string(b) != `{"ok":true}` {
			t.Errorf("%s: %s %d %q", name, res.Proto, res.StatusCode, b)
		}
	}
	if leaf, err := a.shake(""); err != nil || leaf.DNSNames[0] != "api.example.test" {
		t.Errorf("a client that names nobody gets %v, %v; want the first domain's", leaf, err)
	}
	for _, name := range []string{"other.example.test", "example.test", "a.api.example.test"} {
		if _, err := a.shake(name); err == nil {
			t.Errorf("a handshake for %s succeeds", name)
		}
	}
	if _, err := a.shake("api.example.test", "acme-tls/1"); err == nil {
		t.Error("a challenge is answered that is not open")
	}
	if a.ordered() != 2 || a.accounts != 1 && a.accounts != 2 {
		t.Errorf("%d orders of %d accounts", a.ordered(), a.accounts)
	}
	if got := time.Unix(int64(g.value(fmt.Sprintf(expiryOf, "www.example.test"))), 0); time.Until(got) < 89*24*time.Hour {
		t.Errorf("the metric says that it ends at %v", got)
	}
	if ready := send(t, "GET", g.admin+"/readyz", nil); strings.Contains(ready.body, "certificate") {
		t.Errorf("/readyz: %s", ready.body)
	}
	if info, err := os.Stat(s.path("certs")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v; want 0700", info, err)
	}
	kept, err := filepath.Glob(s.path("certs/*"))
	if err != nil || len(kept) != 3 {
		t.Errorf("%v are kept; want two certificates and the account's key", kept)
	}
	for _, name := range kept {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want 0600", name, info.Mode(), err)
		}
	}
	g.stop()
	if r := s.command("doctor", "-routes", "routes.yaml", "-plans", "plans.yaml"); !strings.Contains(r.stdout, "api.example.test is valid until") || !strings.Contains(r.stdout, "/directory answers") {
		t.Errorf("doctor: %d\n%s%s", r.code, r.stdout, r.stderr)
	}

	g = s.start()
	a.found(g)
	if _, err := a.shake("www.example.test"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if a.ordered() != 2 || strings.Contains(g.output(), "PRIVATE KEY") {
		t.Errorf("%d orders, want no further one", a.ordered())
	}
}

// What is kept is shown from the start on, and renewed when a third of its time is
// left, while the listener goes on.
func TestAKeptCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	a := newAuthority(t, "tls-alpn-01")
	s := acmeSite(t, a, u.URL, "", "api.example.test", "")
	key := newKey(t)
	old, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(7), DNSNames: []string{"api.example.test"},
		NotBefore: time.Now().Add(-80 * 24 * time.Hour), NotAfter: time.Now().Add(10 * 24 * time.Hour),
	}, a.ca.cert, &key.PublicKey, a.ca.key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.path("certs"), 0o700); err != nil {
		t.Fatal(err)
	}
	kept := append(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: old})...)
	if err := os.WriteFile(s.path("certs/api.example.test"), kept, 0o600); err != nil {
		t.Fatal(err)
	}
	g := s.start()
	for _, line := range g.all("listening") {
		if line["for"] == "https" {
			a.https = str(line, "address")
		}
	}
	if leaf, err := a.shake("api.example.test"); err != nil || leaf.SerialNumber.Int64() != 7 {
		t.Errorf("at first %v, %v; want the one that is kept", leaf, err)
	}
	a.found(g) // the authority waits for this
	eventually(t, "the certificate is renewed", func() bool {
		leaf, err := a.shake("api.example.test")
		return err == nil && leaf.SerialNumber.Int64() > 7
	})
	if got := time.Unix(int64(g.value(fmt.Sprintf(expiryOf, "api.example.test"))), 0); time.Until(got) < 80*24*time.Hour {
		t.Errorf("the metric says that it ends at %v", got)
	}
}

// With a listener in the clear HTTP-01 is answered: the challenge that is open, at its
// path and for its domain, and nothing beside it.
func TestCertificatesAreGotByHTTP01(t *testing.T) {
	t.Parallel()
	const routed = `{"ok":true}`
	u := newUpstream(t, nil)
	a := newAuthority(t, "http-01")
	s := acmeSite(t, a, u.URL, `http: "127.0.0.1:0", `, "api.example.test", "")
	path := "/.well-known/acme-challenge/"
	var token string
	a.looked = func(_, open string) { // while it is open
		token = open
		for _, c := range []struct{ method, path, host string }{
			{"GET", path + "other", "api.example.test"}, {"GET", path, "api.example.test"}, {"GET", path + open + "/x", "api.example.test"},
			{"POST", path + open, "api.example.test"}, {"GET", path + open, "other.example.test"}, {"GET", "/x" + path + open, "api.example.test"},
		} {
			if got, err := trySend(c.method, "http://"+a.http+c.path, nil, "Host", c.host); err != nil || got.body != routed {
				t.Errorf("%s %s of %s is not routed: %d %q, %v", c.method, c.path, c.host, got.status, got.body, err)
			}
		}
	}
	g := s.start()
	a.found(g)
	eventually(t, "the certificate is there", func() bool { return g.logged(issued) != nil })
	if _, err := a.shake("api.example.test"); err != nil {
		t.Error(err)
	}
	eventually(t, "the path is routed as it was", func() bool {
		return g.get(path+token, "Host", "api.example.test").body == routed
	})
	if n := g.value(`gateway_requests_total{code="200",method="GET",route="gateway:acme"}`); n != 1 {
		t.Errorf("%v looks at challenges are counted, want 1", n)
	}
}

// A certificate that cannot be got stops neither the start nor the other listener, and
// says what to do.
func TestACertificateThatCannotBeGotStopsNothing(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	a := newAuthority(t, "http-01", "tls-alpn-01")
	a.refuses = "DNS problem: NXDOMAIN looking up A for api.example.test"
	s := acmeSite(t, a, u.URL, `http: "127.0.0.1:0", `, "api.example.test", "")
	g := s.start()
	a.found(g)
	if got := g.get("/a"); got.status != 200 {
		t.Errorf("the other listener: %d", got.status)
	}
	if _, err := a.shake("api.example.test"); err == nil {
		t.Error("a handshake succeeds without a certificate")
	}
	eventually(t, "the failure is told", func() bool { return g.logged(notGot) != nil })
	line := g.logged(notGot)
	if !strings.Contains(str(line, "error"), a.refuses) || !strings.Contains(str(line, "do"), "in DNS it has to name this machine") || line["domain"] != "api.example.test" {
		t.Errorf("the log says %v", line)
	}
	var ready struct {
		Degraded []struct{ Part, Effect string }
	}
	got := send(t, "GET", g.admin+"/readyz", nil)
	if err := json.Unmarshal([]byte(got.body), &ready); err != nil || got.status != 200 || len(ready.Degraded) != 1 || ready.Degraded[0].Part != "certificate api.example.test" {
		t.Errorf("/readyz: %d %s, %v", got.status, got.body, err)
	}
	if v := g.value(fmt.Sprintf(expiryOf, "api.example.test")); v != 0 {
		t.Errorf("one that is not there ends at %v", v)
	}
	if r := s.command("doctor", "-routes", "routes.yaml", "-plans", "plans.yaml"); !strings.Contains(r.stdout, "there is none for api.example.test") {
		t.Errorf("doctor: %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	made := a.ordered()
	if !g.reload() || a.ordered() != made {
		t.Error("a reload within a minute asks once more")
	}

	// What is configured anew is tried at once.
	a.mu.Lock()
	a.refuses = ""
	a.mu.Unlock()
	s.write("routes.yaml", acmeRoutes(a, u.URL, `http: "127.0.0.1:0", `, "api.example.test", ", email: ops@example.test"))
	eventually(t, "the certificate is there", func() bool { return g.logged(issued) != nil })
	if _, err := a.shake("api.example.test"); err != nil {
		t.Error(err)
	}
	if got := send(t, "GET", g.admin+"/readyz", nil); strings.Contains(got.body, "certificate") {
		t.Errorf("/readyz: %s", got.body)
	}
}

// An authority that does not answer, and a directory that cannot be used.
func TestMistakesAboutCertificatesAreTold(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.Close()
	s := acmeSite(t, a, "http://127.0.0.1:9", "", "api.example.test", "")
	g := s.start()
	if ready := send(t, "GET", g.admin+"/readyz", nil); ready.status != 200 {
		t.Errorf("/readyz: %d", ready.status)
	}
	began := time.Now()
	g.stop()
	if took := time.Since(began); took > patience/2 {
		t.Errorf("it stopped after %v, waiting for an authority", took)
	}

	s.write("a-file", "no directory")
	text, err := os.ReadFile(s.path("routes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("routes.yaml", strings.Replace(string(text), "cache_dir: certs", "cache_dir: a-file", 1))
	bad := s.launch()
	if code := bad.wait(); code == 0 || !strings.Contains(bad.output()+bad.stderr.String(), "listen.https.acme.cache_dir: a-file is a file; want a directory") {
		t.Errorf("exit code %d\n%s%s", code, bad.output(), bad.stderr.String())
	}
}
