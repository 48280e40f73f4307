package test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

// authorizeSite is a site whose routes want something of their callers.
func authorizeSite(t *testing.T, u *upstream) *weatherSite {
	s := newWeatherSite(t, u, "")
	s.write("plans.yaml", `
default_plan: free
anonymous_plan: anonymous
plans:
  free: {limits: [{name: per-day, algorithm: fixed_window, limit: 3/day}]}
  pro: {limits: []}
  anonymous: {limits: [{name: per-day, per: ip, algorithm: fixed_window, limit: 3/day}]}
`)
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [127.0.0.1]}
auth:
  jwt:
    - {issuer: https://login.example.com/, audience: [weather-api], algorithms: [HS256], secret_file: secret, claims: {tenant: org, plan: plan}}
  api_keys: {file: keys.yaml}
  failure_limit: off
limits: {crowd: {per: ip, algorithm: fixed_window, limit: 60/hour}}
edge: [crowd]
upstreams: {weather: {targets: ["`+u.URL+`"]}}
routes:
  - {name: free, path: /free, upstream: weather}
  - {name: scoped, path: /scoped, upstream: weather, scopes: [read, write]}
  - {name: maybe, path: /maybe, upstream: weather, auth: optional, scopes: [read]}
  - {name: claimed, path: /claimed, upstream: weather, claims: {realm.role: [admin, owner], email_verified: true, tier: 3}}
  - {name: paid, path: /paid, upstream: weather, plans: [pro]}
  - {name: members, path: /members, upstream: weather, auth: optional, plans: [free, pro]}
  - {name: office, path: /office, upstream: weather, auth: none, allow_ips: [203.0.113.0/24, "2001:db8::/32"], deny_ips: [203.0.113.7, "2001:db8::7"]}
  - {name: inside, path: /inside, upstream: weather, deny_ips: [198.51.100.0/24]}
`)
	return s
}

// A route lets in who has what it wants, and nobody else, whatever they have
// besides. A refusal costs its caller nothing and reaches no upstream.
func TestRoutesLetInWhoHasWhatTheyWant(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := authorizeSite(t, u)
	key := s.key("-user", "keyed", "-plan", "pro")
	scoped := s.key("-user", "keyed", "-plan", "pro", "-scope", "read", "-scope", "write")
	g := s.start()
	with := func(pairs ...any) []string {
		return []string{"Authorization", "Bearer " + s.token("priya123", func(c jwt.MapClaims) {
			for i := 0; i < len(pairs); i += 2 {
				c[pairs[i].(string)] = pairs[i+1]
			}
		})}
	}
	from := func(ip string) []string { return []string{"X-Forwarded-For", ip} }
	role := func(v any) map[string]any { return map[string]any{"role": v} }
	const (
		insufficient = `Bearer realm="gateway", error="insufficient_scope", scope="read write"`
		anybody      = `Bearer realm="gateway"`
	)
	refusals := map[string]float64{}
	for i, tt := range []struct {
		path      string
		fields    []string
		status    int
		by        string
		challenge string
	}{
		{"/scoped", with("scope", "read write"), 200, "", ""},
		{"/scoped", with("scope", "openid write read"), 200, "", ""},
		{"/scoped", with("scope", []string{"write", "read"}), 200, "", ""},
		{"/scoped", with("scope", "read"), 403, "missing_scope", insufficient},
		{"/scoped", with("scope", "READ WRITE"), 403, "missing_scope", insufficient},
		{"/scoped", with(), 403, "missing_scope", insufficient},
		{"/scoped", []string{"X-API-Key", key}, 403, "missing_scope", insufficient},
		{"/scoped", []string{"X-API-Key", scoped}, 200, "", ""},
		{"/scoped", with("scope", 7), 401, "unauthorized", anybody},
		{"/scoped", nil, 401, "unauthorized", anybody},
		{"/maybe", nil, 401, "unauthorized", anybody},
		{"/maybe", with("scope", "read", "plan", "pro"), 200, "", ""},
		{"/maybe", with("scope", "write"), 403, "missing_scope", `Bearer realm="gateway", error="insufficient_scope", scope="read"`},
		{"/claimed", with("realm", role("admin"), "email_verified", true, "tier", 3, "plan", "pro"), 200, "", ""},
		{"/claimed", with("realm", role([]string{"guest", "owner"}), "email_verified", true, "tier", 3.0, "plan", "pro"), 200, "", ""},
		{"/claimed", with("realm", role("guest"), "email_verified", true, "tier", 3), 403, "missing_claim", ""},
		{"/claimed", with("realm", role("admin"), "email_verified", "true", "tier", 3), 403, "missing_claim", ""},
		{"/claimed", with("realm", role("admin"), "email_verified", true, "tier", "3"), 403, "missing_claim", ""},
		{"/claimed", with("realm", "admin", "email_verified", true, "tier", 3), 403, "missing_claim", ""},
		{"/claimed", with("realm.role", "guest", "realm", role("admin"), "email_verified", true, "tier", 3), 403, "missing_claim", ""},
		{"/claimed", []string{"X-API-Key", key}, 403, "missing_claim", ""},
		{"/paid", with("plan", "pro"), 200, "", ""},
		{"/paid", with(), 403, "forbidden_plan", ""},
		{"/paid", with("plan", "nonesuch"), 403, "forbidden_plan", ""},
		{"/paid", []string{"X-API-Key", key}, 200, "", ""},
		{"/members", nil, 401, "unauthorized", anybody},
		{"/members", []string{"X-API-Key", key}, 200, "", ""},
		{"/office", from("203.0.113.9"), 200, "", ""},
		{"/office", from("2001:db8::1"), 200, "", ""},
		{"/office", from("::ffff:203.0.113.10"), 200, "", ""},
		{"/office", from("203.0.113.7"), 403, "forbidden_ip", ""},
		{"/office", from("::ffff:203.0.113.7"), 403, "forbidden_ip", ""},
		{"/office", from("2001:db8::7"), 403, "forbidden_ip", ""},
		{"/office", from("203.0.114.1"), 403, "forbidden_ip", ""},
		{"/office", nil, 403, "forbidden_ip", ""},
		{"/office", append(from("198.51.100.1, 203.0.113.9"), "X-Real-IP", "203.0.113.7"), 200, "", ""},
		{"/inside", append(from("198.51.100.1"), with("plan", "pro")...), 403, "forbidden_ip", ""},
		{"/inside", append(from("198.51.100.1"), "X-API-Key", "wrong"), 403, "forbidden_ip", ""}, // before credentials
		{"/inside", append(from("203.0.113.9"), "X-API-Key", key), 200, "", ""},
	} {
		before := u.count()
		a := g.get(tt.path, tt.fields...)
		name := fmt.Sprintf("%d: %s %.40q", i, tt.path, tt.fields)
		if a.status != tt.status {
			t.Errorf("%s: %d, want %d: %s", name, a.status, tt.status, a.body)
			continue
		}
		if passed := u.count() > before; passed != (tt.status == 200) {
			t.Errorf("%s: reached the upstream: %v", name, passed)
		}
		if tt.status == 200 {
			continue
		}
		if p := a.problem(t); p["status"] != float64(tt.status) || a.field("Cache-Control") != "no-store" || a.field("RateLimit") != "" {
			t.Errorf("%s: %v %v", name, a.header, p)
		}
		if got := a.field("Www-Authenticate"); got != tt.challenge {
			t.Errorf("%s: WWW-Authenticate %q, want %q", name, got, tt.challenge)
		}
		if got := g.requestLine(a.field("X-Request-Id"))["denied_by"]; got != tt.by {
			t.Errorf("%s: denied_by %v, want %s", name, got, tt.by)
		}
		if tt.status == 403 {
			refusals[fmt.Sprintf(`gateway_forbidden_total{reason=%q,route=%q}`, tt.by, strings.TrimPrefix(tt.path, "/"))]++
		}
	}
	for series, want := range refusals {
		if got := g.value(series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	if g.value(`gateway_forbidden_total{reason="forbidden_plan",route="members"}`) != 0 {
		t.Error("an anonymous caller's 401 counts as a 403")
	}

	fresh := []string{"Authorization", "Bearer " + s.token("fresh", nil)}
	for range 5 {
		g.get("/scoped", fresh...)
		g.get("/claimed", fresh...)
		g.get("/paid", fresh...)
	}
	if got := g.get("/free", fresh...).field("RateLimit"); !strings.HasPrefix(got, `"per-day";r=2;`) {
		t.Errorf("after fifteen refusals a new caller has %q, want 2 of 3 left", got)
	}
}

// Being refused is not free at the edge: whoever asks for what is not for them
// is a crowd like any other.
func TestARefusedAddressIsChargedAtTheEdge(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	g := authorizeSite(t, u).start()
	for i := range 60 {
		if a := g.get("/office", "X-Forwarded-For", "198.51.100.9"); a.status != http.StatusForbidden {
			t.Fatalf("request %d: %d", i, a.status)
		}
	}
	if a := g.get("/office", "X-Forwarded-For", "198.51.100.9"); a.status != http.StatusTooManyRequests {
		t.Errorf("request 61: %d, want 429", a.status)
	}
}

// A reload that asks for more of tokens asks it of those that are known, too.
func TestAReloadThatWantsMoreWantsItOfKnownTokens(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, "")
	g := s.start()
	token := []string{"Authorization", "Bearer " + s.token("priya123", func(c jwt.MapClaims) { c["scope"] = "read"; c["scp"] = "write" })}
	if a := g.get("/api/weather", token...); a.status != 200 {
		t.Fatalf("before: %d", a.status)
	}
	before, err := os.ReadFile(s.path("routes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	routes := strings.ReplaceAll(string(before), "methods: [GET],", "methods: [GET], scopes: [WANTED],")
	for _, step := range []struct {
		routes string
		status int
	}{
		{strings.ReplaceAll(routes, "WANTED", "read"), 200},
		{strings.ReplaceAll(routes, "WANTED", "write"), 403},
		{strings.ReplaceAll(strings.ReplaceAll(routes, "WANTED", "write"), "plan: plan}", "plan: plan, scopes: scp}"), 200},
	} {
		s.write("routes.yaml", step.routes)
		if !g.reload() {
			t.Fatal("the reload is refused")
		}
		if a := g.get("/api/weather", token...); a.status != step.status {
			t.Errorf("%d, want %d, with %s", a.status, step.status, step.routes)
		}
	}
}
