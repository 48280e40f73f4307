package tokentest

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"bouncer/gateway/auth"
)

// A Token is one row of the table.
type Token struct {
	Name string // what the token is; each once
	Text string // the token
	Want string // "user NAME", or the Reason for which it is refused
	Why  string // what the verdict rests on
}

// Accepted returns the user that the token names, and whether it is good.
func (t Token) Accepted() (user string, ok bool) { return strings.CutPrefix(t.Want, "user ") }

// Fleeting says that the verdict holds for the second of which the table was made
// and not for those after it.
func (t Token) Fleeting() bool { return strings.HasPrefix(t.Why, onlyNow) }

const onlyNow = "only now: "

// The verdicts.
const (
	priya = "user priya123"

	malformed    = string(auth.ReasonMalformed)
	oversize     = string(auth.ReasonOversize)
	expired      = string(auth.ReasonExpired)
	notYet       = string(auth.ReasonNotYetValid)
	badSignature = string(auth.ReasonBadSignature)
	badAlgorithm = string(auth.ReasonBadAlgorithm)
	badHeader    = string(auth.ReasonBadHeader)
	wrongIssuer  = string(auth.ReasonWrongIssuer)
	wrongAud     = string(auth.ReasonWrongAud)
	missingClaim = string(auth.ReasonMissingClaim)
	badClaim     = string(auth.ReasonBadClaim)
)

// Table returns the table as of now, which is a whole second.
func Table(now time.Time) []Token {
	m := maker{now: now.Truncate(time.Second)}
	var all []Token
	for _, section := range [][]Token{
		m.goodOnes(), published(), m.confusions(), m.headers(), m.signatures(), m.spellings(), m.forms(),
		m.jsonText(), m.times(), m.issuers(), m.audiences(), m.users(), m.paths(), m.sizes(),
	} {
		all = append(all, section...)
	}
	return all
}

// goodOnes is every algorithm, used as its issuer means it.
func (m maker) goodOnes() []Token {
	rsaToken := func(alg string) string { return signed(alg, rsaKey, header(alg), m.claims(rsaAll)) }
	ecToken := func(alg string, key any) string { return signed(alg, key, header(alg), m.claims(curves)) }
	hashToken := func(alg string) string { return signed(alg, hashSecret, header(alg), m.claims(hashes)) }
	return []Token{
		{"good HS256", m.hs(), priya, "RFC 7518 3.2"},
		{"good HS384", hashToken("HS384"), priya, "RFC 7518 3.2"},
		{"good HS512", hashToken("HS512"), priya, "RFC 7518 3.2"},
		{"good RS256", rsaToken("RS256"), priya, "RFC 7518 3.3"},
		{"good RS384", rsaToken("RS384"), priya, "RFC 7518 3.3"},
		{"good RS512", rsaToken("RS512"), priya, "RFC 7518 3.3"},
		{"good PS256", rsaToken("PS256"), priya, "RFC 7518 3.5"},
		{"good PS384", rsaToken("PS384"), priya, "RFC 7518 3.5"},
		{"good PS512", rsaToken("PS512"), priya, "RFC 7518 3.5"},
		{"good ES256", ecToken("ES256", p256), priya, "RFC 7518 3.4"},
		{"good ES384", ecToken("ES384", p384), priya, "RFC 7518 3.4"},
		{"good ES512", ecToken("ES512", p521), priya, "RFC 7518 3.4, and the curve is P-521"},
		{"good EdDSA", signed("EdDSA", edKey, header("EdDSA"), m.claims(ed)), priya, "RFC 8037 3.1"},
		{"good, secret that looks like base64", m.strict(), priya, "secrets are bytes as they stand, never decoded"},
	}
}

// published is what the RFCs print. The claims of RFC 7515 ended in 2011: expired
// says that the signature verified, since nothing is said of a claim before.
func published() []Token {
	const claims = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
	const es256 = "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
	return []Token{
		{"RFC 7515 A.1, HS256", "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9." + claims + ".dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", badAlgorithm, "joe's keys are public ones (also RFC 7519 3.1)"},
		{"RFC 7515 A.2, RS256", PublishedRS256, expired, "verified, and 2011 is over"},
		{"RFC 7515 A.3, ES256", PublishedES256, expired, "verified, and 2011 is over"},
		{"RFC 7515 A.4, ES512", "eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA.AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn", malformed, "what is signed is the word Payload: a JWS, not a JWT"},
		{"RFC 7515 A.5, unsecured", "eyJhbGciOiJub25lIn0." + claims + ".", malformed, "a part is empty"},
		{"RFC 7515 A.7, flattened JSON", `{"payload":"` + claims + `","protected":"eyJhbGciOiJFUzI1NiJ9","header":{"kid":"e9bc097a-ce51-4036-9562-d2ade882db0d"},"signature":"` + es256 + `"}`, malformed, "only the compact serialization is a token (RFC 7519 3)"},
		{"RFC 7515 A.6, general JSON", `{"payload":"` + claims + `","signatures":[{"protected":"eyJhbGciOiJFUzI1NiJ9","signature":"` + es256 + `"},{"protected":"eyJhbGciOiJSUzI1NiJ9","signature":"AAAA"}]}`, malformed, "several signatures: which of them counts?"},
		{"RFC 7797 4.2, detached and unencoded", "eyJhbGciOiJIUzI1NiIsImI2NCI6ZmFsc2UsImNyaXQiOlsiYjY0Il19..A5dxf2s96_n5FLueVuW1Z_vh161FwXZC4YLPff6dmDY", malformed, "a part is empty"},
		{"RFC 8037 A.4, Ed25519", "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg", malformed, "what is signed is a sentence"},
	}
}

// The examples of RFC 7515 A.2 and A.3, which are good until PublishedExpiry.
const (
	PublishedRS256  = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"
	PublishedES256  = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
	PublishedExpiry = 1300819380 // seconds since 1970
)

