package redistest

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestServerAnswersOnPortAndSocket(t *testing.T) {
	s := Start(t)
	ctx := t.Context()
	if s.Port() == 6379 {
		t.Fatal("a test must never use the default port")
	}
	if err := s.Client(t).Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	opt, err := redis.ParseURL(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	opt.Network, opt.Addr = "unix", s.Socket()
	c := redis.NewClient(opt)
	defer func() { _ = c.Close() }()
	if got, err := c.Get(ctx, "k").Result(); got != "v" || err != nil {
		t.Fatalf("through the socket: %q, %v", got, err)
	}
	if got := s.Client(t).ConfigGet(ctx, "save").Val()["save"]; got != "" {
		t.Errorf("save = %q; want no persistence", got)
	}
}

func TestKillAndRestartKeepThePort(t *testing.T) {
	s := Start(t)
	addr, pid := s.Addr(), s.PID()
	s.Kill()
	s.Kill() // does nothing
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("dial a killed server: %v; want refused", err)
	}
	s.Restart()
	if s.Addr() != addr || s.PID() == pid {
		t.Fatalf("restarted at %s pid %d; was %s pid %d", s.Addr(), s.PID(), addr, pid)
	}
	if err := s.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.Restart() // kills first
	if err := s.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestFrozenServerIsSilentAndThaws(t *testing.T) {
	s := Start(t)
	c := s.Client(t)
	s.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx).Err(); !errors.Is(err, context.DeadlineExceeded) && !os.IsTimeout(err) {
		t.Fatalf("ping a frozen server: %v; want a timeout", err)
	}
	s.Thaw()
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestPasswordIsUsed(t *testing.T) {
	s := Start(t, "--requirepass", "p@ss/#+ %")
	if err := s.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	opt, err := redis.ParseURL(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if opt.Password != "p@ss/#+ %" {
		t.Errorf("password in the URL = %q", opt.Password)
	}
}

// TestTakenPortIsNoticed: somebody else took the port between our looking and
// the server's binding. What answers there is not ours.
func TestTakenPortIsNoticed(t *testing.T) {
	s := Start(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s.Kill()
	s.port, _ = strconv.Atoi(port)
	if err := s.start(); !errors.Is(err, errPortTaken) {
		t.Fatalf("start on a taken port: %v; want errPortTaken", err)
	}
}

// recorder is a test that can fail without failing ours.
type recorder struct {
	testing.TB
	cleanups []func()
	fatal    bool
	skipped  bool
}

type ended struct{}

func (r *recorder) Helper()               {}
func (r *recorder) Cleanup(f func())      { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Failed() bool          { return r.fatal }
func (r *recorder) Logf(string, ...any)   {}
func (r *recorder) Fatal(...any)          { r.fatal = true; panic(ended{}) }
func (r *recorder) Fatalf(string, ...any) { r.fatal = true; panic(ended{}) }
func (r *recorder) Skip(...any)           { r.skipped = true; panic(ended{}) }
func (r *recorder) run(f func(testing.TB)) {
	defer func() {
		if e := recover(); e != nil && e != any(ended{}) {
			panic(e)
		}
		for _, f := range slices.Backward(r.cleanups) {
			f()
		}
	}()
	f(r)
}

func TestCleanupEndsAFrozenServerAndItsFiles(t *testing.T) {
	binary(t)
	r := &recorder{TB: t}
	var s *Server
	r.run(func(t testing.TB) {
		s = Start(t)
		s.Freeze()
	})
	if !s.proc.exited() {
		t.Error("the server outlived its test")
	}
	if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory outlived its test: %v", err)
	}
}

func TestBadArgumentFailsAtOnce(t *testing.T) {
	binary(t)
	r := &recorder{TB: t}
	r.run(func(t testing.TB) { Start(t, "--no-such-setting", "1") })
	if !r.fatal {
		t.Error("a server that cannot start must fail the test")
	}
}

func TestMissingBinarySkipsOnALaptopAndFailsInCI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, ci := range []string{"", "true"} {
		t.Setenv("CI", ci)
		r := &recorder{TB: t}
		r.run(func(t testing.TB) { Start(t) })
		if r.fatal != (ci != "") || r.skipped != (ci == "") {
			t.Errorf("CI=%q: fatal %t, skipped %t", ci, r.fatal, r.skipped)
		}
	}
}

// A server that is down for a moment finds its port again: no other test gets it.
func TestAPortIsReservedWhileItsServerIsDown(t *testing.T) {
	port, err := freePort(lastPort)
	if err != nil {
		t.Fatal(err)
	}
	if err := reserve(port); err == nil {
		t.Errorf("port %d, on which nobody listens, is given to a second one", port)
	}
}
