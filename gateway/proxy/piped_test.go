package proxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway/httperr"
	"bouncer/gateway/scope"
)

// A piped network is one in memory, for tests with a clock of their own. It has a
// server at each host that somebody serves, and silence at all others.
type piped struct {
	t     testing.TB
	mu    sync.Mutex
	hosts map[string]*pipedServer
	all   []*pipedServer // those as well in whose place another one is
}

// pipedServer is a net.Listener.
type pipedServer struct {
	server http.Server
	conns  chan net.Conn
	done   chan struct{}
	dead   bool // it refuses connections
	open   int  // connections
}

func newPiped(t testing.TB) *piped {
	n := &piped{t: t, hosts: map[string]*pipedServer{}}
	t.Cleanup(func() {
		for _, s := range n.all {
			_ = s.server.Close()
		}
	})
	return n
}

// serve puts a server behind host, over HTTP/1 and HTTP/2. One that was there goes on
// with the connections that it has.
func (n *piped) serve(host string, h http.HandlerFunc) *pipedServer {
	s := &pipedServer{conns: make(chan net.Conn), done: make(chan struct{})}
	s.server.Handler = h
	s.server.Protocols = new(http.Protocols)
	s.server.Protocols.SetHTTP1(true)
	s.server.Protocols.SetUnencryptedHTTP2(true)
	s.server.ConnState = func(_ net.Conn, state http.ConnState) {
		n.mu.Lock()
		defer n.mu.Unlock()
		switch state { //nolint:exhaustive // the others are in between
		case http.StateNew:
			s.open++
		case http.StateClosed, http.StateHijacked:
			s.open--
		}
	}
	n.mu.Lock()
	n.hosts[host] = s
	n.all = append(n.all, s)
	n.mu.Unlock()
	go func() { _ = s.server.Serve(s) }()
	return s
}

// connections is how many are open.
func (n *piped) connections(s *pipedServer) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return s.open
}

// kill makes s refuse connections, or take them again.
func (n *piped) kill(s *pipedServer, dead bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.dead = dead
}

func (n *piped) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	s := n.hosts[host]
	dead := s != nil && s.dead
	n.mu.Unlock()
	switch {
	case s == nil:
		<-ctx.Done()
		return nil, ctx.Err()
	case dead:
		return nil, errRefused
	}
	ours, theirs := net.Pipe()
	select {
	case s.conns <- theirs:
		return ours, nil
	case <-s.done:
		return nil, errRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *pipedServer) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

func (s *pipedServer) Close() error {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	return nil
}

func (s *pipedServer) Addr() net.Addr { return new(net.UnixAddr) }

// upstream returns one on this network, with targets of the given URLs.
func (n *piped) upstream(o Options, targets ...string) *Upstream {
	n.t.Helper()
	o.Name = "weather"
	if o.dial == nil {
		o.dial = n.dial
	}
	if o.resolve == nil {
		o.resolve = func(context.Context, string) ([]string, error) { return []string{"10.0.0.1"}, nil }
	}
	for _, s := range targets {
		u, err := url.Parse(s)
		if err != nil {
			n.t.Fatal(err)
		}
		o.Targets = append(o.Targets, Target{URL: u})
	}
	u, err := New(o)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(u.Close)
	return u
}

// forward carries a GET and says what came of it: a status, the body, and the target.
func forward(u *Upstream, o Forward) string { return forwardAs(u, "", o) }

func forwardAs(u *Upstream, user string, o Forward) string {
	w, s := httptest.NewRecorder(), scope.Request{ID: "req-1", User: user}
	r := httptest.NewRequest(http.MethodGet, "/a", nil)
	if e := u.Forward(w, r, &s, o); e != nil {
		httperr.Write(w, r, s.ID, e)
		return fmt.Sprintf("%d at %s", e.Status, s.Target)
	}
	return fmt.Sprintf("%d %s at %s", w.Code, w.Body, s.Target)
}

// pass lets time go by in a bubble, and all that it leads to happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
