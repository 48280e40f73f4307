package auth_test

import (
	"crypto"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/auth"
)

// Every algorithm: a token signed for it passes, one signed with another key
// of the same kind does not, nor does one with a bit of its signature changed.
func TestEveryAlgorithm(t *testing.T) {
	edOther := ed25519.NewKeyFromSeed([]byte("another seed of thirty-two bytes"))
	for _, tt := range []struct {
		alg        string
		key, other any
		public     crypto.PublicKey
	}{
		{"HS256", secretA, secretB, nil},
		{"HS384", secretA, secretB, nil},
		{"HS512", secretA, secretB, nil},
		{"RS256", rsaKey(), rsaOther(), rsaKey().Public()},
		{"RS384", rsaKey(), rsaOther(), rsaKey().Public()},
		{"RS512", rsaKey(), rsaOther(), rsaKey().Public()},
		{"PS256", rsaKey(), rsaOther(), rsaKey().Public()},
		{"PS384", rsaKey(), rsaOther(), rsaKey().Public()},
		{"PS512", rsaKey(), rsaOther(), rsaKey().Public()},
		{"ES256", p256, nil, p256.Public()},
		{"ES384", p384, nil, p384.Public()},
		{"ES512", p521, nil, p521.Public()},
		{"EdDSA", edKey, edOther, edKey.Public()},
	} {
		t.Run(tt.alg, func(t *testing.T) {
			issuer := hs256()
			issuer.Algorithms = []string{tt.alg}
			if tt.public != nil {
				issuer.Secrets, issuer.PublicKeys = nil, []crypto.PublicKey{tt.public}
			}
			a := newAuth(t, auth.Options{Issuers: []auth.Issuer{issuer}})
			good := sign(tt.alg, tt.key, nil, claims())
			p, err := a.Authenticate(bearer(good), auth.Check{})
			want := auth.Principal{Method: auth.MethodJWT, User: "priya123", Tenant: "acme", Plan: "pro"}
			if p.Expires.IsZero() {
				t.Error("the token has exp, and the principal does not expire")
			}
			p.Expires = time.Time{}
			if err != nil || !reflect.DeepEqual(p, want) {
				t.Fatalf("got %+v, %v; want %+v", p, err, want)
			}
			if tt.other != nil {
				if got := reason(t, a, bearer(sign(tt.alg, tt.other, nil, claims()))); got != "bad_signature" {
					t.Errorf("signed with another key: %s", got)
				}
			}
			dot := strings.LastIndexByte(good, '.')
			sig := must(base64.RawURLEncoding.DecodeString(good[dot+1:]))
			for _, at := range []int{0, len(sig) / 2, len(sig) - 1} {
				sig[at] ^= 1
				if got := reason(t, a, bearer(good[:dot+1]+base64.RawURLEncoding.EncodeToString(sig))); got != "bad_signature" {
					t.Errorf("bit of byte %d changed: %s", at, got)
				}
				sig[at] ^= 1
			}
			for other := range map[string]bool{"HS256": true, "RS256": true, "ES256": true, "EdDSA": true} {
				if other == tt.alg {
					continue
				}
				relabelled := b64(`{"alg":"`+other+`"}`) + good[strings.IndexByte(good, '.'):]
				if got := reason(t, a, bearer(relabelled)); got != "bad_algorithm" {
					t.Errorf("labelled %s: %s", other, got)
				}
			}
		})
	}
}

