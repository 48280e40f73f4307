package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// onEveryStore runs a test on memory and on a real Redis.
func onEveryStore(t *testing.T, run func(t *testing.T, store string)) {
	t.Run("memory", func(t *testing.T) { run(t, "") })
	t.Run("redis", func(t *testing.T) { run(t, redisStore(redistest.Start(t).URL())) })
}

// decidedByItsStore fails the test if the local cap stood in for the store: the
// numbers would be right by chance.
func (g *gateway) decidedByItsStore() {
	g.t.Helper()
	for sample, value := range g.metrics() {
		if contains(sample, "gateway_ratelimit_decisions_total", `source="local_cap"`) && value != "0" {
			g.t.Errorf("a local cap decided: %s %s", sample, value)
		}
	}
}

// plansSite is a site with API keys, whose plan free has these limits, and
// whose routes file ends with more.
func plansSite(t testing.TB, u *upstream, store, limits, more string) *site {
	s := newSite(t)
	s.write("keys.yaml", "keys: []\n")
	s.write("plans.yaml", "default_plan: free\nanonymous_plan: anonymous\nplans:\n  anonymous: {limits: []}\n  free:\n    limits:\n"+limits)
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
`+store+`
auth: {api_keys: {file: keys.yaml}}
upstreams:
  weather: {targets: ["`+u.URL+`"]}
routes:
  - {name: weather, path: /api/weather, upstream: weather}
  - {name: other, path: /api/other, upstream: weather}
`+more)
	return s
}

// Each algorithm admits exactly its number, tells the truth about the rest, and
// lets whoever waits exactly Retry-After back in.
func TestEveryAlgorithmAdmitsItsNumberAndTellsTheTruth(t *testing.T) {
	t.Parallel() // it mostly waits
	algorithms := map[string]struct {
		limit    string
		admitted int
	}{
		"token_bucket":           {"limit: 5/2s, burst: 5", 5},
		"fixed_window":           {"limit: 5/2s", 5},
		"sliding_window_log":     {"limit: 5/2s", 5},
		"sliding_window_counter": {"limit: 5/2s", 5},
	}
	onEveryStore(t, func(t *testing.T, store string) {
		u := newUpstream(t, nil)
		for name, a := range algorithms {
			t.Run(name, func(t *testing.T) {
				t.Parallel() // they only wait
				s := plansSite(t, u, store, fmt.Sprintf("      - {name: l-%s, algorithm: %s, %s}\n", strings.ReplaceAll(name, "_", "-"), name, a.limit), "")
				key := s.key("-user", "u-"+name)
				g := s.start()
				admitted := 0
				var denied answer
				for range 3 * a.admitted {
					denied = g.get("/api/weather", "X-API-Key", key)
					if denied.status != 200 {
						break
					}
					admitted++
				}
				// Time goes by while they are sent, and a sliding rule gives back.
				if admitted < a.admitted || admitted > a.admitted+1 {
					t.Fatalf("%d admitted, want %d", admitted, a.admitted)
				}
				if denied.status != 429 || remaining(t, denied) != 0 {
					t.Fatalf("%d with %d remaining, want 429 with none", denied.status, remaining(t, denied))
				}
				wait, err := strconv.Atoi(denied.field("Retry-After"))
				if err != nil || wait < 1 || wait > 4 {
					t.Fatalf("Retry-After %q", denied.field("Retry-After"))
				}
				time.Sleep(time.Duration(wait) * time.Second) // the promise under test is about time
				if again := g.get("/api/weather", "X-API-Key", key); again.status != 200 {
					t.Errorf("after exactly Retry-After: %d, Retry-After %s", again.status, again.field("Retry-After"))
				}
				g.decidedByItsStore()
			})
		}
	})
}

// A leaky bucket is a queue: what finds a place waits for its drip, what finds
// none is denied at once.
func TestAQueueLetsRequestsThroughOneDripApart(t *testing.T) {
	onEveryStore(t, func(t *testing.T, store string) {
		var mu sync.Mutex
		var arrivals []time.Time
		u := newUpstream(t, func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			arrivals = append(arrivals, time.Now())
		})
		s := plansSite(t, u, store, "      - {name: queue, algorithm: leaky_bucket, limit: 5/second, queue: 4}\n", "")
		key := s.key("-user", "priya123")
		g := s.start()
		var status sync.Map
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				a, err := trySend("GET", g.url+"/api/weather", nil, "X-API-Key", key)
				if err != nil {
					t.Error(err)
				}
				status.Store(i, a)
			})
		}
		all.Wait()
		g.decidedByItsStore()
		passed, denied := 0, 0
		status.Range(func(_, v any) bool {
			switch a, _ := v.(answer); a.status {
			case 200:
				passed++
			case 429:
				denied++
				if a.field("Retry-After") != "1" {
					t.Errorf("Retry-After %q of a full queue", a.field("Retry-After"))
				}
			default:
				t.Errorf("status %d: %s", a.status, a.body)
			}
			return true
		})
		// A slow start may free a place for one more.
		if passed < 5 || passed > 6 || passed+denied != 8 {
			t.Errorf("%d passed and %d denied, want 5 and 3", passed, denied)
		}
		mu.Lock()
		defer mu.Unlock()
		slices.SortFunc(arrivals, func(a, b time.Time) int { return a.Compare(b) })
		if d := arrivals[len(arrivals)-1].Sub(arrivals[0]); d < 700*time.Millisecond {
			t.Errorf("%d requests reached the upstream within %v; four drips of 200 ms were promised", len(arrivals), d)
		}
	})
}

// FIELD-REPORTS I02: whoever waits in a queue is let go when the gateway stops or they leave.
func TestWaitingInAQueueEnds(t *testing.T) {
	u := newUpstream(t, nil)
	s := plansSite(t, u, "", "      - {name: queue, algorithm: leaky_bucket, limit: 1/30s, queue: 9}\n", "shutdown_timeout: 5s\n")
	key := s.key("-user", "priya123")
	g := s.start()
	if a := g.get("/api/weather", "X-API-Key", key); a.status != 200 {
		t.Fatalf("the first goes at once: %d", a.status)
	}
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", g.url+"/api/weather", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", key)
	left := make(chan struct{})
	go func() {
		defer close(left)
		if res, err := client.Do(r); err == nil {
			_ = res.Body.Close()
			t.Errorf("a request that waits 30 s was answered with %d", res.StatusCode)
		}
	}()
	eventually(t, "one waits", func() bool { return g.metrics()[`gateway_in_flight{route="weather"}`] == "1" })
	leave()
	<-left
	eventually(t, "its line says that the client left", func() bool {
		line := g.logged("request")
		return line != nil && line["status"] == 499.0
	})
	eventually(t, "nobody waits any more", func() bool { return g.metrics()[`gateway_in_flight{route="weather"}`] == "0" })

	stopped := make(chan answer, 1)
	go func() {
		a, err := trySend("GET", g.url+"/api/weather", nil, "X-API-Key", key)
		if err != nil {
			t.Error(err)
		}
		stopped <- a
	}()
	eventually(t, "another waits", func() bool { return g.metrics()[`gateway_in_flight{route="weather"}`] == "1" })
	g.signal(syscall.SIGTERM)
	if a := <-stopped; a.status != 503 || a.field("Retry-After") == "" {
		t.Errorf("waiting at SIGTERM: %d, Retry-After %q; want 503 with one", a.status, a.field("Retry-After"))
	}
	if code := g.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if u.count() != 1 {
		t.Errorf("%d requests reached the upstream, want 1", u.count())
	}
}

// A calendar day ends at midnight there, and the fields say when that is.
func TestACalendarWindowEndsOnTheCalendar(t *testing.T) {
	t.Parallel() // it mostly waits
	onEveryStore(t, func(t *testing.T, store string) {
		u := newUpstream(t, nil)
		zone, err := time.LoadLocation("Pacific/Chatham")
		if err != nil {
			t.Fatal(err)
		}
		s := plansSite(t, u, store, "      - {name: per-day, algorithm: fixed_window, anchor: calendar, timezone: Pacific/Chatham, limit: 3/day}\n", "")
		key := s.key("-user", "priya123")
		g := s.start()
		before := time.Now().In(zone)
		a := g.get("/api/weather", "X-API-Key", key)
		reset, err := strconv.Atoi(a.field("X-RateLimit-Reset"))
		if err != nil || a.status != 200 {
			t.Fatalf("%d, X-RateLimit-Reset %q", a.status, a.field("X-RateLimit-Reset"))
		}
		midnight := time.Date(before.Year(), before.Month(), before.Day()+1, 0, 0, 0, 0, zone)
		if want := int(midnight.Sub(before).Seconds()); reset < want-5 || reset > want+1 {
			if reset < 86390 { // unless midnight came in between
				t.Errorf("the day ends in %d s, want %d", reset, want)
			}
		}
		g.decidedByItsStore()
		if got, want := a.field("RateLimit-Policy"), `"per-day";q=3;w=86400`; got != want {
			t.Errorf("RateLimit-Policy %q, want %q", got, want)
		}
	})
}

// A login that counts rejected attempts stays shut for whoever keeps trying.
func TestRejectedAttemptsCountWhereItSaysSo(t *testing.T) {
	t.Parallel() // it mostly waits
	onEveryStore(t, func(t *testing.T, store string) {
		u := newUpstream(t, nil)
		s := plansSite(t, u, store, "      - {name: per-hour, algorithm: fixed_window, limit: 1000/hour}\n", `
  - {name: login, path: /login, upstream: weather, auth: none, limits: [login-try]}
limits:
  login-try: {per: ip, algorithm: sliding_window_log, limit: 3/2s, count_rejected: true}
`)
		g := s.start()
		for range 3 {
			if a := g.get("/login"); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		// Trying on for three seconds, a window and a half: not once let in.
		for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(250 * time.Millisecond) {
			if a := g.get("/login"); a.status != 429 {
				t.Fatalf("let in after %v of trying: %d", time.Since(began), a.status)
			}
		}
		g.decidedByItsStore()
		a := g.get("/login")
		wait, err := strconv.Atoi(a.field("Retry-After"))
		if err != nil {
			t.Fatalf("%d, Retry-After %q", a.status, a.field("Retry-After"))
		}
		time.Sleep(time.Duration(wait) * time.Second) // the promise under test is about time
		if a := g.get("/login"); a.status != 200 {
			t.Errorf("after being quiet for exactly Retry-After: %d", a.status)
		}
	})
}

// A limit in shadow denies nobody and tells the client nothing; a candidate
// counts what another number would have done.
func TestShadowAndCandidateAreOnlyCounted(t *testing.T) {
	t.Parallel() // it mostly waits
	onEveryStore(t, func(t *testing.T, store string) {
		u := newUpstream(t, nil)
		s := plansSite(t, u, store, `
      - {name: strict, algorithm: fixed_window, limit: 2/hour, mode: shadow}
      - {name: live, algorithm: fixed_window, limit: 6/hour, candidate: {limit: 4/hour}}
`, "")
		key := s.key("-user", "priya123")
		g := s.start()
		statuses := map[int]int{}
		for range 8 {
			a := g.get("/api/weather", "X-API-Key", key)
			statuses[a.status]++
			if p := a.field("RateLimit-Policy"); p != `"live";q=6;w=3600` {
				t.Fatalf("RateLimit-Policy %q", p)
			}
		}
		if statuses[200] != 6 || statuses[429] != 2 {
			t.Errorf("%v, want 6 × 200 and 2 × 429", statuses)
		}
		source := "memory"
		if store != "" {
			source = "redis"
		}
		for want, value := range map[string]string{
			`limit="strict",outcome="shadow_allowed"`:  "2",
			`limit="strict",outcome="shadow_denied"`:   "6",
			`limit="live",outcome="allowed"`:           "6",
			`limit="live",outcome="denied"`:            "2",
			`limit="live",outcome="candidate_allowed"`: "4",
			`limit="live",outcome="candidate_denied"`:  "4",
		} {
			sample := "gateway_ratelimit_decisions_total{" + want + `,plan="free",route="weather",source="` + source + `"}`
			if got := g.metrics()[sample]; got != value {
				t.Errorf("%s is %q, want %s", sample, got, value)
			}
		}
	})
}

// Callers see their own limits, free of charge, and nobody else's.
func TestCallersCanAskForTheirUsage(t *testing.T) {
	t.Parallel() // it mostly waits
	onEveryStore(t, func(t *testing.T, store string) {
		u := newUpstream(t, nil)
		s := plansSite(t, u, store, `
      - {name: per-hour, algorithm: fixed_window, limit: 10/hour}
      - {name: team, per: tenant, algorithm: fixed_window, limit: 50/hour}
      - {name: each-route, per: [user, route], algorithm: token_bucket, limit: 20/hour, burst: 5}
