package auth_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/auth"
)

// Each mistake in the options is refused with words that say which it is.
func TestNewRefuses(t *testing.T) {
	small := must(rsa.GenerateKey(rand.Reader, 1024))
	offCurve := p384.PublicKey
	offCurve.Curve = elliptic.P256()
	public := func(algs string, keys ...crypto.PublicKey) func(*auth.Options) {
		return func(o *auth.Options) {
			o.Issuers[0].Secrets, o.Issuers[0].PublicKeys = nil, keys
			o.Issuers[0].Algorithms = strings.Fields(algs)
		}
	}
	for name, tt := range map[string]struct {
		change func(*auth.Options)
		want   string
	}{
		"issuer without a name": {func(o *auth.Options) { o.Issuers[0].Issuer = "" }, "it has no name"},
		"issuer twice":          {func(o *auth.Options) { o.Issuers = append(o.Issuers, hs256()) }, "it stands there twice"},
		"no algorithm":          {func(o *auth.Options) { o.Issuers[0].Algorithms = nil }, "it allows no algorithm"},
		"algorithm none":        {func(o *auth.Options) { o.Issuers[0].Algorithms = []string{"HS256", "NoNe"} }, "none proves nothing"},
		"algorithm unknown":     {func(o *auth.Options) { o.Issuers[0].Algorithms = []string{"hs256"} }, `no algorithm "hs256"`},
		"algorithm twice":       {func(o *auth.Options) { o.Issuers[0].Algorithms = []string{"HS256", "HS256"} }, "HS256 stands there twice"},
		"no secret":             {func(o *auth.Options) { o.Issuers[0].Secrets = nil }, "HS256 wants a secret"},
		"short secret":          {func(o *auth.Options) { o.Issuers[0].Secrets = [][]byte{secretA[:31]} }, "secret 1 is 31 bytes long; HS256 wants at least 32"},
		"secret short for HS512": {func(o *auth.Options) {
			o.Issuers[0].Algorithms = []string{"HS512"}
			o.Issuers[0].Secrets[0] = secretA[:63]
		}, "at least 64"},
		"secret twice": {func(o *auth.Options) { o.Issuers[0].Secrets = [][]byte{secretA, secretA} }, "secret 2 stands there twice"},
		"HS and RS": {func(o *auth.Options) {
			o.Issuers[0].Algorithms = []string{"HS256", "RS256"}
			o.Issuers[0].PublicKeys = []crypto.PublicKey{rsaKey().Public()}
		}, "never stand in one entry"},
		"secrets and public keys":  {func(o *auth.Options) { o.Issuers[0].PublicKeys = []crypto.PublicKey{rsaKey().Public()} }, "never stand in one entry"},
		"HS with a public key":     {public("HS256", rsaKey().Public()), "HS256 wants a secret"},
		"RS with a secret":         {func(o *auth.Options) { o.Issuers[0].Algorithms = []string{"RS256"} }, "no algorithm uses them"},
		"RS without a key":         {public("RS256"), "RS256 wants a public key of its type (RSA)"},
		"RS with an EC key":        {public("RS256", p256.Public()), "public key 1 fits none"},
		"ES256 with P-384":         {public("ES256", p384.Public()), "ES256 wants a public key of its type (ECDSA on P-256)"},
		"one of two has no key":    {public("RS256 EdDSA", rsaKey().Public()), "EdDSA wants a public key"},
		"a key that fits nothing":  {public("RS256", rsaKey().Public(), edKey.Public()), "public key 2 fits none"},
		"public key twice":         {public("RS256", rsaKey().Public(), rsaKey().Public()), "public key 2 stands there twice"},
		"RSA too small":            {public("RS256", small.Public()), "1024 bits; want 2048"},
		"RSA too large":            {public("RS256", &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 8192, 1), E: 65537}), "8193 bits; want 2048 to 8192"},
		"RSA with the exponent 1":  {public("RS256", &rsa.PublicKey{N: rsaKey().N, E: 1}), "impossible exponent or modulus"},
		"RSA with an even one":     {public("RS256", &rsa.PublicKey{N: rsaKey().N, E: 65536}), "impossible exponent or modulus"},
		"RSA with an even modulus": {public("RS256", &rsa.PublicKey{N: new(big.Int).Lsh(rsaKey().N, 1), E: 65537}), "impossible exponent or modulus"},
		"Ed25519 of small order":   {public("EdDSA", make(ed25519.PublicKey, 32)), "a point of small order"},
		"RSA nil":                  {public("RS256", (*rsa.PublicKey)(nil)), "public key 1 is empty"},
		"RSA zero":                 {public("RS256", &rsa.PublicKey{}), "public key 1 is empty"},
		"ECDSA nil":                {public("ES256", (*ecdsa.PublicKey)(nil)), "public key 1 is empty"},
		"ECDSA zero":               {public("ES256", &ecdsa.PublicKey{}), "public key 1 is empty"},
		"ECDSA without a point":    {public("ES256", &ecdsa.PublicKey{Curve: elliptic.P256()}), "public key 1 is empty"},
		"ECDSA on P-224":           {public("ES256", must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader)).Public()), "not a point on its curve"},
		"ECDSA off its curve":      {public("ES256", &offCurve), "not a point on its curve"},
		"Ed25519 short":            {public("EdDSA", ed25519.PublicKey("short")), "5 bytes; want 32"},
		"key nil":                  {public("RS256", nil), "is a <nil>"},
		"private key":              {public("RS256", rsaKey()), "is a *rsa.PrivateKey"},
		"PEM bytes":                {public("RS256", []byte("-----BEGIN PUBLIC KEY-----")), "is a []uint8"},
		"leeway":                   {func(o *auth.Options) { o.Issuers[0].Leeway = -time.Second }, "leeway: want 0 or more, got -1s"},
		"cookie":                   {func(o *auth.Options) { o.Issuers[0].Cookie = "a;b" }, "not a cookie name"},
		"audience":                 {func(o *auth.Options) { o.Issuers[0].Audience = []string{"a", ""} }, "an audience is empty"},
		"cache size":               {func(o *auth.Options) { o.TokenCacheSize = -1 }, "token cache size: want 0 or more, got -1"},
		"realm":                    {func(o *auth.Options) { o.Realm = `a"b` }, "without quotes"},
		"keys unconfigured":        {func(o *auth.Options) { o.APIKeys = false }, "API keys are not configured"},
		"header not a name":        {func(o *auth.Options) { o.KeyHeader = "X API Key" }, "not a field name"},
		"header Authorization":     {func(o *auth.Options) { o.KeyHeader = "authorization" }, "cannot be Authorization"},
		"header Cookie":            {func(o *auth.Options) { o.KeyHeader = "cookie" }, "cannot be Cookie"},
		"key without id":           {func(o *auth.Options) { o.Keys[0].ID = "" }, "it has no id"},
		"key id twice":             {func(o *auth.Options) { o.Keys = append(o.Keys, key("k-1", "other")) }, "another key has the same id"},
		"digest twice":             {func(o *auth.Options) { o.Keys = append(o.Keys, key("k-2", keyOne)) }, `key "k-1" has the same sha256`},
		"no digest":                {func(o *auth.Options) { o.Keys[0].SHA256 = [32]byte{} }, "it has no sha256"},
		"digest of the empty key":  {func(o *auth.Options) { o.Keys[0].SHA256 = sha256.Sum256(nil) }, "the empty key, which never matches"},
		"key id with a line end":   {func(o *auth.Options) { o.Keys[0].ID = "k\n1" }, "its id has a control character"},
		"key user with space":      {func(o *auth.Options) { o.Keys[0].User = "admin " }, "its user has space around it"},
		"key tenant not UTF-8":     {func(o *auth.Options) { o.Keys[0].Tenant = "\xff" }, "its tenant is not valid UTF-8"},
		"key plan beyond all size": {func(o *auth.Options) { o.Keys[0].Plan = strings.Repeat("x", 257) }, "its plan is 257 bytes long"},
	} {
		o := auth.Options{Issuers: []auth.Issuer{hs256()}, APIKeys: true, Keys: []auth.Key{key("k-1", keyOne)}}
		tt.change(&o)
		a, err := auth.New(o)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
			continue
		}
		if a != nil {
			t.Errorf("%s: an Authenticator came with the error", name)
		}
		if strings.Contains(err.Error(), string(secretA[:16])) || strings.Contains(err.Error(), keyOne) {
			t.Errorf("%s: the error tells a secret: %v", name, err)
		}
	}
}

