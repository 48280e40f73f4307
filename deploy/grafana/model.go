package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// A row is a headline and the panels below it.
type row struct {
	title  string
	panels []panel
}

// A panel is one chart or number, of the kinds of Grafana.
type panel struct {
	title string
	// text says how to read it. It is the panel's description.
	text string
	// causes are headings of docs/RUNBOOK.md, as anchors, that what it shows leads to.
	causes []string
	kind   string // timeseries, stat, state-timeline or table; default timeseries
	unit   string // of Grafana: s, reqps, percentunit, short, …
	width  int    // of 24 columns; default 8
	height int    // default 8; 4 for stat
	// lines are where it becomes a matter to look at, and to act on; 0: there is none.
	look, act float64
	low       bool // it is bad below the lines, not above
	stacked   bool
	max       float64  // of the axis; 0: as it comes
	words     []string // what 0, 1, … are called
	bad       int      // which of the words is the bad one
	exemplars bool     // it shows the traces of single requests
	instant   bool     // only the latest figure
	queries   []query
}

// A query is one expression of PromQL, and what its lines are called.
type query struct{ expr, legend string }

type object = map[string]any

// dataSource is what every panel asks: the one that is chosen on top.
var dataSource = object{"type": "prometheus", "uid": "${datasource}"}

// dashboardJSON is the text of dashboard.json.
func dashboardJSON() ([]byte, error) {
	var out []any
	id, y := 1, 0
	for _, r := range rows() {
		out = append(out, object{
			"id": id, "type": "row", "title": r.title, "collapsed": false, "panels": []any{},
			"gridPos": object{"x": 0, "y": y, "w": 24, "h": 1},
		})
		id++
		y++
		x, tallest := 0, 0
		for _, p := range r.panels {
			p = p.withDefaults()
			if x+p.width > 24 {
				x, y, tallest = 0, y+tallest, 0
			}
			out = append(out, p.object(id, object{"x": x, "y": y, "w": p.width, "h": p.height}))
			id++
			x += p.width
			tallest = max(tallest, p.height)
		}
		y += tallest
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(object{
		"uid": "bouncer-gateway", "title": "Gateway", "tags": []string{"gateway", "rate limiting"},
		"description": "Is it us, is it Redis, is the limit too tight, or is one client noisy? Read from top to bottom. Made by go run ./deploy/grafana.",
		"editable":    true, "graphTooltip": 1, "schemaVersion": 39, "version": 1, "refresh": "30s", "timezone": "browser",
		"time":        object{"from": "now-1h", "to": "now"},
		"timepicker":  object{},
		"annotations": object{"list": []any{reloads()}},
		"links":       []any{link("Runbook", "${runbook:raw}")},
		"templating":  object{"list": variables()},
		"panels":      out,
	})
	return b.Bytes(), err
}

func link(title, url string) object {
	return object{
		"type": "link", "title": title, "url": url, "icon": "doc", "targetBlank": true, "tooltip": "What to do, by what is seen",
		"asDropdown": false, "includeVars": false, "keepTime": false, "tags": []any{},
	}
}

// reloads draws a line where a configuration came into force.
func reloads() object {
	return object{
		"name": "Configuration applied", "datasource": dataSource, "enable": true, "iconColor": "blue", "hide": false,
		"expr":        `changes(gateway_config_last_reload_success_timestamp_seconds{` + here() + `}[1m]) > 0`,
		"titleFormat": "A configuration came into force", "textFormat": "{{instance}}", "step": "30s",
	}
}

func variables() []any {
	list := []any{
		object{
			"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus",
			"hide": 0, "refresh": 1, "multi": false, "includeAll": false,
			"current": object{"selected": false, "text": "", "value": ""}, "options": []any{}, "regex": "",
		},
	}
	for _, v := range []struct{ name, label, values, all string }{
		// Without a pattern of its own All is the values themselves: up, process_… and go_…
		// are others' metrics too.
		{"job", "Job", `label_values(gateway_in_flight, job)`, ""},
		{"instance", "Instance", `label_values(gateway_in_flight{job=~"$job"}, instance)`, ""},
		// These match what has no such label as well: a limit at the edge belongs to no plan.
		{"route", "Route", `label_values(gateway_in_flight{` + here() + `}, route)`, ".*"},
		{"plan", "Plan", `label_values(gateway_ratelimit_decisions_total{` + here() + `}, plan)`, ".*"},
		{"limit", "Limit", `label_values(gateway_ratelimit_decisions_total{` + here() + `,plan=~"$plan"}, limit)`, ".*"},
		{"upstream", "Upstream", `label_values(gateway_upstream_circuit_open{` + here() + `}, upstream)`, ".*"},
	} {
		variable := object{
			"name": v.name, "label": v.label, "type": "query", "datasource": dataSource,
			"definition": v.values, "query": object{"qryType": 1, "query": v.values, "refId": "variable-" + v.name},
			"multi": true, "includeAll": true, "refresh": 2, "sort": 1, "hide": 0, "regex": "", "options": []any{},
			"current": object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}},
		}
		if v.all != "" {
			variable["allValue"] = v.all
		}
		list = append(list, variable)
	}
	return append(list, object{
		"name": "runbook", "label": "Runbook", "type": "textbox", "hide": 2,
		"description": "The address of docs/RUNBOOK.md, as your people read it",
		"query":       runbookURL, "current": object{"selected": true, "text": runbookURL, "value": runbookURL},
		"options": []any{object{"selected": true, "text": runbookURL, "value": runbookURL}},
	})
}