`, "usage_path: /usage\n")
		priya, ravi := s.key("-user", "priya123", "-tenant", "acme"), s.key("-user", "ravi", "-tenant", "acme")
		g := s.start()
		for range 3 {
			g.get("/api/weather", "X-API-Key", priya)
		}
		type view struct {
			User, Plan string
			Limits     []struct {
				Name, Route            string
				Quota, Used, Remaining int64
				Window                 int64  `json:"window_s"`
				Reset                  *int64 `json:"reset_s"`
			}
		}
		look := func(key string) (v view) {
			t.Helper()
			a := g.get("/usage", "X-API-Key", key)
			if a.status != 200 || a.field("Cache-Control") != "no-store" || a.field("RateLimit") != "" {
				t.Fatalf("%d %v %s", a.status, a.header, a.body)
			}
			if err := json.Unmarshal([]byte(a.body), &v); err != nil {
				t.Fatalf("%v: %s", err, a.body)
			}
			return v
		}
		for range 5 { // looking costs nothing
			look(priya)
		}
		v := look(priya)
		if v.User != "priya123" || v.Plan != "free" {
			t.Errorf("%+v", v)
		}
		got := map[string]string{}
		for _, l := range v.Limits {
			got[strings.TrimSpace(l.Name+" "+l.Route)] = fmt.Sprintf("%d used, %d left of %d in %d", l.Used, l.Remaining, l.Quota, l.Window)
			if (l.Used > 0) != (l.Reset != nil) {
				t.Errorf("%s: %d used, reset %v", l.Name, l.Used, l.Reset)
			}
		}
		want := map[string]string{
			"per-hour":           "3 used, 7 left of 10 in 3600",
			"each-route weather": "3 used, 2 left of 20 in 3600",
			"each-route other":   "0 used, 5 left of 20 in 3600",
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		for _, l := range look(ravi).Limits {
			if l.Used != 0 {
				t.Errorf("ravi is told of what priya used: %+v", l)
			}
		}
		if a := g.get("/usage", "X-API-Key", "wrong"); a.status != 401 {
			t.Errorf("with a bad key: %d", a.status)
		}
	})
}

// Two routes with the same numbers do not share a count; the same named limit,
// and a plan's limit per user, do.
func TestWhatSharesACountAndWhatDoesNot(t *testing.T) {
	t.Parallel() // it mostly waits
	onEveryStore(t, func(t *testing.T, store string) {
		u := newUpstream(t, nil)
		s := plansSite(t, u, store, `
      - {name: mine, algorithm: fixed_window, limit: 100/hour}
      - {name: team-route, per: [tenant, route], algorithm: fixed_window, limit: 100/hour}
