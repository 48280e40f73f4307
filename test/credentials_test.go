package test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Whatever is wrong with a credential, the answer is the same 401: nobody
// learns which part of a guess was right.
func TestEveryBadCredentialGetsTheSame401(t *testing.T) {
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, "")
	good := s.key("-user", "priya123", "-plan", "free")
	g := s.start()
	bearer := func(text string) []string { return []string{"Authorization", "Bearer " + text} }
	change := func(name string, v any) []string {
		return bearer(s.token("priya123", func(c jwt.MapClaims) {
			if v == nil {
				delete(c, name)
			} else {
				c[name] = v
			}
		}))
	}
	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{
		"iss": "https://login.example.com/", "aud": "weather-api", "sub": "priya123",
		"exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	forged := s.token("priya123", nil)
	forged = forged[:len(forged)-4] + "AAAA"
	typo := []byte(good)
	typo[len(typo)-1] ^= 1

	tests := map[string][]string{
		"none at all":            nil,
		"an unknown key":         {"X-API-Key", "bn_live_nobody-has-this-key"},
		"a key with a typo":      {"X-API-Key", string(typo)},
		"an empty key":           {"X-API-Key", ""},
		"a key twice":            {"X-API-Key", good, "X-API-Key", good},
		"not a token":            bearer("abc"),
		"expired":                change("exp", time.Now().Add(-time.Hour).Unix()),
		"without an end":         change("exp", nil),
		"not valid yet":          change("nbf", time.Now().Add(time.Hour).Unix()),
		"another audience":       change("aud", "other-api"),
		"no audience":            change("aud", nil),
		"another issuer":         change("iss", "https://login.example.com"),
		"no user":                change("sub", nil),
		"an empty user":          change("sub", ""),
		"a number for a user":    change("sub", 7),
		"alg none":               bearer(none),
		"alg None":               bearer(strings.Replace(none, none[:strings.IndexByte(none, '.')], base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"None","typ":"JWT"}`)), 1)),
		"a forged signature":     bearer(forged),
		"bad cookie":             {"Cookie", "session=" + forged},
		"bad beside good":        {"Authorization", "Bearer " + forged, "X-API-Key", good},
		"bad cookie, good key":   {"Cookie", "session=" + forged, "X-API-Key", good},
		"two Authorization":      {"Authorization", "Bearer " + forged, "Authorization", "Bearer " + s.token("priya123", nil)},
		"an oversize token":      bearer(strings.Repeat("a", 20000)),
		"a key with a CRLF form": {"X-API-Key", "a%0d%0ab"},
	}
	var first answer
	for name, fields := range tests {
		a := g.get("/api/weather", fields...)
		if a.status != 401 {
			t.Errorf("%s: %d, want 401", name, a.status)
			continue
		}
		if got := a.header["Www-Authenticate"]; len(got) == 0 || got[0] != `Bearer realm="gateway"` {
			t.Errorf("%s: WWW-Authenticate %q", name, got)
		}
		if a.field("RateLimit") != "" || a.field("X-RateLimit-Limit") != "" {
			t.Errorf("%s: limits are told before there was a decision", name)
		}
		a.body = strings.Replace(a.body, fmt.Sprint(a.problem(t)["request_id"]), "", 1)
		if first.status == 0 {
			first = a
		}
		if a.body != first.body || fmt.Sprint(a.header["Www-Authenticate"]) != fmt.Sprint(first.header["Www-Authenticate"]) {
			t.Errorf("%s is told from the others:\n%s\n%s", name, a.body, first.body)
		}
	}
	if u.count() != 0 {
		t.Errorf("%d requests without good credentials reached the upstream", u.count())
	}
	log := g.output()
	for _, secret := range []string{good, string(typo), forged, none, string(s.secret)} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has a credential in it: %q", secret)
		}
	}
}

// Guessing is slow: an address has its budget of failures, and then nothing new
// is looked at from there, not even what is right. Who is known already passes.
func TestGuessingIsSlow(t *testing.T) {
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, "")
	known, unknown := s.key("-user", "known", "-plan", "free"), s.key("-user", "unknown", "-plan", "free")
	g := s.start()
	if a := g.get("/api/weather", "X-API-Key", known); a.status != 200 {
		t.Fatalf("the good key: %d", a.status)
	}
	for i := range 60 {
		if a := g.get("/api/weather", "X-API-Key", fmt.Sprintf("guess-%d", i)); a.status != 401 {
			t.Fatalf("guess %d: %d, want 401", i, a.status)
		}
	}
	for name, key := range map[string]string{"a wrong guess": "guess-61", "a right guess": unknown} {
		a := g.get("/api/weather", "X-API-Key", key)
		if a.status != 429 || a.problem(t)["type"] != "https://iana.org/assignments/http-problem-types#abnormal-usage-detected" {
			t.Errorf("%s after 60 failures: %d %s", name, a.status, a.body)
		}
		if a.field("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", name)
		}
	}
	if a := g.get("/api/weather", "X-API-Key", known); a.status != 200 {
		t.Errorf("a caller that was known before is shut out by its neighbour: %d", a.status)
	}
}

func TestEveryAlgorithmVerifies(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edPub, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	u := newUpstream(t, nil)
	s := newSite(t)
	public := func(name string, key any) {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		s.write(name, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	}
	public("rsa.pem", &rsaKey.PublicKey)
	public("ec.pem", &ecKey.PublicKey)
	public("ed.pem", edPub)
	s.write("plans.yaml", weatherPlans+"  pro: {limits: [{name: per-minute, algorithm: token_bucket, limit: 500/minute}]}\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
auth:
  jwt:
    - {issuer: rsa, algorithms: [RS256], public_key_file: rsa.pem, claims: {user: sub, tenant: realm.org, plan: plan}}
    - {issuer: ec, algorithms: [ES256], public_key_file: ec.pem}
    - {issuer: ed, algorithms: [EdDSA], public_key_file: ed.pem}
upstreams:
  weather: {targets: ["`+u.URL+`"]}
routes:
  - {name: weather, path: /api/weather, upstream: weather}
`)
	g := s.start()
	claims := func(iss string) jwt.MapClaims {
		return jwt.MapClaims{
			"iss": iss, "sub": "priya123", "plan": "pro", "exp": time.Now().Add(time.Hour).Unix(),
			"realm": map[string]any{"org": "acme"},
		}
	}
	sign := func(m jwt.SigningMethod, iss string, key any) string {
		text, err := jwt.NewWithClaims(m, claims(iss)).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, text := range map[string]string{
		"RS256": sign(jwt.SigningMethodRS256, "rsa", rsaKey),
		"ES256": sign(jwt.SigningMethodES256, "ec", ecKey),
		"EdDSA": sign(jwt.SigningMethodEdDSA, "ed", edKey),
	} {
		if a := g.get("/api/weather", "Authorization", "bearer  "+text); a.status != 200 {
			t.Errorf("%s: %d", name, a.status)
		}
	}
	g.get("/api/weather", "Authorization", "Bearer "+sign(jwt.SigningMethodRS256, "rsa", rsaKey))
	r := u.last(t)
	for name, want := range map[string]string{"X-Auth-User": "priya123", "X-Auth-Tenant": "acme", "X-Auth-Plan": "pro", "Authorization": ""} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("the upstream sees %s: %q, want %q", name, got, want)
		}
	}
	// The public key is no secret: a token signed with its bytes is forged.
	pemBytes := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(&rsaKey.PublicKey))})
	for name, text := range map[string]string{
		"HS256 with the PEM":                   sign(jwt.SigningMethodHS256, "rsa", pemBytes),
		"HS256 with the PEM, no newline":       sign(jwt.SigningMethodHS256, "rsa", []byte(strings.TrimSpace(string(pemBytes)))),
		"RS384, not on the list":               sign(jwt.SigningMethodRS384, "rsa", rsaKey),
		"another issuer's key":                 sign(jwt.SigningMethodES256, "rsa", ecKey),
		"one issuer's token in another's name": sign(jwt.SigningMethodRS256, "ec", rsaKey),
	} {
		if a := g.get("/api/weather", "Authorization", "Bearer "+text); a.status != 401 {
			t.Errorf("%s: %d, want 401", name, a.status)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Who is calling goes upstream in fields that a client can neither send nor
// strip, however it spells them.
func TestIdentityFieldsBelongToTheGateway(t *testing.T) {
	u := newUpstream(t, nil)
	s := newSite(t)
	s.write("keys.yaml", "keys: []\n")
	s.write("plans.yaml", weatherPlans+"  anonymous: {limits: [{name: per-minute, per: ip, algorithm: token_bucket, limit: 600/minute}]}\nanonymous_plan: anonymous\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
auth: {api_keys: {file: keys.yaml}}
upstreams:
  weather: {targets: ["`+u.URL+`"]}
routes:
  - {name: weather, path: /api/weather, upstream: weather}
  - {name: open, path: /open, upstream: weather, auth: optional}
  - {name: public, path: /public, upstream: weather, auth: none}
  - {name: passing, path: /passing, upstream: weather, forward_credentials: true}
`)
	key := s.key("-user", "priya123", "-tenant", "acme", "-plan", "free", "-id", "k-priya")
	g := s.start()
	forged := []string{
		"X-Auth-User", "admin", "x_auth_user", "admin", "X-AUTH-TENANT", "evil", "X_Auth_Plan", "pro", "X-Auth-Key-Id", "k-1",
		"X-Forwarded-For", "198.51.100.9", "X_Forwarded_For", "198.51.100.9", "Forwarded", "for=198.51.100.9",
		"X-Real-IP", "198.51.100.9", "True-Client-IP", "198.51.100.9", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "evil.example",
		"Proxy", "http://evil.example", "Connection", "X-Auth-User, X-Auth-Plan, X-Forwarded-For, X-Real-IP, X-Request-Id",
	}
	for path, want := range map[string]map[string]string{
		"/api/weather": {"X-Auth-User": "priya123", "X-Auth-Tenant": "acme", "X-Auth-Plan": "free", "X-Auth-Key-Id": "k-priya", "X-Api-Key": ""},
		"/open":        {"X-Auth-User": "priya123", "X-Auth-Tenant": "acme", "X-Auth-Plan": "free", "X-Auth-Key-Id": "k-priya", "X-Api-Key": ""},
		"/passing":     {"X-Auth-User": "priya123", "X-Api-Key": key},
		"/public":      {"X-Auth-User": "", "X-Auth-Tenant": "", "X-Auth-Key-Id": "", "X-Api-Key": key},
	} {
		a := g.get(path, append([]string{"X-API-Key", key}, forged...)...)
		if a.status != 200 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
			continue
		}
		r := u.last(t)
		for name, v := range want {
			if got := r.Header.Get(name); got != v {
				t.Errorf("%s: the upstream sees %s: %q, want %q", path, name, got, v)
			}
		}
		for name, v := range map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Proto": "http",
			"X-Forwarded-Host": strings.TrimPrefix(g.url, "http://"), "Via": "1.1 gateway",
		} {
			if got := r.Header[http.CanonicalHeaderKey(name)]; len(got) != 1 || got[0] != v {
				t.Errorf("%s: the upstream sees %s: %q, want %q", path, name, got, v)
			}
		}
		for name, values := range r.Header {
			for _, v := range values {
				if strings.Contains(v, "evil") || strings.Contains(v, "198.51.100.9") || v == "admin" || strings.Contains(name, "_") {
					t.Errorf("%s: what the client forged reaches the upstream: %s: %s", path, name, v)
				}
			}
		}
		if r.Header.Get("X-Request-Id") == "" || r.Header.Get("Traceparent") == "" {
			t.Errorf("%s: no request id or traceparent: %v", path, r.Header)
		}
	}
	// optional: nobody is anonymous, a bad credential is not.
	if a := g.get("/open"); a.status != 200 || u.last(t).Header.Get("X-Auth-Plan") != "anonymous" {
		t.Errorf("optional without credentials: %d, plan %q", a.status, u.last(t).Header.Get("X-Auth-Plan"))
	}
	if a := g.get("/open", "X-API-Key", "wrong"); a.status != 401 {
		t.Errorf("optional with a bad credential: %d, want 401", a.status)
	}
}
