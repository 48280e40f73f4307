package test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A frames is a client of HTTP/2 that sends just the frames that it is told to.
type frames struct {
	*http2.Framer
	c *rawConn
}

// dialHTTP2 connects to the plain listener, with prior knowledge.
func (g *gateway) dialHTTP2() *frames {
	g.t.Helper()
	c := g.dial()
	c.say(http2.ClientPreface)
	f := &frames{http2.NewFramer(c.Conn, c.in), c}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := f.WriteSettings(); err != nil {
		g.t.Fatal(err)
	}
	return f
}

// request sends a head of a POST of /x, with fields as names and values in turn.
func (f *frames) request(stream uint32, end bool, fields ...string) {
	f.c.t.Helper()
	f.requestOf("/x", stream, end, fields...)
}

func (f *frames) requestOf(path string, stream uint32, end bool, fields ...string) {
	f.c.t.Helper()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	fields = append([]string{":method", "POST", ":scheme", "http", ":authority", "a", ":path", path}, fields...)
	for i := 0; i < len(fields); i += 2 {
		if err := enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			f.c.t.Fatal(err)
		}
	}
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: end, EndHeaders: true}); err != nil {
		f.c.t.Fatal(err)
	}
}

// answer reads the answer to the end of its stream, or of its Content-Length. The status
// is the code of RST_STREAM if there was none.
func (f *frames) answer(stream uint32) (status, body string) {
	f.c.t.Helper()
	length := "?"
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			f.c.t.Fatalf("read an answer: %v", err)
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			if frame.StreamID != stream {
				continue
			}
			if status = frame.PseudoValue("status"); frame.StreamEnded() {
				return status, body
			}
			for _, field := range frame.RegularFields() {
				if field.Name == "content-length" {
					length = field.Value
				}
			}
		case *http2.DataFrame:
			if frame.StreamID != stream {
				continue
			}
			if body += string(frame.Data()); frame.StreamEnded() || strconv.Itoa(len(body)) == length {
				return status, body
			}
		case *http2.RSTStreamFrame:
			if frame.StreamID == stream {
				return frame.ErrCode.String(), body
			}
		}
	}
}

// waitingUpstream answers nobody: it reads what comes and waits until it is given up.
// /now is answered at once.
func waitingUpstream(t testing.TB) *upstream {
	return newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path != "/now" {
			<-r.Context().Done()
		}
	})
}

// A client that ends its sending is taken to have left. It may be reading still, and
// then it is told nothing false: the connection ends without an answer.
func TestWhoIsTakenToHaveLeftIsToldNothing(t *testing.T) {
	t.Parallel()
	g := proxySite(t, waitingUpstream(t).URL).start()
	for name, request := range map[string]string{
		"a GET":                 "GET /x HTTP/1.1\r\nHost: a\r\n\r\n",
		"a GET in HTTP/1.0":     "GET /x HTTP/1.0\r\nHost: a\r\n\r\n",
		"a whole body":          "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
		"half a body":           "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc",
		"no byte of a body":     "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n",
		"half a chunked body":   "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
		"a stream of events":    "GET /x HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n",
		"a WebSocket":           "GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
		"a body after a 100 is": "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\nabc",
	} {
		c := g.dial()
		c.say(request)
		if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c.in)
		got := strings.ReplaceAll(string(b), "HTTP/1.1 100 Continue\r\n\r\n", "")
		if got != "" || err != nil {
			t.Errorf("%s: told %q, %v; want the end of the connection", name, got, err)
		}
	}
	eventually(t, "nine lines of clients that left", func() bool {
		n := 0
		for _, line := range g.all("request") {
			if line["status"] == 499.0 {
				n++
			}
		}
		return n == 9
	})
}

