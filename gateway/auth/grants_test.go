package auth_test

import (
	"reflect"
	"strings"
	"testing"

	"bouncer/gateway/auth"
)

// asking is an authenticator that is asked for some scopes and claims.
func asking(t testing.TB) *auth.Authenticator {
	i := hs256()
	i.Claims.Scopes = "scope"
	return newAuth(t, auth.Options{
		Issuers: []auth.Issuer{i}, Scopes: []string{"read", "write", "urn:x:all"},
		TokenClaims: []auth.Claim{
			{Name: "role", Value: "admin"}, {Name: "role", Value: "owner"}, {Name: "realm.role", Value: "admin"},
			{Name: "tier", Value: int64(3)}, {Name: "tier", Value: "3"}, {Name: "email_verified", Value: true}, {Name: "a.b", Value: int64(-1)},
		},
	})
}

// The scope claim comes in two forms, and of another type the token is bad.
func TestScopesOfATokenAreReadWhole(t *testing.T) {
	a := asking(t)
	many := strings.Repeat("x ", 1000)
	for name, tt := range map[string]struct {
		claim any
		want  []string
		bad   bool
	}{
		"none":                       {claim: nil},
		"empty":                      {claim: ""},
		"one":                        {claim: "read", want: []string{"read"}},
		"words":                      {claim: "write openid read", want: []string{"read", "write"}},
		"twice, with spaces":         {claim: "  read   read ", want: []string{"read"}},
		"a list":                     {claim: []string{"write", "read", "openid"}, want: []string{"read", "write"}},
		"an empty list":              {claim: []string{}},
		"a list with words in words": {claim: []string{"read write"}},
		"another case":               {claim: "READ"},
		"a longer word":              {claim: "reader read.all"},
		"a tab is no space":          {claim: "read\twrite"},
		"commas are no spaces":       {claim: "read,write"},
		"a thousand":                 {claim: many + "urn:x:all", want: []string{"urn:x:all"}},
		"a number":                   {claim: 7, bad: true},
		"true":                       {claim: true, bad: true},
		"an object":                  {claim: map[string]any{"read": true}, bad: true},
		"a list with a number":       {claim: []any{"read", 7}, bad: true},
		"a list in a list":           {claim: []any{[]string{"read"}}, bad: true},
		"a list with null":           {claim: []any{nil, "read"}, bad: true},
	} {
		r := bearer(token("scope", tt.claim))
		if tt.bad {
			if got := reason(t, a, r); got != string(auth.ReasonBadClaim) {
				t.Errorf("%s: %s, want a refusal", name, got)
			}
			continue
		}
		for range 2 { // the second time it is known
			p, err := a.Authenticate(r, auth.Check{})
			if err != nil || len(p.Scopes) != len(tt.want) || len(tt.want) > 0 && !reflect.DeepEqual(p.Scopes, tt.want) {
				t.Errorf("%s: %q, %v; want %q", name, p.Scopes, err, tt.want)
			}
		}
	}
}

// A token that passes where nobody asks for scopes still passes, whatever it calls scope.
func TestAScopeThatNobodyAsksForIsNotLookedAt(t *testing.T) {
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{hs256()}})
	for _, odd := range []any{7, true, map[string]any{"a": 1}, []any{1}} {
		p, err := a.Authenticate(bearer(token("scope", odd, "role", odd)), auth.Check{})
		if err != nil || p.Scopes != nil || p.Claims != nil {
			t.Errorf("%v: %+v, %v", odd, p, err)
		}
	}
}

