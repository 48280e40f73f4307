package config

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // as the program has it

	"github.com/google/go-cmp/cmp"

	"bouncer/gateway/rewrite"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// pemFiles are key files of every kind, made once: no private key is kept in
// the repository, not even one for tests.
var pemFiles = sync.OnceValue(func() map[string][]byte {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	files := map[string][]byte{}
	public := func(name string, key any) {
		der, err := x509.MarshalPKIXPublicKey(key)
		must(err)
		files[name] = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	}
	strong, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	must(err)
	public("rsa.pem", &strong.PublicKey)
	public("rsa1024.pem", &weak.PublicKey)
	files["rsa-pkcs1.pem"] = pem.EncodeToMemory(&pem.Block{
		Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&strong.PublicKey),
	})
	for name, curve := range map[string]elliptic.Curve{"ec.pem": elliptic.P256(), "ec384.pem": elliptic.P384()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		must(err)
		public(name, &key.PublicKey)
	}
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	public("ed25519.pem", ed)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &strong.PublicKey, crypto.Signer(strong))
	must(err)
	files["cert.pem"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	der, err = x509.MarshalPKCS8PrivateKey(strong)
	must(err)
	files["key.pem"] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	der, err = x509.MarshalPKCS8PrivateKey(weak)
	must(err)
	files["other-key.pem"] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return files
})

// write puts files into dir.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// goodDir returns a directory with the files of testdata/good and PEM files.
func goodDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := os.ReadDir("testdata/good")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for name, data := range pemFiles() {
		files[name] = string(data)
	}
	for _, e := range entries {
		data, err := os.ReadFile("testdata/good/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
	}
	write(t, dir, files)
	return dir
}

// env answers for the environment from a map.
func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// load loads routes.yaml and plans.yaml of dir.
func load(dir string, vars map[string]string) (*Config, *Report) {
	return Load(Options{
		Routes: filepath.Join(dir, "routes.yaml"), Plans: filepath.Join(dir, "plans.yaml"), LookupEnv: env(vars),
	})
}

// text writes the problems of a report a line each, without the directory.
func text(r *Report, dir string) string {
	var b strings.Builder
	for _, p := range r.Problems {
		b.WriteString(strings.ReplaceAll(p.String(), dir+string(filepath.Separator), "") + "\n")
	}
	return b.String()
}

