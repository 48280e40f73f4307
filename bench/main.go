// Command bench measures what the gateway costs: the same GET of 1 KiB of JSON
// through (a) the standard library's bare reverse proxy, (b) the gateway
// counting in memory and (c) the gateway counting in Redis. 64 keep-alive
// connections, 100 callers with an API key each, an edge limit and one plan limit,
// both too high to deny anything. Beside (a) stands (a′), the same with a pool
// of buffers: the standard proxy makes a new buffer of 32 KiB for each body, which
// is easy to better.
//
// It is not a test of how fast a machine is: everything shares the cores, so
// requests per second say little. CPU time per request of the gateway's own
// process is what is comparable, as a ratio to (a) in the same round. Rounds
// are interleaved (a a′ b c a a′ b c …), so that a machine that slows down slows all.
//
// An answer other than 200, or decisions made by anything but the store that is
// being measured, ends it with an error.
//
//	make bench BENCHFLAGS='-rounds 9 -time 5s -json'
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"bouncer/bench/internal/rig"
)

type options struct {
	gateway, floor, upstream string // programs
	rounds, connections      int
	time                     time.Duration
	json                     bool
	write                    string // Markdown file, or empty
}

func main() {
	var o options
	flag.StringVar(&o.gateway, "gateway", "bin/gateway", "the gateway's program")
	flag.StringVar(&o.floor, "floor", "bin/floor", "the bare proxy's program")
	flag.StringVar(&o.upstream, "upstream", "bin/upstream", "the upstream's program")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of a, a′, b and c")
	flag.IntVar(&o.connections, "connections", 64, "keep-alive connections")
	flag.DurationVar(&o.time, "time", 3*time.Second, "how long each is driven in each round")
	flag.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flag.StringVar(&o.write, "write", "", "Markdown `file` whose bench section is replaced")
	flag.Parse()
	rig.Main("bench", func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) error {
	if o.rounds < 1 || o.connections < 1 || o.time < 100*time.Millisecond {
		return fmt.Errorf("want at least one round, one connection and 100ms, got -rounds %d -connections %d -time %v", o.rounds, o.connections, o.time)
	}
	s, err := setUp(ctx, o)
	if s != nil {
		defer s.tearDown()
	}
	if err != nil {
		return err
	}
	report, err := s.measure(ctx, o)
	if err != nil {
		return err
	}
	return rig.Output{Write: o.write, Section: "bench", JSON: o.json}.Show(report)
}

// measure drives every subject once a round.
func (s *setup) measure(ctx context.Context, o options) (*report, error) {
	for _, x := range s.subjects { // connections, code and caches are warm after this
		if _, err := s.drive(ctx, o, x, time.Second); err != nil {
			return nil, fmt.Errorf("warm up %s: %w", x.name, err)
		}
	}
	samples := make([][]sample, len(s.subjects))
	for round := range o.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, o.rounds)
		for i, x := range s.subjects {
			m, err := s.drive(ctx, o, x, o.time)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", x.name, err)
			}
			samples[i] = append(samples[i], m)
		}
	}
	for _, x := range s.subjects {
		if err := x.check(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
	}
	return newReport(s, o, samples), nil
}

// A sample is one subject in one round.
type sample struct {
	rate     float64 // requests per second
	p50, p99 float64 // ms
	cpu      float64 // µs of the subject's process per request
	redisCPU float64 // µs of Redis per request
}

func (s *setup) drive(ctx context.Context, o options, x *subject, d time.Duration) (sample, error) {
	before, err := x.cpu()
	if err != nil {
		return sample{}, err
	}
	r, err := rig.Run(ctx, rig.Load{
		Address: x.address, Connections: o.connections, Duration: d,
		Next: func(connection, i int) []byte {
			return s.requests[(connection*31+i)%len(s.requests)]
		},
	})
	if err != nil {
		return sample{}, err
	}
	after, err := x.cpu()
	if err != nil {
		return sample{}, err
	}
	n := float64(r.Requests)
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return sample{
		rate:     n / r.Elapsed.Seconds(),
		p50:      micros(r.P50) / 1000,
		p99:      micros(r.P99) / 1000,
		cpu:      micros(after.self-before.self) / n,
		redisCPU: micros(after.redis-before.redis) / n,
	}, nil
}

