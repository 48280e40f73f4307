package config

import (
	"path/filepath"
	"testing"
	"time"
)

const somePlans = `default_plan: free
plans:
  free: {limits: [{name: per-minute, algorithm: token_bucket, limit: 100/minute}]}
`

// The clock of a test goes on with what its steps wait and send.
func TestTheClockOfATest(t *testing.T) {
	t.Parallel()
	dir := smallDir(t, map[string]string{"plans.yaml": somePlans + `tests:
  - name: clock
    request: GET https://api.example.com/a?b=c
    steps:
      - {send: 2 at once, allowed: 2}
      - {send: 3 every 400ms for 1s, allowed: 9}
      - {wait: 1d}
      - {send: 1}
      - {at: "05:30:01 Asia/Kolkata"}
      - {at: "05:30:01 Asia/Kolkata"}
      - {at: "00:00"}
      - {at: "2026-03-28 12:00 Europe/Berlin"}
      - {at: "12:00 Europe/Berlin"}
`})
	c, report := load(dir, nil)
	if c == nil {
		t.Fatal(text(report, dir))
	}
	if s := TestStart; s.Weekday() != time.Monday || s.Format(time.RFC3339) != "2026-01-05T00:00:00Z" {
		t.Errorf("the clock begins at %s", s)
	}
	want := []string{
		"2026-01-05T00:00:00Z", "2026-01-05T00:00:00Z", "2026-01-06T00:00:01Z", "2026-01-06T00:00:01Z",
		"2026-01-07T00:00:01Z", "2026-01-08T00:00:01Z", "2026-01-09T00:00:00Z",
		"2026-03-28T11:00:00Z", "2026-03-29T10:00:00Z", // one of 23 hours
	}
	for i, s := range c.Tests[0].Steps {
		if got := s.At.UTC().Format(time.RFC3339); got != want[i] {
			t.Errorf("step %d, %s: at %s, want %s", i+1, s.Text, got, want[i])
		}
	}
	send := c.Tests[0].Steps[1].Send
	if send.Batches() != 3 || send.Total() != 9 || send.URL.Host != "api.example.com" || send.URL.RawQuery != "b=c" || send.Method != "GET" {
		t.Errorf("%+v", send)
	}
}

// Tests in a file of their own are checked against the limits of the configuration.
func TestTestsInAFileOfTheirOwn(t *testing.T) {
	t.Parallel()
	dir := smallDir(t, map[string]string{
		"plans.yaml":      somePlans,
		"login_test.yaml": "tests:\n  - {name: a, request: /a, steps: [{send: 1, denied_by: per-minute}]}\n",
		"bad_test.yaml":   "tests:\n  - {name: a, request: /a, steps: [{send: 1, denied_by: per-minut}]}\nplans: {}\nroutes: []\n",
		"other.yaml":      "tests: []\n",
	})
	c, report := load(dir, nil)
	if c == nil {
		t.Fatal(text(report, dir))
	}
	files, err := TestFiles(filepath.Join(dir, "plans.yaml"))
	if err != nil || len(files) != 2 || filepath.Base(files[1]) != "login_test.yaml" {
		t.Fatalf("%q, %v", files, err)
	}
	if tests, report := LoadTests(c, files[1], nil); len(tests) != 1 || len(report.Problems) > 0 {
		t.Errorf("%v, %s", tests, text(report, dir))
	}
	tests, report := LoadTests(c, files[0], nil)
	const want = `bad_test.yaml:2:57: tests[0].steps[0].denied_by: no limit "per-minut" in any plan or under limits (did you mean "per-minute"?); besides limits unauthorized, failure_limit, no_route, method_not_allowed, bad_path, forbidden_ip, missing_scope, missing_claim, forbidden_plan, not_for_route, cross_origin can deny
bad_test.yaml:4:1: routes: unknown field; want anonymous_plan, default_plan, overrides, plans or tests
`
	if got := text(report, dir); tests != nil || got != want {
		t.Errorf("%v, %s", tests, got)
	}
	if tests, report := LoadTests(c, filepath.Join(dir, "none_test.yaml"), nil); tests != nil || report.Err() == nil {
		t.Error("a file that is not there has tests")
	}
}
