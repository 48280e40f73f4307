package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// TestOneScriptCallPerDecision: however many limits a decision has, it is one
// call, and inside it one GET per limit, one SET per limit that is charged, and
// one TIME.
func TestOneScriptCallPerDecision(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	cs := charges(perMinute(t), perDay(t))
	mustTake(t, store, cs) // the server learns the script

	resetStats(t, look)
	const decisions = 15
	for range decisions {
		if ds := mustTake(t, store, cs); !ratelimit.Admitted(ds) || ds[0].Source != ratelimit.SourceRedis {
			t.Fatalf("decisions: %+v", ds)
		}
	}
	want := map[string]int{"evalsha": decisions, "time": decisions, "get": 2 * decisions, "set": 2 * decisions}
	if got := commandCalls(t, look); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("commands of %d admissions: %v; want %v", decisions, got, want)
	}

	day := perDay(t)
	mustTake(t, store, charges(day)) // the script of fixed windows alone
	resetStats(t, look)
	mustTake(t, store, charges(day, day)) // one key is read and written once
	want = map[string]int{"evalsha": 1, "time": 1, "get": 1, "set": 1}
	if got := commandCalls(t, look); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("commands of two charges on one key: %v; want %v", got, want)
	}

	for ratelimit.Admitted(mustTake(t, store, cs)) {
	}
	resetStats(t, look)
	mustTake(t, store, cs)
	want = map[string]int{"evalsha": 1, "time": 1, "get": 2}
	if got := commandCalls(t, look); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("commands of a denial: %v; want %v", got, want)
	}
}

// TestForgottenScriptIsSentAgain: SCRIPT FLUSH, a restart and a server that
// never saw the script cost one EVAL and no error.
func TestForgottenScriptIsSentAgain(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	cs := charges(perMinute(t))
	for i := range int64(3) {
		if err := look.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		resetStats(t, look)
		for j := range int64(2) {
			if got, want := mustTake(t, store, cs)[0].Remaining, 19-2*i-j; got != want {
				t.Errorf("remaining %d, want %d", got, want)
			}
		}
		got := commandCalls(t, look)
		if got["evalsha"] != 2 || got["eval"] != 1 || got["script|load"] != 0 {
			t.Errorf("commands after a flush: %v; want 2 evalsha, 1 eval", got)
		}
	}
}

// TestKeysAndTheirExpiry: the names and values are the documented ones, and
// every key ends when its state does.
func TestKeysAndTheirExpiry(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	cs := charges(perMinute(t), perDay(t))
	cs[0].Cost = 5
	mustTake(t, store, cs)
	if err := store.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := look.Time(t.Context()).Val().UnixMicro()

	for _, k := range []struct {
		name  string
		value []int64 // how it begins
		time  int     // which of its numbers is the time from which …
		ends  time.Duration
		slack time.Duration
	}{
		// 5 units at 600 ms; 100/60e6 is 1/600,000 a µs. A full bucket takes 12 s.
		{"rl:v1:{user:priya123}:plan/per-minute:tb/60", []int64{3_000_000, 600_000, 1}, 3, 3 * time.Second, 1500 * time.Millisecond},
		{"rl:v1:{user:priya123}:plan/per-day:fw/86400", []int64{1}, 1, 0, 0},
		{"rl:v1:{probe}:probe/probe:tb/1", []int64{1, 1, 1}, 3, time.Microsecond, 125 * time.Millisecond},
	} {
		left := look.PTTL(t.Context(), k.name).Val()
		value, err := look.Get(t.Context(), k.name).Result()
		if errors.Is(err, redis.Nil) && k.ends == time.Microsecond {
			continue // it is over already
		}
		if err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		have := stored(t, value)
		if !slices.Equal(have[:len(k.value)], k.value) {
			t.Errorf("%s holds %d; want %d …", k.name, have, k.value)
		}
		// Never before the state has run out, by its own account.
		runsOut := time.Duration(have[k.time]-now)*time.Microsecond + k.ends
		if left < runsOut-generous || left > runsOut+k.slack+2*time.Millisecond {
			t.Errorf("%s expires in %s; its state runs out in %s", k.name, left, runsOut)
		}
	}
	everyKeyExpires(t, look)
}

