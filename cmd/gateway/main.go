// Command gateway is the whole of Bouncer in one binary: a reverse proxy that
// limits by caller, and the tools to check and edit its configuration.
//
// This package is flags, subcommands, signals and exit codes. It composes and
// holds no logic: what a request goes through is in package gateway, what a
// file means in package gateway/config. Results go to standard output,
// progress and warnings to standard error. The exit code is 0 when all is
// fine, 1 when something was found or went wrong, 2 when the command line
// itself was wrong.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	// Limits of the calendar name time zones; where the machine has no database
	// of them, as in an empty container, this one serves.
	_ "time/tzdata"
)

// version is set at build time with -ldflags "-X main.version=…".
var version = "dev"

// The exit codes.
const (
	exitOK       = 0
	exitFindings = 1
	exitUsage    = 2
)

func main() {
	os.Exit(dispatch(os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `gateway stands in front of HTTP APIs and limits who may use them how much.

Usage:

    gateway [run]  [-routes routes.yaml] [-plans plans.yaml]   serve (the default command)
    gateway check  [-print] [-strict] [-json] [-against FILE]  all mistakes of the configuration at once
    gateway explain [METHOD] URL [-key KEY] [-redis] [-json]   what would become of one request, and why
    gateway test   [FILE ...] [-run REGEXP] [-v] [-junit FILE] the tests beside the plans, on a clock of their own
    gateway simulate -log FILE [-against FILE] [-json]         replays access logs against plans: who would be denied
    gateway doctor [-json]                                     asks Redis, the upstreams, the issuers and the certificates
    gateway keys   new | list | revoke                         API keys: make, show, take back
    gateway schema routes | plans                              JSON Schema for editors
    gateway version

Examples:

    gateway check && gateway run
    gateway keys new -file keys.yaml -user priya123 -plan free
    gateway run -routes /etc/gateway/routes.yaml -plans /etc/gateway/plans.yaml

Every command takes -routes and -plans, and "gateway COMMAND -h" explains it.
Exit codes: 0 fine, 1 findings or a failure, 2 a wrong command line.
`

func dispatch(args []string, stdout, stderr io.Writer) int {
	name, rest := "run", args
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, rest = args[0], args[1:]
	}
	if len(args) == 2 && args[0] == "help" {
		return dispatch([]string{args[1], "-h"}, stdout, stderr)
	}
	if len(args) > 0 && slices.Contains([]string{"-h", "-help", "--help", "help"}, args[0]) {
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	c := command{stdout: stdout, stderr: stderr}
	switch name {
	case "run":
		return c.run(rest)
	case "check":
		return c.check(rest)
	case "doctor":
		return c.doctor(rest)
	case "explain":
		return c.explain(rest)
	case "keys":
		return c.keys(rest)
	case "simulate":
		return c.simulate(rest)
	case "schema":
		return c.schema(rest)
	case "test":
		return c.test(rest)
	case "version":
		if len(rest) > 0 {
			fmt.Fprintf(stderr, "gateway version: %q is one argument too many\n", rest[0])
			return exitUsage
		}
		fmt.Fprintln(stdout, "gateway", version)
		return exitOK
	}
	fmt.Fprintf(stderr, "gateway: there is no command %q; the commands are run, check, explain, test, simulate, doctor, keys, schema and version (gateway -h explains them)\n", name)
	return exitUsage
}

// A command is what every subcommand writes to and reads its files from.
type command struct {
	stdout, stderr io.Writer
	routes, plans  string
}

// flags returns the flag set of one subcommand, with the flags all of them
// share. What stands in about is printed above the flags by -h.
func (c *command) flags(name, about string) *flag.FlagSet {
	fs := flag.NewFlagSet("gateway "+name, flag.ContinueOnError)
	fs.SetOutput(c.stderr)
	fs.StringVar(&c.routes, "routes", "routes.yaml", "the operator's `file`: listeners, store, auth, upstreams, routes")
	fs.StringVar(&c.plans, "plans", "plans.yaml", "the product owner's `file`: what each plan may use")
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), strings.TrimSpace(about))
		fmt.Fprintln(fs.Output(), "\nFlags:")
		fs.PrintDefaults()
	}
	return fs
}

// parse reads flags that may stand before or after the arguments. done is set
// when there is nothing left to do, with the exit code.
func (c *command) parse(fs *flag.FlagSet, args []string) (positional []string, code int, done bool) {
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		fs.SetOutput(c.stdout)
		fs.Usage()
		return nil, exitOK, true
	}
	// A whole page of help would push what is wrong off the screen.
	fs.Usage = func() { fmt.Fprintf(fs.Output(), "see %s -h\n", fs.Name()) }
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, exitOK, true
			}
			return nil, exitUsage, true // flag has said what is wrong
		}
		if fs.NArg() == 0 {
			return positional, exitOK, false
		}
		positional = append(positional, fs.Arg(0))
		args = fs.Args()[1:]
	}
}

// printJSON writes v for a script to read. false means that standard output did
// not take it; doing says what was being done.
func (c *command) printJSON(doing string, v any) bool {
	enc := json.NewEncoder(c.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		fmt.Fprintf(c.stderr, "%s: %v\n", doing, err)
		return false
	}
	return true
}

// noArguments refuses arguments where none are known.
func (c *command) noArguments(fs *flag.FlagSet, positional []string) bool {
	if len(positional) == 0 {
		return true
	}
	fmt.Fprintf(c.stderr, "%s: %q is one argument too many; see %s -h\n", fs.Name(), positional[0], fs.Name())
	return false
}
