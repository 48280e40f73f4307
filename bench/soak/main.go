// Command soak holds the gateway to what it promises at length: bodies of any
// size in bounded memory, thousands of idle WebSockets, neighbours of slow
// clients that notice nothing, configurations by the hundred that leave no trace,
// and everything at once, faults too, for as long as it takes a leak to show. Each
// row has a bar; the program exits with 1 if one is missed.
//
// It plays the clients and the upstream itself; what it measures is the
// gateway's process. All of it is on loopback, bounded in number and time.
//
//	make soak                                       all rows, some half an hour
//	make soak SOAKFLAGS='-scale 0.01'               a hundredth of the size
//	make soak SOAKFLAGS='-run ^mixed'               one row: twenty minutes of mixed load
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"time"

	"bouncer/bench/internal/rig"
)

type options struct {
	gateway string
	scale   float64
	run     string
	json    bool
	write   string
}

// of is n at the scale, at least least.
func (o options) of(n, least int) int {
	return max(least, int(math.Round(float64(n)*o.scale)))
}

func main() {
	var o options
	flag.StringVar(&o.gateway, "gateway", "bin/gateway", "the gateway's program")
	flag.Float64Var(&o.scale, "scale", 1, "how large it all is, beside what is promised: above 0, at most 1")
	flag.StringVar(&o.run, "run", "", "only rows whose name matches this regular expression")
	flag.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flag.StringVar(&o.write, "write", "", "Markdown `file` whose soak section is replaced")
	flag.Parse()
	rig.Main("soak", func(ctx context.Context) error { return run(ctx, o) })
}

// rows are what is tried, in this order. Each has a gateway of its own.
var rows = []struct {
	name string
	try  func(context.Context, options, *report) error
}{
	{"bodies", bodies},
	{"sockets", sockets},
	{"slow", slow},
	{"reloads", reloads},
	{"mixed", mixed},
}

func run(ctx context.Context, o options) error {
	if !(o.scale > 0 && o.scale <= 1) {
		return fmt.Errorf("-scale: want a number above 0 and at most 1, got %v", o.scale)
	}
	only, err := regexp.Compile(o.run)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	r := &report{Machine: rig.Machine(), Date: time.Now().Format(time.DateOnly), Scale: o.scale, Run: o.run}
	for _, row := range rows {
		if !only.MatchString(row.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s …\n", row.name)
		if err := row.try(ctx, o, r); err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
	}
	if len(r.Results) == 0 {
		return fmt.Errorf("-run %q: no row has such a name; there are bodies, sockets, slow, reloads and mixed", o.run)
	}
	// The twenty minutes have a section of their own, so that the others can be repeated
	// without them.
	short, long := *r, *r
	short.Results, long.Results = nil, nil
	for _, x := range r.Results {
		if x.Row == "mixed" {
			long.Results = append(long.Results, x)
		} else {
			short.Results = append(short.Results, x)
		}
	}
	var errs []error
	for section, part := range map[string]*report{"soak": &short, "soak-mixed": &long} {
		if len(part.Results) > 0 {
			errs = append(errs, rig.Output{Write: o.write, Section: section, JSON: o.json}.Show(part))
		}
	}
	return errors.Join(append(errs, r.verdict())...)
}

type report struct {
	Machine string   `json:"machine"`
	Date    string   `json:"date"`
	Scale   float64  `json:"scale"`
	Run     string   `json:"run,omitempty"`
	Results []result `json:"results"`
}

// A result is one figure beside its bar.
type result struct {
	Row      string `json:"row"`
	What     string `json:"what"`
	Measured string `json:"measured"`
	Bar      string `json:"bar"`
	Missed   bool   `json:"missed"`
}

func (r *report) add(row, what, measured, bar string, ok bool) {
	r.Results = append(r.Results, result{row, what, measured, bar, !ok})
}

// Markdown is the report as a section of a document.
func (r *report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s: %s.\n\n    make soak", r.Date, r.Machine)
	var flags []string
	if r.Scale != 1 {
		flags = append(flags, fmt.Sprintf("-scale %v", r.Scale))
	}
	if r.Run != "" {
		flags = append(flags, "-run "+r.Run)
	}
	if flags != nil {
		fmt.Fprintf(&b, " SOAKFLAGS='%s'", strings.Join(flags, " "))
	}
	b.WriteString("\n\n| row | | measured | bar | |\n| --- | --- | --: | --: | --- |\n")
	for _, x := range r.Results {
		verdict := "held"
		if x.Missed {
			verdict = "**missed**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", x.Row, x.What, x.Measured, x.Bar, verdict)
	}
	return b.String()
}

// verdict is an error if a bar was missed.
func (r *report) verdict() error {
	var errs []error
	for _, x := range r.Results {
		if x.Missed {
			errs = append(errs, fmt.Errorf("%s, %s: %s, the bar is %s", x.Row, x.What, x.Measured, x.Bar))
		}
	}
	return errors.Join(errs...)
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
