package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bouncer/gateway/httperr"
	"bouncer/gateway/proxy"
)

// deadAddress is one where nobody listens.
func deadAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestNoUsableAnswer(t *testing.T) {
	say := func(answer string) string {
		return rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
			if _, err := readHead(in); err == nil {
				_, _ = io.WriteString(c, answer)
			}
		})
	}
	silent := rawUpstream(t, func(_ net.Conn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) })
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	selfSigned := httptest.NewUnstartedServer(http.NotFoundHandler())
	selfSigned.Config.ErrorLog = quiet
	selfSigned.StartTLS()
	defer selfSigned.Close()
	for _, test := range []struct {
		name, upstream string
		status         int
		reason         string
	}{
		{"refused", deadAddress(t), 502, proxy.ReasonUnreachable},
		{"no such name", "http://upstream.invalid", 502, proxy.ReasonUnreachable},
		{"certificate", selfSigned.URL, 502, proxy.ReasonUnreachable},
		{"no TLS there", strings.Replace(plain.URL, "http:", "https:", 1), 502, proxy.ReasonUnreachable},
		{"closed at once", say(""), 502, proxy.ReasonBroken},
		{"half a head", say("HTTP/1.1 200 OK\r\nX-A: "), 502, proxy.ReasonBroken},
		{"not HTTP", say("SSH-2.0-OpenSSH_9.2\r\n\r\n"), 502, proxy.ReasonBroken},
		{"two lengths", say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"), 502, proxy.ReasonBroken},
		{"head too large", say("HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("x", 2<<20) + "\r\n\r\n"), 502, proxy.ReasonBroken},
		{"switched unasked", say("HTTP/1.1 101 Switching Protocols\r\n\r\n"), 502, proxy.ReasonBroken},
		{"no status", say("HTTP/1.1 000 What\r\nContent-Length: 0\r\n\r\n"), 502, proxy.ReasonBroken},
		{"status beyond", say("HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n"), 502, proxy.ReasonBroken},
		{"silent", silent, 504, proxy.ReasonTimeout},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := proxy.Options{ConnectTimeout: 5 * time.Second}
			if test.reason == proxy.ReasonTimeout {
				options.ResponseHeaderTimeout = 100 * time.Millisecond
			}
			g := newGateway(t, settings{options: options}, test.upstream)
			res := roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			body, _ := io.ReadAll(res.Body)
			o := receive(t, g.outcomes, "an outcome")
			if o.err == nil {
				t.Fatal("want an error")
			}
			if res.StatusCode != test.status || o.err.Reason != test.reason {
				t.Errorf("want %d %s, got %d %s (%v)", test.status, test.reason, res.StatusCode, o.err.Reason, o.err.Err)
			}
			if o.scope.UpstreamErr == nil || errors.Is(o.scope.UpstreamErr, proxy.ErrClient) {
				t.Errorf("want the reason for the log, got %v", o.scope.UpstreamErr)
			}
			_, address, _ := strings.Cut(test.upstream, "//")
			host, _, _ := strings.Cut(address, ":")
			if strings.Contains(string(body), host) || !strings.Contains(string(body), `upstream \"weather\"`) || strings.Contains(string(body), "dial") {
				t.Errorf("want the upstream's name and no address or Go error, got %s", body)
			}
			if d := receive(t, g.dones, "Done"); d.err == nil || d.target != address {
				t.Errorf("done %+v", d)
			}
		})
	}
}

// A listener whose queue is full takes no more connections, and does not
// refuse them either.
func TestConnectTimeout(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	full := false
	for range 64 {
		c, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			full = true
			break
		}
		defer c.Close()
	}
	if !full {
		t.Fatal("want a full queue")
	}
	g := newGateway(t, settings{options: proxy.Options{ConnectTimeout: 100 * time.Millisecond}}, "http://"+address)
	if res := roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode != 504 {
		t.Errorf("want 504, got %d", res.StatusCode)
	}
	if o := receive(t, g.outcomes, "an outcome"); o.err.Reason != proxy.ReasonTimeout {
		t.Errorf("want %s, got %s", proxy.ReasonTimeout, o.err.Reason)
	}
}

