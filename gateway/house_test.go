package gateway_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// mayImport lists the arrows of the house: which of our packages each one may
// import. A new arrow is a decision and belongs into this list first.
var mayImport = map[string][]string{
	"cmd/gateway":                  {"gateway", "gateway/auth", "gateway/config", "gateway/explain", "gateway/plantest", "gateway/simulate"},
	"gateway":                      {"gateway/*"},
	"gateway/admin":                {"gateway/httperr", "gateway/topk"},
	"gateway/auth":                 {},
	"gateway/clientip":             {},
	"gateway/config":               {},
	"gateway/door":                 {"gateway/httperr"},
	"gateway/explain":              {"gateway", "gateway/config", "gateway/ratelimit", "gateway/scope"},
	"gateway/fallback":             {"gateway/ratelimit"},
	"gateway/httperr":              {},
	"gateway/plantest":             {"gateway", "gateway/config", "gateway/ratelimit", "gateway/scope"},
	"gateway/proxy":                {"gateway/httperr", "gateway/scope"},
	"gateway/ratelimit":            {},
	"gateway/ratelimit/denycache":  {"gateway/ratelimit"},
	"gateway/ratelimit/lease":      {"gateway/ratelimit"},
	"gateway/ratelimit/limittest":  {"gateway/ratelimit"},
	"gateway/ratelimit/memory":     {"gateway/ratelimit"},
	"gateway/ratelimit/redisstore": {"gateway/ratelimit"},
	"gateway/scope":                {},
	"gateway/simulate":             {"gateway", "gateway/config", "gateway/ratelimit"},
	"gateway/telemetry":            {"gateway/scope"},
	"gateway/topk":                 {},
}

func TestImportsPointOneWay(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Doc,GoFiles", "bouncer/cmd/...", "bouncer/gateway/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := map[string]bool{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Doc  string
			Imports, GoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, "bouncer/")
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("%s is a new room; say here what it may import", name)
			continue
		}
		seen[name] = true
		if p.Doc == "" {
			t.Errorf("%s has no doc comment", name)
		}
		for _, i := range p.Imports {
			i, ours := strings.CutPrefix(i, "bouncer/")
			if ours && !slices.Contains(allowed, i) && !slices.Contains(allowed, "gateway/*") {
				t.Errorf("%s imports %s, which the house does not allow", name, i)
			}
		}
	}
	for name := range mayImport {
		if !seen[name] {
			t.Errorf("%s is gone; take it off the list", name)
		}
	}
}