// confusions are tokens that choose their own algorithm, or a key for a purpose
// that is not its own.
func (m maker) confusions() []Token {
	spki := must(x509.MarshalPKIXPublicKey(rsaKey.Public()))
	pkcs1 := x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey)
	pemText := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})
	jwk := fmt.Sprintf(`{"kty":"RSA","n":%q,"e":"AQAB"}`, b64(string(rsaKey.N.Bytes())))
	keyed := func(key []byte) string { return signed("HS256", key, header("HS256"), m.claims(rsa256)) }
	ecPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(p256.Public()))})
	good := m.rs()
	relabelled := func(h string) string { return with(good, 0, b64(h)) }
	unsigned := func(alg, sig string) string { return b64(header(alg)) + "." + b64(m.claims(login)) + "." + sig }
	return []Token{
		{"HS256 keyed with the PEM of the public key", keyed(pemText), badAlgorithm, "everybody knows the public key"},
		{"HS256 keyed with the PEM, no newline", keyed([]byte(strings.TrimSpace(string(pemText)))), badAlgorithm, "likewise"},
		{"HS256 keyed with the PEM, CRLF", keyed([]byte(strings.ReplaceAll(string(pemText), "\n", "\r\n"))), badAlgorithm, "likewise"},
		{"HS256 keyed with the PEM of PKCS #1", keyed(pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: pkcs1})), badAlgorithm, "likewise"},
		{"HS256 keyed with the DER", keyed(spki), badAlgorithm, "likewise"},
		{"HS256 keyed with the DER of PKCS #1", keyed(pkcs1), badAlgorithm, "likewise"},
		{"HS256 keyed with the JWK", keyed([]byte(jwk)), badAlgorithm, "likewise"},
		{"HS256 keyed with the modulus", keyed(rsaKey.N.Bytes()), badAlgorithm, "likewise"},
		{"HS256 keyed with nothing", keyed(nil), badAlgorithm, "likewise"},
		{"HS512 keyed with the PEM", signed("HS512", pemText, header("HS512"), m.claims(rsa256)), badAlgorithm, "likewise"},
		{"HS256 keyed with the PEM of an EC key", signed("HS256", ecPEM, header("HS256"), m.claims(curves)), badAlgorithm, "likewise"},
		{"HS256 keyed with an Ed25519 key", signed("HS256", []byte(edKey.Public().(ed25519.PublicKey)), header("HS256"), m.claims(ed)), badAlgorithm, "likewise"},
		{"HS256 of an issuer with secrets, keyed with a PEM", signed("HS256", pemText, header("HS256"), m.claims(login)), badSignature, "a public key is no secret of anybody's"},
		{"HS256 keyed with nothing, issuer with secrets", signed("HS256", []byte{}, header("HS256"), m.claims(login)), badSignature, "nor is nothing"},
		{"HS256 keyed with the secret decoded", signed("HS256", must(base64.StdEncoding.DecodeString(string(encodedSecret))), header("HS256"), m.claims(strict, `"aud":"api"`)), badSignature, "secrets are bytes as they stand"},
		{"HS256 keyed with the secret in hex", signed("HS256", []byte(hex.EncodeToString(secret)), header("HS256"), m.claims(login)), badSignature, "likewise"},
		{"HS256 keyed with the secret and a newline", signed("HS256", append(slices.Clone(secret), '\n'), header("HS256"), m.claims(login)), badSignature, "likewise"},
		{"HS384 where HS256 is allowed", signed("HS384", secret, header("HS384"), m.claims(login)), badAlgorithm, "the list is the issuer's own, not that of all"},
		{"RS384 where RS256 is allowed", signed("RS384", rsaKey, header("RS384"), m.claims(rsa256)), badAlgorithm, "likewise, though the key fits"},
		{"PS256 where RS256 is allowed", signed("PS256", rsaKey, header("PS256"), m.claims(rsa256)), badAlgorithm, "likewise"},
		{"RS256 for an issuer with secrets", signed("RS256", rsaKey, header("RS256"), m.claims(login)), badAlgorithm, "likewise"},
		{"ES256 for an issuer with RSA keys", signed("ES256", p256, header("ES256"), m.claims(rsa256)), badAlgorithm, "likewise"},
		{"RS256 signature called PS256", with(signed("RS256", rsaKey, header("RS256"), m.claims(rsaAll)), 0, b64(header("PS256"))), badSignature, "the header is signed too"},
		{"PKCS #1 signature under PS256", under(header("PS256"), m.claims(rsaAll), func(text string) []byte {
			return decode(part(signed("RS256", rsaKey, header("PS256"), m.claims(rsaAll)), 2))
		}), badSignature, "another padding"},
		{"PSS signature under RS256", under(header("RS256"), m.claims(rsaAll), pssSalt(32)), badSignature, "another padding"},
		{"SHA-512 signature under RS256", with(signed("RS512", rsaKey, header("RS256"), m.claims(rsaAll)), 0, b64(header("RS256"))), badSignature, "another hash"},

		{"none", unsigned("none", ""), malformed, "a part is empty"},
		{"none with a signature", unsigned("none", "AAAA"), badAlgorithm, "RFC 8725 2.1"},
		{"None", unsigned("None", "AAAA"), badAlgorithm, "names are compared byte for byte"},
		{"NONE", unsigned("NONE", "AAAA"), badAlgorithm, "likewise"},
		{"nOnE", unsigned("nOnE", "AAAA"), badAlgorithm, "likewise"},
		{"none with a space", unsigned("none ", "AAAA"), badAlgorithm, "likewise"},
		{"none with NUL", b64(`{"alg":"none\u0000"}`) + "." + b64(m.claims(login)) + ".AAAA", badAlgorithm, "likewise"},
		{"none with escapes", b64(`{"alg":"\u006eone"}`) + "." + b64(m.claims(login)) + ".AAAA", badAlgorithm, "escapes are JSON's; it is none all the same"},
		{"none under a good signature", signed("HS256", secret, header("none"), m.claims(login)), badAlgorithm, "the header rules, not what would verify"},
		{"none over a good token", relabelled(header("none")), badAlgorithm, "likewise"},
		{"alg missing", signed("RS256", rsaKey, header("RS256", "-alg"), m.claims(rsa256)), malformed, "RFC 7515 4.1.1"},
		{"alg empty", signed("RS256", rsaKey, header(""), m.claims(rsa256)), badAlgorithm, "no algorithm is called that"},
		{"alg null", m.rs(`"alg":null`), malformed, "alg is a string"},
		{"alg a number", m.rs(`"alg":256`), malformed, "alg is a string"},
		{"alg a list", m.rs(`"alg":["RS256"]`), malformed, "alg is a string"},
		{"alg an object", m.rs(`"alg":{"RS256":true}`), malformed, "alg is a string"},
		{"alg in lower case", m.rs(`"alg":"rs256"`), badAlgorithm, "names are compared byte for byte"},
		{"alg with a space", m.rs(`"alg":"RS256 "`), badAlgorithm, "likewise"},
		{"alg with a Kelvin sign's kin", m.rs(`"alg":"R\u017f256"`), badAlgorithm, "a long s folds to S, for who folds"},
		{"alg with escapes", m.rs(`"alg":"\u0052S256"`), priya, "it is RS256: escapes are a matter of JSON"},
		{"alg twice, the good one last", m.rs(`"alg":"HS256","alg":"RS256"`), malformed, "two readers, two algorithms"},
		{"alg twice, the good one first", m.rs(`"alg":"RS256","alg":"none"`), malformed, "likewise"},
		{"alg twice, once with escapes", m.rs(`"alg":"RS256","\u0061lg":"RS256"`), malformed, "likewise"},
		{"ALG for alg", m.rs("-alg", `"ALG":"RS256"`), malformed, "names of members are exact, which Go's encoding/json is not by itself"},
		{"ALG beside alg", m.rs(`"ALG":"none"`), priya, "and it is another member"},
		{"ES256K", signed("ES256", p256, header("ES256K"), m.claims(curves)), badAlgorithm, "a curve that is not ours"},
		{"Ed25519 as alg", signed("EdDSA", edKey, header("Ed25519"), m.claims(ed)), badAlgorithm, "RFC 9864's name for it is not configured"},
		{"Ed448 as alg", signed("EdDSA", edKey, header("Ed448"), m.claims(ed)), badAlgorithm, "likewise"},
		{"RSA-OAEP", signed("RS256", rsaKey, header("RSA-OAEP"), m.claims(rsa256)), badAlgorithm, "an algorithm of encryption"},
		{"dir", signed("HS256", secret, header("dir"), m.claims(login)), badAlgorithm, "likewise"},
	}
}

