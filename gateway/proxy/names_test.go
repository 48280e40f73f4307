package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// names answers look-ups.
type names struct {
	mu    sync.Mutex
	found []string
	err   error
	asked int
}

func (n *names) set(err error, found ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.found, n.err = found, err
}

func (n *names) lookUp(context.Context, string) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	return slices.Clone(n.found), n.err
}

// When the name of a target moves, new requests go to the new addresses, those in flight
// end where they are, and no connection to the old ones is left then.
func TestNewRequestsFollowAName(t *testing.T) {
	for _, scheme := range []string{"http", "h2c"} {
		synctest.Test(t, func(t *testing.T) {
			n := newPiped(t)
			release := make(chan struct{})
			old := n.serve("api.internal", func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Auth-User") == "slow" {
					_ = http.NewResponseController(w).Flush()
					<-release
				}
				_, _ = io.WriteString(w, "old")
			})
			dns := &names{found: []string{"10.0.0.2", "10.0.0.1"}}
			moved := 0
			u := n.upstream(Options{IdleTimeout: time.Hour, resolve: dns.lookUp, Hooks: Hooks{Moved: func(_, target string) {
				moved++
				if target != "api.internal" {
					t.Errorf("told of %q", target)
				}
			}}}, scheme+"://api.internal")
			u.Start()
			var slow string
			done := make(chan struct{})
			go func() {
				defer close(done)
				slow = forwardAs(u, "slow", Forward{})
			}()
			synctest.Wait()
			for range 3 {
				if got := forward(u, Forward{}); got != "200 old at api.internal" {
					t.Fatal(got)
				}
			}
			// What is no move: another order, an error, no address.
			dns.set(nil, "10.0.0.1", "10.0.0.2", "10.0.0.2")
			pass(lookUpEvery * 11 / 10)
			dns.set(errors.New("no such host"))
			pass(lookUpEvery * 11 / 10)
			dns.set(nil)
			pass(lookUpEvery * 11 / 10)
			if moved != 0 || dns.asked < 4 {
				t.Fatalf("moved %d times after %d look-ups", moved, dns.asked)
			}
			fresh := n.serve("api.internal", say("new"))
			if got := forward(u, Forward{}); got != "200 old at api.internal" {
				t.Fatalf("before it is known: %s", got)
			}
			dns.set(nil, "10.0.0.3")
			pass(lookUpEvery * 11 / 10)
			if moved != 1 {
				t.Fatalf("moved %d times", moved)
			}
			for range 3 {
				if got := forward(u, Forward{}); got != "200 new at api.internal" {
					t.Errorf("%s: %s", scheme, got)
				}
			}
			synctest.Wait()
			if was, is := n.connections(old), n.connections(fresh); was != 1 || is != 1 {
				t.Errorf("%s: %d connections to the old server, %d to the new, want one each", scheme, was, is)
			}
			close(release)
			<-done
			pass(time.Millisecond)
			if slow != "200 old at api.internal" {
				t.Errorf("%s: what was in flight became %s", scheme, slow)
			}
			if was := n.connections(old); was != 0 {
				t.Errorf("%s: %d connections to the old server when its last request is over", scheme, was)
			}
			pass(10 * lookUpEvery)
			if moved != 1 || n.connections(fresh) != 1 {
				t.Errorf("%s: moved %d times, %d connections", scheme, moved, n.connections(fresh))
			}
			u.Close()
			asked := dns.asked
			pass(10 * lookUpEvery)
			if dns.asked != asked {
				t.Error("looked up after Close")
			}
		})
	}
}

// A target that could not be connected to may be tried at once where it is now.
func TestATargetIsTriedWhereItHasMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPiped(t)
		n.serve("a", say("well"))
		n.serve("b", say("well"))
		dns := &names{found: []string{"10.0.0.1"}}
		u := n.upstream(Options{Balance: RoundRobin, resolve: dns.lookUp}, "http://a", "http://b")
		u.Start()
		defer u.Close()
		synctest.Wait()
		for range mayFail {
			u.ward.connected(t.Context(), u.targets[1], errRefused)
		}
		for u.targets[1].trouble.Load().rest < restMost {
			time.Sleep(u.targets[1].trouble.Load().rest)
			u.ward.try(u.targets[1], u.ward.now())
			u.ward.connected(t.Context(), u.targets[1], errRefused)
		}
		if got := gets(t, u, "a", "b"); got[1] != 0 {
			t.Fatal(got)
		}
		dns.set(nil, "10.0.0.9")
		pass(lookUpEvery * 11 / 10)
		if got := gets(t, u, "a", "b"); got[1] == 0 {
			t.Error(got)
		}
	})
}

// A look that hangs is given up, and with Close at once.
func TestALookUpIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bounds []time.Duration
		o := Options{Name: "weather", Targets: []Target{{URL: &url.URL{Scheme: "https", Host: "api.internal"}}}}
		o.resolve = func(ctx context.Context, _ string) ([]string, error) {
			began := time.Now()
			<-ctx.Done()
			bounds = append(bounds, time.Since(began))
			return nil, ctx.Err()
		}
		u, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		u.Start()
		pass(lookUpEvery*9/10 + lookUpFor + lookUpEvery/5 + time.Second)
		u.Close()
		if len(bounds) != 2 || bounds[0] != lookUpFor || bounds[1] >= lookUpFor {
			t.Errorf("took %v", bounds)
		}
	})
}

func TestOnlyNamesMove(t *testing.T) {
	for target, want := range map[string]string{
		"http://api.internal:8080/a": "api.internal", "https://API.example.com.": "API.example.com.", "h2c://api": "api",
		"http://10.0.0.1": "", "http://[::1]:80": "", "http://[fe80::1%25eth0]:80": "", "http://localhost:1": "",
		"http://LOCALHOST.": "", "http://api.localhost": "", "unix:///run/api.sock": "",
	} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		if got := movable(u); got != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
}

// After Close no connection stays that nobody will use, whatever it speaks.
func TestConnectionsEndAfterClose(t *testing.T) {
	for _, scheme := range []string{"http", "h2c"} {
		synctest.Test(t, func(t *testing.T) {
			n := newPiped(t)
			release := make(chan struct{})
			s := n.serve("a", func(http.ResponseWriter, *http.Request) { <-release })
			u := n.upstream(Options{IdleTimeout: time.Hour}, scheme+"://a")
			done := make(chan struct{})
			go func() {
				defer close(done)
				forward(u, Forward{})
			}()
			synctest.Wait()
			u.Close()
			close(release)
			<-done
			pass(time.Millisecond)
			if n := n.connections(s); n != 0 {
				t.Errorf("%s: %d connections", scheme, n)
			}
		})
	}
}
