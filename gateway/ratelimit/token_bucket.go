package ratelimit

import (
	"math"
	"time"
)

// The token bucket: refill Quota/Window per second up to Burst, spend cost.
//
// What was spent is an integer number of 1/den units, and num of those come
// back every microsecond; num/den is Quota/Window, reduced. Nothing is ever
// rounded while a policy stays the same, so nothing drifts. spent is between 0
// and capacity, which is below 2^53: sums of two of them cannot overflow.
//
// The leaky bucket keeps the same books, see leaky_bucket.go.

// advanceBucket returns s at now: in p's scale, capped at what p holds, refilled.
func (p *Policy) advanceBucket(s State, now int64) State {
	if s.Den == 0 {
		return State{Den: p.den, Time: now}
	}
	if s.Den != p.den {
		s.Spent = rescale(s.Spent, s.Den, p.den, p.capacity)
		s.Den = p.den
	}
	// After a lowering, more may have been spent than the bucket now holds. The
	// rest is let go, else a caller would pay a debt for having been larger.
	s.Spent = min(s.Spent, p.capacity)

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
// the caller, by less than 1/to units), and at most to capacity.
func rescale(spent, from, to, capacity int64) int64 {
	whole, frac := spent/from, spent%from
	if whole >= ceilDiv(capacity, to) {
		return capacity // here already, since whole*to might overflow
	}
	return whole*to + mulDivUp(frac, to, from)
}

func (p *Policy) fitsBucket(s State, cost int64) bool {
	// cost > units first: beyond it, cost*den might overflow.
	return p.Quota != 0 && cost <= p.units && cost*p.den <= p.capacity-s.Spent
}

func (p *Policy) fillBucket(s State, cost int64) State {
	if p.fitsBucket(s, cost) {
		s.Spent += cost * p.den
	} else {
		s.Spent = p.capacity
	}
	return s
}

func (p *Policy) describeBucket(s State, now int64) (remaining int64, reset time.Duration) {
	if p.Quota == 0 {
		return 0, 0
	}
	remaining = (p.capacity - s.Spent) / p.den
	if s.Spent == 0 || remaining == p.units {
		// The latter is a leaky bucket whose last place is never whole, since
		// MaxDelay ends within it.
		return remaining, 0
	}
	return remaining, p.waitBucket(s, now, remaining+1)
}

// waitBucket returns how long from now it is until units, at most p.units and
// more than there are, can be spent.
func (p *Policy) waitBucket(s State, now, units int64) time.Duration {
	lag := max(0, s.Time-now) // nothing refills before the clock has caught up
	over := s.Spent - (p.capacity - units*p.den)
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
