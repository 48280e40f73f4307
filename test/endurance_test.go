package test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// What `make soak` tries at length, these try in passing.

// A WebSocket that says nothing costs two connections, a few goroutines and some
// memory, and leaves nothing behind.
func TestAnIdleSocketCostsLittle(t *testing.T) {
	t.Parallel()
	const sockets, goroutinesEach, bytesEach = 200, 5, 128 << 10
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/socket" {
			return
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		defer c.CloseNow()
		kind, data, err := c.Read(ctx)
		if err == nil {
			_ = c.Write(ctx, kind, data)
		}
	})
	g := proxySite(t, u.URL).start()
	g.get("/warm-up")
	memory := func() float64 {
		return g.value("go_memstats_heap_inuse_bytes") + g.value("go_memstats_stack_inuse_bytes")
	}
	goroutines, files, bytes := g.value("go_goroutines"), g.openFiles(), memory()
	conns := make([]*websocket.Conn, sockets)
	for i := range conns {
		c, _, err := websocket.Dial(ctx, g.url+"/socket", nil)
		if err != nil {
			t.Fatalf("socket %d: %v", i, err)
		}
		defer c.CloseNow()
		conns[i] = c
	}
	if got := (g.value("go_goroutines") - goroutines) / sockets; got > goroutinesEach {
		t.Errorf("a socket takes %.1f goroutines, want at most %d", got, goroutinesEach)
	}
	if got := g.openFiles() - files; got > 2*sockets+20 {
		t.Errorf("%d sockets take %d open files, want two for each", sockets, got)
	}
	if got := (memory() - bytes) / sockets; got > bytesEach {
		t.Errorf("a socket takes %.0f bytes, want at most %d", got, bytesEach)
	}
	for i, c := range conns {
		if err := c.Write(ctx, websocket.MessageText, []byte("still there?")); err != nil {
			t.Fatalf("socket %d: %v", i, err)
		}
		if _, data, err := c.Read(ctx); err != nil || string(data) != "still there?" {
			t.Fatalf("socket %d: %q, %v", i, data, err)
		}
		_ = c.CloseNow()
	}
	eventually(t, "nothing is left of the sockets", func() bool {
		return g.value("go_goroutines") < goroutines+20 && g.openFiles() < files+20
	})
}

// Clients that never come to the end of what they say keep a connection busy
// each, and nobody waiting.
func TestSlowClientsHoldUpNobody(t *testing.T) {
	t.Parallel()
	const slow, clients, each = 50, 8, 25
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	})
	g := proxySite(t, u.URL).start()
	var crowd []*rawConn
	for i := range slow {
		c := g.dial()
		if i%2 == 0 {
			c.say("GET /slow HTTP/1.1\r\nHost: a\r\nX-Slow: ")
		} else {
			c.say("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
		}
		crowd = append(crowd, c)
	}
	eventually(t, "the slow bodies are under way", func() bool { return u.count() == slow/2 })
	goroutines := g.value("go_goroutines")
	var all sync.WaitGroup
	var answered atomic.Int64
	for i := range clients {
		all.Go(func() {
			for range each {
				if a, err := trySend("GET", g.url+"/quick", nil); err != nil || a.status != 200 {
					t.Errorf("beside slow clients: %d, %v", a.status, err)
					return
				}
				answered.Add(1)
				crowd[i].say("x") // they go on meanwhile
			}
		})
	}
	all.Wait()
	if n := answered.Load(); n != clients*each {
		t.Errorf("%d of %d requests were answered", n, clients*each)
	}
	if n := u.count() - slow/2; n != clients*each {
		t.Errorf("%d requests reached the upstream, want %d: a head that has no end is none", n, clients*each)
	}
	if now := g.value("go_goroutines"); now > goroutines+6*clients {
		t.Errorf("%v goroutines, %v before: slow clients that go on take more and more", now, goroutines)
	}
}

