// Command faults breaks Redis, and the way to it, in every manner that it can
// break, under steady load on real gateways, and holds what clients saw against
// what docs/OPERATING.md promises. It writes docs/FAILURES.md.
//
// A row is one fault: three gateways with the shipped defaults, one Redis (or
// several), a few hundred requests a second over three routes, one for each
// on_store_failure. First nothing happens, then the fault, then Redis is well
// again. The latency with the fault is judged against that without it, in the
// same row, since machines differ and are busy. A row that has broken a promise
// on a machine that was visibly too busy is measured once more, and the output
// says so.
//
// It ends with 1 and names the row when a promise is broken; figures are written
// when every row was measured and every promise was kept. It needs Linux, Go and
// redis-server. Everything that it starts ends with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"bouncer/bench/internal/rig"
)

type options struct {
	gateway  string
	run      string
	quick    bool
	sabotage string
	selftest bool
	durable  bool
	rounds   int
	seed     uint64
	list     bool
	json     bool
	write    string
}

const usage = `usage: faults [flags]

Break Redis in every manner under load, and hold the gateway to its promises.

  go run ./bench/faults                       everything, some ten minutes; writes docs/FAILURES.md
  go run ./bench/faults -list                 the rows
  go run ./bench/faults -quick -run '^frozen'  one row, for development
  go run ./bench/faults -sabotage retries     a gateway that repeats calls: the run must fail
  go run ./bench/faults -selftest             that it does so, for each sabotage
  go run ./bench/faults -durability           what Redis forgets when it dies; writes the same document

`

func main() {
	var o options
	flag.StringVar(&o.gateway, "gateway", "", "the gateway's `program`; left out, it is built from the source")
	flag.StringVar(&o.run, "run", "", "only the rows whose name matches this `regexp`; nothing is written then")
	flag.BoolVar(&o.quick, "quick", false, "short rows; nothing is written then")
	flag.StringVar(&o.sabotage, "sabotage", "", "build a gateway without its `breaker, deadline or retries-off`: breaker, deadline, retries")
	flag.BoolVar(&o.selftest, "selftest", false, "see that each sabotage turns its row red, and the real gateway does not")
	flag.BoolVar(&o.durable, "durability", false, "measure what a limit is overrun by when Redis dies, instead of the faults")
	flag.IntVar(&o.rounds, "rounds", 20, "how often Redis dies in each row of -durability")
	flag.Uint64Var(&o.seed, "seed", 0, "of the moments at which it dies; 0: another one each time")
	flag.BoolVar(&o.list, "list", false, "list the rows and end")
	flag.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flag.StringVar(&o.write, "write", "docs/FAILURES.md", "Markdown `file` whose section is replaced if the run was whole and every promise was kept; empty: none")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	rig.Main("faults", func(ctx context.Context) error { return run(ctx, o) })
}

// rows are all of them, in the order of the document.
func rows() []row { return slices.Concat(networkRows(), serverRows(), clusterRows()) }

const stormRow = "20 gateways"

func run(ctx context.Context, o options) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("want flags only, got %q", flag.Arg(0))
	}
	only, err := regexp.Compile(o.run)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	if o.list {
		for _, r := range rows() {
			fmt.Printf("%-32s%s\n", r.name, r.what)
		}
		fmt.Printf("%-32s%s\n", stormRow, "what they do to a Redis that is away, and on its return")
		fmt.Printf("%-32s%s\n", farRow, "80 ms away: latency, and calls of Redis for each request")
		return nil
	}
	dir, err := os.MkdirTemp("", "bouncer-faults-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if o.selftest {
		return selftest(ctx, dir)
	}
	if o.gateway == "" {
		if o.gateway, err = build(ctx, dir, o.sabotage); err != nil {
			return err
		}
	}
	if o.durable {
		if o.seed == 0 {
			o.seed = rand.Uint64()>>32 + 1 //nolint:gosec // not secret
		}
		d, err := measureDurability(ctx, o.gateway, o.rounds, o.seed)
		if err != nil {
			return err
		}
		if o.sabotage != "" || o.rounds < 20 {
			o.write = "" // too few to write home about
		}
		return rig.Output{Write: o.write, Section: "durability", JSON: o.json}.Show(d)
	}
	t := full
	if o.quick {
		t = quick
	}
	rep, err := measureAll(ctx, o.gateway, t, only)
	if err != nil {
		return err
	}
	broken := rep.broken()
	out := rig.Output{Write: o.write, Section: "faults", JSON: o.json}
	if o.run != "" || o.quick || o.sabotage != "" || len(broken) > 0 {
		out.Write = ""
	}
	if err := out.Show(rep); err != nil {
		return err
	}
	if len(broken) > 0 {
		return fmt.Errorf("%d promises are broken:\n  %s", len(broken), strings.Join(broken, "\n  "))
	}
	return nil
}

