package test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// openSite is the smallest site: one route that asks nobody who they are.
func openSite(t testing.TB, u *upstream) *site {
	s := newSite(t)
	s.write("plans.yaml", `
anonymous_plan: anonymous
plans:
  anonymous: {limits: [{name: per-minute, per: ip, algorithm: token_bucket, limit: 600/minute}]}
`)
	s.write("routes.yaml", openRoutes(u, "127.0.0.1:0"))
	return s
}

func openRoutes(u *upstream, address string) string {
	return `
listen: {http: "` + address + `", admin: "127.0.0.1:0"}
upstreams:
  weather: {targets: ["` + u.URL + `"]}
routes:
  - {name: weather, path: /api/weather, methods: [GET], upstream: weather, auth: none}
  - {name: files, path: "/files/*", upstream: weather, auth: none}
`
}

var fiveMistakes = map[string]string{
	"plans.yaml": `anonymous_plan: anonymous
plans:
  anonymous:
    limits:
      - {name: per-minute, per: ip, algorithm: token_buket, limit: 600/minute}
      - {name: per-day, per: ip, algorithm: fixed_window, limit: 100/fortnight}
`,
	"routes.yaml": `listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
shutdown_timeout: 30
upstreams:
  weather: {targets: ["http://127.0.0.1:1"]}
routes:
  - {name: weather, path: /api/weather, upstream: wether, auth: none}
  - {name: files, path: "/files/*", upstream: weather, auth: none, metods: [GET]}
`,
}

