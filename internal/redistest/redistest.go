// Package redistest starts real redis-server processes for tests.
//
// A [Server] belongs to one test: it listens on a free loopback port and on a
// unix socket, keeps nothing on disk, and is gone when the test is over, also
// when the test binary dies without cleaning up (on Linux). It can be killed,
// restarted on the same port, frozen and thawed, which is how the tests of
// this module show what happens when the store fails.
//
// It is for tests only and it is no Redis in disguise: where redis-server is not
// installed the test is skipped with the command to type, or fails when the
// environment variable CI is set, so that no build is green for lack of a Redis.
//
//	func TestStore(t *testing.T) {
//		srv := redistest.Start(t, "--maxmemory", "5mb")
//		client := srv.Client(t)
//		…
//		srv.Freeze() // every call now hangs
//		srv.Thaw()
//	}
//
// [StartCluster] starts several of them as one Redis Cluster, [StartSentinel] a
// master with replicas under the eyes of sentinels, [StartTLS] one that speaks
// TLS alone, and [ACLFile] writes users for the argument --aclfile. The
// environment variable REDIS_SERVER names another program than redis-server, as
// in REDIS_SERVER=valkey-server go test ./gateway/ratelimit/redisstore.
//
// The methods are called from the goroutine of the test, one at a time; they
// end the test with t.Fatal when they cannot do what they say.
package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// startTimeout bounds one start, from the fork to the first PONG. It is
	// generous because test machines are busy; nothing waits for it to pass.
	startTimeout = 20 * time.Second
	// pollInterval is how often a starting server is asked whether it is there.
	pollInterval = 5 * time.Millisecond
	// startAttempts bounds how many ports are tried.
	startAttempts = 20

	// The ports lie below the range from which kernels hand out ports by
	// themselves (32768 and up on Linux, 49152 and up elsewhere), so that nobody
	// is given our port while the server is down between Kill and Restart.
	firstPort = 20000
	lastPort  = 32000
)

// A Server is one redis-server process that a test owns.
type Server struct {
	t    testing.TB
	bin  string
	dir  string // its working directory, with log and socket
	port int
	conf string   // a configuration file, which makes it a sentinel; "" for a server
	args []string // the caller's own
	tls  *TLS     // nil: it speaks plain TCP
	pass string   // "" except where the arguments say otherwise

	proc *process // nil before the first start
}

// Start runs a redis-server with the given extra arguments, as one would type
// them ("--maxmemory", "5mb"), and returns when it answers. A password given
// with --requirepass is used by Client and URL. The server ends with the test,
// and its log is printed if the test failed.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, lastPort, args...)
}

// start is Start with a bound for the port.
func start(t testing.TB, below int, args ...string) *Server {
	t.Helper()
	s := newServer(t, args)
	startAll(t, below, s)
	return s
}

// newServer makes a server that does not run yet.
func newServer(t testing.TB, args []string) *Server {
	t.Helper()
	bin := binary(t)
	// Not t.TempDir: the path of a unix socket may have 107 bytes, and the name
	// of the test is part of that directory.
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	s := &Server{t: t, bin: bin, dir: dir, args: args}
	for i := 0; i+1 < len(args); i++ {
		if args[i] == "--requirepass" {
			s.pass = args[i+1]
		}
	}
	t.Cleanup(s.cleanup)
	return s
}

