package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// reloads is how many reloads were applied, or rejected.
func (g *gateway) reloads(outcome string) int {
	g.t.Helper()
	return int(g.value(`gateway_config_reloads_total{outcome="` + outcome + `"}`))
}

// Files are saved in many ways, and each of them is noticed by itself.
func TestEveryWayOfSavingAFileIsNoticed(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := openSite(t, u)
	g := s.start()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	file := s.path("routes.yaml")
	for i, way := range []struct {
		name string
		save func(content string)
	}{
		{"a copy over it", func(c string) { must(os.WriteFile(file, []byte(c), 0o600)) }},
		{"a new file renamed over it", func(c string) { s.write("routes.yaml", c) }},
		{"moved away as a backup, and written anew", func(c string) {
			must(os.Rename(file, file+"~"))
			must(os.WriteFile(file, []byte(c), 0o600))
		}},
		{"removed, and written anew", func(c string) {
			must(os.Remove(file))
			must(os.WriteFile(file, []byte(c), 0o600))
		}},
		{"written in pieces", func(c string) {
			f, err := os.Create(file)
			must(err)
			for piece := range strings.Lines(c) {
				_, err := f.WriteString(piece)
				must(err)
			}
			must(f.Close())
		}},
		{"appended to", func(c string) {
			old, err := os.ReadFile(file)
			must(err)
			f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
			must(err)
			_, err = f.WriteString(strings.TrimPrefix(c, string(old)))
			must(err)
			must(f.Close())
		}},
		{"made a symlink", func(c string) {
			must(os.WriteFile(s.path("elsewhere"), []byte(c), 0o600))
			must(os.Remove(file))
			must(os.Symlink("elsewhere", file))
		}},
		{"changed behind the symlink", func(c string) { must(os.WriteFile(s.path("elsewhere"), []byte(c), 0o600)) }},
	} {
		path := fmt.Sprintf("/saved-%d", i)
		content := openRoutes(u, "127.0.0.1:0")
		if way.name == "appended to" {
			old, err := os.ReadFile(file)
			must(err)
			content = string(old)
		}
		way.save(content + fmt.Sprintf("  - {name: saved-%d, path: %s, upstream: weather, auth: none}\n", i, path))
		eventually(t, way.name+" is in force", func() bool { return g.get(path).status == 200 })
	}
}

// invalidRoutes and invalidPlans are what a hurried hand does to the files of
// openSite: what to replace by what, in the file that is good.
var (
	invalidRoutes = map[string][2]string{
		"not YAML":                     {"upstreams:", "upstreams: ]"},
		"a tab":                        {"  weather:", "\tweather:"},
		"an unknown field":             {"methods:", "metods:"},
		"a field too deep":             {"upstream: weather, auth: none}", "upstream: weather, auth: {cost: 1}}"},
		"a field twice":                {"upstreams:", "listen: {}\nupstreams:"},
		"a route twice":                {"name: files", "name: weather"},
		"a path twice":                 {`"/files/*"`, "/api/weather"},
		"an upstream that is not":      {"upstream: weather, auth: none}\n  -", "upstream: wether, auth: none}\n  -"},
		"a bad URL in the last place":  {"routes:", "  other: {targets: [\"http://127.0.0.1:1\", \"htp:/x\"]}\nroutes:"},
		"a duration without a unit":    {"listen:", "shutdown_timeout: 30\nlisten:"},
		"a bad port":                   {`admin: "127.0.0.1:0"`, `admin: "127.0.0.1:70000"`},
		"a file that is not":           {"listen:", "auth: {api_keys: {file: nokeys.yaml}}\nlisten:"},
		"a variable that is not set":   {"listen:", "usage_path: ${NOBODY_SETS_THIS}\nlisten:"},
		"a second document":            {"routes:", "---\nroutes:"},
		"a certificate that is none":   {"listen:", "store: {redis: {url: \"rediss://127.0.0.1:1\", tls: {ca_file: routes.yaml}}}\nlisten:"},
		"a public admin without token": {`admin: "127.0.0.1:0"`, `admin: "0.0.0.0:0"`},
	}
	invalidPlans = map[string][2]string{
		"an unknown algorithm":    {"token_bucket", "token_buket"},
		"a negative number":       {"600/minute", "-600/minute"},
		"a plan that is not":      {"anonymous_plan: anonymous", "anonymous_plan: anonymus"},
		"a plan twice":            {"plans:", "plans:\n  anonymous: {limits: []}"},
		"a merge with a conflict": {"plans:", "<<<<<<< ours\nplans:"},
		"nothing":                 {"", ""},
	}
)

