package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// patient is a server whose health can be set, and that counts its checks.
type patient struct {
	*pipedServer
	status atomic.Int32 // of its answers to checks; 0: it does not answer
	checks atomic.Int32
	now    atomic.Int32 // checks under way
	most   atomic.Int32
}

func (n *piped) patient(host string) *patient {
	p := new(patient)
	p.status.Store(http.StatusOK)
	p.pipedServer = n.serve(host, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			_, _ = io.WriteString(w, "well")
			return
		}
		p.checks.Add(1)
		if under := p.now.Add(1); under > p.most.Load() {
			p.most.Store(under)
		}
		defer p.now.Add(-1)
		if status := p.status.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		<-r.Context().Done()
	})
	return p
}

var every2s = Health{Path: "/healthz", Interval: 2 * time.Second, Timeout: time.Second, Healthy: 2, Unhealthy: 3}

// gets says how many of 60 requests each target gets. All have to be answered.
func gets(t *testing.T, u *Upstream, hosts ...string) []int {
	t.Helper()
	counts := make([]int, len(hosts))
	for i := range 60 {
		got := forward(u, Forward{Key: fmt.Sprint(i)})
		at := slices.Index(hosts, strings.TrimPrefix(got, "200 well at "))
		if at < 0 {
			t.Fatal(got)
		}
		counts[at]++
	}
	return counts
}

func TestATargetThatFailsItsChecksGetsNoRequests(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastRequests, Hash} {
		synctest.Test(t, func(t *testing.T) {
			n := newPiped(t)
			n.patient("a")
			b := n.patient("b")
			var told []string
			u := n.upstream(Options{Balance: balance, Health: &every2s, Hooks: Hooks{Target: func(_, target string, up bool, err error) {
				told = append(told, fmt.Sprintf("%s %v %v", target, up, errors.Is(err, ErrUnhealthy)))
			}}}, "http://a", "http://b")
			u.Start()
			u.Start() // as once
			defer u.Close()
			synctest.Wait()
			all := gets(t, u, "a", "b")
			if b.checks.Load() != 1 || all[1] == 0 {
				t.Fatalf("%s: %d checks at once, want one; requests %v", balance, b.checks.Load(), all)
			}
			// Two that fail are not three, and one that passes between them is a new beginning.
			b.status.Store(503)
			for b.checks.Load() < 3 {
				pass(time.Second)
			}
			b.status.Store(204)
			pass(every2s.Interval * 11 / 10)
			b.status.Store(302)
			checks := b.checks.Load()
			for b.checks.Load() < checks+2 {
				pass(time.Second)
			}
			if got := gets(t, u, "a", "b"); !slices.Equal(got, all) {
				t.Fatalf("%s: %v too early, and %v before", balance, got, all)
			}
			pass(every2s.Interval * 11 / 10)
			if got := gets(t, u, "a", "b"); got[1] != 0 {
				t.Fatalf("%s: fails, and gets %v", balance, got)
			}
			// However long it takes, nobody tries it, and connections do not count for it.
			pass(10 * time.Minute)
			u.ward.connected(t.Context(), u.targets[1], nil)
			if got := gets(t, u, "a", "b"); got[1] != 0 {
				t.Fatalf("%s: after ten minutes %v", balance, got)
			}
			out := u.LeftOut()
			if len(out) != 1 || out[0].Target != "b" || !out[0].Unhealthy || time.Since(out[0].Since).Round(time.Minute) != 10*time.Minute {
				t.Errorf("%s: left out %+v", balance, out)
			}
			// It has to pass twice, and comes back by and by.
			b.status.Store(200)
			checks = b.checks.Load()
			for b.checks.Load() == checks {
				pass(100 * time.Millisecond)
			}
			if got := gets(t, u, "a", "b"); got[1] != 0 {
				t.Fatalf("%s: passes once, and gets %v", balance, got)
			}
			pass(every2s.Interval * 11 / 10)
			if got := gets(t, u, "a", "b"); got[1] == 0 && balance != Hash || got[1] > all[1]*2/3 {
				t.Errorf("%s: at once %v, and %v before", balance, got, all)
			}
			pass(DefaultSlowStart)
			if got := gets(t, u, "a", "b"); !slices.Equal(got, all) || len(u.LeftOut()) != 0 {
				t.Errorf("%s: at last %v, and %v before; %v", balance, got, all, u.LeftOut())
			}
			if want := []string{"b false true", "b true false"}; !slices.Equal(told, want) {
				t.Errorf("%s: told %q, want %q", balance, told, want)
			}
			if b.most.Load() != 1 {
				t.Errorf("%d checks at the same time", b.most.Load())
			}
		})
	}
}

