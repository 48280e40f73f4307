package auth_test

import (
	"crypto"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"bouncer/gateway/auth"
	"bouncer/gateway/auth/tokentest"
)

// Whatever stands in the fields: no panic, no identity without one of the
// credentials that exist, no error that tells a credential, the request left
// as it was, and no credential left after Strip.
func FuzzAuthenticate(f *testing.F) {
	issuer := hs256()
	issuer.Cookie = "session"
	public := auth.Issuer{Issuer: issuerB, Algorithms: []string{"EdDSA"}, PublicKeys: []crypto.PublicKey{edKey.Public()}}
	a := newAuth(f, auth.Options{
		Issuers: []auth.Issuer{issuer, public}, APIKeys: true, Keys: []auth.Key{key("k-2", keyPlain)},
	})
	hs, ed := token(), sign("EdDSA", edKey, nil, claims("iss", issuerB))
	good := []string{hs, ed, keyPlain}
	f.Add("", "", "", false)
	f.Add("Bearer "+hs, "", "", false)
	f.Add("bearer  "+ed, "session="+hs, keyPlain, true)
	f.Add("ApiKey "+keyPlain, "a=1; session=\""+hs+"\"; b", "", false)
	f.Add("Basic abc", "session=x; session=y", "wrong", false)
	f.Add("Bearer "+signRaw("HS256", secretA, `{"alg":"HS256"}`, `{"iss":"`+issuerA+`","exp":1e400,"sub":7}`), "", "", false)
	f.Add("Bearer "+b64(`{"alg":"none"}`)+"."+b64(`{"iss":"`+issuerA+`"}`)+".AAAA", "", "", false)
	f.Add("Bearer ...", "session", "\x00", true)
	f.Add("Bearer\t"+hs, "session ="+hs+" ;session="+ed, keyPlain+",", false)
	f.Add("ApiKey "+keyPlain+"\r\nAuthorization: Bearer "+hs, "a=\"x; session="+hs+"\"", "", false)
	f.Fuzz(func(t *testing.T, authorization, cookie, apiKey string, twice bool) {
		h := http.Header{}
		for name, value := range map[string]string{"Authorization": authorization, "Cookie": cookie, "X-Api-Key": apiKey} {
			if value != "" {
				h.Add(name, value)
			}
		}
		if twice {
			h.Add("Authorization", authorization)
			h.Add("Cookie", cookie)
		}
		before := h.Clone()
		r := &http.Request{Header: h}
		for _, check := range []auth.Check{{}, {OnlyKnown: true}} {
			p, err := a.Authenticate(r, check)
			refused, isRefused := errors.AsType[*auth.RefusedError](err)
			switch {
			case err == nil:
				if !slices.ContainsFunc(good, func(c string) bool {
					return strings.Contains(authorization, c) || strings.Contains(cookie, c) || strings.Contains(apiKey, c)
				}) {
					t.Fatalf("%+v without a credential", p)
				}
				if p.User != "priya123" && p.User != "user-of-k-2" {
					t.Fatalf("an identity that nobody has: %+v", p)
				}
			case isRefused:
				if !slices.Contains(auth.Reasons(), refused.Reason) || !slices.Contains(auth.Methods(), refused.Method) {
					t.Fatalf("unknown reason or method: %+v", refused)
				}
				keepsQuiet(t, r, err)
			case !errors.Is(err, auth.ErrNoCredentials) && !errors.Is(err, auth.ErrNotKnown):
				t.Fatalf("an error of another kind: %v", err)
			}
		}
		if !equalHeader(before, h) {
			t.Fatalf("the request changed: %q, was %q", h, before)
		}
		a.Strip(h)
		if _, err := a.Authenticate(r, auth.Check{}); !errors.Is(err, auth.ErrNoCredentials) {
			t.Fatalf("a credential is left: %v in %q", err, h)
		}
	})
}

// Only what an issuer signed is a good token, spelt as it was signed, and header
// and cookie never differ.
func FuzzTokenText(f *testing.F) {
	a := newAuth(f, auth.Options{Issuers: tokentest.Issuers()})
	signed := map[string]string{} // the user, by header and claims; some signatures differ from run to run
	for _, tok := range tokentest.Table(now) {
		if user, ok := tok.Accepted(); ok {
			signed[tok.Text[:strings.LastIndexByte(tok.Text, '.')]] = user
		}
		f.Add(tok.Text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if text == "" || strings.ContainsAny(text, ";\" \t") { // what ends a cookie, quotes it or surrounds a value
			return
		}
		user := ""
		for _, line := range []string{"Authorization: Bearer " + text, "Cookie: " + tokentest.Cookie + "=" + text} {
			p, err := a.Authenticate(request(line), auth.Check{})
			if line[0] == 'C' && p.User != user {
				t.Fatalf("in the header the user %q, in the cookie %q, %v", user, p.User, err)
			}
			if user = p.User; user == "" {
				continue
			}
			dot := strings.LastIndexByte(text, '.')
			sig, err := base64.RawURLEncoding.DecodeString(text[dot+1:])
			if signed[text[:dot]] != user || err != nil || base64.RawURLEncoding.EncodeToString(sig) != text[dot+1:] {
				t.Fatalf("nobody signed %q for %s", text, user)
			}
		}
	})
}

// The claim set of a correctly signed token, however odd: no panic, and an
// identity only if it is fit for a header field.
func FuzzClaims(f *testing.F) {
	a := newAuth(f, auth.Options{Issuers: []auth.Issuer{hs256()}})
	for _, s := range []string{
		`{"alg":"HS256"}` + "\x00" + `{"iss":"` + issuerA + `","exp":1800000000,"sub":"u","org":null}`,
		`{"alg":"HS256"}` + "\x00" + `{"iss":"` + issuerA + `","exp":1800000000,"nbf":-1e300,"sub":"\ud800"}`,
		`{"alg":"HS256","crit":[]}` + "\x00" + `null`,
		`{"alg":"HS256","typ":"at+jwt","kid":"a"}` + "\x00" + `{"iss":"` + issuerA + `","exp":1.8e9,"nbf":0.5,"iat":-0,"sub":"\u2028","plan":{}}`,
		`{"alg":"HS256","typ":7}` + "\x00" + `{"iss":"` + issuerA + `","exp":1800000000,"sub":"k\u0065y:x","\ud800":1,"\udc00":2}`,
		"\x00[[[[",
	} {
		header, body, _ := strings.Cut(s, "\x00")
		f.Add(header, body)
	}
	f.Fuzz(func(t *testing.T, header, body string) {
		if len(header)+len(body) > 4096 {
			return
		}
		p, err := a.Authenticate(bearer(signRaw("HS256", secretA, header, body)), auth.Check{})
		if err != nil {
			return
		}
		for _, s := range []string{p.User, p.Tenant, p.Plan} {
			if len(s) > 256 || strings.ContainsAny(s, "\r\n\x00\x7f\ufffd") || strings.TrimSpace(s) != s {
				t.Fatalf("unfit: %q", s)
			}
		}
		if p.User == "" || strings.HasPrefix(p.User, "key:") {
			t.Fatalf("user %q", p.User)
		}
	})
}
