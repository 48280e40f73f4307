package tokentest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"math/big"
	"sync"
	"time"

	"bouncer/gateway/auth"
)

// Cookie is the cookie in which the tokens of all Issuers may come.
const Cookie = "session"

// The issuers. Each stands for one way of being configured.
const (
	login  = "https://login.example.com/"  // HS256, no audience, no leeway
	other  = "https://other.example.com"   // HS256 too, with another secret
	strict = "https://strict.example.com"  // HS256, two audiences, 30 s of leeway
	hashes = "https://hashes.example.com"  // HS384 and HS512
	realm  = "https://realm.example.com"   // HS256, claims by path
	rsaAll = "https://rsa.example.com"     // every RS and PS
	rsa256 = "https://rs256.example.com"   // RS256 and nothing else
	curves = "https://curves.example.com"  // every ES
	ed     = "https://edwards.example.com" // EdDSA
	joe    = "joe"                         // the issuer in the examples of RFC 7515: RS256 and ES256
)

// Leeway is that of the one issuer that has one.
const Leeway = 30 * time.Second

var (
	secret      = []byte("the secret that login.example.com signs with, and it is long")
	otherSecret = []byte("the secret that other.example.com signs with, and it is long")
	hashSecret  = []byte("the secret that hashes.example.com signs with: long enough for SHA-512")
	// encodedSecret looks like base64, and is meant as it stands.
	encodedSecret = []byte("dGhlIHNlY3JldCBvZiBzdHJpY3QuZXhhbXBsZS5jb20sIGxvbmcgZW5vdWdo")
)

// The private keys are printed in RFC 7515 appendix A.2, A.3 and A.4, and RFC 8037
// appendix A.1; P-384 has none there.
var (
	rsaKey = &rsa.PrivateKey{
		PublicKey: rsa.PublicKey{
			N: number("ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"),
			E: 65537,
		},
		D: number("Eq5xpGnNCivDflJsRQBXHx1hdR1k6Ulwe2JZD50LpXyWPEAeP88vLNO97IjlA7_GQ5sLKMgvfTeXZx9SE-7YwVol2NXOoAJe46sui395IW_GO-pWJ1O0BkTGoVEn2bKVRUCgu-GjBVaYLU6f3l9kJfFNS3E0QbVdxzubSu3Mkqzjkn439X0M_V51gfpRLI9JYanrC4D4qAdGcopV_0ZHHzQlBjudU2QvXt4ehNYTCBr6XCLQUShb1juUO1ZdiYoFaFQT5Tw8bGUl_x_jTj3ccPDVZFD9pIuhLhBOneufuBiB4cS98l2SR_RQyGWSeWjnczT0QU91p1DhOVRuOopznQ"),
		Primes: []*big.Int{
			number("4BzEEOtIpmVdVEZNCqS7baC4crd0pqnRH_5IB3jw3bcxGn6QLvnEtfdUdiYrqBdss1l58BQ3KhooKeQTa9AB0Hw_Py5PJdTJNPY8cQn7ouZ2KKDcmnPGBY5t7yLc1QlQ5xHdwW1VhvKn-nXqhJTBgIPgtldC-KDV5z-y2XDwGUc"),
			number("uQPEfgmVtjL0Uyyx88GZFF1fOunH3-7cepKmtH4pxhtCoHqpWmT8YAmZxaewHgHAjLYsp1ZSe7zFYHj7C6ul7TjeLQeZD_YwD66t62wDmpe_HlB-TnBA-njbglfIsRLtXlnDzQkv5dTltRJ11BKBBypeeF6689rjcJIDEz9RWdc"),
		},
	}
	p256 = must(ecdsa.ParseRawPrivateKey(elliptic.P256(), decode("jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI")))
	p521 = must(ecdsa.ParseRawPrivateKey(elliptic.P521(), decode("AY5pb7A0UFiB3RELSD64fTLOSV_jazdF7fLYyuTw8lOfRhWg6Y6rUrPAxerEzgdRhajnu0ferB0d53vM9mE15j2C")))
	p384 = must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	seed = decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A")

	edKey = ed25519.NewKeyFromSeed(seed)

	// Those of an attacker: good keys, and nobody configured them.
	rsaForged   = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	p256Forged  = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	edKeyForged = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
)

// Issuers are the issuers that the table is about.
func Issuers() []auth.Issuer {
	names := auth.Claims{User: "sub", Tenant: "org", Plan: "plan"}
	byPath := auth.Claims{User: "user.name", Tenant: "realm.org.id", Plan: "https://example.com/plan"}
	rsaPublic := []crypto.PublicKey{rsaKey.Public()}
	list := []auth.Issuer{
		{Issuer: login, Algorithms: []string{"HS256"}, Secrets: [][]byte{secret}},
		{Issuer: other, Algorithms: []string{"HS256"}, Secrets: [][]byte{otherSecret}},
		{Issuer: strict, Algorithms: []string{"HS256"}, Secrets: [][]byte{encodedSecret}, Audience: []string{"api", "weather-api"}, Leeway: Leeway},
		{Issuer: hashes, Algorithms: []string{"HS384", "HS512"}, Secrets: [][]byte{hashSecret}},
		{Issuer: realm, Algorithms: []string{"HS256"}, Secrets: [][]byte{secret}, Claims: byPath},
		{Issuer: rsaAll, Algorithms: []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, PublicKeys: rsaPublic},
		{Issuer: rsa256, Algorithms: []string{"RS256"}, PublicKeys: rsaPublic},
		{Issuer: curves, Algorithms: []string{"ES256", "ES384", "ES512"}, PublicKeys: []crypto.PublicKey{p256.Public(), p384.Public(), p521.Public()}},
		{Issuer: ed, Algorithms: []string{"EdDSA"}, PublicKeys: []crypto.PublicKey{edKey.Public()}},
		{Issuer: joe, Algorithms: []string{"RS256", "ES256"}, PublicKeys: []crypto.PublicKey{rsaKey.Public(), p256.Public()}, Claims: auth.Claims{User: "iss"}},
	}
	for i := range list {
		list[i].Cookie = Cookie
		if list[i].Claims == (auth.Claims{}) {
			list[i].Claims = names
		}
	}
	return list
}

func number(s string) *big.Int { return new(big.Int).SetBytes(decode(s)) }

func decode(s string) []byte { return must(base64.RawURLEncoding.DecodeString(s)) }

// must is for what cannot fail but by a mistake in this package.
func must[T any](v T, err error) T {
	if err != nil {
		panic("bug: " + err.Error())
	}
	return v
}