func (p panel) withDefaults() panel {
	if p.kind == "" {
		p.kind = "timeseries"
	}
	if p.unit == "" {
		p.unit = "short"
	}
	if p.width == 0 {
		p.width = 8
	}
	if p.height == 0 {
		p.height = 8
		if p.kind == "stat" {
			p.height = 4
		}
	}
	return p
}

func (p panel) object(id int, at object) object {
	var targets []any
	for i, q := range p.queries {
		target := object{
			"refId": string(rune('A' + i)), "datasource": dataSource, "editorMode": "code",
			"expr": q.expr, "legendFormat": q.legend, "range": !p.instant, "instant": p.instant, "exemplar": p.exemplars,
		}
		if p.kind == "table" {
			target["format"] = "table"
		}
		targets = append(targets, target)
	}
	var links []any
	description := []string{p.text}
	for _, cause := range p.causes {
		title := "Runbook: " + strings.ReplaceAll(cause, "-", " ")
		url := "${runbook:raw}#" + cause
		links = append(links, link(title, url))
		description = append(description, fmt.Sprintf("[%s](%s)", title, url))
	}
	return object{
		"id": id, "type": p.kind, "title": p.title, "description": strings.Join(description, "\n\n"), "gridPos": at,
		"datasource": dataSource, "targets": targets, "links": links,
		"fieldConfig": object{"defaults": p.field(), "overrides": []any{}},
		"options":     p.options(),
	}
}

// field is how figures look.
func (p panel) field() object {
	steps := []any{object{"color": "green", "value": nil}}
	colors := []string{"orange", "red"}
	if p.low { // it begins with what is bad
		steps = []any{object{"color": "red", "value": nil}}
		colors = []string{"orange", "green"}
	}
	lines := []float64{p.look, p.act}
	if p.low {
		lines = []float64{p.act, p.look}
	}
	some := false
	for i, line := range lines {
		if line != 0 {
			steps = append(steps, object{"color": colors[i], "value": line})
			some = true
		}
	}
	if p.low && !some {
		steps = []any{object{"color": "green", "value": nil}}
	}
	style := "off"
	if some && p.kind == "timeseries" {
		style = "dashed"
	}
	field := object{
		"unit": p.unit, "min": 0, "color": object{"mode": "palette-classic"},
		"thresholds": object{"mode": "absolute", "steps": steps},
		"custom":     object{},
		"mappings":   []any{},
	}
	if p.max != 0 {
		field["max"] = p.max
	}
	if len(p.words) > 0 {
		options := object{}
		for i, word := range p.words {
			color := "green"
			if i == p.bad {
				color = "red"
			}
			options[fmt.Sprint(i)] = object{"text": word, "color": color, "index": i}
		}
		field["mappings"] = []any{object{"type": "value", "options": options}}
	}
	switch p.kind {
	case "timeseries":
		stacking, fill := "none", 0
		if p.stacked {
			stacking, fill = "normal", 30
		}
		field["custom"] = object{
			"drawStyle": "line", "lineWidth": 1, "fillOpacity": fill, "showPoints": "never", "spanNulls": false,
			"stacking": object{"mode": stacking, "group": "A"}, "thresholdsStyle": object{"mode": style},
			"axisSoftMin": 0,
		}
	case "table":
		field["color"] = object{"mode": "thresholds"}
		field["custom"] = object{"align": "auto", "inspect": false}
	case "stat":
		field["color"] = object{"mode": "thresholds"}
	case "state-timeline":
		field["color"] = object{"mode": "thresholds"}
		field["custom"] = object{"fillOpacity": 70, "lineWidth": 0}
	}
	return field
}

func (p panel) options() object {
	switch p.kind {
	case "stat":
		return object{
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
			"colorMode":     "background", "graphMode": "area", "textMode": "auto", "orientation": "auto", "justifyMode": "auto",
			"wideLayout": true, "showPercentChange": false, "percentChangeColorMode": "standard",
		}
	case "table":
		return object{"showHeader": true, "cellHeight": "sm", "footer": object{"show": false, "reducer": []string{}}, "frameIndex": 0}
	case "state-timeline":
		return object{
			"mergeValues": true, "showValue": "auto", "rowHeight": 0.8, "alignValue": "left",
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []string{}},
			"tooltip": object{"mode": "single", "sort": "none"},
		}
	default:
		return object{
			"legend":  object{"displayMode": "table", "placement": "bottom", "showLegend": true, "calcs": []string{"lastNotNull", "max"}, "sortBy": "Max", "sortDesc": true},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		}
	}
}
