package limittest

import (
	"bouncer/gateway/ratelimit"
)

// roleStories: a shadow limit counts and denies nobody; a candidate counts what
// would have been admitted with its number in force.
func roleStories(add func(name string, story func(b *bench))) {
	type policies = []*ratelimit.Policy

	add("Shadow/DeniesNobody", func(b *bench) {
		live, trial := bucket(b.t, "live", 1, second, 4), bucket(b.t, "trial", 1, minute, 2, shadow)
		both := policies{live, trial}
		b.wantAll(1, both, yes(3, second), yes(1, minute))
		b.wantAll(1, both, yes(2, second), yes(0, minute))
		// It says no, is not charged, and the request is admitted and charged.
		b.wantAll(1, both, yes(1, second), no(0, minute, minute))
		b.wantAll(1, both, yes(0, second), no(0, minute, minute))
		b.wantAll(1, both, no(0, second, second), no(0, minute, minute))
	})
	add("Shadow/AloneAdmits", func(b *bench) {
		p := log(b.t, "trial", 1, minute, shadow)
		b.want("priya123", p, 1, yes(0, minute))
		b.want("priya123", p, 1, no(0, minute, minute))
		b.want("priya123", p, 2, no(0, minute, never))
	})
	add("Shadow/IsNotChargedForADeniedRequest", func(b *bench) {
		for _, trial := range []*ratelimit.Policy{
			bucket(b.t, "a", 5, minute, 5, shadow), window(b.t, "b", 5, minute, shadow), log(b.t, "c", 5, minute, shadow),
			counter(b.t, "d", 5, minute, shadow), queue(b.t, "e", 5, minute, 4, 0, shadow),
		} {
			off := window(b.t, "off", 0, minute)
			b.wantAll(1, policies{trial, off}, yes(5, 0), no(0, 0, never))
			b.wantAll(1, policies{off, trial}, no(0, 0, never), yes(5, 0))
		}
	})
	add("Shadow/OneThatDeniesKeepsTheOthersWhole", func(b *bench) {
		// Two on trial: the one that allows is charged beside the one that denies.
		p, q := window(b.t, "p", 0, minute, shadow), window(b.t, "q", 5, minute, shadow)
		b.wantAll(1, policies{p, q}, no(0, 0, never), yes(4, minute))
		b.wantAll(1, policies{q, p}, yes(3, minute), no(0, 0, never))
	})
	add("Shadow/PutInForceKeepsItsCount", func(b *bench) {
		trial, live := window(b.t, "per-minute", 2, minute, shadow), window(b.t, "per-minute", 2, minute)
		b.want("priya123", trial, 2, yes(0, minute))
		b.want("priya123", trial, 1, no(0, minute, minute))
		b.want("priya123", live, 1, no(0, minute, minute))
	})
	add("Shadow/HoldsAPlaceInTheQueue", func(b *bench) {
		// What would have been the wait is said, if the request is admitted.
		p, small := queue(b.t, "trial", 1, second, 2, 0, shadow), bucket(b.t, "small", 1, hour, 2)
		b.wantAll(1, policies{p, small}, yes(2, second), yes(1, hour))
		b.wantAll(1, policies{p, small}, held(1, second, second), yes(0, hour))
		b.wantAll(1, policies{p, small}, yes(1, second), no(0, hour, hour))
	})

	add("Candidate/LowerCountsWhatItWouldAdmit", func(b *bench) {
		both := policies{window(b.t, "per-minute", 5, minute), window(b.t, "per-minute", 2, minute, candidate)}
		b.wantAll(1, both, yes(4, minute), yes(1, minute))
		b.wantAll(1, both, yes(3, minute), yes(0, minute))
		b.clock.Advance(second)
		// The live one goes on, the candidate says no and stays where it is.
		b.wantAll(1, both, yes(2, 59*second), no(0, 59*second, 59*second))
		b.wantAll(2, both, yes(0, 59*second), no(0, 59*second, 59*second))
		b.wantAll(3, both, no(0, 59*second, 59*second), no(0, 59*second, never))
	})
	add("Candidate/HigherCountsOnWhereTheLiveOneDenies", func(b *bench) {
		both := policies{window(b.t, "per-minute", 1, minute), window(b.t, "per-minute", 3, minute, candidate)}
		b.wantAll(1, both, yes(0, minute), yes(2, minute))
		// Denied; the candidate would have admitted, and counts that.
		b.wantAll(1, both, no(0, minute, minute), yes(1, minute))
		b.wantAll(1, both, no(0, minute, minute), yes(0, minute))
		b.wantAll(1, both, no(0, minute, minute), no(0, minute, minute))
	})
	add("Candidate/IsNotChargedWhereAnotherLimitDenies", func(b *bench) {
		live, twin := window(b.t, "per-minute", 1, minute), window(b.t, "per-minute", 3, minute, candidate)
		off := window(b.t, "off", 0, minute)
		b.wantAll(1, policies{live, twin, off}, yes(1, 0), yes(3, 0), no(0, 0, never))
		b.wantAll(1, policies{off, live, twin}, no(0, 0, never), yes(1, 0), yes(3, 0))
		// One on trial that denies is no reason.
		never0 := window(b.t, "trial", 0, minute, shadow)
		b.wantAll(1, policies{never0, live, twin}, no(0, 0, never), yes(0, minute), yes(2, minute))
	})
	add("Candidate/BesideALimitOnTrial", func(b *bench) {
		both := policies{window(b.t, "trial", 1, minute, shadow), window(b.t, "trial", 2, minute, candidate)}
		b.wantAll(1, both, yes(0, minute), yes(1, minute))
		b.wantAll(1, both, no(0, minute, minute), yes(0, minute))
		b.wantAll(1, both, no(0, minute, minute), no(0, minute, minute))
	})
	add("Candidate/OfEveryAlgorithm", func(b *bench) {
		b.align(minute)
		for _, two := range []policies{
			{bucket(b.t, "a", 2, minute, 1), bucket(b.t, "a", 2, minute, 2, candidate)},
			{log(b.t, "c", 1, minute), log(b.t, "c", 2, minute, candidate)},
			{counter(b.t, "d", 1, minute), counter(b.t, "d", 2, minute, candidate)},
			{queue(b.t, "e", 2, minute, 0, 0), queue(b.t, "e", 2, minute, 1, 0, candidate)},
		} {
			c := []ratelimit.Charge{charge("priya123", two[0], 1), charge("priya123", two[1], 1)}
			for i, want := range [][2]bool{{true, true}, {false, true}, {false, false}} {
				ds := b.take(c...)
				if got := [2]bool{ds[0].Allowed, ds[1].Allowed}; got != want {
					b.t.Errorf("%s: verdicts %v in round %d; want %v", show(two[0]), got, i+1, want)
				}
				if ds[1].Delay != 0 && i > 0 {
					b.t.Errorf("%s: a request that is denied is held for %s", show(two[0]), ds[1].Delay)
				}
			}
		}
	})
	add("Candidate/SeveralAndTheSameTwice", func(b *bench) {
		live, twin := window(b.t, "p", 2, minute), window(b.t, "p", 3, minute, candidate)
		// The live one denies the second, so the first candidate would not be
		// charged with its number in force: the second twin would still deny.
		ds := b.take(charge("priya123", live, 2), charge("priya123", twin, 2), charge("priya123", live, 1), charge("priya123", twin, 1))
		b.equal(ds[0], live, yes(2, 0), "the first")
		b.equal(ds[1], twin, yes(3, 0), "its candidate, since the other live one denies")
		b.equal(ds[2], live, no(2, 0, never), "the second")
		b.equal(ds[3], twin, yes(2, minute), "its candidate, since only its twin denies")
	})
}

