package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// parts splits what Print writes into its documents.
func parts(t *testing.T, c *Config) []string {
	t.Helper()
	return strings.Split(string(Print(c)), "---\n")
}

// TestPrintIsReadAgain prints a configuration that uses everything, loads what
// was printed, and has the same configuration.
func TestPrintIsReadAgain(t *testing.T) {
	dir := goodDir(t)
	c, report := load(dir, nil)
	if c == nil {
		t.Fatal(text(report, dir))
	}
	printed := parts(t, c)
	if len(printed) != 3 {
		t.Fatalf("%d documents", len(printed))
	}
	masked := c.Auth.JWT[4].Provider
	printed[0] = strings.Replace(printed[0], masked.URL, string(masked.Address), 1)
	again := t.TempDir()
	write(t, again, map[string]string{"routes.yaml": printed[0], "plans.yaml": printed[1]})
	c2, report := load(again, nil)
	if c2 == nil {
		t.Fatalf("%s\n%s", text(report, again), printed[0])
	}
	if got := Describe(c, c2); got != nil {
		t.Errorf("changed by printing: %q", got)
	}
	if d := cmp.Diff(parts(t, c), parts(t, c2)); d != "" {
		t.Error(d)
	}
}

func TestPrintShowsNoSecret(t *testing.T) {
	dir := goodDir(t)
	c, report := load(dir, map[string]string{"REDIS_URL": "redis://u:hunter2@h"})
	if c == nil {
		t.Fatal(text(report, dir))
	}
	c.Store.Redis.PasswordFile = ""
	got := string(Print(c))
	for _, secret := range []string{"hunter2", "correct horse", "pa$s", "0123456789abcdef", "fedcba98", "9f86d081", "PRIVATE", "sesame"} {
		if strings.Contains(got, secret) {
			t.Errorf("%q is printed", secret)
		}
	}
	for _, want := range []string{
		`password: '********'`, "- edge-ip # per instance: N instances together admit N times 600/minute",
		"{id: k-7f3a, user: priya123, tenant: acme, plan: free, expires: 2077-06-30}", "burst: 100", "timezone: UTC, week_start: sunday", "anchor: first_request", "queue: 100, max_delay: 2s", "usage_path: /usage", "auth: required", "lease: {size: 20, ttl: 500ms}", "lease: {size: auto, ttl: 1s}",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not printed:\n%s", want, got)
		}
	}
}

func TestPrintTheSmallest(t *testing.T) {
	dir := smallDir(t, nil)
	c, _ := load(dir, nil)
	if got := c.Summary(); got != "0 plans, 1 route, 0 limits" {
		t.Error(got)
	}
	want := `# routes.yaml
listen:
  http: :8080
  admin: 127.0.0.1:9090
  max_connections_per_ip: 0
log: {level: info, sample_allowed: 100%}
shutdown_timeout: 30s
drain_delay: 0s
client_ip:
  header: X-Forwarded-For
  ipv6_prefix: 64
  proxy_protocol: false
store:
  memory: {max_keys: 1000000}
auth:
  failure_limit: 60/minute
upstreams:
  api:
    targets: ['http://127.0.0.1:9001']
    balance: least_requests
    timeout: {connect: 1s, response_header: 10s, idle: 1m30s}
    slow_start: 10s
routes:
- name: open
  path: /open
  upstream: api
  auth: none
  cost: 0
  on_store_failure: local_cap
  forward_credentials: false
client_headers: {ietf: draft-11, legacy: on}
usage_path: off
---
# plans.yaml
plans: {}
`
	if d := cmp.Diff(want, string(Print(c))); d != "" {
		t.Error(d)
	}
}

