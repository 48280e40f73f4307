package proxy_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bouncer/gateway/proxy"
)

// scripted answers each request of a connection with the same bytes.
func scripted(t *testing.T, answer string) string {
	return rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
		for {
			if _, err := readHead(in); err != nil {
				return
			}
			if _, err := io.WriteString(c, answer); err != nil || strings.Contains(answer, "close") {
				return
			}
		}
	})
}

func TestAnswersPassUnchanged(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, strings.Repeat("hello ", 1000))
	z.Close()
	check := func(method, answer, body string, fields ...string) {
		t.Helper()
		g := newGateway(t, settings{}, scripted(t, answer))
		for range 2 { // the second on a used connection, with a used exchange
			res := roundTrip(t, g.address(), method+" / HTTP/1.1\r\nHost: a\r\n\r\n")
			got, _ := io.ReadAll(res.Body)
			if string(got) != body {
				t.Errorf("%s %.40q: want body %.60q, got %.60q", method, answer, body, got)
			}
			want, _, _ := strings.Cut(strings.TrimPrefix(answer, "HTTP/1.1 "), " ")
			if fmt.Sprint(res.StatusCode) != want {
				t.Errorf("%s %.40q: want %s, got %d", method, answer, want, res.StatusCode)
			}
			for _, f := range fields {
				name, value, _ := strings.Cut(f, ": ")
				if got := strings.Join(res.Header.Values(name), "|"); got != value {
					t.Errorf("%s %.40q: want %s %q, got %q", method, answer, name, value, got)
				}
			}
			if res.Header.Get("X-From-Pipeline") != "yes" {
				t.Error("want the fields that were there before")
			}
			o := receive(t, g.outcomes, "an outcome")
			d := receive(t, g.dones, "Done")
			if o.err != nil || o.aborted || o.scope.UpstreamStatus != res.StatusCode || o.scope.UpstreamErr != nil ||
				o.scope.UpstreamDuration <= 0 || o.scope.Target != d.target || d.status != res.StatusCode || d.err != nil {
				t.Errorf("%s %.40q: outcome %+v, done %+v", method, answer, o, d)
			}
		}
	}
	check("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nEtag: \"a\"\r\nServer: x\r\n\r\nhi", "hi", "Etag: \"a\"", "Content-Length: 2", "Content-Type: ", "Server: x")
	check("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n<p\r\n1\r\n>\r\n0\r\n\r\n", "<p>", "Content-Type: ")
	// Framed twice: as RFC 9112 section 6.3 reads it, and passed on as one that is right.
	check("GET", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello", "Content-Length: 5")
	check("GET", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end", "to the end", "Connection: ", "Content-Type: ")
	check("GET", "HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nContent-Length: 1\r\n\r\n1", "1", "X-Hop: ", "Keep-Alive: ", "Connection: ")
	check("GET", "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nContent-Type: text/plain\r\n\r\nnope", "nope", "Content-Type: text/plain")
	check("GET", "HTTP/1.1 429 Slow\r\nContent-Length: 0\r\nRetry-After: 7\r\n\r\n", "", "Retry-After: 7")
	check("GET", "HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\nown", "own")
	check("GET", "HTTP/1.1 302 Found\r\nLocation: http://a/b?c;d\r\nContent-Length: 0\r\n\r\n", "", "Location: http://a/b?c;d")
	check("GET", "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-From-Pipeline: no\r\nContent-Length: 0\r\n\r\n", "", "Set-Cookie: a=1|b=2", "X-From-Pipeline: yes|no")
	check("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", "", "Content-Length: 1000")
	check("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "", "Content-Length: ", "Content-Type: ")
	check("GET", "HTTP/1.1 204 No Content\r\nEtag: x\r\n\r\n", "", "Etag: x", "Content-Length: ", "Content-Type: ")
	check("GET", "HTTP/1.1 304 Not Modified\r\nEtag: \"v\"\r\n\r\n", "", "Etag: \"v\"", "Content-Length: ", "Content-Type: ")
	check("GET", fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nEtag: W/\"z\"\r\nContent-Length: %d\r\n\r\n%s", zipped.Len(), zipped.String()),
		zipped.String(), "Content-Encoding: gzip", "Etag: W/\"z\"", fmt.Sprint("Content-Length: ", zipped.Len()))
	big := strings.Repeat("0123456789", 50_000)
	check("GET", fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(big), big), big)
}

