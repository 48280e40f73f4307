package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"bouncer/gateway/config"
	"bouncer/gateway/simulate"
)

const aboutSimulate = `
gateway simulate -log FILE replays access logs against plans: who would be
denied, by which limit, when first, how often; which number would deny nobody;
and with -against, what that changes. Nothing is sent to anyone.

It reads nginx's and Apache's combined format (also with X-Forwarded-For and the
request time behind it), Traefik's, Envoy's, and JSON lines: nginx's, Caddy's,
Traefik's, this gateway's own or, with -fields, any other; plain or gzip.

Examples:

    gateway simulate -log access.log
    gateway simulate -log access.log -plans new.yaml -against plans.yaml
    gateway simulate -log a.log -log b.log.gz -json
    zcat access.log.*.gz | gateway simulate -log - -html simulation.html
    gateway simulate -log app.jsonl -fields time=at,ip=peer,user=account

It exits 0 if nobody would be denied (with -against: no request that is allowed
today), 1 if somebody would be or no line of the logs can be read, 2 if the
command line is wrong.`

func (c *command) simulate(args []string) int {
	fs := c.flags("simulate", aboutSimulate)
	o := simulate.Options{}
	fs.Func("log", "a `file` to replay, - for standard input; may be repeated", func(s string) error {
		o.Logs = append(o.Logs, s)
		return nil
	})
	against := fs.String("against", "", "today's plans, a `file` to compare with")
	againstRoutes := fs.String("against-routes", "", "today's routes, a `file`; left out: the same as -routes")
	format := fs.String("format", "auto", "how the lines are written: auto, combined, json, envoy")
	fs.StringVar(&o.Fields, "fields", "", "where a line of JSON says what: `time=ts,ip=peer,…`; names are time, ip, forwarded, request, method, uri, host, user, tenant, key_id, key, plan, duration")
	fs.StringVar(&o.Host, "host", "", "the `host` of lines that have none")
	fs.StringVar(&o.AssumePlan, "assume-plan", "", "the `plan` of lines without identity where one is required; left out: default_plan")
	fs.BoolVar(&o.Arrival, "arrival", false, "take the time a request took off the time of its line")
	top := fs.Int("top", 20, "how many callers are shown; with -json all unless it is given")
	asJSON := fs.Bool("json", false, "print the result as JSON")
	page := fs.String("html", "", "also write a page to this `file`")
	positional, code, done := c.parse(fs, args)
	if done {
		return code
	}
	o.Logs = append(o.Logs, positional...)
	usage := func(format string, a ...any) int {
		fmt.Fprintf(c.stderr, "gateway simulate: "+format+"; see gateway simulate -h\n", a...)
		return exitUsage
	}
	var err error
	if o.Format, err = simulate.ParseFormat(*format); err != nil {
		return usage("-format: %v", err)
	}
	if len(o.Logs) == 0 {
		return usage("-log is missing")
	}
	if *top < 0 {
		return usage("-top %d: want 0 or more", *top)
	}
	load := func(routes, plans string) *config.Config {
		cfg, report := config.Load(config.Options{Routes: routes, Plans: plans})
		if err := report.Err(); err != nil {
			fmt.Fprintln(c.stderr, err)
		}
		return cfg
	}
	if o.Config = load(c.routes, c.plans); o.Config == nil {
		return exitFindings
	}
	if *against != "" || *againstRoutes != "" {
		if o.Against = load(cmp.Or(*againstRoutes, c.routes), cmp.Or(*against, c.plans)); o.Against == nil {
			return exitFindings
		}
	}
	o.Stdin = os.Stdin
	finish := c.showProgress(&o)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	result, err := simulate.Run(ctx, o)
	stop()
	finish()
	if err != nil {
		if errors.Is(err, simulate.ErrOptions) {
			return usage("%v", err)
		}
		fmt.Fprintln(c.stderr, "gateway simulate:", err)
		return exitFindings
	}
	if *page != "" {
		if err := writeFile(*page, func(w io.Writer) error { return result.WriteHTML(w, *top) }); err != nil {
			fmt.Fprintln(c.stderr, "gateway simulate: write the page:", err)
			return exitFindings
		}
	}
	if *asJSON {
		fs.Visit(func(f *flag.Flag) {
			if f.Name == "top" {
				result.Keep(*top)
			}
		})
		return exitCode(!c.printJSON("gateway simulate: write the result", result) || result.Worse() || result.Unread())
	}
	if err := result.WriteText(c.stdout, *top); err != nil {
		fmt.Fprintln(c.stderr, "gateway simulate: write the result:", err)
		return exitFindings
	}
	return exitCode(result.Worse() || result.Unread())
}

// writeFile writes a file with f.
func writeFile(path string, f func(io.Writer) error) error {
	out, err := os.Create(path) //nolint:gosec // the operator names it
	if err != nil {
		return err
	}
	return errors.Join(f(out), out.Close())
}

// showProgress draws a bar on a terminal, and only there. The function it
// returns takes it away.
func (c *command) showProgress(o *simulate.Options) (finish func()) {
	f := c.stderr
	if _, ok := screenOf(f); !ok {
		return func() {}
	}
	total := int64(0)
	for _, path := range o.Logs {
		if info, err := os.Stat(path); path != "-" && err == nil {
			total += info.Size()
		}
	}
	const width = 40
	last := time.Now()
	o.Progress = func(read int64) {
		if time.Since(last) < 100*time.Millisecond {
			return
		}
		last = time.Now()
		if total == 0 {
			fmt.Fprintf(f, "\r%d MiB ", read>>20)
			return
		}
		n := int(min(read, total) * width / total)
		fmt.Fprintf(f, "\r[%s%s] %d %% ", strings.Repeat("=", n), strings.Repeat(" ", width-n), min(read, total)*100/total)
	}
	return func() { fmt.Fprintf(f, "\r%s\r", strings.Repeat(" ", width+12)) }
}
