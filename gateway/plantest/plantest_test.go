package plantest_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	_ "time/tzdata" // as the program has it

	"bouncer/gateway/config"
	"bouncer/gateway/plantest"
)

// noEnv is an environment in which no variable is set.
func noEnv(string) (string, bool) { return "", false }

// load loads the configuration in dir.
func load(t *testing.T, dir string) (*config.Config, *config.Report) {
	t.Helper()
	cfg, report := config.Load(config.Options{
		Routes: filepath.Join(dir, "routes.yaml"), Plans: filepath.Join(dir, "plans.yaml"), LookupEnv: noEnv,
	})
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	return cfg, report
}

// write puts files into a new directory.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// pass runs tests and wants every one to pass.
func pass(t *testing.T, cfg *config.Config, tests []*config.Test) {
	t.Helper()
	rs, err := plantest.Run(cfg, tests)
	if err != nil {
		t.Fatal(err)
	}
	if rs.Failed() > 0 {
		var text strings.Builder
		_ = rs.WriteText(&text, false)
		t.Error(text.String())
	}
}

// TestShippedPlansKeepTheirPromises runs the tests of the shipped plans.yaml and
// of every example, under a configuration without a warning.
func TestShippedPlansKeepTheirPromises(t *testing.T) {
	t.Parallel()
	examples, err := filepath.Glob("../../examples/*/plans.yaml")
	if err != nil || len(examples) < 6 {
		t.Fatalf("%d examples, %v", len(examples), err)
	}
	for _, plans := range append(examples, "../../plans.yaml") {
		from := filepath.Dir(plans)
		t.Run(filepath.Base(from), func(t *testing.T) {
			t.Parallel()
			// A secret is made on first use, and is never part of an example.
			files := map[string]string{"secret": strings.Repeat("s", 44)}
			for _, name := range []string{"routes.yaml", "plans.yaml", "keys.yaml"} {
				text, err := os.ReadFile(filepath.Join(from, name))
				if err == nil {
					files[name] = string(text)
				}
			}
			cfg, report := load(t, write(t, files))
			for _, w := range report.Warnings() {
				t.Error(w)
			}
			if len(cfg.Tests) < 3 {
				t.Errorf("%d tests", len(cfg.Tests))
			}
			pass(t, cfg, cfg.Tests)
		})
	}
}

// TestFaultsOfOthers runs what went wrong elsewhere.
func TestFaultsOfOthers(t *testing.T) {
	t.Parallel()
	const dir = "testdata/faults"
	cfg, _ := load(t, dir)
	files, err := config.TestFiles(dir + "/plans.yaml")
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v", files, err)
	}
	tests, report := config.LoadTests(cfg, files[0], noEnv)
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	if len(tests) < 30 {
		t.Errorf("%d tests", len(tests))
	}
	pass(t, cfg, tests)
}

const (
	routes = `
listen: {http: "127.0.0.1:0"}
auth: {api_keys: {file: keys.yaml}}
limits:
  queue: {per: global, algorithm: leaky_bucket, limit: 10/second, queue: 5}
upstreams: {api: {targets: ["http://127.0.0.1:1"]}}
routes:
  - {name: api, path: /api, upstream: api}
  - {name: dear, path: /dear, upstream: api, cost: 30}
  - {name: slow, path: /slow, upstream: api, limits: [queue]}
`
	plans = `default_plan: free
plans:
  roomy: {limits: [{name: per-hour, algorithm: fixed_window, limit: 1000/hour}]}
  free: {limits: [{name: per-minute, algorithm: token_bucket, limit: 100/minute, burst: 20}]}
overrides: [{user: homer, plan: roomy}]
`
)

