package test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"bouncer/internal/redistest"
)

const adminToken = "the-admin-token-of-this-test"

// callersSite is a site with two plans, limits of every kind, an admin token, and keys
// of priya (free) and sam (pro).
func callersSite(t testing.TB, store string) (s *site, priya, sam string) {
	t.Helper()
	u := newUpstream(t, nil)
	s = newSite(t)
	s.write("token", adminToken+"\n")
	s.write("routes.yaml", `listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
admin: {token_file: token}
`+store+`
client_ip: {trusted_proxies: [127.0.0.1/32]}
auth: {api_keys: {file: keys.yaml}}
edge: [crowd]
limits: {crowd: {per: ip, algorithm: fixed_window, limit: 1000/hour}, export: {per: user, algorithm: fixed_window, limit: 2/hour}, everybody: {per: global, algorithm: fixed_window, limit: 5000/hour}, by-device: {per: "header:X-Device", algorithm: fixed_window, limit: 900/hour}}
upstreams: {api: {targets: ["`+u.URL+`"]}}
routes:
  - {name: weather, path: "/weather/*", upstream: api, limits: [everybody, by-device]}
  - {name: export, path: /export, upstream: api, limits: [export]}
  - {name: open, path: /open, upstream: api, auth: none}
`)
	s.write("plans.yaml", `default_plan: free
anonymous_plan: anonymous
plans:
  free: {limits: [{name: per-minute, per: user, algorithm: fixed_window, limit: 5/hour}, {name: per-route, per: [user, route], algorithm: fixed_window, limit: 100/hour}]}
  pro: {limits: [{name: per-minute, per: user, algorithm: fixed_window, limit: 50/hour}]}
  anonymous: {limits: [{name: per-minute, per: ip, algorithm: fixed_window, limit: 3/hour}]}
`)
	priya = s.key("-user", "priya123", "-plan", "free", "-tenant", "acme", "-id", "k-priya")
	sam = s.key("-user", "sam", "-plan", "pro", "-id", "k-sam")
	return s, priya, sam
}

// askAdmin reads a JSON answer of the admin listener.
func (g *gateway) askAdmin(path string, into any) answer {
	g.t.Helper()
	a := send(g.t, "GET", g.admin+path, nil)
	if a.status == 200 && into != nil {
		if err := json.Unmarshal([]byte(a.body), into); err != nil {
			g.t.Fatalf("%s: %v in %s", path, err, a.body)
		}
	}
	return a
}

type shownLimit struct {
	Name, Plan, Route, From, Partition, Mode, Rule, Source string
	Per                                                    []string
	Quota, Capacity, Remaining                             int64
	Used                                                   *int64
	RetryAfter                                             *int64 `json:"retry_after_s"`
	Resettable                                             bool
}

type shownCaller struct {
	Kind, Name string
	Known      bool
	Identity   struct {
		User, Tenant, Plan string
		KeyID              string   `json:"key_id"`
		AuthMethod         string   `json:"auth_method"`
		PlanFrom           string   `json:"plan_from"`
		ClientIPs          []string `json:"client_ips"`
		LastSeen           *string  `json:"last_seen"`
		Key                *struct {
			ID       string
			LastUsed *string `json:"last_used"`
			Routes   []string
		}
	}
	Crowd *struct {
		Users      int
		UserAgents int `json:"user_agents"`
	}
	Limits   []shownLimit
	Reduced  bool
	Unlisted []string
	Minutes  struct{ Allowed, Denied, Refused []int }
	Denials  []map[string]any
}

func (g *gateway) caller(kind, name string) (c shownCaller) {
	g.t.Helper()
	if a := g.askAdmin("/api/caller?kind="+kind+"&name="+url.QueryEscape(name), &c); a.status != 200 {
		g.t.Fatalf("%s %s: %d %s", kind, name, a.status, a.body)
	}
	return c
}