// Until the first check has ended a target counts as well, and then that decides.
func TestTheFirstCheckDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPiped(t)
		n.patient("a")
		n.patient("b").status.Store(0) // too slow
		u := n.upstream(Options{Balance: RoundRobin, Health: &every2s}, "http://a", "http://b", "http://silent")
		u.Start()
		defer u.Close()
		pass(every2s.Timeout - time.Millisecond)
		if got := len(u.LeftOut()); got != 0 {
			t.Fatalf("%d are left out before anything is known", got)
		}
		pass(time.Millisecond)
		synctest.Wait()
		if out := u.LeftOut(); len(out) != 2 || out[0].Target != "b" || out[1].Target != "silent" {
			t.Fatalf("left out %v, want b and silent", out)
		}
		if got := gets(t, u, "a"); got[0] != 60 {
			t.Error(got)
		}
	})
}

// Checks come about as often as they are to, not all at once, and not after Close.
func TestChecksAreJittered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPiped(t)
		a := n.patient("a")
		u := n.upstream(Options{Health: &every2s}, "http://a")
		u.Start()
		began := time.Now()
		var at []time.Duration
		for len(at) < 100 {
			seen := a.checks.Load()
			for a.checks.Load() == seen {
				pass(time.Millisecond)
			}
			at = append(at, time.Since(began))
		}
		differ := map[time.Duration]bool{}
		for i := range at[1:] {
			d := at[i+1] - at[i]
			if d < 1790*time.Millisecond || d > 2210*time.Millisecond {
				t.Fatalf("%v between two checks", d)
			}
			differ[d] = true
		}
		if len(differ) < 20 {
			t.Errorf("only %d different times in between", len(differ))
		}
		a.status.Store(0)
		pass(every2s.Interval) // one is under way, perhaps
		u.Close()
		seen := a.checks.Load()
		pass(time.Minute)
		if a.checks.Load() != seen {
			t.Error("it is checked after Close")
		}
	})
}

// If all are sick all are used, one that is alone as well; what is known is told.
func TestAllTargetsAreSick(t *testing.T) {
	for _, hosts := range [][]string{{"a"}, {"a", "b", "c"}} {
		synctest.Test(t, func(t *testing.T) {
			n := newPiped(t)
			var targets []string
			var patients []*patient
			for _, h := range hosts {
				p := n.patient(h)
				p.status.Store(500)
				patients, targets = append(patients, p), append(targets, "http://"+h)
			}
			var told atomic.Int32
			u := n.upstream(Options{Balance: RoundRobin, Health: &every2s, Hooks: Hooks{Target: func(string, string, bool, error) { told.Add(1) }}}, targets...)
			u.Start()
			defer u.Close()
			synctest.Wait()
			if int(told.Load()) != len(hosts) || len(u.LeftOut()) != len(hosts) {
				t.Fatalf("told of %d, left out %v", told.Load(), u.LeftOut())
			}
			for i, got := range gets(t, u, hosts...) {
				if got != 60/len(hosts) {
					t.Errorf("%s got %d", hosts[i], got)
				}
			}
			// The first that is well gets everything.
			patients[len(hosts)-1].status.Store(200)
			pass(3 * every2s.Interval)
			if got := gets(t, u, hosts...); got[len(hosts)-1] != 60 || len(u.LeftOut()) != len(hosts)-1 {
				t.Errorf("one is well: %v, left out %v", got, u.LeftOut())
			}
		})
	}
}

// A target that cannot be connected to is left out before three checks have found it
// out; and when it is there again a check finds that out before a request has to.
func TestChecksAndConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPiped(t)
		n.patient("a")
		b := n.patient("b")
		var told []string
		u := n.upstream(Options{Balance: RoundRobin, Health: &every2s, Hooks: Hooks{Target: func(_, target string, up bool, err error) {
			told = append(told, fmt.Sprintf("%s %v %v", target, up, errors.Is(err, ErrUnhealthy)))
		}}}, "http://a", "http://b")
		u.Start()
		defer u.Close()
		synctest.Wait()
		n.kill(b.pipedServer, true)
		for range mayFail {
			u.ward.connected(t.Context(), u.targets[1], errRefused)
		}
		if out := u.LeftOut(); len(out) != 1 || out[0].Unhealthy {
			t.Fatalf("left out %v", out)
		}
		n.kill(b.pipedServer, false)
		pass(every2s.Interval * 11 / 10)
		synctest.Wait()
		if out := u.LeftOut(); len(out) != 0 {
			t.Fatalf("left out %v, though a check passed", out)
		}
		// What cannot be connected to fails its checks in the end, which is no other news.
		n.kill(b.pipedServer, true)
		u.ward.connected(t.Context(), u.targets[1], errRefused)
		pass(4 * every2s.Interval)
		if out := u.LeftOut(); len(out) != 1 || !out[0].Unhealthy {
			t.Fatalf("left out %v", out)
		}
		if want := []string{"b false false", "b true false", "b false false"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// Of a caller's requests only those move that were at the target that is sick.
func TestFewKeysMoveFromASickTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balanced(t, Hash, 1, 1, 1)
		b.ward.health = &every2s
		before := owners(b, nil)
		b.ward.checkEnded(b.targets[1], ErrUnhealthy)
		for i, at := range owners(b, nil) {
			if at == 1 || before[i] != 1 && at != before[i] {
				t.Fatalf("key %d of %d is at %d", i, before[i], at)
			}
		}
		b.ward.checkEnded(b.targets[1], nil)
		b.ward.checkEnded(b.targets[1], nil)
		pass(DefaultSlowStart)
		if !slices.Equal(owners(b, nil), before) {
			t.Error("not all keys are where they were")
		}
	})
}

