package auth_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"bouncer/gateway/auth"
)

// now is the instant at which the tests take place.
var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func clock() time.Time { return now }

const (
	issuerA = "https://login.example.com/"
	issuerB = "https://other.example.com"
)

// Keys are made once: RSA takes its time.
var (
	secretA  = []byte("a secret of the first issuer, long enough even for the longest hash")
	secretB  = []byte("a secret of the other issuer, long enough even for the longest hash")
	rsaKey   = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	rsaOther = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	p256     = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	p384     = must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	p521     = must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))
	edKey    = ed25519.NewKeyFromSeed([]byte("a seed of thirty-two bytes, fine"))
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// hs256 is an issuer whose tokens the tests sign with secretA.
func hs256() auth.Issuer {
	return auth.Issuer{
		Issuer: issuerA, Algorithms: []string{"HS256"}, Secrets: [][]byte{secretA},
		Claims: auth.Claims{User: "sub", Tenant: "org", Plan: "plan"},
	}
}

func newAuth(t testing.TB, o auth.Options) *auth.Authenticator {
	t.Helper()
	if o.Now == nil {
		o.Now = clock
	}
	a, err := auth.New(o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return a
}

// claims is a good claim set, changed by the pairs; a nil value deletes.
func claims(pairs ...any) map[string]any {
	c := map[string]any{
		"iss": issuerA, "sub": "priya123", "org": "acme", "plan": "pro",
		"exp": now.Add(time.Hour).Unix(),
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == nil {
			delete(c, pairs[i].(string))
		} else {
			c[pairs[i].(string)] = pairs[i+1]
		}
	}
	return c
}

// token signs claims with secretA.
func token(pairs ...any) string {
	return sign("HS256", secretA, nil, claims(pairs...))
}

// sign signs a token as an issuer would.
func sign(alg string, key any, header map[string]any, c map[string]any) string {
	h := map[string]any{"alg": alg, "typ": "JWT"}
	maps.Copy(h, header)
	return signRaw(alg, key, string(must(json.Marshal(h))), string(must(json.Marshal(c))))
}

// signRaw signs header and claims as they are, however odd.
func signRaw(alg string, key any, header, claims string) string {
	text := b64(header) + "." + b64(claims)
	sig := must(jwt.GetSigningMethod(alg).Sign(text, key))
	return text + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// request has the fields of lines such as "X-API-Key: abc". Names become
// canonical, as the server makes them.
func request(lines ...string) *http.Request {
	r := must(http.NewRequest("GET", "http://gateway.example/", nil))
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func bearer(token string) *http.Request { return request("Authorization: Bearer " + token) }

// reason authenticates and returns the user, or the reason of the refusal.
func reason(t testing.TB, a *auth.Authenticator, r *http.Request) string {
	t.Helper()
	before := r.Header.Clone()
	p, err := a.Authenticate(r, auth.Check{})
	if !equalHeader(before, r.Header) {
		t.Errorf("Authenticate changed the request: %v, was %v", r.Header, before)
	}
	refused, ok := errors.AsType[*auth.RefusedError](err)
	switch {
	case err == nil:
		if p.User == "" || p.Method == "" {
			t.Errorf("a principal without a name: %+v", p)
		}
		return "user " + p.User
	case errors.Is(err, auth.ErrNoCredentials):
		return "none"
	case !ok:
		t.Fatalf("Authenticate: %v (%T)", err, err)
	}
	if !reflect.DeepEqual(p, auth.Principal{}) {
		t.Errorf("a refusal came with a principal: %+v", p)
	}
	keepsQuiet(t, r, err)
	return string(refused.Reason)
}

// keepsQuiet fails if an error tells any part of a credential that is in r.
func keepsQuiet(t testing.TB, r *http.Request, err error) {
	t.Helper()
	for _, name := range []string{"Authorization", "Cookie", "X-Api-Key"} {
		for _, value := range r.Header[name] {
			for _, word := range strings.FieldsFunc(value, func(c rune) bool { return strings.ContainsRune(" .;=,\t", c) }) {
				if len(word) > 8 && strings.Contains(err.Error(), word) {
					t.Errorf("the error %q contains %q of the credential", err, word)
				}
			}
		}
	}
}

func equalHeader(a, b http.Header) bool {
	return maps.EqualFunc(a, b, func(x, y []string) bool { return strings.Join(x, "\n") == strings.Join(y, "\n") && len(x) == len(y) })
}

// key is an API key with the digest that New wants.
func key(id, secret string) auth.Key {
	return auth.Key{ID: id, SHA256: sha256.Sum256([]byte(secret)), User: "user-of-" + id}
}
