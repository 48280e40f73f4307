package test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// identitySite is a site that takes tokens in the header and a cookie, and keys, and
// counts callers by who they are.
func identitySite(t *testing.T, u *upstream, failures string) *weatherSite {
	s := newWeatherSite(t, u, "")
	s.write("plans.yaml", `
default_plan: free
anonymous_plan: free
plans: {free: {limits: [{name: per-day, algorithm: fixed_window, limit: 1000/day}]}}
`)
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
auth:
  jwt:
    - {issuer: https://login.example.com/, audience: [weather-api], algorithms: [HS256], secret_file: secret, cookie: session, claims: {tenant: org, plan: plan}}
  api_keys: {file: keys.yaml}
  failure_limit: `+failures+`
upstreams: {weather: {targets: ["`+u.URL+`"]}}
routes:
  - {name: weather, path: /api/weather, upstream: weather}
  - {name: maybe, path: /maybe, upstream: weather, auth: optional}
  - {name: public, path: /public, upstream: weather, auth: none}
`)
	return s
}

// Schemes have no case and may be followed by several spaces; what is malformed is no
// credential of nobody, but a bad one.
func TestE10SchemeSpellingAndSpacing(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := identitySite(t, u, "off")
	g := s.start()
	token := s.token("priya123", nil)
	for _, tt := range []struct {
		fields          string
		required, maybe int // the status on a route that needs credentials, and on one that takes them
	}{
		{"Authorization: Bearer " + token, 200, 200},
		{"Authorization: bearer " + token, 200, 200},
		{"Authorization: BEARER  " + token, 200, 200},
		{"authorization: bEaReR    " + token, 200, 200},
		{"Authorization: \t Bearer " + token + " \t", 200, 200},
		{"Authorization: Bearer\t" + token, 401, 401},
		{"Authorization: Bearer", 401, 401},
		{"Authorization: Bearer ", 401, 401},
		{"Authorization: Bearer " + token + "," + token, 401, 401},
		{"Authorization: Bearer, " + token, 401, 401},
		{"Authorization: Bearer " + token + " " + token, 401, 401},
		{"Authorization: Bearer \"" + token + "\"", 401, 401},
		{"Authorization: Bearer " + token + "\r\nAuthorization: Bearer " + token, 401, 401},
		{"Authorization: Basic dTpw\r\nAuthorization: Bearer " + token, 401, 401},
		{"Authorization: Bearer " + strings.Repeat("x", 16<<10), 401, 401},
		{"Authorization: Bearer " + strings.Repeat("x", 64<<10), 431, 431},
		// Another scheme is the upstream's business, and says nobody here.
		{"Authorization: Token " + token, 401, 200},
		{"Authorization: Basic dTpw", 401, 200},
		{"Authorization: " + token, 401, 200},
		{"Authorization:", 401, 200},
		// What is no HTTP gets no further.
		{"Authorization: Bearer " + token[:20] + "\n" + token[20:], 400, 400},
		{"Authorization: Bearer " + token[:20] + "\x00" + token[20:], 400, 400},
		{"Authorization: Bearer " + token[:20] + "\r" + token[20:], 400, 400},
	} {
		for path, want := range map[string]int{"/api/weather": tt.required, "/maybe": tt.maybe} {
			before := u.count()
			a := g.ask("GET " + path + " HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n" + tt.fields + "\r\n\r\n")
			name := fmt.Sprintf("%s with %.50q (%d bytes)", path, tt.fields, len(tt.fields))
			if a.status != want {
				t.Errorf("%s: %d, want %d", name, a.status, want)
			}
			if a.status == 401 && a.field("Www-Authenticate") != `Bearer realm="gateway"` {
				t.Errorf("%s: WWW-Authenticate %q", name, a.header["Www-Authenticate"])
			}
			if a.status != 200 && u.count() != before {
				t.Errorf("%s reached the upstream", name)
			}
		}
	}
}

// The first credential present decides, alone: a bad one is never made good by another,
// and whom the upstream is told of is who pays.
func TestE11HeaderTokenAndSessionCookieTogether(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := identitySite(t, u, "off")
	key, other := s.key("-user", "keyed"), s.key("-user", "other")
	g := s.start()
	of := func(user string) string { return s.token(user, nil) }
	expired := s.token("expired", func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Hour).Unix() })
	header := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	cookie := func(token string) []string { return []string{"Cookie", "session=" + token} }
	apiKey := func(key string) []string { return []string{"X-API-Key", key} }
	scheme := func(key string) []string { return []string{"Authorization", "ApiKey " + key} }
	and := func(lists ...[]string) (all []string) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	spent := map[string]int{}
	for i, tt := range []struct {
		fields []string
		user   string // empty: 401
	}{
		{and(header(of("a")), cookie(expired)), "a"},
		{and(header(of("b")), cookie(of("a"))), "b"},
		{and(cookie(of("a")), header(of("b"))), "b"}, // their order makes no difference
		{and([]string{"Authorization", "Bearer"}, cookie(of("a"))), ""},
		{and(header("x.y.z"), cookie(of("a"))), ""},
		{and(header(expired), cookie(of("a"))), ""},
		{and([]string{"Authorization", "Basic dTpw"}, cookie(of("a"))), "a"},
		{and([]string{"Authorization", ""}, cookie(of("a"))), "a"},
		{cookie(of("a") + "; session=" + of("b")), ""},
		{cookie(of("b") + "; other=1; session=" + expired), ""},
		{and(cookie(of("a")), cookie(of("b"))), ""},
		{and(cookie("same"), cookie(of("a"))), ""},
		{cookie(expired), ""},
		{and(header(of("a")), apiKey(key)), "a"},
		{and(header(of("a")), apiKey("wrong")), "a"},
		{and(header(expired), apiKey(key)), ""},
		{and(cookie(of("a")), apiKey(key)), "a"},
		{and(cookie(expired), apiKey(key)), ""},
		{and(cookie(""), apiKey(key)), "keyed"}, // what a logout leaves behind
		{and(cookie(of("a")), scheme(key)), "a"},
		{and(cookie(expired), scheme(key)), ""},
		{and(apiKey(key), scheme(other)), "keyed"},
		{and(apiKey("wrong"), scheme(other)), ""},
		{and(apiKey(key), apiKey(other)), ""},
		{and(header(of("a")), scheme(key)), ""},
		{and(header(of("a")), header(of("b"))), ""},
	} {
		before := u.count()
		a := g.get("/api/weather", tt.fields...)
		if tt.user == "" {
			if a.status != 401 || u.count() != before {
				t.Errorf("%d: %d, want 401; %d reached the upstream", i, a.status, u.count()-before)
			}
			continue
		}
		if a.status != 200 {
			t.Errorf("%d: %d, want %s", i, a.status, tt.user)
			continue
		}
		spent[tt.user]++
		if got := u.last(t).Header["X-Auth-User"]; len(got) != 1 || got[0] != tt.user {
			t.Errorf("%d: the upstream is told of %q, want %s", i, got, tt.user)
		}
		if want := fmt.Sprintf(`"per-day";r=%d;`, 1000-spent[tt.user]); !strings.HasPrefix(a.field("RateLimit"), want) {
			t.Errorf("%d: %s pays, and RateLimit is %q, want %s", i, tt.user, a.field("RateLimit"), want)
		}
	}
}

// Who a caller is comes from the gateway alone: where it knows nobody, or only a part,
// the upstream is told nothing in place of it, however a client spells what it claims.
func TestE13IdentityFieldsOfAClientNeverSurvive(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var trailers http.Header
	u := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		trailers = r.Trailer.Clone()
		mu.Unlock()
	})
	s := identitySite(t, u, "off")
	g := s.start()
	var filler strings.Builder
	for i := range 150 {
		fmt.Fprintf(&filler, "X-Filler-%d: %d\r\n", i, i)
	}
	var forged, late strings.Builder
	for _, name := range []string{"User", "Tenant", "Plan", "Key-Id"} {
		for _, spelling := range []string{"X-Auth-" + name, "x-auth-" + strings.ToLower(name), "X_Auth_" + strings.ReplaceAll(name, "-", "_"), "x.auth." + name, "X-AUTH-" + strings.ToUpper(name)} {
			fmt.Fprintf(&forged, "%s: admin\r\n%s: root\r\n", spelling, spelling)
			fmt.Fprintf(&late, "%s: admin\r\n", spelling)
		}
	}
	// Names of other gateways are nobody's here, and go through as they are.
	const kin = "X-Consumer-Groups: admins\r\nX-User-Id: 1\r\n"
	nobodys := map[string]string{"X-Consumer-Groups": "admins", "X-User-Id": "1"}
	bearer := func(org, plan any) string {
		return "Authorization: Bearer " + s.token("priya123", func(c jwt.MapClaims) { c["org"], c["plan"] = org, plan }) + "\r\n"
	}
	for _, tt := range []struct {
		path, credential string
		want             map[string]string
	}{
		{"/public", "", map[string]string{"X-Auth-Plan": "free"}},
		{"/public", bearer("acme", "free"), map[string]string{"X-Auth-Plan": "free"}},
		{"/maybe", "", map[string]string{"X-Auth-Plan": "free"}},
		{"/maybe", bearer("", ""), map[string]string{"X-Auth-User": "priya123", "X-Auth-Plan": "free"}},
		{"/api/weather", bearer(nil, nil), map[string]string{"X-Auth-User": "priya123", "X-Auth-Plan": "free"}},
		{"/api/weather", bearer("acme", "free"), map[string]string{"X-Auth-User": "priya123", "X-Auth-Tenant": "acme", "X-Auth-Plan": "free"}},
	} {
		for name, head := range map[string]string{"first": forged.String() + kin, "after 150 others": filler.String() + forged.String() + kin} {
			// X-Auth-User is declared as a trailer as well, and named in Connection.
			a := g.ask("POST " + tt.path + " HTTP/1.1\r\nHost: api.example.com\r\nConnection: close, X-Auth-User\r\n" + tt.credential + head +
				"Trailer: X-Auth-User, X-Consumer-Groups\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + late.String() + "X-Consumer-Groups: late\r\n\r\n")
			if a.status != 200 {
				t.Errorf("%s, %s: %d %s", tt.path, name, a.status, a.body)
				continue
			}
			h := u.last(t).Header
			for field, values := range h {
				said := strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(field))
				if strings.HasPrefix(said, "x-auth-") && (len(values) != 1 || values[0] != tt.want[field]) {
					t.Errorf("%s, %s: the upstream gets %s: %q", tt.path, name, field, values)
				}
			}
			for field, value := range tt.want {
				if h.Get(field) != value {
					t.Errorf("%s, %s: the upstream gets %s: %q, want %q", tt.path, name, field, h.Get(field), value)
				}
			}
			for field, value := range nobodys {
				if h.Get(field) != value {
					t.Errorf("%s, %s: %s is %q: it is the client's own", tt.path, name, field, h.Get(field))
				}
			}
			mu.Lock()
			for field, values := range trailers {
				if said := strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(field)); strings.HasPrefix(said, "x-auth-") && len(values) > 0 {
					t.Errorf("%s, %s: the upstream gets the trailer %s: %q", tt.path, name, field, values)
				}
			}
			if trailers.Get("X-Consumer-Groups") != "late" {
				t.Errorf("%s, %s: trailers %v, want those that are nobody's", tt.path, name, trailers)
			}
			mu.Unlock()
		}
	}
}

// Bad tokens and keys use up an address's failures, and are not looked at after that.
// Good callers behind the same address who are known go on; others wait.
func TestE14FailedTokensAreLimited(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func(s *weatherSite, i int) []string{
		"tokens": func(s *weatherSite, i int) []string {
			good := s.token(fmt.Sprintf("guess-%d", i), nil)
			return []string{"Authorization", "Bearer " + good[:len(good)-6] + "AAAAAA"}
		},
		"keys":    func(_ *weatherSite, i int) []string { return []string{"X-API-Key", fmt.Sprintf("guess-%d", i)} },
		"cookies": func(_ *weatherSite, i int) []string { return []string{"Cookie", fmt.Sprintf("session=a.b.%d", i)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, nil)
			s := identitySite(t, u, "100/hour")
			key := s.key("-user", "keyed")
			g := s.start()
			known := []string{"Authorization", "Bearer " + s.token("known", nil)}
			unknown := []string{"Authorization", "Bearer " + s.token("unknown", nil)}
			for _, fields := range [][]string{known, {"X-API-Key", key}} {
				if a := g.get("/api/weather", fields...); a.status != 200 {
					t.Fatalf("before: %d", a.status)
				}
			}
			statuses := map[int]int{}
			for i := range 150 {
				a := g.get("/api/weather", bad(s, i)...)
				statuses[a.status]++
				if want := map[bool]int{true: 401, false: 429}[i < 100]; a.status != want {
					t.Fatalf("attempt %d: %d, want %d", i+1, a.status, want)
				}
				if a.status == 429 && (a.field("Retry-After") == "" || a.problem(t)["type"] != "https://iana.org/assignments/http-problem-types#abnormal-usage-detected") {
					t.Fatalf("attempt %d: %v %s", i+1, a.header, a.body)
				}
			}
			if fmt.Sprint(statuses) != "map[401:100 429:50]" {
				t.Errorf("%v", statuses)
			}
			for i, tt := range []struct {
				fields []string
				status int
			}{{known, 200}, {[]string{"X-API-Key", key}, 200}, {unknown, 429}, {nil, 401}} {
				if a := g.get("/api/weather", tt.fields...); a.status != tt.status {
					t.Errorf("afterwards, %d: %d, want %d", i, a.status, tt.status)
				}
			}
			// Another address has failures of its own.
			c := g.dialFrom("127.0.0.2")
			c.say("GET /api/weather HTTP/1.1\r\nHost: api.example.com\r\n" + unknown[0] + ": " + unknown[1] + "\r\n\r\n")
			if a := c.hearAll("GET"); a.status != 200 {
				t.Errorf("from another address: %d", a.status)
			}
			if n := g.value(`gateway_auth_total{method="none",outcome="not_looked_at"}`); n != 51 {
				t.Errorf("%v were not looked at, want 51", n)
			}
		})
	}
}