func TestGoodFilesLoad(t *testing.T) {
	dir := goodDir(t)
	c, report := load(dir, map[string]string{"IPV6_PREFIX": "60"})
	if c == nil || len(report.Problems) > 0 {
		t.Fatalf("problems:\n%s", text(report, dir))
	}
	if got := c.Summary(); got != "4 plans, 8 routes, 13 limits" {
		t.Error(got)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	equal := func(what string, got, want any) {
		t.Helper()
		if d := cmp.Diff(want, got, withoutPlaces...); d != "" {
			t.Errorf("%s: want -, got +:\n%s", what, d)
		}
	}
	equal("listen", c.Listen, Listen{
		HTTP: ":8080", Admin: "127.0.0.1:9090",
		HTTPS:               &HTTPS{Address: ":8443", CertFile: in("cert.pem"), KeyFile: in("key.pem")},
		MaxConnectionsPerIP: 200,
	})
	if len(c.Admin.ClientCAs) != 1 || c.Admin.ClientCAs[0].Subject.CommonName != "localhost" {
		t.Errorf("admin: %d authorities", len(c.Admin.ClientCAs))
	}
	c.Admin.ClientCAs = nil
	equal("admin", c.Admin, Admin{
		Token: Secret("correct horse"), TokenFile: in("admin-token"), ClientCAFile: in("cert.pem"), CertFile: in("cert.pem"), KeyFile: in("key.pem"),
	})
	equal("times", []time.Duration{c.ShutdownTimeout, c.DrainDelay}, []time.Duration{30 * time.Second, 90 * time.Second})
	equal("client_ip", c.ClientIP, ClientIP{
		TrustedProxies: []netip.Prefix{
			netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("2001:db8::/32"),
		},
		TrustUnix: true, Header: "X-Forwarded-For", IPv6Prefix: 60,
	})
	// The password file beats the URL; one newline was cut, nothing expanded.
	equal("store", c.Store, Store{MemoryMaxKeys: 500_000, Redis: &Redis{
		Network: "tcp", Address: "redis.example.com:6379", DB: 2, Username: "gateway",
		Password: Secret("pa$s ${wo}rd"), PasswordFile: in("redis-password"),
		TLS: &TLS{CAFile: in("cert.pem"), ServerName: "redis.internal"}, Timeout: 50 * time.Millisecond, KeyPrefix: "rl",
	}})
	if len(c.Auth.JWT) != 6 || len(c.Auth.JWT[0].PublicKeys) != 2 || len(c.Auth.JWT[2].PublicKeys) != 2 {
		t.Fatalf("issuers %+v", c.Auth.JWT)
	}
	equal("secrets", c.Auth.JWT[1].Secrets, []Secret{
		Secret("0123456789abcdef0123456789abcdef"), Secret("fedcba9876543210fedcba9876543210"),
	})
	if set := c.Auth.JWT[3].KeySet; set == nil || len(set.Find("2077-01")) != 1 {
		t.Errorf("the set of a file: %+v", set)
	}
	equal("keys by URL", c.Auth.JWT[4].Provider, &Provider{
		Address: Secret("https://gateway:sesame-in-a-url@customers.example.com/keys.json?tenant=sesame-in-a-query"),
		URL:     "https://********@customers.example.com/keys.json?********", Refresh: 5 * time.Minute, MaxStale: 6 * time.Hour,
		TLS: &TLS{CAFile: in("cert.pem"), ServerName: "keys.internal"},
	})
	equal("keys by discovery", c.Auth.JWT[5].Provider, &Provider{Refresh: 10 * time.Minute, MaxStale: day})
	equal("audience", c.Auth.JWT[1].Audience, []string{"weather-api"})
	equal("claims", c.Auth.JWT[0].Claims, Claims{User: "sub", Tenant: "org", Plan: "plan", Scopes: "scp"})
	equal("default claims", c.Auth.JWT[1].Claims, Claims{User: "sub", Scopes: "scope"})
	equal("failure_limit", c.Auth.FailureLimit, &Rate{60, time.Minute})
	keys := c.Auth.APIKeys
	equal("api_keys", []string{keys.File, keys.Header}, []string{in("keys.yaml"), "X-Api-Key"})
	equal("key", keys.Keys[0], Key{
		ID: "k-7f3a", SHA256: sha256Of("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
		User: "priya123", Tenant: "acme", Plan: "free", Expires: time.Date(2077, 7, 1, 0, 0, 0, 0, time.UTC),
	})
	equal("digits", keys.Keys[1], Key{ID: "42", SHA256: sha256Of(strings.Repeat("1234567890", 6) + "1234")})
	equal("limits", c.Limits[3], &Limit{
		Name: "account", Per: []Dimension{{Kind: PerHeader, Header: "X-Account-Id"}, {Kind: PerRoute}},
		Algorithm: "fixed_window", Rate: Rate{90, 30 * day}, Lease: &Lease{TTL: time.Second},
	})
	equal("a log", c.Limits[1], &Limit{
		Name: "login-try", Per: []Dimension{{Kind: PerIP}},
		Algorithm: SlidingWindowLog, Rate: Rate{5, 15 * time.Minute}, CountRejected: true,
	})
	equal("a queue", c.Limits[4], &Limit{
		Name: "geo", Per: []Dimension{{Kind: PerGlobal}},
		Algorithm: LeakyBucket, Rate: Rate{50, time.Second}, Queue: 100, MaxDelay: 2 * time.Second,
	})
	equal("a queue of none", c.Limits[5], &Limit{
		Name: "one-by-one", Per: []Dimension{{Kind: PerUser}, {Kind: PerRoute}},
		Algorithm: LeakyBucket, Rate: Rate{2, time.Second}, Candidate: &Candidate{Quota: 4},
	})
	equal("usage_path", c.UsagePath, "/usage")
	equal("a default burst", c.Limits[2].Burst, int64(50))
	equal("local_cap", c.Limits[2].LocalCap, &Rate{10, time.Second})
	if len(c.Edge) != 1 || c.Edge[0] != c.Limits[0] {
		t.Errorf("edge %v", c.Edge)
	}
	equal("upstream", c.Upstreams[0], &Upstream{
		Name: "weather", Balance: "round_robin",
		Targets: []Target{
			{&url.URL{Scheme: "http", Host: "127.0.0.1:9001"}, 1},
			{&url.URL{Scheme: "https", Host: "weather.example.com", Path: "/base"}, 3},
		},
		ConnectTimeout: time.Second, ResponseHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second,
		SlowStart: 10 * time.Second,
	})
	equal("a bounded upstream", c.Upstreams[1], &Upstream{
		Name: "other", Balance: "hash", HashBy: &Dimension{Kind: PerHeader, Header: "X-Session"}, Targets: []Target{{&url.URL{Scheme: "http", Host: "[::1]:9003"}, 1}},
		ConnectTimeout: time.Second, ResponseHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second,
		MaxInFlight: 500, Circuit: &Circuit{Errors: 40, Window: 20 * time.Second, Open: 2 * time.Second},
		Retries: &Retries{Attempts: 3, Budget: 20}, SlowStart: 30 * time.Second,
		Health: &Health{Path: "/healthz?full=1", Interval: 5 * time.Second, Timeout: 2 * time.Second, Healthy: 1, Unhealthy: 4},
	})
	equal("targets of all kinds", c.Upstreams[2].Targets, []Target{
		{&url.URL{Scheme: "h2c", Host: "127.0.0.1:50051", Path: "/base"}, 1}, {&url.URL{Scheme: "unix", Path: "/run/api.sock"}, 1},
		{&url.URL{Scheme: "https", Host: "127.0.0.1:50052"}, 1},
	})
	equal("tls", c.Upstreams[2].TLS, &TLS{CAFile: in("cert.pem"), CertFile: in("cert.pem"), KeyFile: in("key.pem"), ServerName: "grpc.internal"})
	equal("route", c.Routes[1], &Route{
		Name: "place", Host: "api.example.com", Path: "/api/places/{id:[0-9]+}/{name}", Upstream: "other",
		Auth: AuthOptional, Cost: 1, Limits: []*Limit{c.Limits[5]}, OnStoreFailure: FailLocalCap, MaxBody: AnySize,
	})
	equal("what a route changes", c.Routes[5], &Route{
		Name: "shop", Path: "/shop/*", Upstream: "weather", Auth: AuthNone, OnStoreFailure: FailLocalCap, StripPrefix: "/shop",
		RequestHeaders: &rewrite.Changes{
			Set:    []rewrite.Field{{Name: "Host", Value: "{host}"}, {Name: "X-Caller", Value: "{user} of {tenant}"}},
			Add:    []rewrite.Field{{Name: "X-List", Value: "a"}, {Name: "X-List", Value: "b"}, {Name: "X-One", Value: "c"}},
			Remove: []string{"Cookie"},
		},
		ResponseHeaders: &rewrite.Changes{Set: []rewrite.Field{{Name: "X-Frame-Options", Value: "DENY"}}, Remove: []string{"Server"}},
		CORS: &CORS{
			Origins: []string{"https://app.example.com", "https://*.example.org:8443"}, Methods: []string{"GET", "PUT"},
			Headers: []string{"Content-Type"}, Expose: []string{"ETag"}, Credentials: true, MaxAge: 10 * time.Minute,
		},
		MaxBody: 10 << 20, Timeout: 5 * time.Second,
		WebSocket: &WebSocket{MaxConnections: 5, Idle: 5 * time.Minute, Lifetime: day},
	})
	equal("headers", c.Routes[6].Headers, []rewrite.Field{{Name: "Accept-Version", Value: "2"}, {Name: "X-Beta", Value: "yes"}})
	equal("another path", c.Routes[7], &Route{
		Name: "old", Path: "/old/*", Upstream: "weather", Auth: AuthNone, OnStoreFailure: FailLocalCap,
		Rewrite: &Rewrite{Match: "/old/([0-9]+)/(.*)", Replace: "/new/$2/$1"},
	})
	equal("what a route wants of callers", c.Routes[2].Access, Access{
		Scopes: []string{"weather.export", "urn:x:all"}, Plans: []string{"free", "pro"},
		Claims: []ClaimRule{
			{"realm.role", []ClaimValue{{"admin"}, {"owner"}}}, {"email_verified", []ClaimValue{{true}}},
			{"tier", []ClaimValue{{int64(3)}}}, {"code", []ClaimValue{{"3"}}},
		},
		AllowIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")},
		DenyIPs:  []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")},
	})
	equal("route with limits", c.Routes[2].Limits, []*Limit{c.Limits[2], c.Limits[3], c.Limits[4]})
	equal("plan", c.Plans[1], &Plan{Name: "pro", LocalCap: &Rate{50, time.Second}, Limits: []*Limit{{
		Name: "per-minute", Per: []Dimension{{Kind: PerTenant}, {Kind: PerRoute}},
		Algorithm: SlidingWindowCounter, Rate: Rate{6000, time.Minute},
	}, {
		Name: "per-week", Per: []Dimension{{Kind: PerUser}}, Algorithm: FixedWindow, Rate: Rate{40_000, 7 * day}, Shadow: true,
		Calendar: &Calendar{Unit: "week", Location: time.UTC, WeekStart: time.Sunday},
	}, {
		Name: "at-once", Per: []Dimension{{Kind: PerUser}}, Algorithm: TokenBucket, Rate: Rate{100, time.Second}, Burst: 100,
		Candidate: &Candidate{Quota: 200, Burst: 200},
	}}})
	if k := c.Plans[0].Limits[1].Calendar; k == nil || k.Unit != "day" || k.Location.String() != "Asia/Kolkata" || k.WeekStart != time.Monday {
		t.Errorf("calendar %+v", k)
	}
	equal("default per", c.Plans[0].Limits[0].Per, []Dimension{{Kind: PerUser}})
	equal("plans", []string{c.DefaultPlan, c.AnonymousPlan}, []string{"free", "anonymous"})
	equal("overrides", c.Overrides, []Override{{User: "priya123", Plan: "pro"}, {Key: "k-7f3a", Plan: "pro"}})
	if p := c.Routes[0].Pos; p.Line == 0 || p.Column == 0 || p.File != in("routes.yaml") {
		t.Errorf("route at %v", p)
	}

	// Whatever was read is named, for the watcher.
	var files []string
	for _, f := range c.Files {
		name, err := filepath.Rel(dir, f.Path)
		if err != nil || f.SHA256 == [32]byte{} {
			t.Errorf("file %v, %v", f, err)
		}
		files = append(files, name)
	}
	slices.Sort(files)
	equal("files", files, []string{
		"admin-token", "cert.pem", "ec.pem", "ed25519.pem", "jwks.json", "key.pem", "keys.yaml", "otel-headers", "plans.yaml", "redis-password",
		"routes.yaml", "rsa.pem", "secret", "secret-old",
	})
}

// cmpopts compares values, not their places in the files.
var withoutPlaces = []cmp.Option{
	cmpopts.IgnoreTypes(Pos{}),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b *time.Location) bool { return a.String() == b.String() }),
}

