package test

import (
	"testing"

	"bouncer/internal/redistest"
)

// FIELD-REPORTS I01: when Redis goes, every instance stays alive and ready, says that it
// is degraded, and serves what it may; when it is back, none says so any more.
func TestReadinessIsNotTiedToRedis(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	srv := redistest.Start(t)
	s := awaySite(t, u, srv.URL(), "5s")
	all := []*gateway{s.start(), s.start(), s.start()}
	for _, g := range all {
		g.shared()
		g.ready(false)
	}
	srv.Kill()
	key := keyOf("priya123")
	for _, g := range all {
		eventually(t, "the gateway notices that Redis is away", func() bool {
			g.get("/open", "X-API-Key", keyOf("fresh"))
			return g.fallback() == 3
		})
	}
	for _, g := range all {
		g.ready(true)
		if a := g.get("/capped", "X-API-Key", key); a.status != 200 || !isLocal(a) {
			t.Errorf("a route with a local cap: %d %v", a.status, a.header)
		}
		if a := g.get("/open", "X-API-Key", key); a.status != 200 {
			t.Errorf("a route that goes without: %d", a.status)
		}
		wantRefused(t, g.get("/closed", "X-API-Key", key))
		g.ready(true) // whatever it refused
	}
	srv.Restart()
	for _, g := range all {
		g.shared()
		g.ready(false)
	}
}
