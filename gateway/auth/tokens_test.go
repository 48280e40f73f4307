package auth_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/auth"
	"bouncer/gateway/auth/tokentest"
)

// Every token of the table gets its verdict, in the header and in the cookie,
// whichever comes first: where a token comes from changes nothing, and neither
// does what is remembered of it.
func TestEveryTokenHasItsVerdict(t *testing.T) {
	table := tokentest.Table(now)
	if len(table) < 120 {
		t.Errorf("%d tokens: half the table is gone", len(table))
	}
	header := func(a *auth.Authenticator, text string) string {
		return reason(t, a, request("Authorization: Bearer "+text))
	}
	cookie := func(a *auth.Authenticator, text string) string {
		return reason(t, a, request("Cookie: "+tokentest.Cookie+"="+text))
	}
	headerFirst := newAuth(t, auth.Options{Issuers: tokentest.Issuers()})
	cookieFirst := newAuth(t, auth.Options{Issuers: tokentest.Issuers()})
	names := map[string]bool{}
	for _, tok := range table {
		if names[tok.Name] || tok.Name == "" || tok.Why == "" {
			t.Errorf("%q: a name that is there twice, or a row that does not say why", tok.Name)
		}
		names[tok.Name] = true
		for _, look := range []struct {
			how string
			got string
		}{
			{"in the header", header(headerFirst, tok.Text)},
			{"in the cookie, after the header", cookie(headerFirst, tok.Text)},
			{"in the cookie", cookie(cookieFirst, tok.Text)},
			{"in the header, after the cookie", header(cookieFirst, tok.Text)},
		} {
			if look.got != tok.Want {
				t.Errorf("%s, %s: got %s, want %s (%s)", tok.Name, look.how, look.got, tok.Want, tok.Why)
			}
		}
	}
}

// The same keys out of a JWK set give the same verdicts. Only a kid then counts:
// the sets of this test have no names.
func TestEveryTokenHasItsVerdictWithKeySets(t *testing.T) {
	list := tokentest.Issuers()
	for n, i := range list {
		var keys []map[string]string
		for _, k := range i.PublicKeys {
			keys = append(keys, jwk("", "", k))
		}
		if len(keys) > 0 {
			list[n].PublicKeys, list[n].KeySet = nil, auth.FixedKeys(keySet(keys...))
		}
	}
	a := newAuth(t, auth.Options{Issuers: list})
	for _, tok := range tokentest.Table(now) {
		want := tok.Want
		if _, good := tok.Accepted(); (good || want == string(auth.ReasonBadSignature)) && namesKey(tok.Text) {
			want = string(auth.ReasonUnknownKeyID)
		}
		if got := reason(t, a, bearer(tok.Text)); got != want {
			t.Errorf("%s: got %s, want %s (%s)", tok.Name, got, want, tok.Why)
		}
	}
}

// namesKey says whether a token that can be read is for a public key and names it.
func namesKey(text string) bool {
	head, _, _ := strings.Cut(text, ".")
	var h struct{ Alg, Kid string }
	return json.Unmarshal(must(base64.RawURLEncoding.DecodeString(head)), &h) == nil && h.Kid != "" && h.Alg[0] != 'H'
}

// No two rows are one token: each stands for a fault of its own.
func TestTokensAreDistinct(t *testing.T) {
	seen := map[string]string{}
	for _, tok := range tokentest.Table(now) {
		if first, twice := seen[tok.Text]; twice {
			t.Errorf("%s is the token of %s", tok.Name, first)
		}
		seen[tok.Text] = tok.Name
	}
}

// The examples that the RFC prints pass, in their time.
func TestPublishedExamples(t *testing.T) {
	then := &now1{}
	a := newAuth(t, auth.Options{Issuers: tokentest.Issuers(), Now: then.now})
	for name, text := range map[string]string{"A.2": tokentest.PublishedRS256, "A.3": tokentest.PublishedES256} {
		for after, want := range map[time.Duration]string{-1: "user joe", 0: "expired"} {
			then.t = time.Unix(tokentest.PublishedExpiry, 0).Add(after)
			if got := reason(t, a, bearer(text)); got != want {
				t.Errorf("RFC 7515 %s, %v after its end: %s, want %s", name, after, got, want)
			}
		}
	}
}
