package gateway

import (
	"bufio"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"bouncer/gateway/config"
	"bouncer/gateway/rewrite"
)

// request reads what a server would read from these bytes.
func request(t *testing.T, method, target, host string) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")))
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return r
}

// The table every order of the routes is held against: the most specific path
// wins, then the method is asked.
var routeTable = []struct {
	name, host, path string
	methods          []string
}{
	{"all", "", "/*", nil},
	{"api", "", "/api/*", nil},
	{"weather", "", "/api/weather", []string{"GET"}},
	{"weather-post", "", "/api/weather", []string{"POST"}},
	{"city", "", "/api/weather/{city}", []string{"GET"}},
	{"city-id", "", "/api/weather/{id:[0-9]+}", []string{"GET"}},
	{"export", "", "/api/export/*", []string{"GET", "DELETE"}},
	{"v1", "", "/v1", nil},
	{"v10", "", "/v10/*", nil},
	{"user", "", "/users/{id}", []string{"GET"}},
	{"new-user", "", "/users/{name}", []string{"POST"}},
	{"hosted", "api.example.test", "/api/weather", []string{"GET"}},
	{"hosted-only", "api.example.test", "/only", nil},
}

func TestTheMostSpecificRouteWinsWhateverTheOrder(t *testing.T) {
	tests := []struct{ method, target, host, want string }{
		{"GET", "/", "x", "all"},
		{"GET", "/other", "x", "all"},
		{"GET", "/api/x", "x", "api"},
		{"GET", "/api/", "x", "api"},
		{"GET", "/api", "x", "all"}, // /api/* is not /api
		{"GET", "/apikeys", "x", "all"},
		{"GET", "/api/weather", "x", "weather"},
		{"HEAD", "/api/weather", "x", "weather"},
		{"POST", "/api/weather", "x", "weather-post"},
		{"GET", "/api/weather/", "x", "api"}, // /a is not /a/
		{"GET", "/api/weather?city=a;b=2", "x", "weather"},
		{"GET", "/api/weather/pune", "x", "city"},
		{"GET", "/api/weather/12", "x", "city-id"},
		{"GET", "/api/weather/a%2Fb", "x", "city"},
		{"GET", "/api/weather/pune/now", "x", "api"},
		{"GET", "/api/export/", "x", "export"},
		{"GET", "/api/export/9/x", "x", "export"},
		{"PROPFIND", "/v1", "x", "v1"},
		{"GET", "/v10/x", "x", "v10"},
		{"GET", "/v1x", "x", "all"},
		{"GET", "/api/weather", "api.example.test", "hosted"},
		{"GET", "/api/weather", "API.example.test:8443", "hosted"},
		{"GET", "/api/weather", "api.example.test.", "hosted"},
		{"GET", "/only", "api.example.test", "hosted-only"},
		{"GET", "/only", "x", "all"},
		{"GET", "/api/weather/pune", "api.example.test", "city"},

		// No spelling gets round the stricter route.
		{"GET", "/api/%65xport/1", "x", "export"},
		{"GET", "/api//export/1", "x", "export"},
		{"GET", "//api/export/1", "x", "export"},
		{"GET", "/%61pi/weather", "x", "weather"},
		{"GET", "/api/export;x/1", "x", "400"},
		{"GET", "/api;x/export/1", "x", "400"},
		{"GET", "/api/export%3bx/1", "x", "400"},
		{"GET", "/api/export%2F1", "x", "400"},
		{"GET", "/api%2fexport/1", "x", "400"},
		{"GET", "/api%2Fexport;x/1", "x", "400"},
		{"GET", "/api/%2565xport/1", "x", "400"},
		{"GET", "/api/%252e%252e/secret", "x", "400"},
		{"GET", "/api/%255csecret", "x", "400"},
		{"GET", "/api/weather/12;x", "x", "400"},
		{"GET", "/other/only%2f", "api.example.test", "all"},
		{"GET", "/only;x", "api.example.test", "400"},
		{"GET", "/api/%c0%ae%c0%ae/secret", "x", "400"}, // overlong dots
		{"GET", "/api/%e0%80%af", "x", "400"},           // an overlong slash
		{"GET", "/api/%ff", "x", "400"},
		{"GET", "/api/%ed%a0%80", "x", "400"}, // half a pair

		// What another reading would not carry further is only a name.
		{"GET", "/api/export/a;b=c/d;e", "x", "export"},
		{"GET", "/api/export/a%2Fb%2F", "x", "export"},
		{"GET", "/api/export/100%25", "x", "export"},
		{"GET", "/api/export/%2541", "x", "export"},
		{"GET", "/api/weather/pune;now", "x", "city"},
		{"GET", "/users/a%2Fb", "x", "user"}, // as two segments it would be for all
		{"GET", "/api/%C3%BC", "x", "api"},
		{"GET", "/api/\u00fc", "x", "api"},

		{"GET", "/users/5", "x", "user"},
		{"POST", "/users/5", "x", "new-user"},
		{"PUT", "/users/5", "x", "405 GET, HEAD, POST"},
		{"PUT", "/api/weather", "x", "405 GET, HEAD, POST"},
		{"POST", "/api/export/1", "x", "405 DELETE, GET, HEAD"},
		{"POST", "/api/weather", "api.example.test", "405 GET, HEAD"},

		{"GET", "/api/../secret", "x", "400"},
		{"GET", "/api/%2e%2e/secret", "x", "400"},
		{"GET", "/api/.", "x", "400"},
		{"GET", "/api/..;x=1/secret", "x", "400"},
		{"GET", "/api/..%2Fsecret", "x", "400"},
		{"GET", "/api/x%2F..%2fsecret", "x", "400"},
		{"GET", "/api/a%5Cb", "x", "400"},
		{"GET", "/api/a%00b", "x", "400"},
		{"GET", "/api/a%0d%0ab", "x", "400"},
		{"OPTIONS", "*", "x", "400"},
		{"GET", "/api/...", "x", "api"},
		{"GET", "/api/.well-known", "x", "api"},
		{"GET", "/api/a..b", "x", "api"},
	}
	for round := range 10 {
		rs := &router{}
		for _, i := range rand.Perm(len(routeTable)) {
			row := routeTable[i]
			if err := rs.add(row.host, row.path, &route{name: row.name, methods: row.methods}); err != nil {
				t.Fatal(err)
			}
		}
		for _, tt := range tests {
			m, refused := rs.match(request(t, tt.method, tt.target, tt.host))
			var got string
			switch {
			case m.route != nil:
				got = m.route.name
			case refused.Status == http.StatusMethodNotAllowed:
				got = "405 " + refused.Header.Get("Allow")
			case refused.Status == http.StatusBadRequest:
				got = "400"
			default:
				got = "404"
			}
			if got != tt.want {
				t.Errorf("round %d: %s %s at %s: got %s, want %s", round, tt.method, tt.target, tt.host, got, tt.want)
			}
		}
	}
}

