// Package docs_test keeps the documents and the shipped files true: what they
// show is loaded, and what they name exists.
//
// It does not drive the program; the tests in test/ do.
package docs_test

import (
	"encoding/xml"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bouncer/gateway/config"
	"bouncer/gateway/plantest"
	"bouncer/gateway/telemetry"
)

// root is the repository.
const root = ".."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// write puts files into a new directory and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// load wants a configuration without a mistake and without a warning.
func load(t *testing.T, dir string, env map[string]string) *config.Config {
	t.Helper()
	cfg, report := config.Load(config.Options{
		Routes: filepath.Join(dir, "routes.yaml"),
		Plans:  filepath.Join(dir, "plans.yaml"),
		LookupEnv: func(name string) (string, bool) {
			v, ok := env[name]
			return v, ok
		},
	})
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	for _, w := range report.Warnings() {
		t.Errorf("warning: %s", w.Message)
	}
	return cfg
}

func TestShippedConfiguration(t *testing.T) {
	cfg := load(t, root, nil)
	if cfg.Store.Redis != nil {
		t.Error("without REDIS_URL the shipped configuration should count in memory")
	}
	if len(cfg.Auth.APIKeys.Keys) != 0 {
		t.Error("the shipped keys.yaml holds a key: one that everybody can read opens nothing")
	}
	cfg = load(t, root, map[string]string{"REDIS_URL": "redis://127.0.0.1:6390/0", "HTTP_ADDR": ":8081"})
	if cfg.Store.Redis == nil || cfg.Store.Redis.Address != "127.0.0.1:6390" || cfg.Listen.HTTP != ":8081" {
		t.Errorf("REDIS_URL and HTTP_ADDR are not followed: %+v, %+v", cfg.Store.Redis, cfg.Listen)
	}
}

// uncommented returns text with the lines that are commented-out fields of the
// YAML put in force, so that what the shipped file only shows is checked as well.
func uncommented(text string, fields ...string) string {
	for _, f := range fields {
		line := regexp.MustCompile(`(?m)^( *)# ` + regexp.QuoteMeta(f))
		text = line.ReplaceAllString(text, "${1}"+f)
	}
	return text
}

// TestShippedComments puts every field in force that the shipped routes.yaml
// shows in a comment.
func TestShippedComments(t *testing.T) {
	text := uncommented(read(t, "routes.yaml"),
		"admin: {token_file", "username:", "password_file:", "host:", "health:",
		"jwt:", "  - issuer:", "    audience:", "    algorithms:", "    public_key_file:", "    cookie:", "    leeway:", "    claims:")
	dir := write(t, map[string]string{
		"routes.yaml": text, "plans.yaml": read(t, "plans.yaml"), "keys.yaml": read(t, "keys.yaml"),
		"admin-token": "a token\n", "redis-password": "a password\n", "login.pem": rsaPublicKey,
	})
	cfg := load(t, dir, map[string]string{"REDIS_URL": "redis://127.0.0.1:6390/0"})
	if cfg.Admin.Token == nil || cfg.Store.Redis.Username == "" || len(cfg.Auth.JWT) != 1 || cfg.Routes[0].Host == "" {
		t.Error("a commented field of routes.yaml was not put in force")
	}
}

func TestComposeConfiguration(t *testing.T) {
	dir := write(t, map[string]string{
		"routes.yaml": strings.Replace(read(t, "deploy/compose/config/routes.yaml"), "/run/secrets/", "", 1),
		"plans.yaml":  read(t, "deploy/compose/config/plans.yaml"),
		"keys.yaml":   read(t, "deploy/compose/config/keys.yaml"),
		"admin-token": "a token\n",
	})
	load(t, dir, map[string]string{"REDIS_URL": "redis://redis:6379/0", "WEATHER_URL": "http://weather-api:9001"})
}

func TestKubernetesConfiguration(t *testing.T) {
	manifest := read(t, "deploy/kubernetes/gateway.yaml")
	dir := write(t, map[string]string{
		"routes.yaml":    strings.ReplaceAll(block(t, manifest, "  routes.yaml: |\n"), "/etc/gateway-secrets/", ""),
		"plans.yaml":     block(t, manifest, "  plans.yaml: |\n"),
		"keys.yaml":      "keys: []\n",
		"admin-token":    "a token\n",
		"redis-password": "a password\n",
	})
	load(t, dir, nil)
}

