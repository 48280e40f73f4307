package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bouncer/gateway/auth"
	"bouncer/gateway/config"
)

// binary is the gateway under test, built once by TestMain.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gateway-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "gateway")
	args := []string{"build", "-o", binary}
	if raceEnabled {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "bouncer/cmd/gateway")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the gateway: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// patience bounds every wait for an event. It is generous, because it is only
// ever used up by a test that fails.
const patience = 20 * time.Second

// eventually waits for ok, asking every few milliseconds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A site is a directory with one configuration.
type site struct {
	t       testing.TB
	dir     string
	env     []string
	program string     // what it runs; empty: the gateway as it is
	sockets []*os.File // that it inherits, from file descriptor 3 on
}

func newSite(t testing.TB) *site {
	return &site{t: t, dir: t.TempDir()}
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// write puts a file of the configuration into place in one step, as an editor
// does, so that a running gateway never sees half of it.
func (s *site) write(name, content string) {
	s.t.Helper()
	tmp := s.path("." + name + ".new")
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(tmp, s.path(name)); err != nil {
		s.t.Fatal(err)
	}
}

// A result is what a command of the gateway left behind.
type result struct {
	code           int
	stdout, stderr string
}

// command runs a command of the gateway on this site's files to its end.
func (s *site) command(args ...string) result {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), s.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		s.t.Fatalf("gateway %v did not end", args)
	}
	if err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// key makes an API key as gateway keys new with args does, and returns it. The usual
// ones are made here: a process for each takes longer than many a test.
func (s *site) key(args ...string) string {
	s.t.Helper()
	var k config.Key
	fields := map[string]*string{"-user": &k.User, "-plan": &k.Plan, "-id": &k.ID, "-tenant": &k.Tenant}
	for i := 0; i < len(args); i += 2 {
		field := fields[args[i]]
		if field == nil || i+1 == len(args) {
			return s.keyByCommand(args...)
		}
		*field = args[i+1]
	}
	key, id, digest, err := auth.NewKey(rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	if k.SHA256 = digest; k.ID == "" {
		k.ID = id
	}
	if err := config.AddKey(s.path("keys.yaml"), k); err != nil {
		s.t.Fatal(err)
	}
	return key
}

// keyByCommand makes an API key with gateway keys new and returns it.
func (s *site) keyByCommand(args ...string) string {
	s.t.Helper()
	r := s.command(append([]string{"keys", "new", "-file", "keys.yaml"}, args...)...)
	if r.code != 0 {
		s.t.Fatalf("gateway keys new %v: exit %d\n%s", args, r.code, r.stderr)
	}
	return strings.TrimSuffix(r.stdout, "\n")
}

// A gateway is a running process of the program under test.
type gateway struct {
	t     testing.TB
	cmd   *exec.Cmd
	url   string // of listen.http
	admin string // of the admin listener
	ended chan struct{}

	mu     sync.Mutex
	lines  []map[string]any // what it logged
	raw    bytes.Buffer     // standard output as it came
	stderr lockedBuffer
}

// A lockedBuffer can be read while it is written to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs the gateway on this site's files until the test ends, and returns
// once it listens. The configuration must listen on port 0.
func (s *site) start() *gateway {
	s.t.Helper()
	return s.startWith()
}

// startWith is start with further arguments of gateway run.
func (s *site) startWith(args ...string) *gateway {
	s.t.Helper()
	g := s.launch(args...)
	eventually(s.t, "the gateway says that it serves", func() bool {
		select {
		case <-g.ended:
			s.t.Fatalf("the gateway ended instead of serving:\n%s%s", g.output(), g.stderr.String())
		default:
		}
		return g.logged("serving") != nil
	})
	for _, line := range g.all("listening") {
		address, _ := line["address"].(string)
		switch line["for"] {
		case "http":
			g.url = "http://" + address
		case "admin":
			g.admin = "http://" + address
		}
	}
	return g
}

// launch starts the process and waits for nothing.
func (s *site) launch(args ...string) *gateway {
	s.t.Helper()
	g := &gateway{t: s.t, ended: make(chan struct{})}
	program := s.program
	if program == "" {
		program = binary
	}
	g.cmd = exec.Command(program, append([]string{"run"}, args...)...)
	g.cmd.Dir = s.dir
	g.cmd.Env = append(os.Environ(), s.env...)
	g.cmd.ExtraFiles = s.sockets
	g.cmd.Stderr = &g.stderr
	stdout, err := g.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := g.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(g.ended)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var line map[string]any
			err := json.Unmarshal(lines.Bytes(), &line)
			g.mu.Lock()
			g.raw.Write(lines.Bytes())
			g.raw.WriteByte('\n')
			if err == nil {
				g.lines = append(g.lines, line)
			}
			g.mu.Unlock()
		}
		_ = g.cmd.Wait() // its exit code is asked for by those who care
	}()
	s.t.Cleanup(func() {
		_ = g.cmd.Process.Kill()
		<-g.ended
		if s.t.Failed() {
			s.t.Logf("the gateway's log:\n%s%s", g.output(), g.stderr.String())
		}
		if strings.Contains(g.stderr.String(), "DATA RACE") {
			s.t.Errorf("the gateway has a data race:\n%s", g.stderr.String())
		}
	})
	return g
}

func (g *gateway) output() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.raw.String()
}

// all returns the log lines with this message.
func (g *gateway) all(msg string) (found []map[string]any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, line := range g.lines {
		if line["msg"] == msg {
			found = append(found, line)
		}
	}
	return found
}