// TestDescribe replaces one text of the good files by another, and asks what
// changed and what needs a restart.
func TestDescribe(t *testing.T) {
	dir := goodDir(t)
	old, report := load(dir, nil)
	if old == nil {
		t.Fatal(text(report, dir))
	}
	if got := Describe(old, old); got != nil {
		t.Errorf("nothing changed, but %q", got)
	}
	for _, c := range []struct {
		file, from, to string
		want           []string
		restart        []string
	}{
		{"plans.yaml", "limit: 100/minute, burst: 20", "limit: 120/minute, burst: 20", []string{"plan free: per-minute: 100/minute → 120/minute"}, nil},
		{"plans.yaml", "burst: 20", "burst: 25", []string{"plan free: per-minute burst: 20 → 25"}, nil},
		{"plans.yaml", "limit: 6000/minute", "limit: 9000/minute", []string{"plan pro: per-minute: 6000/minute → 9000/minute"}, nil},
		{"plans.yaml", "algorithm: token_bucket, limit: 100/minute, burst: 20", "algorithm: fixed_window, limit: 100/minute", []string{"plan free: per-minute: token_bucket 100/minute → fixed_window 100/minute (starts anew)"}, nil},
		{"plans.yaml", "anchor: calendar, timezone: Asia/Kolkata, limit: 100/day", "limit: 120/day", []string{"plan free: per-day: fixed_window 100/day of the calendar in Asia/Kolkata → fixed_window 120/day (starts anew)"}, nil},
		{"plans.yaml", "timezone: Asia/Kolkata", "timezone: Europe/Berlin", []string{"plan free: per-day: fixed_window 100/day of the calendar in Asia/Kolkata → fixed_window 100/day of the calendar in Europe/Berlin (starts anew)"}, nil},
		{"plans.yaml", "week_start: sunday", "week_start: monday", []string{"plan pro: per-week: fixed_window 40000/week of the calendar in UTC from sunday → fixed_window 40000/week of the calendar in UTC from monday (starts anew)"}, nil},
		{"plans.yaml", "limit: 6000/minute", "limit: 6000/hour", []string{"plan pro: per-minute: sliding_window_counter 6000/minute → sliding_window_counter 6000/hour (starts anew)"}, nil},
		{"plans.yaml", "candidate: {limit: 200/second}", "candidate: {burst: 40}", []string{"plan pro: at-once candidate: 200/second burst 200 → 100/second burst 40"}, nil},
		{"routes.yaml", "lease: {size: 20, ttl: 500ms}", "lease: {ttl: 2s}", []string{"limit dependency lease: 20 for 500ms → auto for 2s"}, nil},
		{"plans.yaml", ", mode: shadow", "", []string{"plan pro: per-week mode: shadow → enforce"}, nil},
		{"routes.yaml", "queue: 100, max_delay: 2s", "queue: 50", []string{"limit geo queue: 100 → 50", "limit geo max_delay: 2s → none"}, nil},
		{"routes.yaml", "count_rejected: true", "count_rejected: false", []string{"limit login-try count_rejected: true → false"}, nil},
		{"routes.yaml", "usage_path: /usage", "usage_path: off", []string{"usage_path: /usage → none"}, nil},
		{"plans.yaml", "name: per-day", "name: daily", []string{"plan free: limit per-day removed", "plan free: limit daily added"}, nil},
		{"plans.yaml", "    local_cap: 50/second\n", "", []string{"plan pro local_cap: 50/second → its share"}, nil},
		{"plans.yaml", "user: priya123, plan: pro", "user: priya123, plan: free", []string{"override of user priya123: pro → free"}, nil},
		{"plans.yaml", "default_plan: free", "default_plan: pro", []string{"default_plan: free → pro"}, nil},
		{"plans.yaml", "  closed:\n    limits:\n      - {name: nothing, algorithm: fixed_window, limit: 0/minute}\n", "", []string{"plan closed removed"}, nil},
		{"plans.yaml", "per: ip, ", "", []string{"plan anonymous: per-minute per: ip → user (starts anew)"}, nil},
		{"routes.yaml", "name: export, ", "name: exports, ", []string{"route export removed", "route exports added"}, nil},
		{"routes.yaml", "cost: 10", "cost: 11", []string{"route export cost: 10 → 11"}, nil},
		{"routes.yaml", "/api/weather", "/api/weather/", []string{"route weather path: /api/weather → /api/weather/"}, nil},
		{"routes.yaml", "limits: [dependency, account, geo]", "limits: [account]", []string{"route export limits: dependency, account, geo → account"}, nil},
		{"routes.yaml", "limit: 5/15m", "limit: 6/15m", []string{"limit login-try: 5/15m → 6/15m"}, nil},
		{"routes.yaml", "edge: [edge-ip]", "edge: []", []string{"edge: edge-ip → none"}, nil},
		{"routes.yaml", "http://127.0.0.1:9001", "http://127.0.0.1:9009", []string{"upstream weather targets: http://127.0.0.1:9001, https://weather.example.com/base of weight 3 → http://127.0.0.1:9009, https://weather.example.com/base of weight 3"}, nil},
		{"routes.yaml", "failure_limit: 60/minute", "failure_limit: off", []string{"auth.failure_limit: 60/minute → off"}, nil},
		{"routes.yaml", "timeout: 50ms", "timeout: 40ms", []string{"store.redis.timeout: 50ms → 40ms"}, nil},
		{"routes.yaml", "leeway: 30s", "leeway: 10s", []string{"issuer https://login.example.com/ leeway: 30s → 10s"}, nil},
		{"routes.yaml", `http: ":8080"`, `http: ":8081"`, []string{"listen.http: :8080 → :8081 (at the next restart)"}, []string{"listen.http"}},
		{"routes.yaml", `admin: "127.0.0.1:9090"`, `admin: "127.0.0.1:9091"`, []string{"listen.admin: 127.0.0.1:9090 → 127.0.0.1:9091 (at the next restart)"}, []string{"listen.admin"}},
		{"routes.yaml", `address: ":8443"`, `address: ":8444"`, []string{"listen.https.address: :8443 → :8444 (at the next restart)"}, []string{"listen.https.address"}},
		{"routes.yaml", `  https: {address: ":8443", cert_file: cert.pem, key_file: key.pem}` + "\n", "", []string{
			"listen.https.address: :8443 → none (at the next restart)", "listen.https.cert_file: " + filepath.Join(dir, "cert.pem") + " → none",
			"listen.https.key_file: " + filepath.Join(dir, "key.pem") + " → none",
			"auth.client_certs.ca_file: " + filepath.Join(dir, "cert.pem") + " → none", "auth.client_certs.user: san.dns → none",
			"auth.client_certs.tenant: subject.o → none", "auth.client_certs.plan: subject.ou → none",
		}, []string{"listen.https.address"}},
		{"cert.pem", "-----BEGIN", "\n-----BEGIN", []string{filepath.Join(dir, "cert.pem") + " changed"}, nil},
		{"routes.yaml", "client_headers: {ietf: draft-11, legacy: on}", "client_headers: {ietf: off, legacy: off}", []string{"client_headers.ietf: draft-11 → off", "client_headers.legacy: on → off"}, nil},
		{"keys.yaml", "id: ci", "id: cd", []string{"key ci removed", "key cd added"}, nil},
		{"keys.yaml", "plan: free", "plan: pro", []string{"key k-7f3a plan: free → pro"}, nil},
		{"admin-token", "horse", "donkey", []string{"admin.token_file: the token changed"}, nil},
		{"redis-password", "rd", "rds", []string{"store.redis: the password changed"}, nil},
		{"secret", "0123456789", "9876543210", []string{"issuer https://partner.example.com/: the keys changed"}, nil},
	} {
		files := map[string]string{}
		data, err := ReadFile(filepath.Join(dir, c.file))
		if err != nil {
			t.Fatal(err)
		}
		files[c.file] = strings.Replace(string(data), c.from, c.to, 1)
		if files[c.file] == string(data) {
			t.Fatalf("%q is not in %s", c.from, c.file)
		}
		if text, ok := files["routes.yaml"]; ok && !strings.Contains(text, "  https:") { // nobody could show a certificate
			files["routes.yaml"] = strings.Replace(text, "  client_certs: {ca_file: cert.pem, user: san.dns, tenant: subject.o, plan: subject.ou}\n", "", 1)
		}
		write(t, dir, files)
		now, report := load(dir, nil)
		write(t, dir, map[string]string{c.file: string(data)})
		if now == nil {
			t.Fatalf("%q: %s", c.to, text(report, dir))
		}
		if got := Describe(old, now); !slices.Equal(got, c.want) {
			t.Errorf("%q → %q: got %q, want %q", c.from, c.to, got, c.want)
		}
		if got := NeedsRestart(old, now); !slices.Equal(got, c.restart) {
			t.Errorf("%q → %q: restart %q, want %q", c.from, c.to, got, c.restart)
		}
		if old.Hash == now.Hash {
			t.Errorf("%q → %q: the hash is the same", c.from, c.to)
		}
	}
}

