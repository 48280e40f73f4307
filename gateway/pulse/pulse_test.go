package pulse

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// A clock is what a watched process sees of the time: the time of day, and one that
// never steps.
type clock struct {
	day   time.Time
	since time.Duration
}

func newClock() *clock { return &clock{day: time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)} }

func (c *clock) pass(d time.Duration) { c.day, c.since = c.day.Add(d), c.since+d }

// set is the time of day being set, or a machine that wakes up.
func (c *clock) set(by time.Duration) { c.day = c.day.Add(by) }

func (c *clock) sample() *Sample { return &Sample{At: c.day, Since: c.since, Every: time.Second} }

// requests is a sample of n requests that were carried.
func (c *clock) requests(n float64) *Sample {
	s := c.sample()
	s.Routes = []RouteCounts{{Route: "weather", Allowed: n}}
	return s
}

func line(t *testing.T, p *Pulse, window, name string) []float64 {
	t.Helper()
	w, ok := p.History(window)
	if !ok {
		t.Fatalf("no window %s", window)
	}
	for _, l := range w.Series {
		if l.Name != name {
			continue
		}
		values := make([]float64, len(l.Values))
		for i, v := range l.Values {
			values[i] = math.Round(float64(v)*1000) / 1000
		}
		return values
	}
	t.Fatalf("no series %s", name)
	return nil
}

// tail are the last n values, as text: NaN is nothing known.
func tail(values []float64, n int) string { return fmt.Sprint(values[len(values)-n:]) }

func TestEachTierIsTheMeanOfItsOwnSteps(t *testing.T) {
	t.Parallel()
	p, c := New(), newClock()
	p.Add(c.requests(1000)) // since the beginning: nobody knows when
	for i := range 900 {
		c.pass(time.Second)
		p.Add(c.requests(float64(i % 10)))
	}
	if got := tail(line(t, p, "5m", "requests.allowed"), 10); got != "[0 1 2 3 4 5 6 7 8 9]" {
		t.Errorf("by the second: %s", got)
	}
	if got := tail(line(t, p, "1h", "requests.allowed"), 3); got != "[4.5 4.5 4.5]" {
		t.Errorf("by ten seconds: %s", got)
	}
	if got := tail(line(t, p, "24h", "requests.allowed"), 4); got != "[NaN 4.5 4.5 4.5]" {
		t.Errorf("by five minutes: %s", got)
	}
	for window, want := range map[string]int{"5m": 300, "1h": 360, "24h": 288} {
		w, _ := p.History(window)
		if !w.Until.Equal(c.day) {
			t.Errorf("%s ends at %s, want %s", window, w.Until, c.day)
		}
		for _, l := range w.Series {
			if len(l.Values) != want {
				t.Errorf("%s of %s has %d values, want %d", window, l.Name, len(l.Values), want)
			}
		}
	}
	if _, ok := p.History("2h"); ok {
		t.Error("there is a window 2h")
	}
	if now := p.Now()["requests.allowed"]; now != 9 {
		t.Errorf("now %v, want 9", now)
	}
}

// Where the machine slept, nothing is known, and what came meanwhile is nobody's rate.
func TestASleepIsAGapAndNoSpike(t *testing.T) {
	t.Parallel()
	for name, sleep := range map[string]func(*clock){
		"the clock that never steps stood still too": func(c *clock) { c.set(20 * time.Second) },
		"the process was stopped":                    func(c *clock) { c.pass(20 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, c := New(), newClock()
			for range 10 {
				p.Add(c.requests(5))
				c.pass(time.Second)
			}
			sleep(c)
			p.Add(c.requests(10_000))
			for range 3 {
				c.pass(time.Second)
				p.Add(c.requests(5))
			}
			values := line(t, p, "5m", "requests.allowed")
			if got := tail(values, 5); got != "[NaN NaN 5 5 5]" {
				t.Errorf("after it: %s", got)
			}
			gap := 0
			for _, v := range values[len(values)-33:] {
				if math.IsNaN(v) {
					gap++
				}
				if v > 5 {
					t.Errorf("a spike of %v", v)
				}
			}
			if gap < 20 || gap > 22 {
				t.Errorf("%d seconds are unknown, want 20 or 21", gap)
			}
			if r := p.Rates(); r.Requests > 5.01 {
				t.Errorf("the rates say %v", r.Requests)
			}
		})
	}
}