// Under a key of small order anybody can sign: one signature that has nothing to
// do with the key or the message verifies for a message in eight, at the least.
// Each such key is one that New refuses, in all of its spellings.
func TestKeysUnderWhichAnybodyCanSign(t *testing.T) {
	forged := make([]byte, ed25519.SignatureSize)
	forged[0] = 1 // R is the neutral point, S is zero
	for _, s := range []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	} {
		for _, sign := range []byte{0, 0x80} {
			key := ed25519.PublicKey(must(hex.DecodeString(s)))
			key[31] |= sign
			verified := false
			for n := range 200 {
				verified = verified || ed25519.Verify(key, fmt.Append(nil, n), forged)
			}
			if !verified {
				t.Errorf("%x: nobody can sign with it, so why is it here?", key)
			}
			o := auth.Options{Issuers: []auth.Issuer{hs256()}}
			o.Issuers[0].Secrets, o.Issuers[0].PublicKeys, o.Issuers[0].Algorithms = nil, []crypto.PublicKey{key}, []string{"EdDSA"}
			if _, err := auth.New(o); err == nil || !strings.Contains(err.Error(), "small order") {
				t.Errorf("%x: %v, want it refused", key, err)
			}
		}
	}
	if ed25519.Verify(edKey.Public().(ed25519.PublicKey), []byte("0"), forged) {
		t.Error("the forged signature verifies under a good key: the test shows nothing")
	}
}

