package door

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway/httperr"
)

var usual = Options{
	HTTP2: true, HeaderTimeout: 10 * time.Second, BodyTimeout: time.Minute, MaxHeader: 4 << 10, MaxFields: 20,
}

// A script is a connection whose bytes come in the given pieces.
type script struct {
	net.Conn
	pieces [][]byte
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.pieces[0])
	if s.pieces[0] = s.pieces[0][n:]; len(s.pieces[0]) == 0 {
		s.pieces = s.pieces[1:]
	}
	return n, nil
}

func (s *script) SetReadDeadline(time.Time) error { return nil }

// through returns what comes of all that is read from a connection whose bytes
// come in those pieces, read in pieces of up to n bytes.
func through(t testing.TB, n int, pieces ...[]byte) (string, *httperr.Error) {
	t.Helper()
	c := newConn(&script{pieces: pieces}, &usual)
	var out bytes.Buffer
	p := make([]byte, n)
	for {
		k, err := c.Read(p)
		out.Write(p[:k])
		if errors.Is(err, io.EOF) {
			return out.String(), c.refusal.Load()
		}
		if err != nil || k == 0 {
			t.Fatalf("read %d: %v", k, err)
		}
	}
}

const (
	get    = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
	upload = "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nX-A: 1\r\n\r\n"
	known  = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
	bad    = "GET /x HTTP/1.1\r\nHost : a\r\n\r\n"
)

// However the bytes come, and however they are read, the same ones pass.
func TestTheSamePassesHoweverItComes(t *testing.T) {
	for _, text := range []string{
		get + upload + known + "\r\n" + get,
		get + known + bad + get,
		upload + "\r\n\r\n" + get,
		preface + "whatever\n\n",
		known[:len(known)-1],
		strings.Replace(upload, "abc\r\n", "abcd\r\n", 1) + get,
		strings.Replace(upload, "X-A: 1\r\n", "X-A: 1\n", 1) + get,
		"GET /x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		want, refused := through(t, 1<<20, []byte(text))
		rng := rand.New(rand.NewPCG(1, uint64(len(text))))
		for range 200 {
			var pieces [][]byte
			for rest := []byte(text); len(rest) > 0; {
				n := 1 + rng.IntN(min(len(rest), 1+rng.IntN(40)))
				pieces = append(pieces, slices.Clone(rest[:n]))
				rest = rest[n:]
			}
			got, e := through(t, 1+rng.IntN(60), pieces...)
			if got != want || (e == nil) != (refused == nil) {
				t.Fatalf("%q\nin pieces of %q\n%q, want %q", text, pieces, got, want)
			}
		}
	}
}

// What passes is what net/http reads as the same requests, and never what it
// would answer in its own name.
func FuzzDoor(f *testing.F) {
	for _, seed := range []string{
		get, upload, known, bad, get + known + upload, "\r\n" + get, preface, known + "\r\n" + get,
		"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "GET http://a:80/x?y HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /%2F HTTP/1.0\r\n\r\n", "HEAD / HTTP/1.1\r\nHost: [::1]:80\r\nExpect: 100-continue\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTrailer: x\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n",
		"GET /x HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\n\r\nabc", "GET / HTTP/1.1\nHost: a\n\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		f.Add([]byte(seed), uint16(7))
	}
	f.Fuzz(func(t *testing.T, text []byte, cut uint16) {
		out, refused := through(t, 1<<16, text)
		at := min(int(cut), len(text))
		if again, e := through(t, 1+int(cut)%50, text[:at:at], text[at:]); again != out || (e == nil) != (refused == nil) {
			t.Fatalf("cut at %d: %q, want %q", at, again, out)
		}
		if strings.HasPrefix(out, preface) {
			return
		}
		in := bufio.NewReader(strings.NewReader(out))
		var last *http.Request
		for {
			r, err := http.ReadRequest(in)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("net/http does not read what passes: %v\n%q", err, out)
			}
			if last = r; r.URL == nil || r.Host == "" && r.ProtoAtLeast(1, 1) {
				t.Fatalf("passes without a host: %q", out)
			}
			if len(r.TransferEncoding) > 0 && r.Header.Get("Content-Length") != "" {
				t.Fatalf("passes with two framings: %q", out)
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				if rest, _ := io.ReadAll(in); !bytes.HasSuffix(malformed, rest) {
					t.Fatalf("there is more behind a body that ended with %v: %q", err, out)
				}
				break
			}
			if r.Header.Get("Upgrade") != "" && r.ContentLength == 0 && len(r.TransferEncoding) == 0 && in.Buffered() > 0 {
				t.Fatalf("something passes before the upgrade was answered: %q", out)
			}
		}
		if refused != nil && (last == nil || last.Header.Get(stands) != secret) {
			t.Fatalf("what was refused (%v) has no request in its place: %q", refused, out)
		}
	})
}

