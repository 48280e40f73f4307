package auth_test

import (
	"crypto"
	"fmt"
	"testing"

	"bouncer/gateway/auth"
)

// What every request pays must not allocate: a known key, a known token, and
// taking the credential out again.
func TestHotPathDoesNotAllocate(t *testing.T) {
	a := both(t)
	for name, line := range map[string]string{
		"key":    "X-API-Key: " + keyOne,
		"scheme": "Authorization: ApiKey " + keyPlain,
		"token":  "Authorization: Bearer " + token(),
		"cookie": "Cookie: a=1; session=" + token(),
	} {
		r := request(line)
		for _, c := range []auth.Check{{}, {OnlyKnown: true}} {
			n := testing.AllocsPerRun(100, func() {
				if _, err := a.Authenticate(r, c); err != nil {
					t.Fatal(err)
				}
			})
			if n > 0 {
				t.Errorf("%s, %+v: %v allocations", name, c, n)
			}
		}
	}
	p := provides(jwk("1", "RS256", rsaKey().Public()))
	a = newAuth(t, auth.Options{Issuers: []auth.Issuer{p.issuer("RS256")}, APIKeys: true})
	r := bearer(sign("RS256", rsaKey(), kid("1"), claims()))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := a.Authenticate(r, auth.Check{OnlyKnown: true}); err != nil {
			if _, err = a.Authenticate(r, auth.Check{}); err != nil {
				t.Fatal(err)
			}
		}
	}); n > 0 {
		t.Errorf("a token of a key set: %v allocations", n)
	}
	r = request("X-API-Key: not known at all")
	if n := testing.AllocsPerRun(100, func() { _, _ = a.Authenticate(r, auth.Check{OnlyKnown: true}) }); n > 0 {
		t.Errorf("a key that is not known: %v allocations", n)
	}
}

func BenchmarkAPIKey(b *testing.B) {
	var list []auth.Key
	for i := range 100_000 {
		list = append(list, key(fmt.Sprint("k-", i), fmt.Sprint("secret ", i)))
	}
	a := newAuth(b, auth.Options{APIKeys: true, Keys: list})
	r := request("X-API-Key: secret 777", "Accept: */*", "User-Agent: bench")
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := a.Authenticate(r, auth.Check{}); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkKnownToken(b *testing.B) {
	a := newAuth(b, auth.Options{Issuers: []auth.Issuer{hs256()}})
	r := bearer(token())
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := a.Authenticate(r, auth.Check{}); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkKnownTokenOfAKeySet is what a repeated caller with RS256 costs.
func BenchmarkKnownTokenOfAKeySet(b *testing.B) {
	p := provides(jwk("1", "RS256", rsaKey().Public()), jwk("2", "", p256.Public()))
	a := newAuth(b, auth.Options{Issuers: []auth.Issuer{p.issuer("RS256")}})
	r := bearer(sign("RS256", rsaKey(), kid("1"), claims()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Authenticate(r, auth.Check{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkForgedToken is what a guess costs us.
func BenchmarkForgedToken(b *testing.B) {
	for alg, k := range map[string]struct {
		public  crypto.PublicKey
		private any
	}{"RS256": {rsaKey().Public(), rsaOther()}, "ES256": {p256.Public(), p256}, "EdDSA": {edKey.Public(), edKey}} {
		b.Run(alg, func(b *testing.B) {
			issuer := auth.Issuer{Issuer: issuerA, Algorithms: []string{alg}, PublicKeys: []crypto.PublicKey{k.public}}
			a := newAuth(b, auth.Options{Issuers: []auth.Issuer{issuer}})
			tok := []byte(sign(alg, k.private, nil, claims()))
			tok[len(tok)-20] ^= 1
			r := bearer(string(tok))
			for b.Loop() {
				if _, err := a.Authenticate(r, auth.Check{}); err == nil {
					b.Fatal("accepted")
				}
			}
		})
	}
}

func BenchmarkStrip(b *testing.B) {
	a := both(b)
	h := request("X-API-Key: "+keyOne, "Accept: */*", "User-Agent: bench", "Accept-Encoding: gzip", "Cookie: a=1; b=2").Header
	values := h["X-Api-Key"]
	b.ReportAllocs()
	for b.Loop() {
		a.Strip(h)
		h["X-Api-Key"] = values
	}
}
