package test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bouncer/internal/redistest"
)

// addressSite admits 5 requests an hour from an address, before anything else,
// and believes what clientIP says.
func addressSite(t testing.TB, target, clientIP string) *site {
	s := newSite(t)
	s.write("keys.yaml", "keys: []\n")
	s.write("plans.yaml", "default_plan: free\nanonymous_plan: free\nplans: {free: {limits: []}}\n")
	s.write("routes.yaml", addressRoutes(target, clientIP, `"127.0.0.1:0"`))
	return s
}

func addressRoutes(target, clientIP, address string) string {
	return `
listen: {http: ` + address + `, admin: "127.0.0.1:0"}
client_ip: {` + clientIP + `}
auth: {api_keys: {file: keys.yaml}}
limits:
  edge-ip: {per: ip, algorithm: fixed_window, limit: 5/hour}
edge: [edge-ip]
upstreams:
  weather: {targets: ["` + target + `"]}
routes:
  - {name: open, path: /open, upstream: weather, auth: none}
  - {name: closed, path: /closed, methods: [GET], upstream: weather}
  - {name: free, path: /free, upstream: weather, auth: none, cost: 0}
`
}

// localProxy is what a site behind a proxy on this machine says.
const localProxy = "trusted_proxies: [127.0.0.1/32, 10.0.0.0/8]"

// admitted counts how many of n requests are not denied.
func admitted(t testing.TB, n int, ask func(i int) answer) (count int) {
	t.Helper()
	for i := range n {
		switch a := ask(i); a.status {
		case 200:
			count++
		case 429:
		default:
			t.Fatalf("request %d: %d %s", i, a.status, a.body)
		}
	}
	return count
}

// Nobody is trusted unless it is said: what a client claims to be is no bucket.
func TestForgedAddressesGetNoFreshBuckets(t *testing.T) {
	for _, field := range []string{"X-Forwarded-For", "Forwarded", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "X-Client-IP"} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, nil)
			g := addressSite(t, u.URL, "header: "+field).start()
			got := admitted(t, 50, func(i int) answer {
				value := fmt.Sprintf("203.0.113.%d", i)
				if field == "Forwarded" {
					value = "for=" + value
				}
				return g.get("/open", field, value)
			})
			if got != 5 || u.count() != 5 {
				t.Errorf("%d of 50 admitted, %d at the upstream; want 5", got, u.count())
			}
			r := u.last(t)
			if r.Header.Get("X-Forwarded-For") != "127.0.0.1" || r.Header.Get("X-Real-Ip") != "127.0.0.1" {
				t.Errorf("the upstream is told %q and %q", r.Header["X-Forwarded-For"], r.Header["X-Real-Ip"])
			}
			warnings := 0
			for _, line := range g.all("a peer that is not trusted sends the client-address field; if it is your own proxy, every caller behind it shares one bucket: add it to client_ip.trusted_proxies") {
				if line["peer"] == "127.0.0.1" && strings.EqualFold(str(line, "field"), field) {
					warnings++
				}
			}
			if n := g.value("gateway_untrusted_forwarding_total"); n != 50 {
				t.Errorf("%v requests of a peer that is not believed are counted, want 50", n)
			}
			if warnings != 1 {
				t.Errorf("%d warnings that a peer is not believed, want one, not one a request", warnings)
			}
		})
	}
}

