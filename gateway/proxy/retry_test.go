package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/proxy"
)

// A play is an upstream that answers each request as a list says, and remembers what
// it got: method, body, and how the body ended.
type play struct {
	url   string
	mu    sync.Mutex
	got   []string
	acts  []string
	state atomic.Int64
}

// The acts that are no answers.
const (
	hangUp     = "" // after the whole request
	hangUpSoon = "soon"
	hangUpMid  = "mid"  // in the middle of the body
	hangUpThen = "\x00" // at the end of an answer
)

func newPlay(t *testing.T, acts ...string) *play {
	p := &play{acts: acts}
	p.url = rawUpstream(t, func(c net.Conn, in *bufio.Reader) {
		for {
			head, err := readHead(in)
			if err != nil {
				return
			}
			act := p.acts[min(int(p.state.Add(1)), len(p.acts))-1]
			method, _, _ := strings.Cut(head, " ")
			size, _ := strconv.Atoi(strings.Join(fieldsOf(head)["Content-Length"], ""))
			var body []byte
			switch {
			case act == hangUpSoon:
			case act == hangUpMid:
				body, err = io.ReadAll(io.LimitReader(in, int64(size/2)))
			case fieldsOf(head)["Transfer-Encoding"] != nil:
				var r *http.Request
				if r, err = http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader(head), in))); err == nil {
					body, err = io.ReadAll(r.Body)
				}
			default:
				body, err = io.ReadAll(io.LimitReader(in, int64(size)))
			}
			p.mu.Lock()
			p.got = append(p.got, fmt.Sprint(method, " ", len(body), " ", strings.Trim(string(body), "b"), err))
			p.mu.Unlock()
			if act == hangUp || act == hangUpSoon || act == hangUpMid {
				return
			}
			if method == "HEAD" {
				act, _, _ = strings.Cut(act, "\r\n\r\n")
				act += "\r\n\r\n"
			}
			if _, err := io.WriteString(c, strings.TrimSuffix(act, hangUpThen)); err != nil || strings.HasSuffix(act, hangUpThen) {
				return
			}
		}
	})
	return p
}

func (p *play) heard() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.got...)
}

func answer(status int, more string) string {
	return fmt.Sprintf("HTTP/1.1 %d What\r\nContent-Length: 3\r\n%s\r\n%d", status, more, status)
}