func TestAPathWithoutARouteIs404(t *testing.T) {
	rs := &router{}
	if _, refused := rs.match(request(t, "GET", "/x", "h")); refused == nil || refused.Status != http.StatusNotFound {
		t.Errorf("without any route: %v", refused)
	}
	if err := rs.add("", "/a/{id}", &route{name: "a"}); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/", "/a", "/a/", "/a/1/", "/b/1"} {
		if m, _ := rs.match(request(t, "GET", target, "h")); m.route != nil {
			t.Errorf("%s matched %s", target, m.route.name)
		}
	}
}

func TestAPatternThatCannotBeUsedIsAnError(t *testing.T) {
	rs := &router{}
	for _, pattern := range []string{"no-slash", "/a/*/b", "/a/{id", "/{id:[}"} {
		if err := rs.add("", pattern, &route{}); err == nil {
			t.Errorf("%q was taken", pattern)
		}
	}
}

func FuzzMatchPath(f *testing.F) {
	for _, s := range []string{"/a", "/a/%2e%2e/b", "/%2F..", "/a//b", "/%", "/a;b/..;/c", "/\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + target + " HTTP/1.1\r\nHost: h\r\n\r\n")))
		if err != nil {
			return
		}
		path, ok := matchPath(r)
		if !ok {
			return
		}
		if path[0] != '/' || strings.Contains(path, "//") || strings.ContainsAny(path, "\x00\\\r\n") {
			t.Errorf("%q became %q", target, path)
		}
		for seg := range strings.SplitSeq(strings.ReplaceAll(strings.ReplaceAll(path, "%2F", "/"), "%2f", "/"), "/") {
			seg, _, _ = strings.Cut(seg, ";")
			if seg == "." || seg == ".." {
				t.Errorf("%q became %q, with a dot segment", target, path)
			}
		}
	})
}

