package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bouncer/gateway/ratelimit"
)

// A brokenStore is a stage with a mistake in it.
type brokenStore struct{}

func (brokenStore) Take(context.Context, []ratelimit.Charge, []ratelimit.Decision) ([]ratelimit.Decision, error) {
	panic("a mistake of ours")
}

// A brokenWriter fails in the middle of a body.
type brokenWriter struct{ http.ResponseWriter }

func (brokenWriter) Write([]byte) (int, error) { panic("a mistake of ours") }

// FIELD-REPORTS H08: a panic of a stage is one request's 500, one in the middle of an
// answer breaks that answer off; both are counted and logged, without what the request
// had for secrets (H04), and nothing stays in flight.
func TestAPanicLeavesNothingInFlight(t *testing.T) {
	t.Parallel()
	u := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	defer u.Close()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"plans.yaml": "anonymous_plan: a\nplans: {a: {limits: [{name: m, per: ip, algorithm: fixed_window, limit: 1000/minute}]}}\n",
		"routes.yaml": `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
upstreams: {a: {targets: ["` + u.URL + `"]}}
routes:
  - {name: decides, path: /decides, upstream: a, auth: none}
  - {name: writes, path: /writes, upstream: a, auth: none}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	g, err := New(Options{Routes: filepath.Join(dir, "routes.yaml"), Plans: filepath.Join(dir, "plans.yaml"), Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	const secret = "canary-3f9c"
	request := func(path string) *http.Request {
		r := httptest.NewRequest("GET", path+"?token="+secret, nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		r.Header.Set("Cookie", "session="+secret)
		return r
	}
	m, refused := g.current.Load().routes.match(request("/decides"))
	if refused != nil {
		t.Fatal(refused)
	}
	m.route.store = brokenStore{}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, request("/decides"))
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "request_id") || strings.Contains(w.Body.String(), "mistake") {
		t.Errorf("before an answer: %d %s", w.Code, w.Body)
	}
	func() {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
				t.Errorf("in the middle of an answer net/http is told %v, want that it is to break it off", p)
			}
		}()
		g.ServeHTTP(brokenWriter{httptest.NewRecorder()}, request("/writes"))
	}()
	scrape := httptest.NewRecorder()
	g.telemetry.Handler().ServeHTTP(scrape, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`gateway_in_flight{route="decides"} 0`, `gateway_in_flight{route="writes"} 0`,
		`gateway_requests_total{code="500",method="GET",route="decides"} 1`, `gateway_request_duration_seconds_count{route="decides"} 1`,
		`gateway_request_duration_seconds_count{route="writes"} 1`,
	} {
		if !strings.Contains(scrape.Body.String(), want+"\n") {
			t.Errorf("the metrics do not say %s", want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Run(ended, nil); err != nil { // writes what is left of the log
		t.Error(err)
	}
	lines := map[string]int{}
	for text := range strings.Lines(log.String()) {
		var line struct{ Msg, Path, Stack string }
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line.Msg, "panic while serving") && line.Stack == "" {
			t.Errorf("without the place: %s", text)
		}
		lines[line.Msg+line.Path]++
	}
	if lines["panic while serving a request; please report it"] != 2 || lines["request/decides"] != 1 || lines["request/writes"] != 1 {
		t.Errorf("the log has %v", lines)
	}
	if strings.Contains(log.String()+w.Body.String(), secret) {
		t.Errorf("a secret is in the log:\n%s", log.String())
	}
}