// measureAll runs every row whose name matches.
func measureAll(ctx context.Context, program string, t timing, only *regexp.Regexp) (rep *report, err error) {
	chosen := slices.DeleteFunc(rows(), func(r row) bool { return !only.MatchString(r.name) })
	withStorm, withFar := only.MatchString(stormRow), only.MatchString(farRow)
	total := len(chosen)
	for _, more := range []bool{withStorm, withFar} {
		if more {
			total++
		}
	}
	if total == 0 {
		return nil, errors.New("-run matches no row; -list names them")
	}
	rep = &report{Machine: rig.Machine(), Date: time.Now().Format(time.DateOnly)}
	for i, r := range chosen {
		progress(i+1, total, r.name)
		out, err := r.judged(ctx, program, t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		rep.Rows = append(rep.Rows, out)
	}
	if withStorm {
		progress(len(chosen)+1, total, stormRow)
		s, err := measureStorm(ctx, program, t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", stormRow, err)
		}
		rep.Storm = s
	}
	if withFar {
		progress(total, total, farRow)
		if rep.Far, err = measureFar(ctx, program, t); err != nil {
			return nil, fmt.Errorf("%s: %w", farRow, err)
		}
	}
	return rep, nil
}

func progress(n, of int, name string) {
	fmt.Fprintf(os.Stderr, "%s row %d of %d: %s\n", time.Now().Format(time.TimeOnly), n, of, name)
}

// judged runs a row, and once more if it broke a promise on a machine that was
// too busy to measure on.
func (r *row) judged(ctx context.Context, program string, t timing) (*result, error) {
	out, err := r.run(ctx, program, t)
	if err != nil || len(out.Broken) == 0 {
		return out, err
	}
	why := out.disturbed()
	for _, b := range out.Broken {
		fmt.Fprintln(os.Stderr, "  broken:", b)
	}
	if why == "" {
		return out, nil
	}
	fmt.Fprintln(os.Stderr, "  once more, since", why)
	out, err = r.run(ctx, program, t)
	if err == nil {
		out.Repeated = why
	}
	return out, err
}

// selftest runs, for each sabotage, the row that must notice it, with the gateway
// as it is and with the sabotaged one.
func selftest(ctx context.Context, dir string) error {
	good, err := build(ctx, dir, "")
	if err != nil {
		return err
	}
	var errs []error
	for i, name := range sortedKeys(sabotages) {
		s := sabotages[name]
		progress(i+1, len(sabotages), name+": "+s.what+"; "+s.row)
		all := rows()
		at := slices.IndexFunc(all, func(r row) bool { return r.name == s.row })
		out, err := all[at].judged(ctx, good, full)
		if err != nil {
			return fmt.Errorf("%s: %w", s.row, err)
		}
		if len(out.Broken) > 0 {
			errs = append(errs, fmt.Errorf("%s, with the gateway as it is: %s", s.row, strings.Join(out.Broken, "; ")))
		}
		bad, err := build(ctx, dir, name)
		if err != nil {
			return err
		}
		if out, err = all[at].run(ctx, bad, full); err != nil {
			return fmt.Errorf("%s: %w", s.row, err)
		}
		if !slices.ContainsFunc(out.Broken, func(b string) bool { return strings.HasPrefix(b, s.promise) }) {
			errs = append(errs, fmt.Errorf("%s: %s, and the row %q did not notice; broken: %q", name, s.what, s.row, out.Broken))
			continue
		}
		fmt.Printf("%s (%s) is noticed by the row %q: %s\n", name, s.what, s.row, strings.Join(out.Broken, "; "))
	}
	return errors.Join(errs...)
}
