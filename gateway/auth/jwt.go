package auth

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// tokens verifies the tokens of all issuers.
type tokens struct {
	issuers []*issuer
	byName  map[string]int
	cookies []string // the names, each once, in the order of the issuers
	parser  *jwt.Parser
	cache   *tokenCache
	asked   asked // what is kept of what a token grants
	// fingerprint is over everything that decides what a token means, but for what
	// key sources hold.
	fingerprint [32]byte
}

// issuer is one Issuer, made ready.
type issuer struct {
	name               string
	algorithms         []string
	audience           []string
	source             KeySource                         // nil: the keys are below
	keys               map[string]jwt.VerificationKeySet // by each allowed algorithm: only keys of its type
	symmetric          bool                              // the keys are secrets
	cookie             string
	crossOrigin        bool
	leeway             time.Duration
	validator          *jwt.Validator
	user, tenant, plan claimPath
	scopes             claimPath
}

// sameIssuers says whether a token means the same to both. What key sources hold
// is not compared: with each hit it is looked at whether the key is still there.
func (t *tokens) sameIssuers(other *tokens) bool { return t.fingerprint == other.fingerprint }

// authenticate says whom a token names. How it was presented is part of the
// answer, not of what is remembered: header and cookie are the same caller.
func (t *tokens) authenticate(ctx context.Context, c credential, now time.Time, check Check) (Principal, *refusal) {
	switch {
	case c.value == "":
		return Principal{}, refuse(ReasonMalformed, "the token is empty")
	case len(c.value) > MaxTokenBytes:
		return Principal{}, refuse(ReasonOversize, "the token is %d bytes long; at most %d", len(c.value), MaxTokenBytes)
	}
	digest := digestOf(c.value)
	v, ok := t.cache.get(digest, now)
	if ok {
		if i := t.issuers[v.issuer]; i.source != nil {
			ok = t.stillInForce(i, digest, &v)
		}
	}
	if !ok {
		if check.OnlyKnown {
			return Principal{}, notKnown
		}
		var ref *refusal
		if v, ref = t.verify(ctx, c.value, now); ref != nil {
			return Principal{}, ref
		}
		t.cache.add(digest, v)
	}
	i := t.issuers[v.issuer]
	if c.method == MethodCookie && i.cookie != c.cookie {
		return Principal{}, refuse(ReasonWrongIssuer, "tokens of issuer %s do not come in the cookie %s", i.name, c.cookie)
	}
	p := v.principal
	p.Method = c.method
	p.SameOrigin = c.method == MethodCookie && !i.crossOrigin
	return p, nil
}

// verify checks a token that is not in the cache: its form, its header, its
// signature with the keys of the issuer it names, then its claims. The order
// matters: nothing that a token says is believed, and no reason that depends
// on it is given, before its signature has verified; iss only chooses the keys.
func (t *tokens) verify(ctx context.Context, token string, now time.Time) (verified, *refusal) {
	kid, ref := t.checkHeader(token)
	if ref != nil {
		return verified{}, ref
	}
	var claims tokenClaims
	var proof proof
	index := 0
	_, err := t.parser.ParseWithClaims(token, &claims, func(tok *jwt.Token) (any, error) {
		iss, err := claims.issuer()
		if err != nil {
			return nil, err
		}
		var ok bool
		if index, ok = t.byName[iss]; !ok {
			return nil, t.wrongIssuer(iss)
		}
		i := t.issuers[index]
		if m, ok := pss[tok.Method.Alg()]; ok {
			tok.Method = m
		}
		// The allow-list is the issuer's own. Its keys are sorted by algorithm and
		// typed, so that a public key can never serve as an HMAC secret.
		keys, ok := i.keys[tok.Method.Alg()]
		if !ok {
			return nil, refuse(ReasonBadAlgorithm, "issuer %s allows %s", i.name, strings.Join(i.algorithms, ", "))
		}
		if i.source == nil {
			return keys, nil
		}
		if proof, ref = i.choose(ctx, tok, kid); ref != nil {
			return nil, ref
		}
		return proof.public, nil
	})
	if err != nil {
		i := t.issuers[index]
		if proof.set != nil && errors.Is(err, jwt.ErrTokenSignatureInvalid) {
			i.source.Doubt()
		}
		return verified{}, i.fromLibrary(err)
	}
	i := t.issuers[index]
	if ref := claims.check(now, len(i.audience) > 0); ref != nil {
		return verified{}, ref
	}
	if err := i.validator.Validate(&claims); err != nil {
		return verified{}, i.invalid(err, &claims)
	}
	p, ref := i.principal(claims.all)
	if ref != nil {
		return verified{}, ref
	}
	if p.Scopes, ref = t.asked.granted(i.scopes, claims.all); ref != nil {
		return verified{}, ref
	}
	p.Claims = t.asked.has(claims.all)
	v := verified{principal: p, issuer: index, proof: proof, until: claims.exp.Add(i.leeway)}
	v.principal.Expires = v.until
	for _, d := range []*jwt.NumericDate{claims.nbf, claims.iat} {
		if d != nil && d.Add(-i.leeway).After(v.from) {
			v.from = d.Add(-i.leeway)
		}
	}
	return v, nil
}