// block returns the literal block of YAML that follows head, its indentation cut.
func block(t *testing.T, text, head string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, head)
	if !ok {
		t.Fatalf("no %q", head)
	}
	var b strings.Builder
	for line := range strings.Lines(rest) {
		cut, ok := strings.CutPrefix(line, "    ")
		if !ok && strings.TrimSpace(line) != "" {
			break
		}
		b.WriteString(cut)
	}
	return b.String()
}

func TestExampleConfiguration(t *testing.T) {
	dir := write(t, map[string]string{
		"routes.yaml": read(t, "examples/tokens/routes.yaml"),
		"plans.yaml":  read(t, "examples/tokens/plans.yaml"),
		"keys.yaml":   read(t, "examples/tokens/keys.yaml"),
		"secret":      strings.Repeat("s", 44),
	})
	load(t, dir, nil)
}

func TestReadmeConfiguration(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(blocks) != 2 {
		t.Fatalf("README.md has %d YAML blocks, want routes.yaml and plans.yaml", len(blocks))
	}
	load(t, write(t, map[string]string{"routes.yaml": blocks[0][1], "plans.yaml": blocks[1][1], "keys.yaml": "keys: []\n"}), nil)
}

// TestDocumentedTests runs the tests that the documents show, against the
// configuration that they are about.
func TestDocumentedTests(t *testing.T) {
	readme, manual := read(t, "README.md"), read(t, "docs/CONFIGURATION.md")
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readme, -1)
	small := write(t, map[string]string{
		"routes.yaml": blocks[0][1], "keys.yaml": "keys: []\n",
		"plans.yaml": blocks[1][1] + "tests:\n" + block(t, readme, "    tests:\n"),
	})
	shipped := load(t, root, nil)
	shown := regexp.MustCompile("(?s)```yaml\n(tests:\n.*?)```").FindStringSubmatch(manual)
	if shown == nil {
		t.Fatal("docs/CONFIGURATION.md shows no tests")
	}
	tests, report := config.LoadTests(shipped, filepath.Join(write(t, map[string]string{"shown_test.yaml": shown[1]}), "shown_test.yaml"), nil)
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	cfg := load(t, small, nil)
	for _, c := range []struct {
		cfg   *config.Config
		tests []*config.Test
	}{{cfg, cfg.Tests}, {shipped, tests}} {
		results, err := plantest.Run(c.cfg, c.tests)
		if err != nil || len(results) == 0 || results.Failed() > 0 {
			var text strings.Builder
			_ = results.WriteText(&text, false)
			t.Errorf("%v\n%s", err, text.String())
		}
	}
}

// TestLinks follows every relative link of every document.
func TestLinks(t *testing.T) {
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	documents = append(documents, filepath.Join(root, "README.md"))
	link := regexp.MustCompile(`\]\(([^)#: ]*)(#[^)]*)?\)`)
	n := 0
	for _, d := range documents {
		text, err := os.ReadFile(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			n++
			target := d
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(d), m[1])
			}
			linked, err := os.ReadFile(target)
			if err != nil {
				if info, serr := os.Stat(target); serr != nil || !info.IsDir() {
					t.Errorf("%s: %v", d, err)
				}
				continue
			}
			if m[2] != "" && !slices.Contains(anchors(string(linked)), m[2]) {
				t.Errorf("%s: no heading %s in %s", d, m[2], target)
			}
		}
	}
	if n < 20 {
		t.Errorf("%d links found: the pattern is broken", n)
	}
}

// anchors returns the anchors of the headings of a Markdown text.
func anchors(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			a := strings.ToLower(strings.TrimSpace(heading))
			a = regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(a, "")
			out = append(out, "#"+strings.ReplaceAll(a, " ", "-"))
		}
	}
	return out
}