// headers are the other members of the header.
func (m maker) headers() []Token {
	jwk := fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","x":%q}`, b64(string(edKeyForged.Public().(ed25519.PublicKey))))
	forged := func(member string) string {
		return signed("RS256", rsaForged(), header("RS256", member), m.claims(rsa256))
	}
	inner := m.hs()
	return []Token{
		{"crit that names what is there", m.rs(`"crit":["exp"],"exp":1`), badHeader, "RFC 7515 4.1.11: we understand no extension"},
		{"crit that names what is not there", m.rs(`"crit":["x"]`), badHeader, "likewise"},
		{"crit that names alg", m.rs(`"crit":["alg"]`), badHeader, "likewise: it must not"},
		{"crit empty", m.rs(`"crit":[]`), badHeader, "likewise: it must not be"},
		{"crit null", m.rs(`"crit":null`), badHeader, "likewise"},
		{"crit a string", m.rs(`"crit":"x"`), badHeader, "likewise"},
		{"crit with escapes", m.rs(`"\u0063rit":["x"]`), badHeader, "it is crit"},
		{"crit in capitals", m.rs(`"CRIT":["x"]`), priya, "it is another member, which means nothing"},
		{"b64 false, in crit", m.rs(`"b64":false,"crit":["b64"]`), badHeader, "RFC 7797: another text is signed"},
		{"b64 false, not in crit", m.rs(`"b64":false`), badHeader, "likewise"},
		{"b64 true", m.rs(`"b64":true`), badHeader, "it must not stand without crit (RFC 7797 6)"},
		{"jwk of the forger", signed("EdDSA", edKeyForged, header("EdDSA", `"jwk":`+jwk), m.claims(ed)), badHeader, "only configured keys count"},
		{"jwk under a good signature", signed("EdDSA", edKey, header("EdDSA", `"jwk":`+jwk), m.claims(ed)), badHeader, "who reads it and who does not see two tokens"},
		{"jwk null", m.rs(`"jwk":null`), badHeader, "likewise"},
		{"jku of the forger", forged(`"jku":"http://127.0.0.1:1/jwks.json"`), badHeader, "nothing is fetched that a token points to"},
		{"jku under a good signature", m.rs(`"jku":"https://login.example.com/jwks.json"`), badHeader, "likewise"},
		{"x5u of the forger", forged(`"x5u":"http://127.0.0.1:1/cert.pem"`), badHeader, "likewise"},
		{"x5u under a good signature", m.rs(`"x5u":"https://login.example.com/cert.pem"`), badHeader, "likewise"},
		{"x5c of the forger", forged(`"x5c":["MIIB"]`), badHeader, "a key in a certificate is a key"},
		{"x5t", m.rs(`"x5t":"dGhpcyBpcyBhIFNIQS0x"`), priya, "a thumbprint is a name, and names do not count"},
		{"x5t#S256", m.rs(`"x5t#S256":"x"`), priya, "likewise"},

		{"kid of another key", m.rs(`"kid":"ec"`), priya, "a PEM key has no kid: each of the few keys is tried"},
		{"kid of another key, forged", forged(`"kid":"ec"`), badSignature, "the signature decides"},
		{"kid empty", m.rs(`"kid":""`), priya, "likewise"},
		{"kid that is a path", m.rs(`"kid":"../../../dev/null"`), priya, "it is no path"},
		{"kid that is a path, keyed with nothing", signed("HS256", []byte{}, header("HS256", `"kid":"/dev/null"`), m.claims(login)), badSignature, "it is no path"},
		{"kid that is a query", m.rs(`"kid":"x' UNION SELECT 'secret"`), priya, "it is no query"},
		{"kid of 256 bytes", m.rs(`"kid":"` + strings.Repeat("k", 256) + `"`), priya, "the bound"},
		{"kid of 257 bytes", m.rs(`"kid":"` + strings.Repeat("k", 257) + `"`), badHeader, "beyond it"},
		{"kid a number", m.rs(`"kid":7`), badHeader, "a string (RFC 7515 4.1.4)"},
		{"kid null", m.rs(`"kid":null`), badHeader, "likewise"},
		{"kid a list", m.rs(`"kid":["a"]`), badHeader, "likewise"},
		{"kid twice", m.rs(`"kid":"a","kid":"b"`), malformed, "two readers, two keys"},
		{"kid with NUL and CRLF", m.rs(`"kid":"a\u0000\r\nb"`), priya, "it is shown nowhere"},

		{"typ missing", m.rs("-typ"), priya, "RFC 7519 5.1: optional"},
		{"typ jwt", m.rs(`"typ":"jwt"`), priya, "case is no difference"},
		{"typ JOSE", m.rs(`"typ":"JOSE"`), priya, "RFC 7515 4.1.9"},
		{"typ at+jwt", m.rs(`"typ":"at+jwt"`), priya, "RFC 9068 4"},
		{"typ application/at+jwt", m.rs(`"typ":"application/AT+JWT"`), priya, "likewise"},
		{"typ logout+jwt", m.rs(`"typ":"logout+jwt"`), badHeader, "a logout token names a user and opens nothing (RFC 8725 3.11)"},
		{"typ secevent+jwt", m.rs(`"typ":"application/secevent+jwt"`), badHeader, "nor does a security event"},
		{"typ DPoP+JWT", m.rs(`"typ":"DPoP+JWT"`), badHeader, "nor does a proof, in any case of letters"},
		{"typ a number", m.rs(`"typ":7`), badHeader, "typ is a string"},
		{"typ null", m.rs(`"typ":null`), badHeader, "typ is a string"},
		{"cty JWT, a token inside", signed("HS256", secret, header("HS256", `"cty":"JWT"`), inner), malformed, "a nested token (RFC 7519 5.2) is none"},
		{"cty JWT, claims inside", m.rs(`"cty":"JWT"`), priya, "it holds claims, whatever it says"},
		{"zip", m.rs(`"zip":"DEF"`), priya, "zip belongs to encryption; nothing is unpacked"},
		{"enc", m.rs(`"enc":"A128GCM"`), priya, "likewise"},
		{"unknown members", m.rs(`"https://example.com/x":{"y":[1,2,{}]}`), priya, "RFC 7515 4: what is not known and not critical is ignored"},
	}
}

