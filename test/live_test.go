package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"bouncer/internal/redistest"
)

// A live is the part of /api/live that these tests look at.
type live struct {
	Seq      int
	Ready    bool
	Instance struct{ ID string }
	Findings []struct {
		Cause, Severity, Title, Text, Runbook string
		Subject                               struct{ Kind, Name, Limit, Plan, Route, Upstream string }
		Since                                 time.Time
	}
	Now    map[string]*float64
	Routes []struct {
		Route                    string
		Requests, Denied, Failed float64
		P99                      *float64 `json:"p99_ms"`
	}
	Limits []struct {
		Plan, Limit, Route string
		Denied             float64
		DenyRate           *float64 `json:"deny_rate"`
		Source             map[string]float64
	}
	TopDenied []struct {
		Key, Limit, Partition, Kind, Name string
		Count, Error, Share               float64
		PerMinute                         *float64   `json:"per_minute"`
		Trend                             []*float64 `json:"trend"`
	} `json:"top_denied"`
	TopNear []struct{ Kind, Name string } `json:"top_near"`
	Store   struct {
		Kind  string
		Away  bool
		Since *time.Time
		Modes []string
	}
	Upstreams []struct {
		Upstream string
		InFlight int  `json:"in_flight"`
		Max      *int `json:"max_in_flight"`
		Targets  []struct {
			Target string
			Up     bool
			Status map[string]float64
		}
	}
	Instances []struct {
		ID                       string
		Self                     bool
		Requests, Denied, Failed *float64
		StoreAway                *bool  `json:"store_away"`
		ConfigHash               string `json:"config_hash"`
	}
	Process struct {
		Goroutines int
		Files      *float64 `json:"open_files"`
	}
}

func (g *gateway) live() (l live) {
	g.t.Helper()
	a := send(g.t, http.MethodGet, g.admin+"/api/live?once", nil)
	if err := json.Unmarshal([]byte(a.body), &l); a.status != 200 || err != nil {
		g.t.Fatalf("/api/live: %d %s, %v", a.status, a.body, err)
	}
	return l
}

// finding returns the finding that leads to a page of the runbook, or fails.
func (l *live) finding(runbook string) (says string, found bool) {
	for _, f := range l.Findings {
		if f.Runbook == runbook {
			return f.Severity + ": " + f.Title + ": " + f.Text, true
		}
	}
	return "", false
}

// atWork has callers ask for the weather, in turn, until stop is called.
func atWork(g *gateway, every time.Duration, users ...string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(every):
				_, _ = trySend("GET", g.url+"/api/weather", nil, "X-API-Key", keyOf(users[i%len(users)]))
			}
		}
	}()
	return func() { close(done); <-ended }
}

// The page of any instance shows the fleet, who is noisy, and that Redis has gone: the
// first questions of whoever is called.
func TestTheLiveStateOfAFleet(t *testing.T) {
	t.Parallel() // it mostly waits
	srv := redistest.Start(t)
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, redisStore(srv.URL()))
	s.write("keys.yaml", "keys:\n"+keyEntry("priya123", "")+keyEntry("kim", ""))
	s.write("plans.yaml", "default_plan: free\nplans:\n  free: {limits: [{name: per-hour, algorithm: fixed_window, limit: 20/hour}]}\n")
	one, two := s.start(), s.start()
	one.instances(2)
	for range 3 {
		for _, g := range []*gateway{one, two} {
			send(t, "GET", g.url+"/api/weather", nil, "X-API-Key", keyOf("kim"))
		}
	}
	stop := atWork(two, 20*time.Millisecond, "priya123")
	defer func() { stop() }()

	var l live
	eventually(t, "the page of one shows what two does", func() bool {
		l = one.live()
		if len(l.Instances) != 2 {
			return false
		}
		for _, i := range l.Instances {
			if i.Requests == nil || i.StoreAway == nil || !i.Self && !(*i.Denied > 1) {
				return false
			}
		}
		return true
	})
	if l.Instances[0].ID == l.Instances[1].ID || l.Instances[0].Self == l.Instances[1].Self || l.Instances[0].ConfigHash == "" {
		t.Errorf("instances %+v", l.Instances)
	}
	eventually(t, "the page of two names the noisy client", func() bool {
		l = two.live()
		says, found := l.finding("noisy-client")
		return found && contains(says, "priya123", "per-hour")
	})
	top := l.TopDenied[0]
	if top.Kind != "user" || top.Name != "priya123" || top.Limit != "per-hour" || top.Share < .9 || top.PerMinute == nil || *top.PerMinute < 60 || len(top.Trend) != 30 {
		t.Errorf("the most denied is %+v", top)
	}
	if len(l.TopNear) != 1 || l.TopNear[0].Name != "priya123" {
		t.Errorf("near a limit, with two of twenty left or less, was %+v", l.TopNear)
	}
	if len(l.Routes) != 1 || l.Routes[0].Route != "weather" || l.Routes[0].Denied == 0 || l.Routes[0].P99 == nil {
		t.Errorf("routes %+v", l.Routes)
	}
	if len(l.Limits) != 1 || l.Limits[0].Plan != "free" || l.Limits[0].DenyRate == nil || *l.Limits[0].DenyRate < .5 || l.Limits[0].Source["deny_cache"] == 0 {
		t.Errorf("limits %+v", l.Limits)
	}
	if !l.Ready || l.Store.Kind != "redis" || l.Store.Away || len(l.Upstreams) != 1 || l.Upstreams[0].Upstream != "weather" || l.Process.Goroutines == 0 {
		t.Errorf("%+v %+v %+v", l.Store, l.Upstreams, l.Process)
	}
	if n := l.Now["requests.denied"]; n == nil || *n == 0 {
		t.Errorf("now %v", n)
	}
	for _, f := range l.Findings {
		if f.Cause != "client" {
			t.Errorf("and it finds %+v", f)
		}
	}

	// Redis goes. Whoever was denied stays denied; somebody else asks.
	stop()
	stop = atWork(one, 20*time.Millisecond, "kim")
	srv.Kill()
	eventually(t, "the page says that Redis is away", func() bool {
		l = one.live()
		says, found := l.finding("redis-away")
		return found && l.Store.Away && l.Store.Since != nil && contains(says, "act", "local_cap", "gateway doctor")
	})
	var h struct {
		StepS  int `json:"step_s"`
		Until  time.Time
		Series []struct {
			Name   string
			Unit   string
			Values []*float64
		}
	}
	for window, n := range map[string]int{"5m": 300, "1h": 360, "24h": 288} {
		a := send(t, "GET", one.admin+"/api/history?window="+window, nil)
		if err := json.Unmarshal([]byte(a.body), &h); err != nil || a.status != 200 {
			t.Fatalf("%s: %d, %v", window, a.status, err)
		}
		for _, s := range h.Series {
			if len(s.Values) != n {
				t.Errorf("%s of %s has %d values, want %d", window, s.Name, len(s.Values), n)
			}
		}
	}
}

