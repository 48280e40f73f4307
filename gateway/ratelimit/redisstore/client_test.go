package redisstore_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// slack is what a busy test machine may add to a timeout. The settings that
// these tests are about would, if they were wrong, add 3 s and more.
const slack = 2 * time.Second

// TestFrozenServerHoldsNobody: a server that accepts connections and says
// nothing. Every caller is back when its time is up, new connections included,
// and no goroutine stays.
func TestFrozenServerHoldsNobody(t *testing.T) {
	srv := redistest.Start(t)
	const timeout = 50 * time.Millisecond
	store := open(t, redisstore.ClientOptions{Address: srv.Addr(), PoolSize: 40}, redisstore.Options{Timeout: timeout})
	cs := charges(newPolicy(t, ratelimit.Policy{
		Scope: "plan/wide", Algorithm: ratelimit.FixedWindow, Quota: 1_000_000, Window: time.Hour,
	}))
	untilTaken(t, store, cs)
	before := runtime.NumGoroutine()

	srv.Freeze()
	const callers, each = 100, 5
	var mu sync.Mutex
	kinds := map[string]int{}
	var longest time.Duration
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				begun := time.Now()
				_, err := store.Take(context.Background(), cs, nil)
				took := time.Since(begun)
				mu.Lock()
				kinds[redisstore.Kind(err)]++
				longest = max(longest, took)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("longest %s, %v", longest, kinds)
	if longest > timeout+slack {
		t.Errorf("a caller waited %s; want about %s", longest, timeout)
	}
	if n := kinds[redisstore.KindTimeout] + kinds[redisstore.KindPool]; n != callers*each {
		t.Errorf("errors: %v; want timeouts and pool waits only", kinds)
	}

	srv.Thaw()
	d := untilTaken(t, store, cs)
	// What was sent before the freeze ended may have been charged; once at most.
	if used := 1_000_000 - d.Remaining; used > callers*each+2+10 {
		t.Errorf("%d units used by %d calls", used, callers*each)
	}
	// The goroutines of dials that were given up end with their own timeout.
	for deadline := time.Now().Add(generous); runtime.NumGoroutine() > before+5; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}

// TestRefusingServerCostsNothing: each call learns at once that nobody listens,
// and the first that comes after the server is back succeeds.
func TestRefusingServerCostsNothing(t *testing.T) {
	srv := redistest.Start(t)
	store := open(t, redisstore.ClientOptions{Address: srv.Addr(), PoolSize: 8, Timeout: generous}, redisstore.Options{Timeout: generous})
	cs := charges(perMinute(t))
	mustTake(t, store, cs)
	srv.Kill()

	// Connections that the killed server has closed are noticed first.
	for {
		_, err := store.Take(t.Context(), cs, nil)
		if kind := redisstore.Kind(err); kind == redisstore.KindRefused {
			break
		} else if kind != redisstore.KindLost {
			t.Fatalf("after the kill: kind %q, %v", kind, err)
		}
	}
	// More of them than the pool has places, so that go-redis has stopped dialling.
	begun := time.Now()
	for range 50 {
		_ = wantKind(t, store, cs, redisstore.KindRefused)
	}
	if took := time.Since(begun); took > slack {
		t.Errorf("50 refused calls took %s", took)
	}

	srv.Restart()
	back := time.Now()
	d := untilTaken(t, store, cs)
	t.Logf("served again %s after the restart", time.Since(back))
	if d.Remaining != 19 {
		t.Errorf("remaining %d in a server that restarted empty; want 19", d.Remaining)
	}
}

// untilTaken asks until the store answers. Only asking shows that a server is
// back, so it polls.
func untilTaken(t testing.TB, s ratelimit.Store, cs []ratelimit.Charge) ratelimit.Decision {
	t.Helper()
	for deadline := time.Now().Add(generous); ; time.Sleep(2 * time.Millisecond) {
		ds, err := s.Take(t.Context(), cs, nil)
		if err == nil {
			return ds[0]
		}
		if time.Now().After(deadline) {
			t.Fatalf("not back after %s: %v", generous, err)
		}
	}
}

// TestUnixSocket: the same over a socket, without the network.
func TestUnixSocket(t *testing.T) {
	srv := redistest.Start(t)
	store := open(t, redisstore.ClientOptions{Network: "unix", Address: srv.Socket()}, redisstore.Options{Timeout: generous})
	if d := mustTake(t, store, charges(perMinute(t)))[0]; d.Remaining != 19 {
		t.Errorf("decision: %+v", d)
	}
}