// Claims are compared with their type, alone or in a list, and only those that
// somebody asks for are kept. What a claim is called is the exact name first.
func TestClaimsOfATokenAreComparedTyped(t *testing.T) {
	a := asking(t)
	is := func(name string, v any) auth.Claim { return auth.Claim{Name: name, Value: v} }
	for name, tt := range map[string]struct {
		claims []any
		want   []auth.Claim
	}{
		"none":                 {},
		"a string":             {[]any{"role", "admin"}, []auth.Claim{is("role", "admin")}},
		"another string":       {[]any{"role", "Admin"}, nil},
		"a list":               {[]any{"role", []string{"guest", "owner", "admin"}}, []auth.Claim{is("role", "owner"), is("role", "admin")}},
		"a list in a list":     {[]any{"role", []any{[]string{"admin"}}}, nil},
		"an object":            {[]any{"role", map[string]any{"admin": true}}, nil},
		"words in a string":    {[]any{"role", "admin owner"}, nil},
		"a number":             {[]any{"tier", 3}, []auth.Claim{is("tier", int64(3))}},
		"a number as text":     {[]any{"tier", "3"}, []auth.Claim{is("tier", "3")}},
		"a fraction":           {[]any{"tier", 3.5}, nil},
		"true":                 {[]any{"email_verified", true}, []auth.Claim{is("email_verified", true)}},
		"true as text":         {[]any{"email_verified", "true"}, nil},
		"one for true":         {[]any{"email_verified", 1}, nil},
		"in an object":         {[]any{"realm", map[string]any{"role": "admin"}}, []auth.Claim{is("realm.role", "admin")}},
		"by its exact name":    {[]any{"realm.role", "admin"}, []auth.Claim{is("realm.role", "admin")}},
		"the exact name first": {[]any{"realm.role", "guest", "realm", map[string]any{"role": "admin"}}, nil},
		"through a string":     {[]any{"realm", "admin"}, nil},
		"negative":             {[]any{"a", map[string]any{"b": -1}}, []auth.Claim{is("a.b", int64(-1))}},
	} {
		p, err := a.Authenticate(bearer(token(tt.claims...)), auth.Check{})
		if err != nil || !reflect.DeepEqual(p.Claims, tt.want) {
			t.Errorf("%s: %v, %v; want %v", name, p.Claims, err, tt.want)
		}
	}
	// 3.0 and 3e0 are 3 to every reader of JSON; 2^53+1 is another number to some.
	for written, want := range map[string]bool{"3": true, "3.0": true, "3e0": true, "0.3e1": true, "3.0000001": false, "9007199254740993": false, "1e400": false} {
		text := signRaw("HS256", secretA, `{"alg":"HS256"}`, `{"iss":"`+issuerA+`","sub":"u","exp":1796080000,"tier":`+written+`}`)
		p, err := a.Authenticate(bearer(text), auth.Check{})
		if err != nil || (len(p.Claims) == 1) != want {
			t.Errorf("tier %s: %v, %v", written, p.Claims, err)
		}
	}
}

// A known token costs a look-up, whatever it grants; and who asks for more than the
// configuration before looks at every token anew.
func TestWhatATokenGrantsIsReadOnce(t *testing.T) {
	a := asking(t)
	r := bearer(token("scope", "read write", "role", []string{"admin", "owner"}))
	if _, err := a.Authenticate(r, auth.Check{}); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = a.Authenticate(r, auth.Check{OnlyKnown: true}) }); n > 0 {
		t.Errorf("a known token that grants something: %v allocations", n)
	}
	i := hs256()
	i.Claims.Scopes = "scope"
	next := func(scopes []string, claims []auth.Claim, previous *auth.Authenticator) (*auth.Authenticator, bool) {
		b := newAuth(t, auth.Options{Issuers: []auth.Issuer{i}, Scopes: scopes, TokenClaims: claims, Previous: previous})
		_, err := b.Authenticate(r, auth.Check{OnlyKnown: true})
		return b, err == nil
	}
	b, known := next([]string{"read"}, nil, a)
	if known {
		t.Error("another list of scopes, and the token is known without them")
	}
	if p, err := b.Authenticate(r, auth.Check{}); err != nil || !reflect.DeepEqual(p.Scopes, []string{"read"}) || p.Claims != nil {
		t.Errorf("verified anew: %+v, %v", p, err)
	}
	if b, known = next([]string{"read"}, nil, b); !known {
		t.Error("the same list, and the token is not known")
	}
	if _, known = next([]string{"read"}, []auth.Claim{{Name: "tier", Value: int64(3)}}, b); known {
		t.Error("another claim, and the token is known without it")
	}
	if _, err := auth.New(auth.Options{Issuers: []auth.Issuer{i}, TokenClaims: []auth.Claim{{Name: "a", Value: 1.5}}}); err == nil {
		t.Error("a claim of a type that is never compared is taken")
	}
}
