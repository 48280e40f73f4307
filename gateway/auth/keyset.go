package auth

import (
	"context"
	"crypto"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"bouncer/gateway/jwks"
)

// A KeySource has the keys of an issuer, as a JWK set (RFC 7517). It is safe for
// concurrent use.
type KeySource interface {
	// Keys is the set in force; nil if there is none to trust. It is asked with
	// every request and must cost nothing. While nothing changes it is the same
	// pointer.
	Keys() *jwks.Set
	// Missing is the set in force after the source has had the chance to learn of
	// a key that was not in it. Whoever sends tokens decides how often it is
	// called: it must bound by itself what that costs, and how long it takes. heard is
	// false if the source could not learn in time whether there are other keys now,
	// so that nobody knows whether the token is bad.
	Missing(ctx context.Context) (s *jwks.Set, heard bool)
	// Doubt says that a key of the set did not verify a token that names it: the
	// issuer may have put another in its place. It must not block, and bounds by
	// itself what comes of it.
	Doubt()
}

// FixedKeys is a KeySource of a set that never changes, such as that of a file.
// The set must not be nil.
func FixedKeys(s *jwks.Set) KeySource { return fixedKeys{s} }

type fixedKeys struct{ set *jwks.Set }

// Keys implements KeySource.
func (f fixedKeys) Keys() *jwks.Set { return f.set }

// Missing implements KeySource.
func (f fixedKeys) Missing(context.Context) (*jwks.Set, bool) { return f.set, true }

// Doubt implements KeySource.
func (f fixedKeys) Doubt() {}

// A proof is which key of an issuer's set verified a token.
type proof struct {
	set       *jwks.Set
	public    crypto.PublicKey
	id        string // the key's own
	named     bool   // the token names the key; else it was found by trying
	algorithm string // the token's
}

// Bounds on what a token may ask of a set.
const (
	// maxKeyID is the length of the longest kid. Those in use are thumbprints,
	// serial numbers or URLs.
	maxKeyID = 256
	// maxTried is how many keys are tried on a token that names none: each costs
	// as much as a signature.
	maxTried = 8
)

// keyID is the kid of a header (RFC 7515 section 4.1.4), empty if there is none.
func keyID(header map[string]any) (string, *refusal) {
	v, ok := header["kid"]
	if !ok {
		return "", nil
	}
	kid, ok := v.(string)
	switch {
	case !ok:
		return "", refuse(ReasonBadHeader, "kid is not a string")
	case len(kid) > maxKeyID:
		return "", refuse(ReasonBadHeader, "kid is %d bytes long; at most %d", len(kid), maxKeyID)
	}
	return kid, nil
}

// choose finds the key of the issuer's set that is to verify tok: the one that
// kid names, or, if it names none, the one that does verify it.
func (i *issuer) choose(ctx context.Context, tok *jwt.Token, kid string) (proof, *refusal) {
	alg := tok.Method.Alg()
	set := i.source.Keys()
	found, others := candidates(set, kid, alg)
	heard := true
	if len(found) == 0 && !others {
		set, heard = i.source.Missing(ctx)
		found, others = candidates(set, kid, alg)
	}
	switch {
	case len(found) > 0:
	case set == nil:
		return proof{}, refuse(ReasonKeysUnavailable, "the keys of issuer %s are not known: they were never fetched, or too long ago to be trusted", i.name)
	case others:
		i.source.Doubt()
		return proof{}, refuse(ReasonBadAlgorithm, "the key of issuer %s that the token names (kid) is for another algorithm", i.name)
	case !heard:
		return proof{}, refuse(ReasonKeysUnavailable, "the key set of issuer %s that is known has no key for the token, and the provider has not said yet whether there is a newer one", i.name)
	case kid == "":
		return proof{}, refuse(ReasonUnknownKeyID, "the token names no key (kid), and the key set of issuer %s has none for its algorithm", i.name)
	default:
		return proof{}, refuse(ReasonUnknownKeyID, "the key set of issuer %s has no key that is called as the token's kid says", i.name)
	}
	key := found[0]
	if len(found) > 1 {
		// The library could try them all, but would not say which one it was.
		text := tok.Raw[:strings.LastIndexByte(tok.Raw, '.')]
		for _, k := range found {
			if tok.Method.Verify(text, tok.Signature, k.Public) == nil {
				key = k
				break
			}
		}
	}
	return proof{set: set, public: key.Public, id: key.ID, named: kid != "", algorithm: alg}, nil
}

// candidates are the keys of a set that may verify tokens of an algorithm with
// this kid, or, if that is empty, without one; at most maxTried. others says
// that there are keys of this kid, and none of them may. That a JWK is for one
// algorithm alone (RFC 7517 section 4.4) binds us as well.
func candidates(set *jwks.Set, kid, alg string) (found []jwks.Key, others bool) {
	if set == nil {
		return nil, false
	}
	keys := set.Keys()
	if kid != "" {
		keys = set.Find(kid)
	}
	a := algorithms[alg]
	for _, k := range keys {
		if a.fits(k.Public) && (k.Algorithm == "" || k.Algorithm == alg) && len(found) < maxTried {
			found = append(found, k)
		}
	}
	return found, kid != "" && len(keys) > 0 && len(found) == 0
}

// stillInForce reports whether the key that verified a remembered token is one
// that would still be asked. A set that has changed otherwise costs the token
// one look, and not its signature: it is noted in v and in the cache. What a
// changed set no longer has ends with it.
func (t *tokens) stillInForce(i *issuer, digest [32]byte, v *verified) bool {
	set := i.source.Keys()
	if set == v.proof.set {
		return true
	}
	kid := ""
	if v.proof.named {
		kid = v.proof.id
	}
	keys, _ := candidates(set, kid, v.proof.algorithm)
	if !slices.ContainsFunc(keys, func(k jwks.Key) bool { return jwks.SameKey(k.Public, v.proof.public) }) {
		return false
	}
	v.proof.set = set
	t.cache.add(digest, *v)
	return true
}
