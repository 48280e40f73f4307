package ratelimit

import (
	"math"
	"math/bits"
	"time"
)

// The token bucket: refill Quota/Window per second up to Burst, spend cost.
//
// What was spent is an integer number of 1/den units, and num of those come
// back every microsecond; num/den is Quota/Window, reduced. Nothing is ever
// rounded while a policy stays the same, so nothing drifts. spent is between 0
// and burst*den, which is below 2^53: sums of two of them cannot overflow.

// advanceBucket returns s at now: in p's scale, capped at p's burst, refilled.
func (p *Policy) advanceBucket(s State, now int64) State {
	if s.Den == 0 {
		return State{Den: p.den, Time: now}
	}
	if s.Den != p.den {
		s.Spent = rescale(s.Spent, s.Den, p.den, p.Burst)
		s.Den = p.den
	}
	// After a lowering, more may have been spent than the burst now holds. The
	// rest is let go, else a caller would pay a debt for having been larger.
	s.Spent = min(s.Spent, p.Burst*p.den)

	if now <= s.Time {
		// The clock stood still or went back. Keeping the later time means that
		// the span between is not refilled a second time when it catches up.
		return s
	}
	dt := now - s.Time
	s.Time = now
	switch {
	case p.num == 0:
	case dt >= ceilDiv(s.Spent, p.num):
		s.Spent = 0
	default:
		s.Spent -= dt * p.num // below s.Spent, so no overflow
	}
	return s
}

// rescale converts spent from 1/from units to 1/to units, rounded up (against
// the caller, by less than 1/to units). More than burst units are burst units.
func rescale(spent, from, to, burst int64) int64 {
	whole, frac := spent/from, spent%from
	if whole >= burst {
		return burst * to
	}
	// frac < from, so the quotient is at most to and Div64 cannot overflow. None
	// is negative.
	hi, lo := bits.Mul64(uint64(frac), uint64(to)) //nolint:gosec // see above
	quo, rem := bits.Div64(hi, lo, uint64(from))   //nolint:gosec // see above
	if rem > 0 {
		quo++
	}
	return whole*to + int64(quo) //nolint:gosec // at most to
}

func (p *Policy) admitBucket(s State, cost int64) (State, bool) {
	// cost > Burst first: beyond it, cost*den might overflow.
	if p.Quota == 0 || cost > p.Burst || cost*p.den > p.Burst*p.den-s.Spent {
		return s, false
	}
	s.Spent += cost * p.den
	return s, true
}

func (p *Policy) describeBucket(s State, now int64) (remaining int64, reset time.Duration) {
	if p.Quota == 0 {
		return 0, 0
	}
	remaining = (p.Burst*p.den - s.Spent) / p.den
	if s.Spent == 0 {
		return remaining, 0
	}
	return remaining, p.wait(s, now, remaining+1)
}

func (p *Policy) retryBucket(s State, now, cost int64) time.Duration {
	if p.Quota == 0 || cost > p.Burst {
		return Never
	}
	return p.wait(s, now, cost)
}

// wait returns how long from now it is until units, at most Burst and more
// than there are, can be spent.
func (p *Policy) wait(s State, now, units int64) time.Duration {
	lag := max(0, s.Time-now) // nothing refills before the clock has caught up
	over := s.Spent - (p.Burst-units)*p.den
	return micros(lag + ceilDiv(over, p.num))
}

func (p *Policy) runsOutBucket(s State) int64 {
	switch {
	case s.Spent == 0:
		return s.Time
	case p.num == 0:
		return math.MaxInt64
	}
	return s.Time + ceilDiv(s.Spent, p.num)
}