// limit returns a limit of the caller by its name and route.
func (c shownCaller) limit(t testing.TB, name, route string) shownLimit {
	t.Helper()
	i := slices.IndexFunc(c.Limits, func(l shownLimit) bool { return l.Name == name && l.Route == route })
	if i < 0 {
		t.Fatalf("no limit %s of route %q among %+v", name, route, c.Limits)
	}
	return c.Limits[i]
}

func sum(ns []int) (n int) {
	for _, k := range ns {
		n += k
	}
	return n
}

// Whoever is on call types a part of a name, and sees who it is, how each limit
// stands, and what was denied, whole. Looking costs the caller nothing.
func TestACallersLimitsAreShown(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			setting := ""
			if store == "redis" {
				setting = `store: {redis: {url: "redis://` + redistest.Start(t).Addr() + `", timeout: 2s}}`
			}
			s, priya, sam := callersSite(t, setting)
			g := s.start()
			for i := range 8 {
				want := 200
				if i >= 5 {
					want = 429
				}
				if a := g.get("/weather/x", "X-API-Key", priya, "X-Forwarded-For", "203.0.113.7", "User-Agent", "agent-a"); a.status != want {
					t.Fatalf("request %d: %d, want %d", i, a.status, want)
				}
			}
			g.get("/export", "X-API-Key", sam, "X-Forwarded-For", "203.0.113.7", "User-Agent", "agent-b")
			g.get("/export", "X-API-Key", priya+"x", "X-Forwarded-For", "203.0.113.7")

			var found struct {
				Callers []struct {
					Kind, Name, Plan string
					Requests, Denied int
				}
				More bool
			}
			g.askAdmin("/api/callers?q=PRIYA", &found)
			if got := fmt.Sprint(found); got != "{[{user priya123 free 8 3} {key k-priya free 8 3}] false}" {
				t.Errorf("found %s", got)
			}

			for range 3 {
				c := g.caller("user", "priya123")
				id := c.Identity
				if !c.Known || id.User != "priya123" || id.Tenant != "acme" || id.KeyID != "k-priya" || id.AuthMethod != "api_key" || id.Plan != "free" ||
					id.PlanFrom != "the key" || fmt.Sprint(id.ClientIPs) != "[203.0.113.7]" || id.LastSeen == nil || id.Key == nil || id.Key.LastUsed == nil {
					t.Errorf("identity %+v", id)
				}
				l := c.limit(t, "per-minute", "")
				if l.Used == nil || *l.Used != 5 || l.Remaining != 0 || l.Quota != 5 || l.Source != store || l.Partition != "{user:priya123}" || l.From != "plan" ||
					l.Plan != "free" || l.Rule != "5/hour" || l.RetryAfter == nil || *l.RetryAfter < 3000 {
					t.Errorf("per-minute stands at %+v", l)
				}
				if l := c.limit(t, "per-route", "weather"); *l.Used != 5 || l.Remaining != 95 || l.RetryAfter != nil {
					t.Errorf("per-route of weather stands at %+v", l)
				}
				if l := c.limit(t, "per-route", "export"); *l.Used != 0 {
					t.Errorf("per-route of export stands at %+v", l)
				}
				if l := c.limit(t, "export", "export"); *l.Used != 0 || l.From != "route" || l.Plan != "" {
					t.Errorf("export stands at %+v", l)
				}
				if l := c.limit(t, "everybody", "weather"); *l.Used != 5 || l.Resettable {
					t.Errorf("everybody's stands at %+v", l)
				}
				if l := c.limit(t, "crowd", ""); *l.Used != 10 || l.From != "edge" || l.Source != "memory" || l.Partition != "{ip:203.0.113.7}" {
					t.Errorf("the edge's stands at %+v", l)
				}
				if c.Reduced || c.Crowd != nil || fmt.Sprint(c.Unlisted) != "[by-device]" || sum(c.Minutes.Allowed) != 5 || sum(c.Minutes.Denied) != 3 || len(c.Denials) != 3 {
					t.Errorf("of priya123: %+v", c)
				}
			}
			d := g.caller("key", "k-priya").Denials[0]
			decisions, _ := json.Marshal(d["decisions"])
			if d["user"] != "priya123" || d["status"] != 429.0 || d["denied_by"] != "per-minute" || d["path"] != "/weather/x" || d["client_ip"] != "203.0.113.7" ||
				!contains(string(decisions), `"limit":"per-minute"`, `"allowed":false`, `"per":["user"]`, `"partition":"{user:priya123}"`, `"mode":"enforce"`, `"remaining":0`, `"limit":"everybody"`) {
				t.Errorf("denied: %v", d)
			}
			line := g.requestLine(fmt.Sprint(d["request_id"]))
			for name, value := range d {
				if was, ok := line[name]; name != "decisions" && name != "duration_ms" && (!ok || fmt.Sprint(was) != fmt.Sprint(value)) {
					t.Errorf("%s is %v, and %v in the access log", name, value, was)
				}
			}

			// The address has two people behind it; the wrong key is nobody's.
			c := g.caller("ip", "203.0.113.7")
			if c.Crowd == nil || c.Crowd.Users != 2 || c.Crowd.UserAgents != 3 || c.Identity.User != "" || c.Identity.Plan != "anonymous" ||
				sum(c.Minutes.Refused) != 1 || sum(c.Minutes.Allowed) != 6 || sum(c.Minutes.Denied) != 3 {
				t.Errorf("the address: %+v", c)
			}
			// One of whom nothing is known but what the key file says, and nobody at all.
			if c := g.caller("user", "nobody"); c.Known || c.Identity.Plan != "free" || !strings.HasPrefix(c.Identity.PlanFrom, "default_plan, since") || *c.limit(t, "per-minute", "").Used != 0 {
				t.Errorf("nobody: %+v", c)
			}
		})
	}
}

