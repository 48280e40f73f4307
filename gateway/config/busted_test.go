package config

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write what is reported into testdata/busted")

// A whole configuration, as small as it gets. A busted one replaces a file.
const (
	smallRoutes = `listen: {http: ":8080"}
upstreams:
  api: {targets: [http://127.0.0.1:9001]}
routes:
  - {name: open, path: /open, upstream: api, auth: none, cost: 0}
`
	smallPlans = "plans: {}\n"
)

// smallDir returns a directory with a small configuration, PEM files of every
// kind, and files in addition; an empty name in without is left out.
func smallDir(t testing.TB, files map[string]string) string {
	t.Helper()
	all := map[string]string{"routes.yaml": smallRoutes, "plans.yaml": smallPlans}
	for name, data := range pemFiles() {
		all[name] = string(data)
	}
	maps.Copy(all, files)
	dir := t.TempDir()
	write(t, dir, all)
	return dir
}

var positioned = regexp.MustCompile(`^[a-z.]+:[1-9][0-9]*:[1-9][0-9]*: .*[^ ]$`)

// TestBustedFiles loads every archive of testdata/busted and compares what is
// reported, warnings too, with its file "want".
func TestBustedFiles(t *testing.T) {
	archives, err := filepath.Glob("testdata/busted/*.txtar")
	if err != nil || len(archives) < 60 {
		t.Fatalf("%d archives, %v", len(archives), err)
	}
	for _, path := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files, vars := map[string]string{}, map[string]string{}
			for _, f := range a.Files {
				files[f.Name] = string(f.Data)
			}
			for line := range strings.Lines(files["env"]) {
				name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
				vars[name] = value
			}
			dir := smallDir(t, files)
			c, report := load(dir, vars)
			got := text(report, dir)
			if (c == nil) != (report.Err() != nil) {
				t.Errorf("config %v beside error %v", c, report.Err())
			}
			for line := range strings.Lines(got) {
				if !positioned.MatchString(strings.TrimSpace(line)) {
					t.Errorf("no position: %s", line)
				}
			}
			// hunter2 is the password of all archives.
			if shown := show(t, report, Screen{Width: 500}); strings.Contains(got+shown, "hunter2") {
				t.Errorf("the report repeats a secret:\n%s", shown)
			}
			if *update {
				a.Files[len(a.Files)-1].Data = []byte(got)
				if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(files["want"], got); d != "" || got == "" {
				t.Errorf("want -, got +:\n%s", d)
			}
		})
	}
}
