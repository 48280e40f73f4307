package gateway

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bouncer/gateway/config"
)

// rehearse loads two files and makes a rehearsal of them.
func rehearse(t *testing.T, routes, plans string) *Rehearsal {
	t.Helper()
	dir := t.TempDir()
	o := config.Options{Routes: filepath.Join(dir, "routes.yaml"), Plans: filepath.Join(dir, "plans.yaml")}
	for path, text := range map[string]string{o.Routes: routes, o.Plans: plans, filepath.Join(dir, "keys.yaml"): "keys: []"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, report := config.Load(o)
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	h, err := Rehearse(cfg, RehearsalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func TestARehearsalDecidesAsTheGatewayWould(t *testing.T) {
	t.Parallel()
	h := rehearse(t, `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
auth: {api_keys: {file: keys.yaml}}
limits:
  edge-ip: {per: ip, algorithm: token_bucket, limit: 60/minute, burst: 30}
edge: [edge-ip]
upstreams: {api: {targets: [http://127.0.0.1:1]}}
routes:
  - {name: api, path: "/api/*", methods: [GET], upstream: api}
`, `
default_plan: free
plans:
  free:
    limits: [{name: per-minute, algorithm: token_bucket, limit: 100/minute, burst: 20}]
  pro: {limits: []}
overrides: [{user: vip, plan: pro}]
`)
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	do := func(at time.Duration, method, target string, as *Caller) Verdict {
		r := httptest.NewRequest(method, target, nil)
		r.RemoteAddr = "203.0.113.7:4711"
		return h.Do(Attempt{At: noon.Add(at), Request: r, As: as})
	}
	priya := &Caller{User: "priya123"}
	for i := range 20 {
		if v := do(0, "GET", "/api/x", priya); v.Refused != nil {
			t.Fatalf("request %d: %v", i+1, v.Refused)
		}
	}
	v := do(0, "GET", "/api/x", priya)
	if v.Refused == nil || v.Refused.Status != 429 || v.Request.DeniedBy != "per-minute" || v.Refused.RetryAfter != 600*time.Millisecond {
		t.Fatalf("the 21st: want 429 by per-minute for 600ms, got %+v, denied by %q", v.Refused, v.Request.DeniedBy)
	}
	if len(v.Edge) != 1 || len(v.Limits) != 1 || v.Limits[0].Charge.Partition != "{user:priya123}" {
		t.Errorf("asked of the edge %v, of the limits %v", v.Edge, v.Limits)
	}
	if v.Request.Plan != "free" || v.PlanFrom != "default_plan" {
		t.Errorf("plan %s from %s", v.Request.Plan, v.PlanFrom)
	}
	if v := do(600*time.Millisecond, "GET", "/api/x", priya); v.Refused != nil {
		t.Errorf("after Retry-After: %v", v.Refused)
	}
	if v := do(600*time.Millisecond, "GET", "/api/x", &Caller{User: "vip"}); v.Refused != nil || v.Request.Plan != "pro" || len(v.Limits) != 0 {
		t.Errorf("the override: %+v", v)
	}
	if v := do(600*time.Millisecond, "GET", "/api/x", nil); v.Refused == nil || v.Refused.Status != 401 {
		t.Errorf("without credentials: %+v", v.Refused)
	}
	if v := do(600*time.Millisecond, "GET", "/nowhere", priya); v.Refused == nil || v.Refused.Status != 404 || v.Request.Route != "unmatched" {
		t.Errorf("no route: %+v", v.Refused)
	}
	// The edge has counted all of them, 25, and has five left.
	for range 5 {
		do(600*time.Millisecond, "GET", "/nowhere", nil)
	}
	if v := do(600*time.Millisecond, "GET", "/api/x", priya); v.Refused == nil || v.Request.DeniedBy != "edge-ip" {
		t.Errorf("the edge: %+v", v.Refused)
	}
}
