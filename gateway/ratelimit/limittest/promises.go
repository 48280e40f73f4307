package limittest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// promises are what each algorithm says it holds, checked against nothing but
// the times and the costs of what was admitted.
func promises() []check {
	var all []check
	for _, p := range []struct {
		name string
		make func(testing.TB) *ratelimit.Policy
		held func(testing.TB, *ratelimit.Policy, []admission)
	}{
		{"TokenBucket", func(t testing.TB) *ratelimit.Policy { return bucket(t, "p", 70, minute, 12) }, burstAndRate},
		{"FixedWindow", func(t testing.TB) *ratelimit.Policy { return window(t, "p", 12, minute) }, onceAWindow},
		{"Calendar", func(t testing.TB) *ratelimit.Policy {
			return calendar(t, "p", 12, &ratelimit.Calendar{Unit: ratelimit.CalendarMinute, Location: zone(t, "Asia/Kathmandu")})
		}, onceAMinute},
		{"SlidingWindowLog", func(t testing.TB) *ratelimit.Policy { return log(t, "p", 12, minute) }, quotaInASpan},
		{"SlidingWindowCounter", func(t testing.TB) *ratelimit.Policy { return counter(t, "p", 12, minute) }, estimate},
		{"LeakyBucket", func(t testing.TB) *ratelimit.Policy { return queue(t, "p", 70, minute, 11, 0) }, departures},
		{"LeakyBucketWithMaxDelay", func(t testing.TB) *ratelimit.Policy { return queue(t, "p", 70, minute, 30, 9*second) }, departures},
	} {
		all = append(all,
			check{"Promise/" + p.name, func(t testing.TB, newStore NewStore) {
				t.Helper()
				policy := p.make(t)
				p.held(t, policy, spend(newBench(t, newStore), policy))
			}},
			check{"RetryAfter/" + p.name, func(t testing.TB, newStore NewStore) {
				t.Helper()
				retryAfter(newBench(t, newStore), p.make(t))
			}})
	}
	for _, a := range []ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.LeakyBucket, ratelimit.SlidingWindowLog} {
		all = append(all, check{"Promise/Plans/" + a.String(), func(t testing.TB, newStore NewStore) {
			t.Helper()
			toggled(newBench(t, newStore), a)
		}})
	}
	return all
}

// toggled: a caller who takes turns in plans of one limit, larger and smaller,
// faster and slower, gets over any span no more than the largest burst and what
// the fastest refills, which of a log is the largest quota in any window. And
// whatever stood under another plan, no one waits longer than who has used up all
// of this one.
func toggled(b *bench, a ratelimit.Algorithm) {
	b.t.Helper()
	rnd := random(b.t, uint64(a))
	denied, pause := 0, int64(3_000_000)
	if a == ratelimit.SlidingWindowLog {
		pause = 30_000_000 // attempts that count keep it full for long
	}
	for round := range 60 {
		var plans []*ratelimit.Policy
		var largest, fastest int64
		for range 2 + rnd.IntN(3) {
			quota, most := 1+rnd.Int64N(90), 1+rnd.Int64N(pick(rnd, int64(5), 40))
			fastest = max(fastest, quota)
			switch a {
			case ratelimit.TokenBucket:
				plans = append(plans, bucket(b.t, "p", quota, minute, most))
			case ratelimit.LeakyBucket:
				plans = append(plans, queue(b.t, "p", quota, minute, most-1, time.Duration(rnd.IntN(2)*10)*second))
				// max_delay may leave a part of a place beside the whole ones.
				most = min(most, plans[len(plans)-1].Capacity()+1)
			default:
				most = quota
				plans = append(plans, log(b.t, "p", quota, minute, countRejected))
			}
			largest = max(largest, most)
		}
		who := fmt.Sprintf("priya%d", round)
		var all []admission
		var p *ratelimit.Policy
		for range 250 {
			if p == nil || rnd.IntN(3) == 0 {
				p = plans[rnd.IntN(len(plans))]
			}
			if rnd.IntN(2) == 0 {
				b.clock.Advance(time.Duration(rnd.Int64N(pause)) * micro)
			}
			cost := pick(rnd, 1, 1, 1+rnd.Int64N(p.Capacity()), p.Capacity())
			d := b.take(charge(who, p, cost))[0]
			if d.Allowed {
				all = append(all, admission{at: b.clock.Now(), cost: cost})
				continue
			}
			denied++
			longest := minute // of a log, whose quota is in no unit of time
			if a != ratelimit.SlidingWindowLog {
				longest = time.Duration((cost*minute.Microseconds()+p.Quota-1)/p.Quota) * micro
			}
			if d.RetryAfter <= 0 || d.RetryAfter > longest {
				b.t.Fatalf("%d of %s: retry after %s; want at most %s", cost, show(p), d.RetryAfter, longest)
			}
		}
		w := minute.Microseconds()
		spans(all, func(from, to admission, units int64) bool {
			span := to.at - from.at
			if a == ratelimit.SlidingWindowLog {
				if span < w && units > largest {
					b.t.Fatalf("%d units in %s, of plans that grant %d", units, time.Duration(span)*micro, largest)
				}
				return span < w
			}
			if units*w > largest*w+fastest*span {
				b.t.Fatalf("%d units in %s, of plans of %d and %d a minute at most", units, time.Duration(span)*micro, largest, fastest)
			}
			return true
		})
		b.clock.Advance(hour)
	}
	if denied < 1000 || denied > 14_000 {
		b.t.Errorf("%d of 15000 were denied; that tests nothing", denied)
	}
}

