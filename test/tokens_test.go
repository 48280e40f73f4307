package test

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"bouncer/gateway/auth/tokentest"
)

// tokenSite is a gateway that knows the issuers of the table of tokens.
func tokenSite(t *testing.T, u *upstream) *site {
	s := newSite(t)
	var y strings.Builder
	y.WriteString("listen: {http: \"127.0.0.1:0\", admin: \"127.0.0.1:0\"}\nauth:\n  failure_limit: off\n  jwt:\n")
	for n, i := range tokentest.Issuers() {
		fmt.Fprintf(&y, "    - issuer: %q\n      algorithms: [%s]\n      cookie: %s\n      leeway: %s\n", i.Issuer, strings.Join(i.Algorithms, ", "), i.Cookie, i.Leeway)
		fmt.Fprintf(&y, "      claims: {user: %q", i.Claims.User)
		if i.Claims.Tenant != "" {
			fmt.Fprintf(&y, ", tenant: %q, plan: %q", i.Claims.Tenant, i.Claims.Plan)
		}
		y.WriteString("}\n")
		if len(i.Audience) > 0 {
			fmt.Fprintf(&y, "      audience: [%s]\n", strings.Join(i.Audience, ", "))
		}
		name := fmt.Sprintf("issuer-%d", n)
		for _, secret := range i.Secrets {
			s.write(name, string(secret)+"\n")
			fmt.Fprintf(&y, "      secret_file: %s\n", name)
		}
		var keys strings.Builder
		for _, key := range i.PublicKeys {
			if err := pem.Encode(&keys, &pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(key))}); err != nil {
				t.Fatal(err)
			}
		}
		if keys.Len() > 0 {
			s.write(name, keys.String())
			fmt.Fprintf(&y, "      public_key_file: %s\n", name)
		}
	}
	fmt.Fprintf(&y, "upstreams:\n  weather: {targets: [%q]}\nroutes:\n  - {name: weather, path: /api/weather, upstream: weather}\n", u.URL)
	s.write("routes.yaml", y.String())
	s.write("plans.yaml", "default_plan: free\nplans:\n  free: {limits: []}\n")
	return s
}

// varying is what differs between any two answers.
var varying = regexp.MustCompile(`(?m)^(Date|X-Request-Id): .*$|"request_id":"[^"]*"`)

// Every refused token gets the same answer through the whole gateway, byte for
// byte, whatever is wrong with it and wherever it comes from, and the upstream
// hears nothing. Every good one is the caller whom the table names.
func TestEveryTokenThroughTheGateway(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	g := tokenSite(t, u).start()
	exchange := func(field string) string {
		c := g.dial()
		defer c.Close()
		c.say("GET /api/weather HTTP/1.1\r\nHost: g\r\nConnection: close\r\n" + field + "\r\n\r\n")
		b, err := io.ReadAll(c.in)
		if err != nil {
			t.Fatalf("read an answer: %v", err)
		}
		return string(b)
	}
	refusal := varying.ReplaceAllString(exchange("Authorization: Bearer x"), "")
	if !strings.HasPrefix(refusal, "HTTP/1.1 401 ") {
		t.Fatalf("no token at all: %s", refusal)
	}
	refused, accepted := 0, 0
	for _, tok := range tokentest.Table(time.Now()) {
		if tok.Fleeting() || strings.ContainsAny(tok.Text, "\r\n\x00") { // what ends the field is the server's business
			continue
		}
		user, good := tok.Accepted()
		for _, field := range []string{"Authorization: Bearer " + tok.Text, "Cookie: " + tokentest.Cookie + "=" + tok.Text} {
			before := u.count()
			got := exchange(field)
			switch {
			case good:
				accepted++
				if !strings.HasPrefix(got, "HTTP/1.1 200 ") || u.count() != before+1 {
					t.Errorf("%s, %.10s: %.200s, want it to pass", tok.Name, field, got)
				} else if r := u.last(t); r.Header.Get("X-Auth-User") != user || r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" {
					t.Errorf("%s, %.10s: the upstream sees %v, want the user %s and no token", tok.Name, field, r.Header, user)
				}
			default:
				refused++
				if text := varying.ReplaceAllString(got, ""); text != refusal {
					t.Errorf("%s, %.10s: it is told from the others:\n%s\nwant\n%s", tok.Name, field, text, refusal)
				}
				if u.count() != before {
					t.Errorf("%s, %.10s: it reached the upstream", tok.Name, field)
				}
			}
		}
	}
	if refused < 200 || accepted < 50 {
		t.Errorf("%d refused and %d accepted: half the table is gone", refused, accepted)
	}
	counted := 0
	for name, value := range g.metrics() {
		if strings.HasPrefix(name, "gateway_auth_total{") && !strings.Contains(name, `"accepted"`) {
			counted += must(strconv.Atoi(value))
		}
	}
	if counted != refused+1 {
		t.Errorf("%d refusals are counted, want %d", counted, refused+1)
	}
	if byReason, other := g.sum("gateway_auth_refused_total", ""), g.sum("gateway_auth_refused_total", `reason="other"`); byReason != float64(refused+1) || other != 0 {
		t.Errorf("%v refusals are counted by reason, %v of them under none of ours; want %d", byReason, other, refused+1)
	}
	if a := send(t, http.MethodGet, g.url+"/api/weather", nil); a.status != 401 {
		t.Errorf("without a token: %d", a.status)
	}
}

