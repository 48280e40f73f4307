package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// An identityProvider signs tokens and publishes its keys. It is rotated, taken
// away and brought back by the test.
type identityProvider struct {
	*httptest.Server
	t testing.TB

	mu        sync.Mutex
	published []signer
	away      bool   // connections break off
	login     string // who may fetch the set, as user:password; empty: anybody
	fetches   int    // of the set
}

// A signer is a key pair under a name.
type signer struct {
	kid string
	key *ecdsa.PrivateKey
}

func newSigner(kid string) signer {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return signer{kid, k}
}

func newIdentityProvider(t testing.TB, published ...signer) *identityProvider {
	p := &identityProvider{t: t, published: published}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

func (p *identityProvider) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set := r.URL.Path == "/keys.json"
	if set {
		p.fetches++
	}
	user, password, _ := r.BasicAuth()
	switch {
	case p.away:
		panic(http.ErrAbortHandler)
	case p.login != "" && user+":"+password != p.login:
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": p.URL, "jwks_uri": p.URL + "/keys.json"})
	case set:
		keys := []map[string]string{}
		for _, s := range p.published {
			point, err := s.key.PublicKey.Bytes()
			if err != nil {
				p.t.Error(err)
			}
			text := base64.RawURLEncoding.EncodeToString
			keys = append(keys, map[string]string{
				"kty": "EC", "crv": "P-256", "use": "sig", "kid": s.kid, "x": text(point[1:33]), "y": text(point[33:]),
			})
		}
		// What no algorithm here uses, and no reason to drop the others.
		keys = append(keys, map[string]string{"kty": "OKP", "crv": "Ed448", "kid": "odd", "x": "AA"})
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": keys})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// publish puts other keys into the set.
func (p *identityProvider) publish(published ...signer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.published = published
}

func (p *identityProvider) goAway(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

func (p *identityProvider) fetched() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fetches
}

// askedSparingly checks that since began, when it had been asked before times, nobody
// made the provider be asked more than once in ten seconds.
func (p *identityProvider) askedSparingly(before int, began time.Time) {
	p.t.Helper()
	if got, most := p.fetched()-before, 1+int(time.Since(began)/(10*time.Second)); got > most {
		p.t.Errorf("%d fetches in %s, want at most %d", got, time.Since(began), most)
	}
}

// token is the fields of a request with a token of this provider for user, signed
// by s and changed by the pairs; a nil value deletes.
func (p *identityProvider) token(s signer, user string, pairs ...any) []string {
	p.t.Helper()
	claims := jwt.MapClaims{"iss": p.URL, "aud": "api", "sub": user, "exp": time.Now().Add(time.Hour).Unix()}
	for i := 0; i < len(pairs); i += 2 {
		name, _ := pairs[i].(string)
		if claims[name] = pairs[i+1]; pairs[i+1] == nil {
			delete(claims, name)
		}
	}
	tok := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	tok.Header["kid"] = s.kid
	text, err := tok.SignedString(s.key)
	if err != nil {
		p.t.Fatal(err)
	}
	return []string{"Authorization", "Bearer " + text}
}

// providerSite is a site that takes tokens of issuers, entries of auth.jwt.
func providerSite(t testing.TB, failureLimit string, issuers ...string) *site {
	s := newSite(t)
	s.write("plans.yaml", "default_plan: all\nplans: {all: {limits: []}}\n")
	s.write("routes.yaml", providerRoutes(newUpstream(t, nil), failureLimit, issuers...))
	return s
}

func providerRoutes(u *upstream, failureLimit string, issuers ...string) string {
	return `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [127.0.0.1]}
auth:
  failure_limit: ` + failureLimit + `
  jwt:
    - ` + strings.Join(issuers, "\n    - ") + `
upstreams:
  api: {targets: ["` + u.URL + `"]}
routes:
  - {name: api, path: /, upstream: api}
`
}

// entry is the provider as one of auth.jwt, with further fields.
func (p *identityProvider) entry(more string) string {
	return `{issuer: "` + p.URL + `", audience: api, algorithms: [ES256]` + more + `}`
}

// by is entry with the URL of the set.
func (p *identityProvider) byURL(more string) string {
	return p.entry(`, jwks_url: "` + p.URL + `/keys.json"` + more)
}
