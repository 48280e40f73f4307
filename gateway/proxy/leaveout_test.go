package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func say(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// Requests that are given up before a connection can be said to have failed are no
// reason to go on sending others there.
func TestAnUnreachableTargetIsLeftOutForImpatientRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPiped(t)
		n.serve("b", say("well"))
		u := n.upstream(Options{Balance: RoundRobin, ConnectTimeout: time.Second}, "http://a", "http://b")
		bad := 0
		for range 100 {
			got := forward(u, Forward{Timeout: 100 * time.Millisecond})
			switch got {
			case "200 well at b":
			case "504 at a":
				bad++
			default:
				t.Fatal(got)
			}
		}
		// Those of the first second, and now and then one that tries.
		if bad < mayFail || bad > 15 {
			t.Errorf("%d of 100 requests came to nothing", bad)
		}
		if !u.targets[0].leftOut() {
			t.Error("it is not left out")
		}
	})
}

// A target whose handshakes fail is as good as one that refuses connections: the
// request goes elsewhere, and the next ones straight there.
func TestATargetThatFailsAtTLSIsLeftOut(t *testing.T) {
	for name, broken := range map[string]func(c net.Conn){
		"no TLS": func(c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		},
		"closed":     func(net.Conn) {},
		"silent":     func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"no version": func(c net.Conn) { _ = tls.Server(c, &tls.Config{MaxVersion: tls.VersionTLS11}).Handshake() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newPiped(t)
				n.serve("b", say("well"))
				var handshakes atomic.Int32
				var told []string
				u := n.upstream(Options{
					Balance: RoundRobin, ConnectTimeout: 100 * time.Millisecond,
					Hooks: Hooks{Target: func(_, target string, up bool, err error) {
						if up || err == nil {
							t.Errorf("told %v %v", up, err)
						}
						told = append(told, target)
					}},
				}, "https://a", "http://b")
				u.targets[0].dialer.connect = func(context.Context, string, string) (net.Conn, error) {
					handshakes.Add(1)
					ours, theirs := net.Pipe()
					go func() {
						defer theirs.Close()
						broken(theirs)
					}()
					return ours, nil
				}
				for range 50 {
					if got := forward(u, Forward{}); got != "200 well at b" {
						t.Fatal(got)
					}
				}
				if n := handshakes.Load(); n != mayFail || len(told) != 1 || told[0] != "a" {
					t.Errorf("%d handshakes, want %d; told of %q", n, mayFail, told)
				}
			})
		})
	}
}

// What has got an answer of a sort does not end in silence: a request that is attempted
// again goes to no target that is left out, neither instead of the others nor to try it.
func TestARetryTriesNoTargetThatIsLeftOut(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastRequests, Hash} {
		synctest.Test(t, func(t *testing.T) {
			n := newPiped(t)
			asked := 0
			n.serve("busy", func(w http.ResponseWriter, _ *http.Request) {
				asked++
				w.WriteHeader(http.StatusServiceUnavailable)
			})
			u := n.upstream(Options{Balance: balance, Retries: &Retries{Attempts: 1, Budget: 1}}, "http://silent", "http://busy")
			for range mayFail {
				u.ward.connected(t.Context(), u.targets[0], errRefused)
			}
			for range 20 {
				if got := forward(u, Forward{}); got != "503  at busy" {
					t.Fatalf("%s: %s", balance, got)
				}
			}
			if asked != 40 {
				t.Errorf("%s: 20 requests were %d attempts, want two each", balance, asked)
			}
			// Now one may try it. Whoever does goes on to the other.
			time.Sleep(restFirst)
			asked = 0
			for range 20 {
				if got := forward(u, Forward{}); got != "503  at busy" {
					t.Fatalf("%s: %s", balance, got)
				}
			}
		})
	}
}

// A request that could not be connected anywhere goes also where nobody was sent.
func TestNoConnectionIsPassedOverToTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPiped(t)
		n.kill(n.serve("a", nil), true)
		n.serve("b", say("well"))
		u := n.upstream(Options{Balance: RoundRobin}, "http://a", "http://b")
		for range mayFail {
			u.ward.connected(t.Context(), u.targets[1], errRefused)
		}
		if got := forward(u, Forward{}); got != "200 well at b" {
			t.Error(got)
		}
	})
}