// signatures are wrong in themselves.
func (m maker) signatures() []Token {
	hs, rs := m.hs(), m.rs()
	es := signed("ES256", p256, header("ES256"), m.claims(curves))
	es512 := signed("ES512", p521, header("ES512"), m.claims(curves))
	eddsa := signed("EdDSA", edKey, header("EdDSA"), m.claims(ed))
	pair := func(change func(r, s, n *big.Int)) string {
		return under(header("ES256"), m.claims(curves), ecdsaPair(p256, 32, change))
	}
	zeros := func(n int) func([]byte) []byte { return func([]byte) []byte { return make([]byte, n) } }
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	small := signed("HS256", secret, header("HS256"), m.claims(login))
	pss := func(salt int) string { return under(header("PS256"), m.claims(rsaAll), pssSalt(salt)) }
	return []Token{
		{"HS256, one bit", signature(hs, flip), badSignature, "the signature decides"},
		{"HS256, another secret", signed("HS256", hashSecret, header("HS256"), m.claims(login)), badSignature, "the secret decides"},
		{"HS256, the first 16 bytes", signature(hs, cut(16)), badSignature, "a whole tag or none"},
		{"HS256, a byte more", signature(hs, appended(0)), badSignature, "likewise"},
		{"HS256, zeros", signature(hs, zeros(32)), badSignature, "likewise"},
		{"HS512, as long as HS256", signature(signed("HS512", hashSecret, header("HS512"), m.claims(hashes)), cut(32)), badSignature, "likewise"},
		{"HS256, of another token", with(small, 2, part(m.hs(`"jti":"2"`), 2)), badSignature, "it is of these bytes"},
		{"claims of another token", with(m.hs(), 1, b64(m.claims(login, `"sub":"admin"`))), badSignature, "the claims are signed"},
		{"header of another token", with(m.rs(), 0, b64(header("RS256", `"kid":"2"`))), badSignature, "the header is signed"},
		{"claims the same, spelt with a space", with(m.hs(), 1, b64(strings.Replace(m.claims(login), "{", "{ ", 1))), badSignature, "what is signed is text, not what it means"},

		{"RS256, one bit", signature(rs, flip), badSignature, "the signature decides"},
		{"RS256, another key", signed("RS256", rsaForged(), header("RS256"), m.claims(rsa256)), badSignature, "the key decides"},
		{"RS256, a byte less", signature(rs, cut(1)), badSignature, "as long as the modulus (RFC 8017 8.2.2)"},
		{"RS256, a byte more", signature(rs, appended(0)), badSignature, "likewise"},
		{"RS256, a zero in front", signature(rs, func(b []byte) []byte { return append([]byte{0}, b...) }), badSignature, "likewise, though the number is the same"},
		{"RS256, the zero in front left out", signature(leadingZero(), func(b []byte) []byte { return b[1:] }), badSignature, "likewise"},
		{"RS256, with that zero", leadingZero(), priya, "and this is how it is spelt"},
		{"RS256, the modulus added", plusModulus(m), badSignature, "another number that means the same (RFC 8017 5.2.2)"},
		{"RS256, zeros", signature(rs, zeros(256)), badSignature, "0 is 0 to any power"},
		{"RS256, one", signature(rs, func([]byte) []byte { return big.NewInt(1).FillBytes(make([]byte, 256)) }), badSignature, "1 is 1 to any power"},
		{"RS256, the modulus less one", signature(rs, func([]byte) []byte { return new(big.Int).Sub(rsaKey.N, big.NewInt(1)).FillBytes(make([]byte, 256)) }), badSignature, "as is -1"},
		{"RS256 with 1024 bits", signed("RS256", smallRSA(), header("RS256"), m.claims(rsa256)), badSignature, "a key of half the length"},
		{"PS256, no salt", pss(0), badSignature, "the salt is as long as the hash (RFC 7518 3.5)"},
		{"PS256, a salt of 20", pss(20), badSignature, "likewise"},
		{"PS256, the longest salt", pss(rsa.PSSSaltLengthAuto), badSignature, "likewise"},
		{"PS256, a salt of 32", pss(32), priya, "that is it"},
		{"PS256, one bit", signature(pss(32), flip), badSignature, "the signature decides"},

		{"ES256, one bit", signature(es, flip), badSignature, "the signature decides"},
		{"ES256, another key", signed("ES256", p256Forged, header("ES256"), m.claims(curves)), badSignature, "the key decides"},
		{"ES256 in DER", under(header("ES256"), m.claims(curves), ecdsaDER), badSignature, "r and s, 32 bytes each (RFC 7518 3.4)"},
		{"ES256, a byte less", signature(es, cut(1)), badSignature, "likewise"},
		{"ES256, a byte more", signature(es, appended(0)), badSignature, "likewise"},
		{"ES256, r alone", signature(es, cut(32)), badSignature, "likewise"},
		{"ES256, r and s zero", signature(es, zeros(64)), badSignature, "0 is out of range, and satisfies who does not look"},
		{"ES256, r zero", pair(func(r, _, _ *big.Int) { r.SetInt64(0) }), badSignature, "likewise"},
		{"ES256, s zero", pair(func(_, s, _ *big.Int) { s.SetInt64(0) }), badSignature, "likewise"},
		{"ES256, r and s the order", pair(func(r, s, n *big.Int) { r.Set(n); s.Set(n) }), badSignature, "likewise: the order is 0"},
		{"ES256, r one, s one", pair(func(r, s, _ *big.Int) { r.SetInt64(1); s.SetInt64(1) }), badSignature, "small numbers are no signature"},
		{"ES256, s on the other side", pair(func(_, s, n *big.Int) { s.Sub(n, s) }), priya, "s and n-s are both signatures, and signers write either"},
		{"ES256, r and s changed round", pair(func(r, s, _ *big.Int) { t := new(big.Int).Set(r); r.Set(s); s.Set(t) }), badSignature, "r comes first"},
		{"ES256 with P-384", under(header("ES256"), m.claims(curves), ecdsaPair(p384, 48, func(_, _, _ *big.Int) {})), badSignature, "ES256 is P-256, whatever keys there are"},
		{"ES384 with P-256", under(header("ES384"), m.claims(curves), ecdsaPair(p256, 32, func(_, _, _ *big.Int) {})), badSignature, "likewise"},
		{"ES256 as wide as ES384", under(header("ES384"), m.claims(curves), ecdsaPair(p256, 48, func(_, _, _ *big.Int) {})), badSignature, "likewise"},
		{"ES512, the order added to r", under(header("ES512"), m.claims(curves), ecdsaPair(p521, 66, func(r, _, n *big.Int) { r.Add(r, n) })), badSignature, "66 bytes have room for r+n, which means r to who reduces"},
		{"ES512, the order added to s", under(header("ES512"), m.claims(curves), ecdsaPair(p521, 66, func(_, s, n *big.Int) { s.Add(s, n) })), badSignature, "likewise"},
		{"ES512 in 64 bytes", signature(es512, cut(68)), badSignature, "66 bytes each, not 64"},

		{"EdDSA, one bit", signature(eddsa, flip), badSignature, "the signature decides"},
		{"EdDSA, another key", signed("EdDSA", edKeyForged, header("EdDSA"), m.claims(ed)), badSignature, "the key decides"},
		{"EdDSA, the order added to S", signature(eddsa, plusOrder), badSignature, "S is below the order (RFC 8032 5.1.7)"},
		{"EdDSA, zeros", signature(eddsa, zeros(64)), badSignature, "a point of small order and S zero"},
		{"EdDSA, the neutral point and zero", signature(eddsa, func([]byte) []byte { b := make([]byte, 64); b[0] = 1; return b }), badSignature, "likewise"},
		{"EdDSA, the bit of R's sign", signature(eddsa, func(b []byte) []byte { b[31] ^= 0x80; return b }), badSignature, "another point"},
		{"EdDSA, a byte less", signature(eddsa, cut(1)), badSignature, "64 bytes"},
		{"EdDSA, a byte more", signature(eddsa, appended(0)), badSignature, "64 bytes"},
		{"EdDSA, as long as Ed448", signature(eddsa, zeros(114)), badSignature, "Ed448 is another curve"},
		{"EdDSA, Ed25519ph", under(header("EdDSA"), m.claims(ed), edWith(&ed25519.Options{Hash: crypto.SHA512})), badSignature, "RFC 8037 3.1 means the plain one"},
		{"EdDSA, Ed25519ctx", under(header("EdDSA"), m.claims(ed), edWith(&ed25519.Options{Context: "x"})), badSignature, "likewise"},
	}
}