// Many different callers who are denied are a limit that is too tight, and no noisy
// client.
func TestTheLiveStateNamesALimitThatIsTooTight(t *testing.T) {
	t.Parallel() // it mostly waits
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, "")
	users := make([]string, 12)
	keys := "keys:\n"
	for i := range users {
		users[i] = fmt.Sprint("user", i)
		keys += keyEntry(users[i], "")
	}
	s.write("keys.yaml", keys)
	s.write("plans.yaml", "default_plan: free\nplans:\n  free: {limits: [{name: per-hour, algorithm: fixed_window, limit: 2/hour}]}\n")
	g := s.start()
	defer atWork(g, 15*time.Millisecond, users...)()
	eventually(t, "the page says that the limit is too tight", func() bool {
		l := g.live()
		if says, found := l.finding("noisy-client"); found {
			t.Fatalf("it blames one client: %s", says)
		}
		says, found := l.finding("limit-too-tight")
		return found && contains(says, "act", "per-hour", "12 callers")
	})
}

// An upstream that has become slow is named, and the gateway is not.
func TestTheLiveStateNamesASlowUpstream(t *testing.T) {
	t.Parallel() // it mostly waits
	slow := make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-slow:
			time.Sleep(1200 * time.Millisecond)
		default:
		}
		w.WriteHeader(http.StatusOK)
	})
	s := openSite(t, u)
	s.write("plans.yaml", "anonymous_plan: a\nplans: {a: {limits: []}}\n")
	g := s.start()
	for range 4 {
		defer atWork(g, 30*time.Millisecond, "nobody")()
	}
	began := time.Now()
	// It has to have been well for long enough that it is known what is usual.
	for time.Since(began) < 44*time.Second {
		if l := g.live(); len(l.Findings) > 0 {
			t.Fatalf("all is well, and it finds %+v", l.Findings)
		}
		time.Sleep(time.Second)
	}
	close(slow)
	eventually(t, "the page names the slow upstream", func() bool {
		l := g.live()
		if says, found := l.finding("gateway-slow"); found {
			t.Fatalf("it blames the gateway: %s", says)
		}
		says, found := l.finding("upstream-slow")
		return found && contains(says, "act", "weather", "1.", "Usually")
	})
}

// A stream goes on while the gateway drains, says that it is not ready any more, and
// ends: nobody waits for it.
func TestALiveStreamSaysThatTheGatewayStopsAndEnds(t *testing.T) {
	t.Parallel() // it mostly waits
	u := newUpstream(t, nil)
	s := openSite(t, u)
	s.write("routes.yaml", openRoutes(u, "127.0.0.1:0")+"drain_delay: 2s\n")
	g := s.start()
	r, err := http.NewRequest("GET", g.admin+"/api/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	stopped, unready, last := false, false, 0
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var l live
		if err := json.Unmarshal([]byte(data), &l); err != nil {
			t.Fatal(err)
		}
		if l.Seq < last {
			t.Errorf("event %d after %d", l.Seq, last)
		}
		last = l.Seq
		unready = unready || !l.Ready
		if !stopped {
			stopped = true
			began := time.Now()
			g.signal(syscall.SIGTERM)
			defer func() {
				if code := g.wait(); code != 0 || time.Since(began) > 10*time.Second {
					t.Errorf("exit code %d after %s", code, time.Since(began))
				}
			}()
		}
	}
	if !unready {
		t.Error("no event says that the gateway is not ready any more")
	}
}
