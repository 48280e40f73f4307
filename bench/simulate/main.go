// Command simulate measures what it costs to replay an access log: `gateway
// simulate` reads a million lines of 20,000 callers on 30 routes, in nginx's
// combined format with the forwarded-for column and the request time, against
// one configuration and against two side by side; and four million lines of the
// same callers, since memory should grow with callers and not with lines.
//
// The logs are made anew in a temporary directory, the same ones every time.
// Some callers are fifty times as busy as others, and some lines stand behind
// their time, as those of a real server do.
//
//	make bench-simulate
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"bouncer/bench/internal/rig"
)

const (
	// cpuBar is the most processor time that a million lines may take against one
	// configuration. The promise is ten seconds on two cores, and not all of it runs
	// at once; as processor time it can be held against a machine that does other
	// things too, though these make it longer.
	cpuBar = 16 * time.Second
	// memoryBar is the most that four times the lines may take, in per cent of
	// what the lines take.
	memoryBar = 150

	routes = 30
	pace   = 250 // requests a second
)

type options struct {
	gateway, only  string
	lines, callers int
	json           bool
	write          string
}

func main() {
	var o options
	flag.StringVar(&o.gateway, "gateway", "bin/gateway", "the gateway's program")
	flag.IntVar(&o.lines, "lines", 1_000_000, "lines of the log")
	flag.IntVar(&o.callers, "callers", 20_000, "different callers in it")
	flag.StringVar(&o.only, "only", "", "leave the logs and the configuration in this `directory` and run nothing")
	flag.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flag.StringVar(&o.write, "write", "", "Markdown `file` whose simulate section is replaced")
	flag.Parse()
	rig.Main("bench-simulate", func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) error {
	if o.lines < 1000 || o.callers < 1 || o.callers > 1<<16 {
		return fmt.Errorf("want 1000 lines or more, of 1 to 65536 callers; got %d of %d", o.lines, o.callers)
	}
	dir := o.only
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "bouncer-simulate-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	if err := configure(dir); err != nil {
		return err
	}
	for name, lines := range map[string]int{"access.log": o.lines, "long.log": 4 * o.lines} {
		if err := makeLog(filepath.Join(dir, name), lines, o.callers); err != nil {
			return err
		}
	}
	if o.only != "" {
		return nil
	}
	r := &report{Machine: rig.Machine(), Date: time.Now().Format(time.DateOnly), Callers: o.callers}
	for _, c := range []struct {
		lines int
		name  string
		args  []string
	}{
		{o.lines, "one configuration", []string{"-log", "access.log"}},
		{o.lines, "two, side by side", []string{"-log", "access.log", "-plans", "new.yaml", "-against", "plans.yaml"}},
		{4 * o.lines, "one configuration", []string{"-log", "long.log"}},
	} {
		fmt.Fprintf(os.Stderr, "%d lines, %s …\n", c.lines, c.name)
		row, err := simulate(ctx, o.gateway, dir, c.args)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		row.Lines, row.Name = c.lines, c.name
		r.Rows = append(r.Rows, row)
	}
	err := rig.Output{Write: o.write, Section: "simulate", JSON: o.json}.Show(r)
	return errors.Join(err, r.verdict())
}

// simulate runs the program once.
func simulate(ctx context.Context, program, dir string, args []string) (row, error) {
	path, err := filepath.Abs(program)
	if err != nil {
		return row{}, err
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"simulate", "-json", "-top", "1"}, args...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	begun := time.Now()
	err = cmd.Run()
	wall := time.Since(begun)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
		err = nil // somebody would be denied, as it should be
	}
	if err != nil {
		return row{}, err
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return row{}, errors.New("the system does not say what a process has used")
	}
	return row{
		CPU:  (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(),
		Wall: wall.Seconds(), PeakMiB: usage.Maxrss >> 10,
	}, nil
}

