package rig

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
)

// Replace writes text between the lines `<!-- name:begin -->` and
// `<!-- name:end -->` of a Markdown file.
func Replace(path, name, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->\n"
	before, rest, ok := bytes.Cut(old, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return fmt.Errorf("%s: want the lines %q and %q, to write between them", path, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(path, slices.Concat(before, []byte(begin), []byte(text), []byte(end), after), 0o644)
}

// Machine describes where this runs, in one line.
func Machine() string {
	cpu := "unknown processor"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	kernel := "unknown kernel"
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = "Linux " + strings.TrimSpace(string(text))
	}
	redis := "no Redis"
	if out, err := exec.Command("redis-server", "--version").Output(); err == nil {
		for f := range strings.FieldsSeq(string(out)) {
			if v, ok := strings.CutPrefix(f, "v="); ok {
				redis = "Redis " + v
			}
		}
	}
	return fmt.Sprintf("%s, %d cores for everything (load, gateway, upstream and Redis together), %s, %s, %s",
		cpu, runtime.NumCPU(), kernel, runtime.Version(), redis)
}

// Spread is the median of some numbers and their extremes.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf needs at least one number.
func SpreadOf(xs []float64) Spread {
	xs = slices.Sorted(slices.Values(xs))
	n := len(xs)
	return Spread{Median: (xs[(n-1)/2] + xs[n/2]) / 2, Min: xs[0], Max: xs[n-1]}
}

// Text writes the spread with a fmt verb for each number.
func (s Spread) Text(verb string) string {
	return fmt.Sprintf(verb+" ("+verb+"–"+verb+")", s.Median, s.Min, s.Max)
}
