package ratelimit

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Priya may spend 100 a minute, that is one every 600 ms, and 20 at once.
func TestTokenBucketStory(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	p := tokenBucket(t, 100, time.Minute, 20)
	b := &bucket{}
	tell(t, p, b, []step{
		{0, 0, allowed(20, 0), "a peek at a new bucket"},
		{0, 1, allowed(19, 600*ms), "the first request"},
		{0, 19, allowed(0, 600*ms), "the rest of the burst at once"},
		{0, 1, denied(0, 600*ms, 600*ms), "the 21st"},
		{0, 0, allowed(0, 600*ms), "a peek is allowed even now"},
		{0, 3, denied(0, 600*ms, 1800*ms), "three would take three refills"},
		{0, 21, denied(0, 600*ms, Never), "more than the bucket holds"},
		{540 * ms, 1, denied(0, 60*ms, 60*ms), "10 % sooner than told"},
		{599_999 * time.Microsecond, 1, denied(0, 1*time.Microsecond, 1*time.Microsecond), "1 µs sooner than told"},
		{600 * ms, 1, allowed(0, 600*ms), "exactly when told"},
		{1500 * ms, 1, allowed(0, 300*ms), "half a unit stays for the next"},
		{1800 * ms, 1, allowed(0, 600*ms), "and is there, so nothing was rounded away"},
		{1801 * ms, 1, denied(0, 599*ms, 599*ms), "the next is not"},

		{1300 * ms, 1, denied(0, 1100*ms, 1100*ms), "the clock went back 500 ms: nothing refills before it has caught up"},
		{1800 * ms, 1, denied(0, 600*ms, 600*ms), "it has: the span is not refilled twice"},
		{2400 * ms, 1, allowed(0, 600*ms), "from here on as usual"},

		{13800 * ms, 1, allowed(18, 600*ms), "11.4 s refill 19"},
		{14400*ms - 1*time.Microsecond, 0, allowed(18, 1*time.Microsecond), "a µs before the next"},
		{14400 * ms, 0, allowed(19, 600*ms), "the next"},
		{100 * s, 0, allowed(20, 0), "full, and no more than full"},
		{100 * s, 20, allowed(0, 600*ms), "a cost of the whole burst works when it is full"},
		{50 * s, 1, denied(0, 50*s+600*ms, 50*s+600*ms), "the clock went back a long way"},
	})
}

// The numbers of a plan are changed while a caller has spent.
func TestTokenBucketAfterAChangeOfPlan(t *testing.T) {
	const ms = time.Millisecond
	small := tokenBucket(t, 100, time.Minute, 20) // 1/600,000 units
	large := tokenBucket(t, 7, time.Minute, 40)   // 1/60,000,000 units, 7 a µs
	b := &bucket{}
	tell(t, small, b, []step{{0, 20, allowed(0, 600*ms), "all is spent"}})
	tell(t, large, b, []step{
		{0, 0, allowed(20, 8_571_429*time.Microsecond), "the raised burst helps at once; 20 of 40 are still spent"},
		{0, 20, allowed(0, 8_571_429*time.Microsecond), "the other 20"},
		{0, 1, denied(0, 8_571_429*time.Microsecond, 8_571_429*time.Microsecond), "and no more: 60 s / 7, rounded up"},
	})
	tell(t, small, b, []step{
		{0, 1, denied(0, 600*ms, 600*ms), "lowered: of 40 spent, 20 count, so one refill is enough"},
		{600 * ms, 1, allowed(0, 600*ms), "as told"},
	})
	tell(t, tokenBucket(t, 0, time.Minute, 20), b, []step{
		{600 * ms, 1, denied(0, 0, Never), "a quota of 0 denies"},
		{time.Hour, 1, denied(0, 0, Never), "for ever"},
		{time.Hour, 0, allowed(0, 0), "but for a peek"},
	})
	tell(t, small, b, []step{
		{12600 * ms, 0, allowed(20, 0), "raised again: the denials in between changed nothing"},
	})
}

func TestTokenBucketCostsFromHell(t *testing.T) {
	for _, p := range []*Policy{
		tokenBucket(t, 100, time.Minute, 20),
		tokenBucket(t, MaxQuota, time.Second, 0),
		tokenBucket(t, 1, MaxWindow, 284),
	} {
		for _, cost := range []int64{p.Burst + 1, 1 << 53, math.MaxInt64 / p.Den(), math.MaxInt64} {
			if cost <= p.Burst {
				continue
			}
			b := &bucket{}
			if got := b.take(p, epoch, cost); got.allowed || got.retryAfter != Never || got.remaining != p.Burst {
				t.Errorf("burst %d, cost %d: got %+v", p.Burst, cost, got)
			}
		}
		b := &bucket{}
		if got := b.take(p, epoch, p.Burst); !got.allowed || got.remaining != 0 || got.reset <= 0 {
			t.Errorf("the whole burst of %d: got %+v", p.Burst, got)
		}
	}
}

