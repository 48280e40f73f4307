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
// What a smaller plan cuts is remembered beside it, see former.go. The leaky
// bucket keeps the same books, see leaky_bucket.go.

// advanceBucket brings s to now: in p's scale, capped at what p holds, refilled.
func (p *Policy) advanceBucket(s *State, now int64) {
	if s.Den == 0 {
		*s = State{Den: p.den, Num: p.num, Time: now}
		return
	}
	if s.Den != p.den || s.Spent > p.capacity || s.Former != nil {
		*s = p.convert(*s, now)
	}
	s.Num = p.num
	if now <= s.Time {
		// The clock stood still or went back. Keeping the later time means that
		// the span between is not refilled a second time when it catches up.
		return
	}
	s.Spent = drain(s.Spent, p.num, now-s.Time)
	s.Time = now
	if f := s.Former; f != nil && !above(f.spent, f.den, s.Spent, s.Den) {
		s.Former = nil // it says no more than the state does
	}
}

// drain returns what is left of spent after so many µs.
func drain(spent, num, us int64) int64 {
	switch {
	case num == 0 || us <= 0:
		return spent
	case us >= ceilDiv(spent, num):
		return 0
	default:
		return spent - us*num // above 0, so no overflow
	}
}

// rescale converts spent from 1/from units to 1/to units, rounded up (against
// the caller, by less than 1/to units). What is enough or more in the new scale
// may come out as any number that is.
func rescale(spent, from, to, enough int64) int64 {
	if from == to {
		return spent
	}
	whole, frac := spent/from, spent%from
	if whole >= ceilDiv(enough, to) {
		return enough // here already, since whole*to might overflow
	}
	return whole*to + mulDivUp(frac, to, from)
}

// above reports whether a/da is more than b/db.
func above(a, da, b, db int64) bool {
	if whole, other := a/da, b/db; whole != other {
		return whole > other
	}
	frac, exact := mulDiv(a%da, db, da)
	return frac > b%db || frac == b%db && !exact
}

// chargeBucket charges s with parts more, which fit.
func (p *Policy) chargeBucket(s *State, parts int64) {
	s.Spent += parts
	if s.Former != nil {
		s.Former = s.Former.charge(parts, p.den)
	}
}

func (p *Policy) fitsBucket(s *State, now, cost int64) bool {
	// cost > units first: beyond it, cost*den might overflow.
	return p.Quota != 0 && cost <= p.units && cost*p.den <= p.holds(s, now)-s.Spent
}

func (p *Policy) fillBucket(s *State, now, cost int64) {
	if p.fitsBucket(s, now, cost) {
		p.chargeBucket(s, cost*p.den)
		return
	}
	p.chargeBucket(s, max(0, p.holds(s, now)-s.Spent))
}

func (p *Policy) describeBucket(s *State, now int64) (remaining int64, reset time.Duration) {
	if p.Quota == 0 {
		return 0, 0
	}
	remaining = max(0, p.holds(s, now)-s.Spent) / p.den
	if remaining == p.units {
		// Nothing is spent, or it is a leaky bucket whose last place is never
		// whole, since MaxDelay ends within it.
		return remaining, 0
	}
	return remaining, p.waitBucket(s, now, remaining+1)
}

// waitBucket returns how long from now it is until units, at most p.units and
// more than there are, can be spent.
func (p *Policy) waitBucket(s *State, now, units int64) time.Duration {
	over := s.Spent - (p.capacity - units*p.den)
	if over <= 0 {
		return p.tooLong(s, now, units)
	}
	lag := max(0, s.Time-now) // nothing refills before the clock has caught up
	return micros(lag + ceilDiv(over, p.num))
}

func (p *Policy) runsOutBucket(s *State) int64 {
	if s.Spent > 0 && p.num == 0 {
		return math.MaxInt64
	}
	at := s.Time
	if s.Spent > 0 {
		at += ceilDiv(s.Spent, p.num)
	}
	if f := s.Former; f != nil {
		at = max(at, s.Time+ceilDiv(f.spent, f.num))
	}
	return at
}
