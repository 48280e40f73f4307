package limittest

import (
	"math/big"
	"sort"
	"time"

	"bouncer/gateway/ratelimit"
)

// A bucket fills up when it is charged and drains at a steady rate. As a token
// bucket it holds what was spent of the burst, and the rest can be spent at
// once. As a queue it holds the drips that are owed, and whoever is admitted
// waits for the last of his own.
type bucketLimit struct {
	rate     *big.Rat // units per µs; nil for a quota of 0: nothing ever drains
	capacity *big.Rat // units
	queue    bool
	longest  int64 // of a queue: µs that anybody may wait; 0: as long as it takes
}

// A past is what was spent under a plan that holds more than the one that is
// charged now: a second account of the bucket, as of the same time, in which all
// is charged too, and which drains as it did under the larger plan.
type past struct {
	spent *big.Rat // units
	rate  *big.Rat // units per µs
	most  *big.Rat // units: what spent began with, and is never above
	above *big.Rat // units: who holds more than this is shown it
}

// before is what was spent of s, as a past.
func before(s state) *past { return &past{spent: s.spent, rate: s.rate, most: s.spent} }

// drained is p after so many µs, or nil if there is nothing left of it.
func (p *past) drained(us int64) *past {
	if p == nil {
		return nil
	}
	q := *p
	q.spent = new(big.Rat).Sub(p.spent, new(big.Rat).Mul(p.rate, unit(us)))
	if q.spent.Sign() <= 0 {
		return nil
	}
	return &q
}

// charged is p with units more, in whole grains of its own.
func (p *past) charged(units *big.Rat) *past {
	if p == nil {
		return nil
	}
	q := *p
	q.spent = least(p.most, new(big.Rat).Add(p.spent, inGrains(units, p.rate)))
	return &q
}

func newBucket(quota, window, burst int64) bucketLimit {
	return bucketLimit{rate: drain(quota, window, burst), capacity: unit(burst)}
}

// newQueue: one goes at once and queue more wait, but none for longer than
// longest, if that is not 0.
func newQueue(quota, window, queue, longest int64) bucketLimit {
	l := bucketLimit{rate: drain(quota, window, queue+1), capacity: unit(queue + 1), queue: true, longest: longest}
	if longest > 0 && l.rate != nil {
		// Who comes at the end of what drains in longest, goes after longest.
		drained := new(big.Rat).Mul(l.rate, unit(longest))
		l.capacity = least(l.capacity, drained.Add(drained, unit(1)))
	}
	return l
}

// drain is the rate of quota per window, or what is counted in its place: what is
// too fine for capacity to be counted below 2^53 drains one unit per so many
// whole microseconds, rounded up.
func drain(quota, window, capacity int64) *big.Rat {
	if quota == 0 {
		return nil
	}
	rate := big.NewRat(quota, window)
	count := new(big.Int).Mul(big.NewInt(capacity), rate.Denom())
	if count.Cmp(big.NewInt(1<<53)) >= 0 {
		rate = new(big.Rat).SetFrac(big.NewInt(1), ceil(new(big.Rat).Inv(rate)))
	}
	return rate
}

// inGrains rounds units up to what is counted at a rate: parts of one by which a
// whole number drains in a µs. Where nothing drains that is whole units.
func inGrains(units, rate *big.Rat) *big.Rat {
	grain := unit(1)
	if rate != nil {
		grain.SetFrac(big.NewInt(1), rate.Denom())
	}
	n := new(big.Rat).SetInt(ceil(new(big.Rat).Quo(units, grain)))
	return n.Mul(n, grain)
}

func (l bucketLimit) at(s state, now int64) state {
	passed := max(0, now-s.since)
	past := s.past.drained(passed)
	// In this limit's grains, rounded against the caller; what a larger plan has
	// spent counts if this one is larger than those that were charged since.
	spent := inGrains(s.units(), l.rate)
	if s.past != nil && l.capacity.Cmp(s.past.above) > 0 {
		if larger := inGrains(s.past.spent, l.rate); larger.Cmp(spent) > 0 {
			spent = larger
		}
		if spent.Cmp(l.capacity) <= 0 {
			past = nil // there is one account again
		}
	}
	// Never above the capacity; what was is remembered.
	if spent.Cmp(l.capacity) > 0 {
		if past == nil {
			past = before(s).drained(passed)
		}
		if past != nil {
			past.above = l.capacity
		}
	}
	spent = least(spent, l.capacity)
	// Less what drained since.
	if l.rate != nil {
		drained := new(big.Rat).Mul(l.rate, unit(passed))
		spent.Sub(spent, least(drained, spent))
	}
	if passed > 0 && past != nil && past.spent.Cmp(spent) <= 0 {
		past = nil
	}
	return state{spent: spent, since: s.since + passed, rate: l.rate, past: past, gone: s.gone}
}

