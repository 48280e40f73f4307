package test

import (
	"io"
	"net/http"
	"testing"
)

// A body that turns out malformed half-way is the client's mistake too, and the
// upstream never takes what it has for the whole.
func TestAMalformedBodyIsNeverTakenForAWholeOne(t *testing.T) {
	complete := make(chan string, 10)
	u := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); err == nil {
			complete <- string(b)
		}
	})
	g := proxySite(t, u.URL).start()
	for name, rest := range map[string]string{
		"a chunk size of junk":    "xyz\r\nabc\r\n0\r\n\r\n",
		"a chunk too long":        "3\r\nabcdef\r\n0\r\n\r\n",
		"a chunk size too large":  "fffffffffffffffff\r\nabc\r\n",
		"a negative chunk":        "-3\r\nabc\r\n0\r\n\r\n",
		"a malformed trailer":     "3\r\nabc\r\n0\r\nno colon\r\n\r\n",
		"a junk chunk after good": "3\r\nabc\r\nzz\r\n",
	} {
		a := g.ask("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + rest)
		if a.status != 400 || a.problem(t)["status"] != 400.0 || tellsInsides(a.body) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	select {
	case b := <-complete:
		t.Errorf("the upstream took %q for a whole body", b)
	default:
	}
}

// What no upstream can be sent is refused before the caller pays for it.
func TestWhatCannotBeCarriedIsNotCharged(t *testing.T) {
	u := newUpstream(t, nil)
	g := proxySite(t, u.URL).start()
	for request, status := range map[string]int{
		"TRACE /a HTTP/1.1\r\nHost: a\r\n\r\n": 501,
		"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n": 400,
	} {
		a := g.ask(request)
		if a.status != status || a.problem(t)["status"] != float64(status) || a.field("RateLimit") != "" {
			t.Errorf("%q: %d %v", request, a.status, a.header)
		}
	}
	if got := remaining(t, g.get("/a")); got != 1_000_000-1 {
		t.Errorf("%d remaining after one request that was carried, want %d", got, 1_000_000-1)
	}
}