// An admission is a request that was.
type admission struct {
	at    int64 // µs
	cost  int64
	delay int64 // µs
}

// random returns one of several streams of numbers, and says by which seed.
func random(t testing.TB, stream uint64) *rand.Rand {
	t.Helper()
	seed := number(t, "LIMITTEST_SEED", rand.Uint64()) //nolint:gosec // it is to be repeatable, not secret
	t.Logf("LIMITTEST_SEED=%d repeats it", seed)
	return rand.New(rand.NewPCG(seed, stream)) //nolint:gosec // see above
}

// spend asks for a few units at a time, in bursts and pauses.
func spend(b *bench, p *ratelimit.Policy) []admission {
	b.t.Helper()
	rnd := random(b.t, 1)
	var all []admission
	for range 3000 {
		switch rnd.IntN(4) {
		case 0:
			b.clock.Advance(time.Duration(rnd.Int64N(20_000_000)) * micro)
		case 1:
			b.clock.Advance(time.Duration(rnd.Int64N(1_000_000)) * micro)
		}
		cost := 1 + rnd.Int64N(4)
		d := b.take(charge("priya123", p, cost))[0]
		if d.Remaining < 0 {
			b.t.Fatalf("%d remaining", d.Remaining)
		}
		if d.Allowed {
			all = append(all, admission{b.clock.Now(), cost, d.Delay.Microseconds()})
		}
	}
	if len(all) < 300 || len(all) > 2700 {
		b.t.Errorf("%d of 3000 were admitted; that tests nothing", len(all))
	}
	return all
}

// spans calls f for each span that begins and ends with an admission, with the
// units admitted in it, until f wants no longer ones.
func spans(all []admission, f func(from, to admission, units int64) bool) {
	for i := range all {
		units := int64(0)
		for _, to := range all[i:] {
			units += to.cost
			if !f(all[i], to, units) {
				break
			}
		}
	}
}

// burstAndRate: over any span, no more than the burst and what was refilled.
func burstAndRate(t testing.TB, p *ratelimit.Policy, all []admission) {
	t.Helper()
	w := p.Window.Microseconds()
	spans(all, func(from, to admission, units int64) bool {
		if span := to.at - from.at; units*w > p.Burst*w+p.Quota*span {
			t.Fatalf("%d units in %s", units, time.Duration(span)*micro)
		}
		return true
	})
}

// quotaInASpan: in any span of a window, no more than the quota.
func quotaInASpan(t testing.TB, p *ratelimit.Policy, all []admission) {
	t.Helper()
	within(t, p, all, p.Quota)
}

