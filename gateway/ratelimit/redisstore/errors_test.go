package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// ambiguous are the kinds after which nobody knows whether something was charged.
// Corrupt is one of them where the reply is, see TestForeignValuesAreCorrupt for
// a value.
var ambiguous = map[string]bool{
	redisstore.KindTimeout: true, redisstore.KindLost: true, redisstore.KindCorrupt: true,
	redisstore.KindClosed: true, redisstore.KindCanceled: true, redisstore.KindOther: true,
}

// TestKinds brings about every kind of error: on real servers, and on a fake
// one where a real server cannot be brought to it at will.
func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	story := func(kind, how string, f func(t *testing.T) error) {
		t.Helper()
		t.Run(kind+"/"+how, func(t *testing.T) {
			err := f(t)
			if got := redisstore.Kind(err); got != kind {
				t.Errorf("kind %q, want %q: %v", got, kind, err)
			}
			if got := redisstore.Kind(fmt.Errorf("wrapped: %w", err)); got != kind {
				t.Errorf("wrapped: kind %q, want %q", got, kind)
			}
			if got := redisstore.Ambiguous(fmt.Errorf("wrapped: %w", err)); got != ambiguous[kind] {
				t.Errorf("ambiguous: %t, want %t: %v", got, ambiguous[kind], err)
			}
			seen[kind] = true
			t.Log(err)
		})
	}
	take := func(t *testing.T, s *redisstore.Store) error {
		t.Helper()
		_, err := s.Take(t.Context(), charges(perMinute(t), perDay(t)), nil)
		return err
	}
	server := func(args ...string) func(t *testing.T) error {
		return func(t *testing.T) error {
			srv := redistest.Start(t, args...)
			return take(t, at(t, srv.Addr()))
		}
	}
	answer := func(reply string) func(t *testing.T) error {
		return func(t *testing.T) error { return take(t, at(t, startFake(t, reply))) }
	}

	story(redisstore.KindRefused, "nobody listens", func(t *testing.T) error {
		srv := redistest.Start(t)
		srv.Kill()
		return take(t, at(t, srv.Addr()))
	})
	story(redisstore.KindRefused, "no such socket", func(t *testing.T) error {
		return take(t, open(t, redisstore.ClientOptions{
			Network: "unix", Address: filepath.Join(t.TempDir(), "none.sock"),
		}, redisstore.Options{Timeout: generous}))
	})
	story(redisstore.KindTimeout, "frozen", func(t *testing.T) error {
		srv := redistest.Start(t)
		srv.Freeze()
		return take(t, open(t, redisstore.ClientOptions{Address: srv.Addr()}, redisstore.Options{Timeout: 20 * time.Millisecond}))
	})
	story(redisstore.KindMaxClients, "full", answer("-ERR max number of clients reached\r\n"))
	// A server that is full says so before it is asked, and hangs up.
	full := func(t *testing.T) *redistest.Server {
		srv := redistest.Start(t)
		// Whoever says so is the one.
		if err := srv.Client(t).ConfigSet(t.Context(), "maxclients", "1").Err(); err != nil {
			t.Fatal(err)
		}
		return srv
	}
	story(redisstore.KindMaxClients, "really full", func(t *testing.T) error {
		return take(t, at(t, full(t).Addr()))
	})
	story(redisstore.KindMaxClients, "really full, with a password", func(t *testing.T) error {
		return take(t, open(t, redisstore.ClientOptions{Address: full(t).Addr(), Password: "secret"}, redisstore.Options{Timeout: generous}))
	})
	story(redisstore.KindAuth, "protected mode", func(t *testing.T) error {
		return take(t, at(t, serve(t, func(c net.Conn) {
			_, _ = c.Write([]byte("-DENIED Redis is running in protected mode because protected mode is enabled\r\n"))
		})))
	})
	story(redisstore.KindLost, "hangs up", func(t *testing.T) error {
		return take(t, at(t, serve(t, func(c net.Conn) {
			r := redisCommands(c)
			if _, err := r.next(); err != nil { // HELLO
				return
			}
			_, _ = c.Write([]byte("-ERR unknown command\r\n"))
			_, _ = r.next()
		})))
	})
	story(redisstore.KindPool, "all connections busy", func(t *testing.T) error {
		srv := redistest.Start(t)
		store := open(t, redisstore.ClientOptions{Address: srv.Addr(), PoolSize: 1, Timeout: 200 * time.Millisecond},
			redisstore.Options{Timeout: 200 * time.Millisecond})
		mustTake(t, store, charges(perDay(t)))
		srv.Freeze()
		// Of three at once, one holds the connection until its time is up; another
		// waits for it in vain.
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() {
				_, err := store.Take(context.Background(), charges(perDay(t)), nil)
				errs <- err
			}()
		}
		var pool error
		for range cap(errs) {
			if err := <-errs; redisstore.Kind(err) == redisstore.KindPool {
				pool = err
			} else if redisstore.Kind(err) != redisstore.KindTimeout {
				t.Errorf("want pool or timeout: %v", err)
			}
		}
		return pool
	})
	story(redisstore.KindReadOnly, "a replica", server("--replicaof", "127.0.0.1 1"))
	story(redisstore.KindClusterDown, "a replica without a primary", func(t *testing.T) error {
		return take(t, at(t, startFake(t, "-MASTERDOWN Link with MASTER is down\r\n")))
	})
	story(redisstore.KindClusterDown, "a cluster without slots", server("--cluster-enabled", "yes"))
	story(redisstore.KindMoved, "another node", answer("-MOVED 3999 127.0.0.1:1\r\n"))
	story(redisstore.KindOOM, "maxmemory", server("--maxmemory", "1kb", "--maxmemory-policy", "noeviction"))
	story(redisstore.KindLoading, "reading its data", answer("-LOADING Redis is loading the dataset in memory\r\n"))
	story(redisstore.KindAuth, "no password", server("--requirepass", "secret-one"))
	story(redisstore.KindAuth, "wrong password", func(t *testing.T) error {
		srv := redistest.Start(t, "--requirepass", "secret-one")
		err := take(t, open(t, redisstore.ClientOptions{Address: srv.Addr(), Password: "secret-two"}, redisstore.Options{Timeout: generous}))
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a secret: %v", err)
		}
		return err
	})
	story(redisstore.KindAuth, "password file gone", func(t *testing.T) error {
		srv := redistest.Start(t, "--requirepass", "secret-one")
		file := filepath.Join(t.TempDir(), "password")
		writeFile(t, file, "secret-one\n")
		store := open(t, redisstore.ClientOptions{Address: srv.Addr(), PasswordFile: file}, redisstore.Options{Timeout: generous})
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		return take(t, store)
	})
	for how, rules := range map[string][]string{
		"no scripts": {"~*", "+@all", "-@scripting"},
		"no keys":    {"~other:*", "+@all"},
		"no writes":  {"~*", "+@all", "-set"},
	} {
		story(redisstore.KindNoPerm, how, func(t *testing.T) error {
			srv := redistest.Start(t)
			set := append([]any{"acl", "setuser", "limiter", "on", ">pw"}, anys(rules)...)
			if err := srv.Client(t).Do(t.Context(), set...).Err(); err != nil {
				t.Fatal(err)
			}
			return take(t, open(t, redisstore.ClientOptions{Address: srv.Addr(), Username: "limiter", Password: "pw"},
				redisstore.Options{Timeout: generous}))
		})
	}
	story(redisstore.KindBusy, "an endless script", func(t *testing.T) error {
		srv := redistest.Start(t, "--lua-time-limit", "1")
		look := srv.Client(t)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			if err := look.Eval(t.Context(), "while true do end", nil).Err(); err == nil {
				t.Error("the endless script ended by itself")
			}
		})
		other := redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1})
		defer func() {
			if err := other.ScriptKill(context.Background()).Err(); err != nil {
				t.Errorf("script kill: %v", err)
			}
			_ = other.Close()
		}()
		for !redis.HasErrorPrefix(other.Ping(t.Context()).Err(), "BUSY") {
			if t.Context().Err() != nil {
				t.Fatal("the script never made the server busy")
			}
		}
		return take(t, at(t, srv.Addr()))
	})
	story(redisstore.KindMisconf, "cannot save", func(t *testing.T) error {
		dir := filepath.Join(t.TempDir(), "data")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		srv := redistest.Start(t, "--dir", dir, "--save", "3600 1", "--stop-writes-on-bgsave-error", "yes")
		look := srv.Client(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		look.BgSave(t.Context())
		for !strings.Contains(look.Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err") {
			if t.Context().Err() != nil {
				t.Fatal("the server keeps saving")
			}
		}
		return take(t, at(t, srv.Addr()))
	})
	story(redisstore.KindClock, "a time in no window", answer("-CLOCK 1800000000123457\r\n"))
	story(redisstore.KindNoScript, "forgets at once", answer("-NOSCRIPT No matching script. Please use EVAL.\r\n"))
	story(redisstore.KindClosed, "after Close", func(t *testing.T) error {
		srv := redistest.Start(t)
		store := at(t, srv.Addr())
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		return take(t, store)
	})
	story(redisstore.KindCanceled, "a probe that is called off", func(t *testing.T) error {
		srv := redistest.Start(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return at(t, srv.Addr()).Probe(ctx)
	})
	story(redisstore.KindOther, "anything else", answer("-ERR unknown command 'evalsha'\r\n"))
	for how, reply := range nonsense {
		story(redisstore.KindCorrupt, how, func(t *testing.T) error {
			err := answer(reply)(t)
			if redisstore.KeyFault(err) {
				t.Errorf("a server that talks nonsense is no fault of a key: %v", err)
			}
			return err
		})
	}

	for _, kind := range redisstore.Kinds() {
		if !seen[kind] {
			t.Errorf("no test brings about kind %q", kind)
		}
	}
	for kind := range seen {
		if !slices.Contains(redisstore.Kinds(), kind) {
			t.Errorf("kind %q is not among Kinds", kind)
		}
	}
	if got := redisstore.Kind(nil); got != "" {
		t.Errorf("Kind(nil) = %q", got)
	}
	if redisstore.Ambiguous(nil) || !redisstore.Ambiguous(errors.New("x")) {
		t.Error("want no error to be plain, and that of a stranger to be ambiguous")
	}
	if got := redisstore.Kind(errors.New("x")); got != redisstore.KindOther {
		t.Errorf("Kind of a stranger = %q", got)
	}
}

// nonsense are replies to a decision on two limits (20 and 100 at most) that the
// script never gives.
var nonsense = map[string]string{
	"a status":             "+OK\r\n",
	"nil":                  "*-1\r\n",
	"nil string":           "$-1\r\n",
	"a number":             ":1\r\n",
	"a web server":         "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
	"too few":              numbers(1, 19, 600000, 0),
	"none":                 numbers(),
	"too many":             numbers(1, 19, 600000, 0, 1, 99, 5, 0, 0),
	"not a number":         "*8\r\n+a\r\n+b\r\n+c\r\n+d\r\n+e\r\n+f\r\n+g\r\n+h\r\n",
	"too large":            "*8\r\n:99999999999999999999\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
	"a verdict of 2":       numbers(2, 19, 600000, 0, 1, 99, 5, 0),
	"negative remaining":   numbers(1, -1, 600000, 0, 1, 99, 5, 0),
	"more than the burst":  numbers(1, 21, 600000, 0, 1, 99, 5, 0),
	"more than the quota":  numbers(1, 19, 600000, 0, 1, 101, 5, 0),
	"negative reset":       numbers(1, 19, -5, 0, 1, 99, 5, 0),
	"allowed but wait":     numbers(1, 19, 5, 7, 1, 99, 5, 0),
	"a negative wait":      numbers(0, 0, 5, -2, 1, 99, 5, 0),
	"more than fits":       "*9223372036854775807\r\n",
	"a less than nil list": "*-7\r\n",
}

func numbers(ns ...int64) string {
	s := fmt.Sprintf("*%d\r\n", len(ns))
	for _, n := range ns {
		s += fmt.Sprintf(":%d\r\n", n)
	}
	return s
}

func anys(ss []string) []any {
	out := make([]any, len(ss))
	for i, s := range ss {
		out[i] = s
	}
	return out
}

// TestForeignValuesAreCorrupt: what we did not write under our keys is an error,
// stays as it is, and charges nothing else.
func TestForeignValuesAreCorrupt(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	const bucket, window = "rl:v1:{user:priya123}:plan/per-minute:tb/60", "rl:v1:{user:priya123}:plan/per-day:fw/86400"
	check := func(key, what string) {
		t.Helper()
		before := look.Dump(t.Context(), key).Val()
		cs := charges(perMinute(t), perDay(t))
		err := wantKind(t, store, cs, redisstore.KindCorrupt)
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s in %s: the error does not name the key: %v", what, key, err)
		}
		if !redisstore.KeyFault(err) {
			t.Errorf("%s in %s: not the fault of the key: %v", what, key, err)
		}
		if after := look.Dump(t.Context(), key).Val(); after != before {
			t.Errorf("%s in %s was changed", what, key)
		}
		if n := look.DBSize(t.Context()).Val(); n != 1 {
			t.Errorf("%s in %s: %d keys, want the planted one only", what, key, n)
		}
		look.FlushDB(t.Context())
		if ds := mustTake(t, store, cs); ds[0].Remaining != 19 || ds[1].Remaining != 99 {
			t.Errorf("after it was deleted: %+v", ds)
		}
		look.FlushDB(t.Context())
	}
	const (
		large = 1 << 53
		some  = 1234567
	)
	// Every field of a value, each with what it cannot be.
	wrong := func(good []float64, least ...float64) (values []string) {
		for i := range good {
			for _, bad := range []float64{least[i] - 1, good[i] + 0.5, large, math.NaN(), math.Inf(1), math.Inf(-1)} {
				value := slices.Clone(good)
				value[i] = bad
				values = append(values, doubles(value...))
			}
		}
		return values
	}
	plain, former := []float64{1, 2, 1, some, some}, []float64{5, 2, 1, 6, 3, 2}
	values := slices.Concat(
		[]string{
			"", "hello", "1", strings.Repeat("x", 39), strings.Repeat("x", 40), strings.Repeat("x", 41), strings.Repeat("\xff", 40),
			strings.Repeat("0", 40), doubles(plain[:4]...), doubles(1, 2, 1, some, some, 5),
			doubles(slices.Concat(plain, former, plain[:1])...), strings.Repeat("x", 88),
			doubles(1, 2, 1, some, some, 7, 2, 1, 6, 3, 2), // more than it began with
		},
		wrong(plain, 0, 1, 1, 0, 0),
		wrong(slices.Concat(plain, former), 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1),
	)
	for _, value := range values {
		look.Set(t.Context(), bucket, value, 0)
		check(bucket, fmt.Sprintf("%.100q", value))
	}
	for _, value := range []string{
		"", "hello", strings.Repeat("x", 16), doubles(1), doubles(1, 2, 3), doubles(-1, some), doubles(1, -2), doubles(large, 1),
		doubles(1, large), doubles(1.5, some), doubles(1, some+0.5), doubles(math.NaN(), some), doubles(1, math.Inf(1)),
	} {
		look.Set(t.Context(), window, value, 0)
		check(window, fmt.Sprintf("%q", value))
	}
	for _, key := range []string{bucket, window} {
		look.HSet(t.Context(), key, "a", 1)
		check(key, "a hash")
		look.RPush(t.Context(), key, "a")
		check(key, "a list")
		look.ZAdd(t.Context(), key, redis.Z{Member: "a"})
		check(key, "a sorted set")
	}
}

