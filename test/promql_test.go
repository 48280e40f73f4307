package test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// A reading is what an expression asks for, by the parser of Prometheus; see
// tools/promql.
type reading struct {
	Error     string
	Selectors []struct {
		Metric string
		Labels []string
	}
	Groupings []struct{ Labels, Metrics []string }
}

// readPromQL has Prometheus' own parser read expressions.
func readPromQL(t testing.TB, expressions []string) []reading {
	t.Helper()
	in, err := json.Marshal(expressions)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", "-C", "../tools/promql", ".")
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tools/promql: %v\n%s", err, stderr.String())
	}
	var readings []reading
	if err := json.Unmarshal(out, &readings); err != nil || len(readings) != len(expressions) {
		t.Fatalf("tools/promql: %d readings of %d expressions, %v", len(readings), len(expressions), err)
	}
	return readings
}

// exposed is what scrapes hold: the labels of each metric, by name. A histogram is there
// as its parts, and as the whole that a native one is.
func exposed(scrapes ...string) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	of := func(metric string) map[string]bool {
		if out[metric] == nil {
			out[metric] = map[string]bool{"job": true, "instance": true} // Prometheus puts them there
		}
		return out[metric]
	}
	sample := regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)
	label := regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="(?:[^"\\]|\\.)*"`)
	for _, scrape := range scrapes {
		for line := range strings.Lines(scrape) {
			m := sample.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				continue
			}
			whole, isBucket := strings.CutSuffix(m[1], "_bucket")
			labels := of(m[1])
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				labels[l[1]] = true
				if isBucket && l[1] != "le" {
					of(whole)[l[1]] = true
				}
			}
			if isBucket {
				of(whole)
			}
		}
	}
	return out
}