// Behind a trusted proxy it is the address that the proxy saw that counts, not
// what stands to the left of it.
func TestTheRightmostUntrustedHopIsTheClient(t *testing.T) {
	u := newUpstream(t, nil)
	g := addressSite(t, u.URL, localProxy).start()
	got := admitted(t, 50, func(i int) answer {
		// Two proxies of ours appended; the rest is the client's invention.
		return g.get("/open", "X-Forwarded-For", fmt.Sprintf("203.0.113.%d, 10.0.0.1, 198.51.100.7, 10.1.2.%d", i, i))
	})
	if got != 5 {
		t.Errorf("%d of 50 forgeries admitted, want 5", got)
	}
	r := u.last(t)
	if got, want := strings.Join(r.Header["X-Forwarded-For"], "|"), "198.51.100.7, 10.1.2.4, 127.0.0.1"; got != want {
		t.Errorf("X-Forwarded-For at the upstream %q, want the believed chain and the peer %q", got, want)
	}
	if got := r.Header.Get("X-Real-Ip"); got != "198.51.100.7" {
		t.Errorf("X-Real-IP at the upstream %q", got)
	}
	// Another client behind the same proxy has a budget of its own.
	if got := admitted(t, 10, func(int) answer { return g.get("/open", "X-Forwarded-For", "198.51.100.8") }); got != 5 {
		t.Errorf("the next client: %d of 10 admitted, want 5", got)
	}
}

// An attacker cannot spend the budget of an address that is not his.
func TestNobodyIsLockedOutByAForgery(t *testing.T) {
	u := newUpstream(t, nil)
	g := addressSite(t, u.URL, localProxy).start()
	for range 20 {
		c := g.dialFrom("127.0.0.2") // not our proxy
		c.say("GET /open HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.7\r\n\r\n")
		c.hearAll("GET")
		_ = c.Close()
	}
	if got := admitted(t, 5, func(int) answer { return g.get("/open", "X-Forwarded-For", "198.51.100.7") }); got != 5 {
		t.Errorf("the victim gets %d of 5", got)
	}
}

// seen asks once and returns who the upstream and the log say it was.
func (g *gateway) seen(t testing.TB, u *upstream, fields string) (realIP, chain string) {
	t.Helper()
	a := g.ask("GET /free HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n")
	if a.status != 200 {
		t.Fatalf("%q: %d %s", fields, a.status, a.body)
	}
	h := u.last(t).Header
	if len(h["X-Forwarded-For"]) > 1 || len(h["X-Real-Ip"]) > 1 {
		t.Errorf("%q: several lines at the upstream: %q %q", fields, h["X-Forwarded-For"], h["X-Real-Ip"])
	}
	if got := g.requestLine(a.field("X-Request-Id"))["client_ip"]; got != h.Get("X-Real-Ip") {
		t.Errorf("%q: the log says %v, the upstream is told %q", fields, got, h.Get("X-Real-Ip"))
	}
	return h.Get("X-Real-Ip"), h.Get("X-Forwarded-For")
}

