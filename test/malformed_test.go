package test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Whatever comes over the wire is answered as the client's mistake or not at
// all. It is never forwarded, never a 500, and never the end of the process.
func TestMalformedRequestsAreTheClientsMistake(t *testing.T) {
	u := newWireUpstream(t, nil)
	g := proxySite(t, u.URL).start()
	const host = "Host: a\r\n"
	for name, test := range map[string]struct {
		request string
		status  int // 0: no answer is needed
	}{
		"garbage":                 {"\x00\x01\x02\x03 \x04\x05\x06\x07 \x08\x09\r\n\r\n", 400},
		"binary":                  {strings.Repeat("\xff\xfe\xfd\r\n", 100) + "\r\n", 400},
		"a TLS hello":             {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
		"one word":                {"HELLO,GATEWAY!\r\n\r\n", 400},
		"no target":               {"GET HTTP/1.1\r\n" + host + "\r\n", 400},
		"no version":              {"GET /api/weather\r\n\r\n", 400},
		"odd version":             {"GET / HTTP/9.9\r\n" + host + "\r\n", 505},
		"odd method":              {"G@T / HTTP/1.1\r\n" + host + "\r\n", 400},
		"no Host":                 {"GET / HTTP/1.1\r\n\r\n", 400},
		"two Hosts":               {"GET / HTTP/1.1\r\n" + host + "Host: b\r\n\r\n", 400},
		"a bad Host":              {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
		"space before the colon":  {"GET / HTTP/1.1\r\n" + host + "X-A : 1\r\n\r\n", 400},
		"a field without a name":  {"GET / HTTP/1.1\r\n" + host + ": 1\r\n\r\n", 400},
		"a line without a colon":  {"GET / HTTP/1.1\r\n" + host + "nonsense\r\n\r\n", 400},
		"NUL in a field":          {"GET / HTTP/1.1\r\n" + host + "X-A: a\x00b\r\n\r\n", 400},
		"a folded first field":    {"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
		"two lengths":             {"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
		"a signed length":         {"POST / HTTP/1.1\r\n" + host + "Content-Length: +3\r\n\r\nabc", 400},
		"a negative length":       {"POST / HTTP/1.1\r\n" + host + "Content-Length: -3\r\n\r\nabc", 400},
		"a length in hex":         {"POST / HTTP/1.1\r\n" + host + "Content-Length: 0x3\r\n\r\nabc", 400},
		"an endless length":       {"POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999\r\n\r\nabc", 400},
		"two codings":             {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501},
		"two lines of coding":     {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501},
		"an unknown coding":       {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501},
		"a target of no path":     {"GET evil HTTP/1.1\r\n" + host + "\r\n", 400},
		"a target with a space":   {"GET /a b HTTP/1.1\r\n" + host + "\r\n", 400},
		"another scheme":          {"GET ftp:x HTTP/1.1\r\n" + host + "\r\n", 400},
		"the whole server":        {"OPTIONS * HTTP/1.1\r\n" + host + "\r\n", 400},
		"a tunnel":                {"CONNECT example.test:443 HTTP/1.1\r\nHost: example.test:443\r\n\r\n", 501},
		"a trace":                 {"TRACE / HTTP/1.1\r\n" + host + "\r\n", 501},
		"an unknown expectation":  {"POST / HTTP/1.1\r\n" + host + "Expect: wonders\r\nContent-Length: 0\r\n\r\n", 417},
		"fields of 100 kB":        {"GET / HTTP/1.1\r\n" + host + "Cookie: " + strings.Repeat("x", 100<<10) + "\r\n\r\n", 431},
		"fields of 2 MB":          {"GET / HTTP/1.1\r\n" + host + "Cookie: " + strings.Repeat("x", 2<<20) + "\r\n\r\n", 431},
		"many fields":             {"GET / HTTP/1.1\r\n" + host + strings.Repeat("X-A: 1\r\n", 20000) + "\r\n", 431},
		"a target of 100 kB":      {"GET /" + strings.Repeat("x", 100<<10) + " HTTP/1.1\r\n" + host + "\r\n", 431},
		"HTTP/2 without settings": {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\xff", 100), 0},
		"half of HTTP/2":          {"PRI * HTTP/2.0\r\n\r\n\r\n\r\n\r\n", 0},
		"HTTP/2 with a bad frame": {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff", 0},
	} {
		before := u.count()
		c := g.dial()
		// The gateway may answer and hang up before all of it is written.
		_, _ = io.WriteString(c.Conn, test.request)
		if test.status == 0 {
			_ = c.Close()
		} else {
			res, err := http.ReadResponse(c.in, nil)
			if err != nil {
				t.Errorf("%s: no answer: %v", name, err)
				continue
			}
			b, err := io.ReadAll(res.Body)
			if res.StatusCode != test.status {
				t.Errorf("%s: %d, want %d", name, res.StatusCode, test.status)
			}
			if errors.Is(err, syscall.ECONNRESET) {
				err = nil // there was more to read, and nobody to read it
			}
			if err != nil || tellsInsides(string(b)) || strings.Contains(strings.ToLower(string(b)), "<html") {
				t.Errorf("%s: body %q, %v", name, b, err)
			}
			if test.status == 400 || test.status == 431 {
				_ = c.SetDeadline(time.Now().Add(patience))
				if _, err := io.Copy(io.Discard, c.in); err != nil && strings.Contains(err.Error(), "timeout") {
					t.Errorf("%s: the connection stays open behind a request that was not understood", name)
				}
			}
			_ = c.Close()
		}
		if got := u.count() - before; got != 0 {
			t.Errorf("%s: reached the upstream as %q", name, u.last(t).line)
		}
		select {
		case <-g.ended:
			t.Fatalf("%s ended the gateway", name)
		default:
		}
	}
	if a := g.get("/still-here"); a.status != 200 {
		t.Errorf("afterwards: %d", a.status)
	}
	if strings.Contains(g.output(), "panic") || strings.Contains(g.stderr.String(), "goroutine ") {
		t.Errorf("a panic was provoked:\n%s%s", g.output(), g.stderr.String())
	}
	if got := g.sum("gateway_requests_total", `code="500"`); got != 0 {
		t.Errorf("%v requests were a 500", got)
	}
}

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

// Two framings in one request are how requests are smuggled. The gateway goes
// by the chunks alone, so an upstream never has to choose, and whatever stands
// behind them is a request as any other: limited, logged, and never taken for
// part of the first. HTTP/1.0 has no chunks: nothing behind such a request is
// read.
func TestAnUpstreamNeverSeesTwoFramings(t *testing.T) {
	u := newUpstream(t, nil)
	g := proxySite(t, u.URL).start()
	c := g.dial()
	c.say("POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /second HTTP/1.1\r\nHost: a\r\n\r\n")
	c.hearAll("POST")
	u.mu.Lock()
	r := u.requests[0] // the second may be there already
	u.mu.Unlock()
	if r.ContentLength != -1 || len(r.TransferEncoding) != 1 || r.Header.Get("Content-Length") != "" {
		t.Errorf("arrives with length %d and coding %q", r.ContentLength, r.TransferEncoding)
	}
	second := c.hearAll("GET")
	if line := g.requestLine(second.field("X-Request-Id")); line["path"] != "/second" || line["source"] != "memory" {
		t.Errorf("the second request: %v", line)
	}
	if a, b := remaining(t, second), int64(1_000_000-2); a != b {
		t.Errorf("%d remaining after two requests on one connection, want %d", a, b)
	}

	before := u.count()
	c = g.dial()
	c.say("POST /old HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
	c.hearAll("POST")
	rest, err := io.ReadAll(c.in)
	if strings.Contains(string(rest), " 200 ") || (err != nil && !errors.Is(err, syscall.ECONNRESET)) {
		t.Errorf("the connection goes on: %q, %v", rest, err)
	}
	if got := u.count() - before; got > 1 {
		t.Errorf("%d requests reached the upstream, the last as %s", got, u.last(t).URL.Path)
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
