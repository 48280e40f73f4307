package pulse

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// day are the figures of a day on which nothing is wrong.
func day() *Circumstances {
	return &Circumstances{
		Requests: 200, AddedP90: .0008, OpenFiles: 120, MaxFiles: 1024, Hash: "aa", Hashes: map[string]int{"aa": 3},
		Limits: []LimitRates{
			{Limit: Limit{"free", "per-minute", "weather"}, Allowed: 190, Denied: .3},
			{Limit: Limit{"", "edge", "weather"}, Allowed: 200},
		},
		Denied: []Caller{{Key: "per-minute {user:kim}", Kind: "user", Name: "kim", Limit: "per-minute", PerSecond: .3}},
		Near:   []Caller{{Key: "per-minute {user:lee}", Kind: "user", Name: "lee", Limit: "per-minute", PerSecond: .5}},
		Store:  StoreState{Shared: true, Modes: []string{"local_cap"}, P90: .0009, Timeout: .05, Errors: map[string]float64{"timeout": .05}},
		Upstreams: []UpstreamState{
			{Upstream: "api", Targets: 2, Requests: 190, Errors: 1, P50: .02, P90: .04, Usual: .08, Wait: 10},
			{Upstream: "idle", Targets: 1, P50: math.NaN(), P90: math.NaN(), Usual: math.NaN(), Wait: 10},
		},
	}
}

func callers(n int, perSecond float64) (list []Caller) {
	const limit = "per-minute"
	for i := range n {
		name := fmt.Sprint("u", i)
		list = append(list, Caller{Key: limit + " {user:" + name + "}", Kind: "user", Name: name, Limit: limit, PerSecond: perSecond})
	}
	return list
}

