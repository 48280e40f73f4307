package config

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf16"
)

// problems loads a small configuration with other files.
func problems(t testing.TB, files map[string]string) (*Config, string) {
	t.Helper()
	dir := smallDir(t, files)
	c, report := load(dir, nil)
	return c, text(report, dir)
}

func TestHarmlessEncodings(t *testing.T) {
	for name, routes := range map[string]string{
		"byte order mark": "\xef\xbb\xbf" + smallRoutes,
		"CRLF":            strings.ReplaceAll(smallRoutes, "\n", "\r\n"),
		"document marks":  "---\n" + smallRoutes + "...\n",
		"no last newline": strings.TrimSuffix(smallRoutes, "\n"),
	} {
		if c, got := problems(t, map[string]string{"routes.yaml": routes}); c == nil || got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestMerge(t *testing.T) {
	c, got := problems(t, map[string]string{"routes.yaml": `
x-slow: &slow {timeout: {connect: 9s}, balance: round_robin}
x-base: &base {<<: *slow, balance: least_requests}
listen: {http: ":8080"}
upstreams:
  api: {targets: [http://127.0.0.1:9001], <<: *slow}
  two: {<<: [*base, *slow], targets: [http://127.0.0.1:9002]}
  three: {<<: *slow, targets: [http://127.0.0.1:9003], timeout: {connect: 2s}}
routes:
  - {name: open, path: /open, upstream: api, auth: none, cost: 0}
`})
	if c == nil {
		t.Fatal(got)
	}
	for i, want := range []struct {
		balance string
		connect time.Duration
	}{{"round_robin", 9 * time.Second}, {"least_requests", 9 * time.Second}, {"round_robin", 2 * time.Second}} {
		if u := c.Upstreams[i]; u.Balance != want.balance || u.ConnectTimeout != want.connect {
			t.Errorf("%s: got %s, %s, want %+v", u.Name, u.Balance, u.ConnectTimeout, want)
		}
	}
}

func TestHostileFiles(t *testing.T) {
	bomb := "x-0: &a0 {a: &v [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}\n"
	for i := 1; i < 30; i++ {
		bomb += fmt.Sprintf("x-%d: &a%d {<<: [%s]}\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), ", "))
	}
	wide := "x-r: &r [" + strings.Repeat("a, ", 1000) + "a]\n" + strings.Replace(smallRoutes, "routes:\n", "routes:\n"+
		strings.Repeat("  - {name: a, path: /a, upstream: api, limits: *r}\n", 1000), 1)
	for name, c := range map[string]struct{ routes, want string }{
		"NUL":                {"listen: {http: \"\x00\"}\n", "routes.yaml:1:17: not a text file"},
		"NUL in a late line": {smallRoutes + "a: \x00\n", "routes.yaml:6:4: not a text file"},
		"bad UTF-8":          {"listen: \xff\xfe\n", "routes.yaml:1:9: not a text file"},
		"bomb of merges":     {bomb + "store: {<<: *a29}\n" + smallRoutes, "aliases expand"},
		"bomb of lists":      {wide, "more; correct these first"},
		"deep flow":          {strings.Repeat("[", 50_000), "not valid YAML"},
		"deep mappings":      {strings.Repeat("{a: ", 5_000) + strings.Repeat("}", 5_000), "unknown field"},
		"scalar only":        {"hello", "got a string"},
		"escape sequences":   {"\"\\x1b[2J\": 1\n" + smallRoutes, `routes.yaml:1:1: "\x1b[2J": unknown field`},
		"alias as key":       {"x-a: &a store\n*a : {memory: {max_keys: 0}}\n" + smallRoutes, "store.memory.max_keys: want a whole number"},
	} {
		cfg, got := problems(t, map[string]string{"routes.yaml": c.routes})
		if cfg != nil || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %.600s, want %s", name, got, c.want)
		}
		for line := range strings.Lines(got) {
			if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return r < ' ' }) {
				t.Errorf("%s: a control character in %q", name, line)
			}
		}
	}
}