// The algorithm is never the token's choice.
func TestAlgorithmConfusionAndNone(t *testing.T) {
	var fetched atomic.Int32
	attacker := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fetched.Add(1) }))
	defer attacker.Close()

	der := must(x509.MarshalPKIXPublicKey(rsaKey().Public()))
	rsaPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	public := auth.Issuer{
		Issuer: issuerA, Algorithms: []string{"RS256", "ES256", "EdDSA"},
		PublicKeys: []crypto.PublicKey{rsaKey().Public(), p256.Public(), edKey.Public()},
	}
	secret := auth.Issuer{Issuer: issuerB, Algorithms: []string{"HS256"}, Secrets: [][]byte{secretB}}
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{public, secret}})

	body := string(must(json.Marshal(claims())))
	unsigned := func(header string) string { return b64(header) + "." + b64(body) + "." }
	rs := func(header map[string]any) string { return sign("RS256", rsaKey(), header, claims()) }
	es := sign("ES256", p256, nil, claims())
	for name, tt := range map[string]struct{ token, want string }{
		"good RS256":                    {rs(nil), "user priya123"},
		"good ES256":                    {es, "user priya123"},
		"good EdDSA":                    {sign("EdDSA", edKey, nil, claims()), "user priya123"},
		"none":                          {unsigned(`{"alg":"none"}`), "malformed"},
		"none with a signature":         {unsigned(`{"alg":"none"}`) + "AAAA", "bad_algorithm"},
		"None":                          {unsigned(`{"alg":"None"}`) + "AAAA", "bad_algorithm"},
		"NONE":                          {unsigned(`{"alg":"NONE"}`) + "AAAA", "bad_algorithm"},
		"nOnE":                          {unsigned(`{"alg":"nOnE"}`) + "AAAA", "bad_algorithm"},
		"alg empty":                     {unsigned(`{"alg":""}`) + "AAAA", "bad_algorithm"},
		"alg missing":                   {unsigned(`{"typ":"JWT"}`) + "AAAA", "malformed"},
		"alg null":                      {unsigned(`{"alg":null}`) + "AAAA", "malformed"},
		"alg a list":                    {unsigned(`{"alg":["RS256"]}`) + "AAAA", "malformed"},
		"alg in capitals as a name":     {unsigned(`{"ALG":"RS256"}`) + "AAAA", "malformed"},
		"alg in lower case":             {unsigned(`{"alg":"rs256"}`) + "AAAA", "bad_algorithm"},
		"HS256 keyed with the PEM":      {sign("HS256", rsaPEM, nil, claims()), "bad_algorithm"},
		"... without its newline":       {sign("HS256", []byte(strings.TrimSpace(string(rsaPEM))), nil, claims()), "bad_algorithm"},
		"HS256 keyed with the DER":      {sign("HS256", der, nil, claims()), "bad_algorithm"},
		"HS256 of the other issuer":     {sign("HS256", secretB, nil, claims()), "bad_algorithm"},
		"RS256 for the HS256 issuer":    {sign("RS256", rsaKey(), nil, claims("iss", issuerB)), "bad_algorithm"},
		"RS384 with the right key":      {sign("RS384", rsaKey(), nil, claims()), "bad_algorithm"},
		"RS256 signature called ES256":  {b64(`{"alg":"ES256"}`) + rs(nil)[strings.IndexByte(rs(nil), '.'):], "bad_signature"},
		"ES256 with the kid of RSA":     {sign("ES256", p256, map[string]any{"kid": "rsa"}, claims()), "user priya123"},
		"empty signature":               {es[:strings.LastIndexByte(es, '.')+1], "malformed"},
		"two parts":                     {es[:strings.LastIndexByte(es, '.')], "malformed"},
		"four parts":                    {es + ".AAAA", "malformed"},
		"five parts, as if encrypted":   {"AAAA.AAAA.AAAA.AAAA.AAAA", "malformed"},
		"only dots":                     {"..", "malformed"},
		"duplicated alg":                {signRaw("RS256", rsaKey(), `{"alg":"HS256","alg":"RS256"}`, body), "malformed"},
		"duplicated alg, escaped":       {signRaw("RS256", rsaKey(), `{"alg":"RS256","\u0061lg":"RS256"}`, body), "malformed"},
		"crit":                          {rs(map[string]any{"crit": []string{"exp"}}), "bad_header"},
		"crit empty":                    {rs(map[string]any{"crit": []string{}}), "bad_header"},
		"crit null":                     {signRaw("RS256", rsaKey(), `{"alg":"RS256","crit":null}`, body), "bad_header"},
		"b64 false":                     {rs(map[string]any{"b64": false, "crit": []string{"b64"}}), "bad_header"},
		"b64 without crit":              {rs(map[string]any{"b64": false}), "bad_header"},
		"jku at the attacker, forged":   {sign("RS256", rsaOther(), map[string]any{"jku": attacker.URL, "kid": "x"}, claims()), "bad_header"},
		"x5u at the attacker, forged":   {sign("RS256", rsaOther(), map[string]any{"x5u": attacker.URL}, claims()), "bad_header"},
		"embedded jwk, forged":          {sign("EdDSA", ed25519.NewKeyFromSeed(make([]byte, 32)), map[string]any{"jwk": map[string]string{"kty": "OKP", "crv": "Ed25519", "x": "O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik"}}, claims()), "bad_header"},
		"jku beside a good signature":   {rs(map[string]any{"jku": attacker.URL}), "bad_header"},
		"x5u beside a good signature":   {rs(map[string]any{"x5u": attacker.URL}), "bad_header"},
		"x5t beside a good signature":   {rs(map[string]any{"x5t": "AAAA"}), "user priya123"},
		"header not an object":          {signRaw("RS256", rsaKey(), `[]`, body), "malformed"},
		"header null":                   {signRaw("RS256", rsaKey(), `null`, body), "malformed"},
		"header with something behind":  {signRaw("RS256", rsaKey(), `{"alg":"RS256"}{}`, body), "malformed"},
		"header with a trailing comma":  {signRaw("RS256", rsaKey(), `{"alg":"RS256",}`, body), "malformed"},
		"header nested without end":     {signRaw("RS256", rsaKey(), `{"alg":"RS256","a":`+strings.Repeat("[", 100)+strings.Repeat("]", 100)+`}`, body), "malformed"},
		"claims not an object":          {signRaw("RS256", rsaKey(), `{"alg":"RS256"}`, `"priya123"`), "malformed"},
		"claims null":                   {signRaw("RS256", rsaKey(), `{"alg":"RS256"}`, `null`), "missing_claim"},
		"claims not JSON":               {signRaw("RS256", rsaKey(), `{"alg":"RS256"}`, `hello there`), "malformed"},
		"claims with a duplicate":       {signRaw("RS256", rsaKey(), `{"alg":"RS256"}`, `{"sub":"admin",`+body[1:]), "malformed"},
		"a duplicate further down":      {signRaw("RS256", rsaKey(), `{"alg":"RS256"}`, `{"x":[{"a":1,"a":2}],`+body[1:]), "malformed"},
		"padded":                        {es + "==", "malformed"},
		"standard base64 digits":        {strings.Replace(es, ".", "+.", 1), "malformed"},
		"claims with invalid UTF-8":     {signRaw("RS256", rsaKey(), `{"alg":"RS256"}`, `{"x":"`+"\xff"+`",`+body[1:]), "malformed"},
		"non-canonical signature bits":  {es[:len(es)-1] + nextDigit(es[len(es)-1]), "malformed"},
		"non-canonical header bits":     {nonCanonicalHeader(), "malformed"},
		"a key where the token belongs": {"bn_live_3f9a12cd_abc", "malformed"},
	} {
		if got := reason(t, a, bearer(tt.token)); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
	if n := fetched.Load(); n != 0 {
		t.Errorf("%d fetches from where a token pointed", n)
	}
}