// TestTimesThatCannotBeAreCorrupt: a clock may have been ahead when it wrote, by up
// to a year; what lies beyond is no time of ours, under every algorithm.
func TestTimesThatCannotBeAreCorrupt(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	now := look.Time(t.Context()).Val().UnixMicro()
	for _, p := range everyAlgorithm(t, 100) {
		key := "rl:v1:{user:priya123}:" + p.Key()
		for _, c := range []struct {
			at   int64
			kind string
		}{
			{now + 365*24*hourMicros, ""},
			{now + 800*24*hourMicros, redisstore.KindCorrupt},
			{1 << 52, redisstore.KindCorrupt},
		} {
			when := float64(c.at)
			look.FlushDB(t.Context())
			switch p.Algorithm {
			case ratelimit.SlidingWindowLog:
				look.RPush(t.Context(), key, c.at)
			case ratelimit.SlidingWindowCounter:
				look.Set(t.Context(), key, doubles(1, 0, when), 0)
			case ratelimit.FixedWindow:
				look.Set(t.Context(), key, doubles(1, when), 0)
			default:
				look.Set(t.Context(), key, doubles(1, 2, 1, when, 0), 0)
			}
			_ = wantKind(t, store, charges(p), c.kind)
			if c.kind != "" && look.Del(t.Context(), key).Val() != 1 {
				t.Errorf("%s is gone", key)
			}
		}
	}
}

