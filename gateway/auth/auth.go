package auth

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Method is how a caller identified itself.
type Method string

// The methods.
const (
	MethodJWT        Method = "jwt"         // a token in Authorization: Bearer
	MethodCookie     Method = "cookie"      // a token in a cookie
	MethodAPIKey     Method = "api_key"     // an API key
	MethodClientCert Method = "client_cert" // the certificate of a TLS connection
)

// Methods lists every Method.
func Methods() []Method { return []Method{MethodJWT, MethodCookie, MethodAPIKey, MethodClientCert} }

// Principal is who is calling. Every text is valid UTF-8 without control
// characters, at most 256 bytes long (User of a key without one: 4 more) and
// fit for a header field.
type Principal struct {
	Method Method
	User   string // never empty; "key:" and the key's id for a key that names none
	Tenant string // empty if the credential names none
	Plan   string // what the credential says; empty if nothing
	KeyID  string // the API key's id; empty for tokens
	// Scopes are the words that the credential carries for routes that ask for
	// some; shared between requests, not to be changed.
	Scopes []string
	// Routes are the names of the routes that an API key is for; empty: any.
	// Shared between requests, not to be changed.
	Routes []string
	// Claims are those of Options.TokenClaims that the token has; shared between
	// requests, not to be changed.
	Claims []Claim
	// SameOrigin says that a browser adds the credential unasked, also to what pages of
	// other sites have it send: such requests are not the caller's own.
	SameOrigin bool
	// Expires is the first instant at which the credential is no longer good, leeway
	// included; the zero time: never.
	Expires time.Time
}

// Bounds on what is looked at. Longer credentials are refused before anything
// is computed from them.
const (
	MaxTokenBytes = 8 << 10 // a token
	MaxKeyBytes   = 1 << 10 // an API key
)

// DefaultKeyHeader is the field API keys come in when Options names none.
const DefaultKeyHeader = "X-API-Key"

// DefaultTokenCacheSize is how many verified tokens are remembered when
// Options does not say, at very roughly 400 bytes each.
const DefaultTokenCacheSize = 10_000

// Options is the configuration of an Authenticator. The zero value knows no
// credential at all.
type Options struct {
	// Realm stands in the challenges; default gateway.
	Realm string
	// Issuers are those whose tokens count. None: tokens are not looked at,
	// and Authorization: Bearer is the upstream's business.
	Issuers []Issuer
	// Scopes and TokenClaims are what is asked of tokens, and so all that is kept of
	// what they grant: words, and claims with the values that matter.
	Scopes      []string
	TokenClaims []Claim
	// APIKeys says that API keys are configured, even if the list is empty.
	APIKeys bool
	// Keys are the API keys; it must be empty unless APIKeys is set.
	Keys []Key
	// KeyTable is asked for keys that are not in Keys; nil: nobody is. APIKeys must be
	// set.
	KeyTable KeyTable
	// UseLog notes which keys are used with success; nil: nobody does.
	UseLog *UseLog
	// KeyHeader is the field API keys come in; default X-API-Key.
	KeyHeader string
	// KeyQuery is the parameter of the query that API keys may come in too; empty:
	// none. Of letters, digits and - . _ ~ only.
	KeyQuery string
	// ClientCerts are the client certificates that count; nil: none is looked at.
	ClientCerts *ClientCerts
	// TokenCacheSize is how many verified tokens are remembered, and how many
	// client certificates; 0 means DefaultTokenCacheSize, negative is an error.
	TokenCacheSize int
	// Previous is the Authenticator this one replaces, or nil. Keys that are
	// in both (same id, same digest) stay known, and so do tokens if nothing
	// about the issuers changed but what their key sources hold.
	Previous *Authenticator
	// Now is the clock; default time.Now. Tokens and keys speak of calendar
	// time, so this is the wall clock.
	Now func() time.Time
}

// Check says how strict one look is.
type Check struct {
	// OnlyKnown lets pass only what this Authenticator (or its predecessor)
	// has verified before: a token in the cache, a key that was used with
	// success. It is for addresses that failed too often: guesses are then not
	// looked at, while good callers behind the same address keep working.
	OnlyKnown bool
	// ClientIP is whose address the request comes from. A key that is for some
	// addresses is refused from all others, and from none (the zero Addr).
	ClientIP netip.Addr
}