// pss are the library's methods of RSASSA-PSS but for one thing: it takes a salt
// of any length, and RFC 7518 section 3.5 knows only that of the hash.
var pss = map[string]*jwt.SigningMethodRSAPSS{
	"PS256": {SigningMethodRSA: jwt.SigningMethodPS256.SigningMethodRSA, Options: jwt.SigningMethodPS256.Options},
	"PS384": {SigningMethodRSA: jwt.SigningMethodPS384.SigningMethodRSA, Options: jwt.SigningMethodPS384.Options},
	"PS512": {SigningMethodRSA: jwt.SigningMethodPS512.SigningMethodRSA, Options: jwt.SigningMethodPS512.Options},
}

// checkHeader checks the form of a token (JWS compact serialization, RFC 7515
// section 7.1) and its header, in ways that the library leaves open. It returns
// the name of the key (kid), empty if the token gives none.
//
// Only keys that the configuration names count, and nothing that a token points
// to is ever fetched: a header that brings a key along is refused.
func (t *tokens) checkHeader(token string) (kid string, ref *refusal) {
	head, rest, _ := strings.Cut(token, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	for _, part := range []string{head, payload, signature} {
		if !isBase64URL(part) {
			return "", refuse(ReasonMalformed, "a token is three parts of base64url with dots between them")
		}
	}
	// Strict: bits that stand for nothing must be zero, else one token could be
	// spelt in several ways.
	raw, err := base64.RawURLEncoding.Strict().DecodeString(head)
	if err != nil {
		return "", refuse(ReasonMalformed, "the header is not canonical base64url")
	}
	header, err := parseObject(raw)
	if err != nil {
		return "", refuse(ReasonMalformed, "the header is %v", err)
	}
	// RFC 7515 section 4.1.11: who does not understand an extension that crit
	// names must refuse the token. We understand none. b64 (RFC 7797) changes
	// what is signed and must not stand without crit.
	for _, name := range []string{"crit", "b64"} {
		if _, ok := header[name]; ok {
			return "", refuse(ReasonBadHeader, "the header has %s, an extension we do not know", name)
		}
	}
	for _, name := range []string{"jwk", "jku", "x5u", "x5c"} {
		if _, ok := header[name]; ok {
			return "", refuse(ReasonBadHeader, "the header has %s, a key of the token's own; only configured keys count", name)
		}
	}
	if ref := checkType(header); ref != nil {
		return "", ref
	}
	alg, ok := header["alg"].(string)
	if !ok {
		return "", refuse(ReasonMalformed, "the header has no alg")
	}
	if !slices.ContainsFunc(t.issuers, func(i *issuer) bool { return slices.Contains(i.algorithms, alg) }) {
		return "", refuse(ReasonBadAlgorithm, "no issuer allows the token's algorithm")
	}
	return keyID(header)
}

// checkType refuses the tokens that an issuer signs for another purpose with the
// same key, and that say so (RFC 8725 section 3.11): typ ends in +jwt for a
// logout token, a security event, a DPoP proof and all others that have a media
// type of their own. at+jwt is an access token (RFC 9068 section 4), and older
// issuers write JWT, something else, or nothing.
func checkType(header map[string]any) *refusal {
	v, ok := header["typ"]
	if !ok {
		return nil
	}
	typ, ok := v.(string)
	if !ok {
		return refuse(ReasonBadHeader, "typ is not a string")
	}
	// A media type; case is no difference, and application/ may be left out.
	typ = strings.TrimPrefix(strings.ToLower(typ), "application/")
	if strings.HasSuffix(typ, "+jwt") && typ != "at+jwt" {
		return refuse(ReasonBadHeader, "typ says that the token is of another kind; an access token is at+jwt or JWT")
	}
	return nil
}

// isBase64URL says whether s is not empty and consists of base64url digits. The
// decoder alone would also take line ends.
func isBase64URL(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return s != ""
}

func (t *tokens) wrongIssuer(iss string) *refusal {
	for _, i := range t.issuers {
		if strings.TrimSuffix(i.name, "/") == strings.TrimSuffix(iss, "/") {
			return refuse(ReasonWrongIssuer, "iss is %s but for the slash at its end, which counts", i.name)
		}
	}
	return refuse(ReasonWrongIssuer, "iss is none of the configured issuers")
}

// fromLibrary translates the library's errors. Their texts are left out: they
// quote the token.
func (i *issuer) fromLibrary(err error) *refusal {
	if ref, ok := errors.AsType[*refusal](err); ok {
		return ref
	}
	switch {
	case errors.Is(err, jwt.ErrTokenSignatureInvalid) && i.symmetric:
		return refuse(ReasonBadSignature, "no secret of issuer %s verifies the signature (does secret_encoding say what both sides take it for? raw takes base64 and hex as they stand)", i.name)
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return refuse(ReasonBadSignature, "no public key of issuer %s verifies the signature", i.name)
	}
	return refuse(ReasonMalformed, "the token cannot be read: a part is not canonical base64url of what belongs there")
}

// invalid says which of the checks of the library's validator failed.
func (i *issuer) invalid(err error, c *tokenClaims) *refusal {
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return refuse(ReasonExpired, "the token expired at %s", c.exp.UTC().Format(time.RFC3339))
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return refuse(ReasonNotYetValid, "the token is valid from %s (nbf)", c.nbf.UTC().Format(time.RFC3339))
	case errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return refuse(ReasonNotYetValid, "the token was issued at %s (iat); is a clock wrong?", c.iat.UTC().Format(time.RFC3339))
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return refuse(ReasonWrongAud, "none of the token's aud is %s", strings.Join(i.audience, " or "))
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing): // exp and iss are there by now
		return refuse(ReasonWrongAud, "the token has no aud; want %s", strings.Join(i.audience, " or "))
	}
	return refuse(ReasonBadClaim, "a claim does not hold")
}

// principal reads who a verified token names.
func (i *issuer) principal(claims map[string]any) (p Principal, ref *refusal) {
	if p.User, ref = i.user.identity(claims); ref != nil {
		return p, ref
	}
	switch {
	case p.User == "":
		return p, refuse(ReasonMissingClaim, "the token has no user in the claim %s", i.user.name)
	case strings.HasPrefix(p.User, keyUserPrefix):
		// Else a token could spend the budget of an API key's caller.
		return p, refuse(ReasonBadClaim, "the claim %s begins with %q, which is for callers with an API key", i.user.name, keyUserPrefix)
	}
	if p.Tenant, ref = i.tenant.identity(claims); ref != nil {
		return p, ref
	}
	p.Plan, ref = i.plan.identity(claims)
	return p, ref
}
