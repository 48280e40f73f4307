package limittest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// concurrent are the promises to many who ask at once.
func concurrent() []check {
	return []check{
		{"Concurrent/ExactlyAsManyAsThereAre", exactlyAsMany},
		{"Concurrent/AllOrNone", concurrentAllOrNone},
	}
}

// exactlyAsMany: however many ask at once, no more and no fewer than the limit
// allows are admitted, and no two see the same remaining.
func exactlyAsMany(t testing.TB, newStore NewStore) {
	t.Helper()
	const callers, each, quota = 50, 4, 125
	b := newBench(t, newStore)
	for _, p := range []*ratelimit.Policy{
		bucket(t, "bucket", quota, time.Hour, quota),
		window(t, "window", quota, time.Hour),
	} {
		var admitted atomic.Int64
		var seen [quota]atomic.Int64
		errs := atCallers(callers, func(ctx context.Context) error {
			for range each {
				ds, err := b.store.Take(ctx, []ratelimit.Charge{charge("priya123", p, 1)}, nil)
				if err != nil {
					return err
				}
				if ratelimit.Admitted(ds) {
					admitted.Add(1)
					if r := ds[0].Remaining; r >= 0 && r < quota {
						seen[r].Add(1)
					}
				}
			}
			return nil
		})
		for _, err := range errs {
			t.Errorf("take: %v", err)
		}
		if n := admitted.Load(); n != quota {
			t.Errorf("%s: %d callers at once were admitted %d times; want %d", show(p), callers, n, quota)
		}
		for r := range seen {
			if n := seen[r].Load(); n != 1 {
				t.Errorf("%s: %d admissions saw a remaining of %d; want 1", show(p), n, r)
			}
		}
	}
}

// concurrentAllOrNone: callers that fight over two limits, named in either
// order, leave both with the same count.
func concurrentAllOrNone(t testing.TB, newStore NewStore) {
	t.Helper()
	const callers, each, narrow, wide = 20, 10, 60, 1000
	b := newBench(t, newStore)
	p, q := window(t, "narrow", narrow, time.Hour), bucket(t, "wide", wide, time.Hour, wide)
	var turn, admitted atomic.Int64
	errs := atCallers(callers, func(ctx context.Context) error {
		for range each {
			charges := []ratelimit.Charge{charge("priya123", p, 1), charge("priya123", q, 1)}
			if turn.Add(1)%2 == 0 {
				charges[0], charges[1] = charges[1], charges[0]
			}
			ds, err := b.store.Take(ctx, charges, nil)
			if err != nil {
				return err
			}
			if ratelimit.Admitted(ds) {
				admitted.Add(1)
			}
		}
		return nil
	})
	for _, err := range errs {
		t.Errorf("take: %v", err)
	}
	if n := admitted.Load(); n != narrow {
		t.Errorf("admitted %d; want %d", n, narrow)
	}
	if d := b.take(charge("priya123", q, 1))[0]; d.Remaining != wide-narrow-1 {
		t.Errorf("the wide limit has %d left; want %d: denials must not charge it", d.Remaining, wide-narrow-1)
	}
}

// atCallers runs f in n goroutines at once and returns their errors.
func atCallers(n int, f func(context.Context) error) []error {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	gate := make(chan struct{})
	for range n {
		wg.Go(func() {
			<-gate
			if err := f(context.Background()); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	close(gate)
	wg.Wait()
	return errs
}