// Whatever is wrong with a configuration, nobody who is being served notices,
// and nothing of it is left behind: no goroutine, no open file, no listener. The
// next good one is in force.
func TestNoInvalidConfigurationTouchesWhatServes(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := openSite(t, u)
	g := s.start()
	good := map[string]string{}
	for _, name := range []string{"routes.yaml", "plans.yaml"} {
		b, err := os.ReadFile(s.path(name))
		if err != nil {
			t.Fatal(err)
		}
		good[name] = string(b)
	}
	// As many as before, whatever they meet: the limit of the site is part of it.
	quit := make(chan struct{})
	var served, failed atomic.Int64
	var traffic sync.WaitGroup
	for range 2 {
		traffic.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
				}
				a, err := trySend("GET", g.url+"/api/weather", nil)
				if err != nil || a.status != 200 && a.status != 429 {
					failed.Add(1)
					t.Errorf("a request under reload: %d, %v", a.status, err)
					return
				}
				served.Add(1)
			}
		})
	}
	flowing := func() {
		t.Helper()
		want := served.Load() + 20
		eventually(t, "traffic flows", func() bool { return served.Load() >= want || failed.Load() > 0 })
	}
	flowing()
	hash := g.configHash()
	goroutines, files := g.value("go_goroutines"), g.openFiles()
	for file, variants := range map[string]map[string][2]string{"routes.yaml": invalidRoutes, "plans.yaml": invalidPlans} {
		for name, change := range variants {
			content := strings.Replace(good[file], change[0], change[1], 1)
			if name == "nothing" {
				content = ""
			} else if content == good[file] {
				t.Fatalf("%s: %q is not in %s", name, change[0], file)
			}
			before := len(g.all(reloadRejected))
			s.write(file, content)
			eventually(t, name+" is refused", func() bool { return len(g.all(reloadRejected)) > before })
			mistakes := fmt.Sprint(g.logged(reloadRejected)["mistakes"])
			if !strings.Contains(mistakes, file+":") && !strings.Contains(mistakes, "ca_file") {
				t.Errorf("%s: the log names no place: %s", name, mistakes)
			}
			if got := g.configHash(); got != hash {
				t.Errorf("%s: configuration %s is in force, want %s", name, got, hash)
			}
		}
		applied := g.reloads("applied")
		s.write(file, good[file])
		eventually(t, "the good file is in force again", func() bool { return g.reloads("applied") > applied })
	}
	flowing()
	if n := g.reloads("rejected"); n < len(invalidRoutes)+len(invalidPlans) {
		t.Errorf("%d reloads were rejected", n)
	}
	eventually(t, fmt.Sprintf("goroutines are back to %v", goroutines), func() bool { return g.value("go_goroutines") <= goroutines+1 })
	// Listeners and connections are open files too.
	eventually(t, fmt.Sprintf("open files are back to %d", files), func() bool { return g.openFiles() <= files+1 })
	close(quit)
	traffic.Wait()
}

// configHash is that of the configuration in force.
func (g *gateway) configHash() string {
	g.t.Helper()
	hash, _ := g.status()["config_hash"].(string)
	return hash
}

