package auth_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/auth"
	"bouncer/gateway/jwks"
)

// jwk is a public key as a provider publishes it; alg and kid may be empty.
func jwk(kid, alg string, key crypto.PublicKey) map[string]string {
	m := map[string]string{"use": "sig"}
	set := func(name string, b []byte) { m[name] = b64(string(b)) }
	switch k := key.(type) {
	case *rsa.PublicKey:
		m["kty"] = "RSA"
		set("n", k.N.Bytes())
		set("e", big.NewInt(int64(k.E)).Bytes())
	case *ecdsa.PublicKey:
		m["kty"], m["crv"] = "EC", k.Curve.Params().Name
		point := must(k.Bytes())[1:]
		set("x", point[:len(point)/2])
		set("y", point[len(point)/2:])
	case ed25519.PublicKey:
		m["kty"], m["crv"] = "OKP", "Ed25519"
		set("x", k)
	}
	for name, v := range map[string]string{"kid": kid, "alg": alg} {
		if v != "" {
			m[name] = v
		}
	}
	return m
}

func keySet(keys ...map[string]string) *jwks.Set {
	return must(jwks.Parse(must(json.Marshal(map[string]any{"keys": keys}))))
}

// provider is a KeySource in the hands of the test.
type provider struct {
	keys            atomic.Pointer[jwks.Set]
	next            *jwks.Set // what Missing finds; nil: nothing new
	deaf            bool      // the provider does not answer
	missing, doubts int
}

func (p *provider) Keys() *jwks.Set { return p.keys.Load() }
func (p *provider) Doubt()          { p.doubts++ }
func (p *provider) Missing(context.Context) (*jwks.Set, bool) {
	p.missing++
	if p.next != nil {
		p.keys.Store(p.next)
		p.next = nil
	}
	return p.Keys(), !p.deaf
}

func provides(keys ...map[string]string) *provider {
	p := &provider{}
	if len(keys) > 0 {
		p.keys.Store(keySet(keys...))
	}
	return p
}

func (p *provider) issuer(algorithms ...string) auth.Issuer {
	return auth.Issuer{Issuer: issuerA, Algorithms: algorithms, KeySet: p}
}

func kid(s any) map[string]any { return map[string]any{"kid": s} }

