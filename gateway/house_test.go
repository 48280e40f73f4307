package gateway_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mayImport lists the arrows of the house: which of our packages each one may
// import. A new arrow is a decision and belongs into this list first.
var mayImport = map[string][]string{
	"cmd/gateway":                  {"gateway", "gateway/auth", "gateway/config", "gateway/explain", "gateway/plantest", "gateway/simulate"},
	"gateway":                      {"docs", "gateway/*"},
	"gateway/acme":                 {},
	"gateway/admin":                {"gateway/denials", "gateway/httperr", "gateway/scope", "gateway/topk"},
	"gateway/auth":                 {"gateway/jwks"},
	"gateway/auth/keyuse":          {},
	"gateway/auth/rediskeys":       {"gateway/auth"},
	"gateway/auth/tokentest":       {"gateway/auth"},
	"gateway/callers":              {},
	"gateway/clientip":             {"gateway/scope"},
	"gateway/config":               {"gateway/jwks", "gateway/rewrite"},
	"gateway/denials":              {},
	"gateway/door":                 {"gateway/httperr"},
	"gateway/explain":              {"gateway", "gateway/config", "gateway/ratelimit", "gateway/scope"},
	"gateway/fallback":             {"gateway/ratelimit"},
	"gateway/httperr":              {},
	"gateway/jwks":                 {},
	"gateway/plantest":             {"gateway", "gateway/config", "gateway/ratelimit", "gateway/scope"},
	"gateway/pulse":                {},
	"gateway/proxy":                {"gateway/httperr", "gateway/rewrite", "gateway/scope"},
	"gateway/ratelimit":            {},
	"gateway/ratelimit/denycache":  {"gateway/ratelimit"},
	"gateway/ratelimit/lease":      {"gateway/ratelimit"},
	"gateway/ratelimit/limittest":  {"gateway/ratelimit"},
	"gateway/ratelimit/memory":     {"gateway/ratelimit"},
	"gateway/ratelimit/redisstore": {"gateway/ratelimit"},
	"gateway/rewrite":              {"gateway/scope"},
	"gateway/scope":                {},
	"gateway/simulate":             {"gateway", "gateway/config", "gateway/ratelimit"},
	"gateway/telemetry":            {"gateway/pulse", "gateway/scope"},
	"gateway/topk":                 {},
	"gateway/tracing":              {"gateway/scope"},
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

// mayAsk lists who may ask a limit anything, outside of the stores themselves, and
// by which call. What decides about requests is the pipeline, and a rehearsal
// walks through it; all others only pass on, look, or try numbers.
var mayAsk = map[string]string{
	"pipeline.go walk decide":                 "a running gateway",
	"rehearsal.go Do decide":                  "test, simulate and explain",
	"pipeline.go chargeEdge Take":             "the stage",
	"identify.go failuresSpent Take":          "the stage",
	"pipeline.go chargeLimits Take":           "the stage",
	"rehearsal.go Take Take":                  "passes on, and remembers",
	"shared.go Take Take":                     "passes on, and measures",
	"ownlimits.go look Take":                  "looks, at no cost",
	"explain/explain.go Take Take":            "looks, at no cost",
	"simulate/smallest.go chargeWindow Admit": "counts what a limit without end would hold",
	"simulate/smallest.go denies Decide":      "tries numbers",
}

// gateway run, test, simulate and explain decide in one place: nothing else in
// the house asks a store or runs an algorithm.
func TestNothingElseDecides(t *testing.T) {
	t.Parallel()
	seen, rehearse := map[string]bool{}, map[string]bool{}
	look := func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(path)
		if d.IsDir() && (name == "ratelimit" || name == "fallback" || d.Name() == "testdata") {
			return fs.SkipDir // the stores and the algorithms
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				switch s.Sel.Name {
				case "Rehearse":
					rehearse[filepath.ToSlash(filepath.Dir(path))] = true
				case "decide":
					if file.Name.Name != "gateway" {
						return true // a word of another package
					}
					fallthrough
				case "Take", "Decide", "Admit":
					seen[name+" "+f.Name.Name+" "+s.Sel.Name] = true
				}
				return true
			})
		}
		return nil
	}
	for _, root := range []string{".", "../cmd"} {
		if err := filepath.WalkDir(root, look); err != nil {
			t.Fatal(err)
		}
	}
	for what := range seen {
		if mayAsk[what] == "" {
			t.Errorf("%s: another place decides; walk through a Rehearsal, or say here why not", what)
		}
	}
	for what := range mayAsk {
		if !seen[what] {
			t.Errorf("%s is gone; take it off the list", what)
		}
	}
	for _, name := range []string{"explain", "plantest", "simulate"} {
		if !rehearse[name] {
			t.Errorf("%s does not rehearse", name)
		}
	}
}
