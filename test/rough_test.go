package test

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
)

// FIELD-REPORTS I02: Ctrl-C ends the gateway as SIGTERM does, in good order; a second signal, of
// somebody who will not wait, ends it at once.
func TestASecondSignalDoesNotWait(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 1)
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			arrived <- struct{}{}
			<-r.Context().Done()
		}
	})
	g := proxySite(t, u.URL).start()
	if a := g.get("/quick"); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	g.signal(syscall.SIGINT)
	if code := g.wait(); code != 0 {
		t.Errorf("SIGINT with nothing in flight: exit %d, want 0", code)
	}

	g = proxySite(t, u.URL).start()
	cut := make(chan error, 1)
	go func() {
		_, err := trySend("GET", g.url+"/held", nil)
		cut <- err
	}()
	<-arrived
	g.signal(syscall.SIGTERM)
	eventually(t, "the gateway drains", func() bool { return g.logged("shutting down") != nil })
	select {
	case <-g.ended:
		t.Fatal("the gateway ended before what was in flight")
	default:
	}
	g.signal(syscall.SIGINT)
	if code := g.wait(); code != 1 {
		t.Errorf("a second signal: exit %d, want 1", code)
	}
	if err := <-cut; err == nil {
		t.Error("what was in flight was answered, though nobody waited for it")
	}
}

// FIELD-REPORTS I04: a process that has no file descriptor left takes connections again when it
// has, says what was wrong, and has ended nothing.
func TestRunningOutOfFilesIsSurvived(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, nil)
	s := proxySite(t, u.URL)
	s.program = s.path("few-files")
	if err := os.WriteFile(s.program, []byte("#!/bin/sh\nulimit -n 60 && exec \""+binary+"\" \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	g := s.start()
	if a := g.get("/quick"); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	var crowd []net.Conn
	for range 100 {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(g.url, "http://"), patience)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		crowd = append(crowd, c)
	}
	eventually(t, "the gateway says that it has no files left", func() bool { return strings.Contains(g.output(), "too many open files") })
	for _, c := range crowd {
		_ = c.Close()
	}
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	for i := range 5 {
		res, err := fresh.Get(g.url + "/quick")
		if err != nil {
			t.Fatalf("request %d after the crowd: %v", i, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("request %d after the crowd: %d", i, res.StatusCode)
		}
	}
	if lines := strings.Count(g.output(), "too many open files"); lines > 50 {
		t.Errorf("%d lines about it, in a moment", lines)
	}
	g.stop()
}