// TestDatabaseAndPrefix: what has another number or prefix is apart.
func TestDatabaseAndPrefix(t *testing.T) {
	srv := redistest.Start(t)
	for _, s := range []*redisstore.Store{
		at(t, srv.Addr()),
		open(t, redisstore.ClientOptions{Address: srv.Addr(), DB: 3}, redisstore.Options{Timeout: generous}),
		open(t, redisstore.ClientOptions{Address: srv.Addr()}, redisstore.Options{Timeout: generous, KeyPrefix: "staging.rl"}),
	} {
		if d := mustTake(t, s, charges(perMinute(t)))[0]; d.Remaining != 19 {
			t.Errorf("decision: %+v", d)
		}
	}
}

// TestPasswordsAreRawText: what would have to be encoded in a URL is taken as it
// is, given directly and through a file, for the default user and for another.
func TestPasswordsAreRawText(t *testing.T) {
	srv := redistest.Start(t)
	for i, password := range []string{
		"p@ss", "a:b", "a/b", "a#b", "a+b=", "100%", "a%40b", "pa$$word", "q!#@/er", " with spaces ", "línea\nbreak",
	} {
		user := fmt.Sprintf("user-%d@acme", i)
		admin := srv.Client(t)
		if err := admin.Do(t.Context(), "acl", "setuser", user, "on", ">"+password, "~rl:*", "+@all").Err(); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "password")
		writeFile(t, file, password+"\n")
		for _, o := range []redisstore.ClientOptions{
			{Username: user, Password: password},
			{Username: user, PasswordFile: file},
		} {
			o.Address = srv.Addr()
			if err := open(t, o, redisstore.Options{Timeout: generous}).Probe(t.Context()); err != nil {
				t.Errorf("%q: %v", password, err)
			}
		}
	}
}

// TestPasswordFileIsReadForEachConnection: a changed password is used by the
// next connection, and those that are open stay.
func TestPasswordFileIsReadForEachConnection(t *testing.T) {
	srv := redistest.Start(t, "--requirepass", "first")
	file := filepath.Join(t.TempDir(), "password")
	writeFile(t, file, "first\n")
	store := open(t, redisstore.ClientOptions{Address: srv.Addr(), PasswordFile: file}, redisstore.Options{Timeout: generous})
	cs := charges(perMinute(t))
	mustTake(t, store, cs)

	admin := srv.Client(t)
	if err := admin.ConfigSet(t.Context(), "requirepass", "second").Err(); err != nil {
		t.Fatal(err)
	}
	mustTake(t, store, cs) // on the open connection
	writeFile(t, file, "second")
	if err := admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := store.Take(t.Context(), cs, nil)
		if err == nil {
			break
		}
		if kind := redisstore.Kind(err); kind != redisstore.KindLost { // the killed one
			t.Fatalf("after the change: %v", err)
		}
	}
}

// TestTLS: the connection is encrypted and the server's name is checked.
func TestTLS(t *testing.T) {
	srv := redistest.Start(t)
	// net/http/httptest has a certificate for 127.0.0.1 at hand.
	web := httptest.NewUnstartedServer(http.NotFoundHandler())
	web.StartTLS()
	certificates, authority := web.TLS.Certificates, web.Certificate()
	web.Close()
	front := serve(t, func(c net.Conn) {
		up, err := net.Dial("tcp", srv.Addr())
		if err != nil {
			t.Error(err)
			return
		}
		secure := tls.Server(c, &tls.Config{Certificates: certificates})
		go func() {
			_, _ = io.Copy(up, secure)
			_ = up.Close()
		}()
		_, _ = io.Copy(secure, up)
	})
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	store := open(t, redisstore.ClientOptions{Address: front, TLS: &tls.Config{RootCAs: pool}}, redisstore.Options{Timeout: generous})
	mustTake(t, store, charges(perMinute(t)))

	for name, config := range map[string]*tls.Config{
		"unknown authority": {RootCAs: x509.NewCertPool()},
		"another name":      {RootCAs: pool, ServerName: "redis.internal"},
	} {
		store := open(t, redisstore.ClientOptions{Address: front, TLS: config}, redisstore.Options{Timeout: generous})
		if err := store.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestProbeCallsOnceWhereEverybodyIsHungUpOn: gateways that wait for their store
// are no storm of connections.
func TestProbeCallsOnceWhereEverybodyIsHungUpOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			calls.Add(1)
			_ = c.Close()
		}
	}()
	defer func() {
		_ = l.Close()
		<-done
	}()
	store := at(t, l.Addr().String())
	for range 10 {
		if err := store.Probe(t.Context()); err == nil {
			t.Fatal("a server that hangs up passes for well")
		}
	}
	if n := calls.Load(); n > 10 {
		t.Errorf("%d connections of 10 probes", n)
	}
}