// Secrets do not show where a value is printed by mistake.
func TestSecretMasksItself(t *testing.T) {
	dir := goodDir(t)
	c, _ := load(dir, nil)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, v := range []any{c.Admin, *c.Store.Redis, *c.Auth.JWT[1]} {
			got := fmt.Sprintf(format, v)
			for _, secret := range []string{"correct horse", "pa$s", "0123456789abcdef"} {
				if strings.Contains(got, secret) {
					t.Errorf("%s shows a secret: %s", format, got)
				}
			}
		}
	}
	if !reflect.DeepEqual([]byte(c.Admin.Token), []byte("correct horse")) {
		t.Errorf("the newline was not cut: %q", string(c.Admin.Token))
	}
}

// A path with white space, or what else means something in YAML, is read again
// as it was, and so is an address for a host.
func TestPrintPathAndHost(t *testing.T) {
	routes := strings.NewReplacer("/open", `"/the day: after, {name}/100%/[a] 'b'"`, "name: open", `name: open, host: "::1"`).Replace(smallRoutes)
	dir := smallDir(t, map[string]string{"routes.yaml": routes})
	c, report := load(dir, nil)
	if c == nil {
		t.Fatal(text(report, dir))
	}
	printed := parts(t, c)
	write(t, dir, map[string]string{"routes.yaml": printed[0]})
	c2, report := load(dir, nil)
	if c2 == nil {
		t.Fatalf("%s\n%s", text(report, dir), printed[0])
	}
	if r := c2.Routes[0]; r.Path != "/the day: after, {name}/100%/[a] 'b'" || r.Host != "[::1]" {
		t.Errorf("path %q, host %q:\n%s", r.Path, r.Host, printed[0])
	}
}