func everyKeyExpires(t *testing.T, look *redis.Client) {
	t.Helper()
	seen := 0
	iter := look.Scan(t.Context(), 0, "*", 1000).Iterator()
	for iter.Next(t.Context()) {
		seen++
		if left := look.PTTL(t.Context(), iter.Val()).Val(); left == -1 {
			t.Errorf("%s has no expiry", iter.Val())
		}
	}
	if err := iter.Err(); err != nil || seen == 0 {
		t.Errorf("scan: %d keys, %v", seen, err)
	}
}

// TestRetryAfterIsTheTruth: on the server's own clock, a client that waits as
// long as it was told is admitted. There is no event to wait for but the time.
func TestRetryAfterIsTheTruth(t *testing.T) {
	srv := redistest.Start(t)
	store := at(t, srv.Addr())
	for _, p := range []*ratelimit.Policy{
		newPolicy(t, ratelimit.Policy{Scope: "plan/window", Algorithm: ratelimit.FixedWindow, Quota: 1, Window: time.Second}),
		newPolicy(t, ratelimit.Policy{Scope: "plan/bucket", Algorithm: ratelimit.TokenBucket, Quota: 3, Window: time.Second, Burst: 1}),
	} {
		cs := charges(p)
		if d := mustTake(t, store, cs)[0]; !d.Allowed {
			t.Fatalf("first: %+v", d)
		}
		denied := mustTake(t, store, cs)[0]
		if denied.Allowed || denied.RetryAfter <= 0 || denied.RetryAfter > time.Second {
			t.Fatalf("at once: %+v", denied)
		}
		time.Sleep(denied.RetryAfter)
		if d := mustTake(t, store, cs)[0]; !d.Allowed {
			t.Errorf("%s: denied after waiting %s; retry after %s", p.Scope, denied.RetryAfter, d.RetryAfter)
		}
	}
}