// All mistakes are reported at once.
func TestNewReportsEveryMistake(t *testing.T) {
	o := auth.Options{
		Realm: `"`, TokenCacheSize: -1, APIKeys: true, KeyHeader: "Cookie",
		Issuers: []auth.Issuer{{Algorithms: []string{"none"}}}, Keys: []auth.Key{{User: "\x00"}},
	}
	_, err := auth.New(o)
	if err == nil {
		t.Fatal("no error")
	}
	if n := len(strings.Split(err.Error(), "\n")); n != 8 {
		t.Errorf("%d mistakes, want 8:\n%v", n, err)
	}
}

// What New got is not kept: the caller may reuse it.
func TestNewCopiesItsOptions(t *testing.T) {
	issuer := hs256()
	issuer.Audience = []string{"api"}
	issuer.Secrets = [][]byte{append([]byte(nil), secretA...)}
	keys := []auth.Key{key("k-1", keyOne)}
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{issuer}, APIKeys: true, Keys: keys})
	clear(issuer.Secrets[0])
	issuer.Audience[0], issuer.Algorithms[0], keys[0].User = "x", "none", "mallory"
	if got := reason(t, a, bearer(token("aud", "api"))); got != "user priya123" {
		t.Error(got)
	}
	if got := reason(t, a, request("X-API-Key: "+keyOne)); got != "user user-of-k-1" {
		t.Error(got)
	}
}

// A metric can name every reason and method before the first refusal.
func TestReasonsAreComplete(t *testing.T) {
	seen := map[auth.Reason]bool{}
	for _, r := range auth.Reasons() {
		if r == "" || seen[r] {
			t.Errorf("reason %q twice or empty", r)
		}
		seen[r] = true
	}
	for _, r := range []auth.Reason{
		auth.ReasonMalformed, auth.ReasonSeveral, auth.ReasonOversize, auth.ReasonUnknownKey, auth.ReasonChecksum,
		auth.ReasonExpired, auth.ReasonNotYetValid, auth.ReasonBadSignature, auth.ReasonBadAlgorithm, auth.ReasonBadHeader,
		auth.ReasonWrongIssuer, auth.ReasonWrongAud, auth.ReasonMissingClaim, auth.ReasonBadClaim, auth.ReasonUntrusted, auth.ReasonWrongUsage,
	} {
		if !seen[r] {
			t.Errorf("Reasons lacks %q", r)
		}
	}
	if len(auth.Methods()) != 4 {
		t.Errorf("methods: %v", auth.Methods())
	}
}
