package test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// handedOver has the site's gateways inherit a listening socket, as from systemd.
func (s *site) handOver(l net.Listener) {
	s.t.Helper()
	f, err := l.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = f.Close() })
	s.sockets = append(s.sockets, f)
	script := s.path("activated.sh")
	text := fmt.Sprintf("#!/bin/sh\nLISTEN_PID=$$ LISTEN_FDS=%d exec '%s' \"$@\"\n", len(s.sockets), binary)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		s.t.Fatal(err)
	}
	s.program = script
}

// One process ends and the next begins while clients go on asking, with connections
// of their own: the socket stays, and nobody is turned away.
func TestARestartLeavesNoGap(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := upstreamSite(t, `targets: ["`+u.URL+`"]`)
	s.write("routes.yaml", strings.Replace(string(must(os.ReadFile(s.path("routes.yaml")))), `http: "127.0.0.1:0"`, `http: "`+l.Addr().String()+`"`, 1))
	s.handOver(l)
	g := s.start()
	if g.url != "http://"+l.Addr().String() {
		t.Fatalf("it listens on %s, want the socket that was handed over", g.url)
	}

	url := g.url + "/a"
	var asked atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
			for {
				select {
				case <-stop:
					return
				default:
				}
				res, err := c.Get(url)
				if err != nil {
					t.Errorf("request %d: %v", asked.Load(), err)
					return
				}
				_, err = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if err != nil || res.StatusCode != 200 {
					t.Errorf("request %d: %d %v", asked.Load(), res.StatusCode, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	more := func() {
		t.Helper()
		from := asked.Load()
		eventually(t, "clients are answered", func() bool { return asked.Load() > from+50 || t.Failed() })
	}
	for range 3 {
		more()
		g.stop()
		next := s.start() // the clients that came meanwhile are waiting for it
		more()
		g = next
	}
	close(stop)
	clients.Wait()
}

// A socket file that was handed over stays where it is, and one that nobody wants is
// spoken of.
func TestSocketsThatWereHandedOver(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	path := filepath.Join(t.TempDir(), "g.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = l.Close() })
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	s := upstreamSite(t, `targets: ["`+u.URL+`"]`)
	s.write("routes.yaml", strings.Replace(string(must(os.ReadFile(s.path("routes.yaml")))), `http: "127.0.0.1:0"`, `http: "unix:`+path+`"`, 1))
	s.handOver(l)
	s.handOver(other)
	g := s.start()
	if found := g.all("a socket was handed over that no listener is configured for; it is closed here"); len(found) != 1 || found[0]["address"] != other.Addr().String() {
		t.Errorf("said of a socket that nobody wants: %v", found)
	}
	g.stop()
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		t.Error("the socket that was handed over is gone")
	}
}
