package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bouncer/gateway/config"
)

// What a page's origin can be is repeated in an answer; nothing else is.
func TestOnlyAnOriginIsRepeated(t *testing.T) {
	const good = true
	for origin, want := range map[string]bool{
		"https://a.example.org": good, "https://a.b.example.org:8443": good, "http://127.0.0.1:5173": good, "http://[::1]:3000": good,
		"chrome-extension://abcdefgh": good, "https://xn--caf-dma.example": good, "https://my_app.example": good, "null": good,
		"https://evil.com/.example.org": !good, "https://evil.com#.example.org": !good, "https://evil.com?.example.org": !good,
		"https://.example.org": !good, "https://a..example.org": !good, "https://evil.com:1@a.example.org": !good, "https://evil.com:1.example.org": !good,
		"https://A.example.org": !good, "HTTPS://a.example.org": !good, "https://a.example.org/": !good, "https://a.example.org:": !good,
		"https://a.example.org:123456": !good, "https://": !good, "://a": !good, "": !good, "a.example.org": !good, "https:a": !good,
		"https://a b": !good, "https://[::1": !good, "https://[::1]x": !good, "https://x[::1]": !good, "https://evil.com\\.example.org": !good,
		"https://" + strings.Repeat("a", 300) + ".example.org": !good,
	} {
		if wellFormed(origin) != want {
			t.Errorf("%q: want %t", origin, want)
		}
	}
	some := browser{cors: makeCORS(&config.Route{CORS: &config.CORS{Origins: []string{"https://*.example.org"}, Credentials: true}})}
	any := browser{cors: makeCORS(&config.Route{CORS: &config.CORS{Origins: []string{"*"}}})}
	for _, test := range []struct {
		browser browser
		origins []string
		want    string
	}{
		{some, []string{"https://a.example.org"}, "https://a.example.org"},
		{some, []string{"https://a.example.org", "https://b.example.org"}, ""},
		{some, []string{"https://a.example.org", "https://a.example.org"}, ""},
		{some, []string{"https://evil.com/.example.org"}, ""},
		{some, []string{"https://.example.org"}, ""},
		{some, []string{"null"}, ""},
		{some, nil, ""},
		{any, []string{"null"}, "*"},
		{any, []string{"https://a/b"}, ""},
	} {
		for _, method := range []string{"GET", "OPTIONS"} {
			r := httptest.NewRequest(method, "/", nil)
			if test.origins != nil {
				r.Header["Origin"] = test.origins
			}
			if method == "OPTIONS" {
				r.Header.Set("Access-Control-Request-Method", "GET")
			}
			h := http.Header{"Access-Control-Allow-Origin": {"an upstream's"}}
			test.browser.tell(h, r)
			if got := strings.Join(h["Access-Control-Allow-Origin"], "|"); got != test.want || !strings.Contains(strings.Join(h["Vary"], ","), "Origin") {
				t.Errorf("%s of %q: %v; want %q", method, test.origins, h, test.want)
			}
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Origin", "https://a.example.org")
	if n := testing.AllocsPerRun(100, func() { some.seen(r) }); n != 0 {
		t.Errorf("%v allocations to look at an ordinary request", n)
	}
}
