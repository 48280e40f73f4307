package simulate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

func policy(t *testing.T, spec ratelimit.Policy) *ratelimit.Policy {
	t.Helper()
	spec.Name, spec.Scope = "n", "limit/n"
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The smallest number is found in one pass, and the production code, asked with
// it and with one less, says that it is the smallest.
func TestTheSmallestNumberIsTheSmallest(t *testing.T) {
	t.Parallel()
	kolkata := time.FixedZone("x", 19800)
	specs := []ratelimit.Policy{
		{Algorithm: ratelimit.TokenBucket, Quota: 10, Window: time.Minute},
		{Algorithm: ratelimit.TokenBucket, Quota: 10, Window: time.Minute, Burst: 7},
		{Algorithm: ratelimit.TokenBucket, Quota: 0, Window: time.Minute},
		{Algorithm: ratelimit.LeakyBucket, Quota: 10, Window: time.Minute},
		{Algorithm: ratelimit.LeakyBucket, Quota: 10, Window: time.Minute, Queue: 5},
		{Algorithm: ratelimit.LeakyBucket, Quota: 10, Window: time.Minute, Queue: 5, MaxDelay: 7 * time.Second},
		{Algorithm: ratelimit.FixedWindow, Quota: 10, Window: time.Minute},
		{Algorithm: ratelimit.FixedWindow, Quota: 10, Calendar: &ratelimit.Calendar{Unit: ratelimit.CalendarMinute, Location: kolkata}},
		{Algorithm: ratelimit.SlidingWindowLog, Quota: 10, Window: time.Minute, CountRejected: true},
		{Algorithm: ratelimit.SlidingWindowCounter, Quota: 10, Window: time.Minute},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	some, none := 0, 0
	for round := range 400 {
		spec := specs[round%len(specs)]
		m := newMeter(policy(t, spec), true)
		room := 1000
		at := time.Date(2026, 11, 2, 8, 58, 0, 0, time.UTC).UnixMicro()
		who := &caller{}
		pace := []int64{1, 1000, 300_000, 3_000_000, 20_000_000}[rng.IntN(5)]
		for range 1 + rng.IntN(120) {
			switch rng.IntN(8) {
			case 0: // the same moment
			case 1:
				at += rng.Int64N(90_000_000)
			default:
				at += rng.Int64N(pace)
			}
			m.charge(at, &ratelimit.Charge{Partition: "{p}", Cost: 1 + rng.Int64N(3)}, who, new(*bucket), &room)
		}
		what := fmt.Sprintf("round %d, %s", round, spec.Algorithm)
		n, ok := m.ok()
		if !ok {
			none++
			for _, try := range []int64{1, 1000, 1_000_000, 1_000_000_000} {
				if m.with(try) != nil && m.denies(try) == 0 {
					t.Errorf("%s: no number was found, and %d would do", what, try)
				}
			}
			continue
		}
		some++
		if m.denies(n) > 0 {
			t.Errorf("%s: %d denies somebody", what, n)
		}
		if n > 0 && m.denies(n-1) == 0 {
			t.Errorf("%s: %d was found, and %d would do", what, n, n-1)
		}
	}
	if some < 200 || none < 10 {
		t.Errorf("%d numbers found, %d not", some, none)
	}
}

// What is kept of a bucket does not grow with its requests.
func TestASteadyCallerTakesNoMemory(t *testing.T) {
	t.Parallel()
	for _, burst := range []int64{0, 5} {
		m := newMeter(policy(t, ratelimit.Policy{Algorithm: ratelimit.TokenBucket, Quota: 100, Window: time.Minute, Burst: burst}), false)
		rng := rand.New(rand.NewPCG(3, 4))
		at, room, most := int64(1_800_000_000_000_000), 0, 0
		for range 100_000 {
			at += rng.Int64N(1_200_000)
			m.charge(at, &ratelimit.Charge{Partition: "{p}", Cost: 1}, &caller{}, new(*bucket), &room)
			most = max(most, len(m.order[0].hull))
		}
		if most > 60 {
			t.Errorf("burst %d: %d points", burst, most)
		}
	}
}

func TestTheNumberFor99Of100Callers(t *testing.T) {
	t.Parallel()
	// 200 callers, of whom i sends i requests at once: two of them may be denied.
	for _, shared := range []bool{false, true} {
		m := newMeter(policy(t, ratelimit.Policy{Algorithm: ratelimit.FixedWindow, Quota: 10, Window: time.Hour}), true)
		room := maxTimeline
		for i := range 200 {
			who := &caller{}
			for range i + 1 {
				p := fmt.Sprint(i)
				if shared {
					p = "{global}" // in the order of i
				}
				m.charge(1_800_000_000_000_000, &ratelimit.Charge{Partition: p, Cost: 1}, who, new(*bucket), &room)
			}
		}
		n, ok := m.most()
		want := int64(198)
		if shared {
			want = 198 * 199 / 2 // all but the last two
		}
		if !ok || n != want {
			t.Errorf("shared %v: %d, want %d", shared, n, want)
		}
		if denied := m.denies(n); denied > 2 {
			t.Errorf("shared %v: %d denies %d", shared, n, denied)
		}
		if denied := m.denies(n - 1); denied <= 2 {
			t.Errorf("shared %v: %d denies only %d", shared, n-1, denied)
		}
	}
}
