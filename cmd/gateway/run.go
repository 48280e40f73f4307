package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"bouncer/gateway"
)

const aboutRun = `
gateway run serves the routes of routes.yaml under the plans of plans.yaml.

It reloads by itself within a second when either file, or keys.yaml, changes,
and at once on SIGHUP: the whole new configuration or none of it. On SIGTERM or
SIGINT it finishes what is in flight (shutdown_timeout) and exits 0; a second
signal ends it at once. Logs are JSON lines on standard output.

Examples:

    gateway run
    REDIS_URL=redis://127.0.0.1:6379/0 gateway run
    gateway -routes /etc/gateway/routes.yaml -plans /etc/gateway/plans.yaml`

func (c *command) run(args []string) int {
	fs := c.flags("run", aboutRun)
	positional, code, done := c.parse(fs, args)
	if done {
		return code
	}
	if !c.noArguments(fs, positional) {
		return exitUsage
	}
	g, err := gateway.New(gateway.Options{
		Routes: c.routes, Plans: c.plans, Version: version, Log: c.stdout,
	})
	if err != nil {
		fmt.Fprintln(c.stderr, err)
		return exitFindings
	}

	// Packages that still print to the standard logger belong into the same log.
	slog.SetDefault(g.Logger())

	// A reader of the log that went away must not end the gateway: Go would die
	// of the broken pipe on standard output.
	signal.Ignore(syscall.SIGPIPE)

	// The first signal ends the work in good order, the second one at once, for
	// the person who will not wait.
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(exitFindings)
	}()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	if err := g.Run(ctx, hup); err != nil {
		fmt.Fprintln(c.stderr, "gateway:", err)
		return exitFindings
	}
	return exitOK
}