// With a kid only the keys of that kid count; without, those that fit.
func TestTokenIsVerifiedByTheKeyItNames(t *testing.T) {
	t.Parallel()
	p := provides(
		jwk("r1", "", rsaKey().Public()), jwk("r2", "RS512", rsaOther().Public()), jwk("e1", "", p256.Public()),
		jwk("e3", "", p384.Public()), jwk("d1", "EdDSA", edKey.Public()), jwk("two", "", p256.Public()), jwk("two", "RS256", rsaKey().Public()),
	)
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{p.issuer("RS256", "RS512", "PS256", "ES256", "EdDSA")}})
	for name, tt := range map[string]struct {
		token, want     string
		missing, doubts int
	}{
		"its key":                              {sign("RS256", rsaKey(), kid("r1"), claims()), "user priya123", 0, 0},
		"its key, another algorithm of it":     {sign("PS256", rsaKey(), kid("r1"), claims()), "user priya123", 0, 0},
		"its key, for its one algorithm":       {sign("RS512", rsaOther(), kid("r2"), claims()), "user priya123", 0, 0},
		"its key, which is not for RS256":      {sign("RS256", rsaOther(), kid("r2"), claims()), "bad_algorithm", 0, 1},
		"a key of the set, not the one named":  {sign("RS256", rsaOther(), kid("r1"), claims()), "bad_signature", 0, 1},
		"the named key is of another type":     {sign("RS256", rsaKey(), kid("e1"), claims()), "bad_algorithm", 0, 1},
		"the named key is on another curve":    {sign("ES256", p256, kid("e3"), claims()), "bad_algorithm", 0, 1},
		"an algorithm that is not allowed":     {sign("ES384", p384, kid("e3"), claims()), "bad_algorithm", 0, 0},
		"one of two keys of one kid":           {sign("ES256", p256, kid("two"), claims()), "user priya123", 0, 0},
		"the other of them":                    {sign("RS256", rsaKey(), kid("two"), claims()), "user priya123", 0, 0},
		"a kid in another spelling":            {sign("RS256", rsaKey(), kid("R1"), claims()), "unknown_key_id", 1, 0},
		"an unknown kid":                       {sign("RS256", rsaKey(), kid("r9"), claims()), "unknown_key_id", 1, 0},
		"no kid, the first that fits":          {sign("RS256", rsaKey(), nil, claims()), "user priya123", 0, 0},
		"no kid, the only one of the type":     {sign("EdDSA", edKey, nil, claims()), "user priya123", 0, 0},
		"no kid, and the key is for RS512":     {sign("RS256", rsaOther(), nil, claims()), "bad_signature", 0, 1},
		"an empty kid is none":                 {sign("ES256", p256, kid(""), claims()), "user priya123", 0, 0},
		"kid a number":                         {sign("RS256", rsaKey(), kid(1), claims()), "bad_header", 0, 0},
		"kid null":                             {sign("RS256", rsaKey(), kid(nil), claims()), "bad_header", 0, 0},
		"kid a list":                           {sign("RS256", rsaKey(), kid([]string{"r1"}), claims()), "bad_header", 0, 0},
		"kid as long as allowed":               {sign("RS256", rsaKey(), kid(strings.Repeat("k", 256)), claims()), "unknown_key_id", 1, 0},
		"kid longer":                           {sign("RS256", rsaKey(), kid(strings.Repeat("k", 257)), claims()), "bad_header", 0, 0},
		"an HMAC with the text of the public":  {sign("HS256", []byte(p256.X.String()), kid("e1"), claims()), "bad_algorithm", 0, 0},
		"an issuer that is none":               {sign("RS256", rsaKey(), kid("r9"), claims("iss", issuerB)), "wrong_issuer", 0, 0},
		"good but for its time, an unknown id": {sign("RS256", rsaKey(), kid("r1"), claims("exp", 1)), "expired", 0, 0},
	} {
		p.missing, p.doubts = 0, 0
		if got := reason(t, a, bearer(tt.token)); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
		if p.missing != tt.missing || p.doubts != tt.doubts {
			t.Errorf("%s: %d times missing, %d doubts; want %d and %d", name, p.missing, p.doubts, tt.missing, tt.doubts)
		}
		// An address that guesses is looked up, and nobody is asked for it.
		_, _ = a.Authenticate(bearer(tt.token), auth.Check{OnlyKnown: true})
		if p.missing != tt.missing || p.doubts != tt.doubts {
			t.Errorf("%s: asked for a look-up", name)
		}
	}
}

// E08: two issuers may call their keys alike, and neither's verify the other's
// tokens.
func TestKeyIsLookedUpByIssuerAndKid(t *testing.T) {
	t.Parallel()
	of := func(iss string, key crypto.PublicKey) auth.Issuer {
		return auth.Issuer{Issuer: iss, Algorithms: []string{"RS256"}, KeySet: auth.FixedKeys(keySet(jwk("1", "RS256", key)))}
	}
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{of(issuerA, rsaKey().Public()), of(issuerB, rsaOther().Public())}})
	for name, tt := range map[string]struct{ token, want string }{
		"A":                            {sign("RS256", rsaKey(), kid("1"), claims()), "user priya123"},
		"B":                            {sign("RS256", rsaOther(), kid("1"), claims("iss", issuerB)), "user priya123"},
		"B's token claiming to be A's": {sign("RS256", rsaOther(), kid("1"), claims()), "bad_signature"},
		"A's token claiming to be B's": {sign("RS256", rsaKey(), kid("1"), claims("iss", issuerB)), "bad_signature"},
	} {
		if got := reason(t, a, bearer(tt.token)); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// A token that names no key costs a bounded number of signatures.
func TestTokenWithoutKidTriesFewKeys(t *testing.T) {
	t.Parallel()
	var keys []map[string]string
	var private []*ecdsa.PrivateKey
	for n := range 10 {
		k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
		private, keys = append(private, k), append(keys, jwk(fmt.Sprint(n), "", k.Public()))
	}
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{provides(keys...).issuer("ES256")}})
	for n, k := range private {
		want := "user priya123"
		if n >= 8 {
			want = "bad_signature"
		}
		if got := reason(t, a, bearer(sign("ES256", k, nil, claims()))); got != want {
			t.Errorf("without kid, key %d: %s, want %s", n, got, want)
		}
		if got := reason(t, a, bearer(sign("ES256", k, kid(fmt.Sprint(n)), claims()))); got != "user priya123" {
			t.Errorf("with kid, key %d: %s", n, got)
		}
	}
}