// Authenticator turns credentials into principals. It never changes but for
// its memory of what it verified, and is safe for concurrent use. It starts
// no goroutine and needs no Close.
type Authenticator struct {
	tokens     *tokens // nil: not configured
	keys       *keys   // nil: not configured
	certs      *certs  // nil: not configured
	challenges []string
	now        func() time.Time
}

// New validates o and returns an Authenticator. The error names every mistake.
// Of o, it keeps Now and the public keys, which must not be changed; all else
// is copied.
func New(o Options) (*Authenticator, error) {
	var errs []error
	a := &Authenticator{now: o.Now}
	if a.now == nil {
		a.now = time.Now
	}
	if o.Realm == "" {
		o.Realm = "gateway"
	}
	if err := checkRealm(o.Realm); err != nil {
		errs = append(errs, err)
	}
	if o.TokenCacheSize < 0 {
		errs = append(errs, fmt.Errorf("token cache size: want 0 or more, got %d", o.TokenCacheSize))
	} else if o.TokenCacheSize == 0 {
		o.TokenCacheSize = DefaultTokenCacheSize
	}
	if len(o.Issuers) > 0 {
		t, err := newTokens(o.Issuers, a.now)
		errs = append(errs, err)
		if t != nil {
			errs = append(errs, t.ask(o.Scopes, o.TokenClaims))
		}
		a.tokens = t
	}
	if o.APIKeys {
		k, err := newKeys(o)
		errs = append(errs, err)
		a.keys = k
	} else if len(o.Keys) > 0 {
		errs = append(errs, errors.New("api keys: there are keys, but API keys are not configured"))
	}
	if o.ClientCerts != nil {
		c, err := newCerts(*o.ClientCerts)
		errs = append(errs, err)
		a.certs = c
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if a.certs != nil {
		a.certs.inherit(o.TokenCacheSize, o.Previous)
	}
	if a.tokens != nil {
		a.tokens.cache = newTokenCache(o.TokenCacheSize)
		if p := o.Previous; p != nil && p.tokens != nil && p.tokens.sameIssuers(a.tokens) && p.tokens.cache.size == o.TokenCacheSize {
			a.tokens.cache = p.tokens.cache
		}
	}
	// Bearer is always offered: a client that presents nothing learns that this
	// is the place for credentials, whichever kinds are configured.
	a.challenges = []string{`Bearer realm="` + o.Realm + `"`}
	if a.keys != nil {
		a.challenges = append(a.challenges, `ApiKey realm="`+o.Realm+`"`)
	}
	return a, nil
}

// checkRealm refuses what a quoted-string (RFC 9110 section 5.6.4) cannot hold
// as it is.
func checkRealm(s string) error {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return fmt.Errorf("realm %q: want printable ASCII without quotes and backslashes", s)
		}
	}
	return nil
}

// Authenticate says who sent r. Only header fields and the certificates
// of r.TLS are read, and the query where Options.KeyQuery says so; nothing of r is
// changed. It takes no longer than
// cryptography does, but where a token names a key that its issuer's KeySource does
// not know: see [KeySource.Missing], and where a [KeyTable] is asked. The error is ErrNoCredentials, ErrNotKnown, or a
// *RefusedError.
func (a *Authenticator) Authenticate(r *http.Request, c Check) (Principal, error) {
	cred, ref := a.find(r)
	var p Principal
	switch {
	case ref != nil:
	case cred.method == "" && a.certs != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0:
		cred.method = MethodClientCert
		p, ref = a.certs.authenticate(r.TLS.PeerCertificates, a.now(), c)
	case cred.method == "":
		return Principal{}, ErrNoCredentials
	case cred.method == MethodAPIKey:
		p, ref = a.keys.authenticate(r.Context(), cred.value, a.now(), c)
	default:
		p, ref = a.tokens.authenticate(r.Context(), cred, a.now(), c)
	}
	switch {
	case ref == nil:
		return p, nil
	case c.OnlyKnown:
		// Whatever is wrong with it: this address is told nothing.
		return Principal{}, ErrNotKnown
	default:
		return Principal{}, ref.as(cred.method)
	}
}

// Challenges returns the values of the WWW-Authenticate field (RFC 9110
// section 11.6.1) of every 401: they depend on the configuration alone, never
// on what was wrong. The caller must not change the slice.
func (a *Authenticator) Challenges() []string { return a.challenges }

// isToken says whether s is a token of RFC 9110 section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		if !isTokenChar(s[i]) {
			return false
		}
	}
	return s != ""
}

func isTokenChar(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
