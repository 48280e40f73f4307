package auth

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"bouncer/gateway/jwks"
)

// Issuer is one issuer of tokens.
type Issuer struct {
	// Issuer is compared with iss byte for byte; each issuer stands once.
	Issuer string
	// Audience are the audiences of which a token must have one; none: aud is
	// not looked at.
	Audience []string
	// Algorithms is the allow-list, at least one of HS256, HS384, HS512 (with
	// Secrets) or of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384,
	// ES512, EdDSA (with PublicKeys or KeySet). The two kinds never stand
	// together.
	Algorithms []string
	// PublicKeys are *rsa.PublicKey of at least 2048 bits, *ecdsa.PublicKey on
	// the algorithm's curve, or ed25519.PublicKey. Any of them verifies.
	PublicKeys []crypto.PublicKey
	// KeySet has the public keys in place of PublicKeys, and may change; nil: it
	// is not used. There, a token that names a key (kid) is verified by that one
	// alone.
	KeySet KeySource
	// Secrets are the HMAC secrets, bytes as they are (nothing is decoded here), at
	// least as long as the hash (RFC 7518 section 3.2). Any of them verifies, so
	// that they can be rotated.
	Secrets [][]byte
	// Cookie is a cookie in which the issuer's tokens may come, besides
	// Authorization: Bearer; empty: none. Issuers may share one.
	Cookie string
	// CookieCrossOrigin lets a token in the cookie count for whatever page had the
	// browser send it; else its Principal is SameOrigin.
	CookieCrossOrigin bool
	// Leeway is how far clocks may differ, for exp, nbf and iat; not negative.
	Leeway time.Duration
	// Claims says which claims carry the identity.
	Claims Claims
}

// Claims names the claims that carry the identity: the exact name first, then
// each dot goes one object down (realm.org).
type Claims struct {
	User   string // default sub; the claim must be a string that is not empty
	Tenant string // empty: tokens name no tenant
	Plan   string // empty: tokens name no plan
	Scopes string // the claim of the scopes, a string of words or a list; empty: it is not looked at
}

// algorithm says which keys fit an algorithm (RFC 7518 section 3.1, RFC 8037).
type algorithm struct {
	family string
	curve  elliptic.Curve // for ECDSA
	secret int            // for HMAC: the least length of a secret, in bytes
}

var algorithms = map[string]algorithm{
	"HS256": {family: "HMAC", secret: 32}, "HS384": {family: "HMAC", secret: 48}, "HS512": {family: "HMAC", secret: 64},
	"RS256": {family: "RSA"}, "RS384": {family: "RSA"}, "RS512": {family: "RSA"},
	"PS256": {family: "RSA"}, "PS384": {family: "RSA"}, "PS512": {family: "RSA"},
	"ES256": {family: "ECDSA", curve: elliptic.P256()}, "ES384": {family: "ECDSA", curve: elliptic.P384()}, "ES512": {family: "ECDSA", curve: elliptic.P521()},
	"EdDSA": {family: "Ed25519"},
}

// fits says whether key, which is a good one, is of the type that the algorithm
// wants.
func (a algorithm) fits(key crypto.PublicKey) bool {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return a.family == "RSA"
	case *ecdsa.PublicKey:
		return a.family == "ECDSA" && k.Curve == a.curve
	case ed25519.PublicKey:
		return a.family == "Ed25519"
	}
	return false
}

func newTokens(list []Issuer, now func() time.Time) (*tokens, error) {
	var errs []error
	t := &tokens{byName: make(map[string]int, len(list))}
	var methods []string
	for n, o := range list {
		i, err := newIssuer(o, now)
		if _, twice := t.byName[o.Issuer]; twice {
			err = errors.Join(err, errors.New("it stands there twice; its keys, algorithms and audiences are lists"))
		}
		if err != nil {
			for _, err := range flatten(err) {
				errs = append(errs, fmt.Errorf("issuer %d (%q): %w", n+1, o.Issuer, err))
			}
		}
		t.byName[o.Issuer] = n
		t.issuers = append(t.issuers, i)
		methods = append(methods, i.algorithms...)
		if i.cookie != "" && !slices.Contains(t.cookies, i.cookie) {
			t.cookies = append(t.cookies, i.cookie)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	// The parser allows what any issuer allows; the issuer's own list is applied
	// when its keys are chosen. The claims are checked after the signature, by
	// the validator of the issuer that turned out to be meant.
	t.parser = jwt.NewParser(jwt.WithValidMethods(methods), jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation())
	t.fingerprint = fingerprint(list)
	return t, nil
}

// flatten lists the errors that errors.Join put together.
func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var list []error
		for _, err := range joined.Unwrap() {
			list = append(list, flatten(err)...)
		}
		return list
	}
	return []error{err}
}

