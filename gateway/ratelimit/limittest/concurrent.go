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
		{"Concurrent/EachHasItsOwnDrip", ownDrip},
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
		calendar(t, "calendar", quota, &ratelimit.Calendar{Unit: ratelimit.CalendarMonth, Location: time.UTC}),
		log(t, "log", quota, time.Hour),
		counter(t, "counter", quota, time.Hour),
		queue(t, "queue", quota, time.Hour, quota-1, 0),
		queue(t, "rejected", quota, time.Hour, quota-1, 0, countRejected),
		log(t, "trial", quota, time.Hour, shadow),
	} {
		var admitted atomic.Int64
		var seen [quota]atomic.Int64
		errs := atCallers(callers, func(ctx context.Context) error {
			for range each {
				charges := []ratelimit.Charge{charge("priya123", p, 1)}
				b.look(charges)
				ds, err := b.store.Take(ctx, charges, nil)
				if err != nil {
					return err
				}
				if ds[0].Allowed {
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

// ownDrip: however many come at once, each of those who are admitted to a queue
// waits for another drip, and no drip falls for nobody.
func ownDrip(t testing.TB, newStore NewStore) {
	t.Helper()
	const callers, places = 40, 30
	b := newBench(t, newStore)
	p := queue(t, "queue", 10, time.Second, places-1, 0)
	var drips [places]atomic.Int64
	for _, err := range atCallers(callers, func(ctx context.Context) error {
		ds, err := b.store.Take(ctx, []ratelimit.Charge{charge("priya123", p, 1)}, nil)
		if err == nil && ds[0].Allowed {
			if n := ds[0].Delay / (100 * time.Millisecond); n >= 0 && n < places {
				drips[n].Add(1)
			}
		}
		return err
	}) {
		t.Errorf("take: %v", err)
	}
	for i := range drips {
		if n := drips[i].Load(); n != 1 {
			t.Errorf("%d callers wait for drip %d; want 1", n, i)
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
