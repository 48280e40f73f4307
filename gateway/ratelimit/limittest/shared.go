package limittest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// apart are checks of lists that name several partitions, for stores that decide
// them in one step.
func apart() []check {
	return []check{
		{"Apart/History", history(story{kinds: allKinds, atOnce: 5, apart: true})},
	}
}

// shared are checks of such lists, for stores that do not.
func shared() []check {
	given := []kind{tokenBucket, firstCharge, byCalendar, windowLog, windowCount} // what is given back
	return []check{
		{"Shared/History", history(story{kinds: given, atOnce: 4, apart: true, steady: true})},
		{"Shared/NeverAbove", neverAbove},
	}
}

// neverAbove: callers that fight over limits of several partitions get no more
// than the narrowest grants, and when all are answered, no limit has lost more
// than was admitted.
func neverAbove(t testing.TB, newStore NewStore) {
	t.Helper()
	const callers, each, narrow, wide = 20, 10, 60, 1000
	for _, two := range [][2]*ratelimit.Policy{
		{bucket(t, "a", narrow, time.Hour, narrow), window(t, "wide-a", wide, time.Hour)},
		{window(t, "b", narrow, time.Hour), log(t, "wide-b", wide, time.Hour)},
		{log(t, "c", narrow, time.Hour), counter(t, "wide-c", wide, time.Hour)},
		{counter(t, "d", narrow, time.Hour), bucket(t, "wide-d", wide, time.Hour, wide)},
		{queue(t, "e", narrow, time.Hour, narrow-1, 0), window(t, "wide-e", wide, time.Hour)},
	} {
		b := newBench(t, newStore)
		charges := []ratelimit.Charge{charge("acme", two[0], 1), charge("priya123", two[1], 1)}
		var admissions atomic.Int64
		for _, err := range atCallers(callers, func(ctx context.Context) error {
			for range each {
				ds, err := b.store.Take(ctx, charges, nil)
				if err != nil {
					return err
				}
				if ratelimit.Admitted(ds) {
					admissions.Add(1)
				}
			}
			return nil
		}) {
			t.Errorf("take: %v", err)
		}
		n := admissions.Load()
		if n > narrow || n == 0 {
			t.Errorf("%s: admitted %d; want 1 to %d", show(two[0]), n, narrow)
		}
		if left := b.take(charge("priya123", two[1], 0))[0].Remaining; left != wide-n {
			t.Errorf("%s: %d left of %s after %d were admitted; want %d", show(two[0]), left, show(two[1]), n, wide-n)
		}
	}
}
