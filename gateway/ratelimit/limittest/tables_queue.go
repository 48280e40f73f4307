package limittest

import (
	"context"
	"time"

	"bouncer/gateway/ratelimit"
)

// queueStories: a leaky bucket drips at a steady rate, and a request waits for
// its drip.
func queueStories(add func(name string, story func(b *bench))) {
	add("Queue/OneGoesAtOnceTheOthersInTurn", func(b *bench) {
		// 50 a second is a drip in 20 ms; two wait.
		p := queue(b.t, "per-second", 50, second, 2, 0)
		b.want("priya123", p, 1, yes(2, 20*milli))
		b.want("priya123", p, 1, held(1, 20*milli, 20*milli))
		b.want("priya123", p, 1, held(0, 20*milli, 40*milli))
		b.want("priya123", p, 1, no(0, 20*milli, 20*milli))
		b.clock.Advance(20*milli - micro)
		b.want("priya123", p, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, held(0, 20*milli, 40*milli))
		b.clock.Advance(50 * milli)
		b.want("priya123", p, 1, held(1, 10*milli, 10*milli))
		b.clock.Advance(hour)
		b.want("priya123", p, 1, yes(2, 20*milli)) // an idle bucket saves nothing up
	})
	add("Queue/AsManyDripsAsItCosts", func(b *bench) {
		p := queue(b.t, "per-second", 50, second, 2, 0)
		b.want("priya123", p, 4, no(3, 0, never))
		b.want("priya123", p, tooMuch, no(3, 0, never))
		b.want("priya123", p, 3, held(0, 20*milli, 40*milli)) // goes at the last of them
		b.clock.Advance(40 * milli)
		b.want("priya123", p, 2, held(0, 20*milli, 40*milli))
		b.want("priya123", p, 3, no(0, 20*milli, 60*milli))
	})
	add("Queue/WithoutPlaces", func(b *bench) {
		p := queue(b.t, "per-second", 1, second, 0, 0)
		b.want("priya123", p, 1, yes(0, second))
		b.want("priya123", p, 1, no(0, second, second))
		b.clock.Advance(second)
		b.want("priya123", p, 1, yes(0, second))
	})
	add("Queue/NobodyWaitsLongerThanTheMaxDelay", func(b *bench) {
		p := queue(b.t, "per-second", 50, second, 100, 30*milli)
		b.want("priya123", p, 1, yes(1, 10*milli))
		b.want("priya123", p, 1, held(0, 10*milli, 20*milli))
		b.want("priya123", p, 1, no(0, 10*milli, 10*milli)) // would wait 40 ms
		b.clock.Advance(10*milli - micro)
		b.want("priya123", p, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, held(0, 20*milli, 30*milli)) // to the microsecond
		b.want("priya123", p, 3, no(0, 20*milli, never))      // its last would wait 40 ms, always
		b.clock.Advance(45 * milli)
		// Of two and a half drips, a quarter is owed. No third will ever fit, so
		// there is nothing to wait for.
		b.want("priya123", p, 0, yes(2, 0))
	})
	add("Queue/AMaxDelayShorterThanADrip", func(b *bench) {
		p := queue(b.t, "per-second", 50, second, 100, 10*milli)
		b.want("priya123", p, 2, no(1, 0, never))
		b.want("priya123", p, 1, yes(0, 10*milli))
		b.want("priya123", p, 1, no(0, 10*milli, 10*milli))
		b.clock.Advance(10 * milli)
		b.want("priya123", p, 1, held(0, 20*milli, 10*milli))
	})
	add("Queue/DelaysAreRoundedUp", func(b *bench) {
		p := queue(b.t, "per-second", 3, second, 2, 0)
		b.want("priya123", p, 1, yes(2, 333_334*micro))
		b.want("priya123", p, 1, held(1, 333_334*micro, 333_334*micro))
		b.want("priya123", p, 1, held(0, 333_334*micro, 666_667*micro))
	})
	add("Queue/AnAbandonedPlaceShiftsNobody", func(b *bench) {
		// The client of the second goes away. Its drip falls all the same.
		p := queue(b.t, "per-second", 1, second, 3, 0)
		b.want("priya123", p, 1, yes(3, second))
		ctx, leave := context.WithCancel(b.t.Context())
		ds, err := b.store.Take(ctx, []ratelimit.Charge{charge("priya123", p, 1)}, nil)
		leave()
		if err != nil || len(ds) != 1 {
			b.t.Fatalf("%d decisions, error %v", len(ds), err)
		}
		b.equal(ds[0], p, held(2, second, second), "who leaves")
		b.want("priya123", p, 1, held(1, second, 2*second))
		b.clock.Advance(second)
		b.want("priya123", p, 1, held(1, second, 2*second))
	})
	add("Queue/ADeniedAttemptTakesNoPlace", func(b *bench) {
		p := queue(b.t, "per-second", 1, second, 1, 0)
		b.want("priya123", p, 2, held(0, second, second))
		for range 50 {
			b.clock.Advance(10 * milli)
			b.take(charge("priya123", p, 1))
		}
		b.want("priya123", p, 1, no(0, half, half))
		b.clock.Advance(half)
		b.want("priya123", p, 1, held(0, second, second))
	})
	add("Queue/ZeroQuotaDenies", func(b *bench) {
		p := queue(b.t, "off", 0, minute, 5, 0)
		b.want("priya123", p, 1, no(0, 0, never))
		b.clock.Advance(hour)
		b.want("priya123", p, 1, no(0, 0, never))
		b.want("priya123", queue(b.t, "off-too", 0, minute, 5, second), 1, no(0, 0, never))
	})
	add("Queue/APlanThatChangesKeepsWhatIsOwed", func(b *bench) {
		free := queue(b.t, "per-second", 1, second, 1, 0)
		pro := queue(b.t, "per-second", 10, second, 19, 0)
		b.want("priya123", free, 2, held(0, second, second))
		b.want("priya123", free, 1, no(0, second, second))
		b.want("priya123", pro, 1, held(17, 100*milli, 200*milli)) // a raised plan helps at once
		b.want("acme", pro, 20, held(0, 100*milli, 1900*milli))
		b.want("acme", free, 1, no(0, second, second)) // 2 owed, not 20
		b.clock.Advance(second)
		b.want("acme", free, 1, held(0, second, second))
		// A shorter wait is a shorter queue.
		quick := queue(b.t, "per-second", 10, second, 9, 250*milli)
		b.want("amir", pro, 20, held(0, 100*milli, 1900*milli))
		b.want("amir", quick, 1, no(0, 100*milli, 100*milli))
	})
	add("Queue/AClockThatStepsBackDripsNothing", func(b *bench) {
		p := queue(b.t, "per-second", 1, second, 2, 0)
		b.want("priya123", p, 1, yes(2, second))
		b.clock.Advance(-10 * second)
		b.want("priya123", p, 1, held(1, 11*second, 11*second))
		b.want("priya123", p, 1, held(0, 11*second, 12*second))
		b.want("priya123", p, 1, no(0, 11*second, 11*second))
		b.clock.Advance(10 * second)
		b.want("priya123", p, 1, no(0, second, second)) // the ten seconds did not drip
		b.clock.Advance(second)
		b.want("priya123", p, 1, held(0, second, 2*second))
	})
	add("Queue/NobodyWaitsLongerThanTheMaxDelayForAClockEither", func(b *bench) {
		p := queue(b.t, "per-second", 50, second, 100, 30*milli)
		b.want("priya123", p, 1, yes(1, 10*milli))
		b.clock.Advance(-15 * milli)
		// It would go after 15 ms and a drip of 20.
		b.want("priya123", p, 1, no(0, 5*milli, 5*milli))
		b.clock.Advance(5*milli - micro)
		b.want("priya123", p, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, held(0, 20*milli, 30*milli)) // to the microsecond
		b.clock.Advance(-second)
		b.want("priya123", p, 1, no(0, 1020*milli, 1020*milli))
		// The places do not: they are as many as ever.
		q := queue(b.t, "others", 50, second, 3, hour)
		b.want("priya123", q, 1, yes(3, 20*milli))
		b.clock.Advance(-second)
		b.want("priya123", q, 3, held(0, 1020*milli, 1060*milli))
	})
	add("Queue/TogglingPlansGivesNoSecondBudget", func(b *bench) {
		pro, free := queue(b.t, "per-second", 10, second, 99, 0), queue(b.t, "per-second", 10, second, 1, 0)
		b.want("priya123", pro, 100, held(0, 100*milli, 9900*milli))
		b.clock.Advance(100 * milli)
		b.want("priya123", free, 1, held(0, 100*milli, 100*milli))
		b.want("priya123", pro, 1, no(0, 100*milli, 100*milli))
	})
	add("Queue/HugeNumbers", func(b *bench) {
		// One drip in 366 days, each of 3.16e13 parts.
		const year = ratelimit.MaxWindow
		p := queue(b.t, "slow", 1, year, 283, 0)
		b.want("priya123", p, 284, held(0, year, 283*year))
		b.clock.Advance(year - micro)
		b.want("priya123", p, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, held(0, year, 283*year))
		// As many units as a structured field can carry, one in a µs.
		q := queue(b.t, "fast", ratelimit.MaxQuota, second, ratelimit.MaxQuota-1, 0)
		b.want("priya123", q, ratelimit.MaxQuota-1, held(1, micro, time.Duration(ratelimit.MaxQuota-2)*micro))
		b.want("priya123", q, 2, no(1, micro, micro))
		// A wait whose product with the rate passes 2^53 is bounded by the queue.
		r := queue(b.t, "brisk", 999_999, second, 9, ratelimit.MaxWindow)
		b.want("priya123", r, 10, held(0, 2*micro, 10*micro))
	})
}