// FIELD-REPORTS H05: the list of who is denied is bounded and the operator's alone; and no key ever
// stands in what is told or logged.
func TestH05TopDeniedKeysExposesIdentities(t *testing.T) {
	t.Parallel()
	s, priya, _ := callersSite(t, "")
	const hostile = "<img src=x onerror=alert(1)>\u202egnp'\""
	evil := s.key("-user", hostile, "-id", "k-evil")
	routes, err := os.ReadFile(s.path("routes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("routes.yaml", strings.Replace(string(routes), `admin: "127.0.0.1:0"`, `admin: "0.0.0.0:0"`, 1))
	g := s.start()
	g.admin = strings.Replace(g.admin, "[::]", "127.0.0.1", 1)
	for range 8 {
		g.get("/weather/x", "X-API-Key", priya)
		g.get("/weather/x", "X-API-Key", evil)
		g.get("/open?api_key="+priya, "X-Forwarded-For", "203.0.113.9")
	}
	asks := []string{
		"/api/top-denied", "/api/callers?q=priya", "/api/caller?kind=user&name=priya123", "/api/caller?kind=ip&name=203.0.113.9", "/api/denials", "/api/denials.jsonl",
		"/api/caller?kind=user&name=" + url.QueryEscape(hostile), "/api/callers?q=" + url.QueryEscape("<img"),
	}
	for _, path := range asks {
		if a := send(t, "GET", g.admin+path, nil); a.status != 401 || contains(a.body, "priya123") {
			t.Errorf("%s without the token: %d %s", path, a.status, a.body)
		}
		a := send(t, "GET", g.admin+path, nil, "Authorization", "Bearer "+adminToken)
		if a.status != 200 || strings.Contains(a.body, priya) || strings.Contains(a.body, evil) || strings.Contains(a.body, "<img") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	// What looks like a key or a token is neither looked for nor written down.
	for _, secret := range []string{priya, "Bearer " + priya, adminToken, "Bearer " + adminToken, adminToken + " ", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwcml5YTEyMyJ9.c2lnbmF0dXJl"} {
		for _, path := range []string{"/api/callers?q=", "/api/caller?kind=key&name=", "/api/denials?q=", "/api/denials.jsonl?user="} {
			a := send(t, "GET", g.admin+path+url.QueryEscape(secret), nil, "Authorization", "Bearer "+adminToken)
			if a.status != 400 || !contains(fmt.Sprint(a.problem(t)["detail"]), "looks like a whole key or token") || strings.Contains(a.body, secret) {
				t.Errorf("%s%.12s…: %d %s", path, secret, a.status, a.body)
			}
		}
		if strings.Contains(g.output(), secret) {
			t.Errorf("%.12s… is in the log", secret)
		}
	}
	var found struct{ Callers []struct{ Name string } }
	a := send(t, "GET", g.admin+"/api/callers?q="+url.QueryEscape("<IMG"), nil, "Authorization", "Bearer "+adminToken)
	if err := json.Unmarshal([]byte(a.body), &found); err != nil || len(found.Callers) != 1 || found.Callers[0].Name != hostile {
		t.Errorf("found %s, %v", a.body, err)
	}
}

// What was denied can be played again with other limits.
func TestDenialsAreReadBySimulate(t *testing.T) {
	t.Parallel()
	s, priya, _ := callersSite(t, "")
	g := s.start()
	for range 8 {
		g.get("/weather/a%2Fb?q=1", "X-API-Key", priya, "X-Forwarded-For", "203.0.113.7")
		g.get("/export", "X-Forwarded-For", "203.0.113.9", "Host", `we"ird`)
	}
	for range 6 {
		g.get("/open", "X-Forwarded-For", "2001:db8::1")
	}
	a := send(t, "GET", g.admin+"/api/denials.jsonl", nil)
	lines := strings.Split(strings.TrimSpace(a.body), "\n")
	if a.status != 200 || a.field("Content-Type") != "application/jsonl" || !strings.HasPrefix(a.field("Content-Disposition"), "attachment") || len(lines) < 4 {
		t.Fatalf("%d %v\n%s", a.status, a.header, a.body)
	}
	s.write("denials.jsonl", a.body)
	r := s.command("simulate", "-log", "denials.jsonl", "-json")
	var result struct {
		Requests, Denied int
		Skipped          map[string]int
		Malformed        int
	}
	if err := json.Unmarshal([]byte(r.stdout), &result); err != nil {
		t.Fatalf("exit %d: %v\n%s%s", r.code, err, r.stdout, r.stderr)
	}
	if result.Requests != len(lines) || result.Malformed != 0 {
		t.Errorf("of %d denials %+v\n%s%s", len(lines), result, r.stdout, r.stderr)
	}
	// Filters, and what is wrong with one.
	count := func(query string) int {
		var out struct {
			Denials []map[string]any
			Kept    int
			Oldest  *string
		}
		if a := g.askAdmin("/api/denials?"+query, &out); a.status != 200 || out.Kept != len(lines) || out.Oldest == nil {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
		return len(out.Denials)
	}
	for query, want := range map[string]int{
		"": len(lines), "user=priya123": 3, "key_id=k-priya": 3, "ip=203.0.113.7": 3, "ip=2001:db8::/32": 3, "route=open": 3, "plan=free": 3,
		"limit=per-minute": len(lines), "limit=crowd": 0, "status=429": len(lines), "status=503": 0, "since=2100-01-01T00:00:00Z": 0, "q=PRIYA": 3, "n=2": 2,
	} {
		if got := count(query); got != want {
			t.Errorf("%q lists %d, want %d", query, got, want)
		}
	}
	for _, query := range []string{"n=0", "n=x", "n=2001", "status=200", "status=x", "since=yesterday", "ip=x", "usr=x", "n=1&n=2", "q=%zz"} {
		if a := g.askAdmin("/api/denials?"+query, nil); a.status != 400 || a.problem(t)["detail"] == "" {
			t.Errorf("%q: %d %s", query, a.status, a.body)
		}
	}
}
