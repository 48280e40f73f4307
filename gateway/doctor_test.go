package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// examine examines a configuration with one upstream at target; extra is more
// of its routes.yaml.
func examine(t *testing.T, target, extra string) []Finding {
	t.Helper()
	dir := t.TempDir()
	o := config.Options{Routes: filepath.Join(dir, "routes.yaml"), Plans: filepath.Join(dir, "plans.yaml")}
	routes := fmt.Sprintf(`
upstreams: {api: {targets: ["http://%s"]}}
routes: [{name: api, path: "/*", upstream: api, auth: none}]
%s`, target, extra)
	if !strings.Contains(extra, "listen:") {
		routes += "\nlisten: {http: \"127.0.0.1:0\"}"
	}
	for path, text := range map[string]string{o.Routes: routes, o.Plans: "anonymous_plan: all\nplans: {all: {limits: []}}"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, report := config.Load(o)
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	return Examine(t.Context(), cfg)
}

// What to do about the keys of an issuer goes by what is wrong, not by how they are
// looked for.
func TestDoctorSaysWhatToDoAboutTheKeysOfAnIssuer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer     http.HandlerFunc
		tls, gone  bool
		what, hint string
	}{
		"its certificate is not trusted": {answer: http.NotFound, tls: true, what: "certificate", hint: "tls.ca_file"},
		"nobody listens":                 {gone: true, what: "refused", hint: "can connect to it"},
		"no document":                    {answer: http.NotFound, what: "404", hint: "discovery document"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewUnstartedServer(c.answer)
			s.Config.ErrorLog = log.New(io.Discard, "", 0) // it is told of the bad handshake
			if c.tls {
				s.StartTLS()
			} else {
				s.Start()
			}
			defer s.Close()
			if c.gone {
				s.Close()
			}
			found := examine(t, listening(t), `auth: {jwt: [{issuer: "`+s.URL+`", algorithms: [RS256], audience: api}]}`)
			wantFinding(t, found, LevelFail, "issuer "+s.URL, c.what, c.hint)
		})
	}
}

// wantFinding fails unless one of the level contains all words.
func wantFinding(t *testing.T, found []Finding, level Level, words ...string) {
	t.Helper()
next:
	for _, f := range found {
		for _, w := range words {
			if f.Level != level || !strings.Contains(f.Part+": "+f.What+" "+f.Hint, w) {
				continue next
			}
		}
		return
	}
	t.Errorf("want %s with %q, got %+v", level, words, found)
}

func listening(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func TestTheDoctorFindsTheHealthyWell(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "yes")
	found := examine(t, listening(t), "store: {redis: {url: \""+redis.URL()+"\", timeout: 1s}}")
	for _, f := range found {
		if f.Level != LevelOK {
			t.Errorf("%+v", f)
		}
	}
	wantFinding(t, found, LevelOK, "store", "decides in")
	wantFinding(t, found, LevelOK, "store", "round trip")
	wantFinding(t, found, LevelOK, "upstream api", "takes a connection")
}

func TestTheDoctorComparesTheRoundTripWithTheTimeout(t *testing.T) {
	t.Parallel()
	for trip, want := range map[time.Duration][]string{
		40 * time.Millisecond: {"round trip 40ms", "a new connection takes 3", "raise the timeout to 160ms"},
		15 * time.Millisecond: {"round trip 15ms, over a quarter", "raise the timeout"},
	} {
		e := &examination{}
		e.server(redisstore.Facts{RoundTrip: trip}, &config.Redis{Timeout: 50 * time.Millisecond})
		wantFinding(t, e.found, LevelWarn, append([]string{"store"}, want...)...)
	}
}