// newIssuer makes o ready. On an error the issuer is good for nothing but
// going on with looking for mistakes.
func newIssuer(o Issuer, now func() time.Time) (*issuer, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	i := &issuer{
		name: o.Issuer, algorithms: slices.Clone(o.Algorithms), audience: slices.Clone(o.Audience),
		source: o.KeySet, keys: make(map[string]jwt.VerificationKeySet, len(o.Algorithms)), cookie: o.Cookie, crossOrigin: o.CookieCrossOrigin, leeway: o.Leeway,
		tenant: newClaimPath(o.Claims.Tenant), plan: newClaimPath(o.Claims.Plan),
		scopes: newClaimPath(o.Claims.Scopes),
	}
	if o.Claims.User == "" {
		o.Claims.User = "sub"
	}
	i.user = newClaimPath(o.Claims.User)
	if o.Issuer == "" {
		bad("it has no name; want the value of iss")
	}
	if o.Leeway < 0 {
		bad("leeway: want 0 or more, got %v", o.Leeway)
	}
	if o.Cookie != "" && !isToken(o.Cookie) {
		bad("%q is not a cookie name", o.Cookie)
	}
	if slices.Contains(o.Audience, "") {
		bad("an audience is empty")
	}

	usable := make([]crypto.PublicKey, 0, len(o.PublicKeys))
	for n, k := range o.PublicKeys {
		if err := jwks.Usable(k); err != nil {
			bad("public key %d %w", n+1, err)
			continue
		}
		if !slices.ContainsFunc(o.Algorithms, func(name string) bool { return algorithms[name].fits(k) }) {
			bad("public key %d fits none of the allowed algorithms", n+1)
		}
		if slices.ContainsFunc(usable, func(other crypto.PublicKey) bool { return jwks.SameKey(other, k) }) {
			bad("public key %d stands there twice", n+1)
		}
		usable = append(usable, k)
	}

	secret, public := false, false
	if len(o.Algorithms) == 0 {
		bad("it allows no algorithm")
	}
	for n, name := range o.Algorithms {
		a, ok := algorithms[name]
		switch {
		case strings.EqualFold(name, "none"):
			bad("algorithm none proves nothing and is never allowed")
			continue
		case !ok:
			bad("there is no algorithm %q; want %s", name, strings.Join(algorithmNames(), ", "))
			continue
		case slices.Contains(o.Algorithms[:n], name):
			bad("algorithm %s stands there twice", name)
			continue
		}
		var set jwt.VerificationKeySet
		if a.secret > 0 {
			secret = true
			for n, s := range o.Secrets {
				if len(s) < a.secret {
					bad("secret %d is %d bytes long; %s wants at least %d", n+1, len(s), name, a.secret)
				}
				set.Keys = append(set.Keys, bytes.Clone(s))
			}
			if len(o.Secrets) == 0 {
				bad("%s wants a secret", name)
			}
		} else {
			public = true
			for _, k := range usable {
				if a.fits(k) {
					set.Keys = append(set.Keys, k)
				}
			}
			if len(set.Keys) == 0 && o.KeySet == nil {
				bad("%s wants a public key of its type (%s), and there is none", name, a.wants())
			}
		}
		i.keys[name] = set
	}
	i.symmetric = secret
	// Whoever knows the public key could sign for HS* with it, if the two ever
	// got mixed up.
	if secret && public || len(o.Secrets) > 0 && (len(o.PublicKeys) > 0 || o.KeySet != nil) {
		bad("HS* with secrets and algorithms with public keys never stand in one entry")
	} else if len(o.Secrets) > 0 && !secret {
		bad("there are secrets, but no algorithm uses them")
	}
	if o.KeySet != nil && len(o.PublicKeys) > 0 {
		bad("there are public keys beside a key set; want one of the two")
	}
	for n, s := range o.Secrets {
		if slices.ContainsFunc(o.Secrets[:n], func(other []byte) bool { return bytes.Equal(other, s) }) {
			bad("secret %d stands there twice", n+1)
		}
	}

	options := []jwt.ParserOption{
		jwt.WithIssuer(o.Issuer), jwt.WithExpirationRequired(), jwt.WithIssuedAt(),
		jwt.WithLeeway(o.Leeway), jwt.WithTimeFunc(now),
	}
	if len(o.Audience) > 0 {
		options = append(options, jwt.WithAudience(i.audience...))
	}
	i.validator = jwt.NewValidator(options...)
	return i, errors.Join(errs...)
}

func (a algorithm) wants() string {
	if a.curve != nil {
		return a.family + " on " + a.curve.Params().Name
	}
	return a.family
}

func algorithmNames() []string {
	names := make([]string, 0, len(algorithms))
	for name := range algorithms {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// fingerprint is over all that decides what a token means, but for what key
// sources hold: what verified under one configuration verifies the same under
// another with the same fingerprint, as long as its key is there. It is kept in
// memory only.
func fingerprint(list []Issuer) [32]byte {
	h := sha256.New()
	for _, o := range list {
		write(h, []byte(o.Issuer), []byte(o.Cookie), []byte(o.Leeway.String()),
			[]byte(o.Claims.User), []byte(o.Claims.Tenant), []byte(o.Claims.Plan), []byte(o.Claims.Scopes))
		writeList(h, o.Audience, func(s string) []byte { return []byte(s) })
		writeList(h, o.Algorithms, func(s string) []byte { return []byte(s) })
		writeList(h, o.Secrets, func(s []byte) []byte { return s })
		write(h, fmt.Append(nil, o.KeySet != nil))
		writeList(h, o.PublicKeys, func(k crypto.PublicKey) []byte {
			der, err := x509.MarshalPKIXPublicKey(k)
			if err != nil {
				panic("bug: a checked public key does not marshal: " + err.Error())
			}
			return der
		})
	}
	return [32]byte(h.Sum(nil))
}

// write hashes values so that no two sequences of values look alike.
func write(h hash.Hash, values ...[]byte) {
	for _, v := range values {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(v))))
		h.Write(v)
	}
}

func writeList[T any](h hash.Hash, list []T, as func(T) []byte) {
	write(h, binary.BigEndian.AppendUint64(nil, uint64(len(list))))
	for _, v := range list {
		write(h, as(v))
	}
}