// A stream and a WebSocket that were open before live through any number of
// reloads, and every request between them is answered.
func TestReloadsCutNoStreamAndNoSocket(t *testing.T) {
	t.Parallel()
	const reloads = 40
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	tick := make(chan int)
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			for i := range tick {
				_, _ = fmt.Fprintf(w, "data: %d\n", i)
				_ = http.NewResponseController(w).Flush()
			}
		case "/socket":
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				t.Errorf("accept: %v", err)
				return
			}
			defer c.CloseNow()
			for {
				kind, data, err := c.Read(ctx)
				if err != nil {
					return
				}
				_ = c.Write(ctx, kind, data)
			}
		}
	})
	s := proxySite(t, u.URL)
	g := s.start()
	res, err := client.Get(g.url + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	defer close(tick)
	events := bufio.NewReader(res.Body)
	c, _, err := websocket.Dial(ctx, g.url+"/socket", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for i := range reloads {
		s.write("plans.yaml", fmt.Sprintf("anonymous_plan: anonymous\nplans: {anonymous: {limits: [{name: day, per: ip, algorithm: fixed_window, limit: %d/day}]}}\n", 1_000_000+i))
		if !g.reload() {
			t.Fatalf("reload %d was rejected", i)
		}
		tick <- i
		if line, err := events.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("the stream after %d reloads: %q, %v", i+1, line, err)
		}
		if err := c.Write(ctx, websocket.MessageText, fmt.Append(nil, i)); err != nil {
			t.Fatalf("the WebSocket after %d reloads: %v", i+1, err)
		}
		if _, data, err := c.Read(ctx); err != nil || string(data) != fmt.Sprint(i) {
			t.Fatalf("the WebSocket after %d reloads: %q, %v", i+1, data, err)
		}
		if a := g.get("/quick"); a.status != 200 || !strings.Contains(a.field("RateLimit-Policy"), fmt.Sprintf("q=%d;", 1_000_000+i)) {
			t.Fatalf("a request after %d reloads: %d, RateLimit-Policy %q", i+1, a.status, a.field("RateLimit-Policy"))
		}
	}
}

// FIELD-REPORTS I13: with one processor and bounds on memory, as in a small container: many
// uploads that may have to be sent again, many addresses and many open streams
// at once stay below 128 MiB.
func TestASmallContainerHoldsACrowd(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	const uploads, size, streams, addresses = 50, 3 << 20, 200, 1000
	bound := int64(128 << 20)
	if raceEnabled {
		bound = 512 << 20 // the race detector remembers every word
	}
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			_, _ = io.Copy(io.Discard, r.Body)
		}
	})
	s := newSite(t)
	s.env = []string{"GOMAXPROCS=1", "GOMEMLIMIT=100MiB"}
	s.write("plans.yaml", "anonymous_plan: all\nplans: {all: {limits: [{name: hour, per: ip, algorithm: sliding_window_counter, limit: 1000/hour}]}}\n")
	s.write("routes.yaml", `
listen: {http: "127.0.0.1:0", admin: "127.0.0.1:0"}
client_ip: {trusted_proxies: [127.0.0.1]}
limits: {edge-ip: {per: ip, algorithm: token_bucket, limit: 1000/minute}}
edge: [edge-ip]
upstreams: {all: {targets: ["`+u.URL+`"], retries: {attempts: 2, budget: 10%}}}
routes: [{name: all, path: "/*", upstream: all, auth: none}]
`)
	g := s.start()
	if threads, limit := g.value("go_sched_gomaxprocs_threads"), g.value("go_gc_gomemlimit_bytes"); threads != 1 || limit != 100<<20 {
		t.Errorf("%v threads and a soft limit of %v bytes, want those of the environment", threads, limit)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	open := &http.Client{Transport: &http.Transport{}}
	for range streams {
		r, err := http.NewRequestWithContext(ctx, "GET", g.url+"/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := open.Do(r)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("a stream: %v, %v", res, err)
		}
		defer res.Body.Close()
	}
	body := make([]byte, size)
	var all sync.WaitGroup
	var next atomic.Int64
	for range uploads {
		all.Go(func() {
			if a, err := trySend("PUT", g.url+"/upload", bytes.NewReader(body)); err != nil || a.status != 200 {
				t.Errorf("an upload: %d, %v", a.status, err)
			}
		})
	}
	for range 16 {
		all.Go(func() {
			for n := next.Add(1); n <= addresses; n = next.Add(1) {
				from := fmt.Sprintf("10.0.%d.%d", n>>8, n&255)
				if a, err := trySend("GET", g.url+"/", nil, "X-Forwarded-For", from); err != nil || a.status != 200 {
					t.Errorf("from %s: %d, %v", from, a.status, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(3 * patience):
		t.Fatal("the crowd is not served")
	}
	if peak := g.peakMemory(); peak > bound {
		t.Errorf("the gateway took %d MiB, want at most %d", peak>>20, bound>>20)
	}
}