// rejectedStories: where denied attempts count, they count up to the limit.
func rejectedStories(add func(name string, story func(b *bench))) {
	type policies = []*ratelimit.Policy

	add("Rejected/TokenBucket", func(b *bench) {
		p := bucket(b.t, "per-second", 1, second, 5, countRejected)
		b.want("priya123", p, 4, yes(1, second))
		b.want("priya123", p, 3, no(0, second, 3*second)) // took the last one
		for range 20 {
			b.clock.Advance(half)
			b.want("priya123", p, 1, no(0, second, second)) // who keeps trying keeps out
		}
		b.clock.Advance(second - micro)
		b.want("priya123", p, 1, no(0, second, second))
		b.clock.Advance(second)
		b.want("priya123", p, 1, yes(0, second))
		b.want("priya123", p, 6, no(0, second, never))
		b.want("priya123", p, tooMuch, no(0, second, never))
	})
	add("Rejected/LogUnderASmallerPlanForgetsNothing", func(b *bench) {
		pro, free := log(b.t, "per-minute", 10, minute), log(b.t, "per-minute", 3, minute, countRejected)
		b.want("priya123", pro, 8, yes(2, minute))
		b.clock.Advance(second)
		b.want("priya123", free, 2, no(0, 59*second, minute)) // eight still count, two of them new
		b.want("priya123", pro, 3, no(2, 59*second, 59*second))
		b.want("priya123", pro, 2, yes(0, 59*second))
		b.want("priya123", free, 9, no(0, minute, never)) // three at most, of ten
		b.want("priya123", pro, 1, no(0, 59*second, 59*second))
	})
	add("Rejected/FixedWindow", func(b *bench) {
		p := window(b.t, "per-minute", 3, minute, countRejected)
		b.want("priya123", p, 4, no(0, minute, never)) // opens a window, and fills it
		b.clock.Advance(minute)
		b.want("priya123", p, 2, yes(1, minute))
		b.clock.Advance(second)
		b.want("priya123", p, 2, no(0, 59*second, 59*second))
		b.want("priya123", p, 1, no(0, 59*second, 59*second))
		// Never beyond, so that a raised plan finds no more than was granted.
		b.want("priya123", window(b.t, "per-minute", 5, minute), 2, yes(0, 59*second))
		b.want("priya123", p, 1, no(0, 59*second, 59*second)) // and a lowered one takes none away
	})
	add("Rejected/Calendar", func(b *bench) {
		utc := &ratelimit.Calendar{Unit: ratelimit.CalendarMinute, Location: zone(b.t, "UTC")}
		p := calendar(b.t, "per-minute", 3, utc, countRejected)
		b.align(minute)
		b.clock.Advance(20 * second)
		b.want("priya123", p, 4, no(0, 40*second, never))
		b.want("priya123", p, 1, no(0, 40*second, 40*second))
		b.clock.Advance(40 * second)
		b.want("priya123", p, 3, yes(0, minute))
	})
	add("Rejected/SlidingWindowLog", func(b *bench) {
		p := log(b.t, "per-minute", 3, minute, countRejected)
		b.want("priya123", p, 2, yes(1, minute))
		b.clock.Advance(10 * second)
		// Of four entries the newest three are kept: one of before, two of now.
		b.want("priya123", p, 2, no(0, 50*second, minute))
		b.clock.Advance(10 * second)
		b.want("priya123", p, 1, no(0, 50*second, 50*second))
		b.want("priya123", p, tooMuch, no(0, minute, never))
		b.clock.Advance(minute)
		b.want("priya123", p, 3, yes(0, minute))
		// No more than was granted is kept, so that a raised plan helps at once.
		b.clock.Advance(second)
		b.want("priya123", p, 3, no(0, minute, minute))
		b.want("priya123", log(b.t, "per-minute", 5, minute), 2, yes(0, minute))
	})
	add("Rejected/SlidingWindowCounter", func(b *bench) {
		p := counter(b.t, "per-minute", 10, minute, countRejected)
		b.align(minute)
		b.want("priya123", p, 7, yes(3, 68_571_429*micro))
		b.want("priya123", p, 5, no(0, 66*second, 90*second)) // took the last three
		b.clock.Advance(90 * second)
		b.want("priya123", p, 6, no(0, 6*second, 42*second)) // five of before still count
		b.want("priya123", p, 11, no(0, 6*second, never))
	})
	add("Rejected/LeakyBucket", func(b *bench) {
		p := queue(b.t, "per-second", 1, second, 2, 0, countRejected)
		b.want("priya123", p, 2, held(1, second, second))
		b.want("priya123", p, 2, no(0, second, 2*second)) // its drip falls, and nobody goes
		b.clock.Advance(second)
		b.want("priya123", p, 1, held(0, second, 2*second))
		// By half a drip as well.
		q := queue(b.t, "brief", 1, second, 2, 1500*milli, countRejected)
		b.want("priya123", q, 2, held(0, half, second))
		b.want("priya123", q, 1, no(0, second, second))
	})
	add("Rejected/AZeroQuotaKeepsNothing", func(b *bench) {
		for _, two := range []policies{
			{bucket(b.t, "a", 0, minute, 5, countRejected), bucket(b.t, "a", 5, minute, 5)},
			{window(b.t, "b", 0, minute, countRejected), window(b.t, "b", 5, minute)},
			{log(b.t, "c", 0, minute, countRejected), log(b.t, "c", 5, minute)},
			{counter(b.t, "d", 0, minute, countRejected), counter(b.t, "d", 5, minute)},
			{queue(b.t, "e", 0, minute, 4, 0, countRejected), queue(b.t, "e", 5, minute, 4, 0)},
		} {
			b.want("priya123", two[0], 1, no(0, 0, never))
			b.want("priya123", two[1], 0, yes(5, 0))
		}
	})
	add("Rejected/WhoeverDenies", func(b *bench) {
		// The attempt counts for the limit that would have allowed it, too. Since
		// that is full now, coming back takes as long as that does.
		login, off := log(b.t, "login", 2, minute, countRejected), bucket(b.t, "small", 1, second, 1)
		b.want("priya123", off, 1, yes(0, second))
		b.wantAll(1, policies{login, off}, yes(1, minute), no(0, second, second))
		b.wantAll(1, policies{off, login}, no(0, second, second), answer{true, 0, minute, minute, 0})
		b.wantAll(1, policies{off, login}, no(0, second, second), no(0, minute, minute))
	})
	add("Rejected/OnTrial", func(b *bench) {
		// Charged if the request is denied; if it is admitted, only what it allows.
		trial := window(b.t, "trial", 2, minute, countRejected, shadow)
		live, off := window(b.t, "live", 5, minute), window(b.t, "off", 0, minute)
		b.wantAll(3, policies{live, trial}, yes(2, minute), no(2, 0, never))
		b.wantAll(1, policies{off, trial}, no(0, 0, never), yes(1, minute))
		b.wantAll(3, policies{off, trial}, no(0, 0, never), no(0, minute, never))
		b.wantAll(1, policies{off, trial}, no(0, 0, never), no(0, minute, minute))
	})
	add("Rejected/BesideACandidate", func(b *bench) {
		// The candidate is charged as if it were in force, what it rejects never.
		both := policies{window(b.t, "p", 1, minute, countRejected), window(b.t, "p", 3, minute, candidate)}
		b.wantAll(2, both, no(0, minute, never), yes(1, minute))
		b.wantAll(2, both, no(0, minute, never), no(1, minute, minute))
		b.wantAll(1, both, no(0, minute, minute), yes(0, minute))
	})
	add("Rejected/TheSameTwice", func(b *bench) {
		p := log(b.t, "per-minute", 3, minute, countRejected)
		ds := b.take(charge("priya123", p, 2), charge("priya123", p, 2))
		b.equal(ds[0], p, answer{true, 1, minute, minute, 0}, "the first")
		b.equal(ds[1], p, no(0, minute, never), "the second: together never")
	})
	add("Rejected/NothingOfAnAdmittedRequest", func(b *bench) {
		p := window(b.t, "per-minute", 3, minute, countRejected)
		b.want("priya123", p, 0, yes(3, 0))
		b.want("priya123", p, 1, yes(2, minute))
	})
}