// A body of HTTP/2 that is shorter than its Content-Length is the client's mistake.
func TestABodyOfHTTP2ThatIsTooShortIsMalformed(t *testing.T) {
	t.Parallel()
	g := proxySite(t, waitingUpstream(t).URL).start()
	c := g.dialHTTP2()
	c.request(1, false, "content-length", "10")
	if err := c.WriteData(1, true, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	if status, body := c.answer(1); status != "400" || !strings.Contains(body, "malformed") {
		t.Errorf("%s %s, want 400", status, body)
	}
}

// The route's timeout ends a request whose client does not send its body, frees its
// place, and is not the upstream's fault.
func TestTheTimeoutHoldsWhileABodyStandsStill(t *testing.T) {
	t.Parallel()
	u := waitingUpstream(t)
	h2 := httptest.NewUnstartedServer(u.Config.Handler)
	h2.Config.Protocols = new(http.Protocols)
	h2.Config.Protocols.SetUnencryptedHTTP2(true)
	h2.Start()
	t.Cleanup(h2.Close)
	for name, target := range map[string]string{"HTTP/1.1": u.URL, "HTTP/2": strings.Replace(h2.URL, "http:", "h2c:", 1)} {
		t.Run("to "+name, func(t *testing.T) {
			t.Parallel()
			s := proxySite(t, target)
			s.write("routes.yaml", strings.Replace(proxyRoutes(target, `http: "127.0.0.1:0"`, ", max_in_flight: 1, circuit: {errors: 1%}"),
				"auth: none", "auth: none, timeout: 100ms", 1))
			g := s.start()
			freed := func(name string) {
				t.Helper()
				if a := g.get("/now"); a.status != 200 {
					t.Errorf("after %s: %d, want 200", name, a.status)
				}
			}
			for name, request := range map[string]string{
				"no byte":     "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n",
				"a part":      "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc",
				"a large one": "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 60000000\r\n\r\nabc",
				"chunks":      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
			} {
				c := g.dial()
				c.say(request)
				a := c.hearAll("POST")
				if a.status != 504 || a.field("Content-Type") != "application/problem+json" || !strings.Contains(a.body, "body did not arrive") {
					t.Errorf("%s: %d %s, want 504 for the client's sake", name, a.status, a.body)
				}
				line := g.requestLine(a.field("X-Request-Id"))
				if line["denied_by"] != "client_body" || strings.Contains(str(line, "upstream_error"), "context canceled") {
					t.Errorf("%s: logged as denied by %v: %v", name, line["denied_by"], line["upstream_error"])
				}
				freed(name)
			}
			c := g.dialHTTP2()
			for i := range 8 { // more than a circuit needs to open
				stream := uint32(2*i + 1)
				c.request(stream, false)
				if err := c.WriteData(stream, false, []byte("abc")); err != nil {
					t.Fatal(err)
				}
				if status, body := c.answer(stream); status != "504" || !strings.Contains(body, "body did not arrive") {
					t.Errorf("over HTTP/2: %s %s, want 504 for the client's sake", status, body)
				}
				freed("HTTP/2")
			}
		})
	}
}

// An answer that comes before the end of the request's body is not taken back by what
// the client sends meanwhile: the gateway's own, and an upstream's.
func TestAnEarlyAnswerOverHTTP2Stays(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Content-Length", "4")
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "full")
	})
	s := openSite(t, u)
	g := s.start()
	for path, want := range map[string]string{"/nowhere": "404", "/files/x": "403"} {
		c := g.dialHTTP2()
		c.requestOf(path, 1, false, "content-length", "40000")
		part := bytes.Repeat([]byte("a"), 10000)
		send := func(end bool) {
			t.Helper()
			if err := c.WriteData(1, end, part); err != nil {
				t.Fatal(err)
			}
		}
		send(false)
		status := ""
		for status == "" {
			frame, err := c.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if head, ok := frame.(*http2.MetaHeadersFrame); ok {
				status = head.PseudoValue("status")
			}
		}
		send(false)
		send(false)
		send(true)
		if err := c.WritePing(false, [8]byte{1}); err != nil {
			t.Fatal(err)
		}
		body := ""
		for ended, pong := false, false; !ended || !pong; {
			frame, err := c.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch frame := frame.(type) {
			case *http2.DataFrame:
				body += string(frame.Data())
				ended = ended || frame.StreamEnded()
			case *http2.PingFrame:
				pong = true
			case *http2.RSTStreamFrame:
				t.Errorf("%s: the stream is reset: %v", path, frame.ErrCode)
				ended = true
			}
		}
		if status != want || body == "" {
			t.Errorf("%s: %s %q, want %s", path, status, body, want)
		}
	}
}

// HTTP/2 has as many fields as HTTP/1, over TLS too, and is known to come by TLS.
func TestTooManyFieldsOfHTTP2(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	ca := newTestCA(t)
	s := proxySite(t, u.URL)
	ca.issue(t, s, 1, time.Now().Add(time.Hour))
	s.write("routes.yaml", proxyRoutes(u.URL, `https: {address: "127.0.0.1:0", cert_file: cert.pem, key_file: key.pem}`, ""))
	g := s.start()
	for _, line := range g.all("listening") {
		if line["for"] == "https" {
			g.url = "https://" + str(line, "address")
		}
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	for n, want := range map[int]int{150: 200, 250: 431} {
		r, err := http.NewRequest("GET", g.url+"/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			r.Header.Add("X-Many", strconv.Itoa(i))
		}
		res, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want || res.ProtoMajor != 2 {
			t.Errorf("%d fields: %s %d, want %d", n, res.Proto, res.StatusCode, want)
		}
	}
	if got := u.last(t).Header.Get("X-Forwarded-Proto"); got != "https" {
		t.Errorf("X-Forwarded-Proto %q, want https", got)
	}
}
