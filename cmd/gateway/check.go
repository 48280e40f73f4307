package main

import (
	"cmp"
	"fmt"

	"bouncer/gateway"
	"bouncer/gateway/config"
)

const aboutCheck = `
gateway check reads the whole configuration and reports every mistake at once,
as file:line:column: path: what is wrong; what is wanted. It starts nothing.
On a terminal the line itself stands below, with the place marked and secrets
masked; in colour, unless NO_COLOR is set.

Examples:

    gateway check
    gateway check -strict            warnings are errors too (for CI)
    gateway check -print             the configuration in force, defaults filled in, secrets masked
    gateway check -json              one object, for scripts
    gateway check -against old.yaml  also what changes from the plans in old.yaml, and which limits start anew`

// finding is one problem as -json prints it.
type finding struct {
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Severity string `json:"severity"` // error or warning
	Path     string `json:"path"`
	Message  string `json:"message"`
}

func (c *command) check(args []string) int {
	fs := c.flags("check", aboutCheck)
	strict := fs.Bool("strict", false, "exit 1 on warnings too")
	printIt := fs.Bool("print", false, "print the effective configuration, secrets masked")
	asJSON := fs.Bool("json", false, "print the findings as JSON")
	against := fs.String("against", "", "tell what changes from the plans in this `file`")
	againstRoutes := fs.String("against-routes", "", "tell what changes from the routes in this `file`")
	positional, code, done := c.parse(fs, args)
	if done {
		return code
	}
	if !c.noArguments(fs, positional) {
		return exitUsage
	}
	if *asJSON && *printIt {
		fmt.Fprintln(c.stderr, "gateway check: -json and -print each want standard output; choose one")
		return exitUsage
	}
	cfg, report := config.Load(config.Options{Routes: c.routes, Plans: c.plans})
	errs, warnings := report.Errors(), report.Warnings()
	var buildErr error
	if cfg != nil {
		buildErr = gateway.Check(cfg)
	}
	failed := cfg == nil || buildErr != nil || (*strict && len(warnings) > 0)
	var changes []string
	if cfg != nil && *against+*againstRoutes != "" {
		old, oldReport := config.Load(config.Options{
			Routes: cmp.Or(*againstRoutes, c.routes), Plans: cmp.Or(*against, c.plans),
		})
		if old == nil {
			fmt.Fprintf(c.stderr, "gateway check: what to compare with has mistakes itself:\n%v\n", oldReport.Err())
			return exitFindings
		}
		changes = config.Describe(old, cfg)
	}

	if *asJSON {
		out := struct {
			OK       bool      `json:"ok"`
			Summary  string    `json:"summary,omitempty"`
			Findings []finding `json:"findings"`
			Changes  []string  `json:"changes,omitempty"`
		}{OK: !failed, Findings: []finding{}, Changes: changes}
		if cfg != nil {
			out.Summary = cfg.Summary()
		}
		for _, p := range report.Problems {
			severity := "error"
			if p.Warning && !*strict {
				severity = "warning"
			}
			out.Findings = append(out.Findings, finding{p.File, p.Line, p.Column, severity, p.Path, p.Message})
		}
		if buildErr != nil {
			out.Findings = append(out.Findings, finding{Severity: "error", Message: buildErr.Error()})
		}
		return exitCode(!c.printJSON("gateway check: write the findings", out) || failed)
	}

	findings := c.stdout
	if *printIt {
		findings = c.stderr // what is printed can then be read as a configuration
	}
	screen, seen := screenOf(findings)
	for _, p := range report.Problems {
		if seen {
			_ = report.Show(findings, p, screen) // as with every other line, there is nobody to tell
		} else {
			fmt.Fprintln(findings, p.String())
		}
	}
	for _, change := range changes {
		fmt.Fprintln(findings, "change:", change)
	}
	if buildErr != nil {
		fmt.Fprintln(findings, buildErr)
		errs = append(errs, config.Problem{})
	}
	switch {
	case len(errs) > 0:
		fmt.Fprintln(findings, plural(len(errs), "mistake"))
	case failed:
		fmt.Fprintf(findings, "%s, and -strict makes them mistakes\n", plural(len(warnings), "warning"))
	case *printIt:
		_, _ = c.stdout.Write(config.Print(cfg))
	default:
		fmt.Fprintln(c.stdout, "ok:", cfg.Summary())
	}
	return exitCode(failed)
}

func exitCode(failed bool) int {
	if failed {
		return exitFindings
	}
	return exitOK
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
