package ratelimit

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func slidingLog(tb testing.TB, quota int64, window time.Duration) *Policy {
	tb.Helper()
	return policy(tb, Policy{Name: "log", Scope: "plan/log", Algorithm: SlidingWindowLog, Quota: quota, Window: window})
}

// Five in any minute. The table of README.md, and around it.
func TestSlidingLogStory(t *testing.T) {
	const s, us = time.Second, time.Microsecond
	tell(t, slidingLog(t, 5, time.Minute), &bucket{}, []step{
		{0, 0, allowed(5, 0), "a peek"},
		{0, 6, denied(5, 0, Never), "more than a window grants"},
		{10 * s, 3, allowed(2, 60*s), ""},
		{40 * s, 2, allowed(0, 30*s), "the first three leave at 70 s"},
		{50 * s, 1, denied(0, 20*s, 20*s), "then one fits"},
		{50 * s, 4, denied(0, 20*s, 50*s), "the fourth leaves at 100 s"},
		{68 * s, 1, denied(0, 2*s, 2*s), "10 % of 20 s too soon"},
		{70*s - us, 1, denied(0, us, us), "1 µs too soon"},
		{70 * s, 3, allowed(0, 30*s), "exactly when told, the three are free"},
		{70 * s, 1, denied(0, 30*s, 30*s), ""},
		{100 * s, 1, allowed(1, 30*s), "two have left, one came"},

		{99 * s, 0, allowed(1, 31*s), "the clock goes back a second: what has left stays away"},
		{60 * s, 1, allowed(0, 70*s), "it goes back 40 s: one fits, and is written at 100 s, after what was there"},
		{60 * s, 1, denied(0, 70*s, 70*s), "the 60 s that the first takes, and 10 s until the clock has caught up with its 70 s"},
		{130 * s, 3, allowed(0, 30*s), "as told"},
		{300 * s, 0, allowed(5, 0), "all have left"},
	})
}

func TestSlidingLogAfterAChangeOfQuota(t *testing.T) {
	const s = time.Second
	b := &bucket{}
	tell(t, slidingLog(t, 5, time.Minute), b, []step{
		{0, 2, allowed(3, 60*s), ""},
		{10 * s, 2, allowed(1, 50*s), ""},
		{20 * s, 1, allowed(0, 40*s), "5 of 5"},
	})
	tell(t, slidingLog(t, 8, time.Minute), b, []step{{20 * s, 1, allowed(2, 40*s), "raised: three more at once"}})
	tell(t, slidingLog(t, 3, time.Minute), b, []step{
		{20 * s, 1, denied(0, 50*s, 50*s), "lowered: 6 of 3; the fourth oldest has to leave, at 70 s"},
		{60 * s, 1, denied(0, 10*s, 10*s), "the two that left at 60 s were of those beyond"},
		{70 * s, 1, allowed(0, 10*s), "as told: the 2 of 20 s and this one"},
	})
	tell(t, slidingLog(t, 0, time.Minute), b, []step{{70 * s, 1, denied(0, 0, Never), "0 denies"}})
	tell(t, slidingLog(t, 3, time.Minute), b, []step{{80 * s, 2, allowed(0, 50*s), "and forgets nothing"}})
}

func TestSlidingLogCostsFromHell(t *testing.T) {
	for _, quota := range []int64{0, 1, 100, MaxLogQuota} {
		p := slidingLog(t, quota, time.Minute)
		for _, cost := range []int64{quota + 1, 1 << 53, math.MaxInt64} {
			b := &bucket{}
			b.take(p, epoch, quota)
			if got := b.take(p, epoch, cost); got.allowed || got.retryAfter != Never || got.remaining != 0 {
				t.Errorf("quota %d, cost %d: got %+v", quota, cost, got)
			}
		}
	}
}

// Whatever is asked for, and whatever the clock does, no span of a window's
// length sees more than the quota; with a clock that goes back, by the times
// that the clock had reached.
func TestSlidingLogAdmitsAtMostQuotaInAnyWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t, SlidingWindowLog, drawWindow(t))
		window := p.Window.Microseconds()
		b, last := &bucket{}, verdict{}
		now, seen := int64(epoch), int64(0)
		type admission struct{ at, cost int64 }
		var admitted []admission
		for range rapid.IntRange(1, 80).Draw(t, "requests") {
			now += drawGap(t, p, last)
			cost := drawCost(t, p, last)
			if last = b.take(p, now, cost); last.allowed && cost > 0 {
				seen = max(seen, now)
				admitted = append(admitted, admission{seen, cost})
			}
		}
		for i := range admitted {
			sum := int64(0)
			for _, a := range admitted[i:] {
				if a.at-admitted[i].at >= window {
					break
				}
				sum += a.cost
			}
			if sum > p.Quota {
				t.Fatalf("%d within a window, quota %d", sum, p.Quota)
			}
		}
	})
}

// A log holds no more than the units that count, however long it is used, and
// room for half as many.
func TestSlidingLogIsBoundedByItsQuota(t *testing.T) {
	const quota = 200
	p := slidingLog(t, quota, time.Second)
	b := &bucket{}
	for now := int64(epoch); now < epoch+30_000_000; now += 1013 {
		got := b.take(p, now, 1)
		if !got.allowed && now%2 == 0 { // rejected attempts as well
			b.state = p.ChargeRejected(p.Advance(b.state, now), now, 3*quota)
		}
		runs := b.state.Log.runs
		if n := len(runs); n > quota {
			t.Fatalf("%d runs for %d units", n, quota)
		}
		if n := cap(runs); n > quota+quota/2+3 {
			t.Fatalf("room for %d runs of %d units", n, quota)
		}
	}
}

// A charge that came to nothing, because another limit of its list denied, has
// left the state as it was.
func TestSlidingLogIsNotChangedByAChargeThatIsDropped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t, SlidingWindowLog, drawWindow(t))
		kept, tried := &bucket{}, &bucket{}
		now, last := int64(epoch), verdict{}
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			now += drawGap(t, p, last)
			cost := drawCost(t, p, last)
			for range rapid.IntRange(0, 2).Draw(t, "dropped") {
				s := p.Advance(tried.state, now)
				s, _ = p.Admit(s, now, rapid.Int64Range(0, p.Quota).Draw(t, "dropped cost"))
				if rapid.Bool().Draw(t, "rejected") {
					p.ChargeRejected(p.Advance(s, now), now, cost+1)
				}
			}
			last = kept.take(p, now, cost)
			if got := tried.take(p, now, cost); got != last {
				t.Fatalf("with dropped charges %+v, without %+v", got, last)
			}
		}
	})
}
