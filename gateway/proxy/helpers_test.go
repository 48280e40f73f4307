package proxy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bouncer/gateway/httperr"
	"bouncer/gateway/proxy"
	"bouncer/gateway/scope"
)

// stdLog collects what net/http or anybody prints on the standard logger.
var stdLog lockedBuffer

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestMain(m *testing.M) {
	log.SetOutput(&stdLog)
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines left: %v\n", err)
			code = 1
		}
		if s := stdLog.String(); s != "" {
			fmt.Fprint(os.Stderr, "want a quiet standard logger, got:\n", s)
			code = 1
		}
	}
	os.Exit(code)
}

// wrapper is what the pipeline puts around the ResponseWriter: it hides
// everything but Unwrap.
type wrapper struct {
	w      http.ResponseWriter
	status int
}

func (w *wrapper) Header() http.Header         { return w.w.Header() }
func (w *wrapper) Write(p []byte) (int, error) { return w.w.Write(p) }
func (w *wrapper) Unwrap() http.ResponseWriter { return w.w }
func (w *wrapper) WriteHeader(status int) {
	if status >= 200 {
		w.status = status
	}
	w.w.WriteHeader(status)
}

// outcome is what one request left behind.
type outcome struct {
	scope   scope.Request
	err     *httperr.Error
	aborted bool
}

// done is one call of Hooks.Done.
type done struct {
	target string
	status int
	stream bool
	err    error
}

// gateway is an Upstream behind a real server.
type gateway struct {
	*httptest.Server
	up       *proxy.Upstream
	outcomes chan outcome // one for each request
	dones    chan done
}

type settings struct {
	options proxy.Options
	forward proxy.Forward
	scope   scope.Request
	body    int64 // largest request body; 0 is unlimited
	tls     bool
	patient time.Duration // how long the server waits for a request; 0 is for ever
}

func newGateway(t *testing.T, set settings, targets ...string) *gateway {
	t.Helper()
	g := &gateway{outcomes: make(chan outcome, 1000), dones: make(chan done, 1000)}
	o := set.options
	o.Name = "weather"
	for _, s := range targets {
		target, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		o.Targets = append(o.Targets, proxy.Target{URL: target})
	}
	o.Hooks.Done = func(upstream, target string, status int, d time.Duration, stream bool, err error) {
		if upstream != "weather" || d <= 0 {
			t.Errorf("Done: want weather and a duration, got %q %v", upstream, d)
		}
		g.dones <- done{target, status, stream, err}
	}
	up, err := proxy.New(o)
	if err != nil {
		t.Fatal(err)
	}
	g.up = up
	g.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := set.scope
		if s.ID == "" {
			s.ID = "req-1"
		}
		if set.body > 0 {
			r.Body = http.MaxBytesReader(w, r.Body, set.body)
		}
		wrapped := &wrapper{w: w}
		var e *httperr.Error
		defer func() {
			p := recover()
			g.outcomes <- outcome{scope: s, err: e, aborted: p != nil}
			if p != nil {
				if p != http.ErrAbortHandler { //nolint:errorlint // a panic's value, not an error
					t.Errorf("panic: %v", p)
				}
				panic(p)
			}
		}()
		wrapped.Header().Set("X-From-Pipeline", "yes")
		e = up.Forward(wrapped, r, &s, set.forward)
		if e == nil {
			return
		}
		if wrapped.status != 0 {
			t.Errorf("want nothing written beside an error, got %d", wrapped.status)
		}
		if e.Status != httperr.StatusClientClosedRequest {
			httperr.Write(wrapped, r, s.ID, e)
		}
	}))
	g.Config.ReadTimeout = set.patient
	if set.tls {
		g.EnableHTTP2 = true
		g.StartTLS()
	} else {
		g.Start()
	}
	t.Cleanup(func() {
		g.Close()
		up.Close()
	})
	return g
}

func (g *gateway) address() string { return g.Listener.Addr().String() }

func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatalf("want %s within 10s", what)
		panic("unreachable")
	}
}

// dialRaw opens a connection to write bytes on.
func dialRaw(t *testing.T, address string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// roundTrip sends raw bytes on a connection of their own and returns the answer.
func roundTrip(t *testing.T, address, request string) *http.Response {
	t.Helper()
	c, in := dialRaw(t, address)
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	res, err := http.ReadResponse(in, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("read the answer to %q: %v", request, err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	return res
}

// rawUpstream runs serve on each connection it accepts and closes it then.
func rawUpstream(t *testing.T, serve func(c net.Conn, in *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				serve(c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return "http://" + l.Addr().String()
}

// readHead returns the bytes up to and including the empty line.
func readHead(in *bufio.Reader) (string, error) {
	var head strings.Builder
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return "", err
		}
		head.WriteString(line)
		if line == "\r\n" {
			return head.String(), nil
		}
	}
}

// recorder is an upstream that hands over the heads it gets, as bytes, and
// answers 200 without a body.
func recorder(t *testing.T) (string, <-chan string) {
	heads := make(chan string, 100)
	return rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
		for {
			head, err := readHead(in)
			if err != nil {
				return
			}
			heads <- head
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil {
				return
			}
		}
	}), heads
}

// fieldsOf parses the fields of a recorded head; the names keep their spelling.
func fieldsOf(head string) map[string][]string {
	fields := map[string][]string{}
	for _, line := range strings.Split(head, "\r\n")[1:] {
		if name, value, ok := strings.Cut(line, ": "); ok {
			fields[name] = append(fields[name], value)
		}
	}
	return fields
}

// quiet is for servers whose complaints are expected.
var quiet = log.New(io.Discard, "", 0)

var someone = scope.Request{
	ID: "req-1", ClientIP: netip.MustParseAddr("203.0.113.7"), Forwarded: "203.0.113.7, 10.0.0.1",
	User: "priya123", Tenant: "acme", Plan: "free", KeyID: "k1",
}
