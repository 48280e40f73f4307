package ratelimit

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func slidingCounter(tb testing.TB, quota int64, window time.Duration) *Policy {
	tb.Helper()
	return policy(tb, Policy{Name: "counter", Scope: "plan/counter", Algorithm: SlidingWindowCounter, Quota: quota, Window: window})
}

// A hundred a minute. The table of README.md, and around it.
func TestSlidingCounterStory(t *testing.T) {
	const s, ms, us = time.Second, time.Millisecond, time.Microsecond
	// Stories begin 20 s into a minute; this one at the minute.
	at := func(d time.Duration) time.Duration { return 40*s + d }
	tell(t, slidingCounter(t, 100, time.Minute), &bucket{}, []step{
		{at(0), 0, allowed(100, 0), "a peek"},
		{at(0), 101, denied(100, 0, Never), "more than a window grants"},
		{at(10 * s), 80, allowed(20, 50*s+750*ms), "80 weigh 79 when 1/80 of the next window has passed"},
		{at(75 * s), 40, allowed(0, 750*ms), "45/60 of 80 are 60, and 40 fit"},
		{at(75 * s), 10, denied(0, 750*ms, 7500*ms), "10 fit when 80 weigh 50"},
		{at(81750 * ms), 10, denied(9, 750*ms, 750*ms), "10 % too soon"},
		{at(82500*ms - us), 10, denied(9, us, us), "1 µs too soon: 50.000002 are 51"},
		{at(82500 * ms), 10, allowed(0, 750*ms), "exactly when told"},
		{at(82500 * ms), 60, denied(0, 750*ms, 49500*ms), "not in this window: in the next, 50 weigh 40 after 12 s"},
		{at(132 * s), 60, allowed(0, 1200*ms), "as told"},

		{at(90 * s), 1, denied(0, 43200*ms, 43200*ms), "the clock goes back into an earlier window: the 50 count whole until it is back"},
		{at(132 * s), 0, allowed(0, 1200*ms), "it is back, and nothing has changed"},
		{at(240 * s), 0, allowed(100, 0), "two windows later nothing is left"},
	})
}

func TestSlidingCounterAfterAChangeOfQuota(t *testing.T) {
	const s = time.Second
	at := func(d time.Duration) time.Duration { return 40*s + d }
	b := &bucket{}
	tell(t, slidingCounter(t, 10, time.Minute), b, []step{{at(0), 10, allowed(0, 66*s), "all is used"}})
	tell(t, slidingCounter(t, 15, time.Minute), b, []step{{at(0), 5, allowed(0, 64*s), "raised: five more at once"}})
	tell(t, slidingCounter(t, 6, time.Minute), b, []step{
		{at(0), 1, denied(0, 100*s, 100*s), "lowered: 15 used; they weigh 5 when 2/3 of the next window have passed"},
		{at(100 * s), 1, allowed(0, 4*s), "as told"},
	})
	tell(t, slidingCounter(t, 0, time.Minute), b, []step{{at(100 * s), 1, denied(0, 0, Never), "0 denies"}})
	tell(t, slidingCounter(t, 6, time.Minute), b, []step{{at(104 * s), 1, allowed(0, 4*s), "and forgets nothing"}})
}

func TestSlidingCounterCostsFromHell(t *testing.T) {
	for _, quota := range []int64{0, 1, 100, MaxQuota} {
		for _, window := range []time.Duration{time.Second, MaxWindow} {
			p := slidingCounter(t, quota, window)
			for _, cost := range []int64{quota + 1, 1 << 53, math.MaxInt64} {
				b := &bucket{}
				b.take(p, epoch, quota)
				if got := b.take(p, epoch, cost); got.allowed || got.retryAfter != Never || got.remaining != 0 {
					t.Errorf("quota %d, cost %d: got %+v", quota, cost, got)
				}
				// The product of the whole quota and the whole window.
				next := epoch/window.Microseconds()*window.Microseconds() + window.Microseconds()
				if got := b.remaining(p, next); got != 0 {
					t.Errorf("quota %d/%s: %d remain at the begin of the next window", quota, window, got)
				}
				if got, want := b.remaining(p, next+window.Microseconds()/2), quota/2; got != want {
					t.Errorf("quota %d/%s: %d remain half a window later, want %d", quota, window, got, want)
				}
			}
		}
	}
}

// The bound of README.md. With p units in the previous window, of which e/W has
// been left behind, the estimate is above the true count of the last W by no
// more than ceil(p*(W-e)/W) and below it by no more than floor(p*e/W). So in any
// span of a window no more than the quota and floor(p*e/W) are admitted, which
// is below twice the quota; and per window of the clock no more than the quota.
func TestSlidingCounterIsWithinItsBoundOfTheTrueCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t, SlidingWindowCounter, drawWindow(t))
		window := p.Window.Microseconds()
		b, last := &bucket{}, verdict{}
		now := int64(epoch)
		type admission struct{ at, cost int64 }
		var admitted []admission
		for range rapid.IntRange(1, 80).Draw(t, "requests") {
			now += max(0, drawGap(t, p, last))
			cost := drawCost(t, p, last)
			if last = b.take(p, now, cost); last.allowed {
				admitted = append(admitted, admission{now, cost})
			}
			var sliding, current, previous int64 // as they truly are
			for _, a := range admitted {
				if now-a.at < window {
					sliding += a.cost
				}
				switch now/window - a.at/window {
				case 0:
					current += a.cost
				case 1:
					previous += a.cost
				}
			}
			e := now % window
			below, above := previous*e/window, (previous*(window-e)+window-1)/window
			estimate := p.Quota - last.remaining
			if estimate > sliding+above || estimate < sliding-below {
				t.Fatalf("estimated %d, truly %d, with %d in the previous window and %d/%d of this one passed", estimate, sliding, previous, e, window)
			}
			if sliding > p.Quota+below || sliding > 2*p.Quota-1 || current > p.Quota {
				t.Fatalf("%d within a window, %d in this one, quota %d", sliding, current, p.Quota)
			}
		}
	})
}

// Traffic that keeps coming is admitted at the quota's rate, over a long time
// and in each window: the estimate does not let more through, nor much less.
func TestSlidingCounterAdmitsTheQuotaOfSteadyTraffic(t *testing.T) {
	p := slidingCounter(t, 500, time.Second)
	b := &bucket{}
	const windows = 30
	admitted := int64(0)
	for now := int64(epoch); now < epoch+windows*1_000_000; now += 1250 { // 800 a second
		if b.take(p, now, 1).allowed {
			admitted++
		}
	}
	if admitted > windows*500+1 || admitted < windows*500*95/100 {
		t.Errorf("%d admitted in %d windows of 500", admitted, windows)
	}
}
