package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/topk"
)

const token = "s3cret-admin-token"

// full offers everything.
func full() Options {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	return Options{
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "gateway_instances 1") }),
		Ready:   func() Readiness { return Readiness{Ready: true} },
		Reload:  func(context.Context) error { return nil },
		Info: func() Status {
			return Status{
				Version: "v1.2.3", StartedAt: at, ConfigHash: "0123456789abcdef", ConfigLoadedAt: at,
				Fallback: Fallback{Store: "redis"}, Instances: 3,
			}
		},
		TopDenied: func(k int) []topk.Entry {
			return []topk.Entry{{Key: "{user:priya123}", Count: 12.345678, Error: 0.5}, {Key: "{ip:203.0.113.7}", Count: 3}}[:min(k, 2)]
		},
		Token:    []byte(token),
		Loopback: true,
	}
}

// ask sends one request; fields are "Name: value".
func ask(o Options, method, target string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	r.Host = "127.0.0.1:9090"
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Add(name, value)
		}
	}
	rec := httptest.NewRecorder()
	New(o).ServeHTTP(rec, r)
	return rec
}

// problem checks that an answer is a problem document and returns its members.
func problem(t *testing.T, rec *httptest.ResponseRecorder) (p struct {
	Type, Title, Detail string
	Status              int
	RequestID           string `json:"request_id"`
	Errors              []string
}) {
	t.Helper()
	if ct := rec.Header().Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("Content-Type %q, want application/problem+json", ct)
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil {
		t.Fatalf("body %q: %v", rec.Body, err)
	}
	if p.Status != rec.Code || p.Title == "" || p.Detail == "" || p.RequestID == "" || p.RequestID != rec.Header().Get("X-Request-Id") {
		t.Errorf("incomplete problem %+v for status %d", p, rec.Code)
	}
	return p
}

const bearer = "Authorization: Bearer " + token

func TestWhoMaySeeWhat(t *testing.T) {
	all := map[string][]string{
		"open":    {"GET /healthz", "GET /readyz", "GET /metrics", "HEAD /healthz", "GET /assets/style.css", "GET /assets/app.js", "GET /api/session"},
		"reading": {"GET /", "GET /api/status", "GET /api/top-denied", "HEAD /api/status"},
		"guarded": {"POST /-/reload", "GET /debug/pprof/", "GET /debug/pprof/cmdline", "GET /debug/pprof/heap", "POST /debug/pprof/symbol"},
		"unknown": {"GET /nope", "GET /api/", "GET //metrics", "GET /metrics/", "GET /debug/pprof/nope", "GET /debug/pprof", "GET /assets/", "GET /assets", "GET /assets/index.html", "GET /assets/nope.js", "GET /index.html"},
	}
	for _, tc := range []struct {
		name     string
		loopback bool
		token    string
		field    string // Authorization
		want     map[string]int
	}{
		{"loopback", true, token, "", map[string]int{"open": 200, "reading": 200, "guarded": 401, "unknown": 404}},
		{"loopback, token", true, token, bearer, map[string]int{"open": 200, "reading": 200, "guarded": 200, "unknown": 404}},
		{"loopback, none configured", true, "", "", map[string]int{"open": 200, "reading": 200, "guarded": 403, "unknown": 404}},
		{"loopback, none configured, empty token", true, "", "Authorization: Bearer ", map[string]int{"open": 200, "reading": 200, "guarded": 403, "unknown": 404}},
		{"network", false, token, "", map[string]int{"open": 200, "reading": 401, "guarded": 401, "unknown": 401}},
		{"network, token", false, token, bearer, map[string]int{"open": 200, "reading": 200, "guarded": 200, "unknown": 404}},
		{"network, none configured", false, "", bearer, map[string]int{"open": 200, "reading": 403, "guarded": 403, "unknown": 403}},
	} {
		for kind, requests := range all {
			for _, request := range requests {
				t.Run(tc.name+"/"+request, func(t *testing.T) {
					o := full()
					o.Loopback, o.Token = tc.loopback, []byte(tc.token)
					method, path, _ := strings.Cut(request, " ")
					var fields []string
					if tc.field != "" {
						fields = append(fields, tc.field)
					}
					rec := ask(o, method, "http://127.0.0.1"+path, fields...)
					if rec.Code != tc.want[kind] {
						t.Fatalf("status %d, want %d: %s", rec.Code, tc.want[kind], rec.Body)
					}
					switch rec.Code {
					case 401:
						if got := rec.Header().Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer ") {
							t.Errorf("WWW-Authenticate %q", got)
						}
					case 403:
						if method != http.MethodHead && !strings.Contains(problem(t, rec).Detail, "admin.token_file") {
							t.Errorf("does not say which setting to add: %s", rec.Body)
						}
					}
					if rec.Code >= 400 && method != http.MethodHead {
						problem(t, rec)
					}
				})
			}
		}
	}
}