func TestAClockThatIsSetMakesNoSpike(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"back": -time.Hour, "ahead": time.Hour, "a little": 300 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, c := New(), newClock()
			for i := range 30 {
				if i == 20 {
					c.set(by)
				}
				p.Add(c.requests(5))
				c.pass(time.Second)
			}
			values := line(t, p, "5m", "requests.allowed")
			for i, v := range values {
				if v != 5 && !math.IsNaN(v) {
					t.Errorf("value %d is %v", i, v)
				}
			}
			if got := tail(values, 5); got != "[5 5 5 5 5]" {
				t.Errorf("the last are %s", got)
			}
			w, _ := p.History("5m")
			if d := c.day.Sub(w.Until); d < 0 || d > 2*time.Second+by.Abs()%time.Second {
				t.Errorf("it ends at %s, and it is %s", w.Until, c.day)
			}
		})
	}
}

// A sample that comes late gives the steps it covers their mean.
func TestLateSamplesAreMeans(t *testing.T) {
	t.Parallel()
	p, c := New(), newClock()
	p.Add(c.requests(0))
	for range 5 {
		c.pass(2 * time.Second)
		s := c.requests(10)
		s.Every = 2 * time.Second // it takes long to look
		p.Add(s)
	}
	if got := tail(line(t, p, "5m", "requests.allowed"), 6); got != "[5 5 5 5 5 5]" {
		t.Errorf("%s, want a mean of 5", got)
	}
}

func TestGaugesAreMeansAndAnOutageOfASecondShowsInADay(t *testing.T) {
	t.Parallel()
	p, c := New(), newClock()
	p.Add(c.sample())
	for i := range 600 {
		c.pass(time.Second)
		s := c.sample()
		s.InFlight, s.StoreAway = float64(i%2), i == 100
		p.Add(s)
	}
	if got := tail(line(t, p, "1h", "in_flight"), 1); got != "[0.5]" {
		t.Errorf("in flight %s", got)
	}
	if got := tail(line(t, p, "24h", "store.away"), 2); got != "[1 0]" {
		t.Errorf("away %s", got)
	}
}

func TestQuantilesOfAStepAreOfItsRequestsAlone(t *testing.T) {
	t.Parallel()
	p, c := New(), newClock()
	p.Add(c.sample())
	for i := range 20 {
		c.pass(time.Second)
		s := c.sample()
		d := time.Millisecond
		if i >= 10 {
			d = 100 * time.Millisecond
		}
		if i != 19 {
			s.Added[BinOf(d)] = 50
		}
		p.Add(s)
	}
	near := func(got, want float64) bool { return got > want/1.1 && got < want*1.1 }
	seconds := line(t, p, "5m", "latency.added.p99_ms")
	if got := seconds[len(seconds)-15]; !near(got, 1) {
		t.Errorf("p99 of a quick second: %v ms", got)
	}
	if got := seconds[len(seconds)-2]; !near(got, 100) {
		t.Errorf("p99 of a slow second: %v ms", got)
	}
	if got := seconds[len(seconds)-1]; !math.IsNaN(got) {
		t.Errorf("p99 of a second without requests: %v, want nothing known", got)
	}
	if got := line(t, p, "1h", "latency.added.p50_ms"); !near(got[len(got)-1], 100) || !near(got[len(got)-2], 1) {
		t.Errorf("p50 by ten seconds: %s", tail(got, 2))
	}
}

