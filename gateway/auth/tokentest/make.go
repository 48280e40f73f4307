package tokentest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// maker makes tokens that speak of one instant.
type maker struct{ now time.Time }

// at is the instant d from now, as a NumericDate.
func (m maker) at(d time.Duration) string { return fmt.Sprint(m.now.Add(d).Unix()) }

// claims is a good claim set of an issuer, changed by members such as `"exp":7`
// and `-exp`, which takes one out.
func (m maker) claims(iss string, change ...string) string {
	return object([]string{fmt.Sprintf(`"iss":%q`, iss), `"sub":"priya123"`, `"exp":` + m.at(time.Hour)}, change)
}

// header is that of a token, changed likewise.
func header(alg string, change ...string) string {
	return object([]string{fmt.Sprintf(`"alg":%q`, alg), `"typ":"JWT"`}, change)
}

// object writes members as JSON. A change takes the place of the member that has
// its name, and is added where there is none.
func object(members, change []string) string {
	list := append([]string(nil), members...)
	for _, c := range change {
		name, _, _ := strings.Cut(strings.TrimPrefix(c, "-"), ":")
		found := false
		for i, m := range list {
			if n, _, _ := strings.Cut(m, ":"); strings.Trim(n, `"`) == strings.Trim(name, `"`) {
				list[i], found = c, true
			}
		}
		if !found {
			list = append(list, c)
		}
	}
	var kept []string
	for _, m := range list {
		if !strings.HasPrefix(m, "-") {
			kept = append(kept, m)
		}
	}
	return "{" + strings.Join(kept, ",") + "}"
}

// hs is a token of login's, changed in its claims.
func (m maker) hs(change ...string) string {
	return signed("HS256", secret, header("HS256"), m.claims(login, change...))
}

// rs is a token of rsa256's, changed in its header.
func (m maker) rs(change ...string) string {
	return signed("RS256", rsaKey, header("RS256", change...), m.claims(rsa256))
}

// strict is a token of strict's, changed in its claims.
func (m maker) strict(change ...string) string {
	return signed("HS256", encodedSecret, header("HS256"), m.claims(strict, append([]string{`"aud":"api"`}, change...)...))
}

// realm is a token of realm's, with claims besides iss and exp.
func (m maker) realm(members ...string) string {
	return signed("HS256", secret, header("HS256"), m.claims(realm, append(members, "-sub")...))
}

// signed signs header and claims, however odd, as an issuer would.
func signed(alg string, key any, header, claims string) string {
	text := b64(header) + "." + b64(claims)
	return text + "." + b64(string(must(jwt.GetSigningMethod(alg).Sign(text, key))))
}

// under is header and claims with the bytes of a signature of the caller's.
func under(header, claims string, signature func(text string) []byte) string {
	text := b64(header) + "." + b64(claims)
	return text + "." + b64(string(signature(text)))
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// part returns one of the parts of a token, and with replaces it.
func part(token string, n int) string { return strings.Split(token, ".")[n] }

func with(token string, n int, text string) string {
	parts := strings.Split(token, ".")
	parts[n] = text
	return strings.Join(parts, ".")
}

// loose spells the last digit of a part with a bit set that stands for nothing.
// The part's length must leave such bits.
func loose(token string, n int) string {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	p := part(token, n)
	last := digits[strings.IndexByte(digits, p[len(p)-1])+1]
	text := p[:len(p)-1] + string(last)
	if !bytes.Equal(decode(text), decode(p)) || text == p {
		panic("bug: a part without bits to spare: " + p)
	}
	return with(token, n, text)
}

// signature changes the bytes of a token's signature.
func signature(token string, change func([]byte) []byte) string {
	return with(token, 2, b64(string(change(decode(part(token, 2))))))
}

func appended(tail ...byte) func([]byte) []byte {
	return func(b []byte) []byte { return append(b, tail...) }
}

func cut(n int) func([]byte) []byte {
	return func(b []byte) []byte { return b[:len(b)-n] }
}

// ecdsaPair signs with a key of one curve and the hash of another, if need be,
// and writes r and s as they are changed.
func ecdsaPair(key *ecdsa.PrivateKey, size int, change func(r, s, n *big.Int)) func(string) []byte {
	return func(text string) []byte {
		r, s := rawPair(key, text)
		change(r, s, key.Params().N)
		return append(r.FillBytes(make([]byte, size)), s.FillBytes(make([]byte, size))...)
	}
}

func rawPair(key *ecdsa.PrivateKey, text string) (r, s *big.Int) {
	var digest []byte
	if key.Curve == p521.Curve {
		sum := sha512.Sum512([]byte(text))
		digest = sum[:]
	} else {
		sum := sha256.Sum256([]byte(text))
		digest = sum[:]
	}
	r, s, err := ecdsa.Sign(rand.Reader, key, digest)
	if err != nil {
		panic("bug: " + err.Error())
	}
	return r, s
}

func ecdsaDER(text string) []byte {
	digest := sha256.Sum256([]byte(text))
	return must(ecdsa.SignASN1(rand.Reader, p256, digest[:]))
}

// pssSalt signs PS256 with a salt of a length of its own.
func pssSalt(length int) func(string) []byte {
	return func(text string) []byte {
		digest := sha256.Sum256([]byte(text))
		return must(rsa.SignPSS(rand.Reader, rsaKey, crypto.SHA256, digest[:], &rsa.PSSOptions{SaltLength: length}))
	}
}

// edOrder is the order of Ed25519's group (RFC 8032 section 5.1).
var edOrder, _ = new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)

