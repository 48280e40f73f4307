package test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"bouncer/internal/otlptest"
	"bouncer/internal/redistest"
)

// A search looks for secrets in whatever the gateway puts out.
type search struct {
	t       testing.TB
	secrets map[string]string   // by what they are
	forms   map[string][]string // what to look for, for each
	looked  int
	found   map[string]bool
}

func newSearch(t testing.TB) *search {
	return &search{t: t, secrets: map[string]string{}, forms: map[string][]string{}, found: map[string]bool{}}
}

// secret makes a secret that stands nowhere else, and remembers it.
func (s *search) secret(what string) string {
	text := fmt.Sprintf("canary/%d+%x", len(s.secrets), []byte(what))
	s.add(what, text)
	return text
}

// add remembers a secret in the forms in which it could be put out: as it is,
// percent-encoded, in hex, and in base64 wherever it begins.
func (s *search) add(what, text string) {
	s.secrets[what] = text
	forms := []string{text, url.QueryEscape(text), url.PathEscape(text), hex.EncodeToString([]byte(text)), fmt.Sprint([]byte(text))}
	for shift := range 3 {
		// What shares three bytes with its neighbours is cut off.
		padded := append(make([]byte, shift), text...)
		from, to := 0, len(padded)/3*4
		if shift > 0 {
			from = 4
		}
		for _, e := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			forms = append(forms, e.EncodeToString(padded)[from:to])
		}
	}
	slices.Sort(forms)
	s.forms[what] = slices.Compact(forms)
}

// in looks for all of them in what came out at a place.
func (s *search) in(place, text string) {
	s.looked++
	for what, forms := range s.forms {
		for _, form := range forms {
			if strings.Contains(text, form) && !s.found[what+place] {
				s.found[what+place] = true
				at := strings.Index(text, form)
				s.t.Errorf("%s is in %s, as %q: …%q…", what, place, form, text[max(0, at-60):min(len(text), at+len(form)+20)])
			}
		}
	}
}

func (s *search) inAnswer(place string, a answer) {
	var b strings.Builder
	_ = a.header.Write(&b)
	s.in(place, b.String()+"\n"+a.body)
}

func (s *search) inResult(place string, r result) { s.in(place, r.stdout+"\n"+r.stderr) }

// A search that finds nothing could be one that cannot.
func TestASearchFindsASecretInEveryForm(t *testing.T) {
	t.Parallel()
	secret := "canary/1+abcdef"
	for name, text := range map[string]string{
		"plain": secret, "a query": "?a=" + url.QueryEscape(secret), "hex": fmt.Sprintf("%x", "x"+secret),
		"basic":  base64.StdEncoding.EncodeToString([]byte("a:" + secret + "z")),
		"basic2": base64.StdEncoding.EncodeToString([]byte("ab:" + secret)),
		"basic3": base64.URLEncoding.EncodeToString([]byte(secret + ":x")),
		"bytes":  fmt.Sprint([]byte(secret)),
	} {
		quiet := &search{t: &silentTB{TB: t}, secrets: map[string]string{}, forms: map[string][]string{}, found: map[string]bool{}}
		quiet.add("it", secret)
		quiet.in("there", text)
		if len(quiet.found) != 1 {
			t.Errorf("not found as %s: %s", name, text)
		}
	}
}

type silentTB struct{ testing.TB }

func (*silentTB) Errorf(string, ...any) {}

