package rewrite_test

import (
	"net/url"
	"strings"
	"testing"

	"bouncer/gateway/rewrite"
)

func parse(t testing.TB, target string) *url.URL {
	t.Helper()
	u, err := url.ParseRequestURI(target)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestAPrefixGoesHoweverItIsWritten(t *testing.T) {
	t.Parallel()
	p, err := rewrite.StripPrefix("/api/v1")
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]string{
		"/api/v1":                     "/",
		"/api/v1/":                    "/",
		"/api/v1?a=1;b=%zz":           "/?a=1;b=%zz",
		"/api/v1/weather":             "/weather",
		"/api/v1/weather/?x":          "/weather/?x",
		"/%61pi/v%31/weather":         "/weather",
		"//api//v1//weather//today":   "/weather//today",
		"/api/v1/a%2Fb":               "/a%2Fb",
		"/api/v1/a%2fb/%7Euser":       "/a%2fb/%7Euser",
		"/api/v1/caf%C3%A9|{x}":       "/caf%C3%A9|{x}",
		"/api/v1/%2Fetc":              "/%2Fetc",
		"/api/v1/a%25b":               "/a%25b",
		"/api/v1/api/v1":              "/api/v1",
		"/api/v1/a;b=c/d":             "/a;b=c/d",
		"/api/v1//evil.example/x?a=b": "/evil.example/x?a=b",
	} {
		u := parse(t, from)
		before := *u
		got, ok := p.Of(u)
		if !ok || got.RequestURI() != want && rawTarget(got) != want {
			t.Errorf("%s: %v, %v; want %s", from, got, ok, want)
		}
		if *u != before {
			t.Errorf("%s: the client's own URL was changed", from)
		}
	}
	for _, bad := range []string{"", "api", "/", "/api/", "//api", "/a//b", "/{id}", "/api/*", "/a%20b", "/a?b", "/a#b"} {
		if _, err := rewrite.StripPrefix(bad); err == nil {
			t.Errorf("%q is taken for a prefix", bad)
		}
	}
}

// rawTarget is the target as it came, where url.URL would escape it anew.
func rawTarget(u *url.URL) string {
	target := u.RawPath
	if u.RawQuery != "" {
		target += "?" + u.RawQuery
	}
	return target
}

func TestAPathIsReplaced(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ match, replace, from, want string }{
		{`/v1/(.*)`, "/v2/$1", "/v1/weather/today", "/v2/weather/today"},
		{`/v1/(.*)`, "/v2/$1", "/v1/weather?a=1;b=2", "/v2/weather?a=1;b=2"},
		{`/v1/(.*)`, "/v2/$1", "/v10/weather", "/v10/weather"},
		{`v1`, "/v2", "/v1/x", "/v1/x"}, // the whole path, or nothing
		{`/old(/.*)`, "$1", "/old/x", "/x"},
		{`/users/([0-9]+)/posts/([^/]+)`, "/posts/$2/of/$1", "/users/7/posts/hi", "/posts/hi/of/7"},
		{`/(a)(b)?`, "/x$1$2y$$", "/a", "/xay$"},
		{`/a|/b`, "/c", "/b", "/c"},
		{`/export/(.*)`, "/e/$1", "/%65xport/7", "/e/7"},
		{`/export/(.*)`, "/e/$1", "//export//7", "/e/7"},
		{`/caf%C3%A9/(.*)`, "/c/$1", "/caf%c3%a9/a%2fb", "/c/a%2Fb"},
		{`/files/(.*)`, "/$1", "/files//evil.example", "/evil.example"},
		{`/files(.*)`, "/$1", "/files/x", "/x"},
		{`/x/(.*)`, "/y/$1", "/x/a%25b%3Fc", "/y/a%25b%3Fc"},
	} {
		p, err := rewrite.Replace(test.match, test.replace)
		if err != nil {
			t.Errorf("%s: %v", test.match, err)
			continue
		}
		if got, ok := p.Of(parse(t, test.from)); !ok || got.RequestURI() != test.want {
			t.Errorf("%s → %s: %s becomes %v, %v; want %s", test.match, test.replace, test.from, got, ok, test.want)
		}
	}
}

// A path that was looked at must not come out as one that nobody looked at.
func TestNoDotSegmentComesOut(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ match, replace, from string }{
		{`/(.*)x(.*)`, "/$1$2", "/.x./etc/passwd"},
		{`/(.*)x(.*)`, "/$1$2", "/a/.x."},
		{`/a(.*)`, "/files/.$1", "/a./secret"},
		{`/a(.*)`, "/files/.$1", "/a%2Fsecret"},
		{`/a(.*)`, "/files/.$1", "/a;b/secret"},
	} {
		p, err := rewrite.Replace(test.match, test.replace)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := p.Of(parse(t, test.from)); ok {
			t.Errorf("%s → %s: %s becomes %v", test.match, test.replace, test.from, got)
		}
	}
}

func TestARewriteThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ match, replace, want string }{
		{"(", "/", "match: "},
		{"/a", "b", "replace: want a path that begins with /"},
		{"/a", "", "replace: want a path"},
		{"/(a)", "/$2", "replace: there is no group $2: match has 1"},
		{"/(a)", "/$x", "replace: want $1 to $9"},
		{"/(a)", "/$", "replace: want $1 to $9"},
		{"/a", "/b?c=d", `replace: "?" cannot stand in a path`},
		{"/a", "/b c", `replace: " " cannot stand in a path`},
		{"/a", "/b%", "replace: % without two hexadecimal digits"},
		{"/a", "/b%2", "replace: % without two hexadecimal digits"},
	} {
		if _, err := rewrite.Replace(test.match, test.replace); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s → %s: %v; want %s", test.match, test.replace, err, test.want)
		}
	}
}

func FuzzPath(f *testing.F) {
	f.Add("/api/v1/x", "/.x./etc")
	f.Add("//api/v1//%2e%2e/x", "/a%2fxb")
	strip, _ := rewrite.StripPrefix("/api/v1")
	replace, _ := rewrite.Replace("(.*)x(.*)", "$1/$2")
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, p := range []*rewrite.Path{strip, replace} {
			for _, target := range []string{a, b} {
				u, err := url.ParseRequestURI(target)
				if err != nil || u.Path == "" || u.Path[0] != '/' {
					continue
				}
				to, ok := p.Of(u)
				if !ok {
					continue
				}
				if to.Path == "" || to.Path[0] != '/' || to.RawQuery != u.RawQuery {
					t.Errorf("%q becomes %q", target, to)
				}
				if p == replace && to != u {
					for s := range strings.SplitSeq(to.Path, "/") {
						if s == "." || s == ".." {
							t.Errorf("%q becomes %q", target, to)
						}
					}
				}
			}
		}
	})
}
