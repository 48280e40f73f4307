package fallback_test

import (
	"context"
	"testing"
	"testing/synctest"

	"bouncer/gateway/fallback"
	"bouncer/gateway/ratelimit"
)

// paid answers from what was taken in advance: nobody asked the store.
func paid(ctx context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	dst, _ = up(ctx, cs, dst)
	for i := range dst {
		dst[i].Source = ratelimit.SourceLease
	}
	return dst, nil
}

// An answer for which the store was not asked says nothing about the store:
// between failures it does not begin a new count.
func TestWhatWasPaidInAdvanceIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := newRemote(up)
		f := start(t, primary, newStand(), fallback.Options{})
		s, cs := f.Store(fallback.LocalCap), one(t)
		for range 5 {
			primary.set(paid)
			if ds := take(t, s, cs); ds[0].Source != ratelimit.SourceLease {
				t.Fatalf("got %+v", ds)
			}
			if f.State().Open {
				t.Fatal("open before the fifth failure")
			}
			primary.set(down)
			take(t, s, cs)
		}
		if !f.State().Open {
			t.Error("closed after five failures in a row, with answers between that the store did not give")
		}
	})
}

// While the store is away, what was taken of it in advance is spent first, in
// every mode; and nobody is counted as served without the store.
func TestWhatIsHeldIsSpentWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, l, held := newRemote(down), new(log), 3
		f := start(t, primary, newStand(), fallback.Options{Hooks: l.hooks(), Held: func(cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, bool) {
			if held == 0 {
				return dst[:0], false
			}
			held--
			ds, _ := paid(t.Context(), cs, dst)
			return ds, true
		}})
		synctest.Wait()
		if !f.State().Open {
			t.Fatal("the probe at the start has not opened the breaker")
		}
		for _, m := range []fallback.Mode{fallback.LocalCap, fallback.Deny, fallback.Allow} {
			if ds := take(t, f.Store(m), one(t)); len(ds) != 1 || ds[0].Source != ratelimit.SourceLease {
				t.Errorf("%s: %+v", m, ds)
			}
		}
		if ds := take(t, f.Store(fallback.LocalCap), one(t)); ds[0].Source != ratelimit.SourceLocalCap {
			t.Errorf("with nothing held: %+v", ds)
		}
		if s := f.State(); s.Admitted != 1 || len(l.degraded) != 1 {
			t.Errorf("%d were admitted without the store, %d told, want 1", s.Admitted, len(l.degraded))
		}
	})
}