func TestOnlyTheTokenOpens(t *testing.T) {
	for _, tc := range []struct {
		fields []string
		want   int
	}{
		{[]string{bearer}, 200},
		{[]string{"Authorization: bearer " + token}, 200}, // schemes know no case, RFC 9110 section 11.1
		{[]string{"Authorization: Bearer  " + token}, 200},
		{[]string{"Authorization: Bearer " + token + "x"}, 401},
		{[]string{"Authorization: Bearer " + token[:len(token)-1]}, 401},
		{[]string{"Authorization: Bearer " + strings.ToUpper(token)}, 401},
		{[]string{"Authorization: Bearer"}, 401},
		{[]string{"Authorization: " + token}, 401},
		{[]string{"Authorization: Basic " + token}, 401},
		{[]string{bearer, bearer}, 401},
		{[]string{"X-Admin-Token: " + token}, 401},
		{[]string{"Cookie: token=" + token}, 401},
	} {
		called := false
		o := full()
		o.Reload = func(context.Context) error { called = true; return nil }
		rec := ask(o, http.MethodPost, "http://127.0.0.1/-/reload?token="+token, tc.fields...)
		if rec.Code != tc.want || called != (tc.want == 200) {
			t.Errorf("%q: status %d (reloaded: %v), want %d", tc.fields, rec.Code, called, tc.want)
		}
		if strings.Contains(rec.Body.String(), token) {
			t.Errorf("%q: the answer repeats the token", tc.fields)
		}
	}
}

func TestHostCheckStopsDNSRebinding(t *testing.T) {
	for _, tc := range []struct {
		host     string
		loopback bool
		want     int
	}{
		{"127.0.0.1:9090", true, 200},
		{"127.0.0.1", true, 200},
		{"[::1]:9090", true, 200},
		{"[::1]", true, 200},
		{"192.0.2.1", true, 200}, // an address cannot be rebound
		{"localhost:9090", true, 200},
		{"LOCALHOST.", true, 200},
		{"gateway.internal:9090", true, 200},
		{"", true, 200},
		{"attacker.example", true, 421},
		{"attacker.example:9090", true, 421},
		{"localhost.attacker.example", true, 421},
		{"127.0.0.1.attacker.example", true, 421},
		{"127.0.0.1:9090.attacker.example", true, 421},
		{"xn--localhost", true, 421},
		{"\xff", true, 421},
		{"attacker.example", false, 200}, // off loopback the token is what protects
	} {
		o := full()
		o.Loopback, o.Hostnames = tc.loopback, []string{"Gateway.Internal"}
		for _, path := range []string{"/", "/metrics", "/healthz"} {
			rec := ask(o, http.MethodGet, "http://127.0.0.1"+path, "Host: "+tc.host, bearer)
			if rec.Code != tc.want {
				t.Errorf("%s with Host %q, loopback %v: status %d, want %d", path, tc.host, tc.loopback, rec.Code, tc.want)
			}
			if rec.Code == 421 && strings.Contains(problem(t, rec).Detail, tc.host) {
				t.Errorf("the answer repeats the Host field: %s", rec.Body)
			}
		}
	}
}

func TestWrongMethodSaysWhichAreRight(t *testing.T) {
	for _, tc := range []struct{ method, path, allow string }{
		{http.MethodPost, "/healthz", "GET, HEAD"},
		{http.MethodDelete, "/metrics", "GET, HEAD"},
		{http.MethodGet, "/-/reload", "POST"},
		{http.MethodHead, "/-/reload", "POST"},
		{http.MethodOptions, "/api/status", "GET, HEAD"},
		{http.MethodPut, "/debug/pprof/symbol", "GET, HEAD, POST"},
	} {
		rec := ask(full(), tc.method, "http://127.0.0.1"+tc.path, bearer, "Origin: http://attacker.example")
		if rec.Code != 405 || rec.Header().Get("Allow") != tc.allow {
			t.Errorf("%s %s: %d, Allow %q; want 405, %q", tc.method, tc.path, rec.Code, rec.Header().Get("Allow"), tc.allow)
		}
	}
}