// Trailers that would change what the head has said are not the client's.
func TestTrailersThatComeTooLateAreDropped(t *testing.T) {
	g := newGateway(t, settings{}, scripted(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Grpc-Status, Set-Cookie\r\n\r\n2\r\nhi\r\n0\r\n"+
		"Grpc-Status: 0\r\nContent-Length: 99\r\nSet-Cookie: a=evil\r\nX-RateLimit-Limit: 9\r\nAccess-Control-Allow-Origin: evil\r\n\r\n"))
	c, err := net.Dial("tcp", g.address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(c)
	if s := string(all); err != nil || !strings.HasSuffix(s, "2\r\nhi\r\n0\r\nGrpc-Status: 0\r\n\r\n") || !strings.Contains(s, "\r\nTrailer: Grpc-Status\r\n") || strings.Contains(s, "Cookie") {
		t.Errorf("got %q %v", s, err)
	}
}

func TestAnswerTrailers(t *testing.T) {
	g := newGateway(t, settings{}, scripted(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Grpc-Status\r\n\r\n2\r\nhi\r\n0\r\nGrpc-Status: 0\r\nX-Late: 1\r\n\r\n"))
	res, err := http.Get(g.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if string(body) != "hi" || err != nil || res.Trailer.Get("Grpc-Status") != "0" || res.Trailer.Get("X-Late") != "1" {
		t.Errorf("got %q %v %v", body, err, res.Trailer)
	}
}

func TestEarlyHintsKeepTheirFieldsApart(t *testing.T) {
	const answer = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	g := newGateway(t, settings{}, scripted(t, answer))
	c, in := dialRaw(t, g.address())
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	hint, err := readHead(in)
	if err != nil || hint != "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" {
		t.Errorf("got %q %v", hint, err)
	}
	head, err := readHead(in)
	if err != nil || !strings.HasPrefix(head, "HTTP/1.1 200 OK\r\n") || strings.Contains(head, "Link") || !strings.Contains(head, "X-From-Pipeline: yes\r\n") {
		t.Errorf("got %q %v", head, err)
	}
	res := roundTrip(t, g.address(), "GET / HTTP/1.0\r\nHost: a\r\n\r\n")
	if res.StatusCode != 200 {
		t.Errorf("HTTP/1.0: want no interim answer, got %d", res.StatusCode)
	}
}

func TestExpectContinueIsTheUpstreamsToAnswer(t *testing.T) {
	upstream := rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
		head, err := readHead(in)
		if err != nil {
			return
		}
		if strings.Contains(head, "POST /no") {
			_, _ = io.WriteString(c, "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		body := make([]byte, 4)
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n%s", body)
	})
	g := newGateway(t, settings{}, upstream)
	c, in := dialRaw(t, g.address())
	_, _ = io.WriteString(c, "POST /yes HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	if head, err := readHead(in); err != nil || head != "HTTP/1.1 100 Continue\r\n\r\n" {
		t.Fatalf("want 100 first, got %q %v", head, err)
	}
	_, _ = io.WriteString(c, "body")
	res, err := http.ReadResponse(in, nil)
	for err == nil && res.StatusCode == 100 {
		res, err = http.ReadResponse(in, nil)
	}
	if err != nil || res.StatusCode != 200 {
		t.Errorf("want 200, got %v %v", res, err)
	}
	if res := roundTrip(t, g.address(), "POST /no HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"); res.StatusCode != 417 {
		t.Errorf("want 417 without the body, got %d", res.StatusCode)
	}
}

// Each piece must be seen before the upstream is allowed to send the next.
func TestEachPieceIsSeenAtOnce(t *testing.T) {
	for _, kind := range []struct{ name, head string }{
		{"event stream", "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"},
		{"event stream with a charset", "Content-Type: Text/Event-Stream ; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"},
		{"ndjson", "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n"},
		{"no type", "Transfer-Encoding: chunked\r\n"},
		{"until close", "Connection: close\r\n"},
		{"known length", "Content-Type: application/json\r\nContent-Length: 50\r\n"},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprint(kind.name, " tls=", secure), func(t *testing.T) {
				next := make(chan bool)
				upstream := rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
					if _, err := readHead(in); err != nil {
						return
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+kind.head+"\r\n")
					format := "%s"
					if strings.Contains(kind.head, "chunked") {
						format = "a\r\n%s\r\n"
					}
					for range 5 {
						if !<-next {
							return
						}
						_, _ = fmt.Fprintf(c, format, "data: 123\n")
					}
					if strings.Contains(kind.head, "chunked") {
						_, _ = io.WriteString(c, "0\r\n\r\n")
					}
				})
				defer close(next)
				g := newGateway(t, settings{tls: secure}, upstream)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				r, _ := http.NewRequestWithContext(ctx, "GET", g.URL, nil)
				res, err := g.Client().Do(r) // returns with the head, before the first piece
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				piece := make([]byte, 10)
				for i := range 5 {
					next <- true
					if _, err := io.ReadFull(res.Body, piece); err != nil {
						t.Fatalf("piece %d: %v", i, err)
					}
				}
				if _, err := res.Body.Read(piece); err != io.EOF {
					t.Errorf("want the end, got %v", err)
				}
				if d := receive(t, g.dones, "Done"); d.stream != strings.HasPrefix(kind.name, "event stream") {
					t.Errorf("counted as a stream: %v", d.stream)
				}
			})
		}
	}
}

