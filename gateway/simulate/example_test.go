package simulate

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"bouncer/gateway/config"
)

// docs/SIMULATE.md tells what the shipped example says.
func TestTheStoryIsTrue(t *testing.T) {
	t.Parallel()
	const dir = "../../examples/simulate/"
	read := func(plans string) *config.Config {
		cfg, report := config.Load(config.Options{Routes: dir + "routes.yaml", Plans: dir + plans})
		if err := report.Err(); err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	r, err := Run(t.Context(), Options{Config: read("new.yaml"), Against: read("plans.yaml"), Logs: []string{dir + "access.jsonl"}})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.WriteText(&text, 2); err != nil {
		t.Fatal(err)
	}
	story, err := os.ReadFile("../../docs/SIMULATE.md")
	if err != nil {
		t.Fatal(err)
	}
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	said := squeeze(text.String())
	for line := range strings.Lines(string(story)) {
		line = squeeze(line)
		switch {
		case strings.HasPrefix(line, "200 lines:"), strings.HasPrefix(line, "6 requests newly"), strings.HasPrefix(line, "obeying Retry-After:"), strings.HasPrefix(line, "key:"), strings.HasPrefix(line, "0 6 180"):
			if !strings.Contains(said, line) {
				t.Errorf("the document says %q; it is\n%s", line, text.String())
			}
		}
	}
	r, err = Run(t.Context(), Options{Config: read("new.yaml"), Logs: []string{dir + "access.log"}})
	if err != nil || r.Lines != 150 || r.Malformed != 5 || r.Requests != 145 {
		t.Errorf("the other log: %+v, %v", r, err)
	}
}
