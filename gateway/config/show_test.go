package config

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// show shows all problems of a report.
func show(t testing.TB, r *Report, s Screen) string {
	t.Helper()
	var b strings.Builder
	for _, p := range r.Problems {
		if err := r.Show(&b, p, s); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// TestMistakesAreShownInTheirLines holds what a person sees to testdata/shown.txtar,
// without colours and with them.
func TestMistakesAreShownInTheirLines(t *testing.T) {
	const path = "testdata/shown.txtar"
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range a.Files {
		files[f.Name] = string(f.Data)
	}
	dir := smallDir(t, files)
	_, report := load(dir, nil)
	for name, screen := range map[string]Screen{"plain": {}, "color": {Color: true}} {
		got := strings.ReplaceAll(show(t, report, screen), dir+"/", "")
		got = strings.ReplaceAll(got, "\x1b", "ESC")
		if *update {
			for i, f := range a.Files {
				if f.Name == name {
					a.Files[i].Data = []byte(got)
				}
			}
		} else if d := cmp.Diff(files[name], got); d != "" || got == "" {
			t.Errorf("%s: want -, got +:\n%s", name, d)
		}
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// secretLines are ways in which a person writes a password into a file, right or
// wrong. The mistake that is reported stands in the same line or the next.
var secretLines = []string{
	`store: {redis: {url: redis://h, password: hunter2, timout: 5s}}`,
	`store: {redis: {url: redis://h, pasword: hunter2, timeout: 5}}`,
	`store: {redis: {url: redis://h, PASSWORD: hunter2, timeout: 5}}`,
	`store: {redis: {url: redis://h, passphrase: 'hunter2', timeout: 5}}`,
	`store: {redis: {url: redis://h, "password":"hunter2", timeout: 5}}`,
	`store: {redis: {url: redis://h, password:hunter2, timeout: 5}}`,
	`store: {redis: {url: redis://h, password: "a, b: hunter2", timeout: 5}}`,
	`store: {redis: {url: redis://h, password: a} hunter2, timeout: 5}}`,
	`store: {redis: {url: redis://h, password: [hunter2], timeout: 5}}`,
	`store: {redis: {url: redis://h, password: {a: hunter2}, timeout: 5}}`,
	`store: {redis: {url: redis://h, password hunter2, timeout: 5}}`,
	`store: {redis: {url: "redis://u:pa ss@hunter2@h:x", timeout: 5}}`,
	`store: {redis: {url: redis://u:hunter2, timeout: 5}}`,
	`store: {redis: {urls: [redis://u:hunter2@a, redis://v:hunter2@b:x], timeout: 5}}`,
	`store: {redis: {adr: "redis://u:hunter2@h", timeout: 5}}`,
	`store: {redis: {url: "${REDIS_URL:-redis://u:hunter2@h", timeout: 5}}`,
	`store: {redis: {url: "${REDIS_TOKEN:-hunter2", timeout: 5}}`,
	`store: {redis: {url: redis://h, timeout: 5}} # the password is hunter2`,
	`store: {redis: {url: redis://h, timeout: 5}} # password: hunter2`,
	`store: {redis: {url: redis://h, timeout: 5, x: &password hunter2}}`,
	"x-p: &p hunter2\nstore: {redis: {url: redis://h, password: *p, username: [], sentinel: {password: *p}}}",
	"store:\n  redis:\n    url: redis://h\n    timout: 5\n    password: hunter2",
	"store:\n  redis:\n    password:\n      hunter2\n     :",
	"store:\n  redis:\n    password: |\n      a: 1\n      hunter2\x00",
	"store:\n  redis:\n    password: >-\n      hunter2\n\t",
	"store:\n  redis:\n    password: 'a\n\n      hunter2': x",
	"store: {redis: {password:\nhunter2: x",
	"store: {redis: {password: \"a\nb: hunter2\" x",
	"store:\n  redis:\n    passwords:\n    - hunter2\n    - a: b: c",
	"store:\n  redis:\n    sentinel:\n      password: {hunter2",
	"admin: {token: hunter2, tokn_file: x}",
	"admin: {token_file: |\n  hunter2\n: x",
	"admin:\n  token: hunter2\n  foo: 1",
	"auth: {jwt: [{issuer: x, secret: hunter2}], api_key: hunter2}",
	"auth: {x-api-key: hunter2, Authorization: Bearer hunter2}",
	"upstreams: {a: {targets: [\"http://u:hunter2@h\", 3]}}",
	"private_key: |\n  -----BEGIN PRIVATE KEY-----\n  hunter2\n : :",
}

// No secret is ever shown: not where it belongs, not where it is misspelt or
// misplaced, and not in a line above or below the mistake.
func TestSecretsAreNeverShown(t *testing.T) {
	for _, text := range secretLines {
		for _, before := range []bool{false, true} {
			routes := smallRoutes + text + "\n"
			if before {
				routes = text + "\n" + smallRoutes
			}
			for _, file := range []string{"routes.yaml", "plans.yaml"} {
				dir := smallDir(t, map[string]string{file: routes})
				_, report := load(dir, nil)
				if got := show(t, report, Screen{Width: 300}); strings.Contains(got, "hunter2") {
					t.Errorf("%s\nis shown as\n%s", text, got)
				}
				// Nor would any other place of the file show it.
				for line := range strings.Count(routes, "\n") + 2 {
					for _, column := range []int{1, 40} {
						p := Problem{Pos: Pos{File: dir + "/" + file, Line: line, Column: column}, Message: "x"}
						if got := show(t, &Report{Problems: []Problem{p}, docs: report.docs}, Screen{Width: 300}); strings.Contains(got, "hunter2") {
							t.Fatalf("%d:%d of\n%s\nis shown as\n%s", line, column, routes, got)
						}
					}
				}
			}
		}
	}
}

// Keys of callers stand in a file of which no line is shown.
func TestKeyFilesAreNeverShown(t *testing.T) {
	dir := smallDir(t, map[string]string{
		"routes.yaml": smallRoutes + "auth: {api_keys: {file: keys.yaml}}\n",
		"keys.yaml":   "keys:\n  - {id: a, usr: hunter2, sha256: hunter2}\n",
	})
	_, report := load(dir, nil)
	if got := show(t, report, Screen{}); !strings.Contains(got, "usr: unknown field") || strings.Contains(got, "hunter2") || strings.Contains(got, " | ") {
		t.Errorf("shown:\n%s", got)
	}
}

// The mark stands under the place, whatever the characters before it are, and
// however long the line is.
func TestTheMarkStandsUnderThePlace(t *testing.T) {
	long := strings.Repeat("x", 3000)
	for name, c := range map[string]struct{ text, source, under string }{
		"tabs":            {"plans:\t{\"\ta\": 3}", `plans:    {"    a": 3}`, `           ^^^^^^^`},
		"wide":            {`plans: {"日本": 3}`, `plans: {"日本": 3}`, `        ^^^^^^`},
		"combining":       {"plans: {\"e\u0301\": 3}", "plans: {\"e\u0301\": 3}", `        ^^^`},
		"syllables":       {"plans: {\"\u1112\u1161\u11ab\": 3}", "plans: {\"\u1112\u1161\u11ab\": 3}", `        ^^^^`},
		"emoji":           {"plans: {\"👍\": 3}", "plans: {\"👍\": 3}", `        ^^^^`},
		"turned around":   {"plans: {\"\u202ea\": 3}", `plans: {"?a": 3}`, `        ^^^^`},
		"carriage return": {"plans: {}\r\"A\": 3", `"A": 3`, `^^^`},
		"both ends":       {"# x\r\nplans: {B: 3}\r\n", `plans: {B: 3}`, `        ^`},
		"a mark of bytes": {"\ufeffplans: {B: 3}", `plans: {B: 3}`, `        ^`},
		"long before":     {"plans: {} # " + long + "\nx-a: {y: " + long + ", z: {}}\n\"B\": 3", `"B": 3`, `^^^`},
		"cut before":      {"{x-a: " + long + ", plans: {B: 3}}", `…` + long[:55] + `, plans: {B: 3}}`, strings.Repeat(" ", 66) + `^`},
		"cut after":       {"{plans: {B: 3}, x-a: " + long + "}", `{plans: {B: 3}, x-a: ` + long[:50] + `…`, `         ^`},
		"cut around":      {"{x-a: " + long + ", plans: {B: 3}, x-b: " + long + "}", "", ""},
		"a long word":     {"plans: {" + strings.ToUpper(long) + ": 3}", `plans: {` + strings.ToUpper(long[:63]) + `…`, `        ` + strings.Repeat("^", 63)},
	} {
		dir := smallDir(t, map[string]string{"plans.yaml": c.text})
		_, report := load(dir, nil)
		var b strings.Builder
		if len(report.Problems) == 0 {
			t.Errorf("%s: no problem", name)
			continue
		}
		if err := report.Show(&b, report.Problems[0], Screen{}); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(b.String(), "\n")
		if len(lines) != 4 {
			t.Errorf("%s: %q", name, lines)
			continue
		}
		_, source, _ := strings.Cut(lines[1], " | ")
		_, under, _ := strings.Cut(lines[2], " | ")
		if name == "cut around" {
			if i := strings.Index(source, "B: 3"); !strings.HasPrefix(source, "…x") || !strings.HasSuffix(source, "x…") || len([]rune(source)) > 73 ||
				len([]rune(source[:max(i, 0)])) != strings.Index(under, "^") {
				t.Errorf("%s: got\n%s\n%s", name, source, under)
			}
			continue
		}
		if source != c.source || under != c.under {
			t.Errorf("%s: %s\ngot\n%q\n%q\nwant\n%q\n%q", name, lines[0], source, under, c.source, c.under)
		}
	}
}