// An upstream that takes in no more of a large body is too slow, although the
// time for the head of the answer has not begun.
func TestUpstreamStopsReading(t *testing.T) {
	release := make(chan struct{})
	upstream := rawUpstream(t, func(_ net.Conn, in *bufio.Reader) {
		_, _ = readHead(in)
		<-release
	})
	defer close(release)
	g := newGateway(t, settings{options: proxy.Options{ResponseHeaderTimeout: 200 * time.Millisecond}}, upstream)
	res, err := http.Post(g.URL, "", struct{ io.Reader }{io.LimitReader(zeros{}, 1<<30)})
	if err == nil { // else the client noticed the close before the answer
		defer res.Body.Close()
		if res.StatusCode != 504 {
			t.Errorf("want 504, got %d", res.StatusCode)
		}
	}
	if o := receive(t, g.outcomes, "an outcome"); o.err == nil || o.err.Status != 504 {
		t.Errorf("want 504, got %+v", o)
	}
}

// A client may take its time with the body: that is not the upstream's delay.
func TestSlowUploadIsNotTheUpstreamsFault(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer upstream.Close()
	const wait = 50 * time.Millisecond
	g := newGateway(t, settings{options: proxy.Options{ResponseHeaderTimeout: wait}}, upstream.URL)
	c, in := dialRaw(t, g.address())
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
	<-time.After(3 * wait) // what is tested is that nothing happens meanwhile
	_, _ = io.WriteString(c, "b")
	if res, err := http.ReadResponse(in, nil); err != nil || res.StatusCode != 200 {
		t.Errorf("want 200, got %v %v", res, err)
	}
}

func TestClientLeaves(t *testing.T) {
	for _, when := range []string{"before the head", "mid-body", "mid-upload"} {
		t.Run(when, func(t *testing.T) {
			arrived, cancelled := make(chan struct{}), make(chan struct{})
			upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if when == "mid-body" {
					w.WriteHeader(200)
					_ = http.NewResponseController(w).Flush()
				}
				close(arrived)
				if when == "mid-upload" {
					_, err := io.Copy(io.Discard, r.Body)
					if err == nil {
						t.Error("want the upstream to see a broken body, not a complete one")
					}
					close(cancelled)
					return
				}
				<-r.Context().Done()
				close(cancelled)
			}))
			defer upstream.Close()
			g := newGateway(t, settings{}, upstream.URL)
			c, in := dialRaw(t, g.address())
			request := "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
			if when == "mid-upload" {
				request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"
			}
			_, _ = io.WriteString(c, request)
			receive(t, arrived, "the request at the upstream")
			if when == "mid-body" {
				if _, err := readHead(in); err != nil {
					t.Fatal(err)
				}
			}
			c.Close()
			receive(t, cancelled, "the upstream's request to be cancelled")
			o := receive(t, g.outcomes, "an outcome")
			d := receive(t, g.dones, "Done")
			if !errors.Is(o.scope.UpstreamErr, proxy.ErrClient) || !errors.Is(d.err, proxy.ErrClient) {
				t.Errorf("want the client's doing, got %v, %v", o.scope.UpstreamErr, d.err)
			}
			if when == "mid-body" {
				if o.err != nil || !o.aborted {
					t.Errorf("want an aborted answer, got %+v", o)
				}
			} else if o.err == nil || o.err.Status != httperr.StatusClientClosedRequest || o.err.Reason != proxy.ReasonClientLeft {
				t.Errorf("want 499, got %+v", o)
			}
		})
	}
}

func TestClientBody(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			t.Error("want the upstream to see a broken body, not a complete one")
		}
	}))
	defer upstream.Close()
	g := newGateway(t, settings{body: 4}, upstream.URL)
	for body, want := range map[string]int{
		"5\r\nhello\r\n0\r\n\r\n": 413,
		"2\r\nhi\r\nzz\r\n":       400,
	} {
		res := roundTrip(t, g.address(), "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"+body)
		o := receive(t, g.outcomes, "an outcome")
		if res.StatusCode != want || !errors.Is(o.scope.UpstreamErr, proxy.ErrClient) {
			t.Errorf("%q: want %d, got %d, %v", body, want, res.StatusCode, o.scope.UpstreamErr)
		}
	}
}