// A name server that does not know, or does not answer, says nothing about a target. Its
// first verdict is still to come then, and those in a row go on.
func TestALookUpThatFailsIsNoVerdict(t *testing.T) {
	for name, fail := range map[string]func(context.Context) error{
		"not found": func(context.Context) error { return &net.DNSError{Err: "no such host", Name: "b", IsNotFound: true} },
		"silent": func(ctx context.Context) error {
			httptrace.ContextClientTrace(ctx).DNSStart(httptrace.DNSStartInfo{Host: "b"})
			<-ctx.Done()
			return ctx.Err()
		},
		"its own error": func(ctx context.Context) error {
			tr := httptrace.ContextClientTrace(ctx)
			tr.DNSStart(httptrace.DNSStartInfo{Host: "b"})
			tr.DNSDone(httptrace.DNSDoneInfo{Err: errRefused})
			return errRefused
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newPiped(t)
			n.patient("a")
			b := n.patient("b")
			var away atomic.Bool
			var asked, told atomic.Int32
			away.Store(true)
			u := n.upstream(Options{Health: &every2s, dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				if away.Load() && address == "b:80" {
					asked.Add(1)
					return nil, fail(ctx)
				}
				return n.dial(ctx, network, address)
			}, Hooks: Hooks{Target: func(string, string, bool, error) { told.Add(1) }}}, "http://a", "http://b")
			u.Start()
			pass(time.Minute)
			if asked.Load() < 20 || told.Load() != 0 || len(u.LeftOut()) != 0 {
				t.Fatalf("%s: %d checks without a name, and left out %+v", name, asked.Load(), u.LeftOut())
			}
			if err := u.Check(t.Context(), 1); !errors.Is(err, ErrUnhealthy) || !strings.Contains(err.Error(), "its name could not be looked up") {
				t.Errorf("%s: one check says %v", name, err)
			}
			// The first that reaches it decides by itself.
			b.status.Store(503)
			away.Store(false)
			pass(2 * every2s.Interval)
			if len(u.LeftOut()) != 1 {
				t.Errorf("%s: sick, and not left out", name)
			}
			away.Store(true)
			b.status.Store(200)
			pass(time.Minute)
			if len(u.LeftOut()) != 1 {
				t.Errorf("%s: well by look-ups that fail", name)
			}
			u.Close()
			pass(time.Minute) // net/http lets a connection under way come to its own end
		})
	}
}

