package test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// proxySite carries everything to target, behind an edge limit and a plan's
// limit that are far away, as a route of a real site is.
func proxySite(t testing.TB, target string) *site {
	s := newSite(t)
	s.write("plans.yaml", `
anonymous_plan: anonymous
plans:
  anonymous: {limits: [{name: per-hour, per: ip, algorithm: fixed_window, limit: 1000000/hour}]}
`)
	s.write("routes.yaml", proxyRoutes(target, `http: "127.0.0.1:0"`, ""))
	return s
}

// proxyRoutes is the routes.yaml of a proxySite with other listeners, and more
// settings of the upstream.
func proxyRoutes(target, listen, settings string) string {
	return `
listen: {` + listen + `, admin: "127.0.0.1:0"}
limits:
  edge-ip: {per: ip, algorithm: token_bucket, limit: 1000000/hour}
edge: [edge-ip]
upstreams:
  weather: {targets: ["` + target + `"]` + settings + `}
routes:
  - {name: all, path: "/*", upstream: weather, auth: none}
`
}

// h2cClient speaks HTTP/2 with prior knowledge on a plain connection.
func h2cClient(t testing.TB) *http.Client {
	tr := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// protocols are the two ways a client may speak on the plain listener.
func protocols(t testing.TB) map[string]*http.Client {
	return map[string]*http.Client{"HTTP/1.1": client, "HTTP/2": h2cClient(t)}
}

// Path and query are the business of client and upstream.
func TestTheTargetArrivesByteForByte(t *testing.T) {
	u := newWireUpstream(t, nil)
	plain := proxySite(t, u.URL).start()
	based := proxySite(t, u.URL+"/base%2Fv1/").start()
	for _, target := range []string{
		"/", "//", "/a%2Fb", "/a%2fb", "/a%252Fb", "/a//b", "//a", "/a/", "/a?", "/a??", "/a;b=c", "/a;b/c;d?e;f",
		"/sp%20ace", "/plus+plus", "/%C3%BC", "/pipe|pipe", "/q\"uote", "/a%2Fb|c", "/a:b@c", "/a'(b)*", "/a,b$c&d=e",
		"/a?a=1;b=2", "/a?%zz", "/a?a=%zz&b=1", "/a?a=%3B", "/a?x", "/a?x=&x=2", "/a?=1", "/a?a=b=c", "/a?a=%2F/../b",
		"/a?b?c", "/a?a[]=1&a[]=2", "/a?u=http://x/y#", "/a?\xc3\xbc",
	} {
		for base, g := range map[string]*gateway{"": plain, "/base%2Fv1": based} {
			a := g.ask("GET " + target + " HTTP/1.1\r\nHost: api.example.test\r\n\r\n")
			if a.status != 200 {
				t.Errorf("%s: %d %s", target, a.status, a.body)
				continue
			}
			if got, want := u.last(t).line, "GET "+base+target+" HTTP/1.1"; got != want {
				// Both forms of a target mean the same (RFC 9112 section 3.2.2).
				if strings.TrimPrefix(got, "GET "+u.URL) != base+target+" HTTP/1.1" {
					t.Errorf("%s arrives as %q, want %q", target, got, want)
				}
			}
		}
	}
	before := u.count()
	for _, target := range []string{"/%zz", "/a%", "/a%2", "/%%30", "/a/%2e%2e/b", "/a/../b", "/a/./b", "/a/..%2Fb", "/a\\b", "/a%5Cb", "/a%00", "/a\x7fb", "/a#b"} {
		if a := plain.ask("GET " + target + " HTTP/1.1\r\nHost: api.example.test\r\n\r\n"); a.status != 400 {
			t.Errorf("%q: %d, want 400", target, a.status)
		}
	}
	if got := u.count() - before; got != 0 {
		t.Errorf("%d paths that can be read in two ways reached the upstream", got)
	}
}

// HTTP/2 carries a target in another way; it must come out the same.
func TestTheTargetArrivesByteForByteOverHTTP2(t *testing.T) {
	u := newWireUpstream(t, nil)
	g := proxySite(t, u.URL).start()
	h2 := h2cClient(t)
	for _, target := range []string{"/a%2Fb", "/a//b", "/a?", "/a;b?a=1;b=2", "/a?%zz", "/%C3%BC"} {
		r, err := http.NewRequest("GET", g.url+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.Opaque = target
		if path, ok := strings.CutSuffix(target, "?"); ok {
			r.URL.Opaque, r.URL.ForceQuery = path, true
		}
		res, err := h2.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if got, want := u.last(t).line, "GET "+target+" HTTP/1.1"; got != want || res.StatusCode != 200 {
			t.Errorf("%s: %d, arrives as %q", target, res.StatusCode, got)
		}
	}
}

// What a client asks for arrives, what it did not ask for is not invented, and
// what is about its own connection stays there.
func TestTheUpstreamReceivesTheClientsFieldsAndOurs(t *testing.T) {
	u := newWireUpstream(t, nil)
	g := proxySite(t, u.URL).start()
	a := g.ask("POST /a HTTP/1.1\r\nhost: API.example.test:8080\r\nContent-Length: 3\r\n" +
		"accept: */*\r\nX-Custom: one\r\nx-custom: two\r\nX-Empty:\r\ncookie: a=1; b=2\r\n" +
		"Connection: keep-alive, X-Private, X-Forwarded-For, X-Request-Id, Via, X-Real-IP, Content-Length\r\n" +
		"Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic abc\r\nX-Private: 1\r\nTE: gzip\r\n" +
		"X-Forwarded-For: 203.0.113.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil.example\r\nX-Forwarded-Port: 1\r\n" +
		"X-Real-IP: 203.0.113.1\r\nX_Real_IP: 203.0.113.1\r\nTrue-Client-IP: 203.0.113.1\r\nForwarded: for=203.0.113.1\r\n" +
		"Proxy: http://evil.example\r\nX-Request-Id: mine\r\nVia: 1.0 fred\r\n" +
		"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=b\r\n\r\nabc")
	if a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	r := u.last(t)
	id := a.field("X-Request-Id")
	for name, want := range map[string]string{
		"Host":              strings.TrimPrefix(u.URL, "http://"),
		"X-Forwarded-Host":  "API.example.test:8080",
		"X-Forwarded-Proto": "http",
		"X-Forwarded-For":   "127.0.0.1",
		"X-Real-IP":         "127.0.0.1",
		"X-Request-Id":      id,
		"Via":               "1.1 gateway", // Connection named the client's own
		"traceparent":       "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"tracestate":        "a=b",
		"Accept":            "*/*",
		"Cookie":            "a=1; b=2",
		"Content-Length":    "3",
	} {
		if got := r.one(t, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(id) {
		t.Errorf("request id %q: a client's own would make the logs of two requests one", id)
	}
	if got := r.all("X-Custom"); len(got) != 2 || got[0] != "one" || got[1] != "two" {
		t.Errorf("X-Custom: %q", got)
	}
	if got := r.all("X-Empty"); len(got) != 1 || got[0] != "" {
		t.Errorf("X-Empty: %q", got)
	}
	if r.body != "abc" {
		t.Errorf("body %q", r.body)
	}
	for _, name := range []string{
		"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "X-Private", "TE", "X-Forwarded-Port",
		"X_Real_IP", "True-Client-IP", "Forwarded", "Proxy", "X-Auth-User",
		"Accept-Encoding", "User-Agent", "Content-Type", "Transfer-Encoding", "Origin", "Referer",
	} {
		if got := r.all(name); got != nil {
			t.Errorf("%s: %q reached the upstream", name, got)
		}
	}

	g.ask("GET /a HTTP/1.1\r\nHost: api.example.test\r\nVia: 1.0 fred\r\ntraceparent: garbage\r\ntracestate: a=b\r\n\r\n")
	r = u.last(t)
	if got := r.one(t, "Via"); got != "1.0 fred, 1.1 gateway" {
		t.Errorf("Via: %q", got)
	}
	if got := r.one(t, "traceparent"); !regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-00$`).MatchString(got) || r.all("tracestate") != nil {
		t.Errorf("traceparent %q, tracestate %q after a malformed one", got, r.all("tracestate"))
	}
	for _, name := range []string{"Content-Length", "Transfer-Encoding", "Accept-Encoding", "User-Agent"} {
		if got := r.all(name); got != nil {
			t.Errorf("%s: %q on a GET without a body", name, got)
		}
	}
	g.ask("POST /a HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: 0\r\n\r\n")
	if got := u.last(t).one(t, "Content-Length"); got != "0" {
		t.Errorf("an empty POST arrives with Content-Length %q", got)
	}
	g.ask("GET /a HTTP/1.0\r\n\r\n")
	if r := u.last(t); r.one(t, "Via") != "1.0 gateway" || r.one(t, "Host") == "" {
		t.Errorf("HTTP/1.0 without Host: %q", r.head)
	}
}

// What an upstream answers is what the client gets, compressed or not, with or
// without a body.
func TestAnswersAreNotTouched(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, strings.Repeat("weather ", 1000))
	_ = z.Close()
	length := strconv.Itoa(zipped.Len())
	u := newWireUpstream(t, func(r wireRequest) string {
		method, rest, _ := strings.Cut(r.line, " ")
		target, _, _ := strings.Cut(rest, " ")
		switch target {
		case "/zipped":
			head := "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nETag: \"v1\"\r\nContent-Type: text/plain\r\nVary: Accept-Encoding\r\nDate: Mon, 30 Nov 2026 10:00:00 GMT\r\nServer: u\r\nContent-Length: " + length + "\r\n\r\n"
			if method == "HEAD" {
				return head
			}
			return head + zipped.String()
		case "/range":
			return "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/9\r\nContent-Length: 2\r\n\r\n<h"
		case "/204":
			return "HTTP/1.1 204 No Content\r\nETag: W/\"v2\"\r\n\r\n"
		case "/304":
			return "HTTP/1.1 304 Not Modified\r\nETag: \"v1\"\r\nCache-Control: max-age=60\r\n\r\n"
		case "/chunked":
			if method == "HEAD" {
				return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
			}
			return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
		case "/close":
			return "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end"
		case "/error":
			return "HTTP/1.1 500 Oh\r\nContent-Type: text/html\r\nContent-Length: 9\r\n\r\n<h1>no</h"
		case "/private":
			return "HTTP/1.1 200 OK\r\nConnection: X-Private\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 0\r\n\r\n"
		}
		return "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
	})
	g := proxySite(t, u.URL).start()
	get := func(method, target, fields string) answer {
		return g.ask(method + " " + target + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n")
	}
	wants := func(a answer, status int, body string, fields ...string) {
		t.Helper()
		if a.status != status || a.body != body {
			t.Errorf("%d with %d bytes, want %d with %d", a.status, len(a.body), status, len(body))
		}
		for i := 0; i < len(fields); i += 2 {
			if got := strings.Join(a.header.Values(fields[i]), "|"); got != fields[i+1] {
				t.Errorf("%s: %q, want %q", fields[i], got, fields[i+1])
			}
		}
	}
	for _, accepted := range []string{"", "Accept-Encoding: identity\r\n", "Accept-Encoding: gzip, br;q=0.5\r\n"} {
		a := get("GET", "/zipped", accepted)
		wants(a, 200, zipped.String(), "Content-Encoding", "gzip", "Etag", `"v1"`, "Content-Length", length,
			"Vary", "Accept-Encoding", "Date", "Mon, 30 Nov 2026 10:00:00 GMT", "Server", "u", "Content-Type", "text/plain")
		want := strings.TrimSuffix(strings.TrimPrefix(accepted, "Accept-Encoding: "), "\r\n")
		if got := strings.Join(u.last(t).all("Accept-Encoding"), "|"); got != want {
			t.Errorf("the upstream is asked for %q, want %q", got, want)
		}
	}
	wants(get("HEAD", "/zipped", ""), 200, "", "Content-Encoding", "gzip", "Etag", `"v1"`, "Content-Length", length)
	wants(get("HEAD", "/chunked", ""), 200, "", "Content-Length", "", "Content-Type", "")
	wants(get("GET", "/range", "Range: bytes=0-1\r\n"), 206, "<h", "Content-Range", "bytes 0-1/9", "Content-Length", "2", "Content-Type", "")
	wants(get("GET", "/204", ""), 204, "", "Etag", `W/"v2"`, "Content-Length", "", "Content-Type", "", "Transfer-Encoding", "")
	wants(get("GET", "/304", "If-None-Match: \"v1\"\r\n"), 304, "", "Etag", `"v1"`, "Content-Length", "", "Content-Type", "", "Cache-Control", "max-age=60")
	wants(get("GET", "/chunked", ""), 200, "abc", "Content-Type", "")
	wants(get("GET", "/close", ""), 200, "until the end", "Connection", "")
	wants(get("GET", "/error", ""), 500, "<h1>no</h", "Content-Type", "text/html")
	wants(get("GET", "/private", ""), 200, "", "X-Private", "", "Keep-Alive", "", "Connection", "", "Set-Cookie", "a=1|b=2")
	// A redirect is the client's to follow, and tells no limits.
	wants(get("GET", "/moved", ""), 302, "", "Location", "/elsewhere", "Ratelimit", "", "X-Ratelimit-Limit", "")
	// Every other answer of a limited route tells them.
	for _, target := range []string{"/204", "/304", "/error", "/zipped"} {
		if a := get("GET", target, ""); a.field("RateLimit") == "" || a.field("RateLimit-Policy") == "" || a.field("X-RateLimit-Limit") != "1000000" {
			t.Errorf("%s tells no limits: %v", target, a.header)
		}
	}
}

// A stream is seen as it happens: the head before the first event, and each
// event while the upstream has not yet sent the next.
func TestEachEventIsSeenWhileTheStreamIsOpen(t *testing.T) {
	seen := make(chan struct{}, 1)
	await := func(r *http.Request) bool {
		select {
		case <-seen:
			return true
		case <-r.Context().Done():
			return false
		}
	}
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.URL.Query().Get("type"))
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		for i := range 5 {
			if !await(r) {
				return
			}
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = rc.Flush()
		}
		await(r)
	})
	g := proxySite(t, u.URL).start()
	for name, c := range protocols(t) {
		for _, kind := range []string{"text/event-stream", "application/x-ndjson", "application/grpc-web"} {
			res, err := c.Get(g.url + "/events?type=" + kind)
			if err != nil {
				t.Fatalf("%s %s: no head before the first event: %v", name, kind, err)
			}
			in := textproto.NewReader(bufio.NewReader(res.Body))
			seen <- struct{}{}
			for i := range 5 {
				line, err := in.ReadLine()
				if empty, _ := in.ReadLine(); err != nil || line != fmt.Sprintf("data: %d", i) || empty != "" {
					t.Fatalf("%s %s: event %d: %q, %v", name, kind, i, line, err)
				}
				seen <- struct{}{} // only now the upstream goes on
			}
			if _, err := in.ReadLine(); !errors.Is(err, io.EOF) {
				t.Errorf("%s %s: the end of the stream: %v", name, kind, err)
			}
			_ = res.Body.Close()
		}
	}
}

// peakMemory is the largest resident size the process has had, in bytes.
func (g *gateway) peakMemory() int64 {
	g.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
	if err != nil {
		g.t.Skip("needs /proc")
	}
	for line := range strings.Lines(string(status)) {
		if size, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(size), "kB")), 10, 64)
			if err != nil {
				g.t.Fatal(err)
			}
			return n << 10
		}
	}
	g.t.Fatal("no VmHWM in /proc")
	return 0
}

// A body of any size passes through, complete and in constant memory.
func TestBodiesOfAnySizeAreStreamedInConstantMemory(t *testing.T) {
	t.Parallel()
	const size = 200 << 20
	growth := int64(32 << 20)
	if raceEnabled {
		growth = 150 << 20 // the race detector remembers every word
	}
	block := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(block)
	sum := crc32.NewIEEE()
	for range size / len(block) {
		_, _ = sum.Write(block)
	}
	want := sum.Sum32()
	send := func(w io.Writer) error {
		for range size / len(block) {
			if _, err := w.Write(block); err != nil {
				return err
			}
		}
		return nil
	}
	check := func(r io.Reader) error {
		sum := crc32.NewIEEE()
		switch n, err := io.Copy(sum, r); {
		case err != nil:
			return fmt.Errorf("after %d bytes: %w", n, err)
		case n != size || sum.Sum32() != want:
			return fmt.Errorf("%d bytes with sum %x, want %d with %x", n, sum.Sum32(), size, want)
		}
		return nil
	}
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/download":
			_ = send(w)
			return
		case "/warm-up":
			return
		}
		if len(r.TransferEncoding) != 1 || r.TransferEncoding[0] != "chunked" {
			t.Errorf("the upload arrives framed as %q, %d bytes", r.TransferEncoding, r.ContentLength)
		}
		if err := check(r.Body); err != nil {
			t.Errorf("upload: %v", err)
		}
	})
	g := proxySite(t, u.URL).start()
	g.get("/warm-up")
	for name, c := range protocols(t) {
		c = &http.Client{Transport: c.Transport, Timeout: 3 * patience}
		before := g.peakMemory()
		body, feed := io.Pipe()
		go func() { _ = feed.CloseWithError(send(feed)) }()
		res, err := c.Post(g.url+"/upload", "application/octet-stream", body)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("%s: upload: %d", name, res.StatusCode)
		}
		if res, err = c.Get(g.url + "/download"); err != nil {
			t.Fatal(err)
		}
		if err := check(res.Body); err != nil {
			t.Errorf("%s: download: %v", name, err)
		}
		_ = res.Body.Close()
		if grown := g.peakMemory() - before; grown > growth {
			t.Errorf("%s: the gateway grew by %d MiB carrying %d MiB each way", name, grown>>20, size>>20)
		}
	}
}

// An upstream may answer before it has seen the whole request; its client hears
// of it while it is still sending.
func TestAnEarlyAnswerArrivesDuringTheUpload(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex() // or it would wait for the rest itself
		_, _ = io.ReadFull(r.Body, make([]byte, 5))
		w.Header().Set("Content-Length", "8")
		w.WriteHeader(413)
		_, _ = io.WriteString(w, "too much")
		_ = rc.Flush()
	})
	g := proxySite(t, u.URL).start()
	c := g.dial()
	c.say("POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
	if a := c.hearAll("POST"); a.status != 413 || a.body != "too much" {
		t.Errorf("%d %q", a.status, a.body)
	}
	h2 := h2cClient(t)
	body, feed := io.Pipe()
	defer feed.Close()
	go func() { _, _ = io.WriteString(feed, "hello") }()
	res, err := h2.Post(g.url+"/upload", "text/plain", body)
	if err != nil {
		t.Fatalf("HTTP/2: %v", err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); res.StatusCode != 413 || string(b) != "too much" || err != nil {
		t.Errorf("HTTP/2: %d %q %v", res.StatusCode, b, err)
	}
}

// lastRequestLine waits until n requests are in the access log and returns the
// last of them.
func (g *gateway) lastRequestLine(n int) map[string]any {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%d lines in the access log", n), func() bool { return len(g.all("request")) >= n })
	return g.logged("request")
}

// A client that leaves takes its request along, and is 499 where it is counted.
func TestAClientThatLeavesCancelsTheUpstreamsWork(t *testing.T) {
	arrived, cancelled := make(chan struct{}, 1), make(chan struct{}, 1)
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/upload" {
			arrived <- struct{}{}
			if b, err := io.ReadAll(r.Body); err == nil {
				t.Errorf("half an upload arrives as a whole one of %d bytes", len(b))
			}
			cancelled <- struct{}{}
			return
		}
		if r.URL.Path == "/body" {
			_, _ = io.WriteString(w, "a part")
			_ = http.NewResponseController(w).Flush()
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		cancelled <- struct{}{}
	})
	g := proxySite(t, u.URL).start()
	n := 0
	leaves := func(name string, leave func()) {
		t.Helper()
		select {
		case <-arrived:
		case <-time.After(patience):
			t.Fatalf("%s: nothing arrives at the upstream", name)
		}
		leave()
		select {
		case <-cancelled:
		case <-time.After(patience):
			t.Fatalf("%s: the upstream works on for nobody", name)
		}
		n++
		if line := g.lastRequestLine(n); line["status"] != 499.0 {
			t.Errorf("%s: status %v in the log, want 499", name, line["status"])
		}
	}
	for _, path := range []string{"/head", "/body"} {
		c := g.dial()
		c.say("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
		leaves("HTTP/1.1 "+path, func() { _ = c.Close() })

		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, "GET", g.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		h2 := h2cClient(t)
		var asking sync.WaitGroup
		asking.Go(func() {
			if res, err := h2.Do(r); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		})
		leaves("HTTP/2 "+path, cancel)
		asking.Wait()
	}
	// The end of an upload that breaks off is not made up.
	c := g.dial()
	c.say("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello")
	leaves("upload", func() { _ = c.Close() })
	if got := g.sum("gateway_requests_total", `code="499"`); got != float64(n) {
		t.Errorf("%v requests counted as 499, want %d", got, n)
	}
	if got := g.value(`gateway_in_flight{route="all"}`); got != 0 {
		t.Errorf("%v requests in flight when all have left", got)
	}
}

// An answer that breaks off must not look like a whole one, whatever framing
// was meant to tell.
func TestAnUpstreamThatDiesMidBodyIsNeverAShortSuccess(t *testing.T) {
	half := strings.Repeat("weather ", 40<<10/8)
	u := newWireUpstream(t, func(r wireRequest) string {
		switch {
		case strings.Contains(r.line, "/length"):
			return "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n" + half
		case strings.Contains(r.line, "/short"):
			return "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nweat"
		case strings.Contains(r.line, "/nothing"):
			return "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\n"
		case strings.Contains(r.line, "/chunk"):
			return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\na000\r\n" + half
		default: // between two chunks
			return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\na000\r\n" + half + "\r\n"
		}
	})
	g := proxySite(t, u.URL).start()
	n := 0
	for name, c := range protocols(t) {
		for _, path := range []string{"/length", "/short", "/nothing", "/chunk", "/between"} {
			n++
			res, err := c.Get(g.url + path)
			if err != nil {
				t.Errorf("%s %s: the head is lost: %v", name, path, err)
				continue
			}
			b, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err == nil {
				t.Errorf("%s %s: %d, %d bytes and no error: taken for whole", name, path, res.StatusCode, len(b))
			}
			if !strings.HasPrefix(half, string(b)) {
				t.Errorf("%s %s: something was added to the body: %q", name, path, b[max(0, len(b)-100):])
			}
			line := g.lastRequestLine(n)
			if line["path"] != path || str(line, "upstream_error") == "" {
				t.Errorf("%s %s: the log does not say that the upstream failed: %v", name, path, line)
			}
		}
	}
	if out := g.output() + g.stderr.String(); contains(out, "goroutine ") || contains(out, "panic") {
		t.Errorf("a stack trace for an upstream's failure:\n%s", out)
	}
}

// An upstream that gives no answer is a problem in the gateway's own words,
// with the limits beside it, since the request was charged.
func TestAnUpstreamWithoutAnAnswerIsAProblem(t *testing.T) {
	hang := serveConns(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	plain := serveConns(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_, _ = io.WriteString(c, "HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	})
	says := func(text string) string { return newWireUpstream(t, func(wireRequest) string { return text }).URL }
	for name, test := range map[string]struct {
		target string
		status int
	}{
		"slow":          {"http://" + hang, 504},
		"refused":       {"http://" + deadAddress(t), 502},
		"closed":        {says(""), 502},
		"garbage":       {says("hello\r\n\r\n"), 502},
		"half a head":   {says("HTTP/1.1 200 OK\r\nConnection: close\r\n"), 502},
		"huge head":     {says("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2<<20) + "\r\n\r\n"), 502},
		"not HTTP":      {says("SSH-2.0-OpenSSH_9.6\r\nConnection: close\r\n"), 502},
		"bad length":    {says("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), 502},
		"odd status":    {says("HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n"), 502},
		"switch":        {says("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), 502},
		"no TLS":        {"https://" + hang, 504},
		"plain for TLS": {"https://" + plain, 502},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := proxySite(t, "")
			s.write("routes.yaml", proxyRoutes(test.target, `http: "127.0.0.1:0"`, `, timeout: {connect: 300ms, response_header: 2s}`))
			g := s.start()
			for _, method := range []string{"GET", "POST"} {
				a := send(t, method, g.url+"/a?secret=tell-nobody", nil)
				if a.status != test.status {
					t.Errorf("%s: %d, want %d", method, a.status, test.status)
				}
				p := a.problem(t)
				if p["status"] != float64(test.status) || p["type"] != "about:blank" || p["request_id"] != a.field("X-Request-Id") {
					t.Errorf("%s: problem %v", method, p)
				}
				if tellsInsides(a.body) || contains(a.body, "EOF") || contains(a.body, "http:") || contains(a.body, "net/") {
					t.Errorf("%s: the client is shown insides: %s", method, a.body)
				}
				if a.field("RateLimit") == "" || a.field("RateLimit-Policy") == "" || a.field("X-RateLimit-Remaining") == "" {
					t.Errorf("%s: a charged request is not told its limits: %v", method, a.header)
				}
				line := g.requestLine(a.field("X-Request-Id"))
				if line["status"] != float64(test.status) || str(line, "upstream_error") == "" || contains(str(line, "upstream_error"), "tell-nobody") {
					t.Errorf("%s: log line %v", method, line)
				}
			}
			a := send(t, "HEAD", g.url+"/a", nil)
			if a.status != test.status || a.body != "" {
				t.Errorf("HEAD: %d with %d bytes", a.status, len(a.body))
			}
			if contains(g.output(), "goroutine ") || g.stderr.String() != "" {
				t.Errorf("said more than one line a request:\n%s%s", g.output(), g.stderr.String())
			}
		})
	}
}

// A WebSocket goes through limits and logs as any request does, is charged
// once, and each side learns at once when the other goes.
func TestAWebSocketPassesALimitedRoute(t *testing.T) {
	gone := make(chan struct{}, 8)
	kill := make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("RateLimit", `"theirs";r=1`)
		w.Header().Set("X-RateLimit-Limit", "7")
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"echo"}})
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(4 << 20)
		go func() {
			if r.URL.Path == "/killed" {
				<-kill
				_ = c.CloseNow()
			}
		}()
		for {
			kind, b, err := c.Read(context.Background())
			if err != nil {
				gone <- struct{}{}
				return
			}
			if err := c.Write(context.Background(), kind, b); err != nil {
				gone <- struct{}{}
				return
			}
		}
	})
	s := proxySite(t, u.URL)
	s.write("plans.yaml", `
anonymous_plan: anonymous
plans:
  anonymous: {limits: [{name: per-hour, per: ip, algorithm: fixed_window, limit: 2/hour}]}
`)
	g := s.start()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dial := func(path string) (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(ctx, g.url+path, &websocket.DialOptions{Subprotocols: []string{"echo"}})
	}
	c, res, err := dial("/echo")
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(4 << 20)
	for name, want := range map[string]string{
		"RateLimit-Policy": `"per-hour";q=2;w=3600`, "X-RateLimit-Remaining": "1", "X-RateLimit-Limit": "2",
	} {
		if got := strings.Join(res.Header.Values(name), "|"); got != want {
			t.Errorf("%s on the 101: %q, want %q", name, got, want)
		}
	}
	if got := strings.Join(res.Header.Values("RateLimit"), "|"); !strings.HasPrefix(got, `"theirs";r=1, "per-hour";r=1;t=`) {
		t.Errorf("RateLimit on the 101: %q", got)
	}
	if ids := res.Header.Values("X-Request-Id"); len(ids) != 1 {
		t.Errorf("X-Request-Id on the 101: %q", ids)
	}
	if c.Subprotocol() != "echo" {
		t.Errorf("subprotocol %q", c.Subprotocol())
	}
	big := strings.Repeat("0123456789abcdef", 1<<16)
	for _, text := range []string{"hello", "", big} {
		if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := c.Read(ctx); err != nil || string(b) != text {
			t.Fatalf("an echo of %d bytes: %d bytes, %v", len(text), len(b), err)
		}
	}
	if got := g.value(`gateway_in_flight{route="all"}`); got != 1 {
		t.Errorf("%v in flight while the socket is open, want 1", got)
	}
	_ = c.CloseNow()
	select {
	case <-gone:
	case <-ctx.Done():
		t.Fatal("the upstream does not learn that the client left")
	}
	if line := g.lastRequestLine(1); line["status"] != 101.0 {
		t.Errorf("log line of a socket: %v", line)
	}

	c, _, err = dial("/killed")
	if err != nil {
		t.Fatal(err)
	}
	close(kill)
	if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the client does not learn that the upstream went: %v", err)
	}
	_ = c.CloseNow()

	if _, res, err = dial("/echo"); err == nil || res == nil || res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
		t.Errorf("the third handshake of two: %v, %v", res, err)
	}
	if u.count() != 2 {
		t.Errorf("%d handshakes reached the upstream, want 2", u.count())
	}
	eventually(t, "nothing is in flight", func() bool { return g.value(`gateway_in_flight{route="all"}`) == 0 })
}

// Early hints reach the client before the answer, and their fields do not mix.
func TestEarlyHintsPass(t *testing.T) {
	hinted := make(chan struct{}, 1)
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		select {
		case <-hinted: // the client has them before there is an answer
		case <-r.Context().Done():
			return
		}
		w.Header().Del("Link")
		w.Header().Set("X-Final", "1")
		_, _ = io.WriteString(w, "done")
	})
	g := proxySite(t, u.URL).start()
	for name, c := range protocols(t) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				if code != 103 || h.Get("Link") != "</style.css>; rel=preload" || h.Get("RateLimit") != "" || h.Get("X-Final") != "" {
					t.Errorf("%s: %d %v", name, code, h)
				}
				hinted <- struct{}{}
				return nil
			},
		})
		r, err := http.NewRequestWithContext(ctx, "GET", g.url+"/page", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != 200 || string(b) != "done" || res.Header.Get("Link") != "" || res.Header.Get("X-Final") != "1" || res.Header.Get("RateLimit") == "" {
			t.Errorf("%s: %d %q %v", name, res.StatusCode, b, res.Header)
		}
	}
}
