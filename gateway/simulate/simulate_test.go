package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway"
	"bouncer/gateway/config"
)

const routes = `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
auth: {api_keys: {file: keys.yaml}}
client_ip: {trusted_proxies: [192.0.2.0/24]}
limits:
  edge-ip: {per: ip, algorithm: token_bucket, limit: 600/minute, burst: 100}
  login-try: {per: ip, algorithm: sliding_window_log, limit: 5/minute, count_rejected: true}
edge: [edge-ip]
upstreams: {api: {targets: [http://127.0.0.1:1]}}
routes:
  - {name: api, path: "/api/*", upstream: api}
  - {name: open, path: "/open/*", upstream: api, auth: optional}
  - {name: login, path: /login, methods: [POST], upstream: api, auth: none, limits: [login-try]}
  - {name: health, path: /healthz, upstream: api, auth: none, cost: 0}
`

const keys = "keys: [{id: partner-b, sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, user: acme, plan: pro}]"

// load loads two files.
func load(t testing.TB, routes, plans string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	o := config.Options{Routes: filepath.Join(dir, "routes.yaml"), Plans: filepath.Join(dir, "plans.yaml")}
	for path, text := range map[string]string{o.Routes: routes, o.Plans: plans, filepath.Join(dir, "keys.yaml"): keys} {
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

// plans are some, with one limit each for callers that are known and that are not.
func plans(limit string) string {
	return "default_plan: free\nanonymous_plan: anonymous\nplans:\n" +
		"  free: {limits: [" + limit + "]}\n" +
		"  pro: {limits: [{name: per-minute, algorithm: token_bucket, limit: 1000/minute}]}\n" +
		"  anonymous: {limits: [{name: per-ip, per: ip, algorithm: token_bucket, limit: 3/minute}]}\n"
}

// A journal writes JSON lines.
type journal struct{ bytes.Buffer }

// add writes one request; rest are more members.
func (j *journal) add(at time.Time, path, rest string) {
	fmt.Fprintf(j, `{"time":%q,"remote_addr":"203.0.113.7","method":"GET","uri":%q%s}`+"\n", at.Format(time.RFC3339Nano), path, rest)
}

var noon = time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC)

func run(t *testing.T, o Options, log string) *Result {
	t.Helper()
	o.Logs, o.Stdin = []string{"-"}, strings.NewReader(log)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *Result) limit(t *testing.T, plan, route, name string) Limit {
	t.Helper()
	for _, l := range r.Limits {
		if l.Plan == plan && l.Route == route && l.Limit == name {
			return l
		}
	}
	t.Fatalf("no limit %s of %q on %s among %+v", name, plan, route, r.Limits)
	return Limit{}
}

func (r *Result) caller(t *testing.T, name string) Caller {
	t.Helper()
	for _, c := range r.Callers {
		if c.Caller == name {
			return c
		}
	}
	t.Fatalf("no caller %s among %+v", name, r.Callers)
	return Caller{}
}

func TestWhoWouldBeDeniedByWhichLimitWhenAndForHowLong(t *testing.T) {
	t.Parallel()
	var j journal
	for i := range 30 { // every second of half a minute: 10 of 20 a minute come back
		j.add(noon.Add(time.Duration(i)*time.Second), "/api/x?q", `,"key":"key:partner-a"`)
	}
	j.add(noon.Add(30*time.Second), "/nowhere", "")
	cfg := load(t, routes, plans("{name: per-minute, algorithm: token_bucket, limit: 20/minute, burst: 5}"))
	r := run(t, Options{Config: cfg}, j.String())
	// 5 at once, and one every 3 s: of 30 s, 5 and 9 more.
	if r.Lines != 31 || r.Requests != 31 || r.Allowed != 14 || r.Denied != 16 || r.Unmatched != 1 || r.LongestWaitS != 2 || !r.Worse() {
		t.Fatalf("%+v", r)
	}
	l := r.limit(t, "free", "api", "per-minute")
	if l.Denied != 16 || l.Asked != 30 || l.DeniedCallers != 1 || l.SmallestOK == nil || *l.SmallestOK != 52 || l.SmallestBurst != 21 {
		t.Errorf("%+v, %d", l, *l.SmallestOK)
	}
	c := r.caller(t, "key:partner-a")
	if c.Requests != 30 || c.Denied != 16 || c.FirstDenied == nil || !c.FirstDenied.Equal(noon.Add(7*time.Second)) || c.LongestDelayS < 40 {
		t.Errorf("%+v", c)
	}
	if r.Patient.Lost+r.Patient.NotFollowed != 0 || r.Patient.LongestDelayS != c.LongestDelayS {
		t.Errorf("%+v", r.Patient)
	}
	if e := r.limit(t, "", "unmatched", "edge-ip"); e.Asked != 1 {
		t.Errorf("the edge of no route: %+v", e)
	}
	// The number it names denies nobody, and one less does.
	for n, denied := range map[int64]bool{*l.SmallestOK: false, *l.SmallestOK - 1: true} {
		cfg := load(t, routes, plans(fmt.Sprintf("{name: per-minute, algorithm: token_bucket, limit: %d/minute, burst: 5}", n)))
		if r := run(t, Options{Config: cfg}, j.String()); (r.Denied > 0) != denied {
			t.Errorf("%d/minute denies %d", n, r.Denied)
		}
	}
}

func TestWithoutIdentityTheAddressCounts(t *testing.T) {
	t.Parallel()
	var j journal
	for range 5 {
		j.add(noon, "/api/x", "")                      // required: the default plan
		j.add(noon, "/open/x", "")                     // optional: anonymous
		j.add(noon, "/api/x", `,"key":"partner-b"`)    // the key file knows who that is
		j.add(noon, "/open/x", `,"user":"\u001b[31m"`) // known where it need not be
	}
	cfg := load(t, routes, plans("{name: per-day, algorithm: fixed_window, limit: 4/day}"))
	r := run(t, Options{Config: cfg}, j.String())
	if n := r.limit(t, "free", "api", "per-day"); n.Denied != 1 {
		t.Errorf("required: %+v", n)
	}
	if n := r.limit(t, "anonymous", "open", "per-ip"); n.Denied != 2 {
		t.Errorf("optional: %+v", n)
	}
	if c := r.caller(t, "acme"); c.Plan != "pro" || c.Denied != 0 {
		t.Errorf("by key: %+v", c)
	}
	if c := r.caller(t, "203.0.113.7"); c.By != "ip" || c.Denied != 3 {
		t.Errorf("by address: %+v", c)
	}
	r = run(t, Options{Config: cfg, AssumePlan: "pro"}, j.String())
	if l := r.limit(t, "pro", "api", "per-minute"); l.Asked != 10 || r.caller(t, "203.0.113.7").Denied != 2 {
		t.Errorf("another plan is assumed: %+v", r.Callers)
	}
	if _, err := Run(t.Context(), Options{Config: cfg, AssumePlan: "none", Logs: []string{"-"}}); !errors.Is(err, ErrOptions) {
		t.Errorf("a plan that is none: %v", err)
	}
}

func TestAForwardedForColumnCountsOnlyThroughTrustedProxies(t *testing.T) {
	t.Parallel()
	line := `%s - - [02/Nov/2026:08:58:00 +0000] "GET /open/a HTTP/1.1" 200 2 "-" "-" "%s" 0.041` + "\n"
	var b strings.Builder
	for i := range 4 {
		fmt.Fprintf(&b, line, "192.0.2.10", fmt.Sprintf("198.51.100.%d", i)) // a balancer of ours
		fmt.Fprintf(&b, line, "203.0.113.7", fmt.Sprintf("10.9.9.%d", i))    // anybody
	}
	r := run(t, Options{Config: load(t, routes, plans("")), Format: Combined}, b.String())
	if r.Denied != 1 || r.caller(t, "203.0.113.7").Denied != 1 || r.CallerCount != 5 {
		t.Errorf("%+v", r.Callers)
	}
}

func TestBeforeAndAfterSideBySide(t *testing.T) {
	t.Parallel()
	var j journal
	for range 10 {
		j.add(noon, "/api/x", `,"user":"a"`)
	}
	today := load(t, routes, plans("{name: per-day, algorithm: fixed_window, limit: 8/day}"))
	for limit, want := range map[int64]int64{6: 2, 8: 0, 9: -1} {
		cfg := load(t, routes, plans(fmt.Sprintf("{name: per-day, algorithm: fixed_window, limit: %d/day}", limit)))
		r := run(t, Options{Config: cfg, Against: today}, j.String())
		if *r.NewlyDenied-*r.NewlyAllowed != want || r.Against.Denied != 2 || r.Denied != 10-limit || r.Worse() != (want > 0) {
			t.Errorf("%d a day: %d newly denied, %d newly allowed, %d and %d denied", limit, *r.NewlyDenied, *r.NewlyAllowed, r.Denied, r.Against.Denied)
		}
		var out bytes.Buffer
		if err := r.WriteText(&out, 5); err != nil || !strings.Contains(out.String(), "BEFORE") {
			t.Error(err, out.String())
		}
	}
}

func TestTheJSONIsWhatScriptsExpect(t *testing.T) {
	t.Parallel()
	cfg := load(t, routes, plans(""))
	out, err := json.Marshal(run(t, Options{Config: cfg, Against: cfg}, ""))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lines", "malformed", "requests", "allowed", "denied", "longest_wait_s", "limits", "callers", "against"} {
		if _, ok := m[name]; !ok {
			t.Errorf("no %q in %s", name, out)
		}
	}
	if !strings.Contains(string(out), `"limits":[],"callers":[]`) {
		t.Errorf("empty lists are lists: %s", out)
	}
}