// status is what /api/status says.
func (g *gateway) status() map[string]any {
	g.t.Helper()
	var status map[string]any
	a := send(g.t, http.MethodGet, g.admin+"/api/status", nil)
	if err := json.Unmarshal([]byte(a.body), &status); err != nil {
		g.t.Fatalf("%v: %s", err, a.body)
	}
	return status
}

// What is refused is shown as refused, and what is in force as in force, since
// when it is.
func TestARefusedConfigurationIsNotShownAsActive(t *testing.T) {
	s := openSite(t, newUpstream(t, nil))
	g := s.start()
	before := g.status()
	if before["rejected_reload"] != nil {
		t.Errorf("refused before anything was changed: %v", before["rejected_reload"])
	}
	good, err := os.ReadFile(s.path("plans.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("plans.yaml", strings.Replace(string(good), "600/minute", "900/fortnight", 1))
	eventually(t, "the change is refused", func() bool { return g.logged(reloadRejected) != nil })
	status := g.status()
	refused, _ := status["rejected_reload"].(map[string]any)
	if refused == nil || !contains(fmt.Sprint(refused["mistakes"]), "plans.yaml:4:", "fortnight") || refused["at"] == "" {
		t.Errorf("the status does not show what was refused: %v", status)
	}
	for _, member := range []string{"config_hash", "config_loaded_at"} {
		if status[member] != before[member] {
			t.Errorf("%s is %v after a refusal, and was %v", member, status[member], before[member])
		}
	}
	if hash := before["config_hash"].(string); g.metrics()[`gateway_config_info{hash="`+hash+`"}`] != "1" {
		t.Errorf("the metric does not show %s", hash)
	}
	if got := g.get("/api/weather").field("RateLimit-Policy"); !strings.Contains(got, "q=600;w=60") {
		t.Errorf("RateLimit-Policy %q", got)
	}
	s.write("plans.yaml", strings.Replace(string(good), "600/minute", "900/minute", 1))
	eventually(t, "the next good one is shown", func() bool {
		status := g.status()
		return status["config_hash"] != before["config_hash"] && status["rejected_reload"] == nil && status["config_loaded_at"] != before["config_loaded_at"]
	})
}

// A reload that takes the store away multiplies every limit by the instances, which
// is no news of a plain change: it is said as loudly as at the start, and once.
func TestAReloadThatTakesTheStoreAwayWarns(t *testing.T) {
	u := newUpstream(t, nil)
	s := openSite(t, u)
	s.write("routes.yaml", openRoutes(u, "127.0.0.1:0")+`store: {redis: {url: "redis://`+deadAddress(t)+`"}}`+"\n")
	g := s.start()
	const alone = "limits are counted in the memory of this process"
	if contains(g.output(), alone) {
		t.Errorf("with a store: %s", g.output())
	}
	if v := g.value("gateway_store_shared"); v != 1 {
		t.Errorf("gateway_store_shared %v with a store", v)
	}
	s.write("routes.yaml", openRoutes(u, "127.0.0.1:0"))
	eventually(t, "the log warns that each instance counts alone", func() bool { return strings.Count(g.output(), alone) == 1 })
	if v := g.value("gateway_store_shared"); v != 0 {
		t.Errorf("gateway_store_shared %v without one", v)
	}
	s.write("routes.yaml", openRoutes(u, "127.0.0.1:0")+"shutdown_timeout: 29s\n")
	eventually(t, "the next change is in force", func() bool { return g.reloads("applied") == 2 })
	if n := strings.Count(g.output(), alone); n != 1 {
		t.Errorf("warned %d times, want once", n)
	}
}

// One change of everything: what a reload can apply is applied, and what only a
// restart can is named, by those names and no others.
func TestWhatNeedsARestartIsNamed(t *testing.T) {
	u := newUpstream(t, nil)
	s := openSite(t, u)
	g := s.start()
	s.write("plans.yaml", strings.Replace(string(mustRead(t, s.path("plans.yaml"))), "600/minute", "700/minute", 1))
	eventually(t, "the plan is in force", func() bool { return g.reloads("applied") == 1 })
	s.write("routes.yaml", strings.Replace(openRoutes(u, "127.0.0.1:1"), "listen:",
		"client_ip: {trusted_proxies: [127.0.0.0/8]}\nshutdown_timeout: 29s\nstore: {memory: {max_keys: 5000}}\nlisten:", 1))
	eventually(t, "the routes are in force", func() bool { return g.reloads("applied") == 2 })
	const later = "some changes take effect at the next restart only"
	eventually(t, "a word about the restart", func() bool { return g.logged(later) != nil })
	line := g.logged(later)
	if got := fmt.Sprint(line["settings"]); got != "[listen.http store.memory.max_keys]" {
		t.Errorf("needs a restart: %s", got)
	}
	changes := fmt.Sprint(g.all(reloadApplied))
	for _, want := range []string{
		"listen.http: 127.0.0.1:0 → 127.0.0.1:1 (at the next restart)", "store.memory.max_keys: 1000000 → 5000 (at the next restart)",
		"client_ip.trusted_proxies: none → 127.0.0.0/8", "shutdown_timeout: 30s → 29s",
	} {
		if !strings.Contains(changes, want) {
			t.Errorf("%q is not among the changes: %s", want, changes)
		}
	}
	if strings.Count(changes, "at the next restart") != 2 {
		t.Errorf("changes: %s", changes)
	}
	// A trusted peer is believed at once, on the listener of before.
	if a := g.get("/api/weather", "X-Forwarded-For", "203.0.113.9"); a.status != 200 || u.last(t).Header.Get("X-Real-Ip") != "203.0.113.9" {
		t.Errorf("%d, X-Real-IP %q", a.status, u.last(t).Header.Get("X-Real-Ip"))
	}
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What this process counts by itself is kept over any number of reloads, with
// every algorithm, at the edge too: editing files is no way to more. Only the
// limit that is changed into another starts anew. A stream goes on.
func TestAReloadKeepsWhatIsCountedInMemory(t *testing.T) {
	release := make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			_, _ = io.WriteString(w, "begun\n")
			w.(http.Flusher).Flush()
			<-release
			_, _ = io.WriteString(w, "ended\n")
		}
	})
	finish := sync.OnceFunc(func() { close(release) })
	t.Cleanup(finish)
	algorithms := map[string]string{
		"fixed": "fixed_window", "calendar": "fixed_window, anchor: calendar", "log": "sliding_window_log",
		"counter": "sliding_window_counter", "token": "token_bucket", "leaky": "leaky_bucket",
	}
	routes := func(more string, changed string) string {
		b := `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
edge: [scan]
upstreams:
  weather: {targets: ["` + u.URL + `"]}
limits:
  scan: {per: "header:X-Scanner", algorithm: token_bucket, limit: 100/month}
`
		for name, algorithm := range algorithms {
			limit := "1/month"
			if name == changed {
				limit = "1/day"
			}
			b += "  " + name + ": {per: ip, algorithm: " + algorithm + ", limit: " + limit + "}\n"
		}
		b += more + "routes:\n  - {name: stream, path: /stream, upstream: weather, auth: none, cost: 0}\n"
		for name := range algorithms {
			b += "  - {name: " + name + ", path: /" + name + ", upstream: weather, auth: none, limits: [" + name + "]}\n"
		}
		return b
	}
	s := newSite(t)
	s.write("plans.yaml", "anonymous_plan: a\nplans: {a: {limits: []}}\n")
	s.write("routes.yaml", routes("", ""))
	g := s.start()
	res, err := client.Get(g.url + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	begun := make([]byte, len("begun\n"))
	if _, err := io.ReadFull(res.Body, begun); err != nil {
		t.Fatal(err)
	}
	spent := func(when string, except string) {
		t.Helper()
		for name := range algorithms {
			if a := g.get("/" + name); (a.status == 429) == (name == except) {
				t.Errorf("%s, %s: %d", when, name, a.status)
			}
		}
		if a := g.get("/nowhere", "X-Scanner", "1"); a.status != 429 {
			t.Errorf("%s, at the edge: %d", when, a.status)
		}
	}
	for name := range algorithms {
		if a := g.get("/" + name); a.status != 200 {
			t.Fatalf("%s: the first request: %d %s", name, a.status, a.body)
		}
	}
	for range 100 {
		if a := g.get("/nowhere", "X-Scanner", "1"); a.status != 404 {
			t.Fatalf("at the edge: %d", a.status)
		}
	}
	spent("before any reload", "")
	for i, more := range []string{"# a comment\n", "usage_path: /usage\n", "client_headers: {legacy: off}\n"} {
		s.write("routes.yaml", routes(more, ""))
		eventually(t, "the reload", func() bool { return g.reloads("applied") == i+1 })
		spent(strings.TrimSpace(more), "")
	}
	s.write("routes.yaml", routes("", "log"))
	eventually(t, "the reload", func() bool { return g.reloads("applied") == 4 })
	spent("another window of log", "log")
	finish()
	rest, err := io.ReadAll(res.Body)
	if err != nil || string(rest) != "ended\n" {
		t.Errorf("the stream over four reloads: %q, %v", rest, err)
	}
}

// Two files that are saved one shortly after the other are both in force,
// however close: the later does not make the gateway forget the earlier.
func TestTwoFilesSavedTogetherAreBothInForce(t *testing.T) {
	u := newUpstream(t, nil)
	s := openSite(t, u)
	g := s.start()
	for i, between := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 130 * time.Millisecond} {
		path := fmt.Sprintf("/both-%d", i)
		s.write("routes.yaml", openRoutes(u, "127.0.0.1:0")+"  - {name: both, path: "+path+", upstream: weather, auth: none}\n")
		time.Sleep(between) // what is tried is this very distance
		s.write("plans.yaml", fmt.Sprintf("anonymous_plan: a\nplans: {a: {limits: [{name: a, per: ip, algorithm: token_bucket, limit: %d/minute}]}}\n", 1000+i))
		eventually(t, "both are in force", func() bool {
			a := g.get(path)
			return a.status == 200 && strings.Contains(a.field("RateLimit-Policy"), fmt.Sprintf("q=%d;", 1000+i))
		})
	}
}

