package limittest

import (
	"time"

	"bouncer/gateway/ratelimit"
)

// logStories: a sliding window log admits its quota in any span of a window.
func logStories(add func(name string, story func(b *bench))) {
	add("Log/ExactInEverySpan", func(b *bench) {
		// 3 in any minute: each unit comes back a minute after it was spent.
		p := log(b.t, "per-minute", 3, minute)
		b.want("priya123", p, 1, yes(2, minute))
		b.clock.Advance(20 * second)
		b.want("priya123", p, 2, yes(0, 40*second))
		b.want("priya123", p, 1, no(0, 40*second, 40*second))
		b.want("priya123", p, 2, no(0, 40*second, minute)) // needs one of those of now as well
		b.clock.Advance(40*second - micro)
		b.want("priya123", p, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, yes(0, 20*second))
		b.clock.Advance(20 * second)
		b.want("priya123", p, 2, yes(0, 40*second))
	})
	add("Log/NoDoubleAcrossAnEdge", func(b *bench) {
		// Where a fixed window would grant 3 at its end and 4 more at once.
		p := log(b.t, "per-minute", 4, minute)
		b.want("priya123", p, 1, yes(3, minute))
		b.clock.Advance(59 * second)
		b.want("priya123", p, 3, yes(0, second))
		b.clock.Advance(second)
		b.want("priya123", p, 2, no(1, 59*second, 59*second))
		b.want("priya123", p, 1, yes(0, 59*second))
	})
	add("Log/WhatIsSpentAtOnceComesBackAtOnce", func(b *bench) {
		p := log(b.t, "per-second", 5, second)
		b.want("priya123", p, 2, yes(3, second))
		b.want("priya123", p, 2, yes(1, second)) // in the same microsecond
		b.want("priya123", p, 2, no(1, second, second))
		b.clock.Advance(second - micro)
		b.want("priya123", p, 2, no(1, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 5, yes(0, second))
	})
	add("Log/ADeniedAttemptLeavesNoEntry", func(b *bench) {
		p := log(b.t, "per-second", 1, second)
		b.want("priya123", p, 1, yes(0, second))
		for range 50 {
			b.clock.Advance(10 * milli)
			b.take(charge("priya123", p, 1))
		}
		b.want("priya123", p, 1, no(0, half, half))
		b.clock.Advance(half)
		b.want("priya123", p, 1, yes(0, second))
	})
	add("Log/CostAboveTheQuotaNever", func(b *bench) {
		p := log(b.t, "per-minute", 3, minute)
		b.want("priya123", p, 4, no(3, 0, never))
		b.want("priya123", p, tooMuch, no(3, 0, never))
		b.want("priya123", p, 3, yes(0, minute))
		b.want("priya123", p, 4, no(0, minute, never))
	})
	add("Log/ZeroQuotaDenies", func(b *bench) {
		b.want("priya123", log(b.t, "off", 0, minute), 1, no(0, 0, never))
	})
	add("Log/ThousandsAtOnce", func(b *bench) {
		// More units in one charge than a script passes arguments in one call.
		p := log(b.t, "per-hour", 20_000, hour)
		b.want("priya123", p, 19_999, yes(1, hour))
		b.clock.Advance(second)
		b.want("priya123", p, 1, yes(0, hour-second))
		b.want("priya123", p, 19_999, no(0, hour-second, hour-second))
		b.want("priya123", p, 20_000, no(0, hour-second, hour))
		b.clock.Advance(hour - second)
		b.want("priya123", p, 19_998, yes(1, second))
	})
	add("Log/TheLongestWindow", func(b *bench) {
		p := log(b.t, "per-year", 2, ratelimit.MaxWindow)
		b.want("priya123", p, 1, yes(1, ratelimit.MaxWindow))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, yes(0, ratelimit.MaxWindow-micro))
		b.clock.Advance(ratelimit.MaxWindow - 2*micro)
		b.want("priya123", p, 2, no(0, micro, 2*micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, yes(0, micro))
	})
	add("Log/ARaisedPlanHelpsAtOnce", func(b *bench) {
		free, pro := log(b.t, "per-minute", 2, minute), log(b.t, "per-minute", 5, minute)
		b.want("priya123", free, 2, yes(0, minute))
		b.clock.Advance(10 * second)
		b.want("priya123", free, 1, no(0, 50*second, 50*second))
		b.want("priya123", pro, 2, yes(1, 50*second))
	})
	add("Log/ALoweredPlanKeepsTheEntries", func(b *bench) {
		free, pro := log(b.t, "per-minute", 3, minute), log(b.t, "per-minute", 10, minute)
		for i := range int64(6) { // at 0 s to 5 s
			b.want("priya123", pro, 1, yes(9-i, minute-time.Duration(i)*second))
			b.clock.Advance(second)
		}
		b.clock.Advance(-second)
		// 6 of 3: none left, not -3. Four have to go before one more fits.
		b.want("priya123", free, 1, no(0, 58*second, 58*second))
		b.clock.Advance(58*second - micro)
		b.want("priya123", free, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", free, 1, yes(0, second))
	})
	add("Log/AClockThatStepsBackFreesNothing", func(b *bench) {
		p := log(b.t, "per-minute", 3, minute)
		b.want("priya123", p, 1, yes(2, minute))
		b.clock.Advance(-10 * second)
		// What is spent meanwhile counts from the latest time that was seen, so
		// that the order holds; nobody waits longer than the step.
		b.want("priya123", p, 1, yes(1, 70*second))
		b.want("priya123", p, 2, no(1, 70*second, 70*second))
		b.clock.Advance(10 * second)
		b.want("priya123", p, 1, yes(0, minute))
		b.want("priya123", p, 1, no(0, minute, minute))
		b.clock.Advance(minute)
		b.want("priya123", p, 3, yes(0, minute))
	})
}