// wide is the small plans.yaml in UTF-16.
func wide(order binary.AppendByteOrder, mark bool) string {
	var b []byte
	text := smallPlans
	if mark {
		text = byteOrderMark + text
	}
	for _, unit := range utf16.Encode([]rune(text)) {
		b = order.AppendUint16(b, unit)
	}
	return string(b)
}

// foreignFiles are what stands in place of YAML when an editor, a download or a
// merge went wrong, and what is said of it.
var foreignFiles = map[string]string{
	wide(binary.LittleEndian, true):  "1:1: this file is UTF-16; save it as UTF-8",
	wide(binary.BigEndian, true):     "1:1: this file is UTF-16; save it as UTF-8",
	wide(binary.LittleEndian, false): "1:1: this file is UTF-16; save it as UTF-8",
	wide(binary.BigEndian, false):    "1:1: this file is UTF-16; save it as UTF-8",
	"\xff\xfe\x00\x00p\x00\x00\x00":  "1:1: this file is UTF-32; save it as UTF-8",
	"p\x00\x00\x00l\x00\x00\x00":     "1:1: this file is UTF-32; save it as UTF-8",
	"\x1f\x8b\x08\x00\x00\x00":       "1:1: this file is compressed with gzip; unpack it",
	"<!DOCTYPE html>\n<html><head><title>404: Not Found</title></head>\n<body>\n</body></html>\n": "1:1: this is an HTML page, not YAML; perhaps a download brought a login or error page instead of the file",
	"\ufeff\r\n  <HTML lang=en><p>a: b</p>":                                                       "2:3: this is an HTML page, not YAML; perhaps a download brought a login or error page instead of the file",
	"<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code></Error>":                           "1:1: this is XML or HTML, not YAML; is it the right file?",
	"plans:\n<<<<<<< HEAD\n  a: {}\n=======\n  a: {limits: []}\n>>>>>>> other\n":                  "2:1: a merge left its conflict here; choose one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>",
	"# caf\xe9\nplans: {}\n": "1:7: not a text file in UTF-8: invalid trailing UTF-8 octet (value: 10); save it as UTF-8, without that character",
}

// What is no YAML at all is said in one line, and not as a mistake of YAML deep
// inside.
func TestForeignFilesAreNamed(t *testing.T) {
	for text, want := range foreignFiles {
		c, got := problems(t, map[string]string{"plans.yaml": text})
		if c != nil || got != "plans.yaml:"+want+"\n" {
			t.Errorf("%.40q: got %s, want %s", text, got, want)
		}
	}
}

