package rediskeys_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/auth"
	"bouncer/gateway/auth/rediskeys"
)

// A fake is a Redis with one hash, which counts what it is asked.
type fake struct {
	mu     sync.Mutex
	fields map[string]string
	err    error
	takes  time.Duration // per answer
	asked  int
}

// Process implements rediskeys.Client.
func (f *fake) Process(ctx context.Context, cmd redis.Cmder) error {
	args := cmd.Args()
	if len(args) != 3 || args[0] != "hget" || args[1] != "rl:v1:{keys}:portal" {
		return fmt.Errorf("asked %v", args)
	}
	f.mu.Lock()
	f.asked++
	value, ok := f.fields[args[2].(string)]
	err, takes := f.err, f.takes
	f.mu.Unlock()
	if takes > 0 {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch {
	case err != nil:
		return err
	case !ok:
		return redis.Nil
	}
	cmd.(*redis.StringCmd).SetVal(value)
	return nil
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// count is how often it was asked since the last count.
func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.asked
	f.asked = 0
	return n
}

// read takes a value for the user's name.
func read(_ [32]byte, value []byte) (auth.Key, error) {
	if strings.HasPrefix(string(value), "bad") {
		return auth.Key{}, errors.New("no name")
	}
	return auth.Key{ID: "k-" + string(value), User: string(value)}, nil
}

func digestOf(n byte) (d [32]byte) {
	d[0], d[31] = n, 1
	return d
}

func field(n byte) string { d := digestOf(n); return hex.EncodeToString(d[:]) }

type told struct {
	mu      sync.Mutex
	refused []string
	away    []string
}

func newTable(t testing.TB, f *fake, log *told, size int) *rediskeys.Table {
	table, err := rediskeys.New(f, rediskeys.Options{
		Hash: "rl:v1:{keys}:portal", Read: read, Timeout: 50 * time.Millisecond, Size: size,
		Refused: func(digest string, err error) {
			log.mu.Lock()
			defer log.mu.Unlock()
			log.refused = append(log.refused, digest+" "+err.Error())
		},
		Away: func(err error) {
			log.mu.Lock()
			defer log.mu.Unlock()
			log.away = append(log.away, fmt.Sprint(err))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// look is what a look-up finds, in a word.
func look(table *rediskeys.Table, n byte, onlyKnown bool) string {
	e, err := table.Lookup(context.Background(), digestOf(n), onlyKnown)
	switch {
	case errors.Is(err, auth.ErrKeysUnavailable):
		return "unavailable"
	case err != nil:
		return err.Error()
	case e == nil:
		return "none"
	}
	return "found"
}

// run is a test in a bubble, where time passes only when everybody waits.
func run(t *testing.T, test func(t *testing.T, f *fake, table *rediskeys.Table, want func(what string, n byte, found string, asked int))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{fields: map[string]string{field(1): "one", field(2): "two"}}
		table := newTable(t, f, &told{}, 0)
		test(t, f, table, func(what string, n byte, found string, asked int) {
			t.Helper()
			got := look(table, n, false)
			synctest.Wait()
			if got != found {
				t.Errorf("%s: %s, want %s", what, got, found)
			}
			if n := f.count(); n != asked {
				t.Errorf("%s: Redis was asked %d times, want %d", what, n, asked)
			}
		})
	})
}

// E16: a revoked key ends within Fresh, whether it is in use or idle, and comes back
// within Unknown.
func TestE16RevokedKeyEndsWithinFresh(t *testing.T) {
	run(t, func(t *testing.T, f *fake, _ *rediskeys.Table, want func(string, byte, string, int)) {
		want("the first use", 1, "found", 1)
		want("the second", 1, "found", 0)
		time.Sleep(rediskeys.Again - 1)
		want("just before it is asked for again", 1, "found", 0)
		f.set(func() { delete(f.fields, field(1)) })
		time.Sleep(time.Nanosecond)
		want("revoked, and asked for in the background", 1, "found", 1)
		want("the one after", 1, "none", 0)

		want("another", 2, "found", 1)
		f.set(func() { delete(f.fields, field(2)) })
		time.Sleep(rediskeys.Fresh)
		want("revoked while it was idle", 2, "none", 1)
		f.set(func() { f.fields[field(2)] = "two" })
		want("put back, a moment later", 2, "none", 0)
		time.Sleep(rediskeys.Unknown)
		want("put back", 2, "found", 1)
	})
}

// An unknown digest costs one question a second, and what is only to be recognised
// costs none.
func TestAnUnknownKeyCostsOneQuestion(t *testing.T) {
	run(t, func(t *testing.T, f *fake, table *rediskeys.Table, want func(string, byte, string, int)) {
		if got := look(table, 1, true); got != "none" || f.count() != 0 {
			t.Errorf("not known: %s", got)
		}
		f.takes = 10 * time.Millisecond
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if got := look(table, 9, false); got != "none" {
					t.Errorf("unknown: %s", got)
				}
			})
		}
		all.Wait()
		if n := f.count(); n != 1 {
			t.Errorf("50 at the same time asked %d times", n)
		}
		want("once more", 9, "none", 0)
	})
}

