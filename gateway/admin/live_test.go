package admin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/admin"
)

// liveServer serves the states of a counter.
func liveServer(t *testing.T, pad int) (*httptest.Server, *admin.Feed, *atomic.Uint64) {
	t.Helper()
	var seq atomic.Uint64
	feed := admin.NewFeed(func() (uint64, []byte) {
		n := seq.Load()
		return n, fmt.Appendf(nil, `{"seq":%d,"pad":%q}`, n, strings.Repeat("x", pad))
	})
	h := admin.New(admin.Options{
		Live: feed, Loopback: true,
		History: func(window string) ([]byte, bool) {
			return []byte(`{"window":"` + window + `"}`), window == "5m" || window == "1h" || window == "24h"
		},
	})
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	t.Cleanup(feed.Close)
	return server, feed, &seq
}

// open starts a stream, and returns its events as they come: the number of each.
func open(t *testing.T, url string) (events <-chan string, cancel func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if ct := res.Header.Get("Content-Type"); res.StatusCode != 200 || ct != "text/event-stream" {
		t.Fatalf("%d %s", res.StatusCode, ct)
	}
	out := make(chan string, 100)
	go func() {
		defer close(out)
		defer res.Body.Close()
		lines := bufio.NewScanner(res.Body)
		event := ""
		for lines.Scan() {
			if line := lines.Text(); line != "" {
				event += line + "\n"
				continue
			}
			out <- event
			event = ""
		}
	}()
	return out, cancel
}

func wantEvent(t *testing.T, events <-chan string, seq int) {
	t.Helper()
	select {
	case got, ok := <-events:
		if want := fmt.Sprintf("event: state\nid: %d\ndata: {\"seq\":%d,\"pad\":\"\"}\n", seq, seq); !ok || got != want {
			t.Fatalf("event %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("no event %d", seq)
	}
}

func wantEnd(t *testing.T, events <-chan string) {
	t.Helper()
	over := time.After(10 * time.Second)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-over:
			t.Fatal("the stream does not end")
		}
	}
}

func eventuallyStreams(t *testing.T, feed *admin.Feed, want int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); feed.Streams() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d streams, want %d", feed.Streams(), want)
		}
	}
}

func TestTheStateComesAtOnceAndWhenItChanges(t *testing.T) {
	t.Parallel()
	server, feed, seq := liveServer(t, 0)
	seq.Store(7)
	events, cancel := open(t, server.URL)
	wantEvent(t, events, 7)
	for n := 8; n < 11; n++ {
		seq.Store(uint64(n))
		feed.Publish()
		wantEvent(t, events, n)
	}
	res, err := http.Get(server.URL + "/api/live?once")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var state struct{ Seq int }
	if err := json.NewDecoder(res.Body).Decode(&state); err != nil || state.Seq != 10 || res.Header.Get("Content-Type") != "application/json" {
		t.Errorf("once: %v, %v, %s", state, err, res.Header.Get("Content-Type"))
	}
	cancel()
	eventuallyStreams(t, feed, 0)
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	server, feed, _ := liveServer(t, 0)
	var cancels []func()
	for range 64 {
		events, cancel := open(t, server.URL)
		wantEvent(t, events, 0)
		cancels = append(cancels, cancel)
	}
	res, err := (&http.Client{Timeout: 10 * time.Second}).Get(server.URL + "/api/live")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !strings.Contains(string(body), "once") {
		t.Errorf("one too many: %d, Retry-After %q, %s", res.StatusCode, res.Header.Get("Retry-After"), body)
	}
	cancels[0]()
	eventuallyStreams(t, feed, 63)
	events, _ := open(t, server.URL)
	wantEvent(t, events, 0)
}

// A gateway that stops does not wait for those who watch it, and takes no new ones.
func TestStreamsEndWithTheFeed(t *testing.T) {
	t.Parallel()
	server, feed, _ := liveServer(t, 0)
	events, _ := open(t, server.URL)
	wantEvent(t, events, 0)
	feed.Restart() // another token counts
	wantEnd(t, events)
	events, _ = open(t, server.URL)
	wantEvent(t, events, 0)
	feed.Close()
	feed.Close()
	wantEnd(t, events)
	eventuallyStreams(t, feed, 0)
	res, err := (&http.Client{Timeout: 10 * time.Second}).Get(server.URL + "/api/live")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a stream of a gateway that stops: %d", res.StatusCode)
	}
}

// Whoever takes nothing of a stream loses it: it would be kept for ever otherwise.
func TestAStreamThatIsNotReadIsCut(t *testing.T) {
	t.Parallel()
	server, feed, _ := liveServer(t, 1<<20)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	eventuallyStreams(t, feed, 1)
	stop := make(chan struct{})
	defer close(stop)
	go func() { // events without end, until the buffers are full
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				feed.Publish()
			}
		}
	}()
	for deadline := time.Now().Add(30 * time.Second); feed.Streams() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is kept though nobody reads it")
		}
	}
}

func TestLiveAndHistoryAnswerAsOtherEndpointsDo(t *testing.T) {
	t.Parallel()
	server, feed, _ := liveServer(t, 0)
	for _, test := range []struct {
		method, path string
		status       int
		contentType  string
	}{
		{"HEAD", "/api/live", 200, "text/event-stream"},
		{"POST", "/api/live", 405, "application/problem+json"},
		{"GET", "/api/history", 200, "application/json"},
		{"GET", "/api/history?window=24h", 200, "application/json"},
		{"GET", "/api/history?window=1w", 400, "application/problem+json"},
	} {
		r, err := http.NewRequest(test.method, server.URL+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != test.status || res.Header.Get("Content-Type") != test.contentType {
			t.Errorf("%s %s: %d %s, want %d %s", test.method, test.path, res.StatusCode, res.Header.Get("Content-Type"), test.status, test.contentType)
		}
	}
	if n := feed.Streams(); n != 0 {
		t.Errorf("%d streams, and nobody watches", n)
	}
	// Off loopback they need the token.
	h := admin.New(admin.Options{Live: feed, History: func(string) ([]byte, bool) { return nil, false }, Token: []byte("t")})
	for _, path := range []string{"/api/live", "/api/live?once", "/api/history"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != http.StatusUnauthorized {
			t.Errorf("%s without the token: %d", path, w.Code)
		}
	}
}