// spellings are other ways to write the same bytes: a token has one.
func (m maker) spellings() []Token {
	loosen := func(n int) string { // a part with bits to spare
		for pad := range 3 {
			t := signed("ES256", p256, header("ES256", `"p":"`+strings.Repeat("p", pad)+`"`), m.claims(curves, `"p":"`+strings.Repeat("p", pad)+`"`))
			if len(part(t, n))%4 != 0 {
				return loose(t, n)
			}
		}
		panic("bug: no length leaves bits to spare")
	}
	// The digits of >>> and ??? in which the alphabets differ, and the same text in
	// the other alphabet, signed so.
	odd := m.claims(login, `"x":">>>???>>>???>>>???>>>"`, `"y":" >>>???>>>???>>>???>>>"`, `"z":"  >>>???>>>???"`)
	standard := b64(header("HS256")) + "." + strings.NewReplacer("-", "+", "_", "/").Replace(b64(odd))
	if !strings.ContainsAny(standard, "+/") {
		panic("bug: no digit in which the alphabets differ")
	}
	signText := func(text string) string { return text + "." + sign256(text) } // over any text
	resigned := func(text func(h, c string) string) string {
		return signText(text(b64(header("HS256")), b64(m.claims(login))))
	}
	good := m.hs()
	return []Token{
		{"spare bits in the header, signed so", spareHeader(m), malformed, "two texts for one token (RFC 4648 3.5)"},
		{"spare bits in the claims, signed so", spareClaims(m), malformed, "likewise"},
		{"spare bits in the header", loosen(0), malformed, "likewise"},
		{"spare bits in the claims", loosen(1), malformed, "likewise"},
		{"spare bits in the signature", loosen(2), malformed, "likewise: here the signature itself is good"},
		{"spare bits in the tag", loose(good, 2), malformed, "likewise"},
		{"padding behind the signature", good + "=", malformed, "RFC 7515 2: no padding"},
		{"padding behind the header, signed so", resigned(func(h, c string) string { return h + strings.Repeat("=", 4-len(h)%4) + "." + c }), malformed, "likewise"},
		{"padding behind the claims, signed so", resigned(func(h, c string) string { return h + "." + c + "==" }), malformed, "likewise"},
		{"the standard alphabet in the claims, signed so", signText(standard), malformed, "base64url has - and _"},
		{"the standard alphabet in the signature", with(good, 2, "+"+part(good, 2)[1:]), malformed, "likewise"},
		{"the alphabet of the URL, with such digits", signed("HS256", secret, header("HS256"), odd), priya, "that is it"},
		{"a space in the signature", good[:len(good)-4] + " " + good[len(good)-4:], malformed, "no white space"},
		{"a space behind the dot, signed so", resigned(func(h, c string) string { return h + ". " + c }), malformed, "likewise"},
		{"a tab in the signature", good[:len(good)-4] + "\t" + good[len(good)-4:], malformed, "likewise"},
		{"a line end in the signature", good[:len(good)-4] + "\n" + good[len(good)-4:], malformed, "decoders pass over it, and so a token had two texts"},
		{"CR LF in the claims, signed so", resigned(func(h, c string) string { return h + "." + c[:8] + "\r\n" + c[8:] }), malformed, "likewise"},
		{"CR LF in the header, signed so", resigned(func(h, c string) string { return h[:8] + "\r\n" + h[8:] + "." + c }), malformed, "likewise"},
		{"NUL in the signature", good[:len(good)-4] + "\x00" + good[len(good)-4:], malformed, "no digit"},
		{"a byte over 127", good + "\xff", malformed, "no digit"},
		{"wide digits", good + "Ａ", malformed, "no digit"},
		{"%2E for the dot", strings.Replace(good, ".", "%2E", 1), malformed, "a token is not percent-encoded"},
		{"a comma behind it", good + ",", malformed, "no digit"},
		{"two digits more", good + "AA", malformed, "no text of base64 has 4k+1 digits"},
		{"one digit less", good[:len(good)-1], malformed, "its last digit would have bits to spare"},
		{"four digits less", good[:len(good)-4], malformed, "likewise: a tag does not end at a group"},
		{"digits without a meaning", "AAAA.AAAA.AAAA", malformed, "it holds no JSON"},
	}
}

// forms are not three parts.
func (m maker) forms() []Token {
	good := m.hs()
	jwe := "eyJhbGciOiJSU0EtT0FFUCIsImVuYyI6IkEyNTZHQ00ifQ.AAAA.48V1_ALb6US04U3b.5eym8TW_c8SuK0ltJ3rpYIzOeDQz7TALvtu6UG9oMo4vpzs9tX_EFShS8iB7j6ji.XFBoMYUZodetZdvTiFvSkQ"
	return []Token{
		{"one part", part(good, 0), malformed, "three parts (RFC 7515 7.1)"},
		{"two parts", part(good, 0) + "." + part(good, 1), malformed, "likewise"},
		{"an empty signature", part(good, 0) + "." + part(good, 1) + ".", malformed, "likewise"},
		{"empty claims, detached", part(good, 0) + ".." + part(good, 2), malformed, "RFC 7515 appendix F is no token"},
		{"an empty header", "." + part(good, 1) + "." + part(good, 2), malformed, "likewise"},
		{"dots alone", "..", malformed, "likewise"},
		{"a dot in front", "." + good, malformed, "likewise"},
		{"a dot behind", good + ".", malformed, "likewise"},
		{"four parts", good + ".AAAA", malformed, "likewise"},
		{"two signatures", good + "." + part(good, 2), malformed, "likewise"},
		{"five parts, encrypted", jwe, malformed, "a JWE: it is not decrypted"},
		{"many dots", strings.Repeat("A.", 4000) + "A", malformed, "likewise"},
		{"two tokens", good + "," + good, malformed, "one"},
		{"the scheme twice", "Bearer " + good, malformed, "the scheme is no part of it"},
		{"the name of a member", "access_token=" + good, malformed, "nor is this"},
		{"an API key", "bn_live_3f9a12cd_abcdefghijklmnopqrstuvwxyz", malformed, "a key in the place of a token"},
		{"JSON of the claims", m.claims(login), malformed, "nothing is signed"},
		{"HTML", "<html>", malformed, "likewise"},
		{"null", "null", malformed, "what a script sends that has no token"},
	}
}

