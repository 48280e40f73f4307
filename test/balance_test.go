package test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Requests of one caller go to one server, on every instance; when that is gone, to
// another one, and nobody else's move. Who is not known goes by address.
func TestRequestsOfOneCallerGoToOneServer(t *testing.T) {
	t.Parallel()
	var targets, names []string
	servers := map[string]*upstream{}
	for i := range 4 {
		name := fmt.Sprintf("server%d", i)
		u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, name) })
		servers[name] = u
		names, targets = append(names, name), append(targets, u.URL)
	}
	s := newSite(t)
	s.write("keys.yaml", "keys: []\n")
	s.write("plans.yaml", "default_plan: all\nanonymous_plan: all\nplans: {all: {limits: []}}\n")
	var keys []string
	for i := range 12 {
		keys = append(keys, s.key("-user", fmt.Sprintf("user%d", i)))
	}
	write := func(by string, targets []string) {
		s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [127.0.0.1]}
auth: {api_keys: {file: keys.yaml}}
upstreams:
  api: {targets: ["`+strings.Join(targets, `", "`)+`"], balance: {hash: {by: `+by+`}}}
routes:
  - {name: all, path: "/*", upstream: api, auth: optional, cost: 0}
`)
	}
	write("user", targets)
	a, b := s.start(), s.start()
	homes := func(g *gateway) (at []string) {
		for _, key := range keys {
			home := g.get("/", "X-API-Key", key).body
			if again := g.get("/other?"+key, "X-API-Key", key).body; again != home || servers[home] == nil {
				t.Fatalf("a caller is at %q and at %q", home, again)
			}
			at = append(at, home)
		}
		return at
	}
	before := homes(a)
	if other := homes(b); fmt.Sprint(other) != fmt.Sprint(before) {
		t.Errorf("one instance has the callers at %v, another at %v", before, other)
	}
	used := map[string]bool{}
	for _, home := range before {
		used[home] = true
	}
	if len(used) < 2 {
		t.Fatalf("all callers are at %v", before)
	}
	home := a.get("/", "X-Forwarded-For", "203.0.113.7").body
	for i := range 60 {
		address := fmt.Sprintf("203.0.113.%d", 100+i)
		used[a.get("/", "X-Forwarded-For", address).body] = true
		if again := a.get("/", "X-Forwarded-For", "203.0.113.7").body; again != home {
			t.Fatalf("a stranger is at %q and at %q", home, again)
		}
	}
	if len(used) != 4 {
		t.Errorf("strangers are at %v only", used)
	}

	// One server dies, and then is taken out of the list: the same callers move to
	// the same others.
	gone := before[0]
	servers[gone].Close()
	dead := homes(a)
	var left []string
	for i, name := range names {
		if name != gone {
			left = append(left, targets[i])
		}
	}
	write("user", left)
	if !a.reload() {
		t.Fatal("refused")
	}
	after := homes(a)
	for i := range before {
		if (before[i] != gone && after[i] != before[i]) || after[i] == gone || dead[i] != after[i] {
			t.Errorf("caller %d was at %s, with %s dead at %s, without it at %s", i, before[i], gone, dead[i], after[i])
		}
	}

	// By a field: whoever the caller is.
	write(`"header:X-Session"`, left)
	if !a.reload() {
		t.Fatal("refused")
	}
	used = map[string]bool{}
	for i := range 40 {
		session := fmt.Sprint("session", i)
		home := a.get("/", "X-Session", session, "X-API-Key", keys[i%3]).body
		used[home] = true
		if again := a.get("/", "X-Session", session, "X-API-Key", keys[5]).body; again != home {
			t.Errorf("%s is at %q and at %q", session, home, again)
		}
	}
	if len(used) != 3 {
		t.Errorf("sessions are at %v only", used)
	}
}

// A server of weight 3 gets three times the requests of one of weight 1.
func TestAServerGetsWhatItsWeightSays(t *testing.T) {
	t.Parallel()
	small, big := newUpstream(t, nil), newUpstream(t, nil)
	for _, balance := range []string{"round_robin", "least_requests"} {
		g := upstreamSite(t, `balance: `+balance+`, targets: ["`+small.URL+`", {url: "`+big.URL+`", weight: 3}]`).start()
		smalls, bigs := small.count(), big.count()
		for range 40 {
			if a := g.get("/"); a.status != 200 {
				t.Fatal(a.status)
			}
		}
		if n, m := small.count()-smalls, big.count()-bigs; n != 10 || m != 30 {
			t.Errorf("%s: %d and %d requests, want 10 and 30", balance, n, m)
		}
	}
}

// A server that is not there costs few requests a detour, and none an answer; when it
// is there again it is found by itself.
func TestAServerThatIsGoneIsLeftOut(t *testing.T) {
	t.Parallel()
	stays := newUpstream(t, nil)
	address, wake := sleepingAddress(t)
	s := upstreamSite(t, `targets: ["`+stays.URL+`", "http://`+address+`"], balance: round_robin`)
	g := s.start()
	const series = `gateway_upstream_requests_total{code="error",target="%s",upstream="api"}`
	attempts := func() float64 { return g.value(fmt.Sprintf(series, address)) }
	up := func() float64 {
		return g.value(fmt.Sprintf(`gateway_upstream_up{target="%s",upstream="api"}`, address))
	}
	ask := func() {
		if a := g.get("/"); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	began := time.Now()
	for range 100 {
		ask()
	}
	// Three, and one more for every second that the machine took.
	if n := attempts(); n < 3 || n > 3+time.Since(began).Seconds() || up() != 0 {
		t.Errorf("%v attempts to connect, up is %v", n, up())
	}
	line := g.logged("a target cannot be connected to; while another target can, it is only tried now and then")
	if line["upstream"] != "api" || line["target"] != address || line["error"] == nil {
		t.Errorf("logged %v", line)
	}
	// A reload that is about something else forgets nothing.
	before := attempts()
	s.write("plans.yaml", "plans: {} # another text\n")
	if !g.reload() {
		t.Fatal("refused")
	}
	ask()
	ask()
	if n := attempts(); n > before+1 {
		t.Errorf("%v attempts after a reload, %v before", n, before)
	}

	back := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	_ = back.Listener.Close()
	back.Listener = wake()
	back.Start()
	t.Cleanup(back.Close)
	eventually(t, "it is found again", func() bool { ask(); return up() == 1 })
	g.logged("the target that was left out is well again; it gets its share by and by")
}
