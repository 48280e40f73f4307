package gateway

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit"
)

func mustPolicy(t *testing.T, spec ratelimit.Policy) *ratelimit.Policy {
	t.Helper()
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func twoDecisions(t *testing.T) []ratelimit.Decision {
	minute := mustPolicy(t, ratelimit.Policy{
		Name: "per-minute", Scope: "plan/per-minute", Algorithm: ratelimit.TokenBucket,
		Quota: 100, Window: time.Minute, Burst: 20,
	})
	day := mustPolicy(t, ratelimit.Policy{
		Name: "per-day", Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow,
		Quota: 100, Window: 24 * time.Hour,
	})
	return []ratelimit.Decision{
		{Policy: minute, Allowed: true, Remaining: 19, Reset: 600 * time.Millisecond},
		{Policy: day, Allowed: true, Remaining: 81, Reset: 40210500 * time.Millisecond},
	}
}

// answerWith sends one answer through a response and returns its head.
func answerWith(ds []ratelimit.Decision, f config.ClientHeaders, status int, upstream http.Header) http.Header {
	rec := httptest.NewRecorder()
	w := &response{ResponseWriter: rec, id: "id-1", decisions: ds, cost: 3, fields: f}
	maps.Copy(w.Header(), upstream)
	w.WriteHeader(status)
	return rec.Result().Header
}

// has reports whether h has a field of exactly this spelling, which is what is
// sent over HTTP/1. Header.Get would look for another one.
func exactly(h http.Header, name string) []string { return h[name] }

func has(h http.Header, name string) bool { return h[name] != nil }

func TestLimitFieldsStandBesideEveryAnswer(t *testing.T) {
	on := config.ClientHeaders{IETF: "draft-11", Legacy: true}
	want := map[string]string{
		"RateLimit-Policy":      `"per-minute";q=100;w=60, "per-day";q=100;w=86400`,
		"RateLimit":             `"per-minute";r=19;t=1, "per-day";r=81;t=40211`,
		"X-RateLimit-Limit":     "100",
		"X-RateLimit-Remaining": "19",
		"X-RateLimit-Reset":     "1",
	}
	for _, status := range []int{200, 204, 304, 400, 404, 429, 500, 502} {
		h := answerWith(twoDecisions(t), on, status, nil)
		for name, value := range want {
			if got := h[name]; len(got) != 1 || got[0] != value {
				t.Errorf("%d: %s = %q, want %q", status, name, got, value)
			}
		}
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		if h := answerWith(twoDecisions(t), on, status, nil); has(h, "RateLimit") || has(h, "X-RateLimit-Limit") {
			t.Errorf("a redirect (%d) tells limits: %v", status, h)
		}
	}
	if h := answerWith(nil, on, 200, nil); has(h, "RateLimit") || has(h, "X-RateLimit-Limit") {
		t.Errorf("an answer without a decision tells limits: %v", h)
	}
}

func TestLimitFieldsCanBeSwitchedOff(t *testing.T) {
	h := answerWith(twoDecisions(t), config.ClientHeaders{IETF: "off", Legacy: true}, 200, nil)
	if has(h, "RateLimit") || has(h, "RateLimit-Policy") || !has(h, "X-RateLimit-Limit") {
		t.Errorf("ietf off: %v", h)
	}
	h = answerWith(twoDecisions(t), config.ClientHeaders{IETF: "draft-11"}, 200, nil)
	if !has(h, "RateLimit") || has(h, "X-RateLimit-Limit") {
		t.Errorf("legacy off: %v", h)
	}
}

func TestLimitFieldsInTheWordsOfEitherDraft(t *testing.T) {
	for ietf, want := range map[string]string{
		"draft-11": `"per-minute";r=19;t=1, "per-day";r=81;t=40211`,
		"draft-12": `"per-minute";a=19;w=1;c=3, "per-day";a=81;w=40211;c=3`,
		"both":     `"per-minute";r=19;t=1;a=19;w=1;c=3, "per-day";r=81;t=40211;a=81;w=40211;c=3`,
	} {
		h := answerWith(twoDecisions(t), config.ClientHeaders{IETF: ietf}, 200, nil)
		if got := exactly(h, "RateLimit"); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", ietf, got, want)
		}
		if got, want := exactly(h, "RateLimit-Policy"), `"per-minute";q=100;w=60, "per-day";q=100;w=86400`; len(got) != 1 || got[0] != want {
			t.Errorf("%s: policy %q, want %q", ietf, got, want)
		}
	}
}

