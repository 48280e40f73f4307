package limittest

import (
	"fmt"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// tables are the promises of a limit, each as a short story.
func tables() []check {
	var all []check
	add := func(name string, story func(b *bench)) {
		all = append(all, check{name, func(t testing.TB, newStore NewStore) {
			t.Helper()
			story(newBench(t, newStore))
		}})
	}

	bucketStories(add)
	windowStories(add)
	calendarStories(add)
	logStories(add)
	counterStories(add)
	queueStories(add)
	roleStories(add)
	rejectedStories(add)
	listStories(add)
	return all
}

// bucketStories: a token bucket is full of a burst and refills at a steady rate.
func bucketStories(add func(name string, story func(b *bench))) {
	add("TokenBucket/BurstThenOneAtATime", func(b *bench) {
		// 100 a minute is one in 600 ms; 20 at once.
		p := bucket(b.t, "per-minute", 100, minute, 20)
		for i := range int64(20) {
			b.want("priya123", p, 1, yes(19-i, 600*time.Millisecond))
		}
		b.want("priya123", p, 1, no(0, 600*time.Millisecond, 600*time.Millisecond))
		b.clock.Advance(600*time.Millisecond - micro)
		b.want("priya123", p, 1, no(0, micro, micro)) // a microsecond early is early
		b.clock.Advance(micro)
		b.want("priya123", p, 1, yes(0, 600*time.Millisecond))
		b.want("priya123", p, 3, no(0, 600*time.Millisecond, 1800*time.Millisecond))
		b.clock.Advance(time.Hour)
		b.want("priya123", p, 1, yes(19, 600*time.Millisecond)) // never above the burst
	})
	add("TokenBucket/WaitsAreRoundedUp", func(b *bench) {
		// 3 a second: 333,333⅓ µs each. A client that came after 333,333 would be
		// told to come again.
		p := bucket(b.t, "per-second", 3, second, 1)
		b.want("priya123", p, 1, yes(0, 333_334*micro))
		b.clock.Advance(333_333 * micro)
		b.want("priya123", p, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, yes(0, 333_334*micro))
	})
	add("TokenBucket/ExactOverManySpends", func(b *bench) {
		// Seven at once, 7 a second, spent as they come: after 7,000 spends the
		// account is right to the microsecond.
		p := bucket(b.t, "per-second", 7, second, 7)
		b.want("priya123", p, 7, yes(0, 142_858*micro))
		for range 100 {
			for _, gap := range []time.Duration{142_858, 142_857, 142_857, 142_857, 142_857, 142_857, 142_857} {
				b.clock.Advance(gap * micro)
				b.take(charge("priya123", p, 1))
			}
		}
		// 700 units came back in 100 s and were spent.
		b.want("priya123", p, 1, no(0, 142_858*micro, 142_858*micro))
	})
	add("TokenBucket/CostAboveTheBurstNever", func(b *bench) {
		p := bucket(b.t, "per-minute", 100, minute, 20)
		b.want("priya123", p, 21, no(20, 0, never))
		b.want("priya123", p, tooMuch, no(20, 0, never))
		b.want("priya123", p, 20, yes(0, 600*time.Millisecond))
	})
	add("TokenBucket/ZeroQuotaDenies", func(b *bench) {
		p := bucket(b.t, "off", 0, minute, 5)
		b.want("priya123", p, 1, no(0, 0, never))
		b.clock.Advance(time.Hour)
		b.want("priya123", p, 1, no(0, 0, never))
	})
	add("TokenBucket/ARaisedPlanHelpsAtOnce", func(b *bench) {
		// What was spent is kept, not what was left.
		free := bucket(b.t, "per-minute", 60, minute, 10)
		pro := bucket(b.t, "per-minute", 600, minute, 100)
		b.want("priya123", free, 10, yes(0, second))
		b.want("priya123", free, 1, no(0, second, second))
		b.want("priya123", pro, 1, yes(89, 100*time.Millisecond))
	})
	add("TokenBucket/ALoweredPlanCapsTheDebt", func(b *bench) {
		pro := bucket(b.t, "per-minute", 600, minute, 100)
		free := bucket(b.t, "per-minute", 60, minute, 10)
		b.want("priya123", pro, 90, yes(10, 100*time.Millisecond))
		b.want("priya123", free, 1, no(0, second, second)) // 10 owed, not 90
		b.clock.Advance(second)
		b.want("priya123", free, 1, yes(0, second))
		// The same where only the burst is lowered.
		wide := bucket(b.t, "per-minute", 60, minute, 100)
		b.want("acme", wide, 90, yes(10, second))
		b.clock.Advance(second)
		b.want("acme", free, 1, yes(0, second))
	})
	add("TokenBucket/TogglingPlansGivesNoSecondBudget", func(b *bench) {
		pro, free := bucket(b.t, "per-minute", 600, minute, 1000), bucket(b.t, "per-minute", 60, minute, 20)
		b.want("priya123", pro, 1000, yes(0, 100*milli))
		b.want("priya123", free, 1, no(0, second, second)) // as one who used up this plan
		b.clock.Advance(second)
		b.want("priya123", free, 1, yes(0, second))
		b.want("priya123", pro, 10, no(9, 100*milli, 100*milli)) // ten came back, one was spent
		b.want("priya123", pro, 9, yes(0, 100*milli))
		b.want("priya123", free, 1, no(0, second, second))
	})
	add("TokenBucket/WhatIsChargedUnderASmallPlanCountsInTheLargeOne", func(b *bench) {
		pro, free := bucket(b.t, "per-minute", 60, minute, 100), bucket(b.t, "per-minute", 60, minute, 10)
		b.want("priya123", pro, 50, yes(50, second))
		b.clock.Advance(second)
		b.want("priya123", free, 1, yes(0, second)) // ten owed, one came back
		b.clock.Advance(20 * second)
		b.want("priya123", free, 10, yes(0, second)) // all of it is there again
		b.want("priya123", pro, 0, yes(60, second))  // 50 - 1 + 1 - 20 + 10 are spent
		b.clock.Advance(40 * second)
		b.want("priya123", pro, 100, yes(0, second)) // and all of that
	})
	add("TokenBucket/ThreePlansInTurn", func(b *bench) {
		large, middle, small := bucket(b.t, "per-minute", 60, minute, 100), bucket(b.t, "per-minute", 60, minute, 20), bucket(b.t, "per-minute", 60, minute, 5)
		b.want("priya123", large, 100, yes(0, second))
		b.clock.Advance(second)
		b.want("priya123", middle, 1, yes(0, second))
		b.clock.Advance(second)
		b.want("priya123", small, 1, yes(0, second))
		b.want("priya123", middle, 1, no(0, second, second)) // no second 15
		b.want("priya123", large, 1, no(0, second, second))
		b.clock.Advance(10 * second)
		b.want("priya123", middle, 10, yes(0, second))
		b.want("priya123", small, 1, no(0, second, second))
		b.want("priya123", large, 1, no(0, second, second))
	})
	add("TokenBucket/APartOfAUnitIsRoundedAgainstTheCaller", func(b *bench) {
		// 1.4 units are spent in the first plan. The second counts in whole units
		// only, so there they are 2.
		fine, coarse := bucket(b.t, "per-second", 1, second, 10), bucket(b.t, "per-second", 1_000_000, second, 10)
		b.want("priya123", fine, 1, yes(9, second))
		b.clock.Advance(600 * time.Millisecond)
		b.want("priya123", fine, 1, yes(8, 400*time.Millisecond))
		b.want("priya123", coarse, 9, no(8, micro, micro))
		b.want("priya123", coarse, 8, yes(0, micro))
	})
	add("TokenBucket/HugeNumbers", func(b *bench) {
		// One unit in 366 days; the bucket is full of units of 3.16e13 parts.
		p := bucket(b.t, "slow", 1, ratelimit.MaxWindow, 284)
		b.want("priya123", p, 284, yes(0, ratelimit.MaxWindow))
		b.clock.Advance(ratelimit.MaxWindow - micro)
		b.want("priya123", p, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, yes(0, ratelimit.MaxWindow))
		// As many units as a structured field can carry.
		q := bucket(b.t, "fast", ratelimit.MaxQuota, second, ratelimit.MaxQuota)
		b.want("priya123", q, ratelimit.MaxQuota-1, yes(1, micro))
		b.want("priya123", q, 2, no(1, micro, micro))
		// From 1/31,622,400,000,000 of a unit to 1/518,400,000,000, a product of
		// 84 bits: 198 and 30,387,832,109,877 of the one are 198 and
		// 498,161,182,129.13… of the other, of which seven come back each µs.
		from, to := bucket(b.t, "scale", 1, ratelimit.MaxWindow, 200), bucket(b.t, "scale", 427, ratelimit.MaxWindow, 200)
		b.want("priya123", from, 198, yes(2, ratelimit.MaxWindow))
		b.clock.Advance(1_234_567_890_123 * micro)
		b.want("priya123", from, 1, yes(1, 30_387_832_109_877*micro))
		b.want("priya123", to, 1, yes(0, 71_165_883_162*micro))
	})
	add("TokenBucket/AClockThatStepsBackRefillsNothing", func(b *bench) {
		p := bucket(b.t, "per-second", 1, second, 2)
		b.want("priya123", p, 2, yes(0, second))
		b.clock.Advance(-10 * second)
		// Remaining is never negative and the wait is until the clock is back.
		b.want("priya123", p, 1, no(0, 11*second, 11*second))
		b.clock.Advance(10 * second)
		b.want("priya123", p, 1, no(0, second, second)) // the ten seconds were not refilled
		b.clock.Advance(second)
		b.want("priya123", p, 1, yes(0, second))
		b.clock.Advance(-half)
		b.want("priya123", p, 1, no(0, 1500*time.Millisecond, 1500*time.Millisecond))
	})
	add("TokenBucket/ADeniedAttemptCostsNothing", func(b *bench) {
		p := bucket(b.t, "per-second", 1, second, 1)
		b.want("priya123", p, 1, yes(0, second))
		for range 50 {
			b.clock.Advance(10 * time.Millisecond)
			b.take(charge("priya123", p, 1))
		}
		b.want("priya123", p, 1, no(0, half, half))
		b.clock.Advance(half)
		b.want("priya123", p, 1, yes(0, second))
	})
}

// windowStories: a fixed window grants its quota once.
func windowStories(add func(name string, story func(b *bench))) {
	add("FixedWindow/OpensWithTheFirstCharge", func(b *bench) {
		p := window(b.t, "per-minute", 3, minute)
		b.clock.Advance(17 * second)
		b.want("priya123", p, 1, yes(2, minute))
		b.clock.Advance(20 * second)
		b.want("priya123", p, 2, yes(0, 40*second))
		b.want("priya123", p, 1, no(0, 40*second, 40*second))
		b.clock.Advance(40*second - micro)
		b.want("priya123", p, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, yes(2, minute)) // a new one, from now
	})
	add("FixedWindow/ADenialOpensNoWindow", func(b *bench) {
		p := window(b.t, "per-minute", 3, minute)
		b.want("priya123", p, 4, no(3, 0, never))
		b.clock.Advance(30 * second)
		b.want("priya123", p, 1, yes(2, minute))
	})
	add("FixedWindow/CostAboveTheQuotaNever", func(b *bench) {
		p := window(b.t, "per-minute", 3, minute)
		b.want("priya123", p, 1, yes(2, minute))
		b.want("priya123", p, 3, no(2, minute, minute))
		b.want("priya123", p, 4, no(2, minute, never))
		b.want("priya123", p, tooMuch, no(2, minute, never))
	})
	add("FixedWindow/ZeroQuotaDenies", func(b *bench) {
		b.want("priya123", window(b.t, "off", 0, minute), 1, no(0, 0, never))
	})
	add("FixedWindow/APlanThatChangesKeepsTheCount", func(b *bench) {
		free, pro := window(b.t, "per-day", 10, 24*time.Hour), window(b.t, "per-day", 100, 24*time.Hour)
		b.want("priya123", free, 10, yes(0, 24*time.Hour))
		b.clock.Advance(time.Hour)
		b.want("priya123", pro, 40, yes(50, 23*time.Hour))
		b.want("priya123", free, 1, no(0, 23*time.Hour, 23*time.Hour)) // 50 used of 10: none left, not -40
	})
	add("FixedWindow/AClockThatStepsBackEndsNothing", func(b *bench) {
		p := window(b.t, "per-minute", 2, minute)
		b.want("priya123", p, 1, yes(1, minute))
		b.clock.Advance(-second)
		b.want("priya123", p, 1, yes(0, 61*second))
		b.want("priya123", p, 1, no(0, 61*second, 61*second))
	})
	add("FixedWindow/HugeNumbers", func(b *bench) {
		p := window(b.t, "per-year", ratelimit.MaxQuota, ratelimit.MaxWindow)
		b.want("priya123", p, ratelimit.MaxQuota-1, yes(1, ratelimit.MaxWindow))
		b.want("priya123", p, 2, no(1, ratelimit.MaxWindow, ratelimit.MaxWindow))
		b.want("priya123", p, 1, yes(0, ratelimit.MaxWindow))
	})
}

// listStories: charges of one list are decided in one step, all or none.
func listStories(add func(name string, story func(b *bench))) {
	add("List/OneDenialChargesNone", func(b *bench) {
		small, large := bucket(b.t, "small", 1, second, 1), window(b.t, "large", 10, minute)
		both := func() []ratelimit.Decision {
			return b.take(charge("priya123", large, 2), charge("priya123", small, 1))
		}
		ds := both()
		b.equal(ds[0], large, yes(8, minute), "first of both")
		b.equal(ds[1], small, yes(0, second), "second of both")
		for range 3 {
			ds = both()
			// The one that would have allowed says so, and says what it has.
			b.equal(ds[0], large, yes(8, minute), "the allowing one of a denial")
			b.equal(ds[1], small, no(0, second, second), "the denying one")
		}
		ds = b.take(charge("priya123", small, 1), charge("priya123", large, 2)) // in the other order
		b.equal(ds[0], small, no(0, second, second), "the denying one, first")
		b.equal(ds[1], large, yes(8, minute), "the allowing one, second")
		b.want("priya123", large, 8, yes(0, minute))
	})
	add("List/ADenialOpensNoOtherWindow", func(b *bench) {
		off, day := window(b.t, "off", 0, minute), window(b.t, "per-day", 5, 24*time.Hour)
		ds := b.take(charge("priya123", day, 1), charge("priya123", off, 1))
		b.equal(ds[0], day, yes(5, 0), "beside a denial")
		b.clock.Advance(time.Hour)
		b.want("priya123", day, 1, yes(4, 24*time.Hour))
	})
	add("List/TwoChargesOnOneBucket", func(b *bench) {
		p := bucket(b.t, "per-second", 1, second, 5)
		ds := b.take(charge("priya123", p, 2), charge("priya123", p, 2))
		b.equal(ds[0], p, yes(3, second), "the first of two")
		b.equal(ds[1], p, yes(1, second), "the second, after the first")
		ds = b.take(charge("priya123", p, 1), charge("priya123", p, 1))
		b.equal(ds[0], p, yes(1, second), "the first fits")
		b.equal(ds[1], p, no(1, second, second), "the second waits until both fit")
		ds = b.take(charge("priya123", p, 1), charge("priya123", p, 5))
		b.equal(ds[1], p, no(1, second, never), "together never")
		w := window(b.t, "per-minute", 3, minute)
		ds = b.take(charge("priya123", w, 2), charge("priya123", w, 2))
		b.equal(ds[0], w, yes(3, 0), "the first of a new window")
		b.equal(ds[1], w, no(3, 0, never), "together never")
		b.want("priya123", w, 3, yes(0, minute))
	})
	add("List/KeepsTheOrderAndTheSlice", func(b *bench) {
		var charges []ratelimit.Charge
		for i := range 12 {
			p := window(b.t, fmt.Sprintf("limit-%d", i), int64(100+i), minute)
			charges = append(charges, charge("priya123", p, int64(i+1)))
		}
		dst := make([]ratelimit.Decision, 3, 20)
		ds, err := b.store.Take(b.t.Context(), charges, dst)
		if err != nil {
			b.t.Fatal(err)
		}
		if len(ds) != len(charges) || &ds[0] != &dst[0] {
			b.t.Fatalf("%d decisions; want %d, in the slice that was given", len(ds), len(charges))
		}
		for i, d := range ds {
			b.equal(d, charges[i].Policy, yes(int64(99), minute), fmt.Sprintf("charge %d", i))
		}
	})
	add("List/EmptyAdmits", func(b *bench) {
		if ds := b.take(); len(ds) != 0 || !ratelimit.Admitted(ds) {
			b.t.Errorf("no charges: %v", ds)
		}
	})

	add("Key/CallersAndLimitsAreApart", func(b *bench) {
		p, q := bucket(b.t, "per-minute", 1, minute, 1), window(b.t, "per-minute", 1, minute)
		other := bucket(b.t, "other", 1, minute, 1)
		longer := bucket(b.t, "per-minute", 1, 2*minute, 1)
		b.want("priya123", p, 1, yes(0, minute))
		b.want("priya123", p, 1, no(0, minute, minute))
		b.want("acme", p, 1, yes(0, minute))            // another caller
		b.want("priya123", q, 1, yes(0, minute))        // another algorithm
		b.want("priya123", other, 1, yes(0, minute))    // another limit
		b.want("priya123", longer, 1, yes(0, 2*minute)) // another window
		b.want("priya123", p, 1, no(0, minute, minute))
	})
	add("Key/AnEqualPolicyIsTheSameBucket", func(b *bench) {
		// A reload makes the policies anew and resets nothing.
		b.want("priya123", bucket(b.t, "per-minute", 60, minute, 5), 5, yes(0, second))
		b.want("priya123", bucket(b.t, "per-minute", 60, minute, 5), 1, no(0, second, second))
	})
}

const half = 500 * time.Millisecond