// A limit of N admits N, not one less and not one more.
func TestTokenBucketOfNAdmitsN(t *testing.T) {
	for _, n := range []int64{1, 2, 5, 100} {
		p := tokenBucket(t, n, time.Minute, 0)
		b := &bucket{}
		for i := range n {
			if got := b.take(p, epoch, 1); !got.allowed || got.remaining != n-1-i {
				t.Fatalf("%d/minute, request %d: got %+v", n, i+1, got)
			}
		}
		if got := b.take(p, epoch, 1); got.allowed || got.remaining != 0 {
			t.Fatalf("%d/minute, one more: got %+v", n, got)
		}
	}
}

// What never rounds cannot drift: a bucket that is looked at a thousand times a
// second is, after a thousand seconds and charges, where one is that was looked
// at once a second, and where exact arithmetic is.
func TestTokenBucketDoesNotDrift(t *testing.T) {
	p := tokenBucket(t, 1_000_003, time.Hour, 1000) // 277.78 a second
	now := int64(epoch)
	steps, leap := p.Advance(State{}, now), p.Advance(State{}, now)
	for range 1000 {
		for _, s := range []*State{&steps, &leap} {
			after, ok := p.Admit(*s, now, 278)
			if !ok {
				t.Fatalf("278 denied: %+v", *s)
			}
			*s = after
		}
		for i := range int64(1000) {
			steps = p.Advance(steps, now+i*997)
		}
		now += 1_000_000
		steps, leap = p.Advance(steps, now), p.Advance(leap, now)
		if steps != leap {
			t.Fatalf("in steps %+v, in one leap %+v", steps, leap)
		}
	}
	want := new(big.Rat).Sub(big.NewRat(278_000, 1), big.NewRat(1_000_003*1000, 3600))
	if got := big.NewRat(leap.Spent, leap.Den); got.Cmp(want) != 0 {
		t.Errorf("%s units are spent, want %s", got.FloatString(9), want.FloatString(9))
	}
}

func drawBucketPolicy(t *rapid.T) *Policy {
	p, err := NewPolicy(Policy{
		Name: "n", Scope: "plan/n", Algorithm: TokenBucket,
		Quota:  rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, 2_000_000), rapid.Just(MaxQuota)).Draw(t, "quota"),
		Window: time.Duration(rapid.OneOf(rapid.Int64Range(1, 90), rapid.Int64Range(1, 30*86400)).Draw(t, "window")) * time.Second,
		Burst:  rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, 100_000)).Draw(t, "burst"),
	})
	if err != nil {
		t.Skip(err.Error())
	}
	return p
}

// drawStep draws a span in µs to the next request, which fits the policy: some
// refills, none, or a step back.
func drawStep(t *rapid.T, p *Policy) int64 {
	unit := max(1, p.Window.Microseconds()/max(1, p.Quota))
	return rapid.OneOf(
		rapid.Just(int64(0)),
		rapid.Int64Range(1, 3*unit),
		rapid.Int64Range(1, 1+p.Window.Microseconds()),
		rapid.Int64Range(-2*unit, -1),
	).Draw(t, "step")
}

func TestTokenBucketNeverAdmitsMoreThanBurstPlusRateTimesSpan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawBucketPolicy(t)
		b := &bucket{}
		now, seen := int64(epoch), int64(0)
		type admission struct{ at, cost int64 }
		var admitted []admission
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			now += drawStep(t, p)
			cost := rapid.Int64Range(1, p.Burst+1).Draw(t, "cost")
			if b.take(p, now, cost).allowed {
				// A clock that goes back and forth does not lengthen a span.
				seen = max(seen, now)
				admitted = append(admitted, admission{seen, cost})
			}
		}
		// sum <= burst + quota/window * span, in whole numbers of any size.
		window, quota := big.NewInt(p.Window.Microseconds()), big.NewInt(p.Quota)
		for i := range admitted {
			sum := int64(0)
			for _, a := range admitted[i:] {
				sum += a.cost
				got := new(big.Int).Mul(big.NewInt(sum-p.Burst), window)
				bound := new(big.Int).Mul(quota, big.NewInt(a.at-admitted[i].at))
				if got.Cmp(bound) > 0 {
					t.Fatalf("%d units in %d µs", sum, a.at-admitted[i].at)
				}
			}
		}
	})
}

// The model counts what was spent as a fraction of any size.
func TestTokenBucketEqualsExactModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawBucketPolicy(t)
		if !p.Exact() {
			t.Skip("rounded")
		}
		rate := big.NewRat(p.Quota, p.Window.Microseconds())
		burst := new(big.Rat).SetInt64(p.Burst)
		spent := new(big.Rat) // as of seen, the last admission
		b := &bucket{}
		now, seen := int64(epoch), int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			now += drawStep(t, p)
			then := new(big.Rat).Set(spent)
			if now > seen {
				then.Sub(then, new(big.Rat).Mul(rate, new(big.Rat).SetInt64(now-seen)))
				if then.Sign() < 0 {
					then.SetInt64(0)
				}
			}
			cost := rapid.Int64Range(1, p.Burst+1).Draw(t, "cost")
			after := new(big.Rat).Add(then, new(big.Rat).SetInt64(cost))
			want := after.Cmp(burst) <= 0
			got := b.take(p, now, cost)
			if got.allowed != want {
				t.Fatalf("cost %d with %s spent: allowed %v", cost, then.FloatString(6), got.allowed)
			}
			if want {
				spent, then, seen = after, after, max(seen, now)
			}
			if s := p.Advance(b.state, now); big.NewRat(s.Spent, s.Den).Cmp(then) != 0 {
				t.Fatalf("spent %d/%d, want %s", s.Spent, s.Den, then)
			}
		}
	})
}

