package explain_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bouncer/gateway"
	"bouncer/gateway/config"
	"bouncer/gateway/explain"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/memory"
)

const routes = `
listen: {http: "127.0.0.1:0"}
client_ip: {trusted_proxies: [10.0.0.0/8]}
auth: {api_keys: {file: keys.yaml}}
limits:
  edge-ip: {per: ip, algorithm: token_bucket, limit: 600/minute, burst: 100}
  exports: {per: global, algorithm: fixed_window, limit: 50/hour}
edge: [edge-ip]
upstreams: {api: {targets: ["http://127.0.0.1:1"]}}
routes:
  - {name: all, path: "/api/*", upstream: api}
  - {name: export, path: "/api/export/*", methods: [GET], upstream: api, cost: 10, limits: [exports], on_store_failure: allow}
  - {name: strict, path: /api/strict, upstream: api, on_store_failure: deny}
`

const plans = `
default_plan: free
plans:
  free:
    limits:
      - {name: per-minute, algorithm: token_bucket, limit: 100/minute, burst: 20}
      - {name: team, per: [tenant, route], algorithm: fixed_window, limit: 1000/hour, mode: shadow}
overrides: []
`

func load(t *testing.T) *config.Config { return loadRoutes(t, routes) }

func loadRoutes(t *testing.T, routes string) *config.Config {
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
	return cfg
}