// run loads plans with the tests that text has, and runs them.
func run(t *testing.T, text string) plantest.Results {
	t.Helper()
	cfg, _ := load(t, write(t, map[string]string{"routes.yaml": routes, "plans.yaml": plans + text, "keys.yaml": "keys: []"}))
	rs, err := plantest.Run(cfg, cfg.Tests)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// TestEveryExpectationCanFail asks each for what does not come, beside what does.
func TestEveryExpectationCanFail(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ send, right, wrong, want, got string }{
		{"send: 30 at once", "allowed: 20", "allowed: 21", "allowed: want 21", "20"},
		{"send: 30 at once", `allowed: "> 19"`, `allowed: "> 20"`, "allowed: want > 20", "20"},
		{"send: 30 at once", `allowed: 20..25`, `allowed: 21..25`, "allowed: want 21..25", "20"},
		{"send: 30 at once", `denied: "<= 10"`, `denied: "< 10"`, "denied: want < 10", "10"},
		{"send: 30 at once", "denied_by: per-minute", "denied_by: per-hour", "denied_by: want per-hour", "10 by per-minute"},
		{"send: 30 at once", "denied_by: [per-hour, per-minute]", "denied_by: [queue, per-hour]", "denied_by: want queue or per-hour", "10 by per-minute"},
		{"send: 20 at once", "allowed: 20", "denied_by: per-minute", "denied_by: want per-minute", "no refusal"},
		{"send: 1, caller: {}", "status: 401", "status: 429", "status: want 429", "1 times 401"},
		{"send: 30 at once", "denied: 10", "status: 429", "status: want 429", "10 times 429, 20 allowed"},
		{"send: 21 at once", "retry_after: 600ms", "retry_after: 1s", "retry_after: want 1s", "600ms"},
		{"send: 21 at once", `retry_after: 500ms..1s`, `retry_after: "< 600ms"`, "retry_after: want < 600ms", "600ms"},
		{"send: 21 at once", `longest_wait: "<= 600ms"`, "retry_after: none", "retry_after: want none", "600ms"},
		{"send: 1, request: /dear", "retry_after: none", "retry_after: 1s", "retry_after: want 1s", "none: no wait helps"},
		{"send: 1, request: /dear", "denied: 1", `longest_wait: "<= 1h"`, "longest_wait: want <= 1h", "1 refusal for which no wait helps"},
		{"send: 1 every 500ms for 1m", `longest_wait: "<= 1s"`, `longest_wait: "<= 1ms"`, "longest_wait: want <= 1ms", "100ms"},
		{"send: 4 at once, request: /slow", "delay: 300ms", "delay: 0s", "delay: want 0s", "300ms"},
		{"send: 1, request: /dear", "denied: 1", "delay: 0s", "delay: want 0s", "no request that passed"},
		{"send: 3, request: /slow", "remaining: {per-minute: 17, queue: 3}", "remaining: {queue: 4}", "remaining of queue: want 4", "3"},
		{"send: 1", "remaining: {per-minute: 19}", "remaining: {per-hour: 19}", "remaining of per-hour: want 19", "no request that this limit was asked for"},
	} {
		rs := run(t, `
tests:
  - {name: right, request: /api, caller: {user: priya123}, steps: [{`+c.send+`, `+c.right+`}]}
  - {name: wrong, request: /api, caller: {user: priya123}, steps: [{`+c.send+`, `+c.wrong+`}]}
`)
		var text strings.Builder
		if err := rs.WriteText(&text, false); err != nil {
			t.Fatal(err)
		}
		if !rs[0].OK() || rs[1].OK() || !strings.Contains(text.String(), c.want+", got "+c.got+"\n") {
			t.Errorf("%s: %s, %s\n%s", c.send, c.right, c.wrong, text.String())
		}
	}
}

const failing = `
tests:
  - name: "a <free> caller"
    caller: {user: priya123, plan: gold}
    request: /api
    steps:
      - {send: 20 at once, allowed: 20}
      - {wait: 600ms}
      - {send: 3 at once, allowed: 2}
  - {name: nobody, request: /api, steps: [{send: 1, status: 401}]}
  - {name: no such key, request: /api, caller: {key_id: k-1}, steps: [{send: 1, allowed: 1}]}
`

// without removes what differs from run to run: real times and the directory.
func without(text string) string {
	text = regexp.MustCompile(`\(\d[^ ]*s\)`).ReplaceAllString(text, "(TIME)")
	text = regexp.MustCompile(`time="[0-9.]+"`).ReplaceAllString(text, `time="TIME"`)
	return regexp.MustCompile(`[^ "]*/plans.yaml`).ReplaceAllString(text, "plans.yaml")
}