// sha256Of reads a digest.
func sha256Of(s string) (sum [32]byte) {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	copy(sum[:], b)
	return sum
}

// An empty url, as a variable that is not set leaves it, means no Redis.
func TestEmptyRedisURL(t *testing.T) {
	routes := smallRoutes + "store: {redis: {url: \"${REDIS_URL:-}\", timeout: 20ms}}\n"
	dir := smallDir(t, map[string]string{"routes.yaml": routes})
	for url, want := range map[string]string{"": "", "redis://h": "h:6379"} {
		c, report := load(dir, map[string]string{"REDIS_URL": url})
		if len(report.Problems) > 0 {
			t.Fatal(text(report, dir))
		}
		got := ""
		if c.Store.Redis != nil {
			got = c.Store.Redis.Address
		}
		if got != want {
			t.Errorf("REDIS_URL=%s: got %q, want %q", url, got, want)
		}
	}
}

// Password and user name beside the URL beat it, and are taken as they are.
func TestRedisCredentials(t *testing.T) {
	for _, password := range []string{"p@ss", "a:b", "a/b", "a#b", "a+b=", "100%", "a%40b", "pa$$word", "q!#@/er", "p\u00e4ss"} {
		routes := smallRoutes + "store: {redis: {url: redis://u:x@h, username: \"r:w\", password: '" + password + "'}}\n"
		dir := smallDir(t, map[string]string{"routes.yaml": routes})
		c, report := load(dir, nil)
		if c == nil {
			t.Fatal(text(report, dir))
		}
		if r := c.Store.Redis; string(r.Password) != password || r.Username != "r:w" {
			t.Errorf("got %q and %q, want %q", r.Username, string(r.Password), password)
		}
	}
}

