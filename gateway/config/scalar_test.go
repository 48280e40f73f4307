package config

import (
	"math"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
)

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"30s": 30 * time.Second, "1m30s": 90 * time.Second, "1.5h": 90 * time.Minute, "1d": day, "7d": 7 * day,
		"1d12h": 36 * time.Hour, "0.5d": 12 * time.Hour, "500ms": 500 * time.Millisecond, "0s": 0, "3µs": 3000, "3us": 3000,
		"-1s": -time.Second, "106751d": 106751 * day,
	} {
		got, err := parseDuration(in)
		if err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for in, message := range map[string]string{
		"30": `did you mean "30s"?`, "0": "without a unit", "500": "without a unit", "1e3": "without a unit", "-5": "without a unit",
		"1w": `did you mean "7d"?`, "1mo": "not a duration", "P1D": "not a duration", "60 s": `did you mean "60s"?`,
		"60S": `did you mean "60s"?`, "": "not a duration", "s": "not a duration", "-": "not a duration", "1d-1h": "not a duration",
		"106752d": "too long", "9223372037s": "too long", "+5s": "not a duration", "1s1": "not a duration",
	} {
		got, err := parseDuration(in)
		if err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("parseDuration(%q) = %v, %v, want an error with %q", in, got, err, message)
		}
	}
}

func TestFormatDurationIsReadAgain(t *testing.T) {
	for _, d := range []time.Duration{0, 1, time.Millisecond, 50 * time.Millisecond, time.Second, 90 * time.Second,
		time.Minute, time.Hour, 90 * time.Minute, day, 36 * time.Hour, 366 * day} {
		got, err := parseDuration(formatDuration(d))
		if err != nil || got != d {
			t.Errorf("%v is written %q and read as %v, %v", d, formatDuration(d), got, err)
		}
	}
}

func TestParseRate(t *testing.T) {
	for in, want := range map[string]Rate{
		"100/second": {100, time.Second}, "100/minute": {100, time.Minute}, "5/hour": {5, time.Hour}, "1/day": {1, day},
		"1/week": {1, 7 * day}, "9/month": {9, 30 * day}, "100/10s": {100, 10 * time.Second}, "5/15m": {5, 15 * time.Minute},
		"9/30d": {9, 30 * day}, "0/minute": {0, time.Minute}, "1/366d": {1, 366 * day}, "3/1m30s": {3, 90 * time.Second},
		"999999999999999/second": {999999999999999, time.Second},
	} {
		got, err := parseRate(in)
		if err != nil || got != want {
			t.Errorf("parseRate(%q) = %v, %v, want %v", in, got, err, want)
		}
		if again, err := parseRate(got.String()); err != nil || again != got {
			t.Errorf("%q is written %q and read as %v, %v", in, got, again, err)
		}
	}
	for _, in := range []string{
		"", "/", "5", "5/", "/minute", "-1/minute", "1.5/minute", "1e3/minute", "0x5/minute", "05/minute", "5 /minute", "5/ minute",
		"5/500ms", "5/0s", "5/-1s", "5/367d", "5/fortnight", "5/10", "1000000000000000/second", "5/minute/hour", "1_000/minute",
	} {
		if got, err := parseRate(in); err == nil {
			t.Errorf("parseRate(%q) = %v, want an error", in, got)
		}
	}
}

