package redisstore_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// open returns a store on client options o, closed when t is over.
func open(t testing.TB, co redisstore.ClientOptions, o redisstore.Options) *redisstore.Store {
	t.Helper()
	if co.Timeout == 0 {
		co.Timeout = o.Timeout
	}
	client, err := redisstore.NewClient(co)
	if err != nil {
		t.Fatal(err)
	}
	return storeOn(t, client, o)
}

// storeOn returns a store on client, closed when t is over.
func storeOn(t testing.TB, client redisstore.Client, o redisstore.Options) *redisstore.Store {
	t.Helper()
	store, err := redisstore.New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	return closed(t, store)
}

// closed closes store when t is over.
func closed(t testing.TB, store *redisstore.Store) *redisstore.Store {
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// at returns a store with a generous timeout on the server at addr.
func at(t testing.TB, addr string) *redisstore.Store {
	t.Helper()
	return open(t, redisstore.ClientOptions{Address: addr}, redisstore.Options{Timeout: generous})
}

func newPolicy(t testing.TB, spec ratelimit.Policy) *ratelimit.Policy {
	t.Helper()
	if spec.Name == "" {
		spec.Name = spec.Scope[strings.LastIndexByte(spec.Scope, '/')+1:]
	}
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func perMinute(t testing.TB) *ratelimit.Policy {
	t.Helper()
	return newPolicy(t, ratelimit.Policy{
		Scope: "plan/per-minute", Algorithm: ratelimit.TokenBucket, Quota: 100, Window: time.Minute, Burst: 20,
	})
}

func perDay(t testing.TB) *ratelimit.Policy {
	t.Helper()
	return newPolicy(t, ratelimit.Policy{
		Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow, Quota: 100, Window: 24 * time.Hour,
	})
}

// charges asks one unit of each policy for priya123.
func charges(ps ...*ratelimit.Policy) []ratelimit.Charge {
	cs := make([]ratelimit.Charge, len(ps))
	for i, p := range ps {
		cs[i] = ratelimit.Charge{Policy: p, Partition: "{user:priya123}", Caller: "{user:priya123}", Cost: 1}
	}
	return cs
}

// mustTake takes and ends the test on an error.
func mustTake(t testing.TB, s ratelimit.Store, cs []ratelimit.Charge) []ratelimit.Decision {
	t.Helper()
	ds, err := s.Take(t.Context(), cs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// wantKind takes and compares the kind of the error.
func wantKind(t testing.TB, s ratelimit.Store, cs []ratelimit.Charge, kind string) error {
	t.Helper()
	ds, err := s.Take(t.Context(), cs, nil)
	if got := redisstore.Kind(err); got != kind {
		t.Errorf("take: kind %q, want %q (%v)", got, kind, err)
	}
	if err != nil && len(ds) != 0 {
		t.Errorf("take: %d decisions beside an error", len(ds))
	}
	return err
}

// doubles returns numbers as the scripts store them.
func doubles(ns ...float64) string {
	var b []byte
	for _, n := range ns {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(n))
	}
	return string(b)
}

// stored returns the numbers that a script has stored.
func stored(t testing.TB, value string) (ns []int64) {
	t.Helper()
	if len(value)%8 != 0 {
		t.Fatalf("%q is no list of doubles", value)
	}
	for b := []byte(value); len(b) > 0; b = b[8:] {
		ns = append(ns, int64(math.Float64frombits(binary.LittleEndian.Uint64(b))))
	}
	return ns
}

// commandCalls returns how often each command was run, of commands that the
// server counts; those of the looking itself are left out.
func commandCalls(t testing.TB, c *redis.Client) map[string]int {
	t.Helper()
	info, err := c.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{}
	for line := range strings.Lines(info) {
		rest, ok := strings.CutPrefix(line, "cmdstat_")
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(rest, ":calls=")
		n, _, _ := strings.Cut(rest, ",")
		if name == "info" || strings.HasPrefix(name, "config") || strings.HasPrefix(name, "client") {
			continue
		}
		if calls[name], err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
	}
	return calls
}

func resetStats(t testing.TB, c *redis.Client) {
	t.Helper()
	if err := c.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// startFake returns the address of a server that answers every command but HELLO
// with reply, for what no real server can be brought to say at will.
func startFake(t testing.TB, reply string) (addr string) {
	t.Helper()
	return serve(t, func(c net.Conn) {
		r := redisCommands(c)
		for {
			command, err := r.next()
			if err != nil {
				return
			}
			out := reply
			if strings.EqualFold(command[0], "hello") {
				out = "-ERR unknown command 'hello'\r\n" // RESP 2 then
			}
			if _, err := c.Write([]byte(out)); err != nil {
				return
			}
		}
	})
}

// serve accepts connections on a free loopback port and hands each to handle,
// in a goroutine; all end with the test.
func serve(t testing.TB, handle func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			wg.Go(func() {
				defer func() { stop(); _ = c.Close() }()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// loseThirdReply passes commands on to a server and the replies back, but for
// each third one of a script, which it hangs up on.
func loseThirdReply(t *testing.T, addr string, client net.Conn, n *atomic.Int64) {
	up, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = up.Close() }()
	r := redisCommands(client)
	buf := make([]byte, 64<<10)
	for {
		command, err := r.next()
		if err != nil {
			return
		}
		request := fmt.Sprintf("*%d\r\n", len(command))
		for _, arg := range command {
			request += fmt.Sprintf("$%d\r\n%s\r\n", len(arg), arg)
		}
		if _, err := io.WriteString(up, request); err != nil {
			return
		}
		size, err := up.Read(buf) // small replies come whole
		if err != nil {
			return
		}
		if command[0] == "evalsha" && n.Add(1)%3 == 0 {
			return // charged, and the answer is lost
		}
		if _, err := client.Write(buf[:size]); err != nil {
			return
		}
	}
}

// isChargedOnceLostOrNot asks store, which reaches srv through loseThirdReply,
// and wants every call to be charged once.
func isChargedOnceLostOrNot(t *testing.T, store *redisstore.Store, srv *redistest.Server) {
	t.Helper()
	cs := charges(perDay(t))
	mustTake(t, at(t, srv.Addr()), cs) // the script is known; 1 used

	const calls = 60
	lost := 0
	for range calls {
		_, err := store.Take(t.Context(), cs, nil)
		switch redisstore.Kind(err) {
		case "":
		case redisstore.KindLost:
			lost++
		default:
			t.Fatal(err)
		}
	}
	if lost != calls/3 {
		t.Errorf("%d of %d calls were lost; want %d", lost, calls, calls/3)
	}
	if got, want := mustTake(t, at(t, srv.Addr()), cs)[0].Remaining, int64(100-1-calls-1); got != want {
		t.Errorf("remaining %d, want %d: every call is charged once, lost or not", got, want)
	}
}