// An upstream with limits of its own: one value under every legacy name, and
// its structured items kept in front of ours.
func TestTheUpstreamsOwnLimitFields(t *testing.T) {
	h := answerWith(twoDecisions(t), config.ClientHeaders{IETF: "draft-11", Legacy: true}, 200, http.Header{
		"X-Ratelimit-Limit":     {"7"},
		"X-Ratelimit-Remaining": {"3"},
		"X-Ratelimit-Reset":     {"9"},
		"Ratelimit":             {`"inner";r=3;t=9`},
		"Ratelimit-Policy":      {`"inner";q=7;w=60`, `"other";q=1;w=1`},
		"Retry-After":           {"120"},
	})
	for name, want := range map[string]string{
		"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "19", "X-RateLimit-Reset": "1",
		"RateLimit":        `"inner";r=3;t=9, "per-minute";r=19;t=1, "per-day";r=81;t=40211`,
		"RateLimit-Policy": `"inner";q=7;w=60, "other";q=1;w=1, "per-minute";q=100;w=60, "per-day";q=100;w=86400`,
		"Retry-After":      "120",
	} {
		if got := h[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "Ratelimit", "Ratelimit-Policy"} {
		if h[name] != nil {
			t.Errorf("the upstream's own %s is still there: %q", name, h[name])
		}
	}
}

// A plan whose limits are all in shadow enforces nothing, and nothing is told.
func TestLimitsInShadowAreNotTold(t *testing.T) {
	shadow := mustPolicy(t, ratelimit.Policy{
		Name: "per-day", Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow,
		Quota: 100, Window: 24 * time.Hour, Role: ratelimit.Shadow,
	})
	h := answerWith([]ratelimit.Decision{{Policy: shadow, Allowed: false}},
		config.ClientHeaders{IETF: "draft-11", Legacy: true}, 200, nil)
	for _, name := range []string{"RateLimit", "RateLimit-Policy", "X-RateLimit-Limit"} {
		if has(h, name) {
			t.Errorf("%s: %q", name, exactly(h, name))
		}
	}
}

// What cannot be read as a list of named items is left out: it would make ours
// unreadable too.
func TestAnUpstreamsUnreadableLimitFieldsAreLeftOut(t *testing.T) {
	for theirs, kept := range map[string]bool{
		"":                                    false,
		" ":                                   false,
		"limit=100, remaining=5":              false,
		"100, 100;w=10":                       false,
		`"open`:                               false,
		`"a";r=1,`:                            false,
		`"a", , "b"`:                          false,
		"\"a\x01\";r=1":                       false,
		`"a";r=1`:                             true,
		`"a b\"c";q=1;pk=:YQ==:;x="y,z", "d"`: true,
		`"a" ;  r=1`:                          true,
	} {
		h := answerWith(twoDecisions(t), config.ClientHeaders{IETF: "draft-11"}, 200, http.Header{"Ratelimit": {theirs}})
		want := `"per-minute";r=19;t=1, "per-day";r=81;t=40211`
		if kept {
			want = theirs + ", " + want
		}
		if got := exactly(h, "RateLimit"); len(got) != 1 || got[0] != want {
			t.Errorf("%q: %q, want %q", theirs, got, want)
		}
	}
}

func TestAResponseCountsWhatWasSent(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(inner http.ResponseWriter, _ *http.Request) {
		w := &response{ResponseWriter: inner, id: "id-1"}
		w.WriteHeader(http.StatusEarlyHints)
		if w.status != 0 {
			t.Errorf("a 103 counts as the final status")
		}
		if _, err := w.Write([]byte("hello")); err != nil {
			t.Error(err)
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("flush through the wrapper: %v", err)
		}
		if w.status != 200 || w.bytes != 5 {
			t.Errorf("status %d, %d bytes", w.status, w.bytes)
		}
	}))
	defer srv.Close()
	res, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 || res.Header.Get("X-Request-Id") != "id-1" {
		t.Errorf("%d, %v", res.StatusCode, res.Header)
	}
}