func ask(t *testing.T, cfg *config.Config, target string, as *gateway.Caller, store ratelimit.Store) *explain.Answer {
	t.Helper()
	r := httptest.NewRequest("GET", target, nil)
	r.RemoteAddr = "10.0.0.1:1"
	r.Header.Set("X-Forwarded-For", "203.0.113.7")
	a, err := explain.Explain(cfg, explain.Query{Request: r, As: as, Store: store, At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestEveryPartOfTheAnswer(t *testing.T) {
	t.Parallel()
	a := ask(t, load(t), "/api/export/9", &gateway.Caller{User: "priya123"}, nil)
	if !a.Verdict.Allowed || a.Cost != 10 || a.Live {
		t.Errorf("verdict %+v, cost %d, live %v", a.Verdict, a.Cost, a.Live)
	}
	if a.Client.IP != "203.0.113.7" || !strings.Contains(a.Client.Why, "the peer is trusted") {
		t.Errorf("client %+v", a.Client)
	}
	if a.Route == nil || a.Route.Name != "export" || a.Route.Why != "more specific than all" || !strings.HasSuffix(a.Route.At, "routes.yaml:12:5") {
		t.Errorf("route %+v", a.Route)
	}
	if a.Plan == nil || a.Plan.Name != "free" || a.Plan.From != "default_plan" {
		t.Errorf("plan %+v", a.Plan)
	}
	want := []struct{ name, from, mode, key string }{
		{"edge-ip", "edge", "enforce", "{ip:203.0.113.7}:edge/edge-ip:tb/60"},
		{"per-minute", "plan", "enforce", "{user:priya123}:plan/per-minute:tb/60"},
		{"team", "plan", "shadow", "{ip:203.0.113.7|route:export}:plan/team:fw/3600"},
		{"exports", "route", "enforce", "{global}:limit/exports:fw/3600"},
	}
	if len(a.Limits) != len(want) {
		t.Fatalf("limits %+v", a.Limits)
	}
	for i, w := range want {
		l := a.Limits[i]
		if l.Name != w.name || l.From != w.from || l.Mode != w.mode || l.Key != w.key {
			t.Errorf("limit %d: got %+v, want %+v", i, l, w)
		}
		if l.Remaining != l.Capacity {
			t.Errorf("%s: %d of %d left, of a caller who has spent nothing", l.Name, l.Remaining, l.Capacity)
		}
		if l.Binds != (l.Name == "per-minute") {
			t.Errorf("%s binds: %v", l.Name, l.Binds)
		}
	}
	if !strings.Contains(a.Limits[2].Note, "no tenant") {
		t.Errorf("nothing is said of the missing tenant: %q", a.Limits[2].Note)
	}
	var text strings.Builder
	if err := a.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"more specific than all", "token_bucket 100/minute, burst 20", "user priya123", "allowed"} {
		if !strings.Contains(text.String(), words) {
			t.Errorf("no %q in:\n%s", words, text.String())
		}
	}
	if b, err := json.Marshal(a); err != nil || !strings.Contains(string(b), `"binds":true`) {
		t.Errorf("JSON %s, %v", b, err)
	}
}

func TestTheStoreIsLookedAtAndNothingIsConsumed(t *testing.T) {
	t.Parallel()
	cfg := load(t)
	store, err := memory.New(memory.Options{Source: ratelimit.SourceRedis})
	if err != nil {
		t.Fatal(err)
	}
	per, err := ratelimit.NewPolicy(ratelimit.Policy{
		Name: "per-minute", Scope: "plan/per-minute", Algorithm: ratelimit.TokenBucket, Quota: 100, Window: time.Minute, Burst: 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	who := ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: "priya123"})
	if _, err := store.Take(t.Context(), []ratelimit.Charge{{Policy: per, Partition: who, Caller: who, Cost: 15}}, nil); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a := ask(t, cfg, "/api/export/9", &gateway.Caller{User: "priya123"}, store)
		l := a.Limits[1]
		if !a.Live || l.Remaining != 5 || l.Allows || !l.Binds || l.ResetS <= 0 {
			t.Errorf("live %v, %+v", a.Live, l)
		}
		if a.Verdict.Allowed || a.Verdict.Status != 429 || a.Verdict.By != "per-minute" {
			t.Errorf("verdict %+v", a.Verdict)
		}
	}
	if a := ask(t, cfg, "/api/x", &gateway.Caller{User: "priya123"}, store); !a.Verdict.Allowed || a.Limits[1].Remaining != 5 {
		t.Errorf("a cheaper request: %+v", a)
	}
}

type brokenStore struct{}

func (brokenStore) Take(_ context.Context, _ []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	return dst, errors.New("no route to host")
}

func TestAStoreThatIsAwayIsSaid(t *testing.T) {
	t.Parallel()
	a := ask(t, load(t), "/api/x", &gateway.Caller{User: "priya123"}, brokenStore{})
	if a.Live || a.Store != "no route to host" {
		t.Errorf("live %v, store %q", a.Live, a.Store)
	}
}

// A store that cannot be reached from here is no 503 by itself: the route says
// what a gateway does without it.
func TestWithoutTheStoreTheVerdictIsTheRoutes(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]explain.Verdict{
		"/api/x":        {Allowed: true, Why: "a gateway without the store would carry it as far as its own memory allows (on_store_failure: local_cap)"},
		"/api/export/1": {Allowed: true, Why: "a gateway without the store would carry it uncounted (on_store_failure: allow)"},
		"/api/strict":   {Status: 503, By: "store_unavailable", Why: "Limits cannot be checked at the moment, and this path is not served without them. Try again shortly."},
		"/elsewhere":    {Status: 404, By: "no_route", Why: "There is nothing here under this path."},
	} {
		a := ask(t, load(t), target, &gateway.Caller{User: "priya123"}, brokenStore{})
		if a.Verdict != want {
			t.Errorf("%s: %+v, want %+v", target, a.Verdict, want)
		}
		if a.Route != nil && (a.Store == "" || len(a.Limits) < 3) {
			t.Errorf("%s: store %q and limits %+v, want why the store is not known and what it would have been asked", target, a.Store, a.Limits)
		}
	}
}

func TestWhoIsRefusedAndWhy(t *testing.T) {
	t.Parallel()
	cfg := load(t)
	if a := ask(t, cfg, "/api/x", nil, nil); a.Verdict.Status != 401 || a.Verdict.Why != "no credentials" {
		t.Errorf("%+v", a.Verdict)
	}
	if a := ask(t, cfg, "/nowhere", nil, nil); a.Verdict.Status != 404 || a.Route != nil {
		t.Errorf("%+v", a)
	}
	hostile := ask(t, cfg, "/api/x", &gateway.Caller{User: "\x1b[31m\r\nroot"}, nil)
	var text strings.Builder
	if err := hostile.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(text.String(), "\x1b\r") {
		t.Errorf("a caller's name reaches the terminal: %q", text.String())
	}
}

