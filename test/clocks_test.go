package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// clocksApart is by how much the second gateway is ahead.
const clocksApart = 5 * time.Second

// buildAhead builds the gateway with a wall clock that is ahead of the kernel's.
func buildAhead(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	root := strings.TrimSpace(string(must(exec.Command("go", "env", "GOROOT").Output())))
	file := filepath.Join(root, "src", "time", "time.go")
	source := string(must(os.ReadFile(file)))
	now := regexp.MustCompile(`(func Now\(\) Time \{\n(?:.*\n)?\tsec, nsec, mono := \w+\(\)\n)`)
	if len(now.FindAllString(source, -1)) != 1 {
		t.Fatalf("%s: time.Now reads another way than this test knows", file)
	}
	source = now.ReplaceAllString(source, fmt.Sprintf("${1}\tsec += %d\n", int(clocksApart.Seconds())))
	ahead := filepath.Join(dir, "time.go")
	overlay := filepath.Join(dir, "overlay.json")
	for name, content := range map[string][]byte{
		ahead:   []byte(source),
		overlay: must(json.Marshal(map[string]any{"Replace": map[string]string{file: ahead}})),
	} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "gateway-ahead")
	build := exec.Command("go", "build", "-overlay", overlay, "-o", program, "bouncer/cmd/gateway")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the gateway: %v\n%s", err, out)
	}
	return program
}

// Two gateways whose clocks are further apart than a window is long ask in turn,
// and are told the same: one count, one end of the window, one time to wait.
func TestClocksApartDecideAlike(t *testing.T) {
	if os.Getenv("CLOCKS_APART") == "" {
		t.Skip("builds the standard library anew, which takes minutes; type: make clocks")
	}
	limits := map[string]string{
		"fixed":    "algorithm: fixed_window, limit: 6/4s",
		"calendar": "algorithm: fixed_window, limit: 6/minute, anchor: calendar",
		"log":      "algorithm: sliding_window_log, limit: 6/4s",
		"counter":  "algorithm: sliding_window_counter, limit: 6/4s",
		"bucket":   "algorithm: token_bucket, limit: 6/24s, burst: 6", // one in 4 s
		"queue":    "algorithm: leaky_bucket, limit: 1/4s",
	}
	srv := redistest.Start(t)
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, redisStore(srv.URL()))
	plans, overrides, keys := "", "", "keys:\n"
	for user, limit := range limits {
		plans += "  of-" + user + ": {limits: [{name: l, " + limit + "}]}\n"
		overrides += "  - {user: " + user + ", plan: of-" + user + "}\n"
		keys += keyEntry(user, "tenant: acme")
	}
	s.write("keys.yaml", keys)
	s.write("plans.yaml", "default_plan: none\nplans:\n  none: {limits: []}\n"+plans+"overrides:\n"+overrides)
	ahead := &site{t: t, dir: s.dir, program: buildAhead(t)}
	gateways := [2]*gateway{s.start(), ahead.start()}
	for i, g := range gateways {
		began := time.Now()
		a := g.get("/api/weather", "X-API-Key", keyOf("nobody"))
		off := at(t, g.requestLine(a.field("X-Request-Id"))).Sub(began)
		if want := time.Duration(i) * clocksApart; off < want-time.Second || off > want+time.Second {
			t.Fatalf("the clock of gateway %d is off by %v, want %v", i, off, want)
		}
	}

	for user := range limits {
		t.Run(user, func(t *testing.T) {
			ask := func(i int) answer { return gateways[i%2].get("/api/weather", "X-API-Key", keyOf(user)) }
			quota := 6
			switch user {
			case "queue":
				quota = 1
			case "counter": // all of it in one window
				time.Sleep(time.Until(time.Now().Truncate(4 * time.Second).Add(4 * time.Second)))
			case "calendar":
				if s := time.Now().Second(); s < 2 || s > 52 {
					time.Sleep(time.Until(time.Now().Add(10 * time.Second).Truncate(time.Minute).Add(2 * time.Second)))
				}
			}
			var last answer
			for i := range quota {
				if last = ask(i); last.status != 200 || remaining(t, last) != int64(quota-1-i) {
					t.Fatalf("request %d: %d, RateLimit %q; want %d remaining", i+1, last.status, last.field("RateLimit"), quota-1-i)
				}
			}
			waits := [2]int{waitOf(t, ask(0)), waitOf(t, ask(1))}
			if waits[1] > waits[0] || waits[1] < waits[0]-1 {
				t.Errorf("Retry-After %v, want the same", waits)
			}
			if waits[0] > 4 && user != "calendar" && user != "counter" {
				t.Errorf("Retry-After %v, want at most the window", waits)
			}
			if user == "calendar" {
				if left := 60 - time.Now().Second(); waits[0] < left-1 || waits[0] > left+1 {
					t.Errorf("Retry-After %v with %d s left of the minute by the clock of Redis", waits, left)
				}
				return
			}
			time.Sleep(time.Duration(waits[1]) * time.Second) // the promise under test is about time
			if a := ask(0); a.status != 200 {
				t.Errorf("after exactly Retry-After: %d, Retry-After %s", a.status, a.field("Retry-After"))
			}
		})
	}
	for _, g := range gateways {
		g.decidedByItsStore()
	}
}
