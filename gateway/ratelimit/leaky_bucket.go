package ratelimit

import "time"

// The leaky bucket, as a queue: it drips Quota/Window per second, one unit at a
// time, and a request goes with its last drip. One unit may go at once; Queue
// more wait behind it, or as many as drip within MaxDelay.
//
// It shapes, it does not police: what is admitted leaves at least one interval,
// Window/Quota, after what left before.
//
// spent is the backlog: what has been admitted and has not dripped yet. The
// books are those of a token bucket that holds Queue+1 units; what is more is
// the answer to when. An abandoned place lapses at its drip: it is not given
// back, and shifts nobody.

// delayLeaky returns how long a request of cost waits behind the backlog of s. A
// clock that went back has that long to catch up first.
func (p *Policy) delayLeaky(s *State, now, cost int64) time.Duration {
	lag := max(0, s.Time-now)
	// The drip of its first unit takes no time if nothing is before it.
	before := max(0, s.Spent+cost*p.den-p.den)
	return micros(lag + ceilDiv(before, p.num))
}

// holds returns how many parts may count at now: all of the capacity, unless a
// clock that went back makes everybody wait for longer and MaxDelay is reached
// sooner.
func (p *Policy) holds(s *State, now int64) int64 {
	if p.MaxDelay == 0 || now >= s.Time {
		return p.capacity
	}
	left := p.MaxDelay.Microseconds() - (s.Time - now)
	if left < 0 {
		return 0
	}
	parts, ok := product(left, p.num)
	if !ok {
		return p.capacity
	}
	return min(p.capacity, parts+p.den)
}

// tooLong returns how long it is until a request of cost, for which there is a
// place, would wait no longer than MaxDelay: the clock has to catch up so far.
func (p *Policy) tooLong(s *State, now, cost int64) time.Duration {
	return p.delayLeaky(s, now, cost) - p.MaxDelay
}
