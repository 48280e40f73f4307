package main

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A sabotage that does not fit the source any more would build a good gateway
// only to find that nothing is noticed.
func TestSabotagesFitTheSource(t *testing.T) {
	names := map[string]bool{}
	for _, r := range rows() {
		if names[r.name] {
			t.Errorf("two rows are called %q", r.name)
		}
		names[r.name] = true
	}
	for name, s := range sabotages {
		if !names[s.row] {
			t.Errorf("%s: no row is called %q", name, s.row)
		}
		for _, e := range s.edits {
			text, err := os.ReadFile(filepath.Join("..", "..", e.file))
			if err != nil {
				t.Fatal(err)
			}
			if patched, err := e.apply(string(text)); err != nil || patched == string(text) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// good is a row that has kept every promise.
func good() (*row, *result, []sample, span) {
	at := time.Now()
	r := &row{name: "x", opens: must, kinds: []string{"timeout"}}
	out := &result{
		Opens: true, OpenLittle: 1, Errors: map[string]int{"timeout": 5},
		Fault: spread3{P999: 53, N: 100}, Calm: spread3{P999: 2}, Sent: 10, OK: 4, Used: 6, Calls: 10, Return: .5, Servers: 1,
	}
	s := span{failed: at, openFrom: at.Add(time.Second), healing: at.Add(2 * time.Second), shared: at.Add(3 * time.Second)}
	return r, out, []sample{
		{route: "capped", caller: hot, at: at.Add(1100 * time.Millisecond), status: 200, policy: "local-cap"},
		{route: "capped", caller: hot, at: at.Add(1100 * time.Millisecond), status: 429, policy: "local-cap", problem: "temporary-reduced-capacity", retryAfter: 3},
		{route: "closed", caller: "closed-0", at: at.Add(1200 * time.Millisecond), status: 503, problem: "temporary-reduced-capacity", retryAfter: 1},
		{route: "open", caller: "open-0", at: at.Add(1200 * time.Millisecond), status: 200},
		{route: "closed", caller: "closed-0", at: at.Add(4 * time.Second), status: 200, policy: "per-hour", remaining: 7},
	}, s
}

func TestEachPromiseCanBeBroken(t *testing.T) {
	r, out, samples, at := good()
	out.judge(r, samples, at)
	if len(out.Broken) > 0 {
		t.Fatalf("a good row: %q", out.Broken)
	}
	for name, tt := range map[string]struct {
		spoil func(r *row, out *result, samples []sample)
		want  string
	}{
		"slow":               {func(_ *row, out *result, _ []sample) { out.Fault.P999 = 63 }, "latency"},
		"breaker shut":       {func(_ *row, out *result, _ []sample) { out.Opens = false }, "breaker: not open"},
		"open and slow":      {func(_ *row, out *result, _ []sample) { out.Open.P99, out.OpenLittle = 2, .9 }, "breaker: while open"},
		"late return":        {func(_ *row, out *result, _ []sample) { out.Return = 2.1 }, "return"},
		"500":                {func(_ *row, _ *result, s []sample) { s[0].status = 500 }, "answers"},
		"no answer":          {func(_ *row, _ *result, s []sample) { s[3].status, s[3].err = 0, "EOF" }, "answers"},
		"503 without wait":   {func(_ *row, _ *result, s []sample) { s[2].retryAfter = -1 }, "answers"},
		"admitted by nobody": {func(_ *row, _ *result, s []sample) { s[2].status = 200 }, "answers"},
		"asked while open":   {func(_ *row, _ *result, s []sample) { s[3].policy = "per-hour" }, "answers"},
		"back and forth":     {func(_ *row, _ *result, s []sample) { s[4] = s[2]; s[4].at = at.shared.Add(time.Second) }, "return"},
		"called twice":       {func(_ *row, out *result, _ []sample) { out.Calls = 11 }, "charged once"},
		"charged twice":      {func(_ *row, out *result, _ []sample) { out.Used = 11 }, "charged once"},
		"not charged":        {func(_ *row, out *result, _ []sample) { out.Used = 3 }, "charged once"},
		"nothing shown":      {func(_ *row, out *result, _ []sample) { out.Errors = nil }, "metric"},
		"wrong kind":         {func(_ *row, out *result, _ []sample) { out.Errors = map[string]int{"other": 5} }, "metric"},
		"goroutines":         {func(_ *row, out *result, _ []sample) { out.Goroutines[1] = 1000 }, "bounds"},
		"memory":             {func(_ *row, out *result, _ []sample) { out.Resident[1] = 1 << 30 }, "bounds"},
		"connections":        {func(_ *row, out *result, _ []sample) { out.Connections[1] = 1000 }, "bounds"},
	} {
		r, out, samples, at := good()
		tt.spoil(r, out, samples)
		out.judge(r, samples, at)
		if !slices.ContainsFunc(out.Broken, func(b string) bool { return strings.HasPrefix(b, tt.want) }) {
			t.Errorf("%s: %q, want %q", name, out.Broken, tt.want)
		}
	}
}

func TestOverTheLimit(t *testing.T) {
	for name, tt := range map[string]struct {
		shared, local, instances, forget int
		over                             int
		broken                           bool
	}{
		"none":                   {shared: 50, over: 0},
		"by the local caps":      {shared: 50, local: 20, instances: 3, over: 60},
		"beyond a local cap":     {shared: 50, local: 21, instances: 3, over: 63, broken: true},
		"by Redis":               {shared: 51, over: 1, broken: true},
		"by a Redis that forgot": {shared: 100, forget: 1, over: 50},
	} {
		var samples []sample
		for range tt.shared {
			samples = append(samples, sample{route: "capped", caller: hot, status: 200, policy: "per-hour"})
		}
		for i := range tt.instances {
			for range tt.local {
				samples = append(samples, sample{route: "capped", caller: hot, status: 200, policy: "local-cap", instance: i})
			}
		}
		out := &result{}
		out.judgeOver(&row{forget: tt.forget}, samples)
		if out.Over != tt.over || (len(out.Broken) > 0) != tt.broken {
			t.Errorf("%s: %d over, %q", name, out.Over, out.Broken)
		}
	}
}

func TestHostCleansUpWhateverHappens(t *testing.T) {
	var order []int
	h := &host{ctx: context.Background()}
	err := h.run(func() {
		h.Cleanup(func() { order = append(order, 1) })
		h.Cleanup(func() { order = append(order, 2) })
		h.must(errors.New("no"), "try")
		t.Error("it went on")
	})
	if err == nil || err.Error() != "try: no" || !slices.Equal(order, []int{2, 1}) {
		t.Errorf("%v, %v", err, order)
	}
}

func TestBusiestSecond(t *testing.T) {
	start := time.Now()
	var times []time.Time
	for _, ms := range []int{0, 100, 900, 1050, 1060, 1070, 3000} {
		times = append(times, start.Add(time.Duration(ms)*time.Millisecond))
	}
	if n := busiestSecond(times, start, start.Add(time.Hour)); n != 5 {
		t.Errorf("%d in the busiest second, want 5", n)
	}
	if n := busiestSecond(times, start.Add(1055*time.Millisecond), start.Add(2*time.Second)); n != 2 {
		t.Errorf("%d in the busiest second of a part, want 2", n)
	}
}

func TestCommand(t *testing.T) {
	r := bufio.NewReader(strings.NewReader("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\nhello\r\n"))
	raw, args, err := command(r)
	if err != nil || string(raw) != "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" || len(args) != 2 || string(args[1]) != "k" {
		t.Fatalf("%q, %q, %v", raw, args, err)
	}
	if _, args, err = command(r); err != nil || string(args[0]) != "PING" {
		t.Fatalf("%q, %v", args, err)
	}
	if _, _, err = command(r); err == nil {
		t.Error("no error for what is no command")
	}
}

func TestSampleReadsItsAnswer(t *testing.T) {
	s := sample{remaining: -1, retryAfter: -1}
	err := s.read(bufio.NewReader(strings.NewReader("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 12\r\n" +
		"RateLimit-Policy: \"local-cap\";q=20;w=3600\r\nRateLimit: \"local-cap\";r=0;t=12\r\nContent-Length: 44\r\n\r\n" +
		`{"type":"https://x#temporary-reduced-capacity"}`[:44])))
	if err != nil || s.status != http.StatusTooManyRequests || s.policy != "local-cap" || s.remaining != 0 || s.retryAfter != 12 {
		t.Errorf("%+v, %v", s, err)
	}
}