// Where a cluster is entered, in file order. The entries share credentials,
// those beside urls beat them, and what is printed is read again.
func TestRedisCluster(t *testing.T) {
	for _, c := range []struct{ fields, addresses, user, password, printed string }{
		{"urls: [redis://a]", "a:6379", "", "", "urls: ['redis://a:6379']"},
		{"urls: [redis://b:7001/0, 'redis://u:p@a:7000/', 'redis://[::1]:7002']", "b:7001 a:7000 [::1]:7002", "u", "p",
			"urls: ['redis://b:7001', 'redis://a:7000', 'redis://[::1]:7002']"},
		{"urls: [rediss://u:p@a, rediss://u:p@b], username: w, password: q", "a:6379 b:6379", "w", "q",
			"urls: ['rediss://a:6379', 'rediss://b:6379']"},
	} {
		dir := smallDir(t, map[string]string{"routes.yaml": smallRoutes + "store: {redis: {" + c.fields + "}}\n"})
		cfg, report := load(dir, nil)
		if len(report.Problems) > 0 {
			t.Fatal(text(report, dir))
		}
		r := cfg.Store.Redis
		if got := strings.Join(r.Addresses, " "); got != c.addresses || r.Address != "" || r.Network != "tcp" ||
			r.Username != c.user || string(r.Password) != c.password || (r.TLS != nil) != strings.Contains(c.fields, "rediss") {
			t.Errorf("%s: got %+v (password %q)", c.fields, r, string(r.Password))
		}
		routes := parts(t, cfg)[0]
		if !strings.Contains(routes, c.printed) {
			t.Errorf("%s is not printed:\n%s", c.printed, routes)
		}
		write(t, dir, map[string]string{"routes.yaml": routes})
		again, report := load(dir, nil)
		if again == nil {
			t.Fatal(text(report, dir))
		}
		if got := Describe(cfg, again); c.password == "" && got != nil {
			t.Errorf("%s: changed by printing: %q", c.fields, got)
		}
	}
}