`, `
  - {name: a, path: /a, upstream: weather, limits: [one]}
  - {name: b, path: /b, upstream: weather, limits: [one]}
  - {name: c, path: /c, upstream: weather, limits: [two]}
limits:
  one: {per: global, algorithm: fixed_window, limit: 100/hour}
  two: {per: global, algorithm: fixed_window, limit: 100/hour}
`)
		priya, ravi := s.key("-user", "priya123", "-tenant", "acme"), s.key("-user", "ravi", "-tenant", "acme")
		g := s.start()
		left := func(path, key string) map[string]string {
			t.Helper()
			a := g.get(path, "X-API-Key", key)
			if a.status != 200 {
				t.Fatalf("%s: %d %s", path, a.status, a.body)
			}
			out := map[string]string{}
			for item := range strings.SplitSeq(a.field("RateLimit"), ", ") {
				name, rest, _ := strings.Cut(item, ";r=")
				r, _, _ := strings.Cut(rest, ";")
				out[strings.Trim(name, `"`)] = r
			}
			return out
		}
		check := func(path, key string, want map[string]string) {
			t.Helper()
			if got := left(path, key); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %v, want %v", path, got, want)
			}
		}
		check("/a", priya, map[string]string{"mine": "99", "team-route": "99", "one": "99"})
		check("/b", priya, map[string]string{"mine": "98", "team-route": "99", "one": "98"})
		check("/c", priya, map[string]string{"mine": "97", "team-route": "99", "two": "99"})
		check("/a", ravi, map[string]string{"mine": "99", "team-route": "98", "one": "97"})
	})
}