// Five different mistakes are five messages, each with its place and a hint.
func TestFiveMistakesAreFiveMessages(t *testing.T) {
	s := newSite(t)
	for name, content := range fiveMistakes {
		s.write(name, content)
	}
	r := s.command("check")
	if r.code != 1 {
		t.Errorf("exit code %d, want 1", r.code)
	}
	for place, words := range map[string][]string{
		"plans.yaml:5:":  {"token_buket", `did you mean "token_bucket"`},
		"plans.yaml:6:":  {"fortnight", "day"},
		"routes.yaml:2:": {"shutdown_timeout", "30s"},
		"routes.yaml:6:": {"wether", `did you mean "weather"`},
		"routes.yaml:7:": {"metods", `did you mean "methods"`},
	} {
		found := false
		for line := range strings.Lines(r.stdout) {
			found = found || (strings.HasPrefix(line, place) && contains(line, words...) &&
				regexp.MustCompile(`^[a-z.]+:\d+:\d+: `).MatchString(line))
		}
		if !found {
			t.Errorf("no message at %s with %q in\n%s", place, words, r.stdout)
		}
	}
	if n := strings.Count(r.stdout, "\n"); n != 6 {
		t.Errorf("%d lines, want five mistakes and their count:\n%s", n, r.stdout)
	}
	if r := s.command("run"); r.code != 1 || !contains(r.stderr, "plans.yaml:5:", "routes.yaml:7:") {
		t.Errorf("run on a broken configuration: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// A configuration with a mistake changes nothing, and says so.
func TestABadReloadLeavesTheOldConfigurationInForce(t *testing.T) {
	u := newUpstream(t, nil)
	s := openSite(t, u)
	g := s.start()
	for name, content := range fiveMistakes {
		s.write(name, content)
	}
	eventually(t, "the log says that the change is refused", func() bool {
		line := g.logged(reloadRejected)
		return line != nil && len(line["mistakes"].([]any)) == 5
	})
	if a := g.get("/api/weather"); a.status != 200 {
		t.Errorf("the old configuration is not in force: %d", a.status)
	}
	m := g.metrics()
	if m["gateway_config_last_reload_success"] != "0" || m[`gateway_config_reloads_total{outcome="rejected"}`] == "0" {
		t.Errorf("the metrics do not tell: success %s, rejected %s", m["gateway_config_last_reload_success"], m[`gateway_config_reloads_total{outcome="rejected"}`])
	}
	// The same bytes are not tried, and not complained about, again and again.
	complaints := len(g.all(reloadRejected))
	if g.reload() {
		t.Error("SIGHUP applied a broken configuration")
	}
	if got := len(g.all(reloadRejected)); got != complaints+1 {
		t.Errorf("%d complaints after one SIGHUP, want %d", got, complaints+1)
	}
	s.write("routes.yaml", openRoutes(u, "127.0.0.1:0")+"  - {name: new, path: /new, upstream: weather, auth: none}\n")
	s.write("plans.yaml", "anonymous_plan: a\nplans: {a: {limits: []}}\n")
	eventually(t, "the next good configuration is in force", func() bool {
		return g.get("/new").status == 200
	})
	if m := g.metrics(); m["gateway_config_last_reload_success"] != "1" {
		t.Errorf("gateway_config_last_reload_success is %s after a good reload", m["gateway_config_last_reload_success"])
	}
}

// A ConfigMap is a symlink to a directory that is swapped whole.
func TestASymlinkSwapIsNoticed(t *testing.T) {
	u := newUpstream(t, nil)
	s := openSite(t, u)
	plans, err := os.ReadFile(s.path("plans.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	version := func(name, extra string) {
		dir := s.path(name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{"plans.yaml": string(plans), "routes.yaml": openRoutes(u, "127.0.0.1:0") + extra} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		link := s.path("..data_tmp")
		if err := os.Symlink(name, link); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link, s.path("..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", "")
	for _, file := range []string{"plans.yaml", "routes.yaml"} {
		if err := os.Remove(s.path(file)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("..data", file), s.path(file)); err != nil {
			t.Fatal(err)
		}
	}
	g := s.start()
	for i := 2; i <= 6; i++ { // five swaps in a row
		path := fmt.Sprintf("/swap-%d", i)
		version(fmt.Sprintf("..%d", i), fmt.Sprintf("  - {name: swap, path: %s, upstream: weather, auth: none}\n", path))
		eventually(t, "the swapped configuration is in force", func() bool { return g.get(path).status == 200 })
	}
}

// FIELD-REPORTS I12: each mistake has a message of its own that says what to do, and a
// fault of the configuration is no state to serve in.
func TestWhatCannotStartSaysWhatToDo(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	t.Run("a port in use", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		s := openSite(t, u)
		s.write("routes.yaml", openRoutes(u, l.Addr().String()))
		if r := s.command("run"); r.code != 1 || !contains(r.stderr, "listen.http", l.Addr().String(), "in use", "another address") {
			t.Errorf("exit %d: %s", r.code, r.stderr)
		}
	})
	t.Run("a missing key file", func(t *testing.T) {
		s := openSite(t, u)
		s.write("routes.yaml", openRoutes(u, "127.0.0.1:0")+"auth: {api_keys: {file: nokeys.yaml}}\n")
		if r := s.command("run"); r.code != 1 || !contains(r.stderr, "routes.yaml:", "nokeys.yaml", "gateway keys new") {
			t.Errorf("exit %d: %s", r.code, r.stderr)
		}
	})
	t.Run("a missing file", func(t *testing.T) {
		s := openSite(t, u)
		if r := s.command("run", "-plans", "elsewhere.yaml"); r.code != 1 || !contains(r.stderr, "elsewhere.yaml") {
			t.Errorf("exit %d: %s", r.code, r.stderr)
		}
	})
	t.Run("nothing to serve", func(t *testing.T) {
		for what, c := range map[string]struct {
			make func(path string) error
			says []string
		}{
			"an empty file":       {func(path string) error { return os.WriteFile(path, nil, 0o600) }, []string{"the file is empty", "listen, upstreams and routes"}},
			"a directory":         {func(path string) error { return os.Mkdir(path, 0o700) }, []string{"is a directory", "want a file"}},
			"a wrong mount":       {func(string) error { return nil }, []string{"no such file"}},
			"a dangling symlink":  {func(path string) error { return os.Symlink("..data/routes.yaml", path) }, []string{"no such file"}},
			"no routes":           {func(path string) error { return os.WriteFile(path, []byte("routes: []\n"), 0o600) }, []string{"holds no route", "want at least one"}},
			"not its own to read": {func(path string) error { return os.WriteFile(path, []byte("routes: []\n"), 0) }, []string{"permission denied"}},
		} {
			if what == "not its own to read" && os.Geteuid() == 0 {
				continue // root may read everything
			}
			s := openSite(t, u)
			if err := os.Remove(s.path("routes.yaml")); err != nil {
				t.Fatal(err)
			}
			if err := c.make(s.path("routes.yaml")); err != nil {
				t.Fatal(err)
			}
			if r := s.command("run"); r.code != 1 || !contains(r.stderr, append(c.says, "routes.yaml")...) {
				t.Errorf("%s: exit %d: %s", what, r.code, r.stderr)
			}
		}
	})
	t.Run("a wrong command line", func(t *testing.T) {
		s := openSite(t, u)
		for _, args := range [][]string{{"serve"}, {"run", "-port", "80"}, {"check", "routes.yaml"}, {"keys"}, {"keys", "mint"}, {"keys", "revoke"}, {"simulate"}, {"explain", "-json"}, {"help", "serve"}, {"keys", "new", "-allow-ip", "10.0.0.0/33"}} {
			if r := s.command(args...); r.code != 2 || r.stderr == "" || r.stdout != "" || strings.Contains(r.stderr, "Flags:") {
				t.Errorf("gateway %v: exit %d, stdout %q, stderr %q; want 2 and a word on stderr, not a page", args, r.code, r.stdout, r.stderr)
			}
		}
		for _, args := range [][]string{{"-h"}, {"--help"}, {"help"}, {"help", "test"}, {"run", "-h"}, {"check", "--help"}, {"keys", "new", "-h"}} {
			if r := s.command(args...); r.code != 0 || !contains(r.stdout, "xamples:") {
				t.Errorf("gateway %v: exit %d, %q", args, r.code, r.stdout)
			}
		}
		if r := s.command("help", "schema"); !contains(r.stdout, "gateway schema prints") {
			t.Errorf("gateway help schema explains something else: %q", r.stdout)
		}
	})
	t.Run("no Redis", func(t *testing.T) {
		s := openSite(t, u)
		s.write("routes.yaml", openRoutes(u, "127.0.0.1:0")+`store: {redis: {url: "redis://`+deadAddress(t)+`"}}`+"\n")
		g := s.start()
		if a := g.get("/api/weather"); a.status != 200 {
			t.Errorf("without its Redis: %d", a.status)
		}
		eventually(t, "the log says that the store is away", func() bool {
			return contains(g.output(), "the limit store is away", "on_store_failure", `"kind":"refused"`)
		})
	})
}

func TestUnknownPathsAndMethods(t *testing.T) {
	u := newUpstream(t, nil)
	g := openSite(t, u).start()
	if a := g.get("/nothing/here"); a.status != 404 || a.problem(t)["type"] != "about:blank" {
		t.Errorf("unknown path: %d %s", a.status, a.body)
	}
	a := send(t, "DELETE", g.url+"/api/weather", nil)
	if a.status != 405 || a.field("Allow") != "GET, HEAD" {
		t.Errorf("wrong method: %d, Allow %q", a.status, a.field("Allow"))
	}
	p := a.problem(t)
	for _, member := range []string{"type", "title", "status", "detail", "request_id"} {
		if p[member] == nil || p[member] == "" {
			t.Errorf("the problem has no %s: %v", member, p)
		}
	}
	line := g.requestLine(fmt.Sprint(p["request_id"]))
	for member, want := range map[string]any{"route": "unmatched", "status": 405.0, "method": "DELETE", "path": "/api/weather", "client_ip": "127.0.0.1"} {
		if member == "route" {
			continue // the path has a route, the method has none
		}
		if line[member] != want {
			t.Errorf("the log line has %s %v, want %v", member, line[member], want)
		}
	}
	if a := send(t, "HEAD", g.url+"/nothing", nil); a.status != 404 || a.body != "" {
		t.Errorf("HEAD: %d with a body of %d bytes", a.status, len(a.body))
	}
	if u.count() != 0 {
		t.Errorf("%d of these reached the upstream", u.count())
	}
}

// The names dashboards and alarms are built on, each there from the start.
func TestMetricsHealthAndReadiness(t *testing.T) {
	u := newUpstream(t, nil)
	s := openSite(t, u)
	g := s.start()
	m := g.metrics()
	for _, want := range []string{
		`gateway_config_reloads_total{outcome="applied"}`, `gateway_config_reloads_total{outcome="rejected"}`,
		`gateway_in_flight{route="weather"}`,
		`gateway_ratelimit_decisions_total{limit="per-minute",outcome="allowed",plan="anonymous",route="weather",source="memory"}`,
		`gateway_ratelimit_decisions_total{limit="per-minute",outcome="denied",plan="anonymous",route="weather",source="memory"}`,
		`gateway_auth_total{method="api_key",outcome="accepted"}`, `gateway_unknown_plan_total`, `gateway_store_overflow_total`,
		`gateway_fallback_active{mode="local_cap"}`, `gateway_store_errors_total{kind="timeout"}`, `gateway_store_duration_seconds_count`,
		`gateway_request_duration_seconds_count{route="weather"}`, `gateway_added_latency_seconds_count{route="weather"}`, `gateway_stream_duration_seconds_count{route="weather"}`,
		`gateway_ratelimit_remaining_ratio_count{limit="per-minute",plan="anonymous"}`,
	} {
		if m[want] != "0" {
			t.Errorf("%s is %q at the start, want 0", want, m[want])
		}
	}
	for want, value := range map[string]string{"gateway_config_last_reload_success": "1", "gateway_instances": "1"} {
		if m[want] != value {
			t.Errorf("%s is %q, want %s", want, m[want], value)
		}
	}
	target := strings.TrimPrefix(u.URL, "http://")
	if got := m[`gateway_upstream_up{target="`+target+`",upstream="weather"}`]; got != "1" {
		t.Errorf("gateway_upstream_up is %q", got)
	}
	for range 3 {
		g.get("/api/weather")
	}
	g.get("/scan-1")
	m = g.metrics()
	for want, value := range map[string]string{
		`gateway_requests_total{code="200",method="GET",route="weather"}`:                                                          "3",
		`gateway_requests_total{code="404",method="GET",route="unmatched"}`:                                                        "1",
		`gateway_ratelimit_decisions_total{limit="per-minute",outcome="allowed",plan="anonymous",route="weather",source="memory"}`: "3",
		`gateway_upstream_requests_total{code="200",target="` + target + `",upstream="weather"}`:                                   "3",
		`gateway_in_flight{route="weather"}`:                                                                                       "0",
	} {
		if m[want] != value {
			t.Errorf("%s is %q, want %s", want, m[want], value)
		}
	}
	if a := send(t, "GET", g.admin+"/healthz", nil); a.status != 200 {
		t.Errorf("/healthz: %d", a.status)
	}
	if a := send(t, "GET", g.admin+"/readyz", nil); a.status != 200 {
		t.Errorf("/readyz: %d %s", a.status, a.body)
	}
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		if a := g.get(path); a.status != 404 {
			t.Errorf("the public listener answers %s with %d", path, a.status)
		}
	}
}

// FIELD-REPORTS I02: SIGTERM: not ready, what is in flight is finished, exit code 0.
func TestSIGTERMFinishesWhatIsInFlight(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-release
		_, _ = io.WriteString(w, "done")
	})
	s := openSite(t, u)
	g := s.start()
	got := make(chan answer, 1)
	go func() {
		a, err := trySend("GET", g.url+"/api/weather", nil)
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	<-arrived
	g.signal(syscall.SIGTERM)
	eventually(t, "it is not ready", func() bool {
		a, err := trySend("GET", g.admin+"/readyz", nil)
		return err == nil && a.status == 503
	})
	eventually(t, "new connections are refused", func() bool {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(g.url, "http://"), time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	close(release)
	if a := <-got; a.status != 200 || a.body != "done" {
		t.Errorf("the request in flight: %d %q", a.status, a.body)
	}
	if code := g.wait(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if line := g.logged("stopped"); line == nil {
		t.Error("the log ends before the end")
	}
}

// Keys are made, listed and revoked while the gateway runs; a key stands on
// standard output alone, and nothing else does.
func TestKeysNewListRevoke(t *testing.T) {
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, "")
	g := s.start()
	r := s.command("keys", "new", "-file", "keys.yaml", "-user", "priya123", "-plan", "free")
	key := strings.TrimSuffix(r.stdout, "\n")
	if r.code != 0 || !regexp.MustCompile(`^bn_live_[A-Za-z0-9_-]+$`).MatchString(key) {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
	file, err := os.ReadFile(s.path("keys.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(file, []byte(key)) || strings.Contains(r.stderr, key) {
		t.Error("the key itself is kept or said elsewhere")
	}
	eventually(t, "the new key works without a restart", func() bool {
		return g.get("/api/weather", "X-API-Key", key).status == 200
	})
	if a := g.get("/api/weather", "Authorization", "ApiKey "+key); a.status != 200 {
		t.Errorf("Authorization: ApiKey: %d", a.status)
	}
	list := s.command("keys", "list")
	id := regexp.MustCompile(`k-[0-9a-z]+`).FindString(list.stdout)
	if list.code != 0 || id == "" || !contains(list.stdout, "priya123", "free") || strings.Contains(list.stdout, key) {
		t.Fatalf("list: exit %d\n%s", list.code, list.stdout)
	}
	if r := s.command("keys", "new", "-user", "x", "-plan", "fre"); r.code != 1 || r.stdout != "" || !contains(r.stderr, `did you mean "free"`) {
		t.Errorf("a plan that does not exist: exit %d, %q, %q", r.code, r.stdout, r.stderr)
	}
	if r := s.command("keys", "revoke", "k-nobody"); r.code != 1 {
		t.Errorf("revoking an unknown key: exit %d", r.code)
	}
	if r := s.command("keys", "revoke", id); r.code != 0 {
		t.Fatalf("revoke: exit %d, %s", r.code, r.stderr)
	}
	eventually(t, "the revoked key is refused without a restart", func() bool {
		return g.get("/api/weather", "X-API-Key", key).status == 401
	})
}