// While Redis is away known keys hold for Hold, others cannot be looked up, and nobody
// waits twice.
func TestWhileRedisIsAwayKnownKeysHold(t *testing.T) {
	run(t, func(t *testing.T, f *fake, _ *rediskeys.Table, want func(string, byte, string, int)) {
		want("before", 1, "found", 1)
		f.set(func() { f.err = errors.New("away") })
		want("one that is not known", 2, "unavailable", 1)
		want("at once again", 2, "unavailable", 0)
		time.Sleep(5 * time.Second)
		want("known, the first to find out", 1, "found", 1)
		want("known, a moment later", 1, "found", 0)
		time.Sleep(rediskeys.Hold - 6*time.Second)
		want("known, shortly before the end", 1, "found", 1)
		time.Sleep(time.Second)
		want("known, at the end", 1, "unavailable", 1)
		f.set(func() { f.err = nil })
		time.Sleep(2 * time.Second)
		want("back", 1, "found", 1)
	})
}

// A Redis that does not answer is waited for no longer than Timeout, and a caller that
// leaves waits no longer than that.
func TestTheWaitIsBounded(t *testing.T) {
	run(t, func(t *testing.T, f *fake, table *rediskeys.Table, want func(string, byte, string, int)) {
		f.takes = time.Hour
		began := time.Now()
		want("a slow Redis", 1, "unavailable", 1)
		if d := time.Since(began); d != 50*time.Millisecond {
			t.Errorf("it took %s", d)
		}
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		began = time.Now()
		if _, err := table.Lookup(ctx, digestOf(1), false); !errors.Is(err, auth.ErrKeysUnavailable) || time.Since(began) != time.Millisecond {
			t.Errorf("a caller that left: %v after %s", err, time.Since(began))
		}
		time.Sleep(time.Second) // the question ends
	})
}

// A value that is no key opens nothing and is told once, by eight digits; so is one that
// another configuration does not take.
func TestAMalformedValueIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("x", 1<<15)
		f := &fake{fields: map[string]string{field(1): "bad secret", field(2): "two", field(3): long, field(4): " "}}
		log := &told{}
		table := newTable(t, f, log, 0)
		for range 5 {
			for n, want := range []string{"none", "found", "none", "none"} {
				if got := look(table, byte(n+1), false); got != want {
					t.Errorf("value %d: %s, want %s", n+1, got, want)
				}
			}
			time.Sleep(3 * time.Second)
		}
		if len(log.refused) != 3 || !strings.HasPrefix(log.refused[0], "01000000 no name") || strings.Contains(fmt.Sprint(log.refused), "secret") {
			t.Errorf("told: %.200q", log.refused)
		}
		table.SetReader(func([32]byte, []byte) (auth.Key, error) { return auth.Key{}, errors.New("no such plan") })
		if got := look(table, 2, false); got != "none" || len(log.refused) != 4 {
			t.Errorf("by another reader: %s, %q", got, log.refused)
		}
		table.SetReader(read)
		if got := look(table, 2, false); got != "found" {
			t.Errorf("by the first reader again: %s", got)
		}
	})
}

// Neither memory grows beyond its size.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{fields: map[string]string{}}
		for n := range byte(100) {
			f.fields[field(n)] = fmt.Sprintf("user-%d", n)
		}
		table := newTable(t, f, &told{}, 10)
		for n := range byte(200) {
			look(table, n, false)
		}
		f.count()
		for n := byte(100); n > 90; n-- { // the newest ten of each
			look(table, n-1, false)
			look(table, n+99, false)
		}
		if n := f.count(); n != 0 {
			t.Errorf("what was used last was asked for %d times", n)
		}
		look(table, 0, false)
		look(table, 100, false)
		if n := f.count(); n != 2 {
			t.Errorf("what was used longest ago was asked for %d times, want 2", n)
		}
	})
}

// A known key costs no allocation and no question.
func TestAKnownKeyCostsNothing(t *testing.T) {
	f := &fake{fields: map[string]string{field(1): "one"}}
	now := time.Now()
	table, err := rediskeys.New(f, rediskeys.Options{Hash: "rl:v1:{keys}:portal", Read: read, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	look(table, 1, false)
	f.count()
	ctx, digest := context.Background(), digestOf(1)
	if n := testing.AllocsPerRun(100, func() {
		if e, err := table.Lookup(ctx, digest, true); e == nil || err != nil {
			t.Error(e, err)
		}
	}); n != 0 || f.count() != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Keys that cannot be looked up are told of once, and once that they can be again; a
// single question that went unanswered is not.
func TestThatKeysCannotBeLookedUpIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{fields: map[string]string{field(1): "one"}}
		log := &told{}
		table := newTable(t, f, log, 0)
		ask := func(what string, err error, n byte, want ...string) {
			t.Helper()
			f.set(func() { f.err = err })
			look(table, n, false)
			synctest.Wait()
			if fmt.Sprint(log.away) != fmt.Sprint(want) {
				t.Errorf("%s: told %q, want %q", what, log.away, want)
			}
			if away := len(want)%2 == 1; table.Since().IsZero() == away {
				t.Errorf("%s: away since %v", what, table.Since())
			}
			time.Sleep(2 * time.Second)
		}
		noperm := errors.New("NOPERM")
		ask("well", nil, 1)
		ask("one alone", noperm, 2)
		ask("well again, and nobody knows", nil, 3)
		began := time.Now()
		ask("the first", noperm, 4)
		ask("the second", noperm, 5, "NOPERM")
		ask("the third", noperm, 1, "NOPERM")
		if since := table.Since(); !since.Equal(began) {
			t.Errorf("away since %s, want %s", since, began)
		}
		time.Sleep(time.Minute)
		if since := table.Since(); !since.IsZero() {
			t.Errorf("nobody has asked for a minute: away since %s", since)
		}
		ask("a minute later", noperm, 6, "NOPERM")
		ask("back", nil, 7, "NOPERM", "<nil>")
		ask("a key that is there", nil, 1, "NOPERM", "<nil>")
	})
}
