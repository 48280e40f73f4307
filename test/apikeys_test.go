package test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// keysSite is a site with two routes that need a key, and a third that does not.
// apiKeys is what stands in auth.api_keys beside the file.
func keysSite(t testing.TB, u *upstream, store, apiKeys, failures string) *site {
	s := newSite(t)
	s.write("plans.yaml", `
default_plan: free
anonymous_plan: free
plans:
  free: {limits: [{name: per-day, algorithm: fixed_window, limit: 10/day}]}
  pro: {limits: [{name: per-day, algorithm: fixed_window, limit: 1000000/day}]}
`)
	s.write("keys.yaml", "keys: []\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [127.0.0.1]}
`+store+`
auth: {api_keys: {file: keys.yaml`+apiKeys+`}, failure_limit: `+failures+`}
usage_path: /usage
upstreams: {weather: {targets: ["`+u.URL+`"]}}
routes:
  - {name: weather, path: /weather, upstream: weather}
  - {name: export, path: /export, upstream: weather}
  - {name: open, path: /open, upstream: weather, auth: none}
`)
	return s
}

// A good key on a route that it is not for is a 403, and not the 401 of a bad one:
// it is charged to no limit, and is no failure of its address.
func TestAKeyForOtherRoutesIsForbidden(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := keysSite(t, u, "", "", "5/hour")
	key := s.key("-user", "ci", "-route", "export", "-scope", "read")
	g := s.start()
	for range 12 { // more than failure_limit and the plan's limit
		a := g.get("/weather", "X-API-Key", key)
		if p := a.problem(t); a.status != 403 || p["type"] != "about:blank" || a.field("WWW-Authenticate")+a.field("RateLimit") != "" {
			t.Fatalf("%d %v %s", a.status, a.header, a.body)
		}
		if line := g.requestLine(a.field("X-Request-Id")); line["denied_by"] != "not_for_route" || line["user"] != "ci" {
			t.Fatalf("the log says %v", line)
		}
	}
	if n := u.count(); n != 0 {
		t.Errorf("%d requests came to the upstream", n)
	}
	a := g.get("/export", "X-API-Key", key)
	if a.status != 200 || !strings.Contains(a.field("RateLimit"), `"per-day";r=9;`) {
		t.Errorf("its own route: %d, RateLimit %q", a.status, a.field("RateLimit"))
	}
	if a := g.get("/open", "X-API-Key", key); a.status != 200 {
		t.Errorf("a route that looks at no key: %d", a.status)
	}
	if a := g.get("/usage", "X-API-Key", key); a.status != 200 {
		t.Errorf("usage_path: %d", a.status)
	}
	if r := s.command("explain", "/weather", "-key", key); r.code != 1 || !contains(r.stdout, "refused with 403 by not_for_route") {
		t.Errorf("explain: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// A key that is used from another address than it is for is answered as any wrong
// one, and charged as one; the log tells why.
func TestAKeyFromAnotherAddressIsAsBadAsAWrongOne(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := keysSite(t, u, "", "", "5/hour")
	key := s.key("-id", "k-office", "-allow-ip", "10.0.0.0/8", "-allow-ip", "2001:db8::7")
	g := s.start()
	ask := func(ip, key string) answer { return g.get("/weather", "X-API-Key", key, "X-Forwarded-For", ip) }
	body := func(a answer) string {
		return fmt.Sprint(strings.Replace(a.body, a.field("X-Request-Id"), "", 1), a.header["Www-Authenticate"])
	}
	for _, ip := range []string{"10.1.2.3", "2001:db8::7"} {
		if a := ask(ip, key); a.status != 200 {
			t.Errorf("from %s: %d", ip, a.status)
		}
	}
	wrong := ask("192.0.2.1", "nobody-has-this")
	for i := range 5 {
		a := ask("192.0.2.2", key)
		if a.status != 401 || body(a) != body(wrong) {
			t.Fatalf("attempt %d: %d\n%s\nwant as a wrong key:\n%s", i+1, a.status, body(a), body(wrong))
		}
		if line := g.requestLine(a.field("X-Request-Id")); line["auth_error"] != "wrong_address" {
			t.Fatalf("the log says %v", line)
		}
	}
	if a := ask("192.0.2.2", key); a.status != 429 {
		t.Errorf("after 5 failures of 5 an hour: %d", a.status)
	}
	if a := ask("10.1.2.3", key); a.status != 200 {
		t.Errorf("from its address, meanwhile: %d", a.status)
	}
	for ip, want := range map[string]int{"10.0.0.1": 0, "192.0.2.9": 1} {
		for _, who := range [][]string{{"-key", key}, {"-key-id", "k-office"}} {
			r := s.command(append([]string{"explain", "/weather", "-ip", ip}, who...)...)
			if r.code != want || want == 1 && !contains(r.stdout, "refused with 401") {
				t.Errorf("explain %s -ip %s: exit %d\n%s%s", who[0], ip, r.code, r.stdout, r.stderr)
			}
		}
	}
}

// What a key is for can be given to keys new and is shown by keys list; a route
// that does not exist is refused before the running gateway would refuse the file.
func TestKeysNewSaysWhatAKeyIsFor(t *testing.T) {
	t.Parallel()
	s := keysSite(t, newUpstream(t, nil), "", "", "off")
	s.key("-id", "k-ci", "-route", "export", "-route", "weather", "-allow-ip", "10.0.0.0/8", "-allow-ip", "::1", "-scope", "read", "-scope", "write:all")
	s.key("-id", "k-any")
	list := s.command("keys", "list")
	if list.code != 0 || !contains(list.stdout, "ROUTES", "ALLOW IPS", "SCOPES", "export weather", "10.0.0.0/8 ::1/128", "read write:all") {
		t.Errorf("list: exit %d\n%s", list.code, list.stdout)
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(s.command("keys", "list", "-json").stdout), &rows); err != nil || len(rows) != 2 ||
		fmt.Sprint(rows[0]["routes"], rows[0]["allow_ips"], rows[0]["scopes"]) != "[export weather] [10.0.0.0/8 ::1/128] [read write:all]" ||
		rows[1]["routes"] != nil {
		t.Errorf("list -json: %v %v", rows, err)
	}
	before, err := os.ReadFile(s.path("keys.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		`(did you mean "export"?)`: {"-route", "exprt"},
		"is not a network":         {"-allow-ip", "10.0.0.0/33"},
		"wanted printable ASCII":   {"-scope", "a b"},
		"given twice":              {"-scope", "a", "-scope", "a"},
		"-expires is empty":        {"-user", "ci", "-expires", ""},
		"-user is empty":           {"-user", ""},
		"-plan is empty":           {"-plan", ""},
		"it is in the past":        {"-expires", "2020-01-01"},
		"looks like a key":         {"-id", "bn_live_61d8833d_x"},
	} {
		if r := s.command(append([]string{"keys", "new"}, args...)...); r.code == 0 || r.stdout != "" || !contains(r.stderr, want) || strings.Contains(r.stderr, "61d8833d") {
			t.Errorf("%v: exit %d, %q, %q", args, r.code, r.stdout, r.stderr)
		}
	}
	if after, err := os.ReadFile(s.path("keys.yaml")); err != nil || string(after) != string(before) {
		t.Errorf("the file was changed: %s %v", after, err)
	}
	if r := s.command("check", "-print"); r.code != 0 || !contains(r.stdout, "routes: [export, weather]", "allow_ips: [10.0.0.0/8,", "scopes: [read,") {
		t.Errorf("check -print: exit %d\n%s", r.code, r.stdout)
	}
}

// A key is rotated without a gap and without a second budget: while both live,
// they are one caller, and the old one ends when it is revoked.
func TestRotatingAKey(t *testing.T) {
	t.Parallel()
	s := keysSite(t, newUpstream(t, nil), "", "", "off")
	before := s.key("-id", "k-old", "-user", "priya123")
	g := s.start()
	left := func(key string) string { return g.get("/weather", "X-API-Key", key).field("X-RateLimit-Remaining") }
	if got := left(before); got != "9" {
		t.Fatalf("the old key leaves %s", got)
	}
	after := s.key("-id", "k-new", "-user", "priya123")
	eventually(t, "the new key works", func() bool { return g.get("/usage", "X-API-Key", after).status == 200 })
	for i, key := range []string{after, before, after} {
		if got, want := left(key), fmt.Sprint(8-i); got != want {
			t.Errorf("request %d leaves %s, want %s: the keys have a budget each", i+2, got, want)
		}
	}
	if r := s.command("keys", "revoke", "k-old"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	revoked := time.Now()
	eventually(t, "the old key ends", func() bool { return g.get("/usage", "X-API-Key", before).status == 401 })
	t.Logf("the first 401 came %s after the revocation", time.Since(revoked).Round(time.Millisecond))
	if got := left(after); got != "5" {
		t.Errorf("after the old one ended, the new key leaves %s, want 5", got)
	}
}

// E18: a key in the query works where that is switched on, and then it is in no
// log line, page, error or explanation of the gateway, and not in what an upstream
// is asked for; the rest of the query is, byte for byte.
func TestE18AKeyInTheQueryLeavesNoTrace(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := keysSite(t, u, "", ", query: api_key", "off")
	more := `  - {name: kept, path: /kept, upstream: weather, forward_credentials: true}
  - {name: moved, path: "/moved/*", upstream: weather, strip_prefix: /moved, request_headers: {set: {X-Query: "{query}"}}}
  - {name: dead, path: /dead, upstream: dead}
`
	routes, err := os.ReadFile(s.path("routes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("routes.yaml", strings.Replace(string(routes)+more, "upstreams: {", `upstreams: {dead: {targets: ["http://127.0.0.1:1"]}, `, 1))
	key := s.key("-user", "priya123")
	bad := key[:len(key)-1] + "~"
	g := s.start()
	for _, tt := range []struct {
		path   string
		status int
		asked  string // what the upstream is asked for; empty: nothing
	}{
		{"/weather?api_key=KEY", 200, "/weather"},
		{"/weather?q=a%2Fb+c&api_key=KEY&&z=;%zz", 200, "/weather?q=a%2Fb+c&&z=;%zz"},
		{"/weather?a=1&api%5Fkey=KEY", 200, "/weather?a=1"},
		{"/moved/x%2Fy?b=2&api_key=KEY&a=1", 200, "/x%2Fy?b=2&a=1"},
		{"/kept?a=1&api_key=KEY", 200, "/kept?a=1&api_key=KEY"},
		{"/open?a=1&api_key=KEY", 200, "/open?a=1&api_key=KEY"},
		{"/dead?api_key=KEY", 502, ""},
		{"/nowhere?api_key=KEY", 404, ""},
		{"/usage?api_key=KEY", 200, ""},
		{"/weather?api_key=KEY&api_key=KEY", 401, ""},
		{"/weather?api_key=BAD", 401, ""},
		{"/weather?api_key=%zzKEY", 401, ""},
		{"/weather?access_token=KEY", 401, ""},
	} {
		before := u.count()
		a := g.get(strings.NewReplacer("KEY", key, "BAD", bad).Replace(tt.path))
		if a.status != tt.status {
			t.Errorf("%s: %d, want %d: %s", tt.path, a.status, tt.status, a.body)
		}
		if tt.asked == "" {
			if n := u.count() - before; n != 0 {
				t.Errorf("%s came to the upstream", tt.path)
			}
		} else if last := u.last(t); u.count() != before+1 || last.RequestURI != strings.ReplaceAll(tt.asked, "KEY", key) {
			t.Errorf("%s: the upstream is asked for %s", tt.path, strings.ReplaceAll(last.RequestURI, key, "KEY"))
		} else if strings.Contains(fmt.Sprint(last.Header), key) {
			t.Errorf("%s: the upstream gets the key in a field", tt.path)
		}
		if a.status >= 400 && strings.Contains(a.body+fmt.Sprint(a.header), key[9:]) {
			t.Errorf("%s: the error tells the key: %s", tt.path, a.body)
		}
		line := g.requestLine(a.field("X-Request-Id"))
		if tt.status == 401 && strings.Contains(tt.path, "BAD") && line["auth_error"] != "checksum" {
			t.Errorf("a mistyped key in the log: %v", line["auth_error"])
		}
	}
	// A header comes first, and the query goes all the same.
	if a := g.get("/weather?x=1&api_key="+bad, "X-API-Key", key); a.status != 200 || u.last(t).RequestURI != "/weather?x=1" {
		t.Errorf("beside a key in the field: %d, %s", a.status, u.last(t).RequestURI)
	}
	told := g.output() + g.stderr.String()
	for _, page := range []string{"/metrics", "/", "/api/status", "/api/top-denied", "/readyz"} {
		told += send(t, "GET", g.admin+page, nil).body
	}
	for _, path := range []string{"/weather", "/moved/x", "/open", "/kept", "/nowhere"} {
		r := s.command("explain", path+"?a=1&api_key="+key)
		asJSON := s.command("explain", "-json", path+"?a=1&api_key="+bad)
		told += r.stdout + r.stderr + asJSON.stdout + asJSON.stderr
		if !strings.Contains(r.stdout, "?a=1&api_key=********") {
			t.Errorf("explain %s:\n%s", path, r.stdout)
		}
	}
	told += s.command("check", "-print").stdout
	if strings.Contains(told, key[9:]) || strings.Contains(told, bad[9:]) {
		t.Errorf("the key is told: %s", told[max(0, strings.Index(told, key[9:])-200):][:300])
	}
	if r := s.command("check"); !contains(r.stderr+r.stdout, "warning: auth.api_keys.query") {
		t.Errorf("check says nothing: %s%s", r.stdout, r.stderr)
	}
}

// E18: without that setting a query is the upstream's business, whatever is in it.
func TestE18QueriesAreNotLookedAtByDefault(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := keysSite(t, u, "", "", "off")
	key := s.key("-user", "priya123")
	g := s.start()
	for _, name := range []string{"api_key", "access_token", "apikey", "key", "X-API-Key"} {
		if a := g.get("/weather?" + name + "=" + key); a.status != 401 {
			t.Errorf("?%s: %d", name, a.status)
		}
	}
	if a := g.get("/weather?api_key="+key, "X-API-Key", key); a.status != 200 || u.last(t).RequestURI != "/weather?api_key="+key {
		t.Errorf("%d, the upstream is asked for %s", a.status, u.last(t).RequestURI)
	}
}

// A mistyped key is told from a wrong one in the log, and never to the client.
func TestE18AMistypedKeyIsToldInTheLogAlone(t *testing.T) {
	t.Parallel()
	s := keysSite(t, newUpstream(t, nil), "", "", "off")
	key, other := s.key("-user", "priya123"), s.key("-id", "k-gone")
	if r := s.command("keys", "revoke", "k-gone"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	g := s.start()
	bodies := map[string]bool{}
	for wrong, want := range map[string]string{
		other:                               "unknown_key", // whole, and nobody's
		key[:20] + "0" + key[20:len(key)-1]: "checksum",
		key[:len(key)-2]:                    "checksum",
		key + "x":                           "checksum",
		strings.ToUpper(key):                "unknown_key", // not of our form
	} {
		a := g.get("/weather", "X-API-Key", wrong)
		if line := g.requestLine(a.field("X-Request-Id")); a.status != 401 || line["auth_error"] != want {
			t.Errorf("%d, the log says %v, want %s", a.status, line["auth_error"], want)
		}
		bodies[strings.Replace(a.body, a.field("X-Request-Id"), "", 1)+fmt.Sprint(a.header["Www-Authenticate"])] = true
	}
	if len(bodies) != 1 {
		t.Errorf("the answers differ: %v", bodies)
	}
}

// Who guesses at one key from many addresses has the failures of one, and the right
// key works meanwhile, also where it is new; guesses at nobody's key are the
// address's business alone.
func TestGuessingAtOneKeyFromManyAddressesIsSlow(t *testing.T) {
	t.Parallel()
	s := keysSite(t, newUpstream(t, nil), "", ", failure_limit: 10/hour", "5/hour")
	key, other := s.key("-user", "priya123"), s.key("-user", "other")
	g := s.start()
	ask := func(key string, from int) answer {
		return g.get("/weather", "X-API-Key", key, "X-Forwarded-For", fmt.Sprintf("10.0.%d.%d", from/250, from%250+1))
	}
	guess := func(key string, n int) string { return key[:17] + fmt.Sprintf("%049d", n) }
	nobody := "bn_live_00000000_"
	for i := range 30 { // before, so that a bound of theirs would be spent
		if a := ask(guess(nobody, i), 100+i); a.status != 401 {
			t.Fatalf("guess %d at nobody's key: %d", i, a.status)
		}
	}
	for i := range 10 {
		if a := ask(guess(key, i), i); a.status != 401 {
			t.Fatalf("guess %d: %d", i+1, a.status)
		}
	}
	a := ask(guess(key, 10), 10)
	if a.status != 429 || a.problem(t)["type"] != "https://iana.org/assignments/http-problem-types#abnormal-usage-detected" || a.field("Retry-After") == "" {
		t.Errorf("guess 11: %d %s", a.status, a.body)
	}
	if line := g.requestLine(a.field("X-Request-Id")); line["denied_by"] != "key_failure_limit" {
		t.Errorf("the log says %v", line)
	}
	if a := ask(guess(key, 11), 10); a.status != 429 {
		t.Errorf("the next one: %d", a.status)
	}
	for i, right := range []string{key, other} {
		if a := ask(right, 10+i); a.status != 200 {
			t.Errorf("right key %d: %d", i, a.status)
		}
	}
	if a := ask(guess(other, 1), 11); a.status != 401 {
		t.Errorf("a guess at the other key: %d", a.status)
	}
	if a := ask(guess(nobody, 99), 12); a.status != 401 {
		t.Errorf("a guess at nobody's key: %d", a.status)
	}
	// It is charged to the address as well: five failures each.
	for i := range 6 {
		want := 401
		if i == 5 {
			want = 429
		}
		if a := ask(guess(nobody, i), 240); a.status != want {
			t.Errorf("failure %d of one address: %d, want %d", i+1, a.status, want)
		}
	}
}