// A report is what was measured.
type report struct {
	Machine  string     `json:"machine"`
	Date     string     `json:"date"`
	Command  string     `json:"command"`
	Subjects []*summary `json:"subjects"`
}

// A summary is one subject over all rounds.
type summary struct {
	Name     string     `json:"name"`
	Rate     rig.Spread `json:"requests_per_second"`
	P50      rig.Spread `json:"p50_ms"`
	P99      rig.Spread `json:"p99_ms"`
	CPU      rig.Spread `json:"cpu_us_per_request"`
	Ratio    rig.Spread `json:"cpu_ratio_to_a"` // each round to (a) in the same round
	RedisCPU rig.Spread `json:"redis_cpu_us_per_request"`
	Bar      float64    `json:"bar,omitempty"` // what Ratio may be
}

func newReport(s *setup, o options, samples [][]sample) *report {
	r := &report{
		Machine: rig.Machine(),
		Date:    time.Now().Format(time.DateOnly),
		Command: fmt.Sprintf("make bench BENCHFLAGS='-rounds %d -time %v -connections %d'", o.rounds, o.time, o.connections),
	}
	for i, x := range s.subjects {
		of := func(f func(sample) float64) rig.Spread {
			xs := make([]float64, o.rounds)
			for round := range xs {
				xs[round] = f(samples[i][round])
			}
			return rig.SpreadOf(xs)
		}
		ratios := make([]float64, o.rounds)
		for round := range ratios {
			ratios[round] = samples[i][round].cpu / samples[0][round].cpu
		}
		r.Subjects = append(r.Subjects, &summary{
			Name:     x.name,
			Rate:     of(func(m sample) float64 { return m.rate }),
			P50:      of(func(m sample) float64 { return m.p50 }),
			P99:      of(func(m sample) float64 { return m.p99 }),
			CPU:      of(func(m sample) float64 { return m.cpu }),
			RedisCPU: of(func(m sample) float64 { return m.redisCPU }),
			Ratio:    rig.SpreadOf(ratios),
			Bar:      x.bar,
		})
	}
	return r
}

var headings = []string{"", "requests/s", "p50 ms", "p99 ms", "CPU µs/request", "ratio to (a)", "Redis CPU µs/request"}

func (m *summary) cells() []string {
	redis := "–"
	if m.RedisCPU.Max > 0 {
		redis = m.RedisCPU.Text("%.1f")
	}
	return []string{
		m.Name, m.Rate.Text("%.0f"), m.P50.Text("%.2f"), m.P99.Text("%.2f"),
		m.CPU.Text("%.1f"), m.Ratio.Text("%.2f"), redis,
	}
}

// verdicts compares each subject with its bar.
func (r *report) verdicts() []string {
	var out []string
	for _, m := range r.Subjects {
		if m.Bar == 0 {
			continue
		}
		verdict := "within"
		if m.Ratio.Median > m.Bar {
			verdict = "ABOVE"
		}
		out = append(out, fmt.Sprintf("%s: %.2f × the CPU of (a), %s the bar of %.1f", m.Name, m.Ratio.Median, verdict, m.Bar))
	}
	return out
}

// Table prints the report for people.
func (r *report) Table() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(headings, "\t"))
	for _, m := range r.Subjects {
		fmt.Fprintln(w, strings.Join(m.cells(), "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println("median (min–max) of the rounds; " + r.Machine)
	for _, v := range r.verdicts() {
		fmt.Println(v)
	}
	return nil
}

// Markdown is the report as a section of a document.
func (r *report) Markdown() string {
	var b strings.Builder
	row := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	fmt.Fprintf(&b, "Measured on %s: %s.\n\n", r.Date, r.Machine)
	fmt.Fprintf(&b, "    %s\n\n", r.Command)
	row(headings)
	row([]string{"---", "--:", "--:", "--:", "--:", "--:", "--:"})
	for _, m := range r.Subjects {
		row(m.cells())
	}
	b.WriteString("\nMedian (min–max) of the rounds.\n\n")
	for _, v := range r.verdicts() {
		fmt.Fprintf(&b, "- %s\n", v)
	}
	return b.String()
}