// makeLog writes a log of so many lines.
func makeLog(path string, lines, callers int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	rng := rand.New(rand.NewPCG(1, 2))                                     //nolint:gosec // the same log every time
	busy := rand.NewZipf(rng, 1.1, float64(callers)/50, uint64(callers-1)) //nolint:gosec // a positive number
	begin := time.Date(2026, 11, 2, 8, 0, 0, 0, time.UTC)
	for i := range lines {
		c := busy.Uint64()
		at := begin.Add(time.Duration(i) * time.Second / pace)
		took := time.Duration(rng.ExpFloat64() * float64(40*time.Millisecond))
		if rng.IntN(100) == 0 {
			at = at.Add(-time.Duration(rng.IntN(3000)) * time.Millisecond)
		}
		user := "-"
		if c%2 == 0 {
			user = fmt.Sprintf("user-%05d", c)
		}
		method := [...]string{"GET", "GET", "GET", "POST"}[rng.IntN(4)]
		// Half of the paths name one of many things, as in /v3/orders/48213.
		route, thing := rng.IntN(routes), ""
		if rng.IntN(2) == 0 {
			thing = fmt.Sprintf("/%d?page=%d", rng.IntN(50_000), rng.IntN(10))
		}
		fmt.Fprintf(w, "192.0.2.%d - %s [%s] \"%s /v%d/orders%s HTTP/1.1\" 200 %d \"-\" \"client/%d.%d (linux; like nothing else)\" \"10.%d.%d.%d\" %.3f\n",
			10+rng.IntN(4), user, at.Format("02/Jan/2006:15:04:05 -0700"), method, route, thing, rng.IntN(20_000),
			c%7, c%11, c>>16, c>>8&255, c&255, took.Seconds())
	}
	return errors.Join(w.Flush(), f.Close())
}

// configure writes the configuration: an edge limit, and three limits on most
// requests, of different algorithms.
func configure(dir string) error {
	var b strings.Builder
	b.WriteString(`listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [192.0.2.0/24]}
store: {memory: {max_keys: 1000000}}
auth: {api_keys: {file: keys.yaml}}
limits:
  edge-ip: {per: ip, algorithm: token_bucket, limit: 600/minute, burst: 100}
  search: {per: global, algorithm: sliding_window_counter, limit: 100/second}
edge: [edge-ip]
upstreams: {api: {targets: ["http://127.0.0.1:1"]}}
routes:
`)
	for i := range routes {
		limits := ""
		if i%10 == 0 {
			limits = ", limits: [search]"
		}
		fmt.Fprintf(&b, "  - {name: v%d, path: /v%d/orders, upstream: api, auth: optional%s}\n", i, i, limits)
		fmt.Fprintf(&b, "  - {name: v%d-one, path: \"/v%d/orders/*\", upstream: api, auth: optional%s}\n", i, i, limits)
	}
	plans := func(n int) string {
		return fmt.Sprintf(`default_plan: free
anonymous_plan: anonymous
plans:
  free:
    limits:
      - {name: per-minute, algorithm: token_bucket, limit: %d/minute}
      - {name: per-day, algorithm: fixed_window, anchor: calendar, limit: %d/day}
  anonymous:
    limits:
      - {name: per-minute, per: ip, algorithm: token_bucket, limit: %d/minute, burst: 20}
`, n, 20*n, n/2)
	}
	for name, text := range map[string]string{
		"routes.yaml": b.String(), "keys.yaml": "keys: []\n", "plans.yaml": plans(60), "new.yaml": plans(30),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

type report struct {
	Machine string `json:"machine"`
	Date    string `json:"date"`
	Callers int    `json:"callers"`
	Rows    []row  `json:"rows"`
}

// A row is one run.
type row struct {
	Lines   int     `json:"lines"`
	Name    string  `json:"name"`
	CPU     float64 `json:"cpu_s"`
	Wall    float64 `json:"wall_s"`
	PeakMiB int64   `json:"peak_mib"`
}

// Markdown is the section of the document.
func (r *report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s: %s. %d callers, %d routes.\n\n    make bench-simulate\n\n", r.Date, r.Machine, r.Callers, routes)
	b.WriteString("| lines | against | CPU s | wall s | peak MiB |\n| --: | --- | --: | --: | --: |\n")
	for _, x := range r.Rows {
		fmt.Fprintf(&b, "| %d | %s | %.1f | %.1f | %d |\n", x.Lines, x.Name, x.CPU, x.Wall, x.PeakMiB)
	}
	return b.String()
}

// verdict holds the rows against the bars.
func (r *report) verdict() error {
	first, last := r.Rows[0], r.Rows[len(r.Rows)-1]
	var errs []error
	if bar := cpuBar.Seconds() * float64(first.Lines) / 1e6; first.CPU > bar {
		errs = append(errs, fmt.Errorf("%d lines took %.1f s of processor time, want at most %.1f", first.Lines, first.CPU, bar))
	}
	if last.PeakMiB*100 > first.PeakMiB*memoryBar {
		errs = append(errs, fmt.Errorf("%d lines took %d MiB and %d lines of the same callers %d MiB, want at most %d %% of it", first.Lines, first.PeakMiB, last.Lines, last.PeakMiB, memoryBar))
	}
	return errors.Join(errs...)
}
