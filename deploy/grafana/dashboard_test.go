package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A shown panel is one as Grafana reads it.
type shownPanel struct {
	ID          int
	Type        string
	Title       string
	Description string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr, LegendFormat string }
	Links       []struct{ URL string }
	FieldConfig struct {
		Defaults struct {
			Unit       string
			Thresholds struct{ Steps []any }
		}
	}
}

type shownDashboard struct {
	Panels     []shownPanel
	Templating struct {
		List []struct {
			Name       string
			Multi      bool
			IncludeAll bool
		}
	}
}

func shown(t *testing.T) (d shownDashboard, text []byte) {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Panels) < 40 {
		t.Fatalf("%d panels: it is not read as it stands there", len(d.Panels))
	}
	return d, text
}

func TestTheFileIsWhatTheProgramWrites(t *testing.T) {
	_, text := shown(t)
	want, err := dashboardJSON()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, want) {
		t.Error("dashboard.json is not what panels.go says; type: go run ./deploy/grafana > deploy/grafana/dashboard.json")
	}
}

func TestEveryPanelSaysHowItIsRead(t *testing.T) {
	d, _ := shown(t)
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: another panel has its id", p.Title)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || len(p.Description) < 40 || p.FieldConfig.Defaults.Unit == "" || len(p.FieldConfig.Defaults.Thresholds.Steps) == 0 {
			t.Errorf("panel %d, %q, is without title, description, unit or thresholds", p.ID, p.Title)
		}
		if len(p.Targets) == 0 {
			t.Errorf("%s: it asks nothing", p.Title)
		}
		names := map[string]bool{}
		for _, q := range p.Targets {
			if q.LegendFormat == "" && p.Type != "table" || names[q.LegendFormat] {
				t.Errorf("%s: a line without a name of its own: %s", p.Title, q.Expr)
			}
			names[q.LegendFormat] = true
			if !strings.Contains(q.Expr, `instance=~"$instance`) || strings.Count(q.Expr, "(") != strings.Count(q.Expr, ")") {
				t.Errorf("%s: it does not keep to the chosen instances: %s", p.Title, q.Expr)
			}
		}
	}
}

func TestNoPanelLiesOnAnother(t *testing.T) {
	d, _ := shown(t)
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W < 4 || p.GridPos.H < 1 {
			t.Errorf("%s: at %+v", p.Title, p.GridPos)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// Whoever sees something odd on a panel is led to words about it.
func TestEveryPanelLeadsToTheRunbook(t *testing.T) {
	runbook, err := os.ReadFile("../../docs/RUNBOOK.md")
	if err != nil {
		t.Fatal(err)
	}
	var anchors []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllSubmatch(runbook, -1) {
		anchor := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(string(m[1])), "")
		anchors = append(anchors, strings.ReplaceAll(anchor, " ", "-"))
	}
	used := map[string]bool{}
	d, _ := shown(t)
	for _, p := range d.Panels {
		if p.Type == "row" {
			continue
		}
		if len(p.Links) == 0 {
			t.Errorf("%s: no link", p.Title)
		}
		for _, l := range p.Links {
			anchor, ok := strings.CutPrefix(l.URL, "${runbook:raw}#")
			if !ok || !slices.Contains(anchors, anchor) || !strings.Contains(p.Description, l.URL) {
				t.Errorf("%s: %s leads nowhere", p.Title, l.URL)
			}
			used[anchor] = true
		}
	}
	for _, cause := range []string{
		"noisy-client", "limit-too-tight", "near-limit", "redis-away", "redis-slow", "upstream-failing", "upstream-slow",
		"circuit-open", "gateway-slow", "log-dropped", "overflow", "config-rejected", "config-differs",
	} {
		if !used[cause] {
			t.Errorf("no panel leads to #%s", cause)
		}
	}
}

func TestWhatIsChosenOnTop(t *testing.T) {
	d, text := shown(t)
	several := map[string]bool{}
	for _, v := range d.Templating.List {
		several[v.Name] = v.Multi && v.IncludeAll
	}
	for _, name := range []string{"job", "instance", "route", "plan", "limit", "upstream"} {
		if !several[name] {
			t.Errorf("$%s: not several of it, or all, can be chosen", name)
		}
		if !bytes.Contains(text, []byte(`=~\"$`+name+`\"`)) {
			t.Errorf("$%s: nothing is chosen by it", name)
		}
	}
	for _, m := range regexp.MustCompile(`\$\{?([a-z_]+)`).FindAllSubmatch(text, -1) {
		name := string(m[1])
		if _, known := several[name]; !known && !strings.HasPrefix(name, "__") {
			t.Errorf("$%s is no variable", name)
		}
	}
}