// jsonText is JSON that two readers could read in two ways.
func (m maker) jsonText() []Token {
	h := func(text string) string { return signed("HS256", secret, text, m.claims(login)) }
	c := func(text string) string { return signed("HS256", secret, header("HS256"), text) }
	good := m.claims(login)
	wide := func(s string) string {
		var b []byte
		for _, u := range utf16.Encode([]rune(s)) {
			b = binary.LittleEndian.AppendUint16(b, u)
		}
		return string(b)
	}
	nested := func(open, shut string, depth int) string {
		return `"x":` + strings.Repeat(open, depth) + "1" + strings.Repeat(shut, depth)
	}
	return []Token{
		{"header a list", h(`["HS256"]`), malformed, "an object (RFC 7515 4)"},
		{"header null", h(`null`), malformed, "likewise"},
		{"header a string", h(`"HS256"`), malformed, "likewise"},
		{"header empty", h(` `), malformed, "likewise"},
		{"header with a member behind it", h(header("HS256") + `,"x":1`), malformed, "one object and nothing else"},
		{"header with an object behind it", h(header("HS256") + header("none")), malformed, "likewise"},
		{"header with a comma too much", h(`{"alg":"HS256",}`), malformed, "RFC 8259"},
		{"header with a comment", h(`{"alg":"HS256"/*x*/}`), malformed, "likewise"},
		{"header with a BOM", h("\ufeff" + header("HS256")), malformed, "RFC 8259 8.1"},
		{"header in UTF-16", h(wide(header("HS256"))), malformed, "RFC 7515 5.2: UTF-8"},
		{"header not UTF-8", h(header("HS256", `"x":"`+"\xff"+`"`)), malformed, "likewise"},
		{"header with space around", h(" \r\n\t" + header("HS256") + "\n"), priya, "white space is JSON's"},
		{"header twice the same unknown member", h(header("HS256", `"x":1,"x":1`)), malformed, "RFC 7515 4: names are unique"},
		{"header with a member twice further down", h(header("HS256", `"x":{"y":1,"y":2}`)), malformed, "likewise"},
		{"header nested without end", h(header("HS256", nested("[", "]", 1000))), malformed, "there is a bound"},

		{"claims a list", c(`[` + good + `]`), malformed, "an object (RFC 7519 7.2)"},
		{"claims a string", c(`"priya123"`), malformed, "likewise"},
		{"claims a number", c(`7`), malformed, "likewise"},
		{"claims null", c(`null`), missingClaim, "no iss, and so no key: it is refused before its signature"},
		{"claims empty", c(`{}`), missingClaim, "likewise"},
		{"claims no JSON", c(`hello there`), malformed, "RFC 8259"},
		{"claims cut off", c(good[:len(good)-1]), malformed, "RFC 8259"},
		{"claims with an object behind them", c(good + `{"sub":"admin"}`), malformed, "one object and nothing else"},
		{"claims with NUL behind them", c(good + "\x00"), malformed, "likewise"},
		{"claims with a BOM", c("\ufeff" + good), malformed, "RFC 8259 8.1"},
		{"claims in UTF-16", c(wide(good)), malformed, "UTF-8"},
		{"claims not UTF-8", c(m.claims(login, `"x":"`+"\xff"+`"`)), malformed, "likewise: readers put something in its place"},
		{"claims spelt too long for UTF-8", c(m.claims(login, `"x":"`+"\xc0\xaf"+`"`)), malformed, "likewise"},
		{"claims with half a pair in UTF-8", c(m.claims(login, `"x":"`+"\xed\xa0\x80"+`"`)), malformed, "likewise"},
		{"claims with single quotes", c(strings.ReplaceAll(good, `"`, `'`)), malformed, "RFC 8259"},
		{"claims with NaN", c(m.claims(login, `"x":NaN`)), malformed, "RFC 8259"},
		{"claims with Infinity", c(m.claims(login, `"x":-Infinity`)), malformed, "RFC 8259"},
		{"claims with 01", c(m.claims(login, `"x":01`)), malformed, "RFC 8259"},
		{"claims with 0x10", c(m.claims(login, `"x":0x10`)), malformed, "RFC 8259"},
		{"claims with a raw line end in a string", c(m.claims(login, "\"x\":\"a\nb\"")), malformed, "RFC 8259"},
		{"claims with a number beyond all", c(m.claims(login, `"x":1e999999`)), priya, "nobody asks for that claim"},
		{"claims with a number of 400 digits", c(m.claims(login, `"x":`+strings.Repeat("9", 400))), priya, "likewise"},
		{"sub twice", m.hs(`"sub":"admin","sub":"priya123"`), malformed, "two readers, two users"},
		{"sub twice, once with escapes", m.hs(`"sub":"priya123","\u0073ub":"admin"`), malformed, "likewise"},
		{"exp twice", m.hs(`"exp":1,"exp":` + m.at(time.Hour)), malformed, "likewise"},
		{"iss twice", m.hs(`"iss":"` + other + `","iss":"` + login + `"`), malformed, "two issuers, two keys"},
		{"a claim twice further down", m.hs(`"x":{"y":1,"y":2}`), malformed, "likewise"},
		{"a claim twice in a list", m.hs(`"x":[[{"y":1,"y":2}]]`), malformed, "likewise"},
		{"two names that are broken alike", m.hs(`"\ud800":1,"\ud801":2`), malformed, "both become U+FFFD"},
		{"sub and Sub", m.hs(`"Sub":"admin"`), priya, "names are exact"},
		{"SUB for sub", m.hs("-sub", `"SUB":"admin"`), missingClaim, "likewise"},
		{"EXP for exp", m.hs("-exp", `"EXP":`+m.at(time.Hour)), missingClaim, "likewise"},
		{"ISS for iss", m.hs("-iss", `"ISS":"`+login+`"`), missingClaim, "likewise"},
		{"32 levels, the claims among them", m.hs(nested("[", "]", 31)), priya, "the bound"},
		{"33 levels", m.hs(nested("[", "]", 32)), malformed, "beyond it"},
		{"33 levels of objects", m.hs(nested(`{"x":`, "}", 32)), malformed, "likewise"},
		{"two thousand levels", m.hs(nested("[", "]", 2000)), malformed, "likewise"},
	}
}