func TestHostileNamesAreEscaped(t *testing.T) {
	t.Parallel()
	var j journal
	j.add(noon, "/api/x", `,"user":"<script>alert(1)</script>\u001b[2J"`)
	j.WriteString("<img src=x>\n")
	r := run(t, Options{Config: load(t, routes, plans(""))}, j.String())
	var page, text bytes.Buffer
	if err := errors.Join(r.WriteHTML(&page, 10), r.WriteText(&text, 10)); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(page.String(), "<script") || strings.Contains(page.String(), "<img") || !strings.Contains(page.String(), "&lt;script&gt;") {
		t.Error("the page is not safe")
	}
	if strings.ContainsRune(text.String(), '\x1b') || strings.ContainsRune(page.String(), '\x1b') {
		t.Error("a terminal would obey")
	}
}

func TestThePageBeginsWithTheAnswer(t *testing.T) {
	t.Parallel()
	var j journal
	for range 10 {
		j.add(noon, "/api/x", `,"user":"a"`)
	}
	limit := func(n int) *config.Config {
		return load(t, routes, plans(fmt.Sprintf("{name: per-day, algorithm: fixed_window, limit: %d/day}", n)))
	}
	for _, c := range []struct {
		now, against int
		log, want    string
	}{
		{9, 0, j.String(), "1 request of 10 would be denied"},
		{10, 0, j.String(), "Nobody would be denied"},
		{8, 10, j.String(), "2 requests would be newly denied"},
		{8, 8, j.String(), "No request that is allowed today would be denied"},
		{8, 0, "", "Nothing to replay"},
	} {
		o := Options{Config: limit(c.now)}
		if c.against > 0 {
			o.Against = limit(c.against)
		}
		var page bytes.Buffer
		if err := run(t, o, c.log).WriteHTML(&page, 5); err != nil {
			t.Fatal(err)
		}
		_, head, _ := strings.Cut(page.String(), "<h1")
		if _, text, _ := strings.Cut(head, ">"); !strings.HasPrefix(text, c.want+"</h1>") {
			t.Errorf("%d a day, before %d: want %q, got %.80q", c.now, c.against, c.want, text)
		}
		if strings.Contains(page.String(), "http://") || strings.Contains(page.String(), "https://") || strings.Contains(page.String(), "<no value>") {
			t.Error("the page wants something that is not in it")
		}
	}
}