// Whatever is configured and however long it runs, the rings are as many as they may be.
func TestTheHistoryIsBounded(t *testing.T) {
	t.Parallel()
	p, c := New(), newClock()
	p.Add(c.sample())
	for i := range 400 {
		c.pass(time.Second)
		s := c.sample()
		for j := range 100 {
			name := fmt.Sprint("n", (i*37+j*11)%5000)
			s.Routes = append(s.Routes, RouteCounts{Route: name, Denied: float64(j)})
			s.Limits = append(s.Limits, LimitCounts{Limit: Limit{Plan: name, Limit: name, Route: name}, Denied: float64(j)})
			s.Targets = append(s.Targets, TargetCounts{Target: Target{name, name}, Errors: float64(j)})
			s.Upstreams = append(s.Upstreams, UpstreamCounts{Upstream: name, Took: &Latencies{5: 1}})
		}
		p.Add(s)
	}
	all := p.history.all()
	if len(all) > MaxSeries {
		t.Errorf("%d series, want %d at most", len(all), MaxSeries)
	}
	bytes := 0
	for _, s := range all {
		for _, ring := range s.values {
			bytes += 4 * cap(ring)
		}
	}
	for range p.history.allTimings() {
		bytes += 4 * Bins * (1 + len(tiers))
	}
	if bytes > 1<<20 {
		t.Errorf("the history takes %d bytes, want less than 1 MiB", bytes)
	}
	t.Logf("%d series, %d bytes", len(all), bytes)
	for _, f := range p.history.families {
		if len(f.queue) > candidates || len(f.own) > labelled {
			t.Errorf("%d labels have series, and %d wait", len(f.own), len(f.queue))
		}
	}
	// What has left the window of ten seconds is gone.
	for range 12 {
		c.pass(time.Second)
		p.Add(c.sample())
	}
	if n := len(p.routes.sums) + len(p.limits.sums) + len(p.targets.sums) + len(p.upstreams.sums); n != 0 {
		t.Errorf("%d things are still in the window", n)
	}
	r := p.Rates()
	if len(r.Routes)+len(r.Limits) != 0 {
		t.Errorf("rates of nothing: %v", r)
	}
}

func TestTheBusiestHaveSeriesAndTheOthersAddUp(t *testing.T) {
	t.Parallel()
	p, c := New(), newClock()
	p.Add(c.sample())
	step := func(busy string, n int) {
		for range n {
			c.pass(time.Second)
			s := c.sample()
			for i := range 30 {
				s.Limits = append(s.Limits, LimitCounts{Limit: Limit{Limit: fmt.Sprintf("l%02d", i)}, Denied: 1})
			}
			s.Limits = append(s.Limits, LimitCounts{Limit: Limit{Limit: busy}, Denied: 1000})
			p.Add(s)
		}
	}
	step("l00", 5)
	if got := tail(line(t, p, "5m", "denied.limit:(others)"), 1); got != "[10]" {
		t.Errorf("the others have %s, want 10", got)
	}
	step("new", 30)
	if got := tail(line(t, p, "5m", "denied.limit:new"), 2); got != "[1000 1000]" {
		t.Errorf("the one that became busy has %s", got)
	}
	if got := tail(line(t, p, "5m", "denied.limit:l00"), 1); got != "[1]" {
		t.Errorf("the one that was busy has %s", got)
	}
}

func TestRatesAreMeansOfTenSeconds(t *testing.T) {
	t.Parallel()
	p, c := New(), newClock()
	p.Add(c.sample())
	for i := range 25 {
		c.pass(time.Second)
		s := c.sample()
		took := &Latencies{}
		took[BinOf(20*time.Millisecond)] = 2
		s.Routes = []RouteCounts{{Route: "weather", Allowed: 6, Denied: 3, Failed: 1, InFlight: 2, Total: took}, {Route: "hangs", InFlight: 7}}
		s.Limits = []LimitCounts{{Limit: Limit{"free", "per-minute", "weather"}, Allowed: 6, Denied: 3, Sources: [len(Sources)]float64{1: 9}}}
		s.Targets = []TargetCounts{{Target: Target{"api", "a:80"}, Classes: [5]float64{1: 5, 4: 1}, Errors: 1}}
		s.Upstreams = []UpstreamCounts{{Upstream: "api", Refused: 2, Took: took}}
		s.StoreErrors = map[string]float64{"timeout": 1}
		if i == 24 {
			s.LogDropped = 10
		}
		p.Add(s)
	}
	r := p.Rates()
	if r.Requests != 10 || r.Denied != 3 || r.Failed != 1 || r.LogDropped != 1 || r.StoreErrors["timeout"] != 1 {
		t.Errorf("of all: %+v", r)
	}
	if got := r.Routes[0]; got.Route != "weather" || got.Requests != 10 || got.Denied != 3 || got.InFlight != 2 || math.Abs(got.P99-.02) > .002 {
		t.Errorf("of the route: %+v", got)
	}
	if got := r.Routes[1]; got.Route != "hangs" || got.InFlight != 7 || !math.IsNaN(got.P99) {
		t.Errorf("of the route on which requests hang: %+v", got)
	}
	if got := r.Limits[0]; got.Denied != 3 || got.Allowed != 6 || got.Sources["redis"] != 9 || len(got.Sources) != 1 {
		t.Errorf("of the limit: %+v", got)
	}
	if got := r.Targets["api"][0]; got.Requests != 7 || got.Errors != 2 || got.Status[1] != 5 || got.NoAnswer != 1 {
		t.Errorf("of the target: %+v", got)
	}
	if got := r.Upstreams["api"]; got.Refused != 2 || math.Abs(got.P50-.02) > .002 {
		t.Errorf("of the upstream: %+v", got)
	}
}

