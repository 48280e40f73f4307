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

// refundIsBounded charges, lets others charge and time pass, refunds, and
// compares with a twin of the bucket that was never charged.
func refundIsBounded(t *testing.T, srv *redistest.Server, p *ratelimit.Policy) {
	t.Helper()
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, uint64(p.Algorithm)))
	clock := limittest.NewClock()
	store := virtual(t, srv, clock)
	look := func(partition string) int64 {
		return mustTake(t, store, []ratelimit.Charge{in(partition, p, 0)})[0].Remaining
	}
	whole := 0
	for round := range 200 {
		charged, never := fmt.Sprintf("{user:%d}", round), fmt.Sprintf("{twin:%d}", round)
		both := func() {
			cost := 1 + rnd.Int64N(2)
			if ds := mustTake(t, store, []ratelimit.Charge{in(charged, p, cost)}); ratelimit.Admitted(ds) {
				if ds := mustTake(t, store, []ratelimit.Charge{in(never, p, cost)}); !ratelimit.Admitted(ds) {
					t.Fatalf("round %d: the bucket that was charged less denies", round)
				}
			}
		}
		both() // so that a window is the same one in both
		cost := 1 + rnd.Int64N(5)
		ds, giveBack, err := store.TakeForRefund(t.Context(), []ratelimit.Charge{in(charged, p, cost)})
		if err != nil || !ratelimit.Admitted(ds) {
			t.Fatalf("round %d: %+v, %v", round, ds, err)
		}
		for range rnd.IntN(4) {
			if rnd.IntN(2) == 0 {
				clock.Advance(time.Duration(rnd.Int64N(int64(40 * 24 * time.Hour))))
			}
			both()
		}
		before, most := look(charged), look(never)
		if err := giveBack(); err != nil {
			t.Fatal(err)
		}
		after := look(charged)
		if after < before || after > before+cost || after > most {
			t.Errorf("round %d: %d remained, after a refund of %d it is %d; without the charge %d", round, before, cost, after, most)
		}
		if after == most && before < most {
			whole++
		}
		clock.Advance(100 * 24 * time.Hour)
	}
	if whole == 0 {
		t.Error("no refund ever gave back all; the test shows nothing")
	}
}