// Of a million requests one is denied, and the picture shows it.
func TestASingleDenialIsSeenInTheTimeline(t *testing.T) {
	t.Parallel()
	at := noon
	bars := (&Result{From: &at, To: &at}).bars([]slot{{allowed: 1_000_000, denied: 1}}, 1_000_001)
	if b := bars[0]; b.DeniedH < leastHeight || b.DeniedY < 0 || b.AllowedY+b.AllowedH > timelineHeight || b.DeniedY+b.DeniedH > b.AllowedY {
		t.Errorf("%+v", b)
	}
}

// Everything that a verdict depends on: costs, several limits of one request,
// trials, attempts that count though they are denied, a queue, and the edge.
const everyRoute = `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
auth: {api_keys: {file: keys.yaml}}
limits:
  edge-ip: {per: ip, algorithm: token_bucket, limit: 900/minute, burst: 12}
  login-try: {per: ip, algorithm: sliding_window_log, limit: 5/minute, count_rejected: true}
  slow: {per: global, algorithm: leaky_bucket, limit: 8/second, queue: 9, max_delay: 900ms}
edge: [edge-ip]
upstreams: {api: {targets: [http://127.0.0.1:1]}}
routes:
  - {name: api, path: "/api/*", upstream: api}
  - {name: export, path: /api/export, upstream: api, cost: 3, limits: [slow]}
  - {name: open, path: "/open/*", upstream: api, auth: optional}
  - {name: login, path: /login, methods: [POST], upstream: api, auth: none, limits: [login-try]}
  - {name: health, path: /healthz, upstream: api, auth: none, cost: 0}
`

const everyPlan = `
default_plan: free
anonymous_plan: anonymous
plans:
  free:
    limits:
      - {name: per-second, algorithm: sliding_window_counter, limit: 12/second}
      - {name: per-minute, algorithm: token_bucket, limit: 300/minute, burst: 15, candidate: {limit: 100/minute, burst: 5}}
      - {name: strict, per: [user, route], algorithm: fixed_window, limit: 40/10s, count_rejected: true}
      - {name: trial, algorithm: fixed_window, limit: 3/minute, mode: shadow}
  pro: {limits: []}
  anonymous:
    limits:
      - {name: per-ip, per: ip, algorithm: token_bucket, limit: 60/minute, burst: 3}
overrides: [{key: partner-b, plan: free}]
`

