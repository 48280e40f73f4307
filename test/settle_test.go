package test

import (
	"fmt"
	"syscall"
	"testing"

	"bouncer/internal/redistest"
)

// settledLog is what the gateway logs when it has charged Redis with an outage.
const settledLog = "what was admitted without the limit store is settled"

// units is gateway_fallback_units_total of an outcome.
func (g *gateway) units(outcome string) int {
	g.t.Helper()
	return int(g.value(`gateway_fallback_units_total{outcome="` + outcome + `"}`))
}

// Two gateways admit what they think is right while Redis is away. When it is back,
// with what it knew before, it is charged with all of that once, limit by limit,
// also by the gateway that is told to end at that moment. One that ends before says
// what is lost.
func TestAnOutageIsNoFreeQuota(t *testing.T) {
	u := newUpstream(t, nil)
	srv := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newSite(t)
	s.write("plans.yaml", plansWith(`
      - {name: bucket,   algorithm: token_bucket, limit: 100/day, burst: 100}
      - {name: calendar, algorithm: fixed_window, limit: 100/month, anchor: calendar}
      - {name: log,      algorithm: sliding_window_log, limit: 100/day}
`))
	s.write("keys.yaml", "keys: []\n")
	s.awayRoutes(u, `store: {redis: {url: "`+srv.URL()+`", timeout: 2s}}`)
	key := s.key("-user", "priya123")
	staying, leaving, gone := s.start(), s.start(), s.start()
	rest := 100
	ask := func(g *gateway, path string) {
		t.Helper()
		if a := g.get(path, "X-API-Key", key); a.status != 200 {
			t.Fatalf("%s: %d %s", path, a.status, a.body)
		}
		rest--
	}
	for _, g := range []*gateway{staying, leaving, gone} {
		g.shared()
		ask(g, "/capped")
	}
	srv.Kill()
	for _, g := range []*gateway{staying, leaving, gone} {
		for range 5 {
			ask(g, "/capped") // these find out
		}
		g.away()
		for range 3 {
			ask(g, "/capped")
			ask(g, "/open")
		}
		wantRefused(t, g.get("/closed", "X-API-Key", key))
		// A connection may break off just so that nobody knows what was charged.
		rest += g.units("ambiguous") / 3
	}

	lost := 3*11 - gone.units("ambiguous")
	gone.stop()
	if line := gone.logged(settledLog); line == nil || line["units"] != 0.0 || line["left_out"] != 3*11.0 {
		t.Errorf("ended without Redis, the gateway says %v; want 0 units and %d left out", line, 3*11)
	}
	rest += lost / 3

	srv.Restart()
	leaving.shared()
	leaving.signal(syscall.SIGTERM)
	if code := leaving.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if line := leaving.logged(settledLog); line == nil || line["buckets"] != 3.0 {
		t.Errorf("told to end, the gateway says %v; want 3 buckets", line)
	}
	eventually(t, "the outage is settled", func() bool { return staying.logged(settledLog) != nil })
	if got, want := staying.units("settled"), 3*11-staying.units("ambiguous"); got != want {
		t.Errorf("%d units were settled, want %d", got, want)
	}
	for range 2 { // nothing comes later
		a := staying.get("/capped", "X-API-Key", key)
		rest--
		for _, limit := range []string{"bucket", "calendar", "log"} {
			if !contains(a.field("RateLimit"), fmt.Sprintf("%q;r=%d;", limit, rest)) {
				t.Errorf("RateLimit %q, want %s at %d", a.field("RateLimit"), limit, rest)
			}
		}
	}
	if n := len(staying.all(settledLog)); n != 1 {
		t.Errorf("the return was logged %d times", n)
	}
	rdb := srv.Client(t)
	for _, k := range rdb.Keys(t.Context(), "*").Val() {
		if left := rdb.PTTL(t.Context(), k).Val(); left <= 0 {
			t.Errorf("%s has no expiry", k)
		}
	}
}