// Other files that come and go beside the configuration, and a new time of its
// own files, are no reason to reload, and put no reload off.
func TestNoiseBesideTheFilesNeitherReloadsNorDelays(t *testing.T) {
	u := newUpstream(t, nil)
	s := openSite(t, u)
	g := s.start()
	quit := make(chan struct{})
	var made atomic.Int64
	var noise sync.WaitGroup
	noise.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-quit:
				return
			case now := <-tick.C:
				name := s.path(fmt.Sprintf("noise-%d", n%5))
				_ = os.WriteFile(name, []byte("x"), 0o600) // noise, whatever becomes of it
				_ = os.Remove(name)
				_ = os.Chtimes(s.path("plans.yaml"), now, now)
				made.Add(1)
			}
		}
	})
	// Two polls and many notifications have gone by with this many.
	eventually(t, "noise", func() bool { return made.Load() >= 120 })
	if a, r := g.reloads("applied"), g.reloads("rejected"); a != 0 || r != 0 {
		t.Errorf("noise alone made %d reloads, and %d that were refused", a, r)
	}
	for i := range 3 {
		path := fmt.Sprintf("/amid-%d", i)
		s.write("routes.yaml", openRoutes(u, "127.0.0.1:0")+"  - {name: amid, path: "+path+", upstream: weather, auth: none}\n")
		eventually(t, "a change amid noise is in force", func() bool { return g.get(path).status == 200 })
	}
	if n := g.reloads("applied"); n != 3 {
		t.Errorf("%d reloads of 3 changes", n)
	}
	close(quit)
	noise.Wait()
}