// Addresses come with ports and brackets, and with things that are none: those
// end the walk at the last address that can be believed.
func TestAddressesAreReadAsProxiesWriteThem(t *testing.T) {
	u := newUpstream(t, nil)
	g := addressSite(t, u.URL, localProxy).start()
	const peer = "127.0.0.1"
	for _, test := range []struct{ value, client, chain string }{
		{"203.0.113.7:50123", "203.0.113.7", "203.0.113.7, 127.0.0.1"},
		{"[2001:db8::1]:443", "2001:db8::1", "2001:db8::1, 127.0.0.1"},
		{"[2001:db8::1]", "2001:db8::1", "2001:db8::1, 127.0.0.1"},
		{"2001:db8::1", "2001:db8::1", "2001:db8::1, 127.0.0.1"},
		{"fe80::1%eth0", "fe80::1", "fe80::1, 127.0.0.1"},
		{"::ffff:203.0.113.7", "203.0.113.7", "203.0.113.7, 127.0.0.1"},
		{"  203.0.113.7\t", "203.0.113.7", "203.0.113.7, 127.0.0.1"},
		{"unknown", peer, peer},
		{"_hidden", peer, peer},
		{"", peer, peer},
		{"1.2.3.4, ", peer, peer},
		{"1.2.3.4,,10.0.0.1", "10.0.0.1", "10.0.0.1, 127.0.0.1"},
		{"0177.0.0.1", peer, peer},
		{"203.0.113.256", peer, peer},
		{"203.0.113.7:", peer, peer},
		{"203.0.113.7:http", peer, peer},
		{"[203.0.113.7]", peer, peer},
		{"[2001:db8::1", peer, peer},
		{"203.0.113.7; DROP TABLE", peer, peer},
		{"\"203.0.113.7\"", peer, peer},
		{"198.51.100.7, unknown, 10.0.0.1", "10.0.0.1", "10.0.0.1, 127.0.0.1"},
		{"10.0.0.2, 10.0.0.1", "10.0.0.2", "10.0.0.2, 10.0.0.1, 127.0.0.1"},
		{strings.Repeat("203.0.113.7, ", 800) + "198.51.100.7", "198.51.100.7", "198.51.100.7, 127.0.0.1"},
		{strings.Repeat("x", 10<<10), peer, peer},
		{"\xff\xfe", peer, peer},
	} {
		client, chain := g.seen(t, u, "X-Forwarded-For: "+test.value+"\r\n")
		if client != test.client || chain != test.chain {
			t.Errorf("%.60q: client %q, chain %q; want %q, %q", test.value, client, chain, test.client, test.chain)
		}
	}
	// Several lines are one list.
	client, chain := g.seen(t, u, "X-Forwarded-For: 198.51.100.7\r\nX-Other: 1\r\nx-forwarded-for: 203.0.113.9\r\nX-Forwarded-For: 10.0.0.1\r\n")
	if client != "203.0.113.9" || chain != "203.0.113.9, 10.0.0.1, 127.0.0.1" {
		t.Errorf("several lines: client %q, chain %q", client, chain)
	}
	// A ports-and-all address is one bucket, however it is written.
	got := admitted(t, 20, func(i int) answer {
		return g.get("/open", "X-Forwarded-For", []string{fmt.Sprintf("203.0.113.77:%d", 50000+i), "::ffff:203.0.113.77", "203.0.113.77"}[i%3])
	})
	if got != 5 {
		t.Errorf("one address in three spellings: %d of 20 admitted, want 5", got)
	}
}

// One customer has a whole /64 of addresses, and one budget.
func TestAnIPv6PrefixSharesOneBucket(t *testing.T) {
	u := newUpstream(t, nil)
	for bits, clientIP := range map[int]string{64: localProxy, 56: localProxy + ", ipv6_prefix: 56", 128: localProxy + ", ipv6_prefix: 128"} {
		g := addressSite(t, u.URL, clientIP).start()
		inOne := admitted(t, 100, func(i int) answer { return g.get("/open", "X-Forwarded-For", fmt.Sprintf("2001:db8:0:100::%x", i+1)) })
		if want := map[int]int{64: 5, 56: 5, 128: 100}[bits]; inOne != want {
			t.Errorf("/%d: %d of 100 addresses of one /64 admitted, want %d", bits, inOne, want)
		}
		if got := u.last(t).Header.Get("X-Real-Ip"); !strings.HasPrefix(got, "2001:db8:0:100::") || strings.Contains(got, "/") {
			t.Errorf("/%d: the upstream is told %q, not the whole address", bits, got)
		}
		next := admitted(t, 10, func(int) answer { return g.get("/open", "X-Forwarded-For", "2001:db8:0:101::1") })
		if want := map[int]int{64: 5, 56: 0, 128: 5}[bits]; next != want {
			t.Errorf("/%d: %d of 10 from the next /64 admitted, want %d", bits, next, want)
		}
	}
}