// serve serves h behind a door over in-memory connections, and returns how to
// open one. It is for a bubble of synctest.
func serve(t *testing.T, o Options, h http.HandlerFunc) (dial func() net.Conn) {
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{
		Handler: h, Protocols: new(http.Protocols), IdleTimeout: 2 * time.Minute, ReadHeaderTimeout: 2 * o.HeaderTimeout,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	server.Protocols.SetHTTP1(true)
	Attach(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(Over(l, o))
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		time.Sleep(time.Second) // for who lingers
	})
	return func() net.Conn {
		ours, theirs := net.Pipe()
		l.conns <- theirs
		t.Cleanup(func() { _ = ours.Close() })
		return ours
	}
}

type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

func (l *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func say(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

// answering is a handler that says what was refused.
func answering(w http.ResponseWriter, r *http.Request) {
	if e := Refused(r); e != nil {
		w.WriteHeader(e.Status)
		return
	}
	_, _ = io.Copy(w, r.Body)
}

// A head has to be whole in time, counted from its first byte, on a new
// connection and on one that was used.
func TestAHeadThatDribblesIsRefused(t *testing.T) {
	for name, before := range map[string]string{"new": "", "used": get} {
		synctest.Test(t, func(t *testing.T) {
			c := serve(t, usual, answering)()
			in := bufio.NewReader(c)
			if before != "" {
				say(t, c, before)
				hear(t, in, 200)
				time.Sleep(time.Minute) // an idle connection may wait
			} else {
				time.Sleep(usual.HeaderTimeout - time.Second) // and so may one that has said nothing yet
			}
			began := time.Now()
			go func() {
				for b := range strings.SplitSeq(get, "") {
					if _, err := io.WriteString(c, b); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			}()
			hear(t, in, http.StatusRequestTimeout)
			if took := time.Since(began); took < usual.HeaderTimeout || took > usual.HeaderTimeout+time.Second {
				t.Errorf("%s: refused after %v", name, took)
			}
			if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: the connection goes on: %v", name, err)
			}
		})
	}
}

// A head that begins while an answer is under way does not disturb it.
func TestALateHeadDoesNotDisturbTheAnswerBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := serve(t, usual, func(w http.ResponseWriter, r *http.Request) {
			if e := Refused(r); e != nil {
				w.WriteHeader(e.Status)
				return
			}
			time.Sleep(time.Hour)
			if err := r.Context().Err(); err != nil {
				w.WriteHeader(500)
			}
		})()
		in := bufio.NewReader(c)
		say(t, c, get+"GET /half HTTP/1.1\r\n")
		hear(t, in, 200)
		hear(t, in, http.StatusRequestTimeout)
	})
}

