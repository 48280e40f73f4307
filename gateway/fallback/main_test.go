package fallback_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bouncer/gateway/fallback"
	"bouncer/gateway/ratelimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Outside a bubble and on the real clock: many callers, a store that changes
// its mind, and nothing left running (TestMain looks).
func TestRealGoroutines(t *testing.T) {
	primary := newRemote(up)
	f := start(t, primary, newStand(), fallback.Options{ProbeInterval: 10 * time.Millisecond, ConsecutiveFailures: 2})
	var wg sync.WaitGroup
	for i := range 8 {
		cs := one(t)
		cs[0].Caller = fmt.Sprintf("{user:%d}", i)
		wg.Go(func() {
			var ds []ratelimit.Decision
			for range 500 {
				var err error
				if ds, err = f.Store(fallback.LocalCap).Take(context.Background(), cs, ds); err != nil || len(ds) != 1 {
					t.Errorf("Take = %v, %v", ds, err)
				}
				f.State()
			}
		})
	}
	for range 10 {
		primary.set(down)
		for !f.State().Open {
			_, _ = f.Store(fallback.Allow).Take(t.Context(), one(t), nil)
		}
		primary.set(up)
		for f.State().Open {
			time.Sleep(time.Millisecond) // until the prober has seen it
		}
	}
	wg.Wait()
	var closers sync.WaitGroup
	for range 4 {
		closers.Go(f.Close)
	}
	closers.Wait()
}

// constant is a store that admits and allocates nothing.
type constant struct{}

func (constant) Take(_ context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	dst = dst[:0]
	for _, c := range cs {
		dst = append(dst, ratelimit.Decision{Policy: c.Policy, Allowed: true})
	}
	return dst, nil
}

// measured returns stores whose breaker is as open says.
func measured(tb testing.TB, open bool) *fallback.Fallback {
	tb.Helper()
	f, err := fallback.New(constant{}, constant{}, fallback.Options{
		Instances: func() int { return 3 },
		Settle:    func(_ context.Context, debts []ratelimit.Debt) (int, error) { return len(debts), nil },
		Probe: func(context.Context) error {
			if open {
				return errDown
			}
			return nil
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	f.Start()
	tb.Cleanup(f.Close)
	return f
}

func three(tb testing.TB) []ratelimit.Charge {
	planCap := policy(tb, ratelimit.Policy{Name: "local-cap", Scope: "local-cap", Algorithm: ratelimit.TokenBucket, Quota: 50, Window: time.Second})
	capped := policy(tb, ratelimit.Policy{Name: "per-day", Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow, Quota: 9, Window: time.Hour, LocalCap: planCap})
	return []ratelimit.Charge{
		{Policy: capped, Partition: "{tenant:acme}", Caller: priya, Cost: 1},
		{Policy: capped, Partition: priya, Caller: priya, Cost: 1},
		{Policy: perMinute(tb), Partition: priya, Caller: priya, Cost: 1},
	}
}

func TestDecisionsAllocateNothing(t *testing.T) {
	cs := three(t)
	for name, s := range map[string]ratelimit.Store{
		"closed":          measured(t, false).Store(fallback.LocalCap),
		"open, local_cap": measured(t, true).Store(fallback.LocalCap),
		"open, allow":     measured(t, true).Store(fallback.Allow),
	} {
		ds := make([]ratelimit.Decision, 0, 8)
		n := testing.AllocsPerRun(1000, func() { ds, _ = s.Take(context.Background(), cs, ds) })
		// The race detector drops pooled values at random, so that it may cost
		// a fraction; a decision that allocates costs whole ones.
		if n >= 1 && !raceEnabled {
			t.Errorf("%s: %v allocations a decision, want none", name, n)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	cs := three(b)
	for _, c := range []struct {
		name string
		open bool
	}{{"closed", false}, {"open", true}} {
		s := measured(b, c.open).Store(fallback.LocalCap)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			ds := make([]ratelimit.Decision, 0, 8)
			for b.Loop() {
				ds, _ = s.Take(context.Background(), cs, ds)
			}
		})
		b.Run(c.name+"/parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				ds := make([]ratelimit.Decision, 0, 8)
				for pb.Next() {
					ds, _ = s.Take(context.Background(), cs, ds)
				}
			})
		})
	}
}

func Example() {
	limit, err := ratelimit.NewPolicy(ratelimit.Policy{
		Name: "per-minute", Scope: "plan/per-minute",
		Algorithm: ratelimit.TokenBucket, Quota: 100, Window: time.Minute, Burst: 20,
	})
	if err != nil {
		panic(err)
	}
	f, err := fallback.New(newRemote(down), newStand(), fallback.Options{
		Probe:     func(context.Context) error { return errDown },
		Instances: func() int { return 4 },
	})
	if err != nil {
		panic(err)
	}
	f.Start()
	defer f.Close()

	charges := []ratelimit.Charge{{Policy: limit, Partition: "{user:priya123}", Caller: "{user:priya123}", Cost: 1}}
	decisions, err := f.Store(fallback.LocalCap).Take(context.Background(), charges, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(decisions[0].Allowed, decisions[0].Remaining, decisions[0].Source)
	fmt.Println(decisions[0].Err)
	_, err = f.Store(fallback.Deny).Take(context.Background(), charges, nil)
	fmt.Println(err)
	// Output:
	// true 4 local_cap
	// breaker open: connection refused
	// the limit store is unavailable: breaker open: connection refused
}
