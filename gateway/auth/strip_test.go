package auth_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bouncer/gateway/auth"
)

func TestStrip(t *testing.T) {
	issuer, other := hs256(), auth.Issuer{Issuer: issuerB, Algorithms: []string{"HS256"}, Secrets: [][]byte{secretB}, Cookie: "__Host-id"}
	issuer.Cookie = "session"
	everything := newAuth(t, auth.Options{Issuers: []auth.Issuer{issuer, other}, APIKeys: true})
	onlyKeys := newAuth(t, auth.Options{APIKeys: true})
	onlyTokens := newAuth(t, auth.Options{Issuers: []auth.Issuer{hs256()}})
	for _, tt := range []struct {
		a          *auth.Authenticator
		name, want string // fields as "name: value", by | divided
	}{
		{everything, "Authorization: Bearer x|Accept: a", "Accept: a"},
		{everything, "Authorization: bearer\tx", ""},
		{everything, "Authorization: Bearer", ""},
		{everything, "Authorization:   BEARER,x", ""},
		{everything, "Authorization: apikey x", ""},
		{everything, "Authorization: Basic x", "Authorization: Basic x"},
		{everything, "Authorization: Bearerish x", "Authorization: Bearerish x"},
		{everything, "Authorization: Basic x|Authorization: Bearer y|Authorization: Digest z", "Authorization: Basic x|Authorization: Digest z"},
		{everything, "X-API-Key: x|X_API_Key: x|X-API_Key: x|x_api-key: y|X.API.Key: x|x+api~key: y|X-API-Keys: z", "X-Api-Keys: z"},
		{everything, "X-API-Key: x|X-API-Key: y", ""},
		{everything, "Cookie: session=x", ""},
		{everything, "Cookie: session=x;", ""},
		{everything, "Cookie: session=x; session=y", ""},
		{everything, "Cookie: session=x; ;; session=y;", ""},
		{everything, "Cookie: session", ""},
		{everything, "Cookie: a=1; session=x; b=\"2;c=3", "Cookie: a=1; b=\"2;c=3"},
		{everything, "Cookie: session=x; b=2", "Cookie: b=2"},
		{everything, "Cookie: a=1;session=x", "Cookie: a=1"},
		{everything, "Cookie: a=1; \tsession = x ;b=2", "Cookie: a=1;b=2"},
		{everything, "Cookie: a=1; session=x; __Host-id=y; b=2", "Cookie: a=1; b=2"},
		{everything, "Cookie: a=1|Cookie: session=x|Cookie: b=2", "Cookie: a=1|Cookie: b=2"},
		{everything, "Cookie: xsession=1; session2=x; Session=y; a=session=1", "Cookie: xsession=1; session2=x; Session=y; a=session=1"},
		{everything, "Cookie:  a=1;;  b = 2 ", "Cookie:  a=1;;  b = 2 "},
		{everything, "Cookie: a", "Cookie: a"},
		{onlyKeys, "Authorization: Bearer x|Cookie: session=x|X-API-Key: x|Authorization: ApiKey y", "Authorization: Bearer x|Cookie: session=x"},
		{onlyTokens, "Authorization: Bearer x|Cookie: session=x|X-API-Key: x|Authorization: ApiKey y", "Authorization: ApiKey y|Cookie: session=x|X-Api-Key: x"},
	} {
		in := request(strings.Split(tt.name, "|")...).Header
		out := maps.Clone(in) // a shallow copy: the slices are the request's
		before := in.Clone()
		tt.a.Strip(out)
		if !equalHeader(in, before) {
			t.Errorf("%q: the request changed to %q", tt.name, show(in))
		}
		if got := show(out); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// show writes a header as TestStrip does.
func show(h http.Header) string {
	var lines []string
	for name, values := range h {
		for _, v := range values {
			lines = append(lines, name+": "+v)
		}
	}
	slices.SortStableFunc(lines, func(a, b string) int {
		nameA, _, _ := strings.Cut(a, ":")
		nameB, _, _ := strings.Cut(b, ":")
		return strings.Compare(nameA, nameB)
	})
	return strings.Join(lines, "|")
}

// Whatever the header looks like: after Strip there is no credential in it, and
// all that was no credential is there as before.
func TestStripLeavesNoCredential(t *testing.T) {
	const secret = "SECRET"
	issuer := hs256()
	issuer.Cookie = "session"
	a := newAuth(t, auth.Options{Issuers: []auth.Issuer{issuer}, APIKeys: true, Keys: []auth.Key{key("k-1", secret)}})
	space := rapid.SampledFrom([]string{"", " ", "  ", "\t"})
	harmless := rapid.StringMatching(`[a-z]{1,4}=[a-z0-9"=]{0,5}`)
	rapid.Check(t, func(t *rapid.T) {
		h := http.Header{}
		for range rapid.IntRange(0, 3).Draw(t, "authorizations") {
			scheme := rapid.SampledFrom([]string{"Bearer", "bearer", "BEARER", "ApiKey", "APIKEY"}).Draw(t, "scheme")
			divide := rapid.SampledFrom([]string{" ", "  ", "\t", ",", ":", "=", "\""}).Draw(t, "divide")
			value := space.Draw(t, "before") + scheme + divide + secret
			if rapid.Bool().Draw(t, "basic") {
				value = "Basic abc"
			}
			h.Add("Authorization", value)
		}
		for range rapid.IntRange(0, 3).Draw(t, "keys") {
			name := rapid.SampledFrom([]string{"X-API-Key", "x_api_key", "X_API-KEY", "x-api-key", "X.Api.Key"}).Draw(t, "name")
			h[name] = append(h[name], secret)
			h.Add(name, secret)
		}
		var others []string
		for range rapid.IntRange(0, 3).Draw(t, "cookie lines") {
			var pairs []string
			for range rapid.IntRange(1, 5).Draw(t, "cookies") {
				pair := space.Draw(t, "before") + "session" + space.Draw(t, "around") + "=" + secret
				if rapid.Bool().Draw(t, "harmless") {
					pair = harmless.Draw(t, "cookie")
					others = append(others, pair)
				}
				pairs = append(pairs, pair)
			}
			h.Add("Cookie", strings.Join(pairs, rapid.SampledFrom([]string{";", "; "}).Draw(t, "divide")))
		}
		h.Set("Accept", "text/plain")

		a.Strip(h)
		if s := fmt.Sprint(h); strings.Contains(s, secret) {
			t.Fatalf("left: %s", s)
		}
		if _, err := a.Authenticate(&http.Request{Header: h}, auth.Check{}); !errors.Is(err, auth.ErrNoCredentials) {
			t.Fatalf("still a credential: %v in %v", err, h)
		}
		var kept []string
		for _, line := range h["Cookie"] {
			for pair := range strings.SplitSeq(line, ";") {
				kept = append(kept, strings.TrimPrefix(pair, " "))
			}
		}
		if !slices.Equal(kept, others) {
			t.Fatalf("cookies %q, want %q", kept, others)
		}
		if h.Get("Accept") == "" {
			t.Fatal("Accept is gone")
		}
		again := h.Clone()
		a.Strip(again)
		if !equalHeader(h, again) {
			t.Fatalf("a second Strip changed %v to %v", h, again)
		}
	})
}