// startAll runs servers side by side, each on a free port below the given one.
func startAll(t testing.TB, below int, servers ...*Server) {
	t.Helper()
	failed := make(chan error, len(servers))
	var wg sync.WaitGroup
	for _, s := range servers {
		wg.Go(func() {
			err := errPortTaken
			for attempt := 0; attempt < startAttempts && errors.Is(err, errPortTaken); attempt++ {
				if s.port, err = freePort(below); err == nil {
					err = s.start()
				}
			}
			if err != nil {
				failed <- fmt.Errorf("start redis-server: %w\n%s", err, s.log())
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		t.Fatalf("redistest: %v", err)
	default:
	}
}

// binary finds redis-server, or ends the test.
func binary(t testing.TB) string {
	t.Helper()
	name := "redis-server"
	if other := os.Getenv("REDIS_SERVER"); other != "" {
		name = other
	}
	bin, err := exec.LookPath(name)
	if err == nil {
		return bin
	}
	hint := "redistest: " + name + " is not installed; type: apt-get install " + name
	if os.Getenv("CI") != "" {
		t.Fatal(hint)
	}
	t.Skip(hint)
	return ""
}

// Addr returns the TCP address, "127.0.0.1:port".
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Port returns the TCP port.
func (s *Server) Port() int { return s.port }

// Socket returns the path of the unix socket. It is short enough for one.
func (s *Server) Socket() string { return filepath.Join(s.dir, "redis.sock") }

// Dir returns the server's working directory. It goes away with the test.
func (s *Server) Dir() string { return s.dir }

// PID returns the process id of the running server, or of the last one.
func (s *Server) PID() int { return s.proc.cmd.Process.Pid }

// URL returns redis://127.0.0.1:port/0, or rediss:// for one that [StartTLS]
// made, with the password if there is one.
func (s *Server) URL() string {
	u := url.URL{Scheme: "redis", Host: s.Addr(), Path: "/0"}
	if s.tls != nil {
		u.Scheme = "rediss"
	}
	if s.pass != "" {
		u.User = url.UserPassword("", s.pass)
	}
	return u.String()
}

// Client returns a new client of the server with the library's own settings,
// closed when t is over. It is for looking at the server from a test, not for
// what is being tested.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: s.Addr(), Password: s.pass, TLSConfig: s.tls.config(),
		ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Kill ends the server with SIGKILL and returns when it is gone. Its address
// refuses connections from then on. Killing a dead server does nothing.
func (s *Server) Kill() {
	s.t.Helper()
	s.proc.kill()
}

// Restart starts the server again on the same port, and kills it first if it
// is still running. The new one knows no script, and is empty unless the
// arguments say where it keeps its data.
func (s *Server) Restart() {
	s.t.Helper()
	s.proc.kill()
	// Somebody may hold the port for a moment; nobody is handed it by the kernel.
	deadline := time.Now().Add(startTimeout)
	for {
		err := s.start()
		if err == nil {
			return
		}
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			s.t.Fatalf("redistest: restart redis-server on port %d: %v\n%s", s.port, err, s.log())
		}
		time.Sleep(pollInterval)
	}
}

// Freeze stops the server with SIGSTOP: its sockets stay open, connections are
// still accepted by the kernel, and nothing answers. It returns when the
// process stands still. The end of the test thaws it.
func (s *Server) Freeze() {
	s.t.Helper()
	if err := s.proc.signal(syscall.SIGSTOP); err != nil {
		s.t.Fatalf("redistest: freeze: %v", err)
	}
	if err := s.proc.awaitStopped(startTimeout); err != nil {
		s.t.Fatalf("redistest: freeze: %v", err)
	}
}

// Thaw lets a frozen server go on. It answers first what it was asked while it
// stood still.
func (s *Server) Thaw() {
	s.t.Helper()
	if err := s.proc.signal(syscall.SIGCONT); err != nil {
		s.t.Fatalf("redistest: thaw: %v", err)
	}
}

// cleanup ends the process, whatever its state, and takes its directory away.
func (s *Server) cleanup() {
	if s.proc != nil {
		s.proc.kill() // SIGKILL also ends a stopped process
	}
	if s.t.Failed() {
		s.t.Logf("redistest: log of the redis-server on port %d:\n%s", s.port, s.log())
	}
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Logf("redistest: %v", err)
	}
}

// errPortTaken says that somebody else listens on the port we chose.
var errPortTaken = errors.New("the port is taken")

// start runs the server on s.port and waits until it answers.
func (s *Server) start() error {
	// A socket file of an earlier run would be answered by nobody.
	if err := os.Remove(s.Socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	port := "--port"
	if s.tls != nil {
		port = "--tls-port"
	}
	var args []string
	if s.conf != "" {
		args = append(args, s.conf, "--sentinel")
	}
	args = append(args, []string{
		port, strconv.Itoa(s.port),
		"--bind", "127.0.0.1",
		"--unixsocket", s.Socket(),
		"--dir", s.dir,
		"--daemonize", "no",
		"--save", "",
		"--appendonly", "no",
		"--logfile", "",
	}...)
	args = append(args, s.args...)
	proc, err := startProcess(s.bin, args, s.logPath())
	if err != nil {
		return err
	}
	s.proc = proc

	// The socket in our own directory is asked before the port: what answers
	// there is our process, and it has bound the port before the socket.
	deadline := time.Now().Add(startTimeout)
	ways := [][2]string{{"unix", s.Socket()}, {"tcp", s.Addr()}}
	if s.tls != nil {
		ways = ways[:1]
	}
	for _, at := range ways {
		for {
			err := ping(at[0], at[1])
			if err == nil {
				break
			}
			if proc.exited() {
				if strings.Contains(s.log(), "Address already in use") {
					return errPortTaken
				}
				return fmt.Errorf("it ended at once: %v", proc.cmd.ProcessState)
			}
			if time.Now().After(deadline) {
				proc.kill()
				return fmt.Errorf("no answer within %v: %w", startTimeout, err)
			}
			time.Sleep(pollInterval)
		}
	}
	return nil
}

// ping asks the server at address whether it is ready. One that wants a
// password is; one that reads its data is not.
func ping(network, address string) error {
	c, err := net.DialTimeout(network, address, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "PING\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	if strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH") {
		return nil
	}
	return fmt.Errorf("PING was answered %q", strings.TrimSpace(line))
}

// freePort returns a loopback port below the given one that nobody listens on
// right now, and that no other test is given: neither of this process nor of one
// that runs beside it, also while the server is down.
func freePort(below int) (int, error) {
	var last error
	for range 100 {
		port := firstPort + rand.IntN(below-firstPort) //nolint:gosec // not secret
		if port == 26379 {                             // the default port of Redis Sentinel
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			last = err
			continue
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		if err := reserve(port); err != nil {
			last = err
			continue
		}
		return port, nil
	}
	return 0, fmt.Errorf("find a free port: %w", last)
}

// reserved are the locks on the files that stand for our ports. They end with the
// process, however it ends.
var reserved struct {
	sync.Mutex
	files []*os.File
}

// reserve makes a port this process' own among all that use this package here.
func reserve(port int) error {
	dir := filepath.Join(os.TempDir(), "redistest-ports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return fmt.Errorf("port %d is another test's: %w", port, err)
	}
	reserved.Lock()
	defer reserved.Unlock()
	reserved.files = append(reserved.files, f)
	return nil
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "redis.log") }

// log returns the end of what the server printed in its last run.
func (s *Server) log() string {
	b, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	const most = 8 << 10
	if len(b) > most {
		b = b[len(b)-most:]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}

// A process is one run of redis-server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has been waited for
}

// startProcess runs bin with its output in the file logPath.
func startProcess(bin string, args []string, logPath string) (*process, error) {
	out, err := os.Create(logPath)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(bin, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = dieWithParent()

	started := make(chan error, 1)
	go func() {
		// The kernel ends the child when the thread that started it ends, so
		// this goroutine keeps its thread until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := p.cmd.Start()
		_ = out.Close() // the child has its own
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended is in ProcessState
		}
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal sends sig unless the process is gone.
func (p *process) signal(sig syscall.Signal) error {
	if p.exited() {
		return os.ErrProcessDone
	}
	return p.cmd.Process.Signal(sig)
}

// kill ends the process, running or stopped, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only for one that is gone already
	<-p.done
}
