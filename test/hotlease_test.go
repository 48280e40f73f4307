package test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// Many gateways, one key with a lease, more requests than it has quota for: what
// is admitted is the quota, to the unit, also what lay in blocks for a while; and
// Redis is asked once in twenty requests at most.
func TestAHotKeyWithALeaseIsAdmittedToTheUnit(t *testing.T) {
	// Enough for several blocks of each gateway.
	quota := max(3000, 500*int64(hotGateways(t)))
	u := newUpstream(t, nil)
	srv := redistest.Start(t)
	s := newSite(t)
	s.write("plans.yaml", strings.ReplaceAll(`
default_plan: fixed_window
plans:
  fixed_window: {limits: [{name: hot, algorithm: fixed_window, limit: QUOTA/day, lease: {size: 100, ttl: 2s}}]}
  token_bucket: {limits: [{name: hot, algorithm: token_bucket, limit: QUOTA/day, lease: {ttl: 4s}}]}
`, "QUOTA", strconv.FormatInt(quota, 10)))
	s.write("keys.yaml", "keys:\n"+keyEntry("fixed_window", "plan: fixed_window")+keyEntry("token_bucket", "plan: token_bucket"))
	gateways := s.launchHot(t, srv.URL(), u.URL)
	// sum is over all gateways.
	sum := func(parts ...string) (n float64) {
		for _, g := range gateways {
			n += g.sum(parts...)
		}
		return n
	}
	for _, name := range []string{"fixed_window", "token_bucket"} {
		t.Run(name, func(t *testing.T) {
			before, calls := u.count(), sum("gateway_store_duration_seconds_count")
			denials := func() float64 {
				return sum("gateway_ratelimit_decisions_total", `plan="`+name+`"`, `outcome="denied"`, `source="redis"`)
			}
			var admitted int64
			began := time.Now()
			// most is the quota, and what has come back of a bucket.
			most := func() int64 {
				if name == "fixed_window" {
					return quota
				}
				return quota + int64(time.Since(began))*quota/int64(24*time.Hour) + 1
			}
			round := func(lasting time.Duration) map[int]int64 {
				statuses := overload(t, gateways, "/api/weather", keyOf(name), lasting)
				if admitted += statuses[200]; admitted > most() || len(statuses) > 2 || statuses[200]+statuses[429] == 0 {
					t.Fatalf("%d admitted, at most %d: %v", admitted, most(), statuses)
				}
				return statuses
			}
			for spent := false; !spent; {
				statuses := round(time.Second)
				spent = statuses[429] > statuses[200]
			}
			asked := sum("gateway_store_duration_seconds_count") - calls - denials()
			perRequest := asked / float64(admitted)
			t.Logf("%d gateways: %d admitted, %.4f calls to Redis for each", len(gateways), admitted, perRequest)
			if perRequest > 0.05 {
				t.Errorf("Redis was asked %.0f times to admit %d requests", asked, admitted)
			}
			if sum("gateway_ratelimit_decisions_total", `plan="`+name+`"`, `source="lease"`) < float64(admitted)*0.9 {
				t.Error("less than nine in ten were paid from blocks")
			}
			// What lay in blocks comes back, and is spent by whoever asks.
			eventually(t, "all of the quota is admitted", func() bool {
				round(200 * time.Millisecond)
				return admitted >= quota
			})
			if reached := int64(u.count() - before); reached != admitted {
				t.Errorf("%d requests reached the upstream, %d were admitted", reached, admitted)
			}
		})
	}
	eventually(t, "no block is held any more", func() bool { return sum("gateway_lease_blocks") == 0 })
	for _, name := range []string{"gateway_lease_stranded_units_total", "gateway_lease_overflow_total", "gateway_store_errors_total"} {
		if n := sum(name); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
	everyKeyEnds(t, srv)
}

// A gateway that ends gives back what it has taken in advance.
func TestSIGTERMReturnsLeases(t *testing.T) {
	u := newUpstream(t, nil)
	srv := redistest.Start(t)
	s := plansSite(t, u, `store: {redis: {url: "`+srv.URL()+`", timeout: 5s}}`,
		"      - {name: hot, algorithm: fixed_window, limit: 100/day, lease: {size: 50, ttl: 10s}}\n", "")
	s.write("keys.yaml", "keys:\n"+keyEntry("priya123", "plan: free"))
	g := s.launch()
	g.serving()
	for range 3 {
		if a, err := trySend("GET", g.url+"/api/weather", nil, "X-API-Key", keyOf("priya123")); err != nil || a.status != 200 {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	rdb := srv.Client(t)
	used := func() int64 {
		keys := rdb.Keys(t.Context(), "*hot*").Val()
		if len(keys) != 1 {
			t.Fatalf("keys of the limit: %q", keys)
		}
		return int64(float64At(rdb.Get(t.Context(), keys[0]).Val()))
	}
	if n := used(); n != 1+50 {
		t.Errorf("%d units are charged while a block of 50 is held", n)
	}
	g.stop()
	if n := used(); n != 3 {
		t.Errorf("%d units are charged after the end, want the 3 that were spent", n)
	}
}