// Who names the master, in file order, each with their own credentials. What is
// printed is read again, and shows no password.
func TestRedisSentinel(t *testing.T) {
	for _, c := range []struct {
		fields string
		want   Redis
	}{
		{"sentinel: {master: mymaster, addresses: [a, 'b:26380', '[::1]']}", Redis{
			Sentinel: &Sentinel{Master: "mymaster", Addresses: []string{"a:26379", "b:26380", "[::1]:26379"}},
		}},
		{"sentinel: {master: m, addresses: [a], username: w, password: 'q: #'}, username: u, password: '{p}', tls: {}, timeout: 70ms, key_prefix: k", Redis{
			Sentinel: &Sentinel{Master: "m", Addresses: []string{"a:26379"}, Username: "w", Password: Secret("q: #")},
			Username: "u", Password: Secret("{p}"), TLS: &TLS{}, Timeout: 70 * time.Millisecond, KeyPrefix: "k",
		}},
	} {
		dir := smallDir(t, map[string]string{"routes.yaml": smallRoutes + "store: {redis: {" + c.fields + "}}\n"})
		cfg, report := load(dir, nil)
		if len(report.Problems) > 0 {
			t.Fatal(text(report, dir))
		}
		c.want.Network = "tcp"
		c.want.Timeout = max(c.want.Timeout, 50*time.Millisecond)
		if c.want.KeyPrefix == "" {
			c.want.KeyPrefix = "rl"
		}
		if d := cmp.Diff(&c.want, cfg.Store.Redis); d != "" {
			t.Errorf("%s: %s", c.fields, d)
		}
		routes := parts(t, cfg)[0]
		if strings.Contains(routes, "q: #") || strings.Contains(routes, "{p}") {
			t.Errorf("%s: a password is printed:\n%s", c.fields, routes)
		}
		write(t, dir, map[string]string{"routes.yaml": routes})
		again, report := load(dir, nil)
		if again == nil {
			t.Fatal(text(report, dir))
		}
		got := Describe(cfg, again)
		if c.want.Password != nil {
			// It is masked, so it is another one now.
			if len(got) != 2 || got[0] != "store.redis: the password changed" || got[1] != "store.redis.sentinel: the password changed" {
				t.Errorf("%s: changed by printing: %q", c.fields, got)
			}
		} else if got != nil {
			t.Errorf("%s: changed by printing: %q", c.fields, got)
		}
	}
}

