package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"bouncer/gateway"
	"bouncer/gateway/config"
)

const aboutDoctor = `
gateway doctor asks the real parts that the configuration names: whether Redis
decides, how fast, by which clock, and what it would forget or evict; whether
each upstream takes a connection; when the certificate and the keys end. It
serves nothing. It writes one key to Redis, its own, that ends by itself.

It exits 1 if a part fails. A warning is what works today and will bite.

Examples:

    gateway doctor
    REDIS_URL=redis://10.0.0.5:6379/0 gateway doctor
    gateway doctor -json`

func (c *command) doctor(args []string) int {
	fs := c.flags("doctor", aboutDoctor)
	asJSON := fs.Bool("json", false, "print the findings as JSON")
	positional, code, done := c.parse(fs, args)
	if done {
		return code
	}
	if !c.noArguments(fs, positional) {
		return exitUsage
	}
	cfg, report := config.Load(config.Options{Routes: c.routes, Plans: c.plans})
	if err := report.Err(); err != nil {
		fmt.Fprintln(c.stderr, err)
		return exitFindings
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	found := gateway.Examine(ctx, cfg)
	counts := map[gateway.Level]int{}
	for _, f := range found {
		counts[f.Level]++
	}
	failed := counts[gateway.LevelFail] > 0
	if *asJSON {
		out := struct {
			OK       bool              `json:"ok"`
			Findings []gateway.Finding `json:"findings"`
		}{!failed, found}
		return exitCode(!c.printJSON("gateway doctor: write the findings", out) || failed)
	}
	for _, f := range found {
		fmt.Fprintf(c.stdout, "%-4s  %s: %s\n", f.Level, f.Part, f.What)
		if f.Hint != "" && f.Level != gateway.LevelOK {
			fmt.Fprintf(c.stdout, "      %s\n", f.Hint)
		}
	}
	fmt.Fprintf(c.stdout, "%d ok, %s, %s\n", counts[gateway.LevelOK], plural(counts[gateway.LevelWarn], "warning"), plural(counts[gateway.LevelFail], "failure"))
	return exitCode(failed)
}