// Of routes of one path the one that wants more fields is taken, whatever the order
// in the file; a method that only another one takes is not refused.
func TestARouteIsForRequestsWithItsFields(t *testing.T) {
	fields := func(pairs ...string) (fs []rewrite.Field) {
		for i := 0; i < len(pairs); i += 2 {
			fs = append(fs, rewrite.Field{Name: pairs[i], Value: pairs[i+1]})
		}
		return fs
	}
	open := makeCORS(&config.Route{CORS: &config.CORS{Origins: []string{"*"}}})
	routes := []*route{
		{name: "any", methods: []string{"GET"}},
		{name: "post", methods: []string{"POST"}},
		{name: "two", methods: []string{"GET"}, headers: fields("X-Version", "2"), cors: open},
		{name: "beta", methods: []string{"GET"}, headers: fields("X-Beta", "1")},
		{name: "both", methods: []string{"GET"}, headers: fields("X-Beta", "1", "X-Version", "2")},
	}
	for _, test := range []struct {
		method string
		header http.Header
		want   string
	}{
		{"GET", http.Header{}, "any"},
		{"HEAD", http.Header{"X-Version": {"2"}}, "two"},
		{"GET", http.Header{"X-Version": {"1", "2"}}, "two"},
		{"GET", http.Header{"X-Version": {"22"}}, "any"},
		{"GET", http.Header{"X-Version": {"2"}, "X-Beta": {"1"}}, "both"},
		{"GET", http.Header{"X-Version": {"3"}, "X-Beta": {"1"}}, "beta"},
		{"POST", http.Header{"X-Version": {"2"}}, "post"},
		{"PUT", http.Header{"X-Version": {"2"}}, "405 GET, HEAD, POST"},
		{"OPTIONS", http.Header{"Origin": {"https://a.example"}, "Access-Control-Request-Method": {"GET"}, "Access-Control-Request-Headers": {"x-other, x-version"}}, "two"},
		{"OPTIONS", http.Header{"Origin": {"https://a.example"}, "Access-Control-Request-Method": {"GET"}}, "two, no leave"},
		{"OPTIONS", http.Header{"Origin": {"https://a.example"}, "Access-Control-Request-Method": {"PUT"}}, "two, no leave"},
		{"OPTIONS", http.Header{"Origin": {"https://a.example"}}, "405 GET, HEAD, POST"},
	} {
		for range 5 {
			rs := &router{}
			for _, i := range rand.Perm(len(routes)) {
				if err := rs.add("", "/a", routes[i]); err != nil {
					t.Fatal(err)
				}
			}
			r := request(t, test.method, "/a", "h")
			r.Header = test.header
			var got string
			if m, refused := rs.match(r); refused != nil {
				got = strconv.Itoa(refused.Status) + " " + refused.Header.Get("Allow")
			} else {
				got = m.route.name
				if m.browser.refused {
					got += ", no leave"
				}
			}
			if got != test.want {
				t.Errorf("%s %v: %s, want %s", test.method, test.header, got, test.want)
			}
		}
	}
	// Where none is for it, there is nothing.
	rs := &router{}
	if err := rs.add("", "/a", routes[2]); err != nil {
		t.Fatal(err)
	}
	if _, refused := rs.match(request(t, "PUT", "/a", "h")); refused == nil || refused.Status != http.StatusNotFound {
		t.Errorf("no route wants it: %v", refused)
	}
}