// A body larger than any buffer goes up and comes down while both ends are
// still at it, in memory that does not grow with it.
func TestStreamsInConstantMemory(t *testing.T) {
	const size = 256 << 20
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	}))
	defer echo.Close()
	g := newGateway(t, settings{}, echo.URL)
	var most uint64
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	before := stats.HeapInuse
	body := io.LimitReader(zeros{}, size)
	res, err := http.Post(g.URL, "application/octet-stream", struct{ io.Reader }{body})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	buf := make([]byte, 1<<20)
	var n int64
	for step := 0; err == nil; step++ {
		var m int
		m, err = res.Body.Read(buf)
		n += int64(m)
		if step%256 == 0 {
			runtime.ReadMemStats(&stats)
			most = max(most, stats.HeapInuse)
		}
	}
	if !errors.Is(err, io.EOF) || n != size {
		t.Errorf("want %d bytes back, got %d, %v", size, n, err)
	}
	if grown := int64(most) - int64(before); grown > 32<<20 {
		t.Errorf("want constant memory, grew by %d MiB", grown>>20)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// The answer arrives although the client has not finished sending.
func TestEarlyAnswerWhileUploading(t *testing.T) {
	upstream := rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
		if _, err := readHead(in); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
		_, _ = io.Copy(io.Discard, in)
	})
	g := newGateway(t, settings{}, upstream)
	for _, framing := range []string{"Content-Length: 1000000\r\n\r\nstart", "Transfer-Encoding: chunked\r\n\r\n5\r\nstart\r\n"} {
		res := roundTrip(t, g.address(), "POST / HTTP/1.1\r\nHost: a\r\n"+framing)
		if res.StatusCode != 413 {
			t.Errorf("want 413, got %d", res.StatusCode)
		}
	}
}

func TestUpstreamDiesMidBody(t *testing.T) {
	for name, answer := range map[string]string{
		"known length":     "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf",
		"chunked":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"inside a chunk":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nhalf",
		"malformed chunk":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
		"events":           "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"before any byte":  "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
		"after many bytes": "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("half", 100_000),
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " tls=", secure), func(t *testing.T) {
				upstream := rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
					if _, err := readHead(in); err == nil {
						_, _ = io.WriteString(c, answer)
					}
				})
				g := newGateway(t, settings{tls: secure}, upstream)
				res, err := g.Client().Get(g.URL)
				if err != nil {
					t.Fatalf("want the head, then a break, got %v", err)
				}
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				if err == nil {
					t.Errorf("want an error after %d bytes", len(body))
				}
				if want := strings.Count(answer, "half") * 4; len(body) != want {
					t.Errorf("want the %d bytes that came, got %d", want, len(body))
				}
				o := receive(t, g.outcomes, "an outcome")
				d := receive(t, g.dones, "Done")
				if !o.aborted || o.scope.UpstreamErr == nil || errors.Is(o.scope.UpstreamErr, proxy.ErrClient) || d.err == nil || d.status != 200 {
					t.Errorf("outcome %+v, done %+v", o, d)
				}
			})
		}
	}
}

// The same without a server that ReverseProxy recognises.
func TestBrokenAnswerPanicsEverywhere(t *testing.T) {
	upstream := rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
		if _, err := readHead(in); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
		}
	})
	g := newGateway(t, settings{}, upstream)
	defer func() {
		if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // a panic's value, not an error
			t.Errorf("want http.ErrAbortHandler, got %v", p)
		}
	}()
	s := someone
	_ = g.up.Forward(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), &s, proxy.Forward{})
	t.Error("want a panic")
}