// Which field is believed is one setting; the others are anybody's.
func TestOnlyTheConfiguredFieldIsBelieved(t *testing.T) {
	u := newUpstream(t, nil)
	const peer = "127.0.0.1"
	t.Run("Forwarded", func(t *testing.T) {
		g := addressSite(t, u.URL, localProxy+", header: Forwarded").start()
		for value, want := range map[string]string{
			"for=203.0.113.7":                              "203.0.113.7",
			`For="[2001:db8:cafe::17]:4711"`:               "2001:db8:cafe::17",
			"for=198.51.100.1, for=203.0.113.7;proto=http": "203.0.113.7",
			"for=203.0.113.7, for=10.0.0.1;by=10.0.0.2":    "203.0.113.7",
			`for="unclosed, for=203.0.113.7`:               "203.0.113.7",
			"for=unknown":                                  peer,
			"for=_hidden":                                  peer,
			"proto=https":                                  peer,
			"203.0.113.7":                                  peer,
		} {
			if client, _ := g.seen(t, u, "Forwarded: "+value+"\r\nX-Forwarded-For: 192.0.2.1\r\n"); client != want {
				t.Errorf("%s: %q, want %q", value, client, want)
			}
			if u.last(t).Header.Get("Forwarded") != "" {
				t.Errorf("%s: Forwarded reached the upstream beside X-Forwarded-For", value)
			}
		}
	})
	t.Run("a field with one address", func(t *testing.T) {
		g := addressSite(t, u.URL, localProxy+", header: CF-Connecting-IP").start()
		for fields, want := range map[string]string{
			"CF-Connecting-IP: 203.0.113.7\r\n":                                  "203.0.113.7",
			"CF-Connecting-IP: 203.0.113.7\r\nX-Forwarded-For: 192.0.2.1\r\n":    "203.0.113.7",
			"X-Forwarded-For: 192.0.2.1\r\n":                                     peer,
			"CF-Connecting-IP: 203.0.113.7\r\nCF-Connecting-IP: 203.0.113.8\r\n": peer,
			"CF-Connecting-IP: 203.0.113.7, 203.0.113.8\r\n":                     peer,
		} {
			if client, _ := g.seen(t, u, fields); client != want {
				t.Errorf("%q: %q, want %q", fields, client, want)
			}
		}
	})
	t.Run("X-Forwarded-For", func(t *testing.T) {
		g := addressSite(t, u.URL, localProxy).start()
		if client, _ := g.seen(t, u, "Forwarded: for=192.0.2.1\r\nX-Real-IP: 192.0.2.1\r\nTrue-Client-IP: 192.0.2.1\r\n"); client != peer {
			t.Errorf("other fields are believed: %q", client)
		}
	})
}

// The gateway listens on a unix socket, where a peer has no address: it is
// believed if the configuration says so, and else all share one bucket.
func TestAUnixSocketListens(t *testing.T) {
	for name, test := range map[string]struct {
		clientIP string
		want     int
		logged   string
	}{
		"trusting":        {"trusted_proxies: [unix]", 20, "203.0.113.19"},
		"trusting others": {localProxy, 5, "unix"},
		"alone":           {"", 5, "unix"},
	} {
		t.Run(name, func(t *testing.T) {
			// Such a path may have some 100 bytes only.
			dir, err := os.MkdirTemp("", "gw")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			socket := filepath.Join(dir, "gateway.sock")
			u := newUpstream(t, nil)
			s := addressSite(t, u.URL, test.clientIP)
			s.write("routes.yaml", addressRoutes(u.URL, test.clientIP, `"unix:`+socket+`"`))
			g := s.start()
			tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			}}
			defer tr.CloseIdleConnections()
			over := &http.Client{Transport: tr, Timeout: patience}
			var last string // request id
			got := admitted(t, 20, func(i int) answer {
				r, err := http.NewRequest("GET", "http://gateway/open", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("X-Forwarded-For", fmt.Sprintf("203.0.113.%d", i))
				res, err := over.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = res.Body.Close()
				last = res.Header.Get("X-Request-Id")
				return answer{status: res.StatusCode}
			})
			if got != test.want {
				t.Errorf("%d of 20 admitted, want %d", got, test.want)
			}
			h := u.last(t).Header
			if test.want == 20 && (h.Get("X-Real-Ip") != "203.0.113.19" || h.Get("X-Forwarded-For") != "203.0.113.19") {
				t.Errorf("the upstream is told %q, %q", h["X-Real-Ip"], h["X-Forwarded-For"])
			}
			if test.want == 5 && (h["X-Real-Ip"] != nil || h["X-Forwarded-For"] != nil) {
				t.Errorf("the upstream is told %q, %q of a peer without an address", h["X-Real-Ip"], h["X-Forwarded-For"])
			}
			if line := g.requestLine(last); line["client_ip"] != test.logged {
				t.Errorf("the log says client_ip %v, want %q", line["client_ip"], test.logged)
			}
			// What a killed process leaves behind does not keep the next one out.
			_ = g.cmd.Process.Kill()
			<-g.ended
			s.start()
		})
	}
}