const hourMicros = 3600 * 1_000_000

// TestOddButWellFormedValues: a state that our numbers can hold, however odd, is
// decided by the rule, and the wait that results is a number.
func TestOddButWellFormedValues(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	const bucket, window = "rl:v1:{user:priya123}:plan/per-minute:tb/60", "rl:v1:{user:priya123}:plan/per-day:fw/86400"
	const large, half = 1<<53 - 1, 1 << 52
	ahead := float64(look.Time(t.Context()).Val().UnixMicro() + 365*24*hourMicros)
	for _, v := range [][2]string{
		{bucket, doubles(large, half, large, ahead, large)},
		{bucket, doubles(large, 1, 1, ahead, 0)},
		{bucket, doubles(large, large, 1, 0, large)},
		{bucket, doubles(0, 1, large, ahead, 0)},
		{bucket, doubles(half-1, half, 1, 0, 0)},
		{bucket, doubles(large, 1, 1, ahead, 0, large, 1, 1, large, 0, large)},
		{bucket, doubles(0, 1, 1, ahead, 0, 1, large, large, large, large, 1)},
		{bucket, doubles(large, 1, 1, 0, 0, 1, large, large, 1, 0, 1)},
		{window, doubles(large, ahead)},
		{window, doubles(0, ahead)},
	} {
		look.FlushDB(t.Context())
		look.Set(t.Context(), v[0], v[1], 0)
		for _, d := range mustTake(t, store, charges(perMinute(t), perDay(t))) {
			if d.Remaining < 0 || d.Remaining > 100 || d.Reset < 0 || d.RetryAfter < 0 || d.Allowed != (d.RetryAfter == 0) {
				t.Errorf("%s = %s: %+v", v[0], v[1], d)
			}
		}
	}
}

// TestNothingIsHalfWritten: a server that refuses writes refuses the whole list.
func TestNothingIsHalfWritten(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	cs := charges(perMinute(t), perDay(t))
	mustTake(t, store, cs)
	dump := func() string {
		return look.Get(t.Context(), "rl:v1:{user:priya123}:plan/per-minute:tb/60").Val() + " " +
			look.Get(t.Context(), "rl:v1:{user:priya123}:plan/per-day:fw/86400").Val()
	}
	before := dump()
	for kind, set := range map[string][2]string{
		redisstore.KindOOM: {"maxmemory", "1"},
	} {
		look.ConfigSet(t.Context(), set[0], set[1])
		_ = wantKind(t, store, cs, kind)
		if after := dump(); after != before {
			t.Errorf("%s: %q became %q", kind, before, after)
		}
	}
	look.ConfigSet(t.Context(), "maxmemory", "0")
	if ds := mustTake(t, store, cs); ds[1].Remaining != 98 || !ratelimit.Admitted(ds) {
		t.Errorf("afterwards: %+v", ds)
	}
}

func writeFile(t testing.TB, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