// What a route shows an upstream may be a secret: it is neither printed, nor told of
// when it changes.
func TestSecretsInFieldsAreNotShown(t *testing.T) {
	with := func(secret string) *Config {
		dir := smallDir(t, map[string]string{"routes.yaml": strings.Replace(smallRoutes, "cost: 0", `cost: 0, headers: {X-Gateway-Secret: "`+secret+
			`"}, request_headers: {set: {Authorization: "Basic `+secret+`", X-Key: "{key_id}", X-Plain: shown}, add: {Cookie: ["a=`+secret+`"]}}`, 1)})
		c, report := load(dir, nil)
		if c == nil {
			t.Fatal(text(report, dir))
		}
		return c
	}
	a, b := with("aaaahunter2"), with("bbbbhunter2")
	printed, changes := string(Print(a)), Describe(a, b)
	if strings.Contains(printed, "hunter2") || strings.Contains(strings.Join(changes, " "), "hunter2") {
		t.Errorf("a secret is shown:\n%s\n%q", printed, changes)
	}
	for _, want := range []string{"X-Gateway-Secret: '********'", "Authorization: '********', X-Key: '{key_id}', X-Plain: shown", "Cookie: ['********']"} {
		if !strings.Contains(printed, want) {
			t.Errorf("%s is not printed:\n%s", want, printed)
		}
	}
	if len(changes) != 3 || !strings.HasSuffix(changes[0], "headers: a value that is not shown changed") {
		t.Errorf("told of %q", changes)
	}
	if got := Describe(a, a); got != nil {
		t.Errorf("told of %q, and nothing changed", got)
	}
}

// Whatever a field is called, what the environment put into it is shown nowhere; and
// some names speak of a secret without that.
func TestWhatComesFromTheEnvironmentIsNotShown(t *testing.T) {
	with := func(secret string) *Config {
		dir := smallDir(t, map[string]string{"routes.yaml": strings.Replace(smallRoutes, "cost: 0", `cost: 0, headers: {X-Colour: "${S}"}, request_headers: {set: {
      X-Plain: "a ${S}", X-Default: "${UNSET:-hunter2}", X-Brace: "$${{S}", X-Signature: hunter2, X-Session: hunter2, X-Pass: hunter2, X-Jwt: hunter2,
      X-PAT: hunter2, X-Hmac: hunter2, X-Access: hunter2, X-Sig: hunter2, Signature: hunter2, X-Path: shown, X-Compass: shown, X-Accessible: shown}, add: {X-List: ["${S}", shown]}}`, 1)})
		c, report := load(dir, map[string]string{"S": secret})
		if c == nil {
			t.Fatal(text(report, dir))
		}
		return c
	}
	a, b := with("hunter2"), with("another hunter2")
	printed, changes := string(Print(a)), Describe(a, b)
	if strings.Contains(printed, "hunter2") || strings.Contains(strings.Join(changes, " "), "hunter2") {
		t.Errorf("a secret is shown:\n%s\n%q", printed, changes)
	}
	for _, want := range []string{"X-Brace: '$${{S}'", "X-Path: shown", "X-Compass: shown", "X-Accessible: shown", "X-List: ['********', shown]"} {
		if !strings.Contains(printed, want) {
			t.Errorf("%s is not printed:\n%s", want, printed)
		}
	}
	if len(changes) != 3 {
		t.Errorf("told of %q", changes)
	}
}

// What is wrong with a value from the environment is said without it.
func TestWhatIsWrongWithTheEnvironmentIsSaidWithoutIt(t *testing.T) {
	dir := smallDir(t, map[string]string{"routes.yaml": strings.Replace(smallRoutes, "cost: 0", `cost: 0, request_headers: {set: {X-Plain: "${S}"}}`, 1)})
	if c, report := load(dir, map[string]string{"S": "{hunter2}"}); c != nil || strings.Contains(text(report, dir), "hunter2") {
		t.Errorf("%v, %s", c, text(report, dir))
	}
}
