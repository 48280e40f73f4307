package auth_test

import (
	"strings"
	"testing"

	"bouncer/gateway/auth"
)

// withQuery is an Authenticator that takes keys in the parameter api_key as well.
func withQuery(t testing.TB) *auth.Authenticator {
	odd := key("k-odd", "a key+with=odd&bytes%/ü")
	return newAuth(t, auth.Options{
		Issuers: []auth.Issuer{hs256()}, APIKeys: true, KeyQuery: "api_key", Keys: []auth.Key{key("k-1", "one"), key("k-2", "two"), odd},
	})
}

// E18: a key in a query is read where that is switched on, and in one way only.
func TestE18KeyInTheQuery(t *testing.T) {
	a := withQuery(t)
	for _, tt := range []struct{ query, want string }{
		{"api_key=one", "user user-of-k-1"},
		{"a=1&api_key=one&b=2", "user user-of-k-1"},
		{"api%5Fkey=one", "user user-of-k-1"}, // the same name
		{"api_key=%6Fne", "user user-of-k-1"},
		{"api_key=a%20key+with=odd%26bytes%25/%C3%BC", "user user-of-k-odd"},
		{"api_key=a+key+with=odd%26bytes%25/%C3%BC", "unknown_key"}, // a plus is a plus
		{"API_KEY=one", "none"},
		{"api_keys=one", "none"},
		{"access_token=one", "none"},
		{"a=1;api_key=one", "none"}, // one pair, of the name a
		{"a?api_key=one", "none"},
		{"", "none"},
		{"&&", "none"},
		{"api_key=", "malformed"},
		{"api_key", "malformed"},
		{"api_key=%zz", "malformed"},
		{"api_key=one%", "malformed"},
		{"api_key=one;b=2", "unknown_key"},
		{"api_key=%20one", "unknown_key"}, // nothing is cut off
		{"api_key=one&api_key=one", "several"},
		{"api_key=one&x=1&api_key=two", "several"},
		{"api_key=one&api%5fkey=two", "several"},
		{"api_key&api_key=one", "several"},
		{"api_key=" + strings.Repeat("x", auth.MaxKeyBytes+1), "oversize"},
		{"api_key=bn_live_nobody", "checksum"},
	} {
		r := request()
		r.URL.RawQuery = tt.query
		if got := reason(t, a, r); got != tt.want {
			t.Errorf("?%.60s: %s, want %s", tt.query, got, tt.want)
		}
	}
}

// The query is the last place that is looked at, and a bad key elsewhere does not
// fall through to it.
func TestTheQueryRanksLast(t *testing.T) {
	a := withQuery(t)
	for _, tt := range []struct{ line, want string }{
		{"X-API-Key: two", "user user-of-k-2"},
		{"X-API-Key: wrong", "unknown_key"},
		{"Authorization: ApiKey two", "user user-of-k-2"},
		{"Authorization: ApiKey wrong", "unknown_key"},
		{"Authorization: Bearer x", "malformed"},
		{"Authorization: Basic eDp5", "user user-of-k-1"}, // none of ours
		{"Accept: */*", "user user-of-k-1"},
	} {
		r := request(tt.line)
		r.URL.RawQuery = "api_key=one"
		if got := reason(t, a, r); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.line, got, tt.want)
		}
	}
}

// The key goes from the query, in every spelling that is read, and nothing else does.
func TestStripQuery(t *testing.T) {
	a := withQuery(t)
	for _, tt := range []struct{ raw, stripped, masked string }{
		{"", "", ""},
		{"a=1&b=%zz&c=+%20;d", "a=1&b=%zz&c=+%20;d", "a=1&b=%zz&c=+%20;d"},
		{"api_key=one", "", "api_key=********"},
		{"api_key", "", "api_key=********"},
		{"a=1&api_key=one&b=2", "a=1&b=2", "a=1&api_key=********&b=2"},
		{"api_key=one&z=1&a=%2f+", "z=1&a=%2f+", "api_key=********&z=1&a=%2f+"},
		{"z=1&a=2&api_key=one", "z=1&a=2", "z=1&a=2&api_key=********"},
		{"api_key=one&api%5fkey=two&x", "x", "api_key=********&api%5fkey=********&x"},
		{"a&&api_key=one&&b&", "a&&&b&", "a&&api_key=********&&b&"},
		{"API_KEY=x&api_keys=y&=api_key&a=api_key=one", "API_KEY=x&api_keys=y&=api_key&a=api_key=one", "API_KEY=x&api_keys=y&=api_key&a=api_key=one"},
	} {
		if got := a.StripQuery(tt.raw); got != tt.stripped {
			t.Errorf("strip %q: %q, want %q", tt.raw, got, tt.stripped)
		}
		if got := a.MaskQuery(tt.raw); got != tt.masked {
			t.Errorf("mask %q: %q, want %q", tt.raw, got, tt.masked)
		}
	}
	off := newAuth(t, auth.Options{APIKeys: true})
	if got := off.StripQuery("api_key=one"); got != "api_key=one" {
		t.Errorf("switched off: %q", got)
	}
}

// A known key in the query costs no allocation, and neither does a query without one.
func TestTheQueryCostsNothing(t *testing.T) {
	a := withQuery(t)
	r := request()
	r.URL.RawQuery = "a=1&b=2&api_key=one"
	look := func() {
		if _, err := a.Authenticate(r, auth.Check{}); err != nil {
			t.Error(err)
		}
		a.StripQuery("a=1&b=2&c=3")
	}
	if n := testing.AllocsPerRun(100, look); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