// onceAWindow: in each window, which opens with a charge, no more than the quota;
// so in any span of a window no more than twice that.
func onceAWindow(t testing.TB, p *ratelimit.Policy, all []admission) {
	t.Helper()
	within(t, p, all, 2*p.Quota)
	opened, used := int64(0), int64(0)
	for _, a := range all {
		if a.at-opened >= p.Window.Microseconds() {
			opened, used = a.at, 0
		}
		if used += a.cost; used > p.Quota {
			t.Fatalf("%d units in a window", used)
		}
	}
}

// onceAMinute: the same where windows are the minutes of the calendar.
func onceAMinute(t testing.TB, p *ratelimit.Policy, all []admission) {
	t.Helper()
	within(t, p, all, 2*p.Quota)
	used := map[int64]int64{}
	for _, a := range all {
		k := a.at / p.Window.Microseconds()
		if used[k] += a.cost; used[k] > p.Quota {
			t.Fatalf("%d units in a minute", used[k])
		}
	}
}

// within: no more than most in any span that is shorter than a window.
func within(t testing.TB, p *ratelimit.Policy, all []admission, most int64) {
	t.Helper()
	w := p.Window.Microseconds()
	spans(all, func(from, to admission, units int64) bool {
		if to.at-from.at >= w {
			return false
		}
		if units > most {
			t.Fatalf("%d units within %s; want at most %d", units, time.Duration(to.at-from.at)*micro, most)
		}
		return true
	})
}

// estimate: with every charge, what the two counts say is within the quota; and
// in any span of a window there is no more than twice that, since charges at the
// end of the window before look to a count as if they had come evenly.
func estimate(t testing.TB, p *ratelimit.Policy, all []admission) {
	t.Helper()
	within(t, p, all, 2*p.Quota)
	w := p.Window.Microseconds()
	used := map[int64]int64{}
	for _, a := range all {
		k := a.at / w
		used[k] += a.cost
		if left := w - a.at%w; used[k]*w+used[k-1]*left > p.Quota*w {
			t.Fatalf("%d units and %d of the window before, %dµs into it", used[k], used[k-1], a.at%w)
		}
	}
}

// departures: two units leave the queue at least an interval apart, and none
// waits longer than it may.
func departures(t testing.TB, p *ratelimit.Policy, all []admission) {
	t.Helper()
	w := p.Window.Microseconds()
	last := int64(0)
	for i, a := range all {
		leaves := a.at + a.delay
		// A request takes as many intervals as it costs, up to its own departure;
		// delays are rounded up, each by less than 1 µs.
		if i > 0 && (leaves-last+1)*p.Quota < a.cost*w {
			t.Fatalf("a request of %d left %dµs after the one before it", a.cost, leaves-last)
		}
		if longest := p.MaxDelay.Microseconds(); longest > 0 && a.delay > longest {
			t.Fatalf("held for %dµs; want at most %d", a.delay, longest)
		}
		last = leaves
	}
}

// retryAfter: who waits that long and is alone is admitted; who comes when a
// tenth of it is left, or a microsecond, is not.
func retryAfter(b *bench, p *ratelimit.Policy) {
	b.t.Helper()
	rnd := random(b.t, 2)
	denials := 0
	for i := range 1000 {
		caller := fmt.Sprintf("priya%d", i%3)
		b.clock.Advance(time.Duration(rnd.Int64N(500_000)) * micro)
		cost := 1 + rnd.Int64N(11)
		d := b.take(charge(caller, p, cost))[0]
		if d.Allowed {
			continue
		}
		denials++
		wait := d.RetryAfter
		if wait <= 0 {
			b.t.Fatalf("denied %d of %s, retry after %s", cost, show(p), wait)
		}
		for _, early := range []time.Duration{(wait / 10).Truncate(micro), micro} {
			if early == 0 || early > wait {
				continue
			}
			b.clock.Advance(wait - early)
			d = b.take(charge(caller, p, cost))[0]
			if d.Allowed || d.RetryAfter != early {
				b.t.Fatalf("%s before the end of %s: %s", early, wait, answerOf(d))
			}
			wait = early
		}
		b.clock.Advance(wait)
		if d = b.take(charge(caller, p, cost))[0]; !d.Allowed {
			b.t.Fatalf("after waiting as told: %s", answerOf(d))
		}
	}
	if denials < 50 {
		b.t.Errorf("%d of 1000 were denied; that tests nothing", denials)
	}
}