func TestTheDoctorSaysWhatIsWrongWithRedis(t *testing.T) {
	t.Parallel()
	target := listening(t)
	t.Run("nobody there", func(t *testing.T) {
		found := examine(t, target, "store: {redis: {url: \"redis://127.0.0.1:1\"}}")
		wantFinding(t, found, LevelFail, "store", "refused", "see that Redis runs")
	})
	t.Run("it forgets", func(t *testing.T) {
		redis := redistest.Start(t, "--save", "", "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
		found := examine(t, target, "store: {redis: {url: \""+redis.URL()+"\", timeout: 1s}}")
		wantFinding(t, found, LevelWarn, "store", "no persistence")
		wantFinding(t, found, LevelWarn, "store", "allkeys-lru", "noeviction")
	})
	t.Run("it is as the manual says", func(t *testing.T) {
		redis := redistest.Start(t, "--maxmemory", "64mb", "--maxmemory-policy", "noeviction")
		found := examine(t, target, "store: {redis: {url: \""+redis.URL()+"\", timeout: 1s}}")
		wantFinding(t, found, LevelOK, "store", "noeviction")
	})
	t.Run("it is nearly full", func(t *testing.T) {
		e := &examination{}
		e.server(redisstore.Facts{Told: true, Eviction: "noeviction", UsedMemory: 90 << 20, MaxMemory: 100 << 20}, &config.Redis{Timeout: time.Second})
		wantFinding(t, e.found, LevelWarn, "store", "90.0 MiB of maxmemory 100.0 MiB", "more memory")
	})
	t.Run("slots of a cluster have no node", func(t *testing.T) {
		c := redistest.StartCluster(t, 2)
		for _, node := range c.Nodes {
			if err := node.Client(t).ClusterDelSlotsRange(t.Context(), 0, 99).Err(); err != nil {
				t.Fatal(err)
			}
		}
		found := examine(t, target, "store: {redis: {urls: [\"redis://"+c.Addrs()[0]+"\"], timeout: 1s}}")
		wantFinding(t, found, LevelFail, "store", "100 of its 16384 slots", "--cluster check")
	})
	t.Run("it is a replica", func(t *testing.T) {
		redis := redistest.Start(t, "--replicaof", "127.0.0.1 1")
		found := examine(t, target, "store: {redis: {url: \""+redis.URL()+"\", timeout: 1s}}")
		wantFinding(t, found, LevelFail, "store", "readonly", "name the primary")
		wantFinding(t, found, LevelFail, "store", "is a replica")
	})
	t.Run("it wants a password", func(t *testing.T) {
		redis := redistest.Start(t, "--requirepass", "secret-of-redis")
		url := "redis://127.0.0.1:" + fmt.Sprint(redis.Port())
		found := examine(t, target, "store: {redis: {url: \""+url+"\", password: wrong-secret, timeout: 1s}}")
		wantFinding(t, found, LevelFail, "store", "auth")
		for _, f := range found {
			if strings.Contains(f.What+f.Hint, "secret") {
				t.Errorf("a secret is shown: %+v", f)
			}
		}
	})
	t.Run("keys that it may lose", func(t *testing.T) {
		with := &config.Config{Auth: config.Auth{APIKeys: &config.APIKeys{RedisHash: "portal"}}}
		risky := redisstore.Facts{Told: true, MaxMemory: 1 << 20, Eviction: "allkeys-lru"}
		e := &examination{}
		e.keysAtRisk(risky, with)
		wantFinding(t, e.found, LevelWarn, "keys in redis", "allkeys-lru may evict the hash")
		wantFinding(t, e.found, LevelWarn, "keys in redis", "no persistence", "are gone")
		e = &examination{}
		e.keysAtRisk(risky, &config.Config{})
		e.keysAtRisk(redisstore.Facts{Told: true, MaxMemory: 1 << 20, Eviction: "volatile-lru", AppendOnly: true}, with)
		e.keysAtRisk(redisstore.Facts{}, with)
		if len(e.found) != 0 {
			t.Errorf("%+v", e.found)
		}
		redis := redistest.Start(t, "--save", "")
		found := examine(t, target, "store: {redis: {url: \""+redis.URL()+"\", timeout: 1s}}\nauth: {api_keys: {redis: {hash: portal}}}")
		wantFinding(t, found, LevelWarn, "keys in redis", "no persistence", "are gone")
	})
	t.Run("keys that cannot be looked up", func(t *testing.T) {
		redis := redistest.Start(t)
		keys := func() []Finding {
			return examine(t, target, "store: {redis: {url: \""+redis.URL()+"\", timeout: 1s}}\nauth: {api_keys: {redis: {hash: portal}}}")
		}
		found := keys()
		wantFinding(t, found, LevelOK, "keys in redis", "rl:v1:{keys}:portal")
		for _, f := range found {
			if f.Part == "keys" {
				t.Errorf("there is no key file: %+v", f)
			}
		}
		if err := redis.Client(t).Set(t.Context(), "rl:v1:{keys}:portal", "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		wantFinding(t, keys(), LevelFail, "keys in redis", "WRONGTYPE", "another kind of value")
		if err := redis.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "-hget").Err(); err != nil {
			t.Fatal(err)
		}
		wantFinding(t, keys(), LevelFail, "keys in redis", "NOPERM", "HGET")
	})
	t.Run("none", func(t *testing.T) {
		wantFinding(t, examine(t, target, ""), LevelWarn, "store", "memory of each instance")
	})
}

func TestTheDoctorSaysWhatIsWrongWithAnUpstream(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	wantFinding(t, examine(t, address, ""), LevelFail, "upstream api", address, "nobody listens")
}

// What is wrong with TLS is not that nobody runs there.
func TestTheDoctorSaysWhatIsWrongWithTLS(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wants tls.ClientAuthType
		trust bool
		more  string
		level Level
		says  []string
	}{
		"well":         {trust: true, level: LevelOK, says: []string{"takes a connection"}},
		"not trusted":  {level: LevelFail, says: []string{"ca_file"}},
		"other name":   {trust: true, more: ", server_name: other.example", level: LevelFail, says: []string{"server_name"}},
		"asks for one": {trust: true, wants: tls.RequestClientCert, level: LevelOK, says: []string{"takes a connection"}},
		"wants one":    {trust: true, wants: tls.RequireAnyClientCert, level: LevelFail, says: []string{"certificate required", "cert_file and key_file"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewUnstartedServer(http.NotFoundHandler())
			s.TLS = &tls.Config{ClientAuth: test.wants}
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			s.StartTLS()
			t.Cleanup(s.Close)
			ca := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
				t.Fatal(err)
			}
			section := ""
			if test.trust {
				section = ", tls: {ca_file: " + ca + test.more + "}"
			}
			found := examine(t, `127.0.0.1:1"]}, tls: {targets: ["`+s.URL+`"]`+section+`}, last: {targets: ["http://127.0.0.1:1`, "")
			wantFinding(t, found, test.level, append([]string{"upstream tls"}, test.says...)...)
		})
	}
}