func TestFilesThatAreNone(t *testing.T) {
	dir := smallDir(t, nil)
	large := filepath.Join(dir, "large.yaml")
	f, err := os.Create(large)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(50<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	plans := filepath.Join(dir, "plans.yaml")
	for path, want := range map[string]string{
		dir:                           "is a directory",
		filepath.Join(dir, "nothing"): "no such file",
		os.DevNull:                    "is not a regular file",
		large:                         "larger than 10 MiB",
	} {
		c, report := Load(Options{Routes: path, Plans: plans})
		if c != nil || len(report.Problems) == 0 || !strings.Contains(report.Problems[0].String(), path+": "+want) {
			t.Errorf("%s: got %v, want %s", path, report.Problems, want)
		}
		if len(report.Files) != 2 || report.Files[0].Path != path || report.Files[0].SHA256 != [32]byte{} {
			t.Errorf("%s: files %v", path, report.Files)
		}
	}
}

func TestReportIsBounded(t *testing.T) {
	routes := smallRoutes + strings.Repeat("  - {nam: a, path: b}\n", 500)
	dir := smallDir(t, map[string]string{"routes.yaml": routes})
	_, report := load(dir, nil)
	if n := len(report.Problems); n != maxProblems+1 {
		t.Fatalf("%d problems", n)
	}
	if got := report.Problems[maxProblems].Message; !strings.Contains(got, "more; correct these first") {
		t.Errorf("the last problem is %q", got)
	}
}

func TestManyRoutes(t *testing.T) {
	t.Parallel() // it takes seconds
	var b strings.Builder
	b.WriteString(smallRoutes)
	for i := range 50_000 {
		fmt.Fprintf(&b, "  - {name: r%d, path: /r/%d, upstream: api, auth: none, cost: 0}\n", i, i)
	}
	c, got := problems(t, map[string]string{"routes.yaml": b.String()})
	if c == nil || len(c.Routes) != 50_001 {
		t.Fatalf("%.500s", got)
	}
}

// FuzzLoad holds Load to its promise: any bytes in any of the files are a
// configuration or problems with a place, and what was loaded can be printed.
func FuzzLoad(f *testing.F) {
	archives, err := filepath.Glob("testdata/busted/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range archives {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		files := map[string]string{}
		name := ""
		for line := range strings.Lines(string(data)) {
			if title, ok := strings.CutPrefix(line, "-- "); ok {
				name = strings.TrimSuffix(title, " --\n")
			} else {
				files[name] += line
			}
		}
		f.Add(files["routes.yaml"], files["plans.yaml"], files["keys.yaml"])
	}
	for _, name := range []string{"\xef\xbb\xbf", "\x00", "a: &a [*a]", "a: &a {<<: *a}", "? ? ?", "- - -", "%YAML 9.9\n---\n", "\t", "!!binary x"} {
		f.Add(name, name, name)
	}
	for text := range foreignFiles {
		f.Add(text, text, text)
	}
	for _, text := range secretLines {
		f.Add(text, text, text)
	}
	routes, err := os.ReadFile("testdata/good/routes.yaml")
	if err != nil {
		f.Fatal(err)
	}
	plans, err := os.ReadFile("testdata/good/plans.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(routes), string(plans), "keys: []")
	for _, limit := range []string{
		"algorithm: leaky_bucket, limit: 999999999999999/366d, queue: 999999999999998, max_delay: 1h",
		"algorithm: leaky_bucket, limit: 1/366d, queue: 1, candidate: {limit: 0/366d}",
		"algorithm: token_bucket, limit: 0/minute, lease: {size: 5, ttl: 10s}",
		"algorithm: sliding_window_log, limit: 10001/1s, candidate: {limit: 100000/second, burst: 1}",
		"algorithm: fixed_window, anchor: calendar, limit: 1/week, week_start: friday, timezone: Pacific/Apia",
		"algorithm: token_bucket, limit: 0/minute, burst: 5, candidate: {burst: 999999999999999}, mode: shadow, count_rejected: on",
	} {
		f.Add(smallRoutes+"usage_path: /u\nstore: {redis: {urls: [redis://a, redis://b]}}\nlimits: {a: {per: ip, "+limit+"}}\nedge: [a]\n",
			smallPlans, "keys: []")
	}
	dir := smallDir(f, nil)
	f.Fuzz(func(t *testing.T, routes, plans, keys string) {
		write(t, dir, map[string]string{"routes.yaml": routes, "plans.yaml": plans, "keys.yaml": keys})
		c, report := load(dir, nil)
		if (c == nil) != (report.Err() != nil) {
			t.Fatalf("config %v beside %v", c, report.Err())
		}
		for _, p := range report.Problems {
			if p.File == "" || p.Message == "" || strings.ContainsAny(p.String(), "\n\r\x00") {
				t.Errorf("problem %q", p.String())
			}
		}
		for line := range strings.Lines(show(t, report, Screen{})) {
			if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), isControl) {
				t.Errorf("a control character is shown in %q", line)
			}
		}
		if c != nil {
			Print(c)
			Describe(c, c)
		}
	})
}