// E02: a key that was published after the last fetch is found by the first token
// that names it, and one that has replaced another under its kid is asked for.
func TestRotationIsFollowed(t *testing.T) {
	t.Parallel()
	p := provides(jwk("old", "", rsaKey().Public()))
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{p.issuer("RS256")}})
	old, fresh := bearer(sign("RS256", rsaKey(), kid("old"), claims())), bearer(sign("RS256", rsaOther(), kid("new"), claims()))
	if got := reason(t, a, old); got != "user priya123" {
		t.Fatal(got)
	}
	p.next = keySet(jwk("new", "", rsaOther().Public()), jwk("old", "", rsaKey().Public()))
	for range 2 {
		if got := reason(t, a, fresh); got != "user priya123" {
			t.Fatalf("the new key: %s", got)
		}
		if got := reason(t, a, old); got != "user priya123" {
			t.Fatalf("the old key, which is still published: %s", got)
		}
	}
	if p.missing != 1 || p.doubts != 0 {
		t.Errorf("asked %d times, %d doubts", p.missing, p.doubts)
	}
}

// A remembered token ends with the key that verified it: withdrawn, replaced
// under its kid, kept for another algorithm, or too old. A set that changes
// elsewhere forgets nobody, not even for an address that may only be looked up.
func TestRememberedTokenEndsWithItsKey(t *testing.T) {
	t.Parallel()
	r := jwk("r", "", rsaKey().Public())
	other := jwk("o", "", p256.Public())
	p := provides(r)
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{p.issuer("RS256", "ES256")}})
	lines := map[string]string{
		"with kid":    "Authorization: Bearer " + sign("RS256", rsaKey(), kid("r"), claims()),
		"without kid": "Authorization: Bearer " + sign("RS256", rsaKey(), nil, claims()),
	}
	for _, line := range lines {
		if got := reason(t, a, request(line)); got != "user priya123" {
			t.Fatal(got)
		}
	}
	for _, step := range []struct {
		what       string
		keys       []map[string]string // nil: none to trust
		with, sans string
	}{
		{"as it was", []map[string]string{r}, "user priya123", "user priya123"},
		{"another key beside it", []map[string]string{other, r}, "user priya123", "user priya123"},
		{"withdrawn", []map[string]string{other}, "not known", "not known"},
		{"back", []map[string]string{r, other}, "user priya123", "user priya123"},
		{"replaced under its kid", []map[string]string{jwk("r", "", rsaOther().Public())}, "not known", "not known"},
		{"under another kid", []map[string]string{jwk("q", "", rsaKey().Public())}, "not known", "user priya123"},
		{"for another algorithm only", []map[string]string{jwk("r", "RS512", rsaKey().Public()), other}, "not known", "not known"},
		{"for its own only", []map[string]string{jwk("r", "RS256", rsaKey().Public())}, "user priya123", "user priya123"},
		{"nothing to trust", nil, "not known", "not known"},
		{"back", []map[string]string{r}, "user priya123", "user priya123"},
	} {
		if step.keys == nil {
			p.keys.Store(nil)
		} else {
			p.keys.Store(keySet(step.keys...))
		}
		for range 2 {
			for name, want := range map[string]string{"with kid": step.with, "without kid": step.sans} {
				if got := known(t, a, lines[name]); got != want {
					t.Errorf("%s, %s: %s, want %s", step.what, name, got, want)
				}
			}
		}
	}
	p.keys.Store(nil)
	if got := reason(t, a, request(lines["with kid"])); got != "keys_unavailable" {
		t.Errorf("no keys to trust: %s", got)
	}
}