// What may happen twice is attempted again, with the same body, and nothing else is.
func TestWhatMayHappenTwice(t *testing.T) {
	body := func(size int, more string) string {
		return fmt.Sprintf("Content-Length: %d\r\n%s\r\n%s", size, more, strings.Repeat("b", size))
	}
	const key = "Idempotency-Key: a1\r\n"
	ok, away := answer(200, ""), answer(503, "")
	for _, test := range []struct {
		name, request, first string
		status, attempts     int
	}{
		{"GET, lost", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", hangUp, 200, 2},
		{"GET, 502", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", answer(502, ""), 200, 2},
		{"GET, 503", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", away, 200, 2},
		{"GET, 504", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", answer(504, ""), 200, 2},
		{"GET, 503 of a large body", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 503 What\r\nContent-Length: 9999999\r\n\r\nx", 200, 2},
		{"GET, 500", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", answer(500, ""), 500, 1},
		{"GET, 429", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", answer(429, ""), 429, 1},
		{"GET, 503 with a time", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", answer(503, "Retry-After: 1\r\n"), 503, 1},
		{"GET, half a head", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\nX-A" + hangUpThen, 502, 1},
		{"GET, not HTTP", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n\r\n" + hangUpThen, 502, 1},
		{"GET, after a hint", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 103 Early Hints\r\n\r\n" + away, 103, 1}, // the client has that
		{"HEAD, 503", "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 503 What\r\nContent-Length: 3\r\n\r\n", 200, 2},
		{"OPTIONS, 503", "OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n", away, 200, 2},
		{"GET with a body, lost", "GET / HTTP/1.1\r\nHost: a\r\n" + body(100, ""), hangUp, 200, 2},
		{"PUT, 503", "PUT / HTTP/1.1\r\nHost: a\r\n" + body(100, ""), away, 503, 1},
		{"DELETE, lost", "DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", hangUp, 502, 1},
		{"PATCH, 503", "PATCH / HTTP/1.1\r\nHost: a\r\n" + body(100, ""), away, 503, 1},
		{"POST, 503", "POST / HTTP/1.1\r\nHost: a\r\n" + body(100, ""), away, 503, 1},
		{"POST, lost", "POST / HTTP/1.1\r\nHost: a\r\n" + body(100, ""), hangUp, 502, 1},
		{"empty key", "POST / HTTP/1.1\r\nHost: a\r\n" + body(100, "Idempotency-Key: \r\n"), away, 503, 1},
		{"key, nothing", "POST / HTTP/1.1\r\nHost: a\r\n" + body(0, key), hangUp, 200, 2},
		{"key, 1 kB, lost", "POST / HTTP/1.1\r\nHost: a\r\n" + body(1000, key), hangUp, 200, 2},
		{"key, 1 kB, lost at once", "POST / HTTP/1.1\r\nHost: a\r\n" + body(1000, key), hangUpSoon, 200, 2},
		{"key, 8 KiB, lost half-way", "PUT / HTTP/1.1\r\nHost: a\r\n" + body(8<<10, key), hangUpMid, 200, 2},
		{"key, 8 KiB, 503", "POST / HTTP/1.1\r\nHost: a\r\n" + body(8<<10, key), away, 200, 2},
		{"key, a byte too much", "POST / HTTP/1.1\r\nHost: a\r\n" + body(8<<10+1, key), away, 503, 1},
		{"key, 5 MB, lost half-way", "POST / HTTP/1.1\r\nHost: a\r\n" + body(5<<20, key), hangUpMid, 502, 1},
		{"key, chunked", "POST / HTTP/1.1\r\nHost: a\r\n" + key + "Transfer-Encoding: chunked\r\n\r\n3\r\nbbb\r\n0\r\n\r\n", away, 503, 1},
		{"WebSocket", "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", away, 503, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, targets := range []int{1, 2} {
				// Of two, the second plays on where the first one was left.
				p := newPlay(t, test.first, ok)
				urls := []string{p.url, p.url + "/other"}[:targets]
				g := newGateway(t, settings{options: proxy.Options{Retries: &proxy.Retries{Attempts: 2, Budget: 0.1}}}, urls...)
				var res *http.Response
				if len(test.request) < 1<<20 {
					res = roundTrip(t, g.address(), test.request)
				} else { // the answer may come before it is sent
					c, in := dialRaw(t, g.address())
					go func() { _, _ = io.WriteString(c, test.request) }()
					var err error
					if res, err = http.ReadResponse(in, nil); err != nil {
						t.Fatal(err)
					}
				}
				o := receive(t, g.outcomes, "an outcome")
				got := p.heard()
				if res.StatusCode != test.status || len(got) != test.attempts {
					t.Errorf("%d targets: %d after %q, want %d after %d attempts", targets, res.StatusCode, got, test.status, test.attempts)
				}
				if test.attempts == 2 && test.first != hangUpSoon && test.first != hangUpMid && got[0] != got[1] {
					t.Errorf("%q came again as %q", got[0], got[1])
				}
				method, rest, _ := strings.Cut(test.request, " ")
				_, sent, _ := strings.Cut(rest, "\r\n\r\n")
				if want := fmt.Sprint(method, " ", len(sent), " <nil>"); test.attempts == 2 && got[1] != want {
					t.Errorf("the second was %q, want %q", got[1], want)
				}
				if o.scope.UpstreamAttempts != test.attempts {
					t.Errorf("%d attempts are told, want %d", o.scope.UpstreamAttempts, test.attempts)
				}
				var dones []done
				for range test.attempts {
					dones = append(dones, receive(t, g.dones, "Done"))
				}
				if last := dones[test.attempts-1]; test.status == 200 && (last.status != 200 || last.err != nil || o.scope.UpstreamStatus != 200 || o.scope.UpstreamErr != nil) {
					t.Errorf("%+v and %+v, want the last attempt's 200", dones, o.scope)
				}
				if test.attempts == 2 && (dones[0].status == 200 || dones[0].status == 0 && dones[0].err == nil) {
					t.Errorf("%+v, want the first attempt's failure", dones)
				}
			}
		})
	}
}

// The client gets the last attempt's answer, and nothing of those before.
func TestTheLastAnswerCounts(t *testing.T) {
	p := newPlay(t, answer(503, "X-First: yes\r\n"), answer(502, ""), answer(504, "X-Last: yes\r\n"), answer(200, ""))
	g := newGateway(t, settings{options: proxy.Options{Retries: &proxy.Retries{Attempts: 2, Budget: 0.5}}}, p.url)
	res := roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	b, _ := io.ReadAll(res.Body)
	if res.StatusCode != 504 || string(b) != "504" || res.Header["X-First"] != nil || res.Header["X-Last"] == nil || len(p.heard()) != 3 {
		t.Errorf("%d %q %v after %v", res.StatusCode, b, res.Header, p.heard())
	}
}

// Nobody there at all is asked again whatever the request is: nothing of it was sent.
func TestAnUpstreamThatComesBack(t *testing.T) {
	address := strings.TrimPrefix(deadAddress(t), "http://")
	g := newGateway(t, settings{options: proxy.Options{
		Retries: &proxy.Retries{Attempts: 10, Budget: 1},
	}}, "http://"+address)
	for range 10 { // for its budget
		_ = roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
		receive(t, g.outcomes, "an outcome")
		if d := receive(t, g.dones, "Done"); d.err == nil || len(g.dones) != 0 {
			t.Fatalf("%+v and %d more, want one attempt at a WebSocket", d, len(g.dones))
		}
	}
	answers := make(chan *http.Response, 1)
	go func() {
		answers <- roundTrip(t, g.address(), "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
	}()
	receive(t, g.dones, "an attempt")
	receive(t, g.dones, "a second attempt")
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("the port is another's now: %v", err)
	}
	s := &http.Server{ErrorLog: quiet, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if string(b) != "hi" || err != nil {
			t.Errorf("got %q %v", b, err)
		}
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	if res := receive(t, answers, "the answer"); res.StatusCode != 200 {
		t.Errorf("got %d", res.StatusCode)
	}
}

// The upstream may be at work on what it is too slow with.
func TestWhatIsTooSlowIsNotAttemptedAgain(t *testing.T) {
	silent := rawUpstream(t, func(_ net.Conn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) })
	g := newGateway(t, settings{options: proxy.Options{
		Retries: &proxy.Retries{Attempts: 2, Budget: 0.1}, ResponseHeaderTimeout: 50 * time.Millisecond,
	}}, silent, silent+"/other")
	if res := roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode != 504 {
		t.Errorf("got %d", res.StatusCode)
	}
	if o := receive(t, g.outcomes, "an outcome"); o.scope.UpstreamAttempts != 1 {
		t.Errorf("%d attempts", o.scope.UpstreamAttempts)
	}
}

// Without Retries nothing is attempted again.
func TestNoRetriesUnlessAsked(t *testing.T) {
	for _, first := range []string{hangUp, answer(503, "")} {
		p := newPlay(t, first, answer(200, ""))
		g := newGateway(t, settings{}, p.url, p.url+"/other")
		if res := roundTrip(t, g.address(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode == 200 || len(p.heard()) != 1 {
			t.Errorf("%d after %v", res.StatusCode, p.heard())
		}
	}
}