// nextDigit is the base64url digit after c: the last digit of an ES256
// signature (64 bytes) has four bits that stand for nothing.
func nextDigit(c byte) string {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return string(digits[strings.IndexByte(digits, c)+1])
}

// nonCanonicalHeader is a token whose header is spelt with bits set that stand
// for nothing, and signed so.
func nonCanonicalHeader() string {
	header := b64(`{"alg":"EdDSA" }`) // 16 bytes: four bits over
	text := header[:len(header)-1] + nextDigit(header[len(header)-1]) + "." + b64(string(must(json.Marshal(claims()))))
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(edKey, []byte(text)))
}

// A token has an end, and dates are dates.
func TestNoExpAndOddTimes(t *testing.T) {
	for _, tt := range []struct {
		claim string // a JSON value; empty: the claim is missing
		value string
		lee   time.Duration
		want  string
	}{
		{"exp", "", 0, "missing_claim"},
		{"exp", "null", 0, "bad_claim"},
		{"exp", `"1796043600"`, 0, "bad_claim"},
		{"exp", "true", 0, "bad_claim"},
		{"exp", "[1796043600]", 0, "bad_claim"},
		{"exp", "0", 0, "expired"},
		{"exp", "-1", 0, "expired"},
		{"exp", "1.7e9", 0, "expired"},
		{"exp", "1.8e9", 0, "user priya123"},
		{"exp", "1800000000.9", 0, "user priya123"},
		{"exp", "1e20", 0, "bad_claim"},
		{"exp", "1e400", 0, "bad_claim"},
		{"exp", "-1e20", 0, "bad_claim"},
		{"exp", "1800000000000", 0, "bad_claim"}, // milliseconds
		{"exp", "253402300799", 0, "bad_claim"},  // the year 9999
		{"exp", at(99 * 365 * 24 * time.Hour), 0, "user priya123"},
		{"exp", at(time.Second), 0, "user priya123"},
		{"exp", at(0), 0, "expired"}, // "on or after" (RFC 7519 section 4.1.4)
		{"exp", at(0) + ".5", 0, "user priya123"},
		{"exp", at(-29 * time.Second), 30 * time.Second, "user priya123"},
		{"exp", at(-30 * time.Second), 30 * time.Second, "expired"},
		{"nbf", at(0), 0, "user priya123"},
		{"nbf", at(5 * time.Second), 0, "not_yet_valid"},
		{"nbf", at(5 * time.Second), 30 * time.Second, "user priya123"},
		{"nbf", at(5 * time.Minute), 30 * time.Second, "not_yet_valid"},
		{"nbf", `"0"`, 0, "bad_claim"},
		{"nbf", "null", 0, "bad_claim"},
		{"nbf", "1796043600000", 0, "bad_claim"},
		{"iat", at(5 * time.Second), 30 * time.Second, "user priya123"},
		{"iat", at(5 * time.Second), 0, "not_yet_valid"},
		{"iat", at(5 * time.Minute), 30 * time.Second, "not_yet_valid"},
		{"iat", at(-24 * time.Hour), 0, "user priya123"},
		{"iat", `"yesterday"`, 0, "bad_claim"},
	} {
		issuer := hs256()
		issuer.Leeway = tt.lee
		a := newAuth(t, auth.Options{Issuers: []auth.Issuer{issuer}})
		c := claims(tt.claim, nil)
		if tt.value != "" {
			c[tt.claim] = json.RawMessage(tt.value)
		}
		r := bearer(sign("HS256", secretA, nil, c))
		for _, look := range []string{"first", "second, from the cache if it may be"} {
			if got := reason(t, a, r); got != tt.want {
				t.Errorf("%s %s, leeway %v, %s look: got %s, want %s", tt.claim, tt.value, tt.lee, look, got, tt.want)
			}
		}
	}
}

