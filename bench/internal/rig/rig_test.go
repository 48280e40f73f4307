package rig

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// get is one request, as Load.Next returns it.
const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

func TestRunCountsWhatTheServerSaw(t *testing.T) {
	seen := make(chan struct{}, 1000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		seen <- struct{}{}
		_, _ = w.Write([]byte("hello"))
	}))
	defer srv.Close()
	r, err := Run(t.Context(), Load{
		Address: srv.Listener.Addr().String(), Connections: 4,
		Next: func(_, i int) []byte {
			if i == 25 {
				return nil
			}
			return []byte(get)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 100 || len(seen) != 100 || r.Statuses[200] != 100 {
		t.Errorf("%+v, the server saw %d; want 100 requests", r, len(seen))
	}
	if r.P50 <= 0 || r.P99 < r.P50 {
		t.Errorf("p50 %v, p99 %v", r.P50, r.P99)
	}
}

func TestRunStopsAfterItsDuration(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	r, err := Run(t.Context(), Load{
		Address: srv.Listener.Addr().String(), Connections: 1, Duration: 50 * time.Millisecond,
		Next: func(int, int) []byte { return []byte(get) },
	})
	if err != nil || r.Elapsed < 50*time.Millisecond || r.Requests < 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRunFailure(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	load := Load{
		Address: srv.Listener.Addr().String(), Connections: 2, Duration: time.Minute,
		Next: func(int, int) []byte { return []byte(get) },
	}
	if _, err := Run(t.Context(), load); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v, want the unexpected status", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	load.Address = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), load); err == nil {
		t.Error("no error where nobody listens")
	}
}

func TestReadAnswer(t *testing.T) {
	for _, tt := range []struct {
		text   string
		status int
		ok     bool
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, true},
		{"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\ncontent-length: 0\r\n\r\n", 429, true},
		{"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi", 0, false},
		{"HTTP/1.1 200 OK\r\n\r\nhi", 0, false},
		{"HTTP/1.1 2xx OK\r\nContent-Length: 2\r\n\r\nhi", 0, false},
		{"hello\r\n", 0, false},
		{"", 0, false},
	} {
		status, err := readAnswer(bufio.NewReader(strings.NewReader(tt.text)))
		if (err == nil) != tt.ok || tt.ok && status != tt.status {
			t.Errorf("%q: %d, %v", tt.text, status, err)
		}
	}
}

func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.md")
	if err := os.WriteFile(path, []byte("a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Replace(path, "x", "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := Replace(path, "y", "new\n"); err == nil {
		t.Error("no error without the lines to write between")
	}
}

func TestSpread(t *testing.T) {
	if got := SpreadOf([]float64{3, 1, 2}); got != (Spread{2, 1, 3}) {
		t.Errorf("odd: %+v", got)
	}
	if got := SpreadOf([]float64{4, 1, 2, 3}); got != (Spread{2.5, 1, 4}) {
		t.Errorf("even: %+v", got)
	}
}

// TestProcess reads the CPU time and memory of a process that is known to use
// some: this test's own program.
func TestProcess(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc: the benchmarks need Linux")
	}
	p, err := Start("burn", t.TempDir(), []string{"RIG_TEST_BURN=1"}, os.Args[0], "-test.run=^TestBurn$")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	deadline := time.Now().Add(10 * time.Second)
	for {
		used, err := p.CPU()
		if err != nil {
			t.Fatal(err)
		}
		resident, peak, err := p.Memory()
		if err != nil {
			t.Fatal(err)
		}
		if used >= 50*time.Millisecond && resident > 1<<20 && peak >= resident {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("used %v, resident %d, peak %d", used, resident, peak)
		}
	}
}

func TestBurn(t *testing.T) {
	if os.Getenv("RIG_TEST_BURN") == "" {
		t.Skip("this is the child of TestProcess")
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
	}
}
