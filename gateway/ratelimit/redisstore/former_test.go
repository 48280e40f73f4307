package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/limittest"
	"bouncer/internal/redistest"
)

// twoPlans are of one limit: a large bucket that refills slowly, a small quick one.
func twoPlans(t testing.TB) (large, small *ratelimit.Policy) {
	t.Helper()
	spec := ratelimit.Policy{Scope: "plan/per-minute", Algorithm: ratelimit.TokenBucket, Window: time.Minute, Quota: 60, Burst: 100}
	large = newPolicy(t, spec)
	spec.Quota, spec.Burst = 70, 10
	return large, newPolicy(t, spec)
}

// TestAKeyLivesUntilItsFormerHasDrained: what was cut is behind the value, the key
// lives until both have drained, and the value is short again when it is gone.
func TestAKeyLivesUntilItsFormerHasDrained(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	clock := limittest.NewClock()
	store := virtual(t, srv, clock)
	large, small := twoPlans(t)
	const caller = "{user:priya123}"
	value := func() []int64 {
		t.Helper()
		keys := look.Keys(t.Context(), "*").Val()
		if len(keys) != 1 {
			t.Fatalf("keys: %q", keys)
		}
		return stored(t, look.Get(t.Context(), keys[0]).Val())
	}
	mustTake(t, store, []ratelimit.Charge{in(caller, large, 100)})
	if v := value(); len(v) != 5 {
		t.Fatalf("a plain value is %d", v)
	}
	for range 150 {
		clock.Advance(time.Second)
		if ds := mustTake(t, store, []ratelimit.Charge{in(caller, small, 1)}); !ratelimit.Admitted(ds) {
			t.Fatalf("one a second: %+v", ds)
		}
		v := value()
		if len(v) != 11 {
			t.Fatalf("a value that was cut is %d", v)
		}
		at, lives := v[3], v[4]
		for _, account := range [][]int64{v, v[5:]} {
			if spent, num := account[0], account[2]; lives < at+spent/num {
				t.Fatalf("it lives for %d µs, and takes %d to drain: %d", lives-at, spent/num, v)
			}
		}
	}
	clock.Advance(10 * time.Second)
	if ds := mustTake(t, store, []ratelimit.Charge{in(caller, large, 10)}); !ratelimit.Admitted(ds) || ds[0].Remaining != 0 {
		t.Errorf("ten seconds after 150 that were spent as they came back: %+v", ds[0])
	}
	if v := value(); len(v) != 5 {
		t.Errorf("the larger plan was charged, and the value is %d", v)
	}
}

// TestARefundReachesTheFormer: it gives back to both accounts what each was
// charged, whichever plan was, and to none more than is missing there.
func TestARefundReachesTheFormer(t *testing.T) {
	srv := redistest.Start(t)
	clock := limittest.NewClock()
	store := virtual(t, srv, clock)
	large, small := twoPlans(t)
	rnd := rand.New(rand.NewPCG(7, 0))
	look := func(partition string, p *ratelimit.Policy) int64 {
		return mustTake(t, store, []ratelimit.Charge{in(partition, p, 0)})[0].Remaining
	}
	whole := 0
	for round := range 300 {
		charged, never := fmt.Sprintf("{user:%d}", round), fmt.Sprintf("{twin:%d}", round)
		both := func(p *ratelimit.Policy, cost int64) {
			if ds := mustTake(t, store, []ratelimit.Charge{in(charged, p, cost)}); ratelimit.Admitted(ds) {
				mustTake(t, store, []ratelimit.Charge{in(never, p, cost)})
			}
		}
		both(large, 1+rnd.Int64N(80))
		plan := large
		if rnd.IntN(2) == 0 {
			clock.Advance(time.Second)
			both(small, 1)
			plan = small
		}
		cost := 1 + rnd.Int64N(5)
		ds, giveBack, err := store.TakeForRefund(t.Context(), []ratelimit.Charge{in(charged, plan, cost)})
		if err != nil {
			t.Fatal(err)
		}
		if !ratelimit.Admitted(ds) {
			continue
		}
		for range rnd.IntN(4) {
			clock.Advance(time.Duration(rnd.Int64N(int64(20 * time.Second))))
			both(small, 1+rnd.Int64N(3))
		}
		before, most := look(charged, large), look(never, large)
		if err := giveBack(); err != nil {
			t.Fatal(err)
		}
		if after := look(charged, large); after < before || after > before+cost || after > most {
			t.Errorf("round %d: %d remained of the larger plan, after a refund of %d it is %d; without the charge %d", round, before, cost, after, most)
		} else if after == most && before < most {
			whole++
		}
	}
	if whole < 100 {
		t.Errorf("%d of 300 refunds gave back all; the test shows little", whole)
	}
}