func TestWebSocket(t *testing.T) {
	var kill sync.Once
	closed := make(chan struct{}, 10)
	killed := make(chan struct{})
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { closed <- struct{}{} }()
		defer c.CloseNow()
		c.SetReadLimit(2 << 20)
		go func() {
			<-killed
			c.CloseNow()
		}()
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if err := c.Write(r.Context(), kind, data); err != nil {
				return
			}
		}
	}))
	defer echo.Close()
	defer kill.Do(func() { close(killed) })
	for _, secure := range []bool{false, true} {
		g := newGateway(t, settings{scope: someone, tls: secure, options: proxy.Options{ResponseHeaderTimeout: time.Second}}, echo.URL)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		dial := func() *websocket.Conn {
			client := *g.Client()
			client.Transport = client.Transport.(*http.Transport).Clone()
			client.Transport.(*http.Transport).TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
			client.Transport.(*http.Transport).ForceAttemptHTTP2 = false
			c, res, err := websocket.Dial(ctx, g.URL, &websocket.DialOptions{HTTPClient: &client})
			if err != nil {
				t.Fatal(err)
			}
			if res.Header.Get("X-From-Pipeline") != "yes" {
				t.Error("want the fields that were there before on the 101")
			}
			c.SetReadLimit(2 << 20)
			return c
		}
		c := dial()
		for _, size := range []int{1, 1 << 20} {
			sent := bytes.Repeat([]byte("x"), size)
			if err := c.Write(ctx, websocket.MessageBinary, sent); err != nil {
				t.Fatal(err)
			}
			if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("want %d bytes back, got %d, %v", size, len(got), err)
			}
		}
		c.CloseNow() // a client that just goes
		receive(t, closed, "the upstream's end to close")
		if o := receive(t, g.outcomes, "an outcome"); o.err != nil || o.aborted || o.scope.UpstreamStatus != 101 || o.scope.UpstreamErr != nil {
			t.Errorf("outcome %+v", o)
		}
		if d := receive(t, g.dones, "Done"); d.status != 101 || !d.stream || d.err != nil {
			t.Errorf("done %+v", d)
		}
		if secure {
			c := dial()
			kill.Do(func() { close(killed) }) // an upstream that just goes
			if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
				t.Errorf("want the client's end to close, got %v", err)
			}
			c.CloseNow()
			receive(t, closed, "the upstream's end to close")
			receive(t, g.outcomes, "an outcome")
		}
	}
}

func TestUpstreamRefusesUpgrade(t *testing.T) {
	g := newGateway(t, settings{}, scripted(t, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"))
	res := roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, upgrade\r\nUpgrade: WebSocket\r\n\r\n")
	if res.StatusCode != 403 {
		t.Errorf("want 403, got %d", res.StatusCode)
	}
}

func TestPoolIsUsedAndClosed(t *testing.T) {
	var mu sync.Mutex
	opened, open := 0, map[net.Conn]bool{}
	idle := make(chan struct{}, 1000)
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	upstream.Config.ConnState = func(c net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		switch s {
		case http.StateNew:
			opened++
			open[c] = true
		case http.StateClosed:
			delete(open, c)
			idle <- struct{}{}
		}
	}
	upstream.Start()
	defer upstream.Close()
	g := newGateway(t, settings{}, upstream.URL)
	const clients, each = 50, 20
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			c, in := dialRaw(t, g.address())
			for range each {
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
				head, err := textproto.NewReader(in).ReadLine()
				if err != nil || head != "HTTP/1.1 200 OK" {
					t.Errorf("got %q %v", head, err)
					return
				}
				if _, err := readHead(in); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	mu.Lock()
	// A dial may be under way when a connection becomes free, so some more.
	if opened > 2*clients {
		t.Errorf("want at most %d connections for %d requests, got %d", 2*clients, clients*each, opened)
	}
	mu.Unlock()
	g.Close() // the clients have gone, no request is under way
	g.up.Close()
	for {
		mu.Lock()
		n := len(open)
		mu.Unlock()
		if n == 0 {
			break
		}
		receive(t, idle, fmt.Sprintf("the other %d connections to close", n))
	}
}