// What the person on call is told, by what has happened.
func TestFindingsNameTheCause(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		happens func(*Circumstances)
		want    string // runbook severity, of each; none for a quiet day
		says    []string
		subject Subject
	}{
		{name: "a quiet day", happens: func(*Circumstances) {}},
		{name: "nobody is there", happens: func(c *Circumstances) {
			*c = Circumstances{AddedP90: math.NaN(), Store: StoreState{P90: math.NaN()}}
		}},
		{
			name: "one noisy client",
			happens: func(c *Circumstances) {
				c.Requests, c.Limits[0].Denied = 300, 60
				c.Denied = append(callers(8, .5), Caller{Key: "per-minute {user:priya123}", Kind: "user", Name: "priya123", Limit: "per-minute", PerSecond: 55.2})
			},
			want: "noisy-client look", says: []string{"92 %", "user priya123", "55 times a second", "per-minute", "Retry-After"},
			subject: Subject{Key: "per-minute {user:priya123}", Kind: "user", Name: "priya123", Limit: "per-minute", Plan: "free", Route: "weather"},
		},
		{
			name: "one client makes most of all traffic",
			happens: func(c *Circumstances) {
				c.Requests, c.Limits[0].Denied, c.Limits[0].Allowed = 1000, 900, 100
				c.Denied = []Caller{{Key: "per-minute {ip:203.0.113.7}", Kind: "ip", Name: "203.0.113.7", Limit: "per-minute", PerSecond: 890}}
			},
			want: "noisy-client look", says: []string{"99 %", "address 203.0.113.7", "may be many people"},
			subject: Subject{Key: "per-minute {ip:203.0.113.7}", Kind: "ip", Name: "203.0.113.7", Limit: "per-minute", Plan: "free", Route: "weather"},
		},
		{
			name: "a part measured a little later than the whole",
			happens: func(c *Circumstances) {
				c.Limits[0].Denied, c.Denied = 1.5, callers(1, 1.6)
			},
			want: "noisy-client look", says: []string{"100 %", "is denied 1.5 times a second", "of 1.5 times a second in all"},
			subject: Subject{Key: "per-minute {user:u0}", Kind: "user", Name: "u0", Limit: "per-minute", Plan: "free", Route: "weather"},
		},
		{
			name: "three noisy clients",
			happens: func(c *Circumstances) {
				c.Limits[0].Denied, c.Denied = 30, callers(3, 10)
			},
			want: "noisy-client look", says: []string{"3 callers make", "u0"},
			subject: Subject{Key: "per-minute {user:u0}", Kind: "user", Name: "u0", Limit: "per-minute", Plan: "free", Route: "weather"},
		},
		{
			name: "a limit that is too tight",
			happens: func(c *Circumstances) {
				c.Limits[0].Allowed, c.Limits[0].Denied, c.Denied = 60, 140, callers(40, 3.5)
			},
			want: "limit-too-tight act", says: []string{"70 %", "40 callers", "none makes more than 2 %", "simulate"},
			subject: Subject{Limit: "per-minute", Plan: "free", Route: "weather"},
		},
		{
			name: "a limit that is too tight for more than are told apart, on two plans",
			happens: func(c *Circumstances) {
				c.Limits[0].Allowed, c.Limits[0].Denied, c.Denied = 80, 10, callers(Trended, .2)
				c.Limits = append(c.Limits, LimitRates{Limit: Limit{"paid", "per-minute", "weather"}, Allowed: 70, Denied: 15})
			},
			want: "limit-too-tight look", says: []string{"14 %", "More than"},
			subject: Subject{Limit: "per-minute", Route: "weather"},
		},
		{
			name: "a limit that all share is spent",
			happens: func(c *Circumstances) {
				c.Limits[0].Allowed, c.Limits[0].Denied = 100, 50
				c.Denied = []Caller{{Key: "per-minute {global}", Kind: "other", Name: "{global}", Limit: "per-minute", PerSecond: 50}}
			},
			want: "limit-too-tight look", says: []string{"33 %", "share one budget"},
			subject: Subject{Limit: "per-minute", Plan: "free", Route: "weather"},
		},
		{
			name: "who it is is not known yet",
			happens: func(c *Circumstances) {
				c.Limits[0].Denied, c.Denied = 60, nil
			},
		},
		{
			name: "many are close to a limit",
			happens: func(c *Circumstances) {
				c.Near = callers(15, 3)
			},
			want: "near-limit look", says: []string{"15 callers", "24 %"},
			subject: Subject{Limit: "per-minute", Plan: "free", Route: "weather"},
		},
		{
			name: "Redis is gone",
			happens: func(c *Circumstances) {
				c.Store.Away, c.Store.Errors, c.Store.P90 = true, map[string]float64{"refused": 4, "timeout": 1}, math.NaN()
			},
			want: "redis-away act", says: []string{"refused, 4.0 times a second", "local_cap", "doctor"},
		},
		{
			name: "a node of the cluster is gone",
			happens: func(c *Circumstances) {
				c.Store.Away, c.Store.AwayNodes, c.Store.Modes = true, []string{"10.0.0.7:6379"}, []string{"deny", "allow"}
			},
			want: "redis-away act", says: []string{"A part of Redis", "10.0.0.7:6379", "503 (deny)", "nothing is limited (allow)"},
		},
		{
			name:    "Redis is slow",
			happens: func(c *Circumstances) { c.Store.P90, c.AddedP90 = .03, .031 },
			want:    "redis-slow look", says: []string{"30 ms", "50 ms", "SLOWLOG"},
		},
		{
			name:    "Redis is slower than it may be",
			happens: func(c *Circumstances) { c.Store.P90, c.AddedP90 = .05, .12 },
			want:    "redis-slow act", says: []string{"50 ms"},
		},
		{
			name:    "calls of Redis fail",
			happens: func(c *Circumstances) { c.Store.Errors = map[string]float64{"noperm": 3} },
			want:    "redis-slow look", says: []string{"noperm", "3.0 times a second"},
		},
		{
			name: "a slow upstream",
			happens: func(c *Circumstances) {
				c.Upstreams[0].P50, c.Upstreams[0].P90, c.Requests = 2, 2.1, 20
			},
			want: "upstream-slow act", says: []string{"api is slow", "2.1 s", "80 ms"}, subject: Subject{Upstream: "api"},
		},
		{
			name: "an upstream that has streams",
			happens: func(c *Circumstances) {
				c.Upstreams[0].P90, c.Upstreams[0].Usual = 60, 60
			},
		},
		{
			name: "an upstream that fails",
			happens: func(c *Circumstances) {
				c.Upstreams[0].Errors = 80
			},
			want: "upstream-failing act", says: []string{"42 %", "not the gateway"}, subject: Subject{Upstream: "api"},
		},
		{
			name: "a target is out",
			happens: func(c *Circumstances) {
				c.Upstreams[0].Out = []string{"10.0.0.1:80"}
			},
			want: "upstream-failing look", says: []string{"1 of 2", "10.0.0.1:80"}, subject: Subject{Upstream: "api"},
		},
		{
			name: "all targets are out",
			happens: func(c *Circumstances) {
				c.Upstreams[0].Out = []string{"10.0.0.1:80", "10.0.0.2:80"}
			},
			want: "upstream-failing act", says: []string{"No target of api"}, subject: Subject{Upstream: "api"},
		},
		{
			name: "a circuit is open",
			happens: func(c *Circumstances) {
				c.Upstreams[0].CircuitOpen, c.Upstreams[0].Refused = true, 100
			},
			want: "circuit-open act", says: []string{"100 times a second"}, subject: Subject{Upstream: "api"},
		},
		{
			name:    "the gateway is slow and Redis is quick",
			happens: func(c *Circumstances) { c.AddedP90 = .2 },
			want:    "gateway-slow look", says: []string{"200 ms", "not Redis"},
		},
		{
			name:    "requests wait on purpose",
			happens: func(c *Circumstances) { c.AddedP90, c.Waits = .2, true },
		},
		{
			name:    "few files are left",
			happens: func(c *Circumstances) { c.OpenFiles = 1000 },
			want:    "gateway-slow act", says: []string{"1000 of 1024", "LimitNOFILE"},
		},
		{
			name:    "lines of the log are lost",
			happens: func(c *Circumstances) { c.LogDropped = 12 },
			want:    "log-dropped look", says: []string{"12 times a second"},
		},
		{
			name:    "a table is full",
			happens: func(c *Circumstances) { c.Overflow = 2 },
			want:    "overflow act", says: []string{"max_keys"},
		},
		{
			name:    "a configuration is rejected",
			happens: func(c *Circumstances) { c.Rejected = []string{"routes.yaml:3:1: x: y", "routes.yaml:4:1: z"} },
			want:    "config-rejected act", says: []string{"2 mistakes", "routes.yaml:3:1", "restart would fail"},
		},
		{
			name:    "instances differ",
			happens: func(c *Circumstances) { c.Hashes = map[string]int{"aa": 1, "bb": 2} },
			want:    "config-differs look", says: []string{"1 instance has aa (this one)", "2 instances have bb"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := day()
			test.happens(c)
			found := Conditions(c)
			got := ""
			for _, f := range found {
				got += f.Runbook + " " + f.Severity + " "
			}
			if strings.TrimSpace(got) != test.want {
				t.Fatalf("found %q, want %q\n%+v", got, test.want, found)
			}
			if len(found) == 0 {
				return
			}
			f := found[0]
			for _, word := range test.says {
				if !strings.Contains(f.Title+" "+f.Text, word) {
					t.Errorf("%q is not in %q: %s", word, f.Title, f.Text)
				}
			}
			if f.Subject != test.subject {
				t.Errorf("it is about %+v, want %+v", f.Subject, test.subject)
			}
			if bad := regexp.MustCompile(`NaN|Inf|%!|, The | {2}`).FindString(f.Title + " " + f.Text); bad != "" {
				t.Errorf("%q in %s: %s", bad, f.Title, f.Text)
			}
			t.Logf("%s: %s", f.Title, f.Text)
		})
	}
}

