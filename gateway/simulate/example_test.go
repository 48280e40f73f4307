package simulate

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"bouncer/gateway/config"
)

// docs/SIMULATE.md and README.md tell what the shipped example says.
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
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	said := squeeze(text.String())
	for _, document := range []string{"../../docs/SIMULATE.md", "../../README.md"} {
		story, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		_, shown, ok := strings.Cut(string(story), "    $ gateway simulate -log access.jsonl -plans new.yaml -against plans.yaml\n")
		if !ok {
			t.Fatalf("%s does not tell the story", document)
		}
		for line := range strings.Lines(shown) {
			if !strings.HasPrefix(line, "    ") {
				break
			}
			for part := range strings.SplitSeq(line, "…") { // an ellipsis is what they leave out
				if part = squeeze(part); !strings.Contains(said, part) {
					t.Errorf("%s says %q; it is\n%s", document, part, text.String())
				}
			}
		}
	}
	r, err = Run(t.Context(), Options{Config: read("new.yaml"), Logs: []string{dir + "access.log"}})
	if err != nil || r.Lines != 150 || r.Malformed != 5 || r.Requests != 145 {
		t.Errorf("the other log: %+v, %v", r, err)
	}
}