// What a candidate leaves out is as in the limit; a burst that follows the
// number follows the candidate's.
func TestCandidate(t *testing.T) {
	for fields, want := range map[string]Candidate{
		"algorithm: token_bucket, limit: 100/minute, candidate: {limit: 200/minute}":                        {200, 200},
		"algorithm: token_bucket, limit: 100/minute, burst: 20, candidate: {limit: 200/60s}":                {200, 20},
		"algorithm: token_bucket, limit: 100/minute, burst: 20, candidate: {burst: 40}":                     {100, 40},
		"algorithm: token_bucket, limit: 100/minute, burst: 20, candidate: {limit: 0/minute, burst: 40}":    {0, 40},
		"algorithm: token_bucket, limit: 100/minute, candidate: {limit: 0/minute}":                          {0, 1},
		"algorithm: fixed_window, anchor: calendar, limit: 100/month, candidate: {limit: 200/month}":        {200, 0},
		"algorithm: sliding_window_log, limit: 100/month, candidate: {limit: 200/30d}, count_rejected: yes": {200, 0},
		"algorithm: leaky_bucket, limit: 100/second, queue: 10, mode: shadow, candidate: {limit: 9/second}": {9, 0},
	} {
		c, got := problems(t, map[string]string{"plans.yaml": "default_plan: a\nplans: {a: {limits: [{name: a, " + fields + "}]}}\n"})
		if c == nil || got != "" {
			t.Errorf("%s: %s", fields, got)
		} else if got := c.Plans[0].Limits[0].Candidate; got == nil || *got != want {
			t.Errorf("%s: got %+v, want %+v", fields, got, want)
		}
	}
}

// Relative paths are relative to the file that names them, and problems show
// them as the user can open them.
func TestRelativePaths(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"conf/routes.yaml":    smallRoutes + "auth: {api_keys: {file: secrets/keys.yaml}}\n",
		"conf/plans.yaml":     smallPlans,
		"conf/secrets/k.yaml": "",
	})
	t.Chdir(dir)
	_, report := Load(Options{Routes: "conf/routes.yaml", Plans: "conf/plans.yaml"})
	want := "conf/routes.yaml:6:25: auth.api_keys.file: read conf/secrets/keys.yaml: no such file; " +
		"make one with: gateway keys new -file conf/secrets/keys.yaml -user … -plan …\n"
	if got := text(report, "-"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !slices.ContainsFunc(report.Files, func(f File) bool { return f.Path == absolute("conf/secrets/keys.yaml") }) {
		t.Errorf("tried %v", report.Files)
	}
}

// One failed load names every file, so that mending any of them is noticed.
func TestFilesOfAFailedLoad(t *testing.T) {
	dir := smallDir(t, map[string]string{
		"routes.yaml": smallRoutes + "auth: {api_keys: {file: keys.yaml}}\nadmin: {token_file: token}\n",
		"plans.yaml":  "plans: [",
		"keys.yaml":   "keys: []\n",
	})
	_, report := load(dir, nil)
	if len(report.Errors()) != 2 || len(report.Files) != 4 {
		t.Errorf("%v\n%v", report.Problems, report.Files)
	}
}

// A host is kept as requests bring it: an IPv6 address in brackets.
func TestRouteHosts(t *testing.T) {
	for in, want := range map[string]string{
		"API.example.com": "api.example.com", "api.example.com.": "api.example.com", "api.example.com.:8080": "api.example.com",
		"xn--bcher-kva.example": "xn--bcher-kva.example", "127.0.0.1:80": "127.0.0.1", "localhost": "localhost",
		"::1": "[::1]", "[::1]": "[::1]", "[::1]:8080": "[::1]", "[2001:DB8:0:0::1]": "[2001:db8::1]", "0:0:0:0:0:0:0:1": "[::1]",
	} {
		routes := strings.Replace(smallRoutes, "name: open", `name: open, host: "`+in+`"`, 1)
		c, got := problems(t, map[string]string{"routes.yaml": routes})
		if c == nil || got != "" || c.Routes[0].Host != want {
			t.Errorf("%s: got %+v, %s, want %s", in, c, got, want)
		}
	}
}