// logged returns the last log line with this message, nil if there is none yet.
func (g *gateway) logged(msg string) map[string]any {
	found := g.all(msg)
	if len(found) == 0 {
		return nil
	}
	return found[len(found)-1]
}

// requestLine waits for the access-log line of the request with this id.
func (g *gateway) requestLine(id string) map[string]any {
	g.t.Helper()
	var found map[string]any
	eventually(g.t, "the access-log line of request "+id, func() bool {
		for _, line := range g.all("request") {
			if line["request_id"] == id {
				found = line
			}
		}
		return found != nil
	})
	return found
}

func (g *gateway) signal(sig syscall.Signal) {
	g.t.Helper()
	if err := g.cmd.Process.Signal(sig); err != nil {
		g.t.Fatal(err)
	}
}

// wait returns the exit code once the process has ended.
func (g *gateway) wait() int {
	g.t.Helper()
	select {
	case <-g.ended:
	case <-time.After(patience):
		g.t.Fatal("the gateway did not end")
	}
	return g.cmd.ProcessState.ExitCode()
}

// stop ends the gateway as an orchestrator does and wants exit code 0.
func (g *gateway) stop() {
	g.t.Helper()
	g.signal(syscall.SIGTERM)
	if code := g.wait(); code != 0 {
		g.t.Fatalf("exit code %d after SIGTERM", code)
	}
}

// reload sends SIGHUP and waits for the outcome, which it returns.
func (g *gateway) reload() (applied bool) {
	g.t.Helper()
	good, bad := len(g.all(reloadApplied)), len(g.all(reloadRejected))
	g.signal(syscall.SIGHUP)
	eventually(g.t, "a word about the reload", func() bool {
		applied = len(g.all(reloadApplied)) > good
		return applied || len(g.all(reloadRejected)) > bad
	})
	return applied
}

// What the gateway logs about a reload.
const (
	reloadApplied  = "the new configuration is in force"
	reloadRejected = "the new configuration is not used; the one in force stays"
)

// An answer is a response, read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// field returns a field by the name it has on the wire or any other spelling.
func (a answer) field(name string) string { return a.header.Get(name) }

// problem returns the members of a problem+json body.
func (a answer) problem(t testing.TB) map[string]any {
	t.Helper()
	if ct := a.field("Content-Type"); ct != "application/problem+json" {
		t.Fatalf("Content-Type %q, want application/problem+json; body %q", ct, a.body)
	}
	var p map[string]any
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatalf("not JSON: %v: %q", err, a.body)
	}
	return p
}

var client = &http.Client{
	Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	},
	Timeout: patience,
}

// send makes one request; fields are name, value, name, value, …
func send(t testing.TB, method, url string, body io.Reader, fields ...string) answer {
	t.Helper()
	a, err := trySend(method, url, body, fields...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func trySend(method, url string, body io.Reader, fields ...string) (answer, error) {
	r, err := http.NewRequest(method, url, body)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(fields); i += 2 {
		if fields[i] == "Host" {
			r.Host = fields[i+1]
			continue
		}
		r.Header.Add(fields[i], fields[i+1])
	}
	res, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(b)}, err
}

func (g *gateway) get(path string, fields ...string) answer {
	g.t.Helper()
	return send(g.t, http.MethodGet, g.url+path, nil, fields...)
}

// metrics returns the samples of a scrape by their full text, labels included:
// metrics()[`gateway_requests_total{code="200",method="GET",route="weather"}`].
func (g *gateway) metrics() map[string]string {
	g.t.Helper()
	samples := map[string]string{}
	a := send(g.t, http.MethodGet, g.admin+"/metrics", nil)
	for line := range strings.Lines(a.body) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if i := strings.LastIndexByte(strings.TrimSpace(line), ' '); i > 0 {
			samples[line[:i]] = strings.TrimSpace(line[i+1:])
		}
	}
	return samples
}

// An upstream is an API that the gateway stands in front of. It records what
// reaches it.
type upstream struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
}

// newUpstream serves h, or a small JSON answer if h is nil.
func newUpstream(t testing.TB, h http.HandlerFunc) *upstream {
	u := &upstream{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.requests = append(u.requests, r.Clone(context.WithoutCancel(r.Context())))
		u.mu.Unlock()
		if h != nil {
			h(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	t.Cleanup(u.Close)
	return u
}

// count returns how many requests reached the upstream.
func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.requests)
}

// last returns the last request that reached the upstream.
func (u *upstream) last(t testing.TB) *http.Request {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.requests) == 0 {
		t.Fatal("no request reached the upstream")
	}
	return u.requests[len(u.requests)-1]
}

// deadAddress is an address on which nobody listens, and nobody else can before the
// test has ended: connections to it are refused.
func deadAddress(t testing.TB) string {
	t.Helper()
	address, _ := sleepingAddress(t)
	return address
}

// sleepingAddress is a deadAddress until wake is called, and then that of the listener.
func sleepingAddress(t testing.TB) (address string, wake func() net.Listener) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "a bound socket")
	t.Cleanup(func() { _ = f.Close() })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	own, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address = fmt.Sprintf("127.0.0.1:%d", own.(*syscall.SockaddrInet4).Port)
	return address, func() net.Listener {
		if err := syscall.Listen(fd, 128); err != nil {
			t.Fatal(err)
		}
		l, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
}