func TestTokenBucketRetryAfterAndResetAreTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawBucketPolicy(t)
		b := &bucket{}
		now := int64(epoch)
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			now += drawStep(t, p)
			cost := rapid.Int64Range(1, p.Burst+1).Draw(t, "cost")
			got := b.take(p, now, cost)
			checkPromises(t, p, b, now, cost, got, p.Burst)
			if s := b.state; s.Spent < 0 || s.Spent > p.Burst*p.Den() {
				t.Fatalf("spent %d of %d", s.Spent, p.Burst*p.Den())
			}
			// A store may forget a state that has run out: it says what a new
			// one says.
			if out := p.RunsOut(b.state); b.state != (State{}) {
				if s := p.Advance(b.state, out); s.Spent != 0 {
					t.Fatalf("%+v has run out at %d, but is %+v", b.state, out, s)
				}
				if s := p.Advance(b.state, out-1); s.Spent == 0 && b.state.Spent != 0 && out-1 >= b.state.Time {
					t.Fatalf("%+v runs out before %d", b.state, out)
				}
			}
		}
	})
}

// checkPromises checks what a verdict promises, for any algorithm.
func checkPromises(t *rapid.T, p *Policy, b *bucket, now, cost int64, got verdict, capacity int64) {
	t.Helper()
	if got.remaining < 0 || got.remaining > capacity {
		t.Fatalf("remaining %d of %d", got.remaining, capacity)
	}
	switch {
	case got.allowed && got.retryAfter != 0:
		t.Fatalf("allowed, and retry after %s", got.retryAfter)
	case got.allowed:
	case cost > capacity:
		if got.retryAfter != Never {
			t.Fatalf("cost %d of %d, retry after %s", cost, capacity, got.retryAfter)
		}
	default:
		wait := got.retryAfter.Microseconds()
		if wait < 1 || !b.would(p, now+wait, cost) {
			t.Fatalf("not admitted after waiting %d µs", wait)
		}
		if b.would(p, now+wait-1, cost) {
			t.Fatalf("admitted 1 µs before %d µs", wait)
		}
		if sooner := wait - max(1, wait/10); b.would(p, now+sooner, cost) {
			t.Fatalf("admitted after %d µs instead of %d", sooner, wait)
		}
		if got.retryAfter < got.reset {
			t.Fatalf("retry after %s, before anything more is there, in %s", got.retryAfter, got.reset)
		}
	}
	if got.reset < 0 {
		t.Fatalf("reset %s", got.reset)
	}
	if got.reset > 0 {
		at := now + got.reset.Microseconds()
		if r := b.remaining(p, at-1); r != got.remaining {
			t.Fatalf("remaining %d became %d before the reset in %s", got.remaining, r, got.reset)
		}
		if r := b.remaining(p, at); r <= got.remaining {
			t.Fatalf("remaining %d is %d at the reset in %s", got.remaining, r, got.reset)
		}
	} else if got.remaining < capacity {
		t.Fatalf("remaining %d of %d, and no reset", got.remaining, capacity)
	}
}

// A change of numbers converts what was spent; what is rounded is rounded
// against the caller, by less than one of the new parts of a unit.
func TestTokenBucketChangeOfPlanGivesNothingBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &bucket{}
		now := int64(epoch)
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			p := drawBucketPolicy(t)
			now += rapid.Int64Range(0, 1000).Draw(t, "step")
			before := b.state
			before.Time = now // conversion only, no refill
			after := p.Advance(before, now)
			if before.Den != 0 {
				was := big.NewRat(before.Spent, before.Den)
				if f := before.Former; f != nil && p.Burst*f.scale > f.under {
					if seen := big.NewRat(f.spent, f.den); seen.Cmp(was) > 0 {
						was = seen
					}
				}
				if burst := new(big.Rat).SetInt64(p.Burst); was.Cmp(burst) > 0 {
					was = burst
				}
				is := big.NewRat(after.Spent, after.Den)
				if is.Cmp(was) < 0 {
					t.Fatalf("spent %s became %s", was, is)
				}
				if off := is.Sub(is, was); off.Cmp(big.NewRat(1, p.Den())) >= 0 {
					t.Fatalf("spent grew by %s, parts of a unit are 1/%d", off, p.Den())
				}
			}
			b.take(p, now, rapid.Int64Range(1, p.Burst).Draw(t, "cost"))
		}
	})
}