// A request id is taken from a trusted peer, if it can stand in a log.
func TestARequestIDIsTakenFromATrustedPeerOnly(t *testing.T) {
	u := newUpstream(t, nil)
	for name, test := range map[string]struct {
		clientIP string
		trusted  bool
	}{"trusted": {localProxy, true}, "not trusted": {"", false}} {
		g := addressSite(t, u.URL, test.clientIP).start()
		for _, id := range []string{"abc-123", "a:b/c+d=e@f.g_h", "has space", strings.Repeat("x", 129), `"quote"`, "näh"} {
			a := g.get("/free", "X-Request-Id", id)
			got := a.field("X-Request-Id")
			taken := test.trusted && (id == "abc-123" || id == "a:b/c+d=e@f.g_h")
			if (got == id) != taken {
				t.Errorf("%s: id %q became %q", name, id, got)
			}
			if up := u.last(t).Header["X-Request-Id"]; len(up) != 1 || up[0] != got {
				t.Errorf("%s: the upstream is told %q, the client %q", name, up, got)
			}
			g.requestLine(got)
		}
		a := g.get("/free", "X-Request-Id", "one", "X-Request-Id", "two")
		if got := a.field("X-Request-Id"); got == "one" || got == "two" {
			t.Errorf("%s: one of two ids is taken: %q", name, got)
		}
		// Also for scheme and host.
		g.get("/free", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "www.example.test")
		h := u.last(t).Header
		if (h.Get("X-Forwarded-Proto") == "https") != test.trusted || (h.Get("X-Forwarded-Host") == "www.example.test") != test.trusted {
			t.Errorf("%s: scheme and host at the upstream: %q, %q", name, h["X-Forwarded-Proto"], h["X-Forwarded-Host"])
		}
	}
}

// The edge is charged before anything else is looked at: what is not found and
// who is not known is not free.
func TestTheEdgeIsChargedBeforeAnythingElse(t *testing.T) {
	u := newUpstream(t, nil)
	s := addressSite(t, u.URL, localProxy)
	key := s.key("-user", "priya123")
	g := s.start()
	from := func(client, method, path string, fields ...string) answer {
		return send(t, method, g.url+path, nil, append([]string{"X-Forwarded-For", client}, fields...)...)
	}
	for _, test := range []struct {
		what, client, method, path string
		status                     int
	}{
		{"scanning", "203.0.113.1", "GET", "/wp-admin", 404},
		{"wrong method", "203.0.113.2", "DELETE", "/closed", 405},
		{"no credentials", "203.0.113.3", "GET", "/closed", 401},
		{"odd path", "203.0.113.5", "GET", "/a/..%2Fb", 400},
	} {
		for i := range 5 {
			a := from(test.client, test.method, test.path)
			if a.status != test.status {
				t.Errorf("%s, request %d: %d, want %d", test.what, i, a.status, test.status)
			}
			if a.field("RateLimit") != "" || a.field("X-RateLimit-Limit") != "" {
				t.Errorf("%s: an edge limit is told before it denies", test.what)
			}
		}
		// From here on this address gets nothing, with good credentials either,
		// and nobody looks at them: also an unknown one is a 429 now.
		for _, with := range [][]string{{"X-API-Key", key}, {"X-API-Key", "unknown"}, nil} {
			a := from(test.client, "GET", "/closed", with...)
			if a.status != 429 {
				t.Fatalf("after %s: %d, want 429", test.what, a.status)
			}
			p := a.problem(t)
			if p["type"] != "https://iana.org/assignments/http-problem-types#quota-exceeded" || fmt.Sprint(p["violated-policies"]) != "[edge-ip]" {
				t.Errorf("after %s: problem %v", test.what, p)
			}
			var wait int
			if _, err := fmt.Sscan(a.field("Retry-After"), &wait); err != nil || wait < 1 || wait > 3600 {
				t.Errorf("after %s: Retry-After %q", test.what, a.field("Retry-After"))
			}
			if a.field("RateLimit-Policy") != `"edge-ip";q=5;w=3600` || !strings.HasPrefix(a.field("RateLimit"), `"edge-ip";r=0;t=`) ||
				a.field("X-RateLimit-Limit") != "5" || a.field("X-RateLimit-Remaining") != "0" || a.field("Cache-Control") != "no-store" {
				t.Errorf("after %s: %v", test.what, a.header)
			}
			line := g.requestLine(fmt.Sprint(p["request_id"]))
			if line["denied_by"] != "edge-ip" || line["client_ip"] != test.client {
				t.Errorf("after %s: log line %v", test.what, line)
			}
		}
		// A path that is not there is a 429 now as well, and one that costs
		// nothing is still free.
		if a := from(test.client, "GET", "/nowhere"); a.status != 429 {
			t.Errorf("after %s: an unknown path is %d, want 429", test.what, a.status)
		}
		if a := from(test.client, "GET", "/free"); a.status != 200 {
			t.Errorf("after %s: a free route is %d", test.what, a.status)
		}
	}
	if a := from("203.0.113.4", "GET", "/closed", "X-API-Key", key); a.status != 200 {
		t.Errorf("the caller from an address that is not used up: %d", a.status)
	}
	if got := g.sum("gateway_ratelimit_decisions_total", `limit="edge-ip"`, `outcome="denied"`, `route="unmatched"`); got == 0 {
		t.Error("denials at the edge of requests without a route are not counted")
	}
	if got := g.sum("gateway_auth_total", `outcome="refused"`); got != 0 {
		t.Errorf("%v credentials were looked at behind a closed edge", got)
	}
}

