package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// runbookURL is where the shipped alerts expect the runbook; rules.yml says how to
// put another address in its place.
const runbookURL = "https://example.com/bouncer/docs/RUNBOOK.md"

// TestEveryAlertHasAPageInTheRunbook: whoever is woken follows the link of the alert,
// and stands before words about that alert.
func TestEveryAlertHasAPageInTheRunbook(t *testing.T) {
	known := anchors(read(t, "docs/RUNBOOK.md"))
	rules := strings.Split(read(t, "deploy/prometheus/rules.yml"), "- alert: ")[1:]
	if len(rules) < 20 {
		t.Fatalf("%d alerts found: the pattern is broken", len(rules))
	}
	link := regexp.MustCompile(`(?m)^\s+runbook_url: (\S+)$`)
	for _, rule := range rules {
		name, _, _ := strings.Cut(rule, "\n")
		anchor := "#" + strings.ToLower(name)
		m := link.FindStringSubmatch(rule)
		if m == nil || m[1] != runbookURL+anchor {
			t.Errorf("%s: runbook_url %q, want %s%s", name, m, runbookURL, anchor)
		}
		if !slices.Contains(known, anchor) {
			t.Errorf("%s: RUNBOOK.md has no heading with the anchor %s", name, anchor)
		}
	}
}