// FIELD-REPORTS H04: nothing that is secret comes out anywhere: each secret that there can be is put
// where it can be, and then every output there is is looked through.
func TestH04SecretsInLogs(t *testing.T) {
	t.Parallel()
	l := newSearch(t)
	srv := redistest.Start(t, "--requirepass", l.secret("the password of Redis"))
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusInternalServerError)
	}))
	t.Cleanup(provider.Close)
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/breaks":
			panic(http.ErrAbortHandler)
		case "/fails":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/slow":
			select {
			case <-r.Context().Done():
			case <-time.After(patience):
			}
		}
	})
	s := newSite(t)
	secret := l.secret("the secret of HS256") + strings.Repeat("x", 40)
	s.write("secret", secret)
	s.write("admin-token", l.secret("the token of the admin listener"))
	s.write("redis-password", l.secrets["the password of Redis"])
	s.write("plans.yaml", "default_plan: free\nanonymous_plan: free\nplans: {free: {limits: [{name: m, algorithm: fixed_window, limit: 1000/minute}]}, tiny: {limits: [{name: d, algorithm: fixed_window, limit: 1/day}]}}\n")
	s.write("keys.yaml", "keys: []\n")
	collector := otlptest.Start(t)
	s.write("collector-fields", "Authorization: Bearer "+l.secret("what goes with traces")+"\n")
	s.env = []string{"UPSTREAM_AUTH=" + l.secret("what the environment has for the upstream")}
	routes := func(redis, more string) string {
		return `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
log: {level: debug}
traces: {endpoint: "` + collector.URL + `", sample: 100%, headers_file: collector-fields}
admin: {token_file: admin-token}
store: {redis: {` + redis + `, timeout: 2s}}
auth:
  failure_limit: off
  jwt:
    - {issuer: a, audience: weather-api, algorithms: [HS256], secret_file: secret, cookie: session}` + more + `
  api_keys: {file: keys.yaml, query: api_key}
upstreams:
  api: {targets: ["` + u.URL + `"], timeout: {response_header: 200ms}}
  away: {targets: ["http://` + deadAddress(t) + `"]}
routes:
  - {name: api, path: "/*", upstream: api, request_headers: {set: {Authorization: "Bearer ${UPSTREAM_AUTH}"}}}
  - {name: away, path: /away, upstream: away, forward_credentials: true}
  - {name: optional, path: /optional, upstream: api, auth: optional, max_body: 1}
  - {name: open, path: /open, upstream: api, auth: none}
`
	}
	inURL := "url: \"redis://:" + url.QueryEscape(l.secrets["the password of Redis"]) + "@" + strings.TrimPrefix(srv.Addr(), "redis://") + "\""
	inFile := "url: \"redis://" + srv.Addr() + "\", password_file: redis-password"
	s.write("routes.yaml", routes(inURL, ""))
	key, tiny := s.key("-user", "priya123"), s.key("-user", "priya7", "-plan", "tiny")
	l.add("an API key", key)
	l.add("the API key of a small plan", tiny)
	good, forged := signedBy(t, "a", []byte(secret)), signedBy(t, "a", []byte(strings.Repeat("another", 8)))
	expired, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"iss": "a", "aud": "weather-api", "sub": "late", "exp": 1}).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	for what, token := range map[string]string{"a token": good, "a forged token": forged, "an expired token": expired} {
		parts := strings.Split(token, ".")
		l.add(what+"'s claims", parts[1])
		l.add(what+"'s signature", parts[2])
	}
	guess := l.secret("a guess at a key")
	typo := key[:len(key)-1] + "~"
	l.add("an API key with a typo", typo[10:])
	basic := base64.StdEncoding.EncodeToString([]byte("priya:" + l.secret("a password in Basic")))
	other := l.secret("a cookie of the application")
	query := l.secret("a secret in a query of the application")
	g := s.start()

	ways := map[string][]string{
		"nothing": nil, "a key": {"X-API-Key", key}, "a small key": {"X-API-Key", tiny}, "a guess": {"X-API-Key", guess}, "a typo": {"X-API-Key", typo},
		"ApiKey": {"Authorization", "ApiKey " + key}, "ApiKey with a guess": {"Authorization", "apikey " + guess},
		"two keys": {"X-API-Key", key, "X-API-Key", guess},
		"a token":  {"Authorization", "Bearer " + good}, "a forged token": {"Authorization", "Bearer " + forged}, "an expired token": {"Authorization", "Bearer " + expired},
		"two tokens": {"Authorization", "Bearer " + good, "Authorization", "Bearer " + forged}, "bad form": {"Authorization", "Bearer\t" + good}, "words": {"Authorization", "Bearer " + good + " " + guess},
		"a cookie": {"Cookie", "session=" + good + "; app=" + other}, "a forged cookie": {"Cookie", "app=" + other + "; session=" + forged}, "bad cookies": {"Cookie", "session=" + good + "; session=" + forged + ";;=" + other + "; =\"" + other},
		"Basic": {"Authorization", "Basic " + basic}, "Digest": {"Authorization", "Digest response=" + guess}, "Proxy": {"Proxy-Authorization", "Basic " + basic, "X-API-Key", key},
		"long": {"X-API-Key", strings.Repeat(guess, 100)},
	}
	statuses := map[int]int{}
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		for _, path := range []string{"/fine", "/fails", "/breaks", "/away", "/optional", "/open", "/fine?token=" + url.QueryEscape(query), "/fine?api_key=" + url.QueryEscape(guess), "/fine?api_key=" + key + "&api_key=" + key, "/fine?api_key=" + key} {
			a := g.get(path, ways[way]...)
			statuses[a.status]++
			l.inAnswer("the answer to "+way+" at "+strings.SplitN(path, "?", 2)[0], a)
		}
	}
	for _, request := range []string{
		"GET /fine?api_key=" + key + " HTTP/9.9\r\nAuthorization: Bearer " + good + "\r\n\r\n",
		"GET  /" + guess + " \x00 HTTP/1.1\r\nX-API-Key: " + key + "\r\n\r\n",
		"GET /fine HTTP/1.1\r\nHost: a\r\nX-API-Key : " + key + "\r\n\r\n",
		"GET /fine HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + good + "\x01\r\n\r\n",
		"GET /fine HTTP/1.1\r\nHost: a\r\nCookie: session=" + good + "\r\nX-Long: " + strings.Repeat(guess, 3000) + "\r\n\r\n",
		"GET /fine HTTP/1.1\r\nHost: a\r\nHost: " + guess + "\r\nX-API-Key: " + key + "\r\n\r\n",
		"POST /optional HTTP/1.1\r\nHost: a\r\nX-API-Key: " + key + "\r\nContent-Length: 60\r\n\r\n" + strings.Repeat("p", 60),
		"GET /fine HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nX-API-Key: " + key + "\r\n\r\n",
		"CONNECT " + guess + ":443 HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic " + basic + "\r\n\r\n",
	} {
		a := g.ask(request)
		statuses[a.status]++
		l.inAnswer("the answer to what is malformed", a)
	}
	for _, method := range []string{"GET", "OPTIONS"} {
		leaver := g.dial()
		leaver.say(method + " /slow HTTP/1.1\r\nHost: a\r\nX-API-Key: " + key + "\r\nCookie: session=" + good + "\r\n\r\n")
		_ = leaver.Close()
	}
	a := g.get("/slow", "X-API-Key", key)
	statuses[a.status]++
	l.inAnswer("the answer to what takes too long", a)
	for _, want := range []int{200, 400, 401, 413, 429, 431, 502, 503, 504} {
		if statuses[want] == 0 {
			t.Errorf("nothing was answered %d, so that this does not look there: %v", want, statuses)
		}
	}

	admin := func(place string) {
		token := l.secrets["the token of the admin listener"]
		for _, path := range []string{"/", "/healthz", "/readyz", "/metrics", "/api/status", "/api/top-denied", "/api/live?once", "/api/history?window=5m", "/api/session", "/api/denials", "/api/denials.jsonl",
			"/api/callers?q=" + url.QueryEscape(key), "/api/callers?q=" + url.QueryEscape(guess), "/api/callers?q=priya", "/api/caller?kind=user&name=priya7", "/api/caller?kind=ip&name=127.0.0.1", "/api/caller?kind=key&name=" + url.QueryEscape(key), "/api/caller?kind=user&name=" + url.QueryEscape(good), "/nothing?token=" + url.QueryEscape(guess), "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
			l.inAnswer(place+" "+path, send(t, http.MethodGet, g.admin+path, nil, "Authorization", "Bearer "+token))
			l.inAnswer(place+" "+path+" with a guess", send(t, http.MethodGet, g.admin+path, nil, "Authorization", "Bearer "+guess))
		}
		l.inAnswer(place+" reload", send(t, http.MethodPost, g.admin+"/-/reload", nil, "Authorization", "Bearer "+token))
	}
	admin("the admin listener at")

	wrong := l.secret("a wrong password of Redis")
	userinfo := l.secret("the password in a jwks_url")
	withSet := "\n    - {issuer: b, audience: a, algorithms: [RS256], jwks_url: \"" + strings.Replace(provider.URL, "http://", "http://gateway:"+url.QueryEscape(userinfo)+"@", 1) + "/jwks\"}"
	for _, step := range []struct{ name, routes string }{
		{"the password in a file", routes(inFile, "")},
		{"a set of keys", routes(inFile, withSet)},
		{"a wrong field", routes(inURL, withSet) + "secrett: \"" + guess + "\"\n"},
		{"a broken file", routes(strings.Replace(inURL, "url: \"", "url: \"x", 1), "")},
		{"a wrong password of Redis", routes("url: \"redis://:"+wrong+"@"+srv.Addr()+"\"", "")},
		{"no YAML", routes(inURL+", password: '"+l.secrets["the password of Redis"], "")},
		{"a password of a wrong kind", routes("url: redis://127.0.0.1, password: ["+guess+"]", "")},
		{"a secret for a file", strings.Replace(routes(inURL, ""), "secret_file: secret", "secret_file: "+guess, 1)},
		{"a wrong encoding", strings.Replace(routes(inURL, ""), "secret_file: secret", "secret_file: secret, secret_encoding: hex", 1)},
	} {
		s.write("routes.yaml", step.routes)
		g.reload()
		admin("after " + step.name + ", the admin listener at")
		for _, args := range [][]string{
			{"check"}, {"check", "-json"}, {"check", "-print"}, {"check", "-print", "-json"}, {"doctor"}, {"test"}, {"keys", "list"},
			{"explain", "/fine", "-key", key}, {"explain", "/fine", "-key", guess}, {"explain", "/fine", "-token", good, "-json"}, {"explain", "/fine", "-token", forged, "-json"},
			{"explain", "/fine?api_key=" + key, "-redis"}, {"explain", "/fine", "-header", "Cookie: session=" + good}, {"explain", "-routes"},
		} {
			l.inResult("after "+step.name+", gateway "+strings.Join(args[:min(2, len(args))], " "), s.command(args...))
		}
	}
	s.write("routes.yaml", routes(inFile, ""))
	g.reload()
	s.write("access.log", `192.0.2.1 - - [30/Nov/2026:12:00:00 +0000] "GET /fine?api_key=`+key+`&token=`+url.QueryEscape(query)+` HTTP/1.1" 200 2 "-" "x"`+"\n")
	for _, args := range [][]string{{"simulate", "-log", "access.log"}, {"simulate", "-log", "access.log", "-json"}, {"simulate", "-log", "access.log", "-html"}} {
		l.inResult("gateway simulate", s.command(args...))
	}
	g.stop()
	l.in("the log", g.output())
	l.in("the traces", collector.Raw())
	if len(collector.Spans()) < 100 {
		t.Errorf("%d spans were sent, so that this does not look there", len(collector.Spans()))
	}
	l.in("standard error", g.stderr.String())
	t.Logf("%d outputs of answers %v", l.looked, statuses)
}
