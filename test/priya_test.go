package test

import (
	"crypto/rand"
	"encoding/base64"
	"strconv"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"bouncer/internal/redistest"
)

// A weatherSite is the configuration of Priya's story: a plan of 100 a minute
// with a burst of 20, and all three ways to say who one is.
type weatherSite struct {
	*site
	secret []byte // of the tokens
}

const weatherPlans = `
default_plan: free
plans:
  free:
    limits:
      - {name: per-minute, algorithm: token_bucket, limit: 100/minute, burst: 20}
`

// newWeatherSite is a site in front of u. storeYAML is the store section, empty
// for memory.
func newWeatherSite(t testing.TB, u *upstream, storeYAML string) *weatherSite {
	s := &weatherSite{site: newSite(t)}
	raw := make([]byte, 32)
	_, _ = rand.Read(raw)
	s.secret = []byte(base64.RawURLEncoding.EncodeToString(raw))
	s.write("secret", string(s.secret)+"\n")
	s.write("plans.yaml", weatherPlans)
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
`+storeYAML+`
auth:
  jwt:
    - issuer: https://login.example.com/
      audience: [weather-api]
      algorithms: [HS256]
      secret_file: secret
      cookie: session
      claims: {user: sub, tenant: org, plan: plan}
  api_keys: {file: keys.yaml, header: X-API-Key}
upstreams:
  weather: {targets: ["`+u.URL+`"]}
routes:
  - {name: weather, path: /api/weather, methods: [GET], upstream: weather}
`)
	s.write("keys.yaml", "keys: []\n")
	return s
}

// token signs a token for user; change may alter its claims.
func (s *weatherSite) token(user string, change func(jwt.MapClaims)) string {
	s.t.Helper()
	claims := jwt.MapClaims{
		"iss": "https://login.example.com/", "aud": "weather-api", "sub": user,
		"exp": time.Now().Add(time.Hour).Unix(),
	}
	if change != nil {
		change(claims)
	}
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(s.secret)
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

func redisStore(url string) string {
	return "store: {redis: {url: \"" + url + "\", timeout: 2s}}"
}

// Priya may make 100 requests a minute, 20 of them at once. She makes 20: all
// pass. The 21st is told to come back in a second, and that is the truth.
func TestPriyasStory(t *testing.T) {
	t.Parallel() // it mostly waits
	stores := map[string]func(t *testing.T) string{
		"memory": func(*testing.T) string { return "" },
		"redis":  func(t *testing.T) string { return redisStore(redistest.Start(t).URL()) },
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t, nil)
			s := newWeatherSite(t, u, store(t))
			key := s.key("-user", "by-key", "-plan", "free")
			g := s.start()
			priyaByToken := []string{"Authorization", "Bearer " + s.token("by-token", nil)}
			t.Run("api key", func(t *testing.T) { story(t, g, u, "X-API-Key", key) })
			t.Run("bearer token", func(t *testing.T) { story(t, g, u, priyaByToken...) })
			t.Run("session cookie", func(t *testing.T) {
				story(t, g, u, "Cookie", "theme=dark; session="+s.token("by-cookie", nil))
			})
			t.Run("the token and the cookie are one caller", func(t *testing.T) {
				for range 10 {
					if a := g.get("/api/weather", "Authorization", "Bearer "+s.token("both", nil)); a.status != 200 {
						t.Fatalf("by token: %d", a.status)
					}
				}
				a := g.get("/api/weather", "Cookie", "session="+s.token("both", nil))
				if a.status != 200 || remaining(t, a) > 10 {
					t.Errorf("by cookie, after 10 by token: %d with %d remaining; want at most 10", a.status, remaining(t, a))
				}
			})
		})
	}
}

// story is told by whoever the fields say is calling.
func story(t *testing.T, g *gateway, u *upstream, who ...string) {
	t.Helper()
	before := u.count()
	began := time.Now()
	for i := range 20 {
		a := g.get("/api/weather", who...)
		if a.status != 200 {
			t.Fatalf("request %d: %d %s", i+1, a.status, a.body)
		}
		if got, want := a.field("RateLimit-Policy"), `"per-minute";q=100;w=60`; got != want {
			t.Fatalf("RateLimit-Policy: %q, want %q", got, want)
		}
		// Tokens come back every 600 ms while the loop runs.
		back := int64(time.Since(began)/(600*time.Millisecond)) + 1
		if r, least := remaining(t, a), int64(19-i); r < least || r > least+back {
			t.Errorf("request %d: %d remaining, want %d to %d", i+1, r, least, least+back)
		}
	}
	var denied answer
	for range 10 { // on a slow machine a token or two came back meanwhile
		if denied = g.get("/api/weather", who...); denied.status != 200 {
			break
		}
	}
	if denied.status != 429 || denied.field("Retry-After") != "1" || remaining(t, denied) != 0 {
		t.Fatalf("the 21st: %d, Retry-After %q, %d remaining; want 429, 1, 0",
			denied.status, denied.field("Retry-After"), remaining(t, denied))
	}
	if got, want := denied.field("RateLimit"), `"per-minute";r=0;t=1`; got != want {
		t.Errorf("RateLimit: %q, want %q", got, want)
	}
	p := denied.problem(t)
	if p["type"] != "https://iana.org/assignments/http-problem-types#quota-exceeded" || p["status"] != 429.0 {
		t.Errorf("problem: %v", p)
	}
	if violated, _ := p["violated-policies"].([]any); len(violated) != 1 || violated[0] != "per-minute" {
		t.Errorf("violated-policies: %v", p["violated-policies"])
	}
	reached := u.count() - before
	time.Sleep(time.Second) // the promise under test is about time
	if a := g.get("/api/weather", who...); a.status != 200 {
		t.Errorf("after waiting exactly Retry-After: %d", a.status)
	}
	if got := u.count() - before; got != reached+1 {
		t.Errorf("%d requests reached the upstream after the denial, want 1", got-reached)
	}
}

func remaining(t testing.TB, a answer) int64 {
	t.Helper()
	n, err := strconv.ParseInt(a.field("X-RateLimit-Remaining"), 10, 64)
	if err != nil {
		t.Fatalf("X-RateLimit-Remaining of a %d: %v", a.status, err)
	}
	return n
}
