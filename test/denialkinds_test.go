package test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"bouncer/internal/redistest"
)

// FIELD-REPORTS H07: which limit denied, or which stage refused, who decided and whom,
// is told by the metrics and by the line of the request: no two kinds look alike.
func TestH07DeniedCounterCannotAnswerWhichLimitWho(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	echo := newSocketUpstream(t)
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	s := newSite(t)
	s.write("keys.yaml", keysOf("priya123", "sharing", "caller-0", "caller-1"))
	s.write("plans.yaml", `
default_plan: free
anonymous_plan: anonymous
plans:
  anonymous: {limits: []}
  free:
    local_cap: 1/hour
    limits: [{name: per-day, algorithm: fixed_window, limit: 2/day}]
  shares: {limits: [{name: trial, algorithm: fixed_window, limit: 1/day, mode: shadow}]}
`)
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [127.0.0.1]}
store: {redis: {url: "`+srv.URL()+`", timeout: 5s}}
auth: {failure_limit: 2/hour, api_keys: {file: keys.yaml}}
limits:
  edge-ip: {per: ip, algorithm: fixed_window, limit: 4/hour}
  login:   {per: ip, algorithm: fixed_window, limit: 1/day}
edge: [edge-ip]
upstreams:
  api:     {targets: ["`+u.URL+`"]}
  sockets: {targets: ["`+echo.URL+`"]}
routes:
  - {name: weather, path: /weather, upstream: api}
  - {name: login, path: /login, upstream: api, auth: none, limits: [login]}
  - {name: open, path: "/*", upstream: api, auth: none}
  - {name: socket, path: /socket, upstream: sockets, auth: none, websocket: {max_connections: 1}}
  - {name: closed, path: /closed, upstream: api, on_store_failure: deny}
  - {name: capped, path: /capped, upstream: api, on_store_failure: local_cap}
`)
	g := s.start()
	from := func(n int) []string { return []string{"X-Forwarded-For", fmt.Sprintf("203.0.113.%d", n)} }
	by := func(user string, n int) []string { return append(from(n), "X-API-Key", keyOf(user)) }
	handshake := append(from(8), "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
	g.openSocket(from(8)...)
	verdict := func(route, plan, limit, outcome, source string) string {
		return fmt.Sprintf(`gateway_ratelimit_decisions_total{limit=%q,outcome=%q,plan=%q,route=%q,source=%q}`, limit, outcome, plan, route, source)
	}
	target := strings.TrimPrefix(u.URL, "http://")
	// telling are the series that say why; a kind moves one of them, once, and no other.
	telling := func() map[string]string {
		m := g.metrics()
		maps.DeleteFunc(m, func(series, _ string) bool {
			return !contains(series, "_decisions_total", "denied") && !contains(series, "gateway_auth_refused_total") && !contains(series, "not_looked_at") &&
				!contains(series, "gateway_websockets_refused_total") && !contains(series, "gateway_upstream_requests_total", `code="429"`) &&
				!contains(series, "gateway_requests_total", `code="503"`)
		})
		return m
	}
	seen := map[string]string{}
	for _, kind := range []struct {
		name           string
		before         int // of the same requests, that are something else
		path           string
		fields         []string
		status         int
		deniedBy, from string
		reached        bool // the upstream
		series         string
		away           bool // and Redis with it, from then on
	}{
		{"the edge", 4, "/a", from(1), 429, "edge-ip", "memory", false, verdict("open", "", "edge-ip", "denied", "memory"), false},
		{"a limit of the plan", 2, "/weather", by("priya123", 2), 429, "per-day", "redis", false, verdict("weather", "free", "per-day", "denied", "redis"), false},
		{"the same, told again", 0, "/weather", by("priya123", 3), 429, "per-day", "deny_cache", false, verdict("weather", "free", "per-day", "denied", "deny_cache"), false},
		{"a limit of the route", 1, "/login", from(4), 429, "login", "redis", false, verdict("login", "anonymous", "login", "denied", "redis"), false},
		{"a limit in shadow", 1, "/weather", by("sharing", 5), 200, "", "redis", true, verdict("weather", "shares", "trial", "shadow_denied", "redis"), false},
		{"the upstream", 0, "/busy", from(6), 429, "", "memory", true, `gateway_upstream_requests_total{code="429",target="` + target + `",upstream="api"}`, false},
		{"a wrong key", 0, "/weather", by("nobody", 7), 401, "unauthorized", "memory", false, `gateway_auth_refused_total{method="api_key",reason="unknown_key"}`, false},
		{"wrong keys again and again", 1, "/weather", by("nobody", 7), 429, "failure_limit", "memory", false, `gateway_auth_total{method="none",outcome="not_looked_at"}`, false},
		{"WebSockets", 0, "/socket", handshake, 429, "websocket_connections", "memory", false, `gateway_websockets_refused_total`, false},
		{"a cap of this instance", 1, "/capped", by("caller-1", 9), 429, "local-cap", "local_cap", false, verdict("capped", "free", "local-cap", "denied", "local_cap"), true},
		{"no store and no leave to go without", 0, "/closed", by("caller-1", 10), 503, "store_unavailable", "memory", false, `gateway_requests_total{code="503",method="GET",route="closed"}`, false},
	} {
		if kind.away {
			srv.Kill()
			n := 100
			eventually(t, "the gateway notices that Redis is away", func() bool {
				n++
				g.get("/closed", by("caller-0", n)...)
				return g.value(`gateway_fallback_active{mode="deny"}`) == 1
			})
		}
		for range kind.before {
			g.requestLine(g.get(kind.path, kind.fields...).field("X-Request-Id"))
		}
		before := telling()
		a := g.get(kind.path, kind.fields...)
		line := g.requestLine(a.field("X-Request-Id")) // it is written when all is counted
		after := telling()
		maps.DeleteFunc(after, func(series, n string) bool { return n == "0" || n == before[series] })
		if moved := slices.Sorted(maps.Keys(after)); !slices.Equal(moved, []string{kind.series}) {
			t.Errorf("%s moves %v, want %s alone", kind.name, moved, kind.series)
		}
		if a.status != kind.status || str(line, "denied_by") != kind.deniedBy || str(line, "source") != kind.from || (line["target"] != nil) != kind.reached {
			t.Errorf("%s: %d, logged %v; want %d, denied_by %q, source %q", kind.name, a.status, line, kind.status, kind.deniedBy, kind.from)
		}
		if user := kind.fields[len(kind.fields)-1]; strings.HasPrefix(user, "the-key-of-") && user != keyOf("nobody") && str(line, "key_id") != "k-"+strings.TrimPrefix(user, "the-key-of-") {
			t.Errorf("%s: the line does not say whose key it was: %v", kind.name, line)
		}
		look := fmt.Sprint(line["status"], line["denied_by"], line["source"], line["target"])
		if seen[look] != "" {
			t.Errorf("%s and %s are logged alike: %s", kind.name, seen[look], look)
		}
		seen[look] = kind.name
	}
}
