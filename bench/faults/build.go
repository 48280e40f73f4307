package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A sabotage takes one protection out of the gateway, in a copy of the source
// that only the compiler sees. The suite must notice.
type sabotage struct {
	edits   []edit
	what    string
	row     string // where it must show
	promise string // with which word the broken promise begins
}

// An edit replaces a piece of text that stands in a file of the module once.
type edit struct{ file, old, new string }

var sabotages = map[string]sabotage{
	"breaker": {
		edits: []edit{{
			file: "gateway/fallback/breaker.go",
			old:  "func (n *node) readyToTrip(c gobreaker.Counts) bool {\n",
			new:  "func (n *node) readyToTrip(c gobreaker.Counts) bool {\n\tif c.Requests < 1<<31 {\n\t\treturn false\n\t}\n",
		}},
		what: "the breaker never opens", row: "frozen", promise: "breaker",
	},
	"deadline": {
		edits: []edit{{
			file: "gateway/ratelimit/redisstore/client.go",
			old:  "ContextTimeoutEnabled: true,",
			new:  "ContextTimeoutEnabled: false,",
		}},
		what: "go-redis looks at no deadline between its steps", row: "slow 40 ms, connections cut", promise: "latency",
	},
	"retries": {
		// Two things forbid to repeat a call: the client's settings and the command.
		edits: []edit{
			{
				file: "gateway/ratelimit/redisstore/client.go",
				old:  "MaxRetries:    -1,",
				new:  "MaxRetries:    3,",
			},
			{
				file: "gateway/ratelimit/redisstore/script.go",
				old:  "NoRetry() bool { return true }",
				new:  "NoRetry() bool { return false }",
			},
		},
		what: "go-redis repeats what has failed", row: "cut mid-reply", promise: "charged once",
	},
}

// build compiles the gateway into dir, with a sabotage if it is named, and
// returns the program.
func build(ctx context.Context, dir, sabotaged string) (string, error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "gateway")
	args := []string{"build", "-trimpath", "-o", out}
	if sabotaged != "" {
		s, ok := sabotages[sabotaged]
		if !ok {
			return "", fmt.Errorf("-sabotage: want one of %s, got %q", strings.Join(sortedKeys(sabotages), ", "), sabotaged)
		}
		out += "-without-" + sabotaged
		args[3] = out
		overlay, err := s.overlay(root, dir, sabotaged)
		if err != nil {
			return "", err
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/gateway")...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the gateway: %w\n%s", err, text)
	}
	return out, nil
}

// overlay writes what go build -overlay reads.
func (s sabotage) overlay(root, dir, name string) (string, error) {
	replace := map[string]string{}
	for i, e := range s.edits {
		path := filepath.Join(root, e.file)
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		patched, err := e.apply(string(text))
		if err != nil {
			return "", err
		}
		replace[path] = filepath.Join(dir, fmt.Sprintf("%s-%d.go", name, i))
		if err := os.WriteFile(replace[path], []byte(patched), 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, name+".json")
	return overlay, os.WriteFile(overlay, list, 0o600)
}

// apply makes the edit in text.
func (e edit) apply(text string) (string, error) {
	if n := strings.Count(text, e.old); n != 1 {
		return "", fmt.Errorf("the sabotage of %s does not fit any more: %q stands there %d times, want once", e.file, e.old, n)
	}
	return strings.Replace(text, e.old, e.new, 1), nil
}

// moduleRoot is the directory of go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	mod := strings.TrimSpace(string(out))
	if err != nil || mod == "" || mod == os.DevNull {
		return "", errors.New("find the module: run this in the repository")
	}
	return filepath.Dir(mod), nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
