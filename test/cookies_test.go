package test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// cookieSite is a site whose tokens come in the cookie session.
func cookieSite(t *testing.T, u *upstream, setting string) *weatherSite {
	s := newWeatherSite(t, u, "")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [127.0.0.2]}
auth:
  jwt:
    - {issuer: https://login.example.com/, audience: [weather-api], algorithms: [HS256], secret_file: secret, cookie: session`+setting+`}
  api_keys: {file: keys.yaml}
upstreams: {weather: {targets: ["`+u.URL+`"]}}
routes:
  - {name: plain, path: /plain, upstream: weather, cost: 0}
  - {name: maybe, path: /maybe, upstream: weather, cost: 0, auth: optional}
  - {name: app, path: /app, upstream: weather, cost: 0, cors: {origins: ["https://app.example.com", "https://*.example.org"], credentials: true}}
  - {name: anybody, path: /anybody, upstream: weather, cost: 0, cors: {origins: ["https://app.example.com"]}}
  - {name: passing, path: /passing, upstream: weather, cost: 0, forward_credentials: true}
  - {name: paid, path: /paid, upstream: weather}
`)
	s.write("plans.yaml", weatherPlans+"  anonymous: {limits: []}\nanonymous_plan: anonymous\n")
	return s
}

// A page of another site has a browser send the caller's cookie, and the API is not
// asked for anything in the caller's name (cross-site request forgery). Whoever sends
// the cookie themselves is not kept from anything.
func TestAPageOfAnotherSiteCannotUseTheCookie(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := cookieSite(t, u, "")
	key := s.key("-user", "keyed", "-plan", "free")
	g := s.start()
	token := s.token("priya123", nil)
	cookie := []string{"Cookie", "session=" + token}
	bearer := []string{"Authorization", "Bearer " + token}
	from := func(site, origin string) (fields []string) {
		if site != "" {
			fields = append(fields, "Sec-Fetch-Site", site)
		}
		if origin != "" {
			fields = append(fields, "Origin", origin)
		}
		return fields
	}
	own := g.url
	const evil, app = "https://evil.example.net", "https://app.example.com"
	refused := 0.0
	for i, tt := range []struct {
		method, path string
		who, fields  []string
		status       int
	}{
		// What browsers say of a page of another site.
		{"POST", "/plain", cookie, from("cross-site", evil), 403},
		{"POST", "/plain", cookie, from("same-site", "https://other.example.com"), 403},
		{"POST", "/plain", cookie, from("cross-site", ""), 403},
		{"POST", "/plain", cookie, from("", evil), 403},
		{"POST", "/plain", cookie, from("", "null"), 403},
		{"POST", "/plain", cookie, from("something-new", own), 403},
		{"POST", "/plain", cookie, append(from("same-origin", own), from("cross-site", evil)...), 403}, // said twice
		{"POST", "/plain", cookie, append(from("same-origin", own), "Sec-Fetch-Site", "cross-site"), 403},
		{"POST", "/plain", cookie, append(from("", own), "Origin", evil), 403},
		{"PUT", "/plain", cookie, from("cross-site", evil), 403},
		{"DELETE", "/plain", cookie, from("cross-site", evil), 403},
		{"PATCH", "/plain", cookie, from("", evil), 403},
		{"POST", "/plain", cookie, from("cross-site", app), 403}, // the route has no CORS
		{"POST", "/maybe", cookie, from("cross-site", evil), 403},
		{"POST", "/passing", cookie, from("cross-site", evil), 403},
		{"POST", "/plain", cookie, append(from("", evil), "X-Forwarded-Host", "evil.example.net"), 403}, // of no trusted proxy
		// What changes nothing.
		{"GET", "/plain", cookie, from("cross-site", evil), 200},
		{"HEAD", "/plain", cookie, from("cross-site", evil), 200},
		{"OPTIONS", "/plain", cookie, from("cross-site", evil), 200},
		// The site's own pages, and what is no page.
		{"POST", "/plain", cookie, from("same-origin", own), 200},
		{"POST", "/plain", cookie, from("none", ""), 200},
		{"POST", "/plain", cookie, from("", own), 200},
		{"POST", "/plain", cookie, nil, 200},
		// What no browser adds unasked.
		{"POST", "/plain", bearer, from("cross-site", evil), 200},
		{"POST", "/plain", append(bearer, cookie...), from("cross-site", evil), 200},
		{"POST", "/plain", []string{"X-API-Key", key}, from("cross-site", evil), 200},
		{"POST", "/maybe", nil, from("cross-site", evil), 200},
		// Pages that may use the route with credentials, and that may without.
		{"POST", "/app", cookie, from("cross-site", app), 200},
		{"POST", "/app", cookie, from("", "https://shop.example.org"), 200},
		{"POST", "/app", cookie, from("cross-site", "https://example.org.evil.example.net"), 403},
		{"POST", "/app", cookie, from("cross-site", evil), 403},
		{"POST", "/app", cookie, from("cross-site", ""), 403},
		{"POST", "/anybody", cookie, from("cross-site", app), 403},
	} {
		before := u.count()
		a := send(t, tt.method, g.url+tt.path, nil, append(append([]string{}, tt.who...), tt.fields...)...)
		name := fmt.Sprintf("%d: %s %s %q", i, tt.method, tt.path, tt.fields)
		if a.status != tt.status || u.count()-before != map[bool]int{true: 1}[tt.status == 200] {
			t.Errorf("%s: %d, want %d; %d reached the upstream", name, a.status, tt.status, u.count()-before)
			continue
		}
		if a.status == 403 {
			if line := g.requestLine(a.field("X-Request-Id")); line["denied_by"] != "cross_origin" || line["user"] != "priya123" {
				t.Errorf("%s: logged as %v", name, line)
			}
			if tt.path == "/plain" {
				refused++
			}
		}
	}
	if got := g.value(`gateway_forbidden_total{reason="cross_origin",route="plain"}`); got != refused {
		t.Errorf("%v counted, want %v", got, refused)
	}
	for range 30 {
		send(t, "POST", g.url+"/paid", nil, append(cookie, from("cross-site", evil)...)...)
	}
	if a := send(t, "POST", g.url+"/paid", nil, cookie...); a.status != 200 || !strings.Contains(a.field("RateLimit"), "r=19") {
		t.Errorf("after thirty forgeries the caller has %q", a.field("RateLimit"))
	}
}

// CORS keeps no page from opening a WebSocket; the handshake is a GET.
func TestAPageOfAnotherSiteCannotOpenAWebSocketWithTheCookie(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
		w.WriteHeader(http.StatusSwitchingProtocols)
	})
	s := cookieSite(t, u, "")
	g := s.start()
	token := s.token("priya123", nil)
	handshake := func(path, fields string) int {
		c := g.dial()
		defer c.Close()
		c.say("GET " + path + " HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + fields + "\r\n")
		return c.hear("GET").StatusCode
	}
	for _, tt := range []struct {
		path, fields string
		status       int
	}{
		{"/plain", "Cookie: session=" + token + "\r\nOrigin: https://evil.example.net\r\n", 403},
		{"/plain", "Cookie: session=" + token + "\r\nOrigin: https://evil.example.net\r\nSec-Fetch-Site: cross-site\r\n", 403},
		{"/plain", "Cookie: session=" + token + "\r\nOrigin: https://api.example.com\r\n", 101},
		{"/plain", "Cookie: session=" + token + "\r\n", 101},
		{"/app", "Cookie: session=" + token + "\r\nOrigin: https://app.example.com\r\n", 101},
		{"/plain", "Authorization: Bearer " + token + "\r\nOrigin: https://evil.example.net\r\n", 101},
	} {
		if got := handshake(tt.path, tt.fields); got != tt.status {
			t.Errorf("%s with %.20s…%s: %d, want %d", tt.path, tt.fields, tt.fields[len(tt.fields)-40:], got, tt.status)
		}
	}
	// A proxy of ours asks for its own name and says which one the browser asked for.
	c := g.dialFrom("127.0.0.2")
	c.say("POST /plain HTTP/1.1\r\nHost: gateway.internal\r\nX-Forwarded-Host: api.example.com\r\nContent-Length: 0\r\n" +
		"Cookie: session=" + token + "\r\nOrigin: https://api.example.com\r\n\r\n")
	if a := c.hearAll("POST"); a.status != 200 {
		t.Errorf("a page of the site, behind a proxy: %d", a.status)
	}
}

// cookie_cross_origin: allow lets every page's requests count.
func TestCookiesCountForOtherSitesWhereThatIsSaid(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := cookieSite(t, u, ", cookie_cross_origin: allow")
	g := s.start()
	a := send(t, "POST", g.url+"/plain", nil, "Cookie", "session="+s.token("priya123", nil), "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example.net")
	if a.status != 200 {
		t.Errorf("%d", a.status)
	}
}

// The token's cookie stops here, or goes on where the route says so; other cookies
// go on byte for byte, however odd.
func TestOtherCookiesGoOnByteForByte(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := cookieSite(t, u, "")
	g := s.start()
	token := s.token("priya123", nil)
	for sent, want := range map[string]string{
		"session=" + token:                                 "",
		"a=1; session=" + token + "; b=2":                  "a=1; b=2",
		"session=" + token + "; a=\"x y\"; =odd; c; d=e=f": `a="x y"; =odd; c; d=e=f`,
		"a=%20;b=\xc3\xa9; session=" + token + ";  c=3 ":   "a=%20;b=\xc3\xa9;  c=3",
		"Session=x; mysession=y; session=" + token:         "Session=x; mysession=y",
	} {
		for path, cookies := range map[string]string{"/plain": want, "/passing": strings.TrimSpace(sent)} {
			a := g.ask("GET " + path + " HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\nCookie: " + sent + "\r\n\r\n")
			if a.status != 200 {
				t.Errorf("%s %q: %d", path, sent, a.status)
				continue
			}
			if got := strings.Join(u.last(t).Header["Cookie"], "|"); got != cookies {
				t.Errorf("%s: of %q the upstream gets %q, want %q", path, sent, got, cookies)
			}
		}
	}
}