func TestDeadTargetsAreSkipped(t *testing.T) {
	var got atomic.Int64
	alive := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "a body" || r.URL.Path != "/base/x" {
			t.Errorf("want the whole body at /base/x, got %q %v at %s", body, err, r.URL)
		}
		got.Add(1)
	}))
	defer alive.Close()
	for _, balance := range []string{proxy.LeastRequests, proxy.RoundRobin} {
		g := newGateway(t, settings{options: proxy.Options{Balance: balance}}, deadAddress(t)+"/other", alive.URL+"/base", deadAddress(t))
		got.Store(0)
		for _, framing := range []string{"Content-Length: 6\r\n\r\na body", "Transfer-Encoding: chunked\r\n\r\n6\r\na body\r\n0\r\n\r\n", "Content-Length: 6\r\n\r\na body"} {
			if res := roundTrip(t, g.address(), "POST /x HTTP/1.1\r\nHost: a\r\n"+framing); res.StatusCode != 200 {
				t.Errorf("want 200, got %d", res.StatusCode)
			}
			o := receive(t, g.outcomes, "an outcome")
			if o.scope.UpstreamErr != nil || "http://"+o.scope.Target != alive.URL {
				t.Errorf("outcome %+v", o)
			}
		}
		if got.Load() != 3 {
			t.Errorf("want 3 requests, got %d", got.Load())
		}
	}
	g := newGateway(t, settings{}, deadAddress(t), deadAddress(t))
	for range 6 { // also when both are left out
		if res := roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode != 502 {
			t.Errorf("want 502, got %d", res.StatusCode)
		}
		if a, b := receive(t, g.dones, "Done"), receive(t, g.dones, "Done"); a.target == b.target || a.err == nil || b.err == nil {
			t.Errorf("want each target tried once, got %v %v", a, b)
		}
	}
}

func TestBalance(t *testing.T) {
	var mu sync.Mutex
	counts := map[string]int{}
	hold, held := make(chan struct{}), make(chan string, 10)
	var targets []string
	for range 3 {
		var name string
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			counts[name]++
			mu.Unlock()
			if r.URL.Path == "/hold" {
				held <- name
				<-hold
			}
		}))
		defer s.Close()
		name = s.URL
		targets = append(targets, s.URL)
	}
	send := func(g *gateway, n int) {
		mu.Lock()
		clear(counts)
		mu.Unlock()
		for range n {
			roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			receive(t, g.outcomes, "an outcome")
		}
	}
	for _, balance := range []string{"", proxy.RoundRobin} {
		g := newGateway(t, settings{options: proxy.Options{Balance: balance}}, targets...)
		send(g, 9)
		for _, target := range targets {
			if counts[target] != 3 {
				t.Errorf("%q: want 3 each, got %v", balance, counts)
			}
		}
	}
	g := newGateway(t, settings{}, targets...)
	var wg sync.WaitGroup
	wg.Go(func() { roundTrip(t, g.address(), "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n") })
	busy := receive(t, held, "a held request")
	send(g, 10)
	if counts[busy] != 0 {
		t.Errorf("want the busy target left alone, got %v", counts)
	}
	close(hold)
	wg.Wait()
}

// An upstream that closes each connection just after its answer: a request
// that could happen twice without harm never fails.
func TestStaleConnections(t *testing.T) {
	upstream := rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
		if _, err := readHead(in); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	g := newGateway(t, settings{}, upstream)
	c, in := dialRaw(t, g.address())
	for i := range 300 {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		res, err := http.ReadResponse(in, nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("request %d: want 200, got %v %v", i, res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
	}
}

// The same with requests that must not happen twice: they may fail, but the
// upstream sees each at most once, and with its whole body.
func TestPostIsNeverDoubled(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	upstream := rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
		head, err := readHead(in)
		if err != nil {
			return
		}
		body := make([]byte, 4)
		if _, err := io.ReadFull(in, body); err != nil || string(body) != "body" {
			t.Errorf("want the body, got %q %v", body, err)
		}
		line, _, _ := strings.Cut(head, "\r\n")
		mu.Lock()
		seen[line]++
		mu.Unlock()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})
	g := newGateway(t, settings{}, upstream)
	c, in := dialRaw(t, g.address())
	carried := 0
	for i := range 300 {
		_, _ = fmt.Fprintf(c, "POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", i)
		res, err := http.ReadResponse(in, nil)
		if err != nil || res.StatusCode != 200 && res.StatusCode != 502 {
			t.Fatalf("request %d: want 200 or 502, got %v %v", i, res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if res.StatusCode == 200 {
			carried++
		}
		if res.Close { // the answer came before the body had been read
			c, in = dialRaw(t, g.address())
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for line, n := range seen {
		if n > 1 {
			t.Errorf("%s was seen %d times", line, n)
		}
	}
	if carried == 0 || len(seen) < carried {
		t.Errorf("%d answered, %d seen", carried, len(seen))
	}
	t.Logf("%d of 300 carried on connections that close at once", carried)
}

func TestDeadlineOfTheCaller(t *testing.T) {
	silent := rawUpstream(t, func(_ net.Conn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) })
	g := newGateway(t, settings{}, silent)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	s := someone
	e := g.up.Forward(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil), &s, proxy.Forward{})
	if e == nil || e.Status != 504 {
		t.Errorf("want 504, got %v", e)
	}
}