// An edge limit's number is per instance, whatever store the plans have.
func TestAnEdgeLimitCountsPerInstance(t *testing.T) {
	u := newUpstream(t, nil)
	s := addressSite(t, u.URL, "")
	s.write("routes.yaml", addressRoutes(u.URL, "", `"127.0.0.1:0"`)+redisStore(redistest.Start(t).URL())+"\n")
	for i := range 2 {
		g := s.start()
		if got := admitted(t, 20, func(int) answer { return g.get("/open") }); got != 5 {
			t.Errorf("instance %d admits %d, want 5", i, got)
		}
	}
}

// FIELD-REPORTS I07: a table that is full gives nobody a fresh budget: those who came before keep
// their counts, and those who come later share one.
func TestCrowdingTheTableBuysNoBudget(t *testing.T) {
	u := newUpstream(t, nil)
	s := addressSite(t, u.URL, localProxy)
	s.write("routes.yaml", addressRoutes(u.URL, localProxy, `"127.0.0.1:0"`)+"store: {memory: {max_keys: 100}}\n")
	g := s.start()
	from := func(i int) answer {
		return g.get("/open", "X-Forwarded-For", fmt.Sprintf("203.%d.113.%d", i/250, i%250+1))
	}
	// The first spends all it has, and fifty more come while there is room.
	if got := admitted(t, 10, func(int) answer { return from(0) }); got != 5 {
		t.Fatalf("%d of 10 admitted, want 5", got)
	}
	if got := admitted(t, 50, func(i int) answer { return from(1 + i) }); got != 50 {
		t.Errorf("%d of 50 new addresses admitted while there is room", got)
	}
	if got := g.value("gateway_store_overflow_total"); got != 0 {
		t.Errorf("%v overflows while there is room", got)
	}
	crowd := admitted(t, 1000, func(i int) answer { return from(100 + i) })
	if crowd < 49 || crowd > 49+5 {
		t.Errorf("%d of 1000 admitted; want the 49 that find room and 5 for all the others", crowd)
	}
	if got := g.value("gateway_store_overflow_total"); got < 900 {
		t.Errorf("gateway_store_overflow_total is %v", got)
	}
	if got := admitted(t, 10, func(int) answer { return from(0) }); got != 0 {
		t.Errorf("who had spent everything gets %d more by crowding", got)
	}
	if got := admitted(t, 10, func(int) answer { return from(1) }); got != 4 {
		t.Errorf("who had 4 left gets %d", got)
	}
}