func TestPicturesAreXML(t *testing.T) {
	pictures, err := filepath.Glob("*.svg")
	if err != nil || len(pictures) == 0 {
		t.Fatalf("%v, %v", pictures, err)
	}
	for _, p := range pictures {
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(f)
		for err == nil {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", p, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMetricsExist holds the names that alerts and documents use against those
// that the gateway has.
func TestMetricsExist(t *testing.T) {
	tel := telemetry.New(telemetry.Options{Out: io.Discard, StoreErrorKinds: []string{"timeout"}, FallbackOutcomes: []string{"settled"}, FetchOutcomes: []string{"fetched"}})
	defer func() {
		if err := tel.Close(); err != nil {
			t.Error(err)
		}
	}()
	// Series with labels of the configuration exist once there is one.
	tel.Configure(telemetry.Labels{
		Routes: []string{"weather"}, Sources: []string{"redis"}, Modes: []string{"deny"},
		Limits:    []telemetry.Limit{{Route: "weather", Plan: "free", Limit: "per-minute"}},
		Upstreams: []string{"weather"},
		Targets:   []telemetry.Target{{Upstream: "weather", Target: "127.0.0.1:9001"}},
	})
	tel.Issuers([]string{"https://login.example.com/"})
	w := httptest.NewRecorder()
	tel.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	exposed := w.Body.String()
	name := regexp.MustCompile(`\bgateway_[a-z_]+[a-z]\b`)
	for _, file := range []string{"deploy/prometheus/rules.yml", "docs/OPERATING.md", "docs/CONFIGURATION.md", "README.md"} {
		for _, m := range name.FindAllString(read(t, file), -1) {
			for _, part := range []string{"_bucket", "_count", "_sum"} { // of a histogram
				m = strings.TrimSuffix(m, part)
			}
			if silent[m] {
				continue
			}
			if !strings.Contains(exposed, "# TYPE "+m+" ") {
				t.Errorf("%s names %s, which is no metric", file, m)
			}
		}
	}
}

// silent are metrics that have no series before something happened: a request,
// a certificate, a configuration.
var silent = map[string]bool{
	"gateway_certificate_expiry_timestamp_seconds": true,
	"gateway_config_info":                          true,
	"gateway_forbidden_total":                      true,
	"gateway_requests_total":                       true,
	"gateway_upstream_requests_total":              true,
}

// rsaPublicKey stands for an issuer's key. Nobody has the private one.
const rsaPublicKey = `-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAhQrBSray8udLtC/b3Mge
xqFPNTiNWfVyYXuQkxVlXAH1zEqw5loRT4dw4AswIgLHUDFmuwPwHSOfXDBJX3au
o+8tA+9mvc5Sd8iPaJGvCCqbLeDt6GGjGDEE/BleHAgEHePdMvg4NNhW5QaQaceL
j23jqnoXcKkMZK1u87SYpjZCpKcYqAPJtVlp6PoR8Xe4aTN9Psz9Z6ZyyORTNfQT
569ib93U8ZNmByoeUKPbuKxAi7xgKndcGFd+Ipvw0rSEMRBTihBaErx8/9iwkbjj
FQEghGVR+G8bTU1q6reBdYsnwlUB0cBwvfYb/P43UclFcfM1t+d9zAf0Urn6JMB5
LwIDAQAB
-----END PUBLIC KEY-----
`

// TestRightsCoverTheScripts: the rule for a user of Redis allows what the scripts
// do. That it suffices is seen in test/, for what happens there.
func TestRightsCoverTheScripts(t *testing.T) {
	_, rule, _ := strings.Cut(read(t, "docs/OPERATING.md"), "ACL SETUSER gateway on ")
	rule, _, ok := strings.Cut(rule, "\n\n")
	if !ok {
		t.Fatal("docs/OPERATING.md shows no ACL SETUSER gateway")
	}
	allowed := strings.Fields(rule)
	files, err := filepath.Glob(filepath.Join(root, "gateway/ratelimit/redisstore/lua/*.lua"))
	if err != nil || len(files) == 0 {
		t.Fatalf("scripts: %v, %v", files, err)
	}
	command := regexp.MustCompile(`call\(["']([A-Za-z]+)["']`)
	seen := 0
	for _, name := range files {
		script, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range command.FindAllStringSubmatch(string(script), -1) {
			seen++
			if right := "+" + strings.ToLower(m[1]); !slices.Contains(allowed, right) {
				t.Errorf("%s calls %s; docs/OPERATING.md does not allow %s", filepath.Base(name), m[1], right)
			}
		}
	}
	if seen == 0 {
		t.Error("no command found in the scripts")
	}
}