// TestRandomChargesLeaveNoImmortalKey is the promise of expiry under load.
func TestRandomChargesLeaveNoImmortalKey(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	minute, day := perMinute(t), perDay(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				who := fmt.Sprintf("{user:u%d}", (g*7+i)%50)
				cs := []ratelimit.Charge{
					{Policy: minute, Partition: who, Caller: who, Cost: int64(1 + i%3)},
					{Policy: day, Partition: who, Caller: who, Cost: int64(1 + i%7)},
				}
				if _, err := store.Take(t.Context(), cs[i%2:], nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	everyKeyExpires(t, look)
}

// TestImmortalKeyIsRepaired: a key without an expiry, planted by hand or by a
// restored dump, gets one with its next charge.
func TestImmortalKeyIsRepaired(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	end := look.Time(t.Context()).Val().Add(time.Hour).UnixMicro()
	for key, value := range map[string]string{
		"rl:v1:{user:priya123}:plan/per-minute:tb/60": doubles(600000, 600000, 1, 1, 0),
		"rl:v1:{user:priya123}:plan/per-day:fw/86400": doubles(0, float64(end)),
	} {
		if err := look.Set(t.Context(), key, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ds := mustTake(t, store, charges(perMinute(t), perDay(t)))
	if !ratelimit.Admitted(ds) || ds[0].Remaining != 19 || ds[1].Remaining != 99 {
		t.Errorf("decisions: %+v", ds)
	}
	everyKeyExpires(t, look)
}

// TestExactlyAsManyOverSeveralStores: fifty clients over three gateways claim
// the last five of a limit, again and again.
func TestExactlyAsManyOverSeveralStores(t *testing.T) {
	srv := redistest.Start(t)
	stores := []*redisstore.Store{at(t, srv.Addr()), at(t, srv.Addr()), at(t, srv.Addr())}
	const rounds, clients, quota = 20, 50, 5
	p := newPolicy(t, ratelimit.Policy{
		Scope: "plan/few", Algorithm: ratelimit.TokenBucket, Quota: 1, Window: 24 * time.Hour, Burst: quota,
	})
	for round := range rounds {
		who := fmt.Sprintf("{user:round-%d}", round)
		var admitted atomic.Int64
		var wg sync.WaitGroup
		gate := make(chan struct{})
		for i := range clients {
			wg.Go(func() {
				<-gate
				ds, err := stores[i%len(stores)].Take(t.Context(), []ratelimit.Charge{{Policy: p, Partition: who, Caller: who, Cost: 1}}, nil)
				if err != nil {
					t.Error(err)
				} else if ratelimit.Admitted(ds) {
					admitted.Add(1)
				}
			})
		}
		close(gate)
		wg.Wait()
		if n := admitted.Load(); n != quota {
			t.Errorf("round %d: %d admitted; want %d", round, n, quota)
		}
	}
}

// TestLostReplyIsChargedOnce: a connection that breaks after the server has
// charged and before its answer arrives. Nobody knows, so nobody asks again.
func TestLostReplyIsChargedOnce(t *testing.T) {
	srv := redistest.Start(t)
	var n atomic.Int64
	proxy := serve(t, func(c net.Conn) { loseThirdReply(t, srv.Addr(), c, &n) })
	store := at(t, proxy)
	isChargedOnceLostOrNot(t, store, srv)
}

// TestHangingUpClientBreaksNothing: the context of a request that is gone does
// not end the decision, and spoils no connection.
func TestHangingUpClientBreaksNothing(t *testing.T) {
	srv := redistest.Start(t)
	store := at(t, srv.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ds, err := store.Take(ctx, charges(perMinute(t)), nil)
	if err != nil || ds[0].Remaining != 19 {
		t.Errorf("take for a client that left: %+v, %v", ds, err)
	}
	if err := store.Probe(ctx); redisstore.Kind(err) != redisstore.KindCanceled {
		t.Errorf("probe with an ended context: %v", err)
	}
}

// TestBadChargesAreErrors: mistakes of the program, said before anything is sent.
func TestBadChargesAreErrors(t *testing.T) {
	store := at(t, "127.0.0.1:1") // nobody is there to be asked
	for name, c := range map[string]ratelimit.Charge{
		"no policy":     {Partition: "{x}", Cost: 1},
		"made by hand":  {Policy: &ratelimit.Policy{Name: "x", Algorithm: ratelimit.FixedWindow}, Partition: "{x}", Cost: 1},
		"negative cost": {Policy: perDay(t), Partition: "{x}", Cost: -1},
	} {
		if err := wantKind(t, store, []ratelimit.Charge{c}, redisstore.KindOther); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestCostZeroLooks: it is allowed, writes nothing, and says how things are.
func TestCostZeroLooks(t *testing.T) {
	srv := redistest.Start(t)
	store := at(t, srv.Addr())
	cs := charges(perMinute(t), perDay(t))
	cs[0].Cost, cs[1].Cost = 0, 0
	ds := mustTake(t, store, cs)
	if !ratelimit.Admitted(ds) || ds[0].Remaining != 20 || ds[1].Remaining != 100 {
		t.Errorf("decisions: %+v", ds)
	}
	if n := srv.Client(t).DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}

// TestAllocations: most of what a decision allocates is go-redis' and the
// deadline's; ours are the keys.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector drops pooled objects at random")
	}
	srv := redistest.Start(t)
	store := at(t, srv.Addr())
	cs := charges(perMinute(t), perDay(t))
	dst := mustTake(t, store, cs)
	n := testing.AllocsPerRun(200, func() {
		var err error
		if dst, err = store.Take(context.Background(), cs, dst); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%.0f allocations for a decision on two limits", n)
	if n > 20 {
		t.Errorf("%.0f allocations for a decision on two limits; want 20 or fewer", n)
	}
}

func BenchmarkTake(b *testing.B) {
	srv := redistest.Start(b)
	store := at(b, srv.Addr())
	minute := newPolicy(b, ratelimit.Policy{
		Scope: "plan/wide", Algorithm: ratelimit.TokenBucket, Quota: 1_000_000_000, Window: time.Minute,
	})
	for _, n := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("limits=%d", n), func(b *testing.B) {
			ps := []*ratelimit.Policy{minute, perDay(b), minute, perDay(b)}
			cs := charges(ps[:n]...)
			var dst []ratelimit.Decision
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if dst, err = store.Take(context.Background(), cs, dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