// at is the instant d after now, as a NumericDate.
func at(d time.Duration) string { return fmt.Sprint(now.Add(d).Unix()) }

// The issuer is compared as it is, and only its own keys count.
func TestIssuerAndAudience(t *testing.T) {
	first := hs256()
	first.Audience = []string{"api", "weather-api"}
	other := auth.Issuer{Issuer: issuerB, Algorithms: []string{"HS256"}, Secrets: [][]byte{secretB}}
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{first, other}})
	kid := map[string]any{"kid": "1"} // both call their key so
	for name, tt := range map[string]struct{ token, want string }{
		"A":                             {sign("HS256", secretA, kid, claims("aud", "api")), "user priya123"},
		"B, audience not looked at":     {sign("HS256", secretB, kid, claims("iss", issuerB)), "user priya123"},
		"B, strange audience":           {sign("HS256", secretB, kid, claims("iss", issuerB, "aud", 7)), "user priya123"},
		"B's token claiming to be A's":  {sign("HS256", secretB, kid, claims("aud", "api")), "bad_signature"},
		"A's token claiming to be B's":  {sign("HS256", secretA, kid, claims("iss", issuerB)), "bad_signature"},
		"no iss":                        {token("iss", nil, "aud", "api"), "missing_claim"},
		"iss empty":                     {token("iss", "", "aud", "api"), "wrong_issuer"},
		"iss a list":                    {token("iss", []string{issuerA}, "aud", "api"), "bad_claim"},
		"iss unknown":                   {token("iss", "https://evil.example/", "aud", "api"), "wrong_issuer"},
		"iss without its slash":         {token("iss", strings.TrimSuffix(issuerA, "/"), "aud", "api"), "wrong_issuer"},
		"iss with a slash too much":     {sign("HS256", secretB, nil, claims("iss", issuerB+"/")), "wrong_issuer"},
		"iss in capitals":               {token("iss", strings.ToUpper(issuerA), "aud", "api"), "wrong_issuer"},
		"aud list with one that fits":   {token("aud", []string{"x", "api"}), "user priya123"},
		"aud the second configured one": {token("aud", "weather-api"), "user priya123"},
		"aud other":                     {token("aud", "x"), "wrong_audience"},
		"aud empty list":                {token("aud", []string{}), "wrong_audience"},
		"aud missing":                   {token(), "wrong_audience"},
		"aud null":                      {token("aud", json.RawMessage("null")), "wrong_audience"},
		"aud empty":                     {token("aud", ""), "wrong_audience"},
		"aud in capitals":               {token("aud", "API"), "wrong_audience"},
		"aud a longer word":             {token("aud", "api2"), "wrong_audience"},
		"aud several in one string":     {token("aud", "x api"), "wrong_audience"},
		"aud a number":                  {token("aud", 7), "bad_claim"},
		"aud list with a number":        {token("aud", []any{"api", 7}), "bad_claim"},
	} {
		if got := reason(t, a, bearer(tt.token)); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}

	_, err := a.Authenticate(bearer(token("iss", strings.TrimSuffix(issuerA, "/"))), auth.Check{})
	if err == nil || !strings.Contains(err.Error(), "slash") {
		t.Errorf("a missing slash is not hinted at: %v", err)
	}
}

