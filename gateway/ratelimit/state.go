package ratelimit

import (
	"math"
	"time"
)

// State is what a store keeps for one bucket: what was spent, not what is
// left, so that a raised quota or burst helps at once. The zero State is a
// bucket that was never charged. Its meaning depends on the algorithm:
//
//	               token_bucket                      fixed_window
//	Spent          1/Den units, at Time              units used in the window
//	Den            the scale of Spent; 0 in a bucket  unused
//	               that was never charged
//	Time           when Spent was true               when the window ends
//
// Times are integer microseconds of the store's own clock; only differences
// matter, so any epoch serves.
type State struct {
	Spent int64
	Den   int64
	Time  int64
}

// Advance returns the state as it stands at now under policy p: refilled,
// measured in p's scale and capped at p's burst (token_bucket), or emptied when
// its window has ended (fixed_window). A clock that stood still or went back
// refills nothing and ends no window.
//
// The methods below take a state that Advance returned for the same now and the
// same policy. None of them allocates.
func (p *Policy) Advance(s State, now int64) State {
	if p.Algorithm == TokenBucket {
		return p.advanceBucket(s, now)
	}
	return advanceWindow(s, now)
}

// Admit decides whether cost may be spent. It returns the state after the
// charge, or s as it was if the charge is denied or cost is 0; cost is never
// negative. A cost of 0 is a peek and is always allowed.
func (p *Policy) Admit(s State, now, cost int64) (after State, allowed bool) {
	if cost == 0 {
		return s, true
	}
	if p.Algorithm == TokenBucket {
		return p.admitBucket(s, cost)
	}
	return p.admitWindow(s, now, cost)
}

// Describe returns what could be spent at now, in units and never negative,
// and how long it is until that grows by at least one; 0 if nothing is spent,
// or if nothing ever refills.
func (p *Policy) Describe(s State, now int64) (remaining int64, reset time.Duration) {
	if p.Algorithm == TokenBucket {
		return p.describeBucket(s, now)
	}
	return p.describeWindow(s, now)
}

// RetryAfter returns how long from now it is until cost, which Admit has
// denied, would be admitted if nobody else spends; [Never] if no wait helps.
func (p *Policy) RetryAfter(s State, now, cost int64) time.Duration {
	if p.Algorithm == TokenBucket {
		return p.retryBucket(s, now, cost)
	}
	return p.retryWindow(s, now, cost)
}

// RunsOut returns the time from which the state says no more than the zero
// State does, so that a store may forget it. For a bucket that never refills
// it is the end of time.
func (p *Policy) RunsOut(s State) int64 {
	if p.Algorithm == TokenBucket {
		return p.runsOutBucket(s)
	}
	return s.Time
}

// micros converts microseconds to a Duration. Beyond the 292 years that a
// Duration holds it answers the longest one.
func micros(us int64) time.Duration {
	if us > math.MaxInt64/int64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}
