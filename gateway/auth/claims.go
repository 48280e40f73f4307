package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

const (
	// maxJSONDepth is how deep objects and lists of a token may nest.
	maxJSONDepth = 32
	// maxDate is the end of the year 9999 in seconds since 1970. A larger
	// number is a date in milliseconds, or nonsense.
	maxDate = 253402300799
	// maxLifeYears is how far ahead exp may be.
	maxLifeYears = 100
)

// parseObject reads one JSON object as golang-jwt would, but refuses what two
// readers could understand in two ways: a member that stands twice, also when
// it is spelt with escapes, and bytes that are not UTF-8 (RFC 8259 section 4
// and 8.1). Numbers are json.Number.
func parseObject(b []byte) (map[string]any, error) {
	switch {
	case !utf8.Valid(b):
		return nil, errors.New("not valid UTF-8")
	case !json.Valid(b): // the decoder's Token is more lenient
		return nil, errors.New("not valid JSON")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	v, err := parseValue(d, 0)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	return m, nil
}

func parseValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxJSONDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, jsonError(err)
	}
	switch t {
	case json.Delim('{'):
		m := map[string]any{}
		for d.More() {
			t, err := d.Token()
			if err != nil {
				return nil, jsonError(err)
			}
			name, ok := t.(string)
			if !ok {
				return nil, errors.New("not valid JSON")
			}
			if _, twice := m[name]; twice {
				return nil, errors.New("a member stands there twice")
			}
			if m[name], err = parseValue(d, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = d.Token()
		return m, jsonError(err)
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := parseValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, jsonError(err)
	}
	return t, nil
}

// jsonError hides the text of a JSON error, which quotes its input.
func jsonError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("JSON ends too early")
	default:
		return errors.New("not valid JSON")
	}
}

// tokenClaims is a token's claim set. It implements jwt.Claims, so that the
// library checks the times and the audience, and is strict where the library's
// own MapClaims is lenient: exp must be there and a number (0 counts), dates
// must be dates.
type tokenClaims struct {
	all           map[string]any
	exp, nbf, iat *jwt.NumericDate
	aud           []string
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *tokenClaims) UnmarshalJSON(b []byte) error {
	m, err := parseObject(b)
	if err != nil {
		return refuse(ReasonMalformed, "the claims are %v", err)
	}
	c.all = m
	return nil
}

// issuer returns iss, which is not verified yet: it only chooses whose keys
// must verify the token.
func (c *tokenClaims) issuer() (string, error) {
	switch v := c.all["iss"].(type) {
	case string:
		return v, nil
	case nil:
		return "", refuse(ReasonMissingClaim, "the token has no iss")
	default:
		return "", refuse(ReasonBadClaim, "iss is not a string")
	}
}

// check reads the registered claims (RFC 7519 section 4.1) whose types the
// library would not insist on.
func (c *tokenClaims) check(now time.Time, withAudience bool) *refusal {
	var ref *refusal
	date := func(name string) *jwt.NumericDate {
		v, ok := c.all[name]
		if !ok || ref != nil {
			return nil
		}
		t, err := numericDate(v)
		if err != nil {
			ref = refuse(ReasonBadClaim, "%s %v", name, err)
			return nil
		}
		return &jwt.NumericDate{Time: t}
	}
	c.exp, c.nbf, c.iat = date("exp"), date("nbf"), date("iat")
	if ref != nil {
		return ref
	}
	if c.exp == nil {
		return refuse(ReasonMissingClaim, "the token has no exp")
	}
	if c.exp.After(now.AddDate(maxLifeYears, 0, 0)) {
		return refuse(ReasonBadClaim, "exp is more than %d years ahead", maxLifeYears)
	}
	if !withAudience {
		return nil
	}
	switch v := c.all["aud"].(type) {
	case string:
		c.aud = []string{v}
	case []any:
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return refuse(ReasonBadClaim, "aud holds something that is not a string")
			}
			c.aud = append(c.aud, s)
		}
	case nil: // the validator says that none fits
	default:
		return refuse(ReasonBadClaim, "aud is neither a string nor a list")
	}
	return nil
}

// numericDate reads a NumericDate (RFC 7519 section 2): a JSON number of
// seconds, fractions allowed.
func numericDate(v any) (time.Time, error) {
	n, ok := v.(json.Number)
	if !ok {
		return time.Time{}, errors.New("is not a number")
	}
	f, err := n.Float64()
	switch {
	case err != nil || math.Abs(f) > 1e15:
		return time.Time{}, errors.New("is no date")
	case math.Abs(f) > maxDate:
		return time.Time{}, errors.New("is no date in seconds; it looks like milliseconds")
	}
	whole, frac := math.Modf(f)
	return time.Unix(int64(whole), int64(frac*1e9)), nil
}

// GetExpirationTime implements jwt.Claims.
func (c *tokenClaims) GetExpirationTime() (*jwt.NumericDate, error) { return c.exp, nil }

// GetIssuedAt implements jwt.Claims.
func (c *tokenClaims) GetIssuedAt() (*jwt.NumericDate, error) { return c.iat, nil }

// GetNotBefore implements jwt.Claims.
func (c *tokenClaims) GetNotBefore() (*jwt.NumericDate, error) { return c.nbf, nil }

// GetIssuer implements jwt.Claims.
func (c *tokenClaims) GetIssuer() (string, error) { return c.issuer() }

// GetSubject implements jwt.Claims. Nothing asks for it: the user is a claim
// of the operator's choice.
func (c *tokenClaims) GetSubject() (string, error) { return "", nil }

// GetAudience implements jwt.Claims.
func (c *tokenClaims) GetAudience() (jwt.ClaimStrings, error) { return c.aud, nil }

// claimPath is the name of a claim as configured: the exact name first, then
// each dot goes one object down.
type claimPath struct {
	name  string
	parts []string // nil: the name has no dot
}

func newClaimPath(name string) claimPath {
	p := claimPath{name: name}
	if strings.Contains(name, ".") {
		p.parts = strings.Split(name, ".")
	}
	return p
}

// find returns the claim, nil if it is absent; whole is false if the path leads
// through something that is not an object.
func (p claimPath) find(claims map[string]any) (v any, whole bool) {
	v, ok := claims[p.name]
	if ok || p.parts == nil {
		return v, true
	}
	v = claims
	for _, part := range p.parts {
		if v == nil {
			break
		}
		m, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		v = m[part]
	}
	return v, true
}

func (p claimPath) leadsNowhere() *refusal {
	return refuse(ReasonBadClaim, "the claim %s leads through something that is not an object", p.name)
}

// identity returns the claim, which must be a string fit for an identity. It
// is "" if the claim is absent, null or empty: OpenID Connect (Core section
// 5.3.2) calls all three "not returned".
func (p claimPath) identity(claims map[string]any) (string, *refusal) {
	if p.name == "" {
		return "", nil
	}
	v, whole := p.find(claims)
	if !whole {
		return "", p.leadsNowhere()
	}
	if v == nil {
		return "", nil
	}
	s, ok := v.(string)
	if !ok {
		return "", refuse(ReasonBadClaim, "the claim %s is not a string", p.name)
	}
	if err := checkIdentity(s); err != nil {
		return "", refuse(ReasonBadClaim, "the claim %s %v", p.name, err)
	}
	return s, nil
}
