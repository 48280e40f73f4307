package prometheus_test

import (
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// promtool runs Prometheus' own tool. Where it is missing the test fails, since
// an alert that nobody has tried is one that does not fire.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command("promtool", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("promtool %v: %v\n%s", args, err, out)
	}
}

func TestPrometheusTakesTheShippedFiles(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "--lint-fatal", "rules.yml")
	promtool(t, "check", "config", "--syntax-only", "prometheus.yml")
}

func TestEveryAlertFiresWhenItShould(t *testing.T) {
	t.Parallel()
	promtool(t, "test", "rules", "rules_test.yml")

	rules, err := os.ReadFile("rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("rules_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	fires := map[string]bool{}
	for _, m := range regexp.MustCompile(`alertname: (\w+)\n\s+exp_alerts:\n`).FindAllSubmatch(tests, -1) {
		fires[string(m[1])] = true
	}
	alerts := regexp.MustCompile(`(?m)^\s+- alert: (\w+)$`).FindAllSubmatch(rules, -1)
	if len(alerts) == 0 {
		t.Fatal("rules.yml has no alerts")
	}
	for _, m := range alerts {
		if !fires[string(m[1])] {
			t.Errorf("no test shows %s firing", m[1])
		}
	}
}