// It asks what the gateway asks.
func TestTheDoctorMakesTheHealthCheck(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/well" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(s.Close)
	address := strings.TrimPrefix(s.URL, "http://")
	wantFinding(t, examine(t, address+`"], health: {path: /well}}, other: {targets: ["http://`+address, ""), LevelOK, "upstream api", "takes a connection", "and is well (/well)")
	wantFinding(t, examine(t, address+`"], health: {path: /sick}}, other: {targets: ["http://`+address, ""), LevelFail, "upstream api", address, "GET /sick was answered with 418")
}

func TestTheDoctorReadsTheCertificate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		days  int
		level Level
		word  string
	}{{-1, LevelFail, "expired on"}, {3, LevelWarn, "expires on"}, {90, LevelOK, "is valid until"}} {
		dir := t.TempDir()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(1), DNSNames: []string{"api.example.test"},
			NotBefore: time.Now().AddDate(0, 0, -10), NotAfter: time.Now().AddDate(0, 0, tt.days),
		}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
			if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		found := examine(t, listening(t), fmt.Sprintf("listen: {https: {address: \"127.0.0.1:0\", cert_file: %s/cert.pem, key_file: %s/key.pem}}", dir, dir))
		wantFinding(t, found, tt.level, "certificate", "api.example.test", tt.word)
	}
}

// What is no authority, and what is kept and of no use, are told apart from what is not
// there yet.
func TestTheDoctorLooksAtAnAuthority(t *testing.T) {
	page := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>It works!</html>") }))
	defer page.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: page.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "spoilt.example.com"), []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	found := examine(t, listening(t), fmt.Sprintf(
		`listen: {https: {address: "127.0.0.1:0", acme: {domains: [spoilt.example.com, none.example.com], cache_dir: %q, directory_url: %q, ca_file: %q, accept_terms: true}}}`,
		dir, page.URL, ca))
	wantFinding(t, found, LevelFail, "certificate authority", "answers, but not with the directory of an authority", "whole address of the authority's directory")
	wantFinding(t, found, LevelWarn, "certificate", "the one for spoilt.example.com", "cannot be used")
	wantFinding(t, found, LevelWarn, "certificate", "there is none for none.example.com")
}

func TestVersionsAreCompared(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"6.2.0": true, "6.0.16": false, "7.0.15": true, "5.9": false, "10.1": true, "": false, "x.y": false} {
		if got := atLeast(version, 6, 2); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}