// An issuer whose provider is away is no guess of the caller, and is told from
// a key that is not there.
func TestNoKeysYetIsItsOwnReason(t *testing.T) {
	t.Parallel()
	p := provides()
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{p.issuer("RS256")}})
	good := bearer(sign("RS256", rsaKey(), kid("1"), claims()))
	for name, r := range map[string]string{
		"good":        sign("RS256", rsaKey(), kid("1"), claims()),
		"without kid": sign("RS256", rsaKey(), nil, claims()),
		"forged":      sign("RS256", rsaOther(), kid("1"), claims()),
	} {
		if got := reason(t, a, bearer(r)); got != "keys_unavailable" {
			t.Errorf("%s: %s", name, got)
		}
	}
	p.next = keySet(jwk("1", "", rsaKey().Public()))
	if got := reason(t, a, good); got != "user priya123" {
		t.Errorf("once they are there: %s", got)
	}
}

// A key that is not in the set may be one that the provider has published since, as
// long as it cannot be asked.
func TestAnUnknownKeyIsNoGuessWhileTheProviderIsNotHeard(t *testing.T) {
	t.Parallel()
	p := provides(jwk("1", "", rsaKey().Public()))
	p.deaf = true
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{p.issuer("RS256", "ES256")}})
	for name, c := range map[string]struct{ token, want string }{
		"known":       {sign("RS256", rsaKey(), kid("1"), claims()), "user priya123"},
		"forged":      {sign("RS256", rsaOther(), kid("1"), claims()), "bad_signature"},
		"new kid":     {sign("RS256", rsaOther(), kid("2"), claims()), "keys_unavailable"},
		"without kid": {sign("ES256", p256, nil, claims()), "keys_unavailable"},
	} {
		if got := reason(t, a, bearer(c.token)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	p.deaf = false
	if got := reason(t, a, bearer(sign("RS256", rsaOther(), kid("2"), claims()))); got != "unknown_key_id" {
		t.Errorf("once it is heard: %s", got)
	}
}

// What a set verified stays known over a reload, whoever holds the set then, as
// long as the key is in it.
func TestTokenStaysKnownOverAReloadWithItsKey(t *testing.T) {
	t.Parallel()
	issuer := func(keys ...map[string]string) auth.Issuer {
		return auth.Issuer{Issuer: issuerA, Algorithms: []string{"RS256"}, KeySet: auth.FixedKeys(keySet(keys...))}
	}
	r, o := jwk("r", "", rsaKey().Public()), jwk("o", "", rsaOther().Public())
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{issuer(r)}})
	line := "Authorization: Bearer " + sign("RS256", rsaKey(), kid("r"), claims())
	if got := reason(t, a, request(line)); got != "user priya123" {
		t.Fatal(got)
	}
	pem := auth.Issuer{Issuer: issuerA, Algorithms: []string{"RS256"}, PublicKeys: []crypto.PublicKey{rsaKey().Public()}}
	leeway := issuer(r)
	leeway.Leeway = time.Second
	for _, step := range []struct {
		what   string
		issuer auth.Issuer
		want   string
	}{
		{"a file of the same content", issuer(r), "user priya123"},
		{"a key more", issuer(o, r), "user priya123"},
		{"the key is gone", issuer(o), "not known"},
		{"the key is back", issuer(r), "user priya123"},
		{"tokens mean something else", leeway, "not known"},
		{"keys of another kind", pem, "not known"},
	} {
		a = newAuth(t, auth.Options{Issuers: []auth.Issuer{step.issuer}, Previous: a})
		if got := known(t, a, line); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
	}
}

// A set is for public keys, and stands alone.
func TestKeySetStandsAlone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		change func(*auth.Issuer)
		want   string
	}{
		{func(i *auth.Issuer) { i.Algorithms = []string{"HS256"} }, "HS256 wants a secret"},
		{func(i *auth.Issuer) { i.Algorithms, i.Secrets = []string{"HS256"}, [][]byte{secretA} }, "never stand in one entry"},
		{func(i *auth.Issuer) { i.PublicKeys = []crypto.PublicKey{rsaKey().Public()} }, "beside a key set"},
	} {
		i := provides().issuer("RS256")
		tt.change(&i)
		if _, err := auth.New(auth.Options{Issuers: []auth.Issuer{i}}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
}
