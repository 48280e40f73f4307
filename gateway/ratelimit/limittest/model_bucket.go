package limittest

import (
	"math/big"
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
}

func newBucket(quota, window, burst int64) bucketLimit {
	return bucketLimit{rate: drain(quota, window, burst), capacity: unit(burst)}
}

// newQueue: one goes at once and queue more wait, but none for longer than
// longest, if that is not 0.
func newQueue(quota, window, queue, longest int64) bucketLimit {
	l := bucketLimit{rate: drain(quota, window, queue+1), capacity: unit(queue + 1), queue: true}
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

// grain is the smallest part of a unit that the bucket counts in.
func (l bucketLimit) grain() *big.Rat {
	if l.rate == nil {
		return unit(1)
	}
	return new(big.Rat).SetFrac(big.NewInt(1), l.rate.Denom())
}

func (l bucketLimit) at(s state, now int64) state {
	// In this limit's grains, rounded against the caller; never above the
	// capacity; less what drained since.
	grains := ceil(new(big.Rat).Quo(s.units(), l.grain()))
	spent := new(big.Rat).Mul(new(big.Rat).SetInt(grains), l.grain())
	spent = least(spent, l.capacity)
	since := s.since
	if now > since {
		if l.rate != nil {
			drained := new(big.Rat).Mul(l.rate, unit(now-since))
			spent.Sub(spent, least(drained, spent))
		}
		since = now
	}
	return state{spent: spent, since: since, gone: s.gone}
}

func (l bucketLimit) fits(s state, _ int64, units *big.Rat) bool {
	return l.rate != nil && new(big.Rat).Add(s.units(), units).Cmp(l.capacity) <= 0
}

func (l bucketLimit) spend(s state, _, cost int64) state {
	return l.holding(s, new(big.Rat).Add(s.units(), unit(cost)))
}

func (l bucketLimit) fill(s state, _, cost int64) state {
	return l.holding(s, least(l.capacity, new(big.Rat).Add(s.units(), unit(cost))))
}

func (l bucketLimit) holding(s state, spent *big.Rat) state {
	drained := ceil(new(big.Rat).Quo(spent, l.rate))
	return state{spent: spent, since: s.since, gone: s.since + clamp(drained)}
}

func (l bucketLimit) describe(s state, now int64) (int64, time.Duration) {
	if l.rate == nil {
		return 0, 0
	}
	remaining := floor(new(big.Rat).Sub(l.capacity, s.units()))
	if s.units().Sign() == 0 || unit(remaining+1).Cmp(l.capacity) > 0 {
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
	return l.drained(s, now, over)
}

// drained returns how long it is until units have drained away.
func (l bucketLimit) drained(s state, now int64, units *big.Rat) time.Duration {
	t := ceil(new(big.Rat).Quo(units, l.rate))
	if s.since > now {
		t.Add(t, big.NewInt(s.since-now)) // the clock is behind and must catch up first
	}
	return micros(t)
}

func (l bucketLimit) delay(s state, now, cost int64) time.Duration {
	if !l.queue {
		return 0
	}
	// The first drip of an empty queue falls at once.
	ahead := new(big.Rat).Add(s.units(), unit(cost-1))
	return l.drained(s, now, ahead)
}