// A proxy that forwards connections says in front of each whom it comes from. That
// is the peer then: its budget is spent, and what it says of itself is not believed
// unless it is a proxy of ours too.
func TestWhomAProxyNamesInFrontOfAConnectionIsThePeer(t *testing.T) {
	u := newUpstream(t, nil)
	g := addressSite(t, u.URL, localProxy+", proxy_protocol: true").start()
	ask := func(source, preamble, fields string) answer {
		c := g.dialFrom(source)
		defer func() { _ = c.Close() }()
		c.say(preamble + "GET /open HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" + fields + "\r\n")
		return c.hearAll("GET")
	}
	named := func(client string) string { return "PROXY TCP4 " + client + " 192.0.2.1 40000 443\r\n" }
	forged := func(i int) string { return fmt.Sprintf("X-Forwarded-For: 203.0.113.%d\r\n", i) }
	if got := admitted(t, 20, func(i int) answer { return ask("", named("198.51.100.7"), forged(i)) }); got != 5 {
		t.Errorf("the first client: %d of 20 admitted, want 5", got)
	}
	h := u.last(t).Header
	if got := [2]string{h.Get("X-Real-Ip"), h.Get("X-Forwarded-For")}; got != [2]string{"198.51.100.7", "198.51.100.7"} {
		t.Errorf("the upstream is told %q, want the client that was named, and nothing that it says of itself", got)
	}
	if got := admitted(t, 20, func(int) answer { return ask("", named("198.51.100.8"), "") }); got != 5 {
		t.Errorf("the next client: %d of 20 admitted, want 5", got)
	}
	// A proxy of ours in front of that one is believed in its turn.
	if got := admitted(t, 20, func(i int) answer { return ask("", named("10.0.0.1"), forged(i)) }); got != 20 {
		t.Errorf("clients behind two proxies: %d of 20 admitted, want all: each has a budget", got)
	}
	// Who is no proxy of ours and begins so sends no HTTP.
	if a := ask("127.0.0.2", named("198.51.100.9"), ""); a.status != 400 {
		t.Errorf("somebody else's header: %d, want 400", a.status)
	}
	if a := ask("127.0.0.2", "", ""); a.status != 200 {
		t.Errorf("somebody else without a header: %d, want 200", a.status)
	}
	// A proxy of ours without one says nothing that can be believed.
	c := g.dialFrom("")
	c.say("GET /open HTTP/1.1\r\nHost: a\r\n\r\n")
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Errorf("a proxy without a header hears %q (%v), want nothing", b, err)
	}
	const unsaid = "a connection from a trusted proxy was closed, since it does not say whom it comes from (said once an hour; gateway_proxy_headers_refused_total counts them)"
	eventually(t, "the operator is told why", func() bool { return len(g.all(unsaid)) == 1 })
	if line := g.all(unsaid)[0]; !contains(str(line, "error"), "without a header") || !contains(str(line, "do"), "client_ip.proxy_protocol") {
		t.Errorf("the operator is told %v", line)
	}
	if n := g.metrics()[`gateway_proxy_headers_refused_total{reason="missing"}`]; n != "1" {
		t.Errorf("%q connections without a header are counted, want 1", n)
	}
	// Where it names nobody, nobody vouches for what the client says of itself.
	const socket = "\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\xd8"
	for name, preamble := range map[string]string{
		"unknown": "PROXY UNKNOWN\r\n", "itself": "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00",
		"unspecified": "\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00\x00", "a socket": socket + strings.Repeat("\x00", 216),
	} {
		ask("", preamble, forged(99))
		if a := u.last(t).Header.Get("X-Forwarded-For"); a != "127.0.0.1" {
			t.Errorf("%s: the upstream is told %q, want the proxy", name, a)
		}
	}
}