// fits: there is room beside what is spent, and nobody waits for too long; while
// the clock is behind, all wait for it too.
func (l bucketLimit) fits(s state, now int64, units *big.Rat) bool {
	if l.rate == nil || new(big.Rat).Add(s.units(), units).Cmp(l.capacity) > 0 {
		return false
	}
	return l.longest == 0 || l.held(s, now, units).Cmp(big.NewInt(l.longest)) <= 0
}

func (l bucketLimit) spend(s state, _, cost int64) state {
	return l.holding(s, new(big.Rat).Add(s.units(), unit(cost)))
}

// fill: up to what fits now, which is less than the capacity where who comes last
// would wait for too long behind a clock.
func (l bucketLimit) fill(s state, now, cost int64) state {
	spent := new(big.Rat).Add(s.units(), unit(cost))
	spent = least(spent, l.capacity)
	if lag := s.since - now; l.longest > 0 && lag > 0 {
		room := new(big.Rat)
		if lag <= l.longest {
			room.Mul(l.rate, unit(l.longest-lag))
			room.Add(room, unit(1))
		}
		spent = least(spent, room)
	}
	if spent.Cmp(s.units()) <= 0 {
		// Nothing more, but a store may write down that it drains by these numbers now.
		s.gone = min(s.gone, l.holding(s, s.units()).gone)
		return s
	}
	return l.holding(s, spent)
}

func (l bucketLimit) holding(s state, spent *big.Rat) state {
	s.past = s.past.charged(new(big.Rat).Sub(spent, s.units()))
	s.spent = spent
	drained := clamp(ceil(new(big.Rat).Quo(spent, l.rate)))
	if s.past != nil {
		drained = max(drained, clamp(ceil(new(big.Rat).Quo(s.past.spent, s.past.rate))))
	}
	s.gone = s.since + drained
	return s
}

func (l bucketLimit) describe(s state, now int64) (int64, time.Duration) {
	if l.rate == nil {
		return 0, 0
	}
	// The most that fits, which is no more than the room beside what is spent.
	room := max(0, floor(new(big.Rat).Sub(l.capacity, s.units())))
	remaining := room - int64(sort.Search(int(room), func(less int) bool {
		return l.fits(s, now, unit(room-int64(less)))
	}))
	if unit(remaining+1).Cmp(l.capacity) > 0 {
		return remaining, 0 // as much as there ever is
	}
	return remaining, l.until(s, now, unit(remaining+1))
}

func (l bucketLimit) wait(s state, now int64, units *big.Rat) time.Duration {
	if l.rate == nil || units.Cmp(l.capacity) > 0 {
		return ratelimit.Never
	}
	return l.until(s, now, units)
}

// until returns how long it is until units can be spent.
func (l bucketLimit) until(s state, now int64, units *big.Rat) time.Duration {
	// spent - rate*t + units <= capacity
	over := new(big.Rat).Sub(new(big.Rat).Add(s.units(), units), l.capacity)
	if over.Sign() > 0 {
		return micros(l.drained(s, now, over))
	}
	// There is room, but a clock that is behind has to catch up with so much that
	// the wait is not too long.
	held := l.held(s, now, units)
	return micros(held.Sub(held, big.NewInt(l.longest)))
}

// drained returns how many µs it is until units have drained away.
func (l bucketLimit) drained(s state, now int64, units *big.Rat) *big.Int {
	t := ceil(new(big.Rat).Quo(units, l.rate))
	if s.since > now {
		t.Add(t, big.NewInt(s.since-now)) // the clock is behind and must catch up first
	}
	return t
}

// held returns how many µs a request of so many units waits for its last drip.
func (l bucketLimit) held(s state, now int64, units *big.Rat) *big.Int {
	// The first drip of an empty queue falls at once.
	ahead := new(big.Rat).Add(s.units(), units)
	if ahead.Sub(ahead, unit(1)); ahead.Sign() < 0 {
		ahead = new(big.Rat)
	}
	return l.drained(s, now, ahead)
}

func (l bucketLimit) delay(s state, now, cost int64) time.Duration {
	if !l.queue {
		return 0
	}
	return micros(l.held(s, now, unit(cost)))
}
