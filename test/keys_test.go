package test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"bouncer/internal/redistest"
)

// hostileNames are callers who would like to be somebody else. All of them are
// names that a token may carry.
var hostileNames = []string{
	"priya123", "PRIYA123", "priya123 x", "priya%3A123", "priya:123",
	"a:b", "a", "b", "a|b", "a|user:b", "user:a",
	"{x}", "x", "{}", "x}:plan/per-minute", "x}:plan/per-day:fw/86400", "{user:x}", "x}{y",
	"*", "?", "[a-z]*", "global", "{global}", "probe", "~", "~0", "..", "../x", "%", "%%7B", "%7Bx%7D",
	`"`, `\`, `\n`, `a","user":"priya123`, "<script>", "' OR 1", "$(id)", "${HOME}",
	`x",route="y`, `x"} 1`, "-", "_", "@", "0", "null",
	"größe", "gro\u0308ße", "प्रिया", "日本", "👩‍👩‍👧", "\u202eayirp", "\u200b", "a\u200b", "\ufeffa", "K", "\u212a",
	strings.Repeat("é", 100), strings.Repeat("é", 99) + "è", strings.Repeat("x", 200), strings.Repeat("x", 199) + "y",
}

// forbiddenNames would end a line, a field or a string of somebody's.
var forbiddenNames = []string{
	"a\x00b", "a\r\nX-Auth-User: root", "a\nb", "a\tb", "\x1b[2J", "a\u2028b", "a\u0085b", " a", "a ", "",
	strings.Repeat("é", 2048),
}

// Nobody becomes somebody else by their name: every caller has a budget of their
// own, one key of the form we know, no label, and one line of the log a request.
func TestNoCallerIsTakenForAnother(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, redisStore(srv.URL()))
	s.write("plans.yaml", "default_plan: free\nplans:\n  free:\n    limits:\n"+
		"      - {name: per-day, algorithm: fixed_window, limit: 2/day}\n"+
		"      - {name: per-tenant, per: [tenant, route], algorithm: token_bucket, limit: 1000/day}\n")
	g := s.start()
	tokens := map[string]string{}
	for _, name := range hostileNames {
		tokens[name] = s.token(name, func(c jwt.MapClaims) { c["org"] = name })
	}
	ask := func(name string) answer { return g.get("/api/weather", "Authorization", "Bearer "+tokens[name]) }

	// One caller is seen with every outcome first, so that whatever series there
	// are to be are there.
	for _, want := range []int{200, 200, 429} {
		if a := ask("priya123"); a.status != want {
			t.Fatalf("priya123: %d, want %d", a.status, want)
		}
	}
	if a := g.get("/api/weather", "Authorization", "Bearer "+s.token("", nil)); a.status != 401 {
		t.Fatalf("nobody: %d", a.status)
	}
	before := g.seriesNames()

	for _, name := range hostileNames[1:] {
		first := ask(name)
		if first.status != 200 || !contains(first.field("RateLimit"), `"per-day";r=1;`, `"per-tenant";r=999;`) {
			t.Errorf("%q: %d, RateLimit %q: somebody has spent it already", name, first.status, first.field("RateLimit"))
		}
		if got := u.last(t).Header["X-Auth-User"]; !slices.Equal(got, []string{name}) {
			t.Errorf("%q is %q to the upstream", name, got)
		}
		if got := g.requestLine(first.field("X-Request-Id"))["user"]; got != name {
			t.Errorf("%q is %q in the log", name, got)
		}
	}
	for _, name := range hostileNames[1:] {
		if a := ask(name); a.status != 200 || !contains(a.field("RateLimit"), `"per-day";r=0;`) {
			t.Errorf("%q: the second is answered %d, RateLimit %q", name, a.status, a.field("RateLimit"))
		}
		if a := ask(name); a.status != 429 {
			t.Errorf("%q: the third is answered %d", name, a.status)
		}
	}
	for _, name := range forbiddenNames {
		a := g.get("/api/weather", "Authorization", "Bearer "+s.token(name, nil))
		if a.status != 401 {
			t.Errorf("a token of %q is answered %d, want 401", name, a.status)
		}
	}

	// Exactly one hash tag, and as many keys as callers.
	form := map[string]*regexp.Regexp{
		"per-day":    regexp.MustCompile(`^rl:v1:\{user:[A-Za-z0-9._@~%-]+\}:plan/per-day:fw/86400$`),
		"per-tenant": regexp.MustCompile(`^rl:v1:\{tenant:[A-Za-z0-9._@~%-]+\|route:weather\}:plan/per-tenant:tb/86400$`),
	}
	found := map[string]int{}
	for _, key := range srv.Client(t).Keys(t.Context(), "*").Val() {
		if strings.HasPrefix(key, "rl:v1:{probe}:") || strings.HasPrefix(key, "rl:v1:{gateway}:") {
			continue
		}
		known := false
		for limit, re := range form {
			if re.MatchString(key) {
				known = true
				found[limit]++
			}
		}
		if !known || len(key) > 250 {
			t.Errorf("the key %q", key)
		}
	}
	for limit := range form {
		if found[limit] != len(hostileNames) {
			t.Errorf("%d callers have %d keys of %s", len(hostileNames), found[limit], limit)
		}
	}
	everyKeyEnds(t, srv)

	if after := g.seriesNames(); !slices.Equal(after, before) {
		t.Errorf("there are other series than before:\n%v\n%v", before, after)
	}
	// Each answer has its line, and each line is one object.
	asked := 3*len(hostileNames) + 1 + len(forbiddenNames)
	eventually(t, "a line for each request", func() bool { return len(g.all("request")) >= asked })
	if n := len(g.all("request")); n != asked {
		t.Errorf("%d lines for %d requests", n, asked)
	}
	for line := range strings.Lines(g.output()) {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		for _, r := range line {
			if r < ' ' && r != '\n' {
				t.Errorf("a control character in %q", line)
			}
		}
	}
	// The list of who is denied most tells them apart as well.
	top := send(t, "GET", g.admin+"/api/top-denied", nil)
	if !json.Valid([]byte(top.body)) {
		t.Errorf("/api/top-denied: %s", top.body)
	}
	g.decidedByItsStore()
}

