package test

import (
	"strings"
	"testing"
)

// The fields of an answer are in the words of the text of the draft that the
// operator chose, and say what the request cost where that text has a word for it.
func TestTheFieldsAreInTheChosenWords(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := newSite(t)
	routes := func(ietf string) string {
		return `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_headers: {ietf: ` + ietf + `, legacy: off}
client_ip: {trusted_proxies: [127.0.0.1]}
limits: {crowd: {per: ip, algorithm: fixed_window, limit: 1/hour}}
edge: [crowd]
upstreams: {weather: {targets: ["` + u.URL + `"]}}
routes: [{name: export, path: /export, upstream: weather, auth: none, cost: 10}]
`
	}
	s.write("plans.yaml", "anonymous_plan: a\nplans: {a: {limits: [{name: day, per: ip, algorithm: fixed_window, limit: 25/day}]}}\n")
	s.write("routes.yaml", routes("draft-11"))
	g := s.start()
	for i, c := range []struct{ ietf, served, edge string }{
		{"draft-11", `"day";r=15;t=86400`, `"crowd";r=0;t=3600`},
		{"draft-12", `"day";a=15;w=86400;c=10`, `"crowd";a=0;w=3600;c=1`},
		{"both", `"day";r=15;t=86400;a=15;w=86400;c=10`, `"crowd";r=0;t=3600;a=0;w=3600;c=1`},
		{"off", "", ""},
	} {
		if i > 0 {
			s.write("routes.yaml", routes(c.ietf))
			if !g.reload() {
				t.Fatalf("%s is refused", c.ietf)
			}
		}
		from := "203.0.113." + string(rune('1'+i)) // an address of its own, so that nothing is spent yet
		served, denied := g.get("/export", "X-Forwarded-For", from), g.get("/export", "X-Forwarded-For", from)
		if served.status != 200 || served.field("RateLimit") != c.served {
			t.Errorf("%s: %d with RateLimit %q, want %q", c.ietf, served.status, served.field("RateLimit"), c.served)
		}
		if denied.status != 429 || denied.field("RateLimit") != c.edge {
			t.Errorf("%s, at the edge: %d with RateLimit %q, want %q", c.ietf, denied.status, denied.field("RateLimit"), c.edge)
		}
		if policy := served.field("RateLimit-Policy"); strings.Contains(policy, `"day";q=25;w=86400`) == (c.ietf == "off") {
			t.Errorf("%s: RateLimit-Policy %q", c.ietf, policy)
		}
	}
}
