package test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"bouncer/internal/redistest"
)

// limitsSite is a site with one API key per caller and the given plan limits,
// on one Redis. The decision has two seconds, and a route that cannot have one
// is refused, so that no local cap can make the numbers right by chance.
func limitsSite(t testing.TB, u *upstream, redisURL, limits string) *site {
	s := newSite(t)
	s.write("keys.yaml", "keys: []\n")
	s.write("plans.yaml", plansWith(limits))
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
store: {redis: {url: "`+redisURL+`", timeout: 5s}}
auth: {api_keys: {file: keys.yaml}}
upstreams:
  weather: {targets: ["`+u.URL+`"]}
routes:
  - {name: weather, path: /api/weather, upstream: weather, on_store_failure: deny}
  - {name: export,  path: "/api/export/*", upstream: weather, cost: 10, on_store_failure: deny}
  - {name: health,  path: /healthz, upstream: weather, auth: none, cost: 0}
`)
	return s
}

// plansWith is a plan free with these limits, and one that can pay for anything.
func plansWith(limits string) string {
	return "default_plan: free\noverrides: [{user: big, plan: big}]\nplans:\n  big: {limits: []}\n  free:\n    limits:\n" + limits
}

// Fifty clients at once, over three gateways that share one Redis, claim the
// last five of a limit: exactly five get them, round after round.
func TestTheLastFiveOfALimitGoToExactlyFive(t *testing.T) {
	for name, limits := range map[string]string{
		"fixed_window": "      - {name: per-hour, algorithm: fixed_window, limit: 25/hour}\n",
		"token_bucket": "      - {name: per-day, algorithm: token_bucket, limit: 25/day, burst: 25}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // making the keys takes most of the time
			u := newUpstream(t, nil)
			s := limitsSite(t, u, redistest.Start(t).URL(), limits)
			const rounds = 12
			var keys []string
			for i := range rounds {
				keys = append(keys, s.key("-user", fmt.Sprintf("caller-%d", i)))
			}
			gateways := []*gateway{s.start(), s.start(), s.start()}
			for round, key := range keys {
				for i := range 20 {
					if a := gateways[i%3].get("/api/weather", "X-API-Key", key); a.status != 200 {
						t.Fatalf("round %d: request %d before the rush: %d %s", round, i, a.status, a.body)
					}
				}
				clients := 10
				if round%2 == 1 {
					clients = 50
				}
				before := u.count()
				var admitted, denied, other atomic.Int64
				var rush sync.WaitGroup
				gate := make(chan struct{})
				for i := range clients {
					rush.Go(func() {
						<-gate
						a, err := trySend("GET", gateways[i%3].url+"/api/weather", nil, "X-API-Key", key)
						switch {
						case err == nil && a.status == 200:
							admitted.Add(1)
						case err == nil && a.status == 429:
							denied.Add(1)
						default:
							other.Add(1)
						}
					})
				}
				close(gate)
				rush.Wait()
				if admitted.Load() != 5 || denied.Load() != int64(clients-5) || other.Load() != 0 {
					t.Errorf("round %d, %d clients: %d admitted, %d denied, %d other; want 5, %d, 0",
						round, clients, admitted.Load(), denied.Load(), other.Load(), clients-5)
				}
				if got := u.count() - before; got != 5 {
					t.Errorf("round %d: %d requests reached the upstream, want 5", round, got)
				}
			}
			for _, g := range gateways {
				for sample := range g.metrics() {
					if contains(sample, "gateway_ratelimit_decisions_total", `source="local_cap"`) && g.metrics()[sample] != "0" {
						t.Errorf("a local cap decided: %s %s", sample, g.metrics()[sample])
					}
				}
			}
		})
	}
}

// A request that one limit denies reaches no upstream and charges no other.
func TestADeniedRequestReachesNoUpstreamAndChargesNothingElse(t *testing.T) {
	u := newUpstream(t, nil)
	srv := redistest.Start(t)
	s := limitsSite(t, u, srv.URL(), `
      - {name: per-hour, algorithm: fixed_window, limit: 3/hour}
      - {name: per-day,  algorithm: fixed_window, limit: 100/day}
      - {name: burst,    algorithm: token_bucket, limit: 50/day, burst: 50}
`)
	key := s.key("-user", "priya123")
	g := s.start()
	for range 3 {
		if a := g.get("/api/weather", "X-API-Key", key); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	for range 20 {
		a := g.get("/api/weather", "X-API-Key", key)
		if a.status != 429 {
			t.Fatalf("over the limit: %d", a.status)
		}
		if got, want := a.field("RateLimit-Policy"), `"per-hour";q=3;w=3600, "per-day";q=100;w=86400, "burst";q=50;w=86400`; got != want {
			t.Fatalf("RateLimit-Policy %q, want %q", got, want)
		}
		if r := a.field("RateLimit"); !contains(r, `"per-hour";r=0;t=`, `"per-day";r=97;t=`, `"burst";r=47;t=`) {
			t.Fatalf("RateLimit %q: the denial charged another limit", r)
		}
	}
	if got := u.count(); got != 3 {
		t.Errorf("%d requests reached the upstream, want 3", got)
	}
	// A cost of 10 is more than the hour ever admits: no wait would help.
	fresh := s.key("-user", "fresh")
	var a answer
	eventually(t, "the new key is known without a restart", func() bool {
		a = g.get("/api/export/9", "X-API-Key", fresh)
		return a.status != 401
	})
	if a.status != 429 || a.field("Retry-After") != "" {
		t.Errorf("a cost above the capacity: %d, Retry-After %q; want 429 without", a.status, a.field("Retry-After"))
	}
	// No key without an expiry is left behind.
	ctx := t.Context()
	rdb := srv.Client(t)
	for _, k := range rdb.Keys(ctx, "*").Val() {
		if ttl := rdb.PTTL(ctx, k).Val(); ttl <= 0 {
			t.Errorf("key %q has no expiry (%v)", k, ttl)
		}
	}
}

// What was spent stays spent: over SIGHUP, over a restart, over a raised number.
func TestALimitKeepsItsCount(t *testing.T) {
	u := newUpstream(t, nil)
	limit := func(n int) string {
		return fmt.Sprintf("      - {name: per-hour, algorithm: fixed_window, limit: %d/hour}\n", n)
	}
	s := limitsSite(t, u, redistest.Start(t).URL(), limit(10))
	key := s.key("-user", "priya123")
	g := s.start()
	spend := func(g *gateway, want int64) {
		t.Helper()
		a := g.get("/api/weather", "X-API-Key", key)
		if a.status != 200 || remaining(t, a) != want {
			t.Fatalf("%d, %d remaining; want 200, %d", a.status, remaining(t, a), want)
		}
	}
	spend(g, 9)
	spend(g, 8)
	if !g.reload() {
		t.Fatal("the reload was rejected")
	}
	spend(g, 7)
	g.stop()
	g = s.start()
	spend(g, 6)
	s.write("plans.yaml", plansWith(limit(20)))
	eventually(t, "the raised number is in force by itself", func() bool { return len(g.all(reloadApplied)) > 0 })
	spend(g, 15)
	s.write("plans.yaml", plansWith(limit(5)))
	eventually(t, "the lowered number is in force", func() bool { return len(g.all(reloadApplied)) > 1 })
	if a := g.get("/api/weather", "X-API-Key", key); a.status != 429 || remaining(t, a) != 0 {
		t.Errorf("lowered below what was spent: %d, %d remaining; want 429, 0", a.status, remaining(t, a))
	}
	if line := fmt.Sprint(g.all(reloadApplied)); !contains(line, "per-hour", "20/hour", "5/hour") {
		t.Errorf("the log does not say in words what changed: %v", line)
	}
}

// A cost of 0 asks no store, is not counted and tells no limits.
func TestAFreeRouteIsFree(t *testing.T) {
	u := newUpstream(t, nil)
	srv := redistest.Start(t)
	s := limitsSite(t, u, srv.URL(), "      - {name: per-hour, algorithm: fixed_window, limit: 1/hour}\n")
	g := s.start()
	for range 20 {
		a := g.get("/healthz")
		if a.status != 200 || a.field("RateLimit") != "" || a.field("X-RateLimit-Limit") != "" {
			t.Fatalf("%d %v", a.status, a.header)
		}
	}
	for _, k := range srv.Client(t).Keys(t.Context(), "*").Val() {
		if contains(k, "plan/per-hour") {
			t.Errorf("a free request left the key %q", k)
		}
	}
}