func TestAFailureSaysWhatWasWantedAndTheDecisionThatCame(t *testing.T) {
	t.Parallel()
	rs := run(t, failing)
	var short, all strings.Builder
	if err := rs.WriteText(&short, false); err != nil {
		t.Fatal(err)
	}
	if err := rs.WriteText(&all, true); err != nil {
		t.Fatal(err)
	}
	const want = `FAIL  a <free> caller (TIME)
      plans.yaml:14:9: step 3: send 3 at once: 1 allowed, 2 denied (2 by per-minute), longest wait 600ms
          allowed: want 2, got 1
          first refusal: request 2, at Mon 2026-01-05 00:00:00.6 UTC: 429 by per-minute, retry after 600ms; plan free, from default_plan, since the credential names a plan that does not exist
            per-minute: 0 of 20 left, asked for 1: no, for 600ms
ok    nobody (TIME)
FAIL  no such key (TIME)
      plans.yaml:16:48: the key file has no key "k-1" (gateway keys list shows them); want one that it has, or user or plan beside key_id
FAIL: 2 of 3 tests
`
	if got := without(short.String()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, line := range []string{
		"plans.yaml:12:9: step 1: send 20 at once: 20 allowed\n", "plans.yaml:13:9: step 2: wait 600ms: it is Mon 2026-01-05 00:00:00.6 UTC\n",
		"plans.yaml:15:43: step 1: send 1: 0 allowed, 1 denied (1 by unauthorized)\n",
	} {
		if !strings.Contains(without(all.String()), line) {
			t.Errorf("no %q in\n%s", line, without(all.String()))
		}
	}
}

func TestResultsForScripts(t *testing.T) {
	t.Parallel()
	rs := run(t, failing)
	text, err := json.Marshal(rs)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		OK            bool
		Tests, Failed int
		Results       []struct {
			Name, File, Error string
			Line              int
			OK                bool
			Steps             []struct {
				Allowed, Denied int
				Failures        []struct{ Expectation, Want, Got string }
				FirstDenial     *struct {
					Request     int
					By          []string
					RetryAfterS float64 `json:"retry_after_s"`
				} `json:"first_denial"`
			}
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.OK || got.Tests != 3 || got.Failed != 2 || len(got.Results) != 3 || len(got.Results[0].Steps) != 3 {
		t.Fatalf("%s", text)
	}
	s := got.Results[0].Steps[2]
	if s.Allowed != 1 || s.Denied != 2 || len(s.Failures) != 1 || s.Failures[0].Want != "2" || s.FirstDenial == nil || s.FirstDenial.RetryAfterS != 0.6 {
		t.Errorf("%+v", s)
	}
	if got.Results[0].Line != 8 || got.Results[2].Error == "" || !got.Results[1].OK {
		t.Errorf("%s", text)
	}
	if empty, err := json.Marshal(plantest.Results(nil)); err != nil || string(empty) != `{"ok":true,"tests":0,"failed":0,"results":[]}` {
		t.Errorf("no tests: %s, %v", empty, err)
	}
}

func TestJUnitIsXMLThatCounts(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := run(t, failing).WriteJUnit(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		XMLName                 xml.Name `xml:"testsuites"`
		Tests, Failures, Errors int
		Counts                  []xml.Attr `xml:",any,attr"`
		Suites                  []struct {
			Name  string `xml:"name,attr"`
			Cases []struct {
				Name    string `xml:"name,attr"`
				Failure *struct {
					Message string `xml:"message,attr"`
					Text    string `xml:",chardata"`
				} `xml:"failure"`
				Error *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	if !strings.Contains(without(b.String()), `<testsuites tests="3" failures="1" errors="1" time="TIME">`) || len(got.Suites) != 1 {
		t.Fatal(b.String())
	}
	cases := got.Suites[0].Cases
	if cases[0].Name != "a <free> caller" || cases[0].Failure == nil || cases[1].Failure != nil || cases[2].Error == nil ||
		!strings.HasSuffix(cases[0].Failure.Message, "step 3: allowed: want 2, got 1") || !strings.Contains(cases[0].Failure.Text, "0 of 20 left") {
		t.Error(b.String())
	}
}
