package test

import (
	"os"
	"path/filepath"
	"testing"
)

// gateway test runs what stands beside the plans, says by its exit code whether
// it came true, and does not take a word that matches nothing for success.
func TestTestsBesideThePlans(t *testing.T) {
	t.Parallel()
	s := openSite(t, newUpstream(t, nil))
	const plans = `anonymous_plan: anonymous
plans:
  anonymous:
    limits: [{name: per-minute, per: ip, algorithm: token_bucket, limit: 100/minute, burst: 20}]
`
	step := func(name, allowed string) string {
		return "  - {name: " + name + ", request: /api/weather, steps: [{send: 30 at once, allowed: " + allowed + "}]}\n"
	}
	s.write("plans.yaml", plans)
	want := func(code int, stdout, stderr string, args ...string) {
		t.Helper()
		r := s.command(append([]string{"test"}, args...)...)
		if r.code != code || !contains(r.stdout, stdout) || !contains(r.stderr, stderr) || (stdout == "" && r.stdout != "") {
			t.Errorf("gateway test %q: exit code %d, want %d:\n%s%s", args, r.code, code, r.stdout, r.stderr)
		}
	}
	want(0, "", "no tests; write some under tests:")
	s.write("plans.yaml", plans+"tests:\n"+step("twenty at once", "20"))
	want(0, "ok: 1 test\n", "")
	want(0, `"ok": true`, "", "-json")
	s.write("more_test.yaml", "tests:\n"+step("thirty at once", "30"))
	want(1, "allowed: want 30, got 20", "", "-junit", "report.xml")
	if text, err := os.ReadFile(filepath.Join(s.dir, "report.xml")); err != nil || !contains(string(text), `failures="1"`) {
		t.Errorf("%v: %s", err, text)
	}
	want(0, "step 1: send 30 at once: 20 allowed", "", "-run", "^twenty", "-v")
	want(0, "ok: 1 test\n", "", "plans.yaml")
	want(1, "FAIL: 1 of 1 test\n", "", "more_test.yaml")
	want(1, "", `none of 2 tests has a name that matches "fifty"`, "-run", "fifty")
	want(2, "", "-run: error parsing regexp", "-run", "(")
	s.write("more_test.yaml", "tests:\n"+step("thirty at once", "many"))
	want(1, "", `more_test.yaml:2:87: tests[0].steps[0].allowed: "many"`)
	s.write("plans.yaml", plans+"tests:\n"+step("twenty at once", "many"))
	want(1, "", `plans.yaml:6:87: tests[0].steps[0].allowed: "many"`)
}
