package ratelimit

import (
	"math"
	"math/bits"
	"time"
)

// State is what a store keeps for one bucket: what was spent, not what is
// left, so that a raised quota or burst helps at once. The zero State is a
// bucket that was never charged. Its meaning depends on the algorithm:
//
//	        token_bucket,          fixed_window   sliding_window_    sliding_window_
//	        leaky_bucket                          counter            log
//	Spent   1/Den units, at Time   units used     units used in      units that count
//	                               in the window  the window
//	Den     the scale of Spent; 0  unused         units used in      unused
//	        in a bucket never                     the one before
//	        charged
//	Num     Spent drains by Num    0              0                  0
//	        every µs
//	Time    when Spent was true    when the       when the window    when the newest
//	                               window ends    began              unit was charged
//	Log     nil                    nil            nil                the units' times
//	Former  what a smaller plan    nil            nil                nil
//	        has cut, or nil
//
// Times are integer microseconds of the store's own clock, since the Unix epoch
// where a calendar or a sliding_window_counter is to follow that of other
// stores; elsewhere only differences matter.
type State struct {
	Spent  int64
	Den    int64
	Num    int64
	Time   int64
	Log    *Log
	Former *Former
}

// Advance returns the state as it stands at now under policy p: refilled,
// measured in p's scale and capped at what p holds (token_bucket, leaky_bucket),
// emptied when its window has ended (fixed_window), moved into the window of now
// (sliding_window_counter), or without what has left the window
// (sliding_window_log). A clock that stood still or went back refills nothing
// and ends no window.
//
// The methods below take a state that Advance returned for the same now and the
// same policy. None of them allocates, nor does Advance, but for charging a log,
// for opening a calendar's window first of all, and for a bucket that has a
// [Former].
func (p *Policy) Advance(s State, now int64) State {
	p.advance(&s, now)
	return s
}

// Admit decides whether cost may be spent. It returns the state after the
// charge, or s as it was if the charge is denied or cost is 0; cost is never
// negative. A cost of 0 is a peek and is always allowed.
func (p *Policy) Admit(s State, now, cost int64) (after State, allowed bool) {
	if cost == 0 {
		return s, true
	}
	if !p.fits(&s, now, cost) {
		return s, false
	}
	p.charge(&s, now, cost)
	return s, true
}

// ChargeRejected returns the state after a request of cost, above 0, that was
// not admitted and is charged all the same: up to what p grants, never beyond. A
// quota of 0 charges nothing.
func (p *Policy) ChargeRejected(s State, now, cost int64) State {
	p.chargeRejected(&s, now, cost)
	return s
}

// Describe returns what could be spent at now, in units and never negative,
// and how long it is until that grows by at least one; 0 if nothing is spent,
// or if nothing ever refills.
func (p *Policy) Describe(s State, now int64) (remaining int64, reset time.Duration) {
	return p.describe(&s, now)
}

// RetryAfter returns how long from now it is until cost, which Admit has
// denied, would be admitted if nobody else spends; [Never] if no wait helps.
func (p *Policy) RetryAfter(s State, now, cost int64) time.Duration {
	return p.retryAfter(&s, now, cost)
}

// Delay returns how long a request of cost has to wait for its drip of a leaky
// bucket; s is the state before it is charged. It is 0 with every other
// algorithm.
func (p *Policy) Delay(s State, now, cost int64) time.Duration { return p.delay(&s, now, cost) }

// RunsOut returns the time from which the state says no more than the zero
// State does, so that a store may forget it. For a bucket that never refills
// it is the end of time.
func (p *Policy) RunsOut(s State) int64 { return p.runsOut(&s) }

// The functions below are those above, on a state in its place. [Decide] uses them,
// since a State is larger than what is passed in registers without being written
// down and read back: copying it from function to function took as long as deciding.

func (p *Policy) advance(s *State, now int64) {
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		p.advanceBucket(s, now)
	case SlidingWindowLog:
		p.advanceLog(s, now)
	case SlidingWindowCounter:
		p.advanceCounter(s, now)
	default:
		advanceWindow(s, now)
	}
}

// charge charges cost, above 0, which fits.
func (p *Policy) charge(s *State, now, cost int64) {
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		p.chargeBucket(s, cost*p.den)
	case SlidingWindowLog:
		chargeLog(s, now, cost)
	case SlidingWindowCounter:
		s.Spent += cost
	default:
		p.chargeWindow(s, now, cost)
	}
}

// fits reports whether cost, above 0, may be spent.
func (p *Policy) fits(s *State, now, cost int64) bool {
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		return p.fitsBucket(s, now, cost)
	case SlidingWindowCounter:
		return p.fitsCounter(s, now, cost)
	default:
		return fitsWindow(s, p.Quota, cost)
	}
}

func (p *Policy) chargeRejected(s *State, now, cost int64) {
	if p.Quota == 0 {
		return
	}
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		p.fillBucket(s, now, cost)
	case SlidingWindowLog:
		p.fillLog(s, now, cost)
	case SlidingWindowCounter:
		p.fillCounter(s, now, cost)
	default:
		p.fillWindow(s, now, cost)
	}
}

func (p *Policy) describe(s *State, now int64) (remaining int64, reset time.Duration) {
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		return p.describeBucket(s, now)
	case SlidingWindowLog:
		return p.describeLog(s, now)
	case SlidingWindowCounter:
		return p.describeCounter(s, now)
	default:
		return p.describeWindow(s, now)
	}
}

func (p *Policy) retryAfter(s *State, now, cost int64) time.Duration {
	if p.Quota == 0 || cost > p.units {
		return Never
	}
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		return p.waitBucket(s, now, cost)
	case SlidingWindowLog:
		return p.waitLog(s, now, cost)
	case SlidingWindowCounter:
		return p.waitCounter(s, now, cost)
	default:
		return waitWindow(s, now)
	}
}

func (p *Policy) delay(s *State, now, cost int64) time.Duration {
	if p.Algorithm != LeakyBucket || cost == 0 || p.Quota == 0 {
		return 0
	}
	return p.delayLeaky(s, now, cost)
}

func (p *Policy) runsOut(s *State) int64 {
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		return p.runsOutBucket(s)
	case SlidingWindowLog:
		return p.runsOutLog(s)
	case SlidingWindowCounter:
		return p.runsOutCounter(s)
	default:
		return s.Time
	}
}

// micros converts microseconds to a Duration. Beyond the 292 years that a
// Duration holds it answers the longest one.
func micros(us int64) time.Duration {
	if us > math.MaxInt64/int64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}

// mulDiv returns a*b/c rounded down, and whether that is exact, however large
// a*b is. None is negative, and the quotient fits: a <= c or b <= c.
func mulDiv(a, b, c int64) (quo int64, exact bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b)) //nolint:gosec // see above
	q, r := bits.Div64(hi, lo, uint64(c))      //nolint:gosec // see above
	return int64(q), r == 0                    //nolint:gosec // see above
}

// mulDivUp is mulDiv, rounded up.
func mulDivUp(a, b, c int64) int64 {
	q, exact := mulDiv(a, b, c)
	if !exact {
		q++
	}
	return q
}