// What a check says when the answer is none is for people.
func TestChecksSayWhatIsWrongInWords(t *testing.T) {
	for _, test := range []struct {
		scheme string
		serve  func(net.Conn)
		want   string
	}{
		{"http", func(c net.Conn) { _, _ = c.Read(make([]byte, 1<<10)) }, "GET /healthz: it closed the connection without an answer"},
		{"http", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "GET /healthz got no answer within 200ms"},
		{"h2c", func(c net.Conn) {
			go func() { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") }()
			_, _ = io.Copy(io.Discard, c)
		}, "GET /healthz: it answers in HTTP/1 where h2c:// wants HTTP/2; want http:// in place of h2c://"},
	} {
		synctest.Test(t, func(t *testing.T) {
			u, err := New(Options{
				Name: "weather", Targets: []Target{{URL: &url.URL{Scheme: test.scheme, Host: "a:80"}}},
				Health: &Health{Path: "/healthz", Timeout: 200 * time.Millisecond},
				dial: func(context.Context, string, string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					go func() {
						test.serve(theirs)
						_ = theirs.Close()
					}()
					return ours, nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close()
			if err := u.Check(t.Context(), 0); err == nil || err.Error() != ErrUnhealthy.Error()+": "+test.want {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
}

// A check goes the way of requests: by the target's scheme, with its TLS, its Host and its
// path, over a connection of its own that ends with it.
func TestChecksGoTheWayOfRequests(t *testing.T) {
	ask := func(t *testing.T, prepare func(s *httptest.Server) (target string, o Options)) (seen string) {
		t.Helper()
		var conns atomic.Int32
		var mu sync.Mutex
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			seen = strings.Join([]string{r.Method, r.Proto, r.Host, r.RequestURI, r.UserAgent()}, " ")
			if r.TLS != nil {
				seen += " " + r.TLS.ServerName
			}
			if r.URL.Query().Get("sick") != "" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = io.WriteString(w, strings.Repeat("well ", 100_000)) // as much as a page
		}))
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				conns.Add(1)
			}
		}
		target, o := prepare(s)
		defer s.Close()
		at, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		o.Name, o.Targets = "weather", []Target{{URL: at}}
		o.Health = &Health{Path: "/healthz?a=%2F"}
		u, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		for range 2 {
			if err := u.Check(t.Context(), 0); err != nil {
				t.Error(err)
			}
		}
		if conns.Load() != 2 {
			t.Errorf("%d connections for two checks", conns.Load())
		}
		o.Health = &Health{Path: "/healthz?sick=1"}
		sick, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer sick.Close()
		mu.Lock()
		was := seen
		mu.Unlock()
		err = sick.Check(t.Context(), 0)
		if !errors.Is(err, ErrUnhealthy) || !strings.Contains(err.Error(), "/healthz?sick=1 was answered with 503, want 200 to 299") {
			t.Error(err)
		}
		s.Close()
		if err = sick.Check(t.Context(), 0); !errors.Is(err, ErrUnhealthy) {
			t.Errorf("nobody there: %v", err)
		}
		return was
	}
	t.Run("http", func(t *testing.T) {
		var host string
		got := ask(t, func(s *httptest.Server) (string, Options) {
			s.Start()
			host = s.Listener.Addr().String()
			return s.URL + "/base/", Options{}
		})
		if want := "GET HTTP/1.1 " + host + " /base/healthz?a=%2F gateway-health"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
	t.Run("h2c", func(t *testing.T) {
		var host string
		got := ask(t, func(s *httptest.Server) (string, Options) {
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
			host = s.Listener.Addr().String()
			return "h2c://" + host, Options{}
		})
		if want := "GET HTTP/2.0 " + host + " /healthz?a=%2F gateway-health"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
	t.Run("unix", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "api.sock")
		got := ask(t, func(s *httptest.Server) (string, Options) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			s.Listener = l
			s.Start()
			return "unix://" + path, Options{}
		})
		if want := "GET HTTP/1.1 localhost /healthz?a=%2F gateway-health"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
	t.Run("https", func(t *testing.T) {
		var host string
		got := ask(t, func(s *httptest.Server) (string, Options) {
			s.EnableHTTP2 = true
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			s.StartTLS()
			host = s.Listener.Addr().String()
			roots := x509.NewCertPool()
			roots.AddCert(s.Certificate())
			return "https://" + host, Options{TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}}
		})
		if want := "GET HTTP/2.0 " + host + " /healthz?a=%2F gateway-health example.com"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
	t.Run("https that nobody trusts", func(t *testing.T) {
		s := httptest.NewUnstartedServer(nil)
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		defer s.Close()
		at, _ := url.Parse(s.URL)
		u, err := New(Options{Name: "weather", Targets: []Target{{URL: at}}, Health: &Health{Path: "/"}})
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		if err := u.Check(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Error(err)
		}
	})
}

func TestNothingRunsThatNobodyWants(t *testing.T) {
	before := runtime.NumGoroutine()
	at := []Target{{URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}, {URL: &url.URL{Scheme: "unix", Path: "/a"}}}
	u, err := New(Options{Name: "weather", Targets: at})
	if err != nil {
		t.Fatal(err)
	}
	u.Start()
	defer u.Close()
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, %d before", n, before)
	}
}

func TestHealthIsChecked(t *testing.T) {
	for _, h := range []Health{{}, {Path: "healthz"}, {Path: "/a b"}, {Path: "/%zz"}, {Path: "/", Interval: -1}, {Path: "/", Timeout: -1}, {Path: "/", Healthy: -1}, {Path: "/", Unhealthy: -1}} {
		_, err := New(Options{Name: "weather", Targets: []Target{{URL: &url.URL{Scheme: "http", Host: "a"}}}, Health: &h})
		if err == nil || !strings.Contains(err.Error(), "health") {
			t.Errorf("%+v: %v", h, err)
		}
	}
	h, err := Health{Path: "/", Interval: 500 * time.Millisecond}.filled()
	if err != nil || *h != (Health{Path: "/", Interval: 500 * time.Millisecond, Timeout: 500 * time.Millisecond, Healthy: 2, Unhealthy: 3}) {
		t.Errorf("%+v %v", h, err)
	}
}