func TestExpand(t *testing.T) {
	vars := env(map[string]string{"A": "x", "EMPTY": "", "DOLLAR": "${A} $A $$", "YAML": "a: {b\n# c"})
	for in, want := range map[string]string{
		"": "", "plain": "plain", "$": "$", "$$": "$$", "pa$word": "pa$word", "a$$b": "a$$b", "$A": "$A", "^/v1/.*$": "^/v1/.*$",
		"$2a$10$abc": "$2a$10$abc", "${A}": "x", "-${A}-${A}-": "-x-x-", "${A:-y}": "x", "${B:-y}": "y", "${B:-}": "",
		"${EMPTY}": "", "${EMPTY:-y}": "y", "${B:-a:-b $c}": "a:-b $c", "$${A}": "${A}", "$${": "${", "$$${A}": "$${A}",
		"${DOLLAR}": "${A} $A $$", "${YAML}": "a: {b\n# c", "${A}$${A}${A}": "x${A}x",
	} {
		got, err := expand(in, vars)
		if err != nil || got != want {
			t.Errorf("expand(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
	for in, message := range map[string]string{
		"${B}": "environment variable B is not set", "x${": "without }", "${}": "bad variable name", "${1A}": "bad variable name",
		"${A B}": "bad variable name", "${A-b}": "bad variable name", "${B:-${A}}": "another ${",
	} {
		got, err := expand(in, vars)
		if err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("expand(%q) = %q, %v, want an error with %q", in, got, err, message)
		}
	}
}

// Passwords as generators make them, in the URL and beside it.
func TestRedisURL(t *testing.T) {
	for in, want := range map[string]Redis{
		"redis://h":                     {Network: "tcp", Address: "h:6379"},
		"redis://h:7000/3":              {Network: "tcp", Address: "h:7000", DB: 3},
		"redis://127.0.0.1/":            {Network: "tcp", Address: "127.0.0.1:6379"},
		"redis://[::1]:7000/1":          {Network: "tcp", Address: "[::1]:7000", DB: 1},
		"redis://[::1]":                 {Network: "tcp", Address: "[::1]:6379"},
		"rediss://u:p@h":                {Network: "tcp", Address: "h:6379", Username: "u", Password: Secret("p"), TLS: &TLS{}},
		"REDIS://u@h":                   {Network: "tcp", Address: "h:6379", Username: "u"},
		"redis://:p@ss@h":               {Network: "tcp", Address: "h:6379", Password: Secret("p@ss")},
		"redis://:a:b@h":                {Network: "tcp", Address: "h:6379", Password: Secret("a:b")},
		"redis://:a/b@h/1":              {Network: "tcp", Address: "h:6379", Password: Secret("a/b"), DB: 1},
		"redis://:a#b@h":                {Network: "tcp", Address: "h:6379", Password: Secret("a#b")},
		"redis://:a?b@h":                {Network: "tcp", Address: "h:6379", Password: Secret("a?b")},
		"redis://:a+b=@h":               {Network: "tcp", Address: "h:6379", Password: Secret("a+b=")},
		"redis://:a%40b@h":              {Network: "tcp", Address: "h:6379", Password: Secret("a@b")},
		"redis://:100%25@h":             {Network: "tcp", Address: "h:6379", Password: Secret("100%")},
		"redis://:pa$$word@h":           {Network: "tcp", Address: "h:6379", Password: Secret("pa$$word")},
		"unix:///run/redis.sock":        {Network: "unix", Address: "/run/redis.sock"},
		"unix:///run/redis.sock?db=2":   {Network: "unix", Address: "/run/redis.sock", DB: 2},
		"unix://u:p@/run/redis.sock":    {Network: "unix", Address: "/run/redis.sock", Username: "u", Password: Secret("p")},
		"redis://user%3A1:q!%23@h:6379": {Network: "tcp", Address: "h:6379", Username: "user:1", Password: Secret("q!#")},
	} {
		var got Redis
		err := got.parseURL(in)
		if err != nil || got.Network != want.Network || got.Address != want.Address || got.DB != want.DB ||
			got.Username != want.Username || string(got.Password) != string(want.Password) || (got.TLS == nil) != (want.TLS == nil) {
			t.Errorf("%s: got %+v (password %q), %v", in, got, string(got.Password), err)
		}
	}
	for _, in := range []string{
		"", "h:6379", "http://h", "redis://", "redis:///0", "redis://:hunter2@", "redis://:hunter2@h:0", "redis://:hunter2@h:65536",
		"redis://:hunter2@h:port", "redis://:hunter2%@h", "redis://:hunter2@h/x", "redis://:hunter2@h/-1", "redis://:hunter2@h/1/2",
		"redis://:hunter2@h?db=1", "redis://:hunter2@h:6379:9", "unix://run/redis.sock", "unix:///s?hunter2", "redis://[::1:6379",
		"redis://h\nhunter2",
	} {
		var got Redis
		if err := got.parseURL(in); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %+v, %v, want an error without the password", in, got, err)
		}
	}
}

// accepts reports whether chi takes the pattern.
func accepts(pattern string) (ok bool) {
	defer func() { ok = recover() == nil }()
	chi.NewRouter().Method(http.MethodGet, pattern, http.NotFoundHandler())
	return true
}

func TestPathShape(t *testing.T) {
	for in, want := range map[string]string{
		"/": "/", "/a": "/a", "/a/": "/a/", "/*": "/*", "/a/*": "/a/*", "/a/{id}": "/a/{}", "/a/{id}/b": "/a/{}/b",
		"/{a}-{b}": "/{}-{}", "/{id:[0-9]+}": "/{:[0-9]+}", "/{y:\\d{4}}/x": "/{:\\d{4}}/x", "/a b/c": "/a b/c",
		"/{id:^[a-z]+$}": "/{:^[a-z]+$}", "/100%": "/100%", "/5%-off": "/5%-off", "/café": "/café", "/...": "/...", "/.well-known/a..b": "/.well-known/a..b",
		"/..{a}": "/..{}", "/{a}../b": "/{}../b", "/;/x": "/;/x", "/{x:[^/]+}": "/{:[^/]+}", "/{x:a%2[Ff]b}": "/{:a%2[Ff]b}",
		"/{x:(?i)a%2fb}": "/{:(?i)a%2fb}", "/{x:a/b}-c": "/{:a/b}-c", "/{x:(/|a)b?}": "/{:(/|a)b?}", "/{x:(/a)*b}": "/{:(/a)*b}", "/{x:a{0,2}}é": "/{:a{0,2}}é",
		"/{x:[%20]+}": "/{:[%20]+}", "/{x:a[ ]?b}": "/{:a[ ]?b}",
	} {
		got, err := pathShape(in)
		if err != nil || got != want || !accepts(in) {
			t.Errorf("pathShape(%q) = %q, %v, want %q; chi accepts: %v", in, got, err, want, accepts(in))
		}
	}
}

// Whatever passes here must pass in the router too: it panics on what it
// refuses. And a path without parameters must be what requests are reduced to.
func FuzzPathShape(f *testing.F) {
	for _, s := range []string{"/", "/a/{id}", "/{a:[0-9]{2}}/*", "/{a", "/a}", "/{a}{b}", "/*/a", "/{a:}", "/{:a}", "/{a*}", "/{*}",
		"/a%20b", "/a%252e", "/%2e/..", "/a b", "/{a:(/|\\\\)}%", "/{a:%2[Ff]}", "/%25%34%31"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		if _, err := pathShape(pattern); err == nil && !accepts(pattern) {
			t.Errorf("chi refuses %q", pattern)
		} else if err == nil && !strings.ContainsAny(pattern, "{*") &&
			(path.Clean(pattern) != strings.TrimSuffix(pattern, "/") && pattern != "/" || strings.Contains(pattern, `\`)) {
			t.Errorf("%q is not the plain form of a path", pattern)
		}
	})
}

func TestSuggest(t *testing.T) {
	words := []string{"limit", "limits", "local_cap", "burst"}
	for in, want := range map[string]string{
		"limts": "limits", "limti": "limit", "busrt": "burst", "Burst": "burst", "localcap": "local_cap", "zzz": "", "": "",
	} {
		got := suggest(in, words)
		if want == "" && got != "" || want != "" && !strings.Contains(got, `"`+want+`"`) {
			t.Errorf("suggest(%q) = %q, want %q", in, got, want)
		}
	}
}

// The queue's places, and those that a wait of max_delay leaves: one goes at
// once, and one more for each interval that fits.
func TestLeakyCapacity(t *testing.T) {
	for _, c := range []struct {
		rate  string
		queue int64
		delay time.Duration
		want  int64
	}{
		{"10/second", 0, 0, 1},
		{"10/second", 4, 0, 5},
		{"10/second", 100, 350 * time.Millisecond, 4},
		{"10/second", 100, 300 * time.Millisecond, 4},
		{"10/second", 100, 299 * time.Millisecond, 3},
		{"10/second", 2, time.Hour, 3},
		{"3/second", 100, time.Second, 4}, // thirds of a second, exactly
		{"0/second", 100, time.Second, 0},
		{"1/month", 100, time.Millisecond, 1},
		{"999999999999999/second", 9_000_000_000_000, time.Hour, 3_600_000_001}, // rounded to a unit a microsecond,
	} {
		r, err := parseRate(c.rate)
		if err != nil {
			t.Fatal(err)
		}
		l := Limit{Algorithm: LeakyBucket, Rate: r, Queue: c.queue, MaxDelay: c.delay}
		if got := l.capacity(); got != c.want {
			t.Errorf("%s, queue %d, %s: got %d, want %d", c.rate, c.queue, c.delay, got, c.want)
		}
	}
}

func TestMulDiv(t *testing.T) {
	const most = math.MaxInt64
	for _, c := range [][4]int64{
		{0, 5, 3, 0}, {7, 5, 3, 11}, {most, 1, 1, most}, {most, most, 1, most}, {most, most, most, most},
		{most, 2, 4, most / 2}, {most, 3, 1, most}, {1 << 40, 1 << 40, 1 << 20, 1 << 60}, {1 << 40, 1 << 40, 3, most},
	} {
		if got := mulDiv(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("%d × %d / %d: got %d, want %d", c[0], c[1], c[2], got, c[3])
		}
	}
}

func TestCheckArithmetic(t *testing.T) {
	for _, c := range []struct {
		rate     string
		most     int64
		errors   bool
		warnings bool
	}{
		{"100/minute", 20, false, false},
		{"0/month", 1 << 60, false, false},
		{"1/second", 9_007_199_254, false, false}, // 1 unit is 10^6 µs
		{"1/second", 9_007_199_255, true, false},
		{"7/second", 1_286_742_750, false, false}, // 7 units are 10^6 µs: den 10^6, ceil 142858
		{"7/second", 9_007_199_255, false, true},
		{"99991/month", 99991, false, true},
	} {
		r, err := parseRate(c.rate)
		if err != nil {
			t.Fatal(err)
		}
		s := newSource(nil)
		d := &doc{src: s, name: "x.yaml", data: []byte("limit: " + c.rate)}
		root, _ := d.parse("a mapping")
		checkArithmetic(root, r, c.most, true)
		if len(s.report.Errors()) > 0 != c.errors || len(s.report.Warnings()) > 0 != c.warnings {
			t.Errorf("%s with %d: %v", c.rate, c.most, s.report.Problems)
		}
	}
}