// TestProbeWritesWhatADecisionWrites: one script call with a write, so that a
// server that takes no writes does not pass for well.
func TestProbeWritesWhatADecisionWrites(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	if err := store.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	resetStats(t, look)
	for range 100 {
		if err := store.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := commandCalls(t, look); got["evalsha"] != 100 || got["set"] != 100 {
		t.Errorf("commands of 100 probes: %v", got)
	}
	look.ConfigSet(t.Context(), "maxmemory", "1")
	if err := store.Probe(t.Context()); redisstore.Kind(err) != redisstore.KindOOM {
		t.Errorf("probe of a full server: %v", err)
	}
}

// TestClientOptionsSayWhatIsWrong: every mistake names its field, and none shows
// a password.
func TestClientOptionsSayWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	empty, large := filepath.Join(dir, "empty"), filepath.Join(dir, "large")
	writeFile(t, empty, "\n")
	writeFile(t, large, strings.Repeat("hunter2", 10_000))
	const there = "127.0.0.1:1"
	for _, c := range []struct {
		options redisstore.ClientOptions
		want    string
	}{
		{redisstore.ClientOptions{}, "redis client: address: want host:port, or the path of a socket"},
		{redisstore.ClientOptions{Address: "localhost"}, `redis client: address: want host:port, got "localhost"`},
		{redisstore.ClientOptions{Address: there, Network: "udp"}, `redis client: network: want tcp or unix, got "udp"`},
		{redisstore.ClientOptions{Address: there, DB: -1}, "redis client: db: want 0 or more, got -1"},
		{redisstore.ClientOptions{Address: there, Timeout: time.Microsecond}, "redis client: timeout: want 1ms or more, got 1µs"},
		{redisstore.ClientOptions{Address: there, PoolSize: -1}, "redis client: pool size: want 1 or more, got -1"},
		{redisstore.ClientOptions{Address: there, Username: "x"}, "redis client: username: want a password or a password file beside it"},
		{redisstore.ClientOptions{Address: there, Password: "hunter2", PasswordFile: "f"}, "redis client: password and password file: want at most one of them"},
		{redisstore.ClientOptions{Address: there, PasswordFile: dir + "/none"}, "redis client: read the password: open " + dir + "/none: no such file or directory"},
		{redisstore.ClientOptions{Address: there, PasswordFile: empty}, "redis client: read the password: " + empty + " is empty"},
		{redisstore.ClientOptions{Address: there, PasswordFile: large}, "redis client: read the password: " + large + " is longer than 65536 bytes; is it the right file?"},
	} {
		_, err := redisstore.NewClient(c.options)
		if err == nil || err.Error() != c.want {
			t.Errorf("%+v:\n got %v\nwant %s", c.options, err, c.want)
		}
	}
}

// TestOptionsSayWhatIsWrong is the same for the store.
func TestOptionsSayWhatIsWrong(t *testing.T) {
	client, err := redisstore.NewClient(redisstore.ClientOptions{Address: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for want, o := range map[string]redisstore.Options{
		`redis store: key prefix: want letters, digits, _, - and . only, got "a{b}"`: {KeyPrefix: "a{b}"},
		`redis store: key prefix: want letters, digits, _, - and . only, got "a:b"`:  {KeyPrefix: "a:b"},
		"redis store: timeout: want 1ms or more, got -1s":                            {Timeout: -time.Second},
	} {
		if _, err := redisstore.New(client, o); err == nil || err.Error() != want {
			t.Errorf("%+v:\n got %v\nwant %s", o, err, want)
		}
	}
	if _, err := redisstore.New(nil, redisstore.Options{}); err == nil {
		t.Error("no client, no error")
	}
}

// TestScriptsCarryTheirComments: what is in the lua files can be read there.
func TestScriptsCarryTheirComments(t *testing.T) {
	files, err := filepath.Glob("lua/*.lua")
	if err != nil || len(files) != 13 {
		t.Fatalf("lua files: %v, %v", files, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		head := "-- " + strings.TrimSuffix(filepath.Base(name), ".lua") + ": "
		if !strings.HasPrefix(string(b), head) {
			t.Errorf("%s does not begin with %q", name, head)
		}
		for _, word := range []string{"cjson", "tostring", "#!lua"} {
			// cjson and tostring lose digits of a time in µs; servers before 7 do
			// not know the first line.
			if slices.Contains(strings.Fields(string(b)), word) || strings.Contains(string(b), word+"(") {
				t.Errorf("%s uses %s", name, word)
			}
		}
	}
}
