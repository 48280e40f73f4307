// Command promql says what expressions of PromQL ask for, as the parser of Prometheus
// itself reads them. It takes a JSON list of expressions on standard input and writes a
// JSON list of the same length:
//
//	{"error": "…"}                          it does not parse
//	{"selectors": [{"metric": "up", "labels": ["job"]}],
//	 "groupings": [{"labels": ["job"], "metrics": ["up"]}]}
//
// A grouping is by, without, on, ignoring or group_left, with the metrics it is about.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

type selector struct {
	Metric string   `json:"metric"`
	Labels []string `json:"labels"`
}

type grouping struct {
	Labels  []string `json:"labels"`
	Metrics []string `json:"metrics"`
}

type reading struct {
	Error     string     `json:"error,omitempty"`
	Selectors []selector `json:"selectors"`
	Groupings []grouping `json:"groupings"`
}

func main() {
	var expressions []string
	if err := json.NewDecoder(os.Stdin).Decode(&expressions); err != nil {
		fmt.Fprintln(os.Stderr, "promql: standard input must be a JSON list of expressions:", err)
		os.Exit(1)
	}
	out := make([]reading, len(expressions))
	p := parser.NewParser(parser.Options{})
	for i, text := range expressions {
		expr, err := p.ParseExpr(text)
		if err != nil {
			out[i].Error = err.Error()
			continue
		}
		out[i] = read(expr)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, "promql: write the answer:", err)
		os.Exit(1)
	}
}

func read(expr parser.Expr) (r reading) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			r.Selectors = append(r.Selectors, selectorOf(n))
		case *parser.AggregateExpr:
			if len(n.Grouping) > 0 {
				r.Groupings = append(r.Groupings, grouping{n.Grouping, metrics(n.Expr)})
			}
		case *parser.BinaryExpr:
			if m := n.VectorMatching; m != nil && len(m.MatchingLabels) > 0 {
				r.Groupings = append(r.Groupings, grouping{append(m.MatchingLabels, m.Include...), metrics(n)})
			}
		}
		return nil
	})
	return r
}

func selectorOf(n *parser.VectorSelector) selector {
	s := selector{Metric: n.Name}
	for _, m := range n.LabelMatchers {
		if m.Name == labels.MetricName {
			s.Metric = m.Value
		} else {
			s.Labels = append(s.Labels, m.Name)
		}
	}
	return s
}

// metrics are those that are selected anywhere within an expression.
func metrics(expr parser.Expr) (names []string) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if n, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selectorOf(n).Metric)
		}
		return nil
	})
	return names
}