// times are exp, nbf and iat.
func (m maker) times() []Token {
	exp := func(v string) string { return m.hs(`"exp":` + v) }
	nbf := func(v string) string { return m.hs(`"nbf":` + v) }
	iat := func(v string) string { return m.hs(`"iat":` + v) }
	ms := m.at(time.Hour) + "000"
	century := fmt.Sprint(m.now.AddDate(100, 0, 0).Unix())
	beyond := fmt.Sprint(m.now.AddDate(100, 0, 0).Unix() + 1)
	return []Token{
		{"exp missing", m.hs("-exp"), missingClaim, "a token without an end is good for ever"},
		{"exp null", exp("null"), badClaim, "a date is a number (RFC 7519 2)"},
		{"exp a string", exp(`"` + m.at(time.Hour) + `"`), badClaim, "likewise"},
		{"exp a date in words", exp(`"2099-01-01T00:00:00Z"`), badClaim, "likewise"},
		{"exp true", exp("true"), badClaim, "likewise"},
		{"exp a list", exp("[" + m.at(time.Hour) + "]"), badClaim, "likewise"},
		{"exp an object", exp("{}"), badClaim, "likewise"},
		{"exp 0", exp("0"), expired, "1970 is over: 0 is not «none»"},
		{"exp -0.0", exp("-0.0"), expired, "likewise"},
		{"exp -1", exp("-1"), expired, "1969 too"},
		{"exp with an exponent", exp("1.8e9"), priya, "a number, however it is written"},
		{"exp with a fraction", exp(m.at(time.Hour) + ".75"), priya, "RFC 7519 2: fractions are allowed"},
		{"exp with 300 decimals", exp(m.at(time.Hour) + "." + strings.Repeat("3", 300)), priya, "likewise"},
		{"exp in milliseconds", exp(ms), badClaim, "the year 58,000 is a mistake, not a date"},
		{"exp 9999", exp("253402300799"), badClaim, "for ever in other words"},
		{"exp 1e20", exp("1e20"), badClaim, "no date"},
		{"exp 1e400", exp("1e400"), badClaim, "no number that fits"},
		{"exp -1e20", exp("-1e20"), badClaim, "no date"},
		{"exp 2^63", exp("9223372036854775808"), badClaim, "wraps around for who counts in 64 bits"},
		{"exp 2^64 and an hour", exp("18446744075505551616"), badClaim, "likewise"},
		{"exp 1e-9", exp("1e-9"), expired, "1970"},
		{"exp in 100 years", exp(century), priya, "the bound"},
		{"exp in 100 years and a second", exp(beyond), badClaim, onlyNow + "beyond the bound"},
		{"exp now", exp(m.at(0)), expired, "on or after (RFC 7519 4.1.4)"},
		{"exp in a second", exp(m.at(time.Second)), priya, onlyNow + "before it"},
		{"exp in half a second", exp(m.at(0) + ".5"), priya, onlyNow + "before it"},
		{"exp half a second ago", exp(m.at(-time.Second) + ".5"), expired, "no leeway"},
		{"exp 29 s ago, with 30 s of leeway", m.strict(`"exp":` + m.at(time.Second-Leeway)), priya, onlyNow + "clocks differ"},
		{"exp 30 s ago, with 30 s of leeway", m.strict(`"exp":` + m.at(-Leeway)), expired, "but no more than that"},

		{"nbf now", nbf(m.at(0)), priya, "from then on (RFC 7519 4.1.5)"},
		{"nbf in a second", nbf(m.at(time.Second)), notYet, onlyNow + "before it"},
		{"nbf in an hour", nbf(m.at(time.Hour)), notYet, "before it"},
		{"nbf in half a second", nbf(m.at(0) + ".5"), notYet, onlyNow + "before it"},
		{"nbf in 30 s, with leeway", m.strict(`"nbf":` + m.at(Leeway)), priya, "clocks differ"},
		{"nbf in 31 s, with leeway", m.strict(`"nbf":` + m.at(Leeway+time.Second)), notYet, onlyNow + "but no more than that"},
		{"nbf null", nbf("null"), badClaim, "a date is a number"},
		{"nbf a string", nbf(`"0"`), badClaim, "likewise"},
		{"nbf a list", nbf("[]"), badClaim, "likewise"},
		{"nbf false", nbf("false"), badClaim, "likewise"},
		{"nbf in milliseconds", nbf(m.at(-time.Hour) + "000"), badClaim, "likewise"},
		{"nbf -1e300", nbf("-1e300"), badClaim, "no date"},
		{"nbf -1", nbf("-1"), priya, "long ago"},
		{"nbf 0", nbf("0"), priya, "long ago"},

		{"iat an hour ago", iat(m.at(-time.Hour)), priya, "RFC 7519 4.1.6"},
		{"iat in a second", iat(m.at(time.Second)), notYet, onlyNow + "issued in the future: a clock is wrong"},
		{"iat in an hour", iat(m.at(time.Hour)), notYet, "likewise"},
		{"iat in 30 s, with leeway", m.strict(`"iat":` + m.at(Leeway)), priya, "clocks differ"},
		{"iat in 5 min, with leeway", m.strict(`"iat":` + m.at(5*time.Minute)), notYet, "not so much"},
		{"iat a string", iat(`"yesterday"`), badClaim, "a date is a number"},
		{"iat null", iat("null"), badClaim, "likewise"},
		{"iat in milliseconds", iat(m.at(-time.Hour) + "000"), badClaim, "likewise"},
		{"iat 1e20", iat("1e20"), badClaim, "no date"},
		{"expired and forged", signed("HS256", otherSecret, header("HS256"), m.claims(login, `"exp":1`)), badSignature, "nothing is said of a claim before the signature"},
		{"expired and of no user", m.hs(`"exp":1`, "-sub"), expired, "its time comes first"},
	}
}

// issuers are iss, which chooses the keys and is chosen by nobody else.
func (m maker) issuers() []Token {
	iss := func(v string) string { return m.hs(`"iss":` + v) }
	return []Token{
		{"iss missing", m.hs("-iss"), missingClaim, "whose keys?"},
		{"iss null", iss("null"), missingClaim, "likewise"},
		{"iss empty", iss(`""`), wrongIssuer, "nobody is called that"},
		{"iss a list", iss(`["` + login + `"]`), badClaim, "a string"},
		{"iss an object", iss(`{"x":"` + login + `"}`), badClaim, "likewise"},
		{"iss a number", iss("7"), badClaim, "likewise"},
		{"iss unknown", iss(`"https://evil.example.com/"`), wrongIssuer, "no keys, no verdict"},
		{"iss without its slash", iss(`"https://login.example.com"`), wrongIssuer, "byte for byte (RFC 7519 4.1.1, RFC 3986 6.2.1)"},
		{"iss with a slash too much", signed("HS256", otherSecret, header("HS256"), m.claims(other, `"iss":"`+other+`/"`)), wrongIssuer, "likewise"},
		{"iss in capitals", iss(`"https://LOGIN.example.com/"`), wrongIssuer, "likewise"},
		{"iss with http", iss(`"http://login.example.com/"`), wrongIssuer, "likewise"},
		{"iss with its port", iss(`"https://login.example.com:443/"`), wrongIssuer, "likewise"},
		{"iss with a dot behind the host", iss(`"https://login.example.com./"`), wrongIssuer, "likewise"},
		{"iss percent-encoded", iss(`"https://login%2Eexample.com/"`), wrongIssuer, "likewise"},
		{"iss with space behind it", iss(`"https://login.example.com/ "`), wrongIssuer, "likewise"},
		{"iss with NUL behind it", iss(`"https://login.example.com/\u0000"`), wrongIssuer, "the end of a string, in other languages"},
		{"iss with a letter that looks alike", iss(`"https://l` + "\u043e" + `gin.example.com/"`), wrongIssuer, "a Cyrillic o"},
		{"iss with escapes", iss(`"https:\/\/log\u0069n.example.com\/"`), priya, "the same string: escapes are JSON's"},
		{"iss with a suffix", iss(`"https://login.example.com/evil"`), wrongIssuer, "no prefix is enough"},
		{"other's token in login's name", signed("HS256", otherSecret, header("HS256"), m.claims(login)), badSignature, "only the keys of the issuer that is named"},
		{"login's token in other's name", signed("HS256", secret, header("HS256"), m.claims(other)), badSignature, "likewise"},
		{"other's own token", signed("HS256", otherSecret, header("HS256"), m.claims(other)), priya, "and these are its own"},
		{"rsa256's token in joe's name, same key", signed("RS256", rsaKey, header("RS256"), m.claims(joe)), "user joe", "who shares keys shares trust: iss is joe"},
	}
}

// audiences are aud.
func (m maker) audiences() []Token {
	aud := func(v string) string { return m.strict(`"aud":` + v) }
	return []Token{
		{"aud the second", aud(`"weather-api"`), priya, "any of the configured ones"},
		{"aud a list", aud(`["x","api"]`), priya, "any of the token's"},
		{"aud a list, twice the same", aud(`["api","api"]`), priya, "likewise"},
		{"aud with escapes", aud(`"\u0061pi"`), priya, "the same string"},
		{"aud missing", m.strict("-aud"), wrongAud, "a token for nobody is not for us"},
		{"aud null", aud("null"), wrongAud, "likewise"},
		{"aud empty", aud(`""`), wrongAud, "likewise"},
		{"aud an empty list", aud("[]"), wrongAud, "likewise"},
		{"aud a list of an empty string", aud(`[""]`), wrongAud, "likewise"},
		{"aud of others", aud(`["x","y"]`), wrongAud, "made for another service"},
		{"aud in capitals", aud(`"API"`), wrongAud, "byte for byte"},
		{"aud longer", aud(`"api2"`), wrongAud, "whole"},
		{"aud shorter", aud(`"ap"`), wrongAud, "whole"},
		{"aud with space", aud(`"api "`), wrongAud, "byte for byte"},
		{"aud two in one string", aud(`"x api"`), wrongAud, "a list is a list"},
		{"aud *", aud(`"*"`), wrongAud, "there is no wildcard"},
		{"aud a number", aud("7"), badClaim, "a string, or a list of strings"},
		{"aud true", aud("true"), badClaim, "likewise"},
		{"aud an object", aud(`{"api":true}`), badClaim, "likewise"},
		{"aud a list with a number", aud(`["api",7]`), badClaim, "likewise"},
		{"aud a list with null", aud(`[null,"api"]`), badClaim, "likewise"},
		{"aud a list of lists", aud(`[["api"]]`), badClaim, "likewise"},
		{"aud where none is configured", m.hs(`"aud":{"x":7}`), priya, "not looked at; check warns of such an issuer"},
	}
}