// A body that stops coming ends its connection, and the request's context.
func TestABodyThatStopsComingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		c := serve(t, usual, func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			ended <- errors.Join(err, r.Context().Err())
		})()
		began := time.Now()
		say(t, c, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na")
		time.Sleep(usual.BodyTimeout - time.Second)
		say(t, c, "b") // in time
		if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(began) != 2*usual.BodyTimeout-time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// A client that leaves is noticed while its request is under way, also behind a
// head that is held back.
func TestAClientThatLeavesIsNoticed(t *testing.T) {
	for _, sent := range []string{get, get + "GET /half", "GET /x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfr"} {
		synctest.Test(t, func(t *testing.T) {
			left := make(chan struct{})
			c := serve(t, usual, func(_ http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				close(left)
			})()
			say(t, c, sent)
			synctest.Wait()
			_ = c.Close()
			<-left
		})
	}
}

// What comes behind a request for an upgrade is the other protocol's if there is
// an upgrade, and a request if there is none.
func TestAnUpgradeDecidesWhatFollows(t *testing.T) {
	const ask = "GET /x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n"
	h := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case Refused(r) != nil:
			w.WriteHeader(Refused(r).Status)
		case r.Header.Get("Upgrade") != "" && r.Header.Get("No") == "":
			c, brw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
			for range 10 {
				b, _ := brw.ReadByte()
				_, _ = c.Write([]byte{b})
			}
			_ = c.Close()
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := serve(t, usual, h)()
		in := bufio.NewReader(c)
		say(t, c, ask+"early")
		synctest.Wait()
		hear(t, in, 101)
		go func() { _, _ = io.WriteString(c, "\x00\n\x01\xff\r") }()
		if got, _ := io.ReadAll(in); string(got) != "early\x00\n\x01\xff\r" {
			t.Errorf("%q", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := serve(t, usual, h)()
		in := bufio.NewReader(c)
		say(t, c, strings.Replace(ask, "Upgrade:", "No: 1\r\nUpgrade:", 1)+get+bad)
		hear(t, in, 200)
		hear(t, in, 200)
		hear(t, in, 400)
	})
}

// What is held back is bounded, whatever it is.
func TestWhatIsHeldBackIsBounded(t *testing.T) {
	for name, sent := range map[string]string{
		"a line":      "GET /",
		"a field":     "GET / HTTP/1.1\r\nA: ",
		"a chunk":     "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0",
		"a trailer":   "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: ",
		"an upgrade":  "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\n\r\n",
		"a body's LF": known + "\r\n" + "GET /",
	} {
		endless := &endless{start: []byte(sent)}
		c := newConn(endless, &usual)
		p, most := make([]byte, 100), 0
		for {
			_, err := c.Read(p)
			most = max(most, cap(c.held))
			if err != nil {
				break
			}
		}
		if most > 2*maxEarly || endless.n > 1<<20 {
			t.Errorf("%s: %d bytes were held, %d read", name, most, endless.n)
		}
	}
}

// endless is a connection on which something starts and then zeros come.
type endless struct {
	net.Conn
	start []byte
	n     int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.start)
	e.start = e.start[n:]
	for i := n; i < len(p); i++ {
		p[i] = '0'
	}
	e.n += len(p)
	if e.n > 10<<20 {
		return 0, io.EOF
	}
	return len(p), nil
}

func (e *endless) SetReadDeadline(time.Time) error { return nil }

// Nobody but the door makes a request stand for another.
func TestNobodyElseCanRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := serve(t, usual, answering)()
		in := bufio.NewReader(c)
		say(t, c, "GET /x HTTP/1.1\r\nHost: a\r\n"+stands+": guess\r\n\r\n")
		hear(t, in, 200)
	})
}

func hear(t testing.TB, in *bufio.Reader, want int) {
	t.Helper()
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil && want != 101 {
		t.Error(err)
	}
	if res.StatusCode != want {
		t.Fatalf("%d, want %d", res.StatusCode, want)
	}
}

