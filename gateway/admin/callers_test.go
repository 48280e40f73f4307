package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/denials"
	"bouncer/gateway/httperr"
)

// withCallers offers what is asked about callers; resets are noted.
func withCallers(t *testing.T, resets *[]Reset) Options {
	t.Helper()
	log, err := denials.New(denials.Options{})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	log.Room("x", at)
	log.Add("x", "203.0.113.7", &denials.Denial{Time: denials.Time{Time: at}, User: "priya123", ClientIP: "203.0.113.7", Method: "GET", Path: "/", Status: 429})
	o := full()
	o.Callers = &Callers{
		Search: func(q string) ([]FoundCaller, bool) {
			if q == "nobody" {
				return nil, false
			}
			return []FoundCaller{{Kind: "user", Name: "<script>\u202e", LastSeen: &at}}, true
		},
		Caller: func(_ context.Context, kind, name string) (*Caller, *httperr.Error) {
			return &Caller{Kind: kind, Name: name, Limits: []CallerLimit{}}, nil
		},
		Reset: func(_ context.Context, what Reset) (ResetDone, *httperr.Error) {
			if what.Limit == "unknown" {
				return ResetDone{}, &httperr.Error{Status: http.StatusNotFound, Reason: "limit", Detail: "no such limit"}
			}
			*resets = append(*resets, what)
			return ResetDone{Limit: what.Limit, Partition: "{user:priya123}"}, nil
		},
		Denials:    log,
		Credential: func(text string) bool { return strings.HasPrefix(text, "secret-") },
	}
	return o
}

const goodReset = `{"kind":"user","name":"priya123","limit":"per-minute","plan":"free","route":""}`

func post(o Options, body string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/api/reset", strings.NewReader(body))
	r.Host = "127.0.0.1:9090"
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	rec := httptest.NewRecorder()
	New(o).ServeHTTP(rec, r)
	return rec
}

const isJSON = "Content-Type: application/json"

func TestResetIsGuarded(t *testing.T) {
	for _, tc := range []struct {
		name   string
		body   string
		fields []string
		status int
	}{
		{"with the token", goodReset, []string{bearer, isJSON}, 200},
		{"with a charset", goodReset, []string{bearer, "Content-Type: application/json; charset=utf-8"}, 200},
		{"without the token", goodReset, []string{isJSON}, 401},
		{"with a wrong token", goodReset, []string{bearer + "x", isJSON}, 401},
		{"from another site's page", goodReset, []string{bearer, isJSON, "Sec-Fetch-Site: cross-site"}, 403},
		{"from another origin", goodReset, []string{bearer, isJSON, "Origin: http://attacker.example"}, 403},
		{"as a form", goodReset, []string{bearer, "Content-Type: text/plain"}, 415},
		{"without a type", goodReset, []string{bearer}, 415},
		{"no JSON", `{"kind":`, []string{bearer, isJSON}, 400},
		{"a list", `[` + goodReset + `]`, []string{bearer, isJSON}, 400},
		{"two", goodReset + goodReset, []string{bearer, isJSON}, 400},
		{"one, and what is left of another", goodReset + `}`, []string{bearer, isJSON}, 400},
		{"one, and the end of a list", goodReset + "]", []string{bearer, isJSON}, 400},
		{"two names", `{"kind":"user","name":"sam",` + goodReset[1:], []string{bearer, isJSON}, 400},
		{"a name in capitals beside the name", strings.Replace(goodReset, `{`, `{"NAME":"sam",`, 1), []string{bearer, isJSON}, 400},
		{"a name that is null", strings.Replace(goodReset, `"priya123"`, `null`, 1), []string{bearer, isJSON}, 400},
		{"a plan that is null", strings.Replace(goodReset, `"free"`, `null`, 1), []string{bearer, isJSON}, 400},
		{"bytes that are no text", strings.Replace(goodReset, `priya123`, "priya123\xff", 1), []string{bearer, isJSON}, 400},
		{"space around it", "\n" + goodReset + "\n", []string{bearer, isJSON}, 200},
		{"an unknown member", `{"kind":"user","name":"priya123","limit":"a","all":true}`, []string{bearer, isJSON}, 400},
		{"no limit", `{"kind":"user","name":"priya123"}`, []string{bearer, isJSON}, 400},
		{"no name", `{"kind":"user","limit":"a"}`, []string{bearer, isJSON}, 400},
		{"a kind that is none", `{"kind":"users","name":"priya123","limit":"a"}`, []string{bearer, isJSON}, 400},
		{"a long name", `{"kind":"user","name":"` + strings.Repeat("x", 300) + `","limit":"a"}`, []string{bearer, isJSON}, 400},
		{"a long body", `{"kind":"user","name":"` + strings.Repeat("x", 8192) + `","limit":"a"}`, []string{bearer, isJSON}, 413},
		{"a key for a name", `{"kind":"key","name":"secret-key","limit":"a"}`, []string{bearer, isJSON}, 400},
		{"a limit that is none", `{"kind":"user","name":"priya123","limit":"unknown"}`, []string{bearer, isJSON}, 404},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var resets []Reset
			var out bytes.Buffer
			o := withCallers(t, &resets)
			o.Logger = slog.New(slog.NewJSONHandler(&out, nil))
			rec := post(o, tc.body, tc.fields...)
			if rec.Code != tc.status || (len(resets) == 1) != (tc.status == 200) {
				t.Fatalf("%d after %v: %s", rec.Code, resets, rec.Body)
			}
			audit := strings.Contains(out.String(), "audit: a limit was reset")
			if tc.status != 200 {
				problem(t, rec)
				if audit || strings.Contains(rec.Body.String(), "secret-key") || strings.Contains(out.String(), "secret-key") {
					t.Errorf("answer %s, log %s", rec.Body, out.String())
				}
				return
			}
			if want := (Reset{Kind: "user", Name: "priya123", Limit: "per-minute", Plan: "free"}); resets[0] != want {
				t.Errorf("reset %+v", resets[0])
			}
			if got, want := compact(t, rec.Body.Bytes()), `{"reset":true,"limit":"per-minute","partition":"{user:priya123}"}`; got != want {
				t.Errorf("%s, want %s", got, want)
			}
			var line map[string]any
			if err := json.Unmarshal(out.Bytes(), &line); err != nil {
				t.Fatalf("%v: %s", err, out.String())
			}
			for name, want := range map[string]any{
				"level": "WARN", "msg": "audit: a limit was reset", "request_id": rec.Header().Get("X-Request-Id"), "remote": "192.0.2.1:1234", "who": "token",
				"kind": "user", "name": "priya123", "limit": "per-minute", "partition": "{user:priya123}",
			} {
				if line[name] != want {
					t.Errorf("%s is %v in the audit line, want %v", name, line[name], want)
				}
			}
		})
	}
}