// Routes of one shape are told apart by their methods, and by the regexps of
// their parameters, whatever the parameters are called.
func TestRoutesOfOneShape(t *testing.T) {
	routes := smallRoutes + `  - {name: a, path: "/a/{id}", upstream: api, auth: none, cost: 0, methods: [GET]}
  - {name: b, path: "/a/{name}", upstream: api, auth: none, cost: 0, methods: [PUT]}
  - {name: c, path: "/b/{id:[0-9]+}", upstream: api, auth: none, cost: 0}
  - {name: d, path: "/b/{id:[a-z]+}", upstream: api, auth: none, cost: 0}
  - {name: e, path: "/b/{name}", upstream: api, auth: none, cost: 0}
`
	if c, got := problems(t, map[string]string{"routes.yaml": routes}); c == nil || got != "" {
		t.Errorf("refused or warned of: %s", got)
	}
}

// On a socket nothing is warned of where an address is told or none is counted.
func TestAShortTimeoutForARedisElsewhereIsWarnedOf(t *testing.T) {
	for store, want := range map[string]int{
		`{redis: {url: "redis://10.0.0.3:6379", timeout: 4ms}}`:                                             1,
		`{redis: {url: "redis://cache.example.com", timeout: 1ms}}`:                                         1,
		`{redis: {urls: ["redis://127.0.0.1:6379", "redis://10.0.0.3:6379"], timeout: 2ms}}`:                1,
		`{redis: {sentinel: {master: m, addresses: ["10.0.0.3:26379"]}, timeout: 2ms}}`:                     1,
		`{redis: {url: "redis://10.0.0.3:6379", timeout: 5ms}}`:                                             0,
		`{redis: {url: "redis://10.0.0.3:6379"}}`:                                                           0,
		`{redis: {url: "redis://127.0.0.1:6379", timeout: 1ms}}`:                                            0,
		`{redis: {url: "redis://localhost:6379", timeout: 1ms}}`:                                            0,
		`{redis: {url: "redis://[::1]:6379", timeout: 1ms}}`:                                                0,
		`{redis: {url: "unix:///run/redis.sock", timeout: 1ms}}`:                                            0,
		`{redis: {sentinel: {master: m, addresses: ["localhost:26379", "127.0.0.1:26380"]}, timeout: 2ms}}`: 0,
	} {
		c, got := problems(t, map[string]string{"routes.yaml": smallRoutes + "store: " + store + "\n"})
		if c == nil || strings.Count(got, "three round trips") != want || strings.Count(got, "warning") != want {
			t.Errorf("%s: want %d warnings, got %q", store, want, got)
		}
	}
}

func TestSocketWithoutWarning(t *testing.T) {
	socket := strings.Replace(smallRoutes, `":8080"`, `"unix:/run/gateway.sock"`, 1)
	const edge = "limits: {e: {per: ip, algorithm: token_bucket, limit: 5/minute}}\nedge: [e]\n"
	for _, routes := range []string{
		socket,
		socket + edge + "client_ip: {trusted_proxies: [unix]}\n",
		socket + strings.Replace(edge, "per: ip", "per: global", 1),
	} {
		if c, got := problems(t, map[string]string{"routes.yaml": routes}); c == nil || got != "" {
			t.Errorf("%s\nis refused or warned of: %s", routes, got)
		}
	}
	if c, got := problems(t, map[string]string{"routes.yaml": socket + edge + "client_ip: {trusted_proxies: [127.0.0.1]}\n"}); c == nil || strings.Count(got, "warning") != 1 {
		t.Errorf("networks are no sockets: %q", got)
	}
	if c, got := problems(t, map[string]string{"routes.yaml": socket + edge}); c == nil || strings.Count(got, "warning") != 1 {
		t.Errorf("no warning, or several: %s", got)
	}
}