// Each finding leads to a heading of the runbook.
func TestFindingsLeadToTheRunbook(t *testing.T) {
	t.Parallel()
	book, err := os.ReadFile("../../docs/RUNBOOK.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("findings.go")
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]bool{}
	for line := range strings.Lines(string(book)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			headings[strings.ReplaceAll(strings.ToLower(strings.TrimSpace(name)), " ", "-")] = true
		}
	}
	found := regexp.MustCompile(`(?:Runbook: |(?:Act|Look|severity), )"([a-z-]+)"`).FindAllStringSubmatch(string(code), -1)
	if len(found) < 15 {
		t.Fatalf("%d findings were found in the code", len(found))
	}
	for _, f := range found {
		if !headings[f[1]] {
			t.Errorf("%s is no heading of docs/RUNBOOK.md", f[1])
		}
	}
}

func TestAFindingOnTheEdgeDoesNotFlicker(t *testing.T) {
	t.Parallel()
	fs := NewFindings()
	start := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	one := Finding{Cause: CauseLimit, Severity: Look, Runbook: "limit-too-tight", Subject: Subject{Limit: "l"}, Title: "t"}
	judge := func(second int, list ...Finding) []Finding {
		d := time.Duration(second) * time.Second
		return fs.Judge(d, start.Add(d), list)
	}
	if got := judge(0, one); len(got) != 0 {
		t.Error("it is told before it has held for a moment")
	}
	judge(10) // it held for one second only
	for s := 20; s <= 23; s++ {
		judge(s, one)
	}
	changes, was := 0, true
	for s := 24; s < 60; s++ {
		var list []Finding
		if s%2 == 0 {
			list = append(list, one)
		}
		got := judge(s, list...)
		if is := len(got) == 1; is != was {
			changes, was = changes+1, is
		}
		if len(got) == 1 && !got[0].Since.Equal(start.Add(20*time.Second)) {
			t.Fatalf("it is said to hold since %s", got[0].Since)
		}
	}
	if changes != 0 {
		t.Errorf("it came and went %d times", changes)
	}
	if got := judge(72); len(got) != 1 {
		t.Error("it is gone at once")
	}
	if got := judge(80); len(got) != 0 {
		t.Error("it stays for ever")
	}
}

