package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"bouncer/bench/internal/rig"
	"bouncer/gateway/ratelimit"
)

// The bars, both of the CPU of the process of Redis, admitted.
const (
	barOne  = 1.8 // one token bucket, to the bare script
	barFour = 0.5 // four token buckets in one call, to four calls of one
)

// A report is what was measured.
type report struct {
	Machine  string     `json:"machine"`
	Date     string     `json:"date"`
	Command  string     `json:"command"`
	Callers  int        `json:"callers"`
	Subjects []*summary `json:"subjects"`
	Bars     []*verdict `json:"bars"`
}

// A summary is one subject over all rounds.
type summary struct {
	Name    string     `json:"name"`
	Limits  int        `json:"limits,omitempty"`
	Verdict string     `json:"verdict,omitempty"`
	Rate    rig.Spread `json:"calls_per_second"`
	CPU     rig.Spread `json:"redis_cpu_us_per_call"`
	Ratio   rig.Spread `json:"redis_cpu_ratio_to_bare"` // each round to the bare script in the same round
	Script  rig.Spread `json:"evalsha_us_per_call"`
	scripts bool
}

// A verdict compares something with its bar.
type verdict struct {
	What   string     `json:"what"`
	Ratio  rig.Spread `json:"ratio"`
	Bar    float64    `json:"bar"`
	Within bool       `json:"within"`
}

func newReport(s *setup, o options, samples [][]sample) *report {
	r := &report{
		Machine: rig.Machine(),
		Date:    time.Now().Format(time.DateOnly),
		Command: fmt.Sprintf("make bench-decisions BENCHFLAGS='-rounds %d -time %v -callers %d'", o.rounds, o.time, o.callers),
		Callers: o.callers,
	}
	over := func(f func(round int) float64) rig.Spread {
		xs := make([]float64, o.rounds)
		for round := range xs {
			xs[round] = f(round)
		}
		return rig.SpreadOf(xs)
	}
	var one, four []sample
	for i, x := range s.subjects {
		ms := samples[i]
		m := &summary{
			Name: x.name, Limits: x.limits, Verdict: x.verdict,
			Rate:   over(func(k int) float64 { return ms[k].rate }),
			CPU:    over(func(k int) float64 { return ms[k].cpu }),
			Ratio:  over(func(k int) float64 { return ms[k].cpu / samples[0][k].cpu }),
			Script: over(func(k int) float64 { return ms[k].script }),
		}
		m.scripts = m.Script.Max > 0
		r.Subjects = append(r.Subjects, m)
		if x.name == ratelimit.TokenBucket.String() && x.verdict == admitted {
			switch x.limits {
			case 1:
				one = ms
				r.judge("one token bucket, to the bare script", m.Ratio, barOne)
			case 4:
				four = ms
			}
		}
	}
	r.judge("four token buckets in one call, to four calls of one",
		over(func(k int) float64 { return four[k].cpu / (4 * one[k].cpu) }), barFour)
	return r
}

func (r *report) judge(what string, ratio rig.Spread, bar float64) {
	r.Bars = append(r.Bars, &verdict{What: what, Ratio: ratio, Bar: bar, Within: ratio.Median <= bar})
}

var headings = []string{"", "limits", "verdict", "calls/s", "Redis CPU µs/call", "ratio to bare", "of it in the script, µs"}

func (m *summary) cells() []string {
	limits, script := "–", "–"
	if m.Limits > 0 {
		limits = strconv.Itoa(m.Limits)
	}
	if m.scripts {
		script = m.Script.Text("%.1f")
	}
	verdict := m.Verdict
	if verdict == "" {
		verdict = "–"
	}
	return []string{m.Name, limits, verdict, m.Rate.Text("%.0f"), m.CPU.Text("%.1f"), m.Ratio.Text("%.2f"), script}
}

func (v *verdict) String() string {
	word := "within"
	if !v.Within {
		word = "ABOVE"
	}
	return fmt.Sprintf("%s: %s × the Redis CPU, %s the bar of %.1f", v.What, v.Ratio.Text("%.2f"), word, v.Bar)
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
	fmt.Printf("median (min–max) of the rounds, %d callers; %s\n", r.Callers, r.Machine)
	for _, v := range r.Bars {
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
	row([]string{"---", "--:", "---", "--:", "--:", "--:", "--:"})
	for _, m := range r.Subjects {
		row(m.cells())
	}
	b.WriteString("\nMedian (min–max) of the rounds.\n\n")
	for _, v := range r.Bars {
		fmt.Fprintf(&b, "- %s\n", v)
	}
	return b.String()
}
