package gateway

import (
	"os"
	"path/filepath"
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
