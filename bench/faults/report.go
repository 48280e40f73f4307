package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"bouncer/bench/internal/rig"
)

// A report is what a run of the faults showed.
type report struct {
	Machine string    `json:"machine"`
	Date    string    `json:"date"`
	Rows    []*result `json:"rows"`
	Storm   *storm    `json:"storm,omitempty"`
	Far     []*far    `json:"far,omitempty"`
}

var _ rig.Report = (*report)(nil)

// broken lists every broken promise with its row.
func (r *report) broken() (out []string) {
	for _, row := range r.Rows {
		for _, b := range row.Broken {
			out = append(out, row.Name+": "+b)
		}
	}
	if r.Storm != nil {
		for _, b := range r.Storm.Broken {
			out = append(out, "20 gateways: "+b)
		}
	}
	for _, f := range r.Far {
		for _, b := range f.Broken {
			out = append(out, "far Redis, "+f.What+": "+b)
		}
	}
	return out
}

// Markdown is the report as a section of a document.
func (r *report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s: %s.\n\n    make faults\n\n", r.Date, r.Machine)
	b.WriteString("| fault | clients saw: local_cap · deny · allow | added ms, p50 / p99 / p99.9 | while open, ms, p50 / p99 | over the limit (may be) | charged / asked | returned after | shown by `gateway_store_errors_total` |\n")
	b.WriteString("| --- | --- | --: | --: | --: | --: | --: | --- |\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| **%s**: %s | %s | %s | %s | %s | %s | %s | %s |\n", row.Name, row.What, row.seen(), row.added(), row.open(),
			row.over(), row.charged(), row.back(), row.shown())
	}
	for _, row := range r.Rows {
		if row.Repeated != "" {
			fmt.Fprintf(&b, "\n%s was measured twice: %s.\n", row.Name, row.Repeated)
		}
	}
	if s := r.Storm; s != nil {
		fmt.Fprintf(&b, "\n%d gateways with %d requests a second together lose one Redis. In the busiest second Redis was sent:\n\n", s.Gateways, s.Requests)
		b.WriteString("| | connections | script calls |\n| --- | --: | --: |\n")
		fmt.Fprintf(&b, "| away: every connection is cut at once | %d | – |\n", s.CutConnections)
		fmt.Fprintf(&b, "| away: every reply is lost | %d | %d |\n", s.LostConnections, s.LostCalls)
		fmt.Fprintf(&b, "| on the return | %d | as many as requests |\n", s.ReturnConnections)
		fmt.Fprintf(&b, "\nThe last of them was back %.1f s and %.1f s after Redis was.\n", s.ReturnCut, s.ReturnLost)
	}
	if len(r.Far) > 0 {
		fmt.Fprintf(&b, "\nA Redis whose every reply takes %v, with `store.redis.timeout: %v`:\n\n", farAway, farTimeout)
		b.WriteString("| | p50 ms | p99 ms | Redis calls a request |\n| --- | --: | --: | --: |\n")
		for _, f := range r.Far {
			if f.Missing == "" {
				fmt.Fprintf(&b, "| %s | %.1f | %.1f | %.2f |\n", f.What, f.P50, f.P99, f.Calls)
			}
		}
	}
	return b.String()
}

// Table prints the summary of a run.
func (r *report) Table() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FAULT\tADDED p50/p99/p99.9 ms\tOPEN p50/p99 ms\tOVER (MAY)\tCHARGED/ASKED\tBACK\tERRORS\tPROMISES")
	for _, row := range r.Rows {
		verdict := "kept"
		if len(row.Broken) > 0 {
			verdict = "BROKEN: " + row.Broken[0]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Name, row.added(), row.open(), row.over(), row.charged(), row.back(), row.shown(), verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if s := r.Storm; s != nil {
		fmt.Printf("\n%d gateways, %d requests/s; busiest second: %d connections while cut, %d connections and %d calls while replies are lost, %d connections on the return; back after %.1f s, %.1f s\n",
			s.Gateways, s.Requests, s.CutConnections, s.LostConnections, s.LostCalls, s.ReturnConnections, s.ReturnCut, s.ReturnLost)
	}
	for _, f := range r.Far {
		if f.Missing != "" {
			fmt.Printf("far Redis, %s: not measured: %s\n", f.What, f.Missing)
			continue
		}
		fmt.Printf("far Redis, %s: p50 %.1f ms, p99 %.1f ms, %.2f calls a request\n", f.What, f.P50, f.P99, f.Calls)
	}
	return nil
}

// seen lists the answers during the fault by route.
func (r *result) seen() string {
	var out []string
	for _, m := range modes {
		var statuses []string
		for _, status := range sortedKeys(r.Statuses[m.route]) {
			statuses = append(statuses, fmt.Sprintf("%d × %s", r.Statuses[m.route][status], status))
		}
		out = append(out, strings.Join(statuses, ", "))
	}
	return strings.Join(out, " · ")
}

func (r *result) added() string {
	return fmt.Sprintf("%+.1f / %+.1f / %+.1f", r.Fault.P50-r.Calm.P50, r.Fault.P99-r.Calm.P99, r.Fault.P999-r.Calm.P999)
}

func (r *result) open() string {
	if r.Open.N == 0 {
		return "–"
	}
	p50, p99 := r.openAdded()
	return fmt.Sprintf("%.2f / %.2f", p50, p99)
}

func (r *result) over() string { return fmt.Sprintf("%d (%d)", r.Over, r.OverRule) }

func (r *result) charged() string { return fmt.Sprintf("%d / %d", r.Used, r.Sent) }

func (r *result) back() string {
	text := "at once"
	if r.Return >= .1 {
		text = fmt.Sprintf("%.1f s", r.Return)
	}
	if r.Away > 0 {
		text += fmt.Sprintf(" (%.1f s after the fault)", r.Away)
	}
	return text
}

func (r *result) shown() string {
	if text := kindsText(r.Errors); text != "" {
		return text
	}
	return "none"
}