// A token that brings a key along, or points to one, is a bad token like any
// other: nobody looks where it points, whoever signed it.
func TestAlgorithmConfusionAndNone(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, "")
	g := s.start()
	var visits atomic.Int32
	attacker := serveConns(t, func(c net.Conn) {
		visits.Add(1)
		_ = c.Close()
	})
	forger := []byte("a secret that nobody configured, and it is long enough")
	token := func(key []byte, method jwt.SigningMethod, header ...any) string {
		tok := jwt.NewWithClaims(method, jwt.MapClaims{
			"iss": "https://login.example.com/", "aud": "weather-api", "sub": "priya123", "exp": time.Now().Add(time.Hour).Unix(),
		})
		for i := 0; i < len(header); i += 2 {
			tok.Header[header[i].(string)] = header[i+1]
		}
		return must(tok.SignedString(key))
	}
	if a := g.get("/api/weather", "Authorization", "Bearer "+token(s.secret, jwt.SigningMethodHS256)); a.status != 200 {
		t.Fatalf("a good token: %d %s", a.status, a.body)
	}
	tokens := map[string]string{
		"HS512 where HS256 is allowed": token(s.secret, jwt.SigningMethodHS512),
		"crit":                         token(s.secret, jwt.SigningMethodHS256, "crit", []string{"x"}),
		"b64":                          token(s.secret, jwt.SigningMethodHS256, "b64", false),
	}
	for _, key := range [][]byte{forger, s.secret} {
		for name, value := range map[string]any{
			"jku": "http://" + attacker + "/jwks.json", "x5u": "https://" + attacker + "/cert.pem", "x5c": []string{"MIIB"},
			"jwk": map[string]string{"kty": "oct", "k": base64.RawURLEncoding.EncodeToString(forger)},
		} {
			tokens[fmt.Sprintf("%s, signed with a key of %d bytes", name, len(key))] = token(key, jwt.SigningMethodHS256, name, value, "kid", "http://"+attacker+"/"+name)
		}
	}
	// The issuer as an address: nothing is discovered that is not configured.
	tokens["iss at the attacker"] = must(jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": "http://" + attacker, "aud": "weather-api", "sub": "priya123", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString(forger))
	before := u.count()
	for name, text := range tokens {
		for _, field := range [][]string{{"Authorization", "Bearer " + text}, {"Cookie", "session=" + text}} {
			if a := g.get("/api/weather", field...); a.status != 401 {
				t.Errorf("%s, %s: %d, want 401", name, field[0], a.status)
			}
		}
	}
	if n := visits.Load(); n != 0 || u.count() != before {
		t.Errorf("%d connections to where a token points, %d requests to the upstream; want none", n, u.count()-before)
	}
}

// The scheme may be written in any case and be followed by spaces; what else
// stands there is a bad credential, told like any other.
func TestSchemeSpellingAndSpacing(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := newWeatherSite(t, u, "")
	g := s.start()
	x := s.token("priya123", nil)
	for fields, want := range map[string]int{
		"Authorization: bearer " + x:                                         200,
		"Authorization: BEARER  " + x:                                        200,
		"authorization: Bearer " + x + " ":                                   200, // not part of the value
		"Authorization: Bearer\t" + x:                                        401,
		"Authorization: Bearer":                                              401,
		"Authorization: Bearer x,y":                                          401,
		"Authorization: Bearer " + x + ", Basic abc":                         401,
		"Authorization: Bearer " + x + " " + x:                               401,
		"Authorization: Token " + x:                                          401,
		"Authorization: Basic " + x:                                          401,
		"Authorization: Bearer " + x + "\r\nAuthorization: Bearer " + x:      401,
		"Authorization: Basic abc\r\nAuthorization: Bearer " + x:             401,
		"Authorization: Bearer " + x + "\x00":                                400,
		"Authorization: Bearer " + x + "\r\n folded":                         400,
		"Authorization: Bearer " + x + "\rX: y":                              400,
		"Authorization : Bearer " + x:                                        400,
		"Authorization: Bearer " + strings.Repeat("x", 64<<10):               431,
		"Cookie: session=" + x + "; session=" + x:                            200,
		"Cookie: session=" + x + "; session=y":                               401,
		"Cookie: session=" + x + "\r\nAuthorization: Bearer y":               401,
		"Authorization: Bearer " + x + "\r\nCookie: session=" + "an expired": 200,
	} {
		a := g.ask("GET /api/weather HTTP/1.1\r\nHost: g\r\nConnection: close\r\n" + fields + "\r\n\r\n")
		if a.status != want {
			t.Errorf("%.60q: %d, want %d", strings.ReplaceAll(fields, x, "TOKEN"), a.status, want)
		}
		if got := a.field("WWW-Authenticate"); (a.status == 401) != (got != "") {
			t.Errorf("%.60q: %d with WWW-Authenticate %q", strings.ReplaceAll(fields, x, "TOKEN"), a.status, got)
		}
	}
}
