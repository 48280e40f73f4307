package jwks_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"bouncer/gateway/jwks"
)

// The keys of all tests; RSA keys are slow to make.
var (
	rsaKey   = must(rsa.GenerateKey(rand.Reader, 2048))
	otherRSA = must(rsa.GenerateKey(rand.Reader, 2048))
	p256Key  = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	p521Key  = must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))
	edKey, _ = func() (ed25519.PublicKey, ed25519.PrivateKey) {
		p, k, _ := ed25519.GenerateKey(rand.Reader)
		return p, k
	}()
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// jwk is a JWK of key; with says what else stands in it, or takes out (nil).
func jwk(kid string, key crypto.PublicKey, with map[string]any) string {
	b := must(json.Marshal(jose.JSONWebKey{Key: key, KeyID: kid}))
	m := map[string]any{}
	if err := json.Unmarshal(b, &m); err != nil {
		panic(err)
	}
	for k, v := range with {
		if v == nil {
			delete(m, k)
			continue
		}
		m[k] = v
	}
	return string(must(json.Marshal(m)))
}

// set is a JWK set of keys.
func set(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }

func TestASetIsRead(t *testing.T) {
	t.Parallel()
	s, err := jwks.Parse([]byte(set(
		jwk("a", &rsaKey.PublicKey, map[string]any{"alg": "RS256", "use": "sig"}),
		jwk("b", &p256Key.PublicKey, map[string]any{"key_ops": []string{"verify"}}),
		jwk("b", &p521Key.PublicKey, nil),
		jwk("", edKey, map[string]any{"custom": 1}),
	)))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Keys()); n != 4 || len(s.Skipped()) != 0 {
		t.Fatalf("%d keys, skipped %q; want 4 and none", n, s.Skipped())
	}
	a := s.Find("a")
	if len(a) != 1 || a[0].Algorithm != "RS256" || !rsaKey.PublicKey.Equal(a[0].Public) {
		t.Errorf("Find(a) = %+v", a)
	}
	if n := len(s.Find("b")); n != 2 {
		t.Errorf("two keys are called b, Find found %d", n)
	}
	if n := len(s.Find("")); n != 1 {
		t.Errorf("one key has no kid, Find found %d", n)
	}
	if s.Find("c") != nil {
		t.Error("Find(c) found something")
	}
}

// Each entry is left out for a reason of its own, and the good key beside it works.
func TestOneOddKeySpoilsNothing(t *testing.T) {
	t.Parallel()
	small := must(rsa.GenerateKey(rand.Reader, 1024))
	private := must(json.Marshal(jose.JSONWebKey{Key: p256Key, KeyID: "x"}))
	b64 := base64.RawURLEncoding.EncodeToString
	for name, c := range map[string]struct{ key, why string }{
		"null":                     {`null`, "not a JSON object"},
		"a number":                 {`7`, "not a JSON object"},
		"a list":                   {`[]`, "not a JSON object"},
		"kid is a number":          {`{"kty":"RSA","kid":7}`, "not a JSON object with texts"},
		"no kty":                   {`{}`, "missing or damaged"},
		"an unknown kty":           {`{"kty":"NEW","kid":"x"}`, "type or on a curve"},
		"post-quantum":             {`{"kty":"AKP","alg":"ML-DSA-44","pub":"AAAA"}`, ""},
		"Ed448":                    {`{"kty":"OKP","crv":"Ed448","x":"AAAA"}`, "type or on a curve"},
		"X25519":                   {`{"kty":"OKP","crv":"X25519","x":"` + b64(make([]byte, 32)) + `"}`, "type or on a curve"},
		"secp256k1":                {`{"kty":"EC","crv":"secp256k1","x":"AAAA","y":"AAAA"}`, "type or on a curve"},
		"a secret":                 {`{"kty":"oct","k":"AAAA"}`, "shared secret"},
		"a private key":            {string(private), "private key"},
		"for encryption":           {jwk("x", &rsaKey.PublicKey, map[string]any{"use": "enc"}), "use"},
		"for signing":              {jwk("x", &rsaKey.PublicKey, map[string]any{"key_ops": []string{"sign"}}), "key_ops"},
		"padded base64":            {jwk("x", &rsaKey.PublicKey, map[string]any{"e": "AQAB=="}), "damaged"},
		"standard base64":          {jwk("x", edKey, map[string]any{"x": "+/+/"}), "damaged"},
		"no y":                     {jwk("x", &p256Key.PublicKey, map[string]any{"y": nil}), "missing"},
		"x one byte short":         {jwk("x", &p256Key.PublicKey, map[string]any{"x": b64(make([]byte, 31))}), "damaged"},
		"no point":                 {jwk("x", &p256Key.PublicKey, map[string]any{"x": b64(make([]byte, 32))}), "damaged"},
		"n is missing":             {jwk("x", &rsaKey.PublicKey, map[string]any{"n": nil}), "missing"},
		"e is 1":                   {jwk("x", &rsaKey.PublicKey, map[string]any{"e": "AQ"}), "damaged"},
		"e is even":                {jwk("x", &rsaKey.PublicKey, map[string]any{"e": "AQAA"}), "exponent"},
		"e is 2 to the 32 plus 1":  {jwk("x", &rsaKey.PublicKey, map[string]any{"e": b64(big.NewInt(1<<32 + 1).Bytes())}), "exponent"},
		"e is beyond 64 bits":      {jwk("x", &rsaKey.PublicKey, map[string]any{"e": b64(append([]byte{1}, make([]byte, 9)...))}), "damaged"},
		"n is even":                {jwk("x", &rsaKey.PublicKey, map[string]any{"n": b64(new(big.Int).Lsh(big.NewInt(1), 2047).Bytes())}), "modulus"},
		"1024 bits":                {jwk("x", &small.PublicKey, nil), "1024 bits"},
		"twenty thousand bits":     {jwk("x", &rsaKey.PublicKey, map[string]any{"n": b64(new(big.Int).Lsh(big.NewInt(1), 20000).Bytes())}), ""},
		"a certificate of another": {jwk("x", &rsaKey.PublicKey, map[string]any{"x5c": []string{"AAAA"}}), "damaged"},
		"a kid without end":        {jwk(strings.Repeat("k", 300), &rsaKey.PublicKey, nil), "256 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good := jwk("good", &otherRSA.PublicKey, nil)
			for _, order := range []string{set(c.key, good), set(good, c.key)} {
				s, err := jwks.Parse([]byte(order))
				if err != nil {
					t.Fatal(err)
				}
				if n := len(s.Keys()); n != 1 || len(s.Find("good")) != 1 {
					t.Errorf("%d keys, want the good one alone", n)
				}
				if sk := s.Skipped(); len(sk) != 1 || !strings.Contains(sk[0], c.why) {
					t.Errorf("skipped %q, want one line with %q", sk, c.why)
				}
			}
			if _, err := jwks.Parse([]byte(set(c.key))); err == nil {
				t.Error("alone it makes no set, and no error was returned")
			}
		})
	}
}

