package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"

	"bouncer/gateway/config"
	"bouncer/gateway/plantest"
)

const aboutTest = `
gateway test [FILE ...] runs the tests that stand beside the plans: a caller, a
schedule of requests, and what must come of them. The decisions are those of the
running gateway, on a clock of the test's own: no network, and a month passes in
milliseconds.

Without a FILE it runs those under tests: in the plans file and in every
*_test.yaml beside it; with FILEs only the tests in these.

Examples:

    gateway test
    gateway test -plans new.yaml plans.yaml  new plans against the tests of the old
    gateway test -run 'free|anonymous' -v    some tests, every step of them
    gateway test login_test.yaml
    gateway test -junit report.xml           for a build server

It exits 0 if all is as expected, also where there is no test at all; 1 if a test
fails, or none has a name that -run takes.`

func (c *command) test(args []string) int {
	fs := c.flags("test", aboutTest)
	run := fs.String("run", "", "only tests whose name matches this `regexp`")
	verbose := fs.Bool("v", false, "show every step, also of tests that pass")
	asJSON := fs.Bool("json", false, "print the results as JSON")
	junit := fs.String("junit", "", "also write the results to this `file`, as JUnit's XML")
	files, code, done := c.parse(fs, args)
	if done {
		return code
	}
	only, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintf(c.stderr, "gateway test: -run: %v\n", err)
		return exitUsage
	}
	fail := func(doing string, err error) int {
		fmt.Fprintf(c.stderr, "gateway test: %s: %v\n", doing, err)
		return exitFindings
	}
	cfg, report := config.Load(config.Options{Routes: c.routes, Plans: c.plans})
	if err := report.Err(); err != nil {
		fmt.Fprintln(c.stderr, err)
		return exitFindings
	}
	tests, ok := c.findTests(cfg, files)
	if !ok {
		return exitFindings
	}
	found := len(tests)
	tests = slices.DeleteFunc(tests, func(t *config.Test) bool { return !only.MatchString(t.Name) })
	results, err := plantest.Run(cfg, tests)
	if err != nil {
		return fail("build the configuration", err)
	}
	failed := results.Failed() > 0
	if found == 0 {
		fmt.Fprintf(c.stderr, "gateway test: no tests; write some under tests: in %s or in a file *_test.yaml beside it (gateway test -h)\n", c.plans)
	} else if len(tests) == 0 {
		failed = true
		fmt.Fprintf(c.stderr, "gateway test: none of %s has a name that matches %q\n", plural(found, "test"), *run)
	}
	if *junit != "" {
		if err := writeFile(*junit, results.WriteJUnit); err != nil {
			return fail("write -junit", err)
		}
	}
	if *asJSON {
		return exitCode(!c.printJSON("gateway test: write the results", results) || failed)
	}
	if len(tests) > 0 {
		if err := results.WriteText(c.stdout, *verbose); err != nil {
			return fail("write the results", err)
		}
	}
	return exitCode(failed)
}

// findTests returns the tests of files or, if there are none, of the plans file
// and those beside it. false: something was wrong, and has been said.
func (c *command) findTests(cfg *config.Config, files []string) ([]*config.Test, bool) {
	var tests []*config.Test
	if len(files) == 0 {
		tests = cfg.Tests
		beside, err := config.TestFiles(c.plans)
		if err != nil {
			fmt.Fprintln(c.stderr, "gateway test: look for *_test.yaml:", err)
			return nil, false
		}
		files = beside
	}
	good := true
	for _, file := range files {
		if filepath.Clean(file) == filepath.Clean(c.plans) {
			tests = append(tests, cfg.Tests...)
			continue
		}
		more, report := config.LoadTests(cfg, file, nil)
		for _, p := range report.Problems {
			fmt.Fprintln(c.stderr, p.String())
		}
		good = good && report.Err() == nil
		tests = append(tests, more...)
	}
	return tests, good
}
