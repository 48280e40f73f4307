// Command grafana writes dashboard.json, the dashboard that Grafana imports:
//
//	go run ./deploy/grafana > deploy/grafana/dashboard.json
//
// What is shown, and how it is to be read, stands in panels.go; what Grafana wants to
// be told besides, in model.go. A test holds the file to both.
package main

import (
	"fmt"
	"os"
)

func main() {
	text, err := dashboardJSON()
	if err != nil {
		fmt.Fprintln(os.Stderr, "grafana:", err)
		os.Exit(1)
	}
	if _, err := os.Stdout.Write(text); err != nil {
		fmt.Fprintln(os.Stderr, "grafana: write the dashboard:", err)
		os.Exit(1)
	}
}