func TestListsAreBoundedAndSayHowManyAreLeftOut(t *testing.T) {
	t.Parallel()
	p, c := New(), newClock()
	p.Add(c.sample())
	c.pass(time.Second)
	s := c.sample()
	for i := range 130 {
		s.Routes = append(s.Routes, RouteCounts{Route: fmt.Sprintf("r%03d", i), Allowed: float64(i + 1)})
		s.Limits = append(s.Limits, LimitCounts{Limit: Limit{Limit: fmt.Sprint(i)}, Denied: float64(i)})
	}
	p.Add(s)
	r := p.Rates()
	if len(r.Routes) != MaxRoutes || r.MoreRoutes != 30 || r.Routes[0].Route != "r129" {
		t.Errorf("%d routes, %d more, the first %s", len(r.Routes), r.MoreRoutes, r.Routes[0].Route)
	}
	if len(r.Limits) != MaxLimits || r.MoreLimits != 30 || r.Limits[0].Denied != 129 {
		t.Errorf("%d limits, %d more", len(r.Limits), r.MoreLimits)
	}
}

func TestUsualIsOfLongerAgoThanNow(t *testing.T) {
	t.Parallel()
	p, c := New(), newClock()
	p.Add(c.sample())
	if got := p.Usual("api"); !math.IsNaN(got) {
		t.Errorf("usual %v before anything was seen", got)
	}
	for i := range 60 {
		c.pass(time.Second)
		s := c.sample()
		took := &Latencies{}
		took[BinOf(10*time.Millisecond)] = 5
		if i >= 40 {
			took = &Latencies{}
			took[BinOf(3*time.Second)] = 5
		}
		s.Upstreams = []UpstreamCounts{{Upstream: "api", Took: took}}
		p.Add(s)
	}
	if got := p.Usual("api"); got < 9 || got > 11 {
		t.Errorf("usual %v ms, want 10: it has been slow for twenty seconds only", got)
	}
}

func TestValuesAreNumbersOrNull(t *testing.T) {
	t.Parallel()
	in := []Value{0, 12, Value(math.NaN()), Value(math.Inf(1)), 0.16949, 123456.7, -1.5}
	out, err := json.Marshal(in)
	if err != nil || string(out) != "[0,12,null,null,0.169,123457,-1.5]" {
		t.Errorf("%s, %v", out, err)
	}
	var back []Value
	if err := json.Unmarshal(out, &back); err != nil || !math.IsNaN(float64(back[2])) || back[1] != 12 {
		t.Errorf("%v, %v", back, err)
	}
	var v Value
	if err := json.Unmarshal([]byte(`"x"`), &v); err == nil || !strings.Contains(err.Error(), "want a number or null") {
		t.Errorf("a text is a figure: %v", err)
	}
}

func TestLatenciesAreRightToATenth(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{10 * time.Microsecond, 170 * time.Microsecond, time.Millisecond, 33 * time.Millisecond, time.Second, 40 * time.Second} {
		var l Latencies
		l[BinOf(d)] = 100
		if got := l.Quantile(.5); math.Abs(got/d.Seconds()-1) > .1 {
			t.Errorf("%s is %v s", d, got)
		}
	}
	var l Latencies
	if !math.IsNaN(l.Quantile(.99)) {
		t.Error("a quantile of nothing")
	}
	for _, d := range []time.Duration{-1, 0, 1, time.Hour} {
		l[BinOf(d)]++ // no panic
	}
	// A count that runs over.
	base := Latencies{3: math.MaxUint32}
	now := base
	now[3] += 5
	if d := now.Less(&base); d[3] != 5 {
		t.Errorf("the difference is %d, want 5", d[3])
	}
}
