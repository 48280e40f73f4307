package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bouncer/gateway/config"
)

// A renewed certificate under the same name is another store connection.
func TestRenewedTLSFilesMakeAnotherStore(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.pem")
	write := func(content string) {
		if err := os.WriteFile(ca, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	with := func(file string) *config.Config {
		return &config.Config{Store: config.Store{Redis: &config.Redis{Address: "a:1", TLS: &config.TLS{CAFile: file}}}}
	}
	write("one")
	cfg := with(ca)
	sh := &shared{cfg: cfg.Store.Redis, tlsFiles: digest(cfg.Store.Redis.TLS)}
	if !sh.same(with(ca)) {
		t.Error("the same files are another store")
	}
	write("two")
	if sh.same(with(ca)) {
		t.Error("a renewed file is the same store")
	}
	if sh.same(with("elsewhere.pem")) {
		t.Error("another file is the same store")
	}
	if memory := (&shared{}); !memory.same(&config.Config{}) || memory.same(cfg) {
		t.Error("memory is told from Redis by nothing")
	}
}

// A password from a file is one password, whichever way Redis is reached.
func TestAPasswordFileMakesAClient(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"password":   "first\n",
		"plans.yaml": "anonymous_plan: a\nplans: {a: {limits: []}}\n",
		"one.yaml":   `store: {redis: {url: "redis://127.0.0.1:1/0", password_file: password}}`,
		"many.yaml":  `store: {redis: {urls: ["redis://127.0.0.1:1"], password_file: password}}`,
	} {
		if strings.HasPrefix(text, "store") {
			text += "\nlisten: {http: \"127.0.0.1:0\"}\nupstreams: {weather: {targets: [\"http://127.0.0.1:1\"]}}\n" +
				"routes: [{name: weather, path: /, upstream: weather, auth: none}]\n"
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, routes := range []string{"one.yaml", "many.yaml"} {
		cfg, report := config.Load(config.Options{Routes: filepath.Join(dir, routes), Plans: filepath.Join(dir, "plans.yaml")})
		if err := report.Err(); err != nil {
			t.Fatal(err)
		}
		client, err := redisClient(cfg.Store.Redis, nil)
		if err != nil {
			t.Errorf("%s: %v", routes, err)
			continue
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}