func TestWhatIsNoSetIsRefused(t *testing.T) {
	t.Parallel()
	good := jwk("a", &rsaKey.PublicKey, nil)
	for name, c := range map[string]struct{ text, want string }{
		"nothing":            {"", "not JSON"},
		"HTML":               {"\n<!doctype html><title>hello</title>", "HTML"},
		"cut":                {set(good)[:40], "not JSON"},
		"more after it":      {set(good) + set(good), "after"},
		"a key alone":        {good, `no list "keys"`},
		"keys is null":       {`{"keys":null}`, `no list "keys"`},
		"keys is an object":  {`{"keys":{}}`, "not JSON of the form"},
		"a list":             {"[" + good + "]", "not JSON of the form"},
		"empty":              {set(), "empty"},
		"a mebibyte of keys": {set(strings.Repeat(good+",", 3000) + good), "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := jwks.Parse([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestASetIsBounded(t *testing.T) {
	t.Parallel()
	var keys []string
	for n := range 120 {
		keys = append(keys, jwk(fmt.Sprint(n), &p256Key.PublicKey, nil))
	}
	s, err := jwks.Parse([]byte(set(keys...)))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Keys()); n != jwks.MaxKeys || s.Find("119") != nil {
		t.Errorf("%d keys, want the first %d", n, jwks.MaxKeys)
	}
	if n := len(s.Skipped()); n == 0 || n > 32 {
		t.Errorf("%d lines of what was left out, want 1 to 32", n)
	}
}

func TestSetsAreEqualByTheirUsableKeys(t *testing.T) {
	t.Parallel()
	parse := func(s string) *jwks.Set { return must(jwks.Parse([]byte(s))) }
	a, b := jwk("a", &rsaKey.PublicKey, nil), jwk("b", &p256Key.PublicKey, nil)
	one := parse(set(a, b))
	if !one.Equal(parse(" " + set(a, "null", b))) {
		t.Error("white space and a key that is left out make no difference")
	}
	for name, other := range map[string]string{
		"fewer":        set(a),
		"other order":  set(b, a),
		"other kid":    set(a, jwk("c", &p256Key.PublicKey, nil)),
		"other alg":    set(a, jwk("b", &p256Key.PublicKey, map[string]any{"alg": "ES256"})),
		"other key":    set(jwk("a", &otherRSA.PublicKey, nil), b),
		"another type": set(jwk("a", edKey, nil), b),
	} {
		if one.Equal(parse(other)) {
			t.Errorf("%s: taken for equal", name)
		}
	}
	if one.Equal(nil) {
		t.Error("equal to nil")
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"https://login.example.com/keys", "https://u:p@login.example.com:8443/keys?a=b",
		"http://127.0.0.1:9000/keys", "http://[::1]/k", "http://localhost/k", "http://LOCALHOST:1/k", "http://127.8.8.8/",
	} {
		if err := jwks.CheckURL(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "login.example.com", "ftp://login.example.com/", "file:///etc/keys", "https:///keys", "https:keys",
		"http://login.example.com/", "http://127.0.0.1.example.com/", "http://10.0.0.1/", "https://a/#x", "https://a/#", "https://%zz/",
		"http://localhost.example.com/", "http://0.0.0.0/",
	} {
		if err := jwks.CheckURL(bad); err == nil {
			t.Errorf("%s: taken for good", bad)
		}
	}
	if got, want := jwks.Redact("https://user:secret@login.example.com/keys?token=secret#x"), "https://login.example.com/keys"; got != want {
		t.Errorf("Redact: %s, want %s", got, want)
	}
	if got := jwks.Redact("https://user:secret@%zz/"); strings.Contains(got, "secret") {
		t.Errorf("Redact: %s", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		set(jwk("a", &rsaKey.PublicKey, nil)), set(jwk("a", &p256Key.PublicKey, map[string]any{"use": "sig"})),
		set(jwk("", edKey, nil), "null"), `{"keys":[{"kty":"AKP","alg":"ML-DSA-44","pub":"AAAA"}]}`, `{"keys":[]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := jwks.Parse(b)
		if err != nil {
			return
		}
		for _, k := range s.Keys() {
			if err := jwks.Usable(k.Public); err != nil {
				t.Errorf("a key that %v is used", err)
			}
		}
		if len(s.Keys()) == 0 || !s.Equal(s) {
			t.Error("an empty set, or one that is not equal to itself")
		}
	})
}