// A reason that depends on a claim is given only once the signature verified.
func TestForgedTokenIsOnlyForged(t *testing.T) {
	issuer := hs256()
	issuer.Audience = []string{"api"}
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{issuer}})
	for _, c := range []map[string]any{
		claims("exp", 1), claims("exp", nil), claims("aud", "x"), claims("sub", nil), claims("nbf", "x"),
	} {
		if got := reason(t, a, bearer(sign("HS256", secretB, nil, c))); got != "bad_signature" {
			t.Errorf("%v: %s", c, got)
		}
	}
}

func TestClaimsBecomeIdentity(t *testing.T) {
	long := strings.Repeat("x", 256)
	for _, tt := range []struct {
		name  string
		names auth.Claims
		set   string // members of the claim set besides iss and exp
		want  string // user|tenant|plan, or a reason
	}{
		{"the default is sub", auth.Claims{}, `"sub":"priya123","org":"acme"`, "priya123||"},
		{"all three", auth.Claims{User: "sub", Tenant: "org", Plan: "plan"}, `"sub":"u","org":"t","plan":"p"`, "u|t|p"},
		{"absent ones are fine", auth.Claims{User: "sub", Tenant: "org", Plan: "plan"}, `"sub":"u"`, "u||"},
		{"null is absent", auth.Claims{User: "sub", Tenant: "org"}, `"sub":"u","org":null`, "u||"},
		{"empty is absent", auth.Claims{User: "sub", Tenant: "org"}, `"sub":"u","org":""`, "u||"},
		{"dots descend", auth.Claims{Tenant: "realm.org"}, `"sub":"u","realm":{"org":"t"}`, "u|t|"},
		{"three deep", auth.Claims{Tenant: "a.b.c"}, `"sub":"u","a":{"b":{"c":"t"}}`, "u|t|"},
		{"the exact name first", auth.Claims{Tenant: "realm.org"}, `"sub":"u","realm.org":"exact","realm":{"org":"t"}`, "u|exact|"},
		{"the exact name, though null", auth.Claims{Tenant: "realm.org"}, `"sub":"u","realm.org":null,"realm":{"org":"t"}`, "u||"},
		{"a URL as a name", auth.Claims{Tenant: "https://acme.example/org"}, `"sub":"u","https://acme.example/org":"t"`, "u|t|"},
		{"the way is null", auth.Claims{Tenant: "realm.org"}, `"sub":"u","realm":null`, "u||"},
		{"the way is absent", auth.Claims{Tenant: "realm.org"}, `"sub":"u"`, "u||"},
		{"the way is a string", auth.Claims{Tenant: "realm.org"}, `"sub":"u","realm":"x"`, "bad_claim"},
		{"the end is an object", auth.Claims{Tenant: "realm"}, `"sub":"u","realm":{"org":"t"}`, "bad_claim"},
		{"names are exact", auth.Claims{Tenant: "org"}, `"sub":"u","Org":"t","ORG":"t"`, "u||"},

		{"no user", auth.Claims{}, `"org":"acme"`, "missing_claim"},
		{"user null", auth.Claims{}, `"sub":null`, "missing_claim"},
		{"user empty", auth.Claims{}, `"sub":""`, "missing_claim"},
		{"user a number", auth.Claims{}, `"sub":7`, "bad_claim"},
		{"user true", auth.Claims{}, `"sub":true`, "bad_claim"},
		{"user a list", auth.Claims{}, `"sub":["u"]`, "bad_claim"},
		{"user with a line end", auth.Claims{}, `"sub":"u\r\nX-Auth-Plan: pro"`, "bad_claim"},
		{"user with NUL", auth.Claims{}, `"sub":"u\u0000"`, "bad_claim"},
		{"user with DEL", auth.Claims{}, `"sub":"u\u007f"`, "bad_claim"},
		{"user with a C1 control", auth.Claims{}, `"sub":"u\u0085x"`, "bad_claim"},
		{"user with a line separator", auth.Claims{}, `"sub":"u\u2028x"`, "bad_claim"},
		{"user with half a surrogate pair", auth.Claims{}, `"sub":"u\ud800"`, "bad_claim"},
		{"user with the replacement character", auth.Claims{}, `"sub":"u` + "\ufffd" + `"`, "bad_claim"},
		{"user with space before", auth.Claims{}, `"sub":" admin"`, "bad_claim"},
		{"user with space behind", auth.Claims{}, `"sub":"admin "`, "bad_claim"},
		{"user of one space", auth.Claims{}, `"sub":" "`, "bad_claim"},
		{"user with space within", auth.Claims{}, `"sub":"Priya K"`, "Priya K||"},
		{"user in another script", auth.Claims{}, `"sub":"प्रिया"`, "प्रिया||"},
		{"user at the bound", auth.Claims{}, `"sub":"` + long + `"`, long + "||"},
		{"user beyond it", auth.Claims{}, `"sub":"x` + long + `"`, "bad_claim"},
		{"user as an API key's caller is called", auth.Claims{}, `"sub":"key:k-7f3a"`, "bad_claim"},
		{"tenant a number", auth.Claims{Tenant: "org"}, `"sub":"u","org":7`, "bad_claim"},
		{"tenant with a line end", auth.Claims{Tenant: "org"}, `"sub":"u","org":"a\nb"`, "bad_claim"},
		{"plan a list", auth.Claims{Plan: "plan"}, `"sub":"u","plan":["pro"]`, "bad_claim"},
		{"plan false", auth.Claims{Plan: "plan"}, `"sub":"u","plan":false`, "bad_claim"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			issuer := hs256()
			issuer.Claims = tt.names
			a := newAuth(t, auth.Options{Issuers: []auth.Issuer{issuer}})
			body := fmt.Sprintf(`{"iss":%q,"exp":%s,%s}`, issuerA, at(time.Hour), tt.set)
			r := bearer(signRaw("HS256", secretA, `{"alg":"HS256"}`, body))
			got := reason(t, a, r)
			if strings.HasPrefix(got, "user ") {
				p, _ := a.Authenticate(r, auth.Check{})
				got = p.User + "|" + p.Tenant + "|" + p.Plan
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// Rotation: any of the secrets, or of the public keys, verifies.
func TestAnyOfTheKeysVerifies(t *testing.T) {
	secrets := hs256()
	secrets.Secrets = [][]byte{secretA, secretB}
	public := auth.Issuer{
		Issuer: issuerB, Algorithms: []string{"RS256"},
		PublicKeys: []crypto.PublicKey{rsaKey().Public(), rsaOther().Public()},
	}
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{secrets, public}})
	for _, tok := range []string{
		sign("HS256", secretA, nil, claims()), sign("HS256", secretB, nil, claims()),
		sign("RS256", rsaKey(), nil, claims("iss", issuerB)), sign("RS256", rsaOther(), nil, claims("iss", issuerB)),
	} {
		if got := reason(t, a, bearer(tok)); got != "user priya123" {
			t.Error(got)
		}
	}
}
