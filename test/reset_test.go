package test

import (
	"fmt"
	"strings"
	"testing"

	"bouncer/internal/redistest"
)

// reset asks for the reset of a limit, with the token unless fields say otherwise.
func (g *gateway) reset(kind, name, limit, plan, route string, fields ...string) answer {
	g.t.Helper()
	if fields == nil {
		fields = []string{"Authorization", "Bearer " + adminToken}
	}
	body := fmt.Sprintf(`{"kind":%q,"name":%q,"limit":%q,"plan":%q,"route":%q}`, kind, name, limit, plan, route)
	return send(g.t, "POST", g.admin+"/api/reset", strings.NewReader(body), append([]string{"Content-Type", "application/json"}, fields...)...)
}

// spendAll asks until it is denied, and returns how often it was let through.
func (g *gateway) spendAll(path, key string) (n int) {
	g.t.Helper()
	for n < 1000 {
		a := g.get(path, "X-API-Key", key, "X-Forwarded-For", "203.0.113.7")
		if a.status == 429 {
			return n
		}
		if a.status != 200 {
			g.t.Fatalf("%d %s", a.status, a.body)
		}
		n++
	}
	g.t.Fatal("it is never denied")
	return n
}

// A customer who has spent a limit by mistake is helped at once: that limit is as if it
// had never been used, on every instance, and no other is; and who did it is in the log.
func TestOneLimitIsReset(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"memory", "redis", "cluster"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			setting := ""
			switch store {
			case "redis":
				srv := redistest.Start(t, "--aclfile", redistest.ACLFile(t, redistest.User{Name: "gate", Password: "secret", Rules: rights(t)}))
				setting = `store: {redis: {url: "redis://` + srv.Addr() + `", username: gate, password: secret, timeout: 2s}}`
			case "cluster":
				setting = `store: {redis: {urls: ["redis://` + strings.Join(redistest.StartCluster(t, 3).Addrs(), `", "redis://`) + `"], timeout: 2s}}`
			}
			s, priya, sam := callersSite(t, setting)
			g := s.start()
			other := g
			if store != "memory" {
				other = s.start()
			}
			if n := g.spendAll("/weather/x", priya); n != 5 {
				t.Fatalf("%d are let through, want 5", n)
			}
			other.spendAll("/weather/x", priya) // so that it knows of the denial
			if n := g.spendAll("/export", sam); n != 2 {
				t.Fatalf("%d exports are let through, want 2", n)
			}
			for what, fields := range map[string][]string{
				"without the token":        {"X-Nothing", ""},
				"with a wrong one":         {"Authorization", "Bearer wrong"},
				"from another site's page": {"Authorization", "Bearer " + adminToken, "Origin", "http://attacker.example", "Sec-Fetch-Site", "cross-site"},
			} {
				a := g.reset("user", "priya123", "per-minute", "free", "", fields...)
				if a.problem(t); a.status != 401 && a.status != 403 {
					t.Errorf("%s: %d", what, a.status)
				}
			}
			if n := g.spendAll("/weather/x", priya); n != 0 {
				t.Fatalf("%d are let through though nothing was reset", n)
			}

			a := g.reset("user", "priya123", "per-minute", "free", "")
			if a.status != 200 || !contains(a.body, `"reset": true`, `"limit": "per-minute"`, `"partition": "{user:priya123}"`) {
				t.Fatalf("%d %s", a.status, a.body)
			}
			c := g.caller("user", "priya123")
			if l := c.limit(t, "per-minute", ""); l.Used == nil || *l.Used != 0 || l.Remaining != 5 || !l.Resettable {
				t.Errorf("after a reset %+v", l)
			}
			if l := c.limit(t, "per-route", "weather"); *l.Used != 5 {
				t.Errorf("another limit was reset too: %+v", l)
			}
			eventually(t, "the other instance has heard of it", func() bool {
				a := other.get("/weather/x", "X-API-Key", priya, "X-Forwarded-For", "203.0.113.7")
				return a.status == 200
			})
			if n := g.spendAll("/weather/x", priya); n != 4 {
				t.Errorf("%d are let through after a reset and one elsewhere, want 4", n)
			}
			eventually(t, "the audit line", func() bool { return g.logged("audit: a limit was reset") != nil })
			line := g.logged("audit: a limit was reset")
			if line["level"] != "WARN" || line["who"] != "token" || line["kind"] != "user" || line["name"] != "priya123" || line["limit"] != "per-minute" ||
				line["partition"] != "{user:priya123}" || line["request_id"] != a.field("X-Request-Id") || !strings.HasPrefix(fmt.Sprint(line["remote"]), "127.0.0.1:") {
				t.Errorf("audit: %v", line)
			}
			if n := len(g.all("audit: a limit was reset")); n != 1 {
				t.Errorf("%d audit lines for one reset", n)
			}

			// A limit that a route names, and one of the edge, which is this instance's.
			if a := g.reset("key", "k-sam", "export", "", "export"); a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			} else if n := g.spendAll("/export", sam); n != 2 {
				t.Errorf("%d exports after a reset, want 2", n)
			}
			if a := g.reset("ip", "203.0.113.7", "crowd", "", ""); a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			} else if l := g.caller("ip", "203.0.113.7").limit(t, "crowd", ""); *l.Used != 0 {
				t.Errorf("crowd stands at %+v", l)
			}
			for _, tc := range []struct {
				kind, name, limit, plan, route string
				status                         int
			}{
				{"user", "priya123", "per-hour", "free", "", 404},
				{"user", "priya123", "per-minute", "pro", "", 404},
				{"user", "priya123", "per-minute", "free", "weather", 404},
				{"user", "priya123", "by-device", "", "weather", 404},
				{"user", "priya123", "everybody", "", "weather", 422},
				{"ip", "priya123", "per-minute", "free", "", 400},
				{"all", "priya123", "per-minute", "free", "", 400},
				{"user", "", "per-minute", "free", "", 400},
				{"key", priya, "per-minute", "free", "", 400},
			} {
				a := g.reset(tc.kind, tc.name, tc.limit, tc.plan, tc.route)
				if a.problem(t); a.status != tc.status || strings.Contains(a.body, priya) {
					t.Errorf("%+v: %d %s", tc, a.status, a.body)
				}
			}
			if strings.Contains(g.output(), priya) {
				t.Error("a key is in the log")
			}
		})
	}
}