func TestWhatARouteWantsIsSaid(t *testing.T) {
	t.Parallel()
	cfg := loadRoutes(t, strings.Replace(routes, "/api/strict, upstream: api,",
		"/api/strict, upstream: api, allow_ips: [203.0.113.0/24], deny_ips: [203.0.113.9], scopes: [read, write], plans: [free],", 1))
	yes, no := true, false
	for name, c := range map[string]struct {
		as   *gateway.Caller
		want []*bool
		by   string
	}{
		"nobody":        {nil, []*bool{&yes, &yes, nil, nil, nil}, "unauthorized"},
		"a key":         {&gateway.Caller{KeyID: "k-1", User: "u", Scopes: []string{"write"}}, []*bool{&yes, &yes, &no, &yes, &yes}, "missing_scope"},
		"a token":       {&gateway.Caller{User: "u"}, []*bool{&yes, &yes, &yes, &yes, &yes}, ""},
		"another's key": {&gateway.Caller{User: "u", KeyID: "k-1", Scopes: []string{"read", "write"}, Routes: []string{"all"}}, []*bool{&yes, &yes, &no, &yes, &yes, &yes}, "not_for_route"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := ask(t, cfg, "/api/strict", c.as, nil)
			if a.Verdict.By != c.by || len(a.Wants) != len(c.want) {
				t.Fatalf("verdict %+v, wants %+v", a.Verdict, a.Wants)
			}
			for i, w := range a.Wants {
				if (w.Has == nil) != (c.want[i] == nil) || w.Has != nil && *w.Has != *c.want[i] {
					t.Errorf("%+v: want %v", w, c.want[i])
				}
			}
			var text strings.Builder
			if err := a.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text.String(), "an address in 203.0.113.0/24: yes") {
				t.Errorf("%s", text.String())
			}
		})
	}
}

func TestRoutesStandInMatchingOrder(t *testing.T) {
	t.Parallel()
	cfg := load(t)
	cfg.Routes = append(cfg.Routes,
		&config.Route{Name: "by-id", Path: "/api/{id}"},
		&config.Route{Name: "hosted", Host: "api.example.test", Path: "/*"},
		&config.Route{Name: "plain", Path: "/api/list"},
		&config.Route{Name: "digits", Path: "/api/{id:[0-9]+}"},
	)
	var text strings.Builder
	if err := explain.WriteRoutes(&text, cfg); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(text.String()) {
		got = append(got, strings.Fields(line)[0])
	}
	if want := "ROUTE hosted export plain strict digits by-id all"; strings.Join(got, " ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, " "), want)
	}
}

func TestWhereARouteSendsARequestIsSaid(t *testing.T) {
	changed := strings.Replace(routes, "cost: 10,", "strip_prefix: /api/export, cors: {origins: [\"*\"]}, cost: 10,", 1)
	cfg := loadRoutes(t, changed)
	q := explain.Query{At: time.Unix(0, 0), Request: httptest.NewRequest("GET", "/api/export/9?x=1", nil), As: &gateway.Caller{User: "u"}}
	a, err := explain.Explain(cfg, q)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := a.WriteText(&b); err != nil || a.Route.Target != "/9?x=1" || !strings.Contains(b.String(), "the upstream is asked for /9?x=1") {
		t.Errorf("%q, %v:\n%s", a.Route.Target, err, b.String())
	}
	q.Request = httptest.NewRequest("OPTIONS", "/api/export/9", nil)
	q.Request.Header.Set("Origin", "https://a.example")
	q.Request.Header.Set("Access-Control-Request-Method", "GET")
	if a, err = explain.Explain(cfg, q); err != nil {
		t.Fatal(err)
	}
	if len(a.Limits) != 0 || !a.Verdict.Allowed || a.Cost != 0 || !strings.Contains(a.Route.Why, "preflight") {
		t.Errorf("a preflight: %+v %+v, limits %v", a.Route, a.Verdict, a.Limits)
	}
}