func TestWhatIsAskedAboutCallers(t *testing.T) {
	var resets []Reset
	o := withCallers(t, &resets)
	o.Loopback = false
	paths := []string{"/api/callers?q=x", "/api/caller?kind=user&name=x", "/api/denials", "/api/denials.jsonl"}
	for _, path := range paths {
		if rec := ask(o, http.MethodGet, "http://gateway.example.com"+path); rec.Code != 401 || strings.Contains(rec.Body.String(), "priya123") {
			t.Errorf("%s without the token: %d %s", path, rec.Code, rec.Body)
		}
		if rec := ask(o, http.MethodGet, "http://gateway.example.com"+path, bearer); rec.Code != 200 {
			t.Errorf("%s: %d %s", path, rec.Code, rec.Body)
		}
		if rec := ask(full(), http.MethodGet, "http://127.0.0.1"+path); rec.Code != 404 {
			t.Errorf("%s is offered though nothing is known: %d", path, rec.Code)
		}
	}
	for path, want := range map[string]string{
		"/api/callers?q=nobody": `{"callers":[],"more":false}`,
		"/api/callers?q=%3Csc":  `{"callers":[{"kind":"user","name":"\u003cscript\u003e` + "\u202e" + `","plan":"","tenant":"","last_seen":"2026-11-30T12:00:00Z","requests":0,"denied":0}],"more":true}`,
		"/api/denials?user=sam": `{"denials":[],"kept":1,"skipped":0,"oldest":"2026-11-30T12:00:00Z"}`,
	} {
		if got := compact(t, ask(o, http.MethodGet, "http://gateway.example.com"+path, bearer).Body.Bytes()); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	for _, path := range []string{
		"/api/callers", "/api/callers?q=", "/api/callers?q=" + strings.Repeat("x", 257), "/api/denials?user=" + strings.Repeat("x", 8192), "/api/callers?q=secret-x", "/api/callers?query=x",
		"/api/caller", "/api/caller?kind=user", "/api/caller?kind=all&name=x", "/api/caller?kind=user&name=secret-x", "/api/denials?q=secret-x",
	} {
		rec := ask(o, http.MethodGet, "http://gateway.example.com"+path, bearer)
		if p := problem(t, rec); rec.Code != 400 || strings.Contains(p.Detail, "secret-x") {
			t.Errorf("%.40s: %d %s", path, rec.Code, rec.Body)
		}
	}
	lines := ask(o, http.MethodGet, "http://gateway.example.com/api/denials.jsonl", bearer)
	if got := lines.Body.String(); lines.Header().Get("Content-Type") != "application/jsonl" || !strings.HasPrefix(got, `{"msg":"request","time":"2026-11-30T12:00:00.000000Z"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("%v %s", lines.Header(), got)
	}
}