// What lies in blocks on the instance that resets is given up with the bucket.
func TestResetOfALeasedLimit(t *testing.T) {
	t.Parallel()
	s, priya, _ := callersSite(t, `store: {redis: {url: "redis://`+redistest.Start(t).Addr()+`", timeout: 2s}}`)
	s.write("plans.yaml", `default_plan: free
plans: {free: {limits: [{name: per-minute, per: user, algorithm: fixed_window, limit: 40/hour, lease: {ttl: 10s, size: 10}}]}, pro: {limits: [{name: x, per: user, algorithm: fixed_window, limit: 50/hour}]}, anonymous: {limits: [{name: x, per: user, algorithm: fixed_window, limit: 50/hour}]}}
anonymous_plan: anonymous
`)
	g := s.start()
	if a := g.get("/export", "X-API-Key", priya); a.status != 200 { // it takes a block along
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := g.reset("user", "priya123", "per-minute", "free", ""); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if n := g.spendAll("/weather/x", priya); n != 40 {
		t.Errorf("%d are let through after a reset, want 40", n)
	}
}

// Without Redis what this instance knows is shown, as such; nothing is reset, and that
// is said.
func TestCallersWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s, priya, _ := callersSite(t, `store: {redis: {url: "redis://`+srv.Addr()+`", timeout: 200ms}}`)
	g := s.start()
	for range 3 {
		g.get("/weather/x", "X-API-Key", priya, "X-Forwarded-For", "203.0.113.7")
	}
	srv.Kill()
	var c shownCaller
	eventually(t, "the caller is shown by local figures", func() bool {
		g.get("/weather/x", "X-API-Key", priya, "X-Forwarded-For", "203.0.113.7")
		c = g.caller("user", "priya123")
		return c.Reduced
	})
	if l := c.limit(t, "per-minute", ""); l.Source != "local_cap" || l.Resettable {
		t.Errorf("per-minute stands at %+v", l)
	}
	if l := c.limit(t, "crowd", ""); l.Source != "memory" || !l.Resettable || l.Used == nil || *l.Used < 3 {
		t.Errorf("the edge's stands at %+v", l)
	}
	a := g.reset("user", "priya123", "per-minute", "free", "")
	if p := a.problem(t); a.status != 503 || a.field("Retry-After") == "" || strings.Contains(fmt.Sprint(p), srv.Addr()) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if g.logged("audit: a limit was reset") != nil {
		t.Error("the log says that it was reset")
	}
}