// A verdict is what a client learns of one, and who denied.
type verdict struct {
	status     int // 0: carried
	by         string
	retryAfter string
	waited     time.Duration // in a queue
}

// The verdicts are those of the live gateway that wrote the log: here on a fake
// clock, so that the time of a line is the time of its decision.
func TestTheVerdictsAreThoseOfTheGatewayThatWroteTheLog(t *testing.T) {
	cfg := load(t, everyRoute, everyPlan)
	dir := filepath.Dir(cfg.Files[0].Path)
	var log bytes.Buffer
	var live []*verdict
	synctest.Test(t, func(t *testing.T) {
		g, err := gateway.New(gateway.Options{Routes: filepath.Join(dir, "routes.yaml"), Plans: filepath.Join(dir, "plans.yaml"), Log: &log})
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(5, 6))
		var open sync.WaitGroup
		for range 1500 {
			time.Sleep(time.Duration(1+rng.IntN(60_000)) * time.Microsecond)
			method, path, key := "GET", "/api/x", "test"
			switch rng.IntN(8) {
			case 0:
				path, key = "/open/x", ""
				if rng.IntN(4) == 0 {
					key = "wrong" // 401, though nobody needs a key here
				}
			case 1:
				method, path, key = "POST", "/login", ""
			case 2:
				path = "/nowhere"
			case 3:
				key = "" // 401
			case 4, 5:
				path = "/api/export"
			case 6:
				path, key = "/healthz", ""
			}
			r := httptest.NewRequest(method, path, nil)
			r.RemoteAddr = fmt.Sprintf("203.0.113.%d:4711", 7+rng.IntN(2))
			if key != "" {
				r.Header.Set("X-API-Key", key)
			}
			v := &verdict{}
			live = append(live, v)
			open.Go(func() { // some wait in the queue
				w, at := httptest.NewRecorder(), time.Now()
				g.ServeHTTP(w, r)
				if v.waited = time.Since(at); w.Code < http.StatusInternalServerError { // no upstream is there
					v.status, v.retryAfter = w.Code, w.Header().Get("Retry-After")
				}
			})
			synctest.Wait() // it is decided
		}
		open.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Run(ended, nil); err != nil { // writes what is left of the log
			t.Error(err)
		}
	})
	type line struct {
		Msg      string
		Time     time.Time
		DeniedBy string `json:"denied_by"`
	}
	var lines []line
	for text := range bytes.Lines(log.Bytes()) {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatal(err)
		}
		if l.Msg == "request" {
			lines = append(lines, l)
		}
	}
	if len(lines) != len(live) {
		t.Fatalf("%d lines of %d requests", len(lines), len(live))
	}
	slices.SortFunc(lines, func(a, b line) int { return a.Time.Compare(b.Time) })
	var simulated []verdict
	r := run(t, Options{Config: cfg, observe: func(_ *record, v *gateway.Verdict) {
		s := verdict{waited: v.Delay}
		if v.Refused != nil {
			s.status, s.by = v.Refused.Status, v.Request.DeniedBy
			if w := v.Refused.RetryAfter; w > 0 {
				s.retryAfter = fmt.Sprint(int64((w + time.Second - 1) / time.Second))
			}
		}
		simulated = append(simulated, s)
	}}, log.String())
	if int(r.Requests) != len(live) || r.Malformed != 0 {
		t.Fatalf("%d requests of %d: %+v", r.Requests, len(live), r.MalformedLines)
	}
	denied, queued, differ := map[string]int{}, 0, 0
	for i, v := range live {
		if v.status != 0 {
			v.by = lines[i].DeniedBy
			denied[v.by]++
		}
		if v.waited > 0 {
			queued++
		}
		if *v != simulated[i] {
			if differ++; differ < 10 {
				t.Errorf("request %d: live %+v, simulated %+v", i, *v, simulated[i])
			}
		}
	}
	// Each limit had its say.
	for _, name := range []string{"edge-ip", "login-try", "slow", "per-second", "per-minute", "strict", "per-ip", "unauthorized", "no_route"} {
		if denied[name] == 0 {
			t.Errorf("limit %s denied nothing: %v", name, denied)
		}
	}
	if trial := r.limit(t, "free", "api", "trial"); queued < 20 || trial.Denied == 0 || trial.Mode != "shadow" || differ > 0 {
		t.Errorf("%d waited in the queue, %d verdicts differ, trial: %+v", queued, differ, trial)
	}
}