func TestWhatIsCertainIsToldAtOnceAndARolloutIsNot(t *testing.T) {
	t.Parallel()
	fs := NewFindings()
	list := []Finding{
		{Severity: Look, Runbook: "config-differs"}, {Severity: Look, Runbook: "near-limit"}, {Severity: Act, Runbook: "redis-away"},
	}
	want := map[int]string{0: "redis-away", 3: "redis-away near-limit", 29: "redis-away near-limit", 30: "redis-away config-differs near-limit"}
	for s := range 31 {
		got := ""
		for _, f := range fs.Judge(time.Duration(s)*time.Second, time.Unix(int64(s), 0), list) {
			got += " " + f.Runbook
		}
		if w, ok := want[s]; ok && strings.TrimSpace(got) != w {
			t.Errorf("after %d s: %s, want %s", s, got, w)
		}
	}
}

// Whoever has corrected the file is not told for another quarter of a minute that a
// restart would fail.
func TestARejectedConfigurationIsForgottenWhenItIsTaken(t *testing.T) {
	t.Parallel()
	fs := NewFindings()
	list := []Finding{{Severity: Act, Runbook: "config-rejected"}}
	if got := fs.Judge(0, time.Unix(0, 0), list); len(got) != 1 {
		t.Fatalf("it is not told: %v", got)
	}
	if got := fs.Judge(time.Second, time.Unix(1, 0), nil); len(got) != 0 {
		t.Errorf("after it was taken: %v", got)
	}
}

func TestFindingsAreBounded(t *testing.T) {
	t.Parallel()
	fs := NewFindings()
	for s := range 30 {
		var list []Finding
		for i := range 500 {
			list = append(list, Finding{Severity: Look, Runbook: "noisy-client", Subject: Subject{Key: fmt.Sprint(s, i)}})
		}
		if got := fs.Judge(time.Duration(s)*time.Second, time.Unix(0, 0), list); len(got) > maxFindings {
			t.Fatalf("%d findings are told", len(got))
		}
	}
	if len(fs.held) > 2*maxFindings {
		t.Errorf("%d findings are remembered", len(fs.held))
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, routes := range []int{10, 1000} {
		b.Run(fmt.Sprint(routes), func(b *testing.B) {
			p, c := New(), newClock()
			p.Add(c.sample())
			took := &Latencies{100: 5, 110: 3}
			s := c.sample()
			for i := range routes {
				s.Routes = append(s.Routes, RouteCounts{Route: fmt.Sprint(i), Allowed: 10, Total: took})
			}
			b.ReportAllocs()
			for b.Loop() {
				c.pass(time.Second)
				s.At, s.Since = c.day, c.since
				p.Add(s)
			}
		})
	}
}