// seriesNames returns the names of all samples of a scrape, without those that
// come with the runtime.
func (g *gateway) seriesNames() (names []string) {
	for series := range g.metrics() {
		if strings.HasPrefix(series, "gateway_") {
			names = append(names, series)
		}
	}
	slices.Sort(names)
	return names
}

// A header that names a caller is no safer: it is any bytes that a field may have.
func TestAHeaderThatNamesACallerForgesNothing(t *testing.T) {
	srv := redistest.Start(t)
	u := newUpstream(t, nil)
	s := plansSite(t, u, redisStore(srv.URL()), "      - {name: unused, algorithm: fixed_window, limit: 1/hour}\n", `
  - {name: shop, path: /shop, upstream: weather, auth: none, limits: [per-shop]}
limits:
  per-shop: {per: "header:X-Shop", algorithm: sliding_window_counter, limit: 2/day}
client_ip: {trusted_proxies: [127.0.0.1]}
`)
	g := s.start()
	values := []string{"a", "a:b", "{x}", "x}:limit/per-shop:sc/86400", "a|b", "*", "\xff\xfe", "é", strings.Repeat("{", 3000), strings.Repeat("{", 2999) + "}"}
	for _, value := range values {
		for i, want := range []int{200, 200, 429} {
			if a := g.get("/shop", "X-Shop", value); a.status != want {
				t.Errorf("%.40q: request %d is answered %d, want %d", value, i+1, a.status, want)
			}
		}
	}
	form := regexp.MustCompile(`^rl:v1:\{header\.X-Shop:[A-Za-z0-9._@~%-]+\}:limit/per-shop:sc/86400$`)
	n := 0
	for _, key := range srv.Client(t).Keys(t.Context(), "*per-shop*").Val() {
		if n++; !form.MatchString(key) || len(key) > 250 {
			t.Errorf("the key %q", key)
		}
	}
	if n != len(values) {
		t.Errorf("%d values have %d keys", len(values), n)
	}
	if series := fmt.Sprint(g.seriesNames()); strings.Contains(series, "\xff") || strings.Contains(series, "*") || strings.Contains(series, "{x") {
		t.Errorf("a caller's value is a label: %s", series)
	}
	everyKeyEnds(t, srv)
	g.decidedByItsStore()
}
