package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Certificates that are got by themselves: what is left out, and what is printed.
func TestACME(t *testing.T) {
	dir := smallDir(t, map[string]string{"routes.yaml": `
listen: {https: {address: ":8443", acme: {domains: [API.example.com, www.example.com], cache_dir: certs, accept_terms: yes}}}
upstreams:
  api: {targets: [http://127.0.0.1:9001]}
routes:
  - {name: open, path: /open, upstream: api, auth: none, cost: 0}
`})
	c, report := load(dir, nil)
	if c == nil {
		t.Fatal(text(report, dir))
	}
	want := &HTTPS{Address: ":8443", ACME: &ACME{
		Domains: []string{"api.example.com", "www.example.com"}, CacheDir: dir + "/certs",
		DirectoryURL: "https://acme-v02.api.letsencrypt.org/directory", AcceptTerms: true,
	}}
	if d := cmp.Diff(want, c.Listen.HTTPS); d != "" {
		t.Error(d)
	}
	again := t.TempDir()
	printed := parts(t, c)
	write(t, again, map[string]string{"routes.yaml": printed[0], "plans.yaml": printed[1]})
	c2, report := load(again, nil)
	if c2 == nil {
		t.Fatalf("%s\n%s", text(report, again), printed[0])
	}
	if d := cmp.Diff(c.Listen, c2.Listen); d != "" {
		t.Errorf("changed by printing: %s", d)
	}
	if got := NeedsRestart(c, c2); got != nil {
		t.Errorf("a restart for %q", got)
	}
}