func TestReadiness(t *testing.T) {
	since := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name  string
		ready func() Readiness
		code  int
		body  string
	}{
		{"not said", nil, 200, `{"ready":true,"degraded":[]}`},
		{"ready", func() Readiness { return Readiness{Ready: true} }, 200, `{"ready":true,"degraded":[]}`},
		{"Redis away", func() Readiness {
			return Readiness{Ready: true, Degraded: []Degraded{{Part: "store", Since: since, Effect: "limits are counted per instance"}}}
		}, 200, `{"ready":true,"degraded":[{"part":"store","since":"2026-11-30T12:00:00Z","effect":"limits are counted per instance"}]}`},
		{"no configuration yet", func() Readiness { return Readiness{Reason: "no configuration is loaded"} }, 503,
			`{"ready":false,"reason":"no configuration is loaded","degraded":[]}`},
		{"draining, Redis away", func() Readiness {
			return Readiness{Reason: "shutting down", Degraded: []Degraded{{Part: "store", Since: since}}}
		}, 503, `{"ready":false,"reason":"shutting down","degraded":[{"part":"store","since":"2026-11-30T12:00:00Z"}]}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := full()
			o.Ready = tc.ready
			rec := ask(o, http.MethodGet, "http://127.0.0.1/readyz")
			var body bytes.Buffer
			if err := json.Compact(&body, rec.Body.Bytes()); err != nil {
				t.Fatal(err)
			}
			if rec.Code != tc.code || strings.TrimSpace(body.String()) != tc.body {
				t.Errorf("%d %s\nwant %d %s", rec.Code, body.String(), tc.code, tc.body)
			}
			// Alive in every one of these states.
			if rec := ask(o, http.MethodGet, "http://127.0.0.1/healthz"); rec.Code != 200 || rec.Body.String() != "ok\n" {
				t.Errorf("/healthz: %d %q", rec.Code, rec.Body)
			}
			if rec := ask(o, http.MethodHead, "http://127.0.0.1/readyz"); rec.Code != tc.code || rec.Body.Len() != 0 {
				t.Errorf("HEAD: %d with %d bytes", rec.Code, rec.Body.Len())
			}
		})
	}
}

func TestReload(t *testing.T) {
	t.Run("applied", func(t *testing.T) {
		rec := ask(full(), http.MethodPost, "http://127.0.0.1/-/reload", bearer)
		var got struct {
			Outcome    string `json:"outcome"`
			ConfigHash string `json:"config_hash"`
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || rec.Code != 200 || got.Outcome != "applied" || got.ConfigHash != "0123456789abcdef" {
			t.Errorf("%d %s (%v)", rec.Code, rec.Body, err)
		}
	})
	t.Run("rejected", func(t *testing.T) {
		mistakes := []string{`plans.yaml:14:14: plans.free: want "100/minute", got -7`, `routes.yaml:9:12: no plan "fre"`}
		o := full()
		o.Reload = func(context.Context) error { return errors.New(strings.Join(mistakes, "\n")) }
		rec := ask(o, http.MethodPost, "http://127.0.0.1/-/reload", bearer)
		if p := problem(t, rec); rec.Code != 422 || !slices.Equal(p.Errors, mistakes) {
			t.Errorf("%d %+v", rec.Code, p)
		}
	})
	t.Run("goes on when the operator hangs up", func(t *testing.T) {
		o := full()
		o.Reload = func(ctx context.Context) error { return ctx.Err() }
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/-/reload", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		rec := httptest.NewRecorder()
		New(o).ServeHTTP(rec, r)
		if rec.Code != 200 {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
	})
}

func TestLogNamesWhoAskedAndNoToken(t *testing.T) {
	var out bytes.Buffer
	o := full()
	o.Logger = slog.New(slog.NewJSONHandler(&out, nil))
	o.Reload = func(context.Context) error { return errors.New("a\nb") }
	ask(o, http.MethodPost, "http://127.0.0.1/-/reload", bearer)
	ask(o, http.MethodPost, "http://127.0.0.1/-/reload", "Authorization: Bearer wrong-"+token)
	got := out.String()
	for _, want := range []string{`"msg":"reload asked for on the admin listener"`, `"applied":false`, `"remote":"192.0.2.1:1234"`, `"msg":"admin request refused"`, `"reason":"token"`} {
		if !strings.Contains(got, want) {
			t.Errorf("log lacks %s:\n%s", want, got)
		}
	}
	if strings.Contains(got, token) {
		t.Errorf("the token is in the log:\n%s", got)
	}
}

func TestStatusAndTopDenied(t *testing.T) {
	rec := ask(full(), http.MethodGet, "http://127.0.0.1/api/status")
	var s Status
	if err := json.Unmarshal(rec.Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if want := full().Info(); fmt.Sprint(s) != fmt.Sprint(want) {
		t.Errorf("status %+v, want %+v", s, want)
	}
	if got := rec.Body.String(); !strings.Contains(got, `"rejected_reload": null`) || strings.Contains(got, `"since"`) {
		t.Errorf("status:\n%s", got)
	}
	for _, tc := range []struct {
		query string
		code  int
		body  string
	}{
		{"", 200, `[{"key":"{user:priya123}","count":12.35,"error":0.5},{"key":"{ip:203.0.113.7}","count":3,"error":0}]`},
		{"?k=1", 200, `[{"key":"{user:priya123}","count":12.35,"error":0.5}]`},
		{"?k=1000", 200, `[{"key":"{user:priya123}","count":12.35,"error":0.5},{"key":"{ip:203.0.113.7}","count":3,"error":0}]`},
		{"?k=0", 400, ""},
		{"?k=-1", 400, ""},
		{"?k=1001", 400, ""},
		{"?k=99999999999999999999", 400, ""},
		{"?k=x", 400, ""},
	} {
		rec := ask(full(), http.MethodGet, "http://127.0.0.1/api/top-denied"+tc.query)
		if rec.Code != tc.code {
			t.Errorf("%q: %d, want %d", tc.query, rec.Code, tc.code)
		}
		if tc.code == 400 {
			problem(t, rec)
			continue
		}
		var body bytes.Buffer
		if err := json.Compact(&body, rec.Body.Bytes()); err != nil || strings.TrimSpace(body.String()) != tc.body {
			t.Errorf("%q: %s (%v), want %s", tc.query, body.String(), err, tc.body)
		}
	}
	// Nobody was denied: a list all the same.
	o := full()
	o.TopDenied = func(int) []topk.Entry { return nil }
	if got := ask(o, http.MethodGet, "http://127.0.0.1/api/top-denied").Body.String(); strings.TrimSpace(got) != "[]" {
		t.Errorf("empty list is %q", got)
	}
}

func TestWhatIsNotGivenIsNotOffered(t *testing.T) {
	o := Options{Loopback: true, Token: []byte(token)}
	for _, request := range []string{"GET /metrics", "POST /-/reload", "GET /api/status", "GET /api/top-denied"} {
		method, path, _ := strings.Cut(request, " ")
		if rec := ask(o, method, "http://127.0.0.1"+path, bearer); rec.Code != 404 {
			t.Errorf("%s: %d, want 404", request, rec.Code)
		}
	}
}

func TestAnswersCarrySecurityFields(t *testing.T) {
	for _, path := range []string{"/", "/metrics", "/nope", "/-/reload", "/debug/pprof/"} {
		rec := ask(full(), http.MethodGet, "http://127.0.0.1"+path, "Origin: http://attacker.example", bearer)
		h := rec.Header()
		csp := h.Get("Content-Security-Policy")
		if !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: Content-Security-Policy %q", path, csp)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: fields %v", path, h)
		}
		for name := range h {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s: %s lets other origins in", path, name)
			}
		}
	}
}

// Over a real connection, HEAD answers carry no body and profiles work.
func TestOverAConnection(t *testing.T) {
	srv := httptest.NewServer(New(full()))
	defer srv.Close()
	for _, request := range []string{"HEAD /metrics", "HEAD /", "GET /debug/pprof/goroutine?debug=1"} {
		method, path, _ := strings.Cut(request, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		res, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != 200 || (method == "HEAD") != (len(body) == 0) {
			t.Errorf("%s: %d, %d bytes, %v", request, res.StatusCode, len(body), err)
		}
	}
}

func ExampleNew() {
	h := New(Options{
		Ready:    func() Readiness { return Readiness{Ready: true} },
		Loopback: true,
	})
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:9090/readyz", nil))
	fmt.Print(rec.Code, " ", rec.Body)
	// Output:
	// 200 {
	//   "ready": true,
	//   "degraded": []
	// }
}