// A request of the usual kind is looked at where it lies: nothing is allocated.
func TestAnUsualRequestCostsNoAllocation(t *testing.T) {
	text := []byte("GET /api/weather?city=Pune HTTP/1.1\r\nHost: api.example.test\r\nUser-Agent: x\r\nAccept: */*\r\nX-API-Key: bn_live_abc\r\n\r\n")
	s := &script{}
	c := newConn(s, &usual)
	p := make([]byte, 4096)
	pieces := make([][]byte, 1)
	if n := testing.AllocsPerRun(100, func() {
		pieces[0] = text
		s.pieces = pieces
		if n, err := c.Read(p); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}); n > 1 { // the method, for HEAD
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkHead(b *testing.B) {
	text := []byte("GET /api/weather?city=Pune HTTP/1.1\r\nHost: api.example.test\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\nAccept-Encoding: gzip, br\r\nCookie: a=b; c=d\r\nX-API-Key: bn_live_abc\r\n\r\n")
	s := &script{}
	c := newConn(s, &usual)
	p := make([]byte, 4096)
	pieces := make([][]byte, 1)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		pieces[0] = text
		s.pieces = pieces
		if n, err := c.Read(p); n != len(text) || err != nil {
			b.Fatal(n, err)
		}
	}
}

// Whom a connection comes from is believed of a proxy, in both versions and with
// TLS inside, and of nobody else.
func TestAProxySaysWhomAConnectionComesFrom(t *testing.T) {
	const v1 = "PROXY TCP4 192.0.2.7 192.0.2.8 5555 80\r\n"
	v2 := "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\xc0\x00\x02\x08\x15\xb3\x00\x50"
	local := "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
	for name, test := range map[string]struct {
		header  string
		proxied bool
		want    string // the client, a status, or "closed"
	}{
		"version 1":                   {v1, true, "192.0.2.7"},
		"version 2":                   {v2, true, "192.0.2.7"},
		"an IPv6 client":              {"PROXY TCP6 2001:db8::7 2001:db8::8 5555 80\r\n", true, "2001:db8::7"},
		"the proxy itself":            {local, true, "127.0.0.1"},
		"unknown":                     {"PROXY UNKNOWN\r\n", true, "127.0.0.1"},
		"unspecified":                 {"\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00\x00", true, "127.0.0.1"},
		"a socket":                    {"\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\xd8" + strings.Repeat("\x00", 216), true, "127.0.0.1"},
		"in drops":                    {v1, true, "192.0.2.7"},
		"binary in drops":             {v2, true, "192.0.2.7"},
		"no header":                   {"", true, "closed"},
		"a header that is none":       {"PROXY TCP4 nonsense\r\n", true, "closed"},
		"half of one":                 {"PROXY TCP4 192", true, "closed"},
		"not from a proxy":            {"", false, "127.0.0.1"},
		"a header, and no proxy":      {v1, false, "400"},
		"a binary one, and no proxy":  {v2, false, "400"},
		"two headers":                 {v1 + v1, true, "400"},
		"a client of our own network": {"PROXY TCP4 127.0.0.1 127.0.0.1 5555 80\r\n", true, "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := make(chan string, 1)
			o := usual
			o.HeaderTimeout = 200 * time.Millisecond // for the half of one
			o.Proxied = func(peer net.Addr) bool { return test.proxied }
			o.ProxyFailed = func(peer net.Addr, why string) { told <- peer.String() + " " + why }
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if e := Refused(r); e != nil {
					w.WriteHeader(e.Status)
					return
				}
				host, _, _ := net.SplitHostPort(r.RemoteAddr)
				_, _ = io.WriteString(w, host)
			})}
			Attach(server)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = server.Serve(Over(l, o))
			}()
			defer func() {
				_ = server.Close()
				<-done
			}()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			text := test.header
			if name != "half of one" {
				text += "GET / HTTP/1.0\r\n\r\n"
			}
			if strings.HasSuffix(name, "in drops") {
				for i := range len(test.header) {
					say(t, c, text[i:i+1])
					time.Sleep(time.Millisecond)
				}
				text = text[len(test.header):]
			}
			say(t, c, text)
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			got := "closed"
			if err == nil {
				b, _ := io.ReadAll(res.Body)
				if got = string(b); res.StatusCode != 200 {
					got = strconv.Itoa(res.StatusCode)
				}
			}
			if got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if test.want == "closed" {
				why := map[string]string{"no header": ProxyMissing, "a header that is none": ProxyBad, "half of one": ProxySlow}[name]
				if told := <-told; told != c.LocalAddr().String()+" "+why {
					t.Errorf("told of %s, want %s", told, why)
				}
			}
		})
	}
}