// plusOrder adds the order of the group to S, which stays the same number for
// whoever does not look (RFC 8032 section 5.1.7 does).
func plusOrder(signature []byte) []byte {
	s := reversed(signature[32:])
	sum := new(big.Int).Add(new(big.Int).SetBytes(s), edOrder).FillBytes(make([]byte, 32))
	return append(signature[:32:32], reversed(sum)...)
}

func reversed(b []byte) []byte {
	out := make([]byte, len(b))
	for i, c := range b {
		out[len(b)-1-i] = c
	}
	return out
}

func edWith(o *ed25519.Options) func(string) []byte {
	return func(text string) []byte {
		message := []byte(text)
		if o.Hash == crypto.SHA512 {
			sum := sha512.Sum512(message)
			message = sum[:]
		}
		return must(edKey.Sign(rand.Reader, message, o))
	}
}

// ofLength is a good token of login's of n bytes.
func (m maker) ofLength(n int) string {
	for spaces := range 4 { // base64 has no text of 4k+1 digits
		for filler := n * 3 / 4; filler > n/2; filler-- {
			if 43+2+digits(len(header("HS256"))+spaces)+digits(len(m.claims(login, `"x":""`))+filler) != n {
				continue
			}
			h := strings.Replace(header("HS256"), "{", "{"+strings.Repeat(" ", spaces), 1)
			return signed("HS256", secret, h, m.claims(login, `"x":"`+strings.Repeat("x", filler)+`"`))
		}
	}
	panic("bug: no token has that length")
}

func digits(bytes int) int { return base64.RawURLEncoding.EncodedLen(bytes) }

// sign256 is the tag of any text under login's secret.
func sign256(text string) string {
	return b64(string(must(jwt.SigningMethodHS256.Sign(text, secret))))
}

// spareHeader and spareClaims spell a part with a spare bit set, and sign that.
func spareHeader(m maker) string {
	t := signed("HS256", secret, `{"alg":"HS256" }`, m.claims(login)) // 16 bytes: four bits to spare
	return resign(loose(t, 0))
}

func spareClaims(m maker) string {
	for pad := range 3 {
		t := m.hs(`"p":"` + strings.Repeat("p", pad) + `"`)
		if len(part(t, 1))%4 != 0 {
			return resign(loose(t, 1))
		}
	}
	panic("bug: no length leaves bits to spare")
}

func resign(token string) string {
	text := part(token, 0) + "." + part(token, 1)
	return text + "." + sign256(text)
}

// leadingZero is a token whose signature begins with a byte of zero, as one in
// 256 does. Its jti was found by trying; it ends in the year 2096.
func leadingZero() string {
	claims := fmt.Sprintf(`{"iss":%q,"sub":"priya123","exp":4000000000,"jti":"%d"}`, rsa256, leadingZeroID)
	t := signed("RS256", rsaKey, header("RS256"), claims)
	if decode(part(t, 2))[0] != 0 {
		panic("bug: the signature does not begin with zero")
	}
	return t
}

const leadingZeroID = 461

// plusModulus is a token whose signature has the modulus added, and still as many
// bytes.
func plusModulus(m maker) string {
	for n := range 100 {
		t := signed("RS256", rsaKey, header("RS256"), m.claims(rsa256, fmt.Sprintf(`"jti":"%d"`, n)))
		sum := new(big.Int).Add(new(big.Int).SetBytes(decode(part(t, 2))), rsaKey.N)
		if sum.BitLen() <= rsaKey.N.BitLen() {
			return with(t, 2, b64(string(sum.FillBytes(make([]byte, rsaKey.Size())))))
		}
	}
	panic("bug: no signature leaves room for the modulus")
}

// smallRSA is a key that no issuer may have.
var smallRSA = sync.OnceValue(func() *rsa.PrivateKey {
	return must(rsa.GenerateKey(rand.Reader, 1024)) //nolint:gosec // G403: that it is too small is the point
})