// users are the claims that become an identity, and with it a field of the
// upstream request and a bucket.
func (m maker) users() []Token {
	sub := func(v string) string { return m.hs(`"sub":` + v) }
	long := strings.Repeat("x", 256)
	return []Token{
		{"user missing", m.hs("-sub"), missingClaim, "nobody is no user"},
		{"user null", sub("null"), missingClaim, "likewise"},
		{"user empty", sub(`""`), missingClaim, "likewise"},
		{"user a number", sub("7"), badClaim, "a string: 7 and \"7\" would be one caller"},
		{"user a big number", sub("12345678901234567890"), badClaim, "likewise, and readers round"},
		{"user true", sub("true"), badClaim, "likewise"},
		{"user an object", sub(`{"id":"priya123"}`), badClaim, "likewise"},
		{"user a list", sub(`["priya123"]`), badClaim, "likewise"},
		{"user with CR LF", sub(`"u\r\nX-Auth-Plan: pro"`), badClaim, "it would be two fields of the upstream request"},
		{"user with LF", sub(`"u\n"`), badClaim, "likewise"},
		{"user with NUL", sub(`"u\u0000x"`), badClaim, "the end of a string, elsewhere"},
		{"user with a tab", sub(`"a\tb"`), badClaim, "no control characters"},
		{"user with DEL", sub(`"u\u007f"`), badClaim, "likewise"},
		{"user with NEL", sub(`"u\u0085x"`), badClaim, "likewise: a line end to some"},
		{"user with U+2028", sub(`"u\u2028x"`), badClaim, "a line end to scripts"},
		{"user with U+2029", sub(`"u\u2029x"`), badClaim, "likewise"},
		{"user with half a pair", sub(`"u\ud800"`), badClaim, "it becomes U+FFFD, as all broken ones do"},
		{"user with the halves changed round", sub(`"u\udc00\ud800"`), badClaim, "likewise"},
		{"user with U+FFFD", sub("\"u\ufffd\""), badClaim, "likewise: it was broken before it came here"},
		{"user not UTF-8", sub("\"u\xff\""), malformed, "the claims are no JSON"},
		{"user with space before it", sub(`" admin"`), badClaim, "a receiver cuts it (RFC 9110 5.5)"},
		{"user with space behind it", sub(`"admin "`), badClaim, "likewise"},
		{"user with a hard space before it", sub(`"\u00a0admin"`), badClaim, "likewise, somewhere"},
		{"user of a space", sub(`" "`), badClaim, "likewise"},
		{"user with a space in it", sub(`"Priya K"`), "user Priya K", "names have spaces"},
		{"user in another script", sub(`"प्रिया"`), "user प्रिया", "and letters of their own"},
		{"user with a pair", sub(`"\ud83d\ude00"`), "user \U0001f600", "a whole pair is one character"},
		{"user of 256 bytes", sub(`"` + long + `"`), "user " + long, "the bound"},
		{"user of 257 bytes", sub(`"x` + long + `"`), badClaim, "beyond it"},
		{"user of 86 wide characters", sub(`"` + strings.Repeat("प", 86) + `"`), badClaim, "bytes are counted: 258"},
		{"user key:", sub(`"key:k-7f3a"`), badClaim, "how a caller with an API key is called"},
		{"user key: with escapes", sub(`"k\u0065y:k-7f3a"`), badClaim, "likewise"},
		{"user KEY:", sub(`"KEY:k-7f3a"`), "user KEY:k-7f3a", "another user: names are exact"},
		{"tenant a number", m.hs(`"org":7`), badClaim, "a wrong type is a refused token, not an empty tenant"},
		{"tenant with CR LF", m.hs(`"org":"a\r\nb"`), badClaim, "a field of the upstream request too"},
		{"tenant null", m.hs(`"org":null`), priya, "absent"},
		{"tenant too long", m.hs(`"org":"x` + long + `"`), badClaim, "beyond the bound"},
		{"plan false", m.hs(`"plan":false`), badClaim, "a wrong type is a refused token, not the default plan"},
		{"plan a list", m.hs(`"plan":["pro"]`), badClaim, "likewise"},
		{"plan with space around it", m.hs(`"plan":" pro"`), badClaim, "it is no plan's name"},
		{"plan empty", m.hs(`"plan":""`), priya, "absent"},
	}
}

// paths are claims that are found by a path: user.name, realm.org.id and a URL.
func (m maker) paths() []Token {
	const user = `"user":{"name":"priya123"}`
	return []Token{
		{"path", m.realm(user), priya, "a dot goes one object down"},
		{"path of three", m.realm(user, `"realm":{"org":{"id":"acme"}}`), priya, "each does"},
		{"path, the exact name beside it", m.realm(`"user":{"name":"admin"}`, `"user.name":"priya123"`), priya, "the exact name comes first"},
		{"path, the exact name null", m.realm(user, `"user.name":null`), missingClaim, "and what it says counts"},
		{"path, the exact name a number", m.realm(user, `"user.name":7`), badClaim, "likewise"},
		{"path, half an exact name", m.realm(user, `"realm.org":{"id":7}`), priya, "no name but the whole one, and the first of its parts"},
		{"path through a string", m.realm(`"user":"priya123"`), badClaim, "not an object"},
		{"path through a list", m.realm(`"user":[{"name":"priya123"}]`), badClaim, "not an object"},
		{"path through a number", m.realm(user, `"realm":{"org":7}`), badClaim, "not an object"},
		{"path through null", m.realm(user, `"realm":{"org":null}`), priya, "absent"},
		{"path that ends early", m.realm(user, `"realm":{}`), priya, "absent"},
		{"path to a user that is not there", m.realm(`"user":{}`), missingClaim, "a user there must be"},
		{"path through null to the user", m.realm(`"user":null`), missingClaim, "likewise"},
		{"path to an object", m.realm(user, `"realm":{"org":{"id":{"x":1}}}`), badClaim, "the end is a string"},
		{"path in other letters", m.realm(`"User":{"name":"priya123"}`), missingClaim, "names are exact"},
		{"a URL for a name", m.realm(user, `"https://example.com/plan":"pro"`), priya, "its dots are its own"},
		{"a URL for a name, of the wrong type", m.realm(user, `"https://example.com/plan":7`), badClaim, "likewise"},
		{"a URL for a name, as if it were a path", m.realm(user, `"https://example":{"com/plan":7}`), badClaim, "dots descend where the exact name is not there"},
	}
}

// sizes are about the bound on a token's length.
func (m maker) sizes() []Token {
	return []Token{
		{"8 KiB", m.ofLength(auth.MaxTokenBytes), priya, "the bound"},
		{"8 KiB and a byte", m.ofLength(auth.MaxTokenBytes + 1), oversize, "beyond it, though it is good"},
		{"8 KiB of nothing", strings.Repeat("A", auth.MaxTokenBytes), malformed, "the bound is no licence"},
		{"16 KiB of nothing", strings.Repeat("A", 16<<10), oversize, "nothing is computed from it"},
	}
}
