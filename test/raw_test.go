package test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A wireRequest is a request as its bytes came out of the gateway.
type wireRequest struct {
	line string   // METHOD TARGET HTTP/1.1
	head []string // field lines, as they came
	body string   // as framed, if there was a Content-Length
}

// all returns the values of a field, in order, whatever the case of its name.
func (r wireRequest) all(name string) (values []string) {
	for _, line := range r.head {
		if n, v, ok := strings.Cut(line, ":"); ok && strings.EqualFold(n, name) {
			values = append(values, strings.Trim(v, " \t"))
		}
	}
	return values
}

// one returns the value of a field that must be there exactly once.
func (r wireRequest) one(t testing.TB, name string) string {
	t.Helper()
	values := r.all(name)
	if len(values) != 1 {
		t.Fatalf("%d lines of %s, want 1: %q", len(values), name, r.head)
	}
	return values[0]
}

// A wireUpstream is an upstream that speaks bytes: it records what it is sent
// as it was sent, and answers what it is told to, byte for byte.
type wireUpstream struct {
	URL string

	mu       sync.Mutex
	requests []wireRequest
}

// newWireUpstream answers every request with what answer returns, and closes
// the connection afterwards if that is more than one message, or says so.
// answer may be nil: an empty 200.
func newWireUpstream(t testing.TB, answer func(wireRequest) string) *wireUpstream {
	if answer == nil {
		answer = func(wireRequest) string { return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" }
	}
	u := &wireUpstream{}
	u.URL = "http://" + serveConns(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			var r wireRequest
			var err error
			if r.line, r.head, err = readHead(in); err != nil {
				return
			}
			if r.all("Transfer-Encoding") == nil && r.all("Content-Length") != nil {
				// net/http may frame a body that is read here.
				req, err := http.ReadRequest(bufio.NewReader(io.MultiReader(
					strings.NewReader(r.line+"\r\n"+strings.Join(r.head, "\r\n")+"\r\n\r\n"), in)))
				if err != nil {
					return
				}
				b, err := io.ReadAll(req.Body)
				if err != nil {
					return
				}
				r.body = string(b)
			}
			u.mu.Lock()
			u.requests = append(u.requests, r)
			u.mu.Unlock()
			reply := answer(r)
			if _, err := io.WriteString(c, reply); err != nil || reply == "" || strings.Contains(reply, "Connection: close\r\n") {
				return
			}
		}
	})
	return u
}

// last returns the last request that arrived.
func (u *wireUpstream) last(t testing.TB) wireRequest {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.requests) == 0 {
		t.Fatal("no request reached the upstream")
	}
	return u.requests[len(u.requests)-1]
}

// count returns how many requests arrived.
func (u *wireUpstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.requests)
}

// serveConns accepts connections until the test ends, then closes them all and
// waits. It returns the address.
func serveConns(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			serving.Go(func() {
				serve(c)
				_ = c.Close()
				mu.Lock()
				delete(conns, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return l.Addr().String()
}

// readHead reads a start line and field lines to the empty line.
func readHead(in *bufio.Reader) (line string, fields []string, err error) {
	for {
		s, err := in.ReadString('\n')
		if err != nil {
			return "", nil, err
		}
		s = strings.TrimRight(s, "\r\n")
		switch {
		case s == "" && line != "":
			return line, fields, nil
		case line == "":
			line = s
		default:
			fields = append(fields, s)
		}
	}
}

// A rawConn is a client that says just what it is told to.
type rawConn struct {
	t testing.TB
	net.Conn
	in *bufio.Reader
}

// dial connects to the public listener.
func (g *gateway) dial() *rawConn {
	g.t.Helper()
	return g.dialFrom("")
}

// dialFrom connects from another address of the loopback network.
func (g *gateway) dialFrom(source string) *rawConn {
	g.t.Helper()
	d := net.Dialer{Timeout: patience}
	if source != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
	}
	c, err := d.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &rawConn{t: g.t, Conn: c, in: bufio.NewReader(c)}
}

func (c *rawConn) say(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.Conn, text); err != nil {
		c.t.Fatalf("write to the gateway: %v", err)
	}
}

// hear reads one answer to a request of the given method, without its body.
func (c *rawConn) hear(method string) *http.Response {
	c.t.Helper()
	res, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("read an answer: %v", err)
	}
	return res
}

// hearAll reads one answer to its end.
func (c *rawConn) hearAll(method string) answer {
	c.t.Helper()
	res := c.hear(method)
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatalf("read the body of an answer: %v", err)
	}
	return answer{res.StatusCode, res.Header, string(b)}
}

// ask sends one request in raw bytes on a connection of its own and returns
// the answer.
func (g *gateway) ask(request string) answer {
	g.t.Helper()
	c := g.dial()
	defer c.Close()
	c.say(request)
	method, _, _ := strings.Cut(request, " ")
	return c.hearAll(method)
}
