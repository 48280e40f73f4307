package limittest

import (
	"bouncer/gateway/ratelimit"
)

// counterStories: a sliding window counter has what is spent in the clock's
// window, and of what was spent in the window before, the share that the last
// window's length still covers.
func counterStories(add func(name string, story func(b *bench))) {
	add("Counter/ThePreviousWindowFades", func(b *bench) {
		p := counter(b.t, "per-minute", 100, minute)
		b.align(minute)
		// To have 21 again, 80 must fade to 79: three quarters of a second of the
		// next window.
		b.want("priya123", p, 80, yes(20, 60_750*milli))
		b.clock.Advance(75 * second)
		b.want("priya123", p, 40, yes(0, 750*milli)) // a quarter has passed: 60 of the 80 count
		b.want("priya123", p, 1, no(0, 750*milli, 750*milli))
		b.want("priya123", p, 2, no(0, 750*milli, 1500*milli))
		b.clock.Advance(750*milli - micro)
		b.want("priya123", p, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, yes(0, 750*milli))
	})
	add("Counter/WindowsAreTheClocks", func(b *bench) {
		// They do not begin with the first charge.
		p := counter(b.t, "per-minute", 100, minute)
		b.align(minute)
		b.clock.Advance(59 * second)
		b.want("priya123", p, 100, yes(0, 1600*milli))
		b.clock.Advance(second) // a new window, all of the one before counts
		b.want("priya123", p, 1, no(0, 600*milli, 600*milli))
		b.clock.Advance(30 * second)
		b.want("priya123", p, 50, yes(0, 600*milli))
		b.clock.Advance(90 * second) // two windows later, by the clock
		b.want("priya123", p, 100, yes(0, 60_600*milli))
	})
	add("Counter/TheWeightIsRoundedUp", func(b *bench) {
		p := counter(b.t, "per-minute", 10, minute)
		b.align(minute)
		b.want("priya123", p, 1, yes(9, 2*minute)) // one is one until it is none
		b.clock.Advance(2*minute - micro)
		b.want("priya123", p, 10, no(9, micro, micro))
		b.want("priya123", p, 9, yes(0, micro))
		b.clock.Advance(micro)
		// Nine count, and one part of nine is 6,666,666⅔ µs of a minute.
		b.want("priya123", p, 1, yes(0, 6_666_667*micro))
		b.clock.Advance(6_666_666 * micro)
		b.want("priya123", p, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 1, yes(0, 6_666_667*micro))
	})
	add("Counter/ADeniedAttemptCostsNothing", func(b *bench) {
		p := counter(b.t, "per-minute", 2, minute)
		b.align(minute)
		b.want("priya123", p, 2, yes(0, 90*second))
		for range 50 {
			b.clock.Advance(second)
			b.take(charge("priya123", p, 1))
		}
		b.want("priya123", p, 1, no(0, 40*second, 40*second))
		b.clock.Advance(40 * second)
		b.want("priya123", p, 1, yes(0, 30*second))
	})
	add("Counter/CostAboveTheQuotaNever", func(b *bench) {
		p := counter(b.t, "per-minute", 3, minute)
		b.align(minute)
		b.want("priya123", p, 4, no(3, 0, never))
		b.want("priya123", p, tooMuch, no(3, 0, never))
		b.want("priya123", p, 3, yes(0, 80*second))
		b.want("priya123", p, 3, no(0, 80*second, 2*minute)) // all of them must have faded
		b.want("priya123", p, 4, no(0, 80*second, never))
	})
	add("Counter/ZeroQuotaDenies", func(b *bench) {
		b.want("priya123", counter(b.t, "off", 0, minute), 1, no(0, 0, never))
	})
	add("Counter/APlanThatChangesKeepsTheCounts", func(b *bench) {
		free, pro := counter(b.t, "per-minute", 10, minute), counter(b.t, "per-minute", 100, minute)
		b.align(minute)
		b.want("acme", free, 10, yes(0, 66*second))
		b.want("acme", pro, 40, yes(50, 61_200*milli)) // a raised plan helps at once
		b.want("priya123", pro, 60, yes(40, 61*second))
		// 60 of 10: none left, not -50; they must fade to 9.
		b.want("priya123", free, 1, no(0, 111*second, 111*second))
		b.clock.Advance(111*second - micro)
		b.want("priya123", free, 1, no(0, micro, micro))
		b.clock.Advance(micro)
		b.want("priya123", free, 1, yes(0, second))
	})
	add("Counter/AClockThatStepsBackFadesNothing", func(b *bench) {
		p := counter(b.t, "per-minute", 10, minute)
		b.align(minute)
		b.clock.Advance(second)
		b.want("priya123", p, 10, yes(0, 65*second))
		b.clock.Advance(-5 * second)                          // into the window before
		b.want("priya123", p, 1, no(0, 70*second, 70*second)) // nobody waits longer than the step
		b.clock.Advance(5 * second)
		b.want("priya123", p, 1, no(0, 65*second, 65*second))
		b.clock.Advance(65 * second)
		b.want("priya123", p, 1, yes(0, 6*second))

		b.align(minute)
		b.want("acme", p, 4, yes(6, 75*second))
		b.clock.Advance(-second)
		b.want("acme", p, 3, yes(3, 69_571_429*micro)) // counts in the window that had begun
		b.clock.Advance(second)
		b.want("acme", p, 4, no(3, 68_571_429*micro, 68_571_429*micro))
	})
	add("Counter/HugeNumbers", func(b *bench) {
		// The count times the window is a number of 95 bits.
		const most, year = ratelimit.MaxQuota, ratelimit.MaxWindow
		p := counter(b.t, "per-year", most, year)
		b.align(year)
		b.want("priya123", p, most, yes(0, year+micro))
		b.want("priya123", p, 1, no(0, year+micro, year+micro))
		b.clock.Advance(year + 1_234_567_890_123*micro)
		// 960,959,070,465,143.6… of them still count.
		const free = most - 960_959_070_465_144
		b.want("priya123", p, free+1, no(free, micro, micro))
		b.want("priya123", p, free-1, yes(1, micro))
		b.want("priya123", p, 1_000_000_000_000, no(1, micro, 31_622_400_000*micro))
		b.want("priya123", p, most, no(1, micro, 62_010_232_109_877*micro))
	})
}
