package limittest

import (
	"math/big"
	"time"

	"bouncer/gateway/ratelimit"
)

// queued changes queues, not token buckets.
func queued(change func(bucketLimit) limit) func(*ratelimit.Policy, limit) limit {
	return of(func(l bucketLimit) limit {
		if !l.queue {
			return l
		}
		return change(l)
	})
}

var queueMutants = []mutant{
	{name: "queue: admits one too many", history: "History/LeakyBucket", limit: queued(func(l bucketLimit) limit {
		l.capacity = new(big.Rat).Add(l.capacity, unit(1))
		return l
	})},
	{name: "queue: the one that goes at once takes a place", limit: queued(func(l bucketLimit) limit {
		if l.capacity.Cmp(unit(2)) >= 0 {
			l.capacity = new(big.Rat).Sub(l.capacity, unit(1))
		}
		return l
	})},
	{name: "queue: held for the drip after its own", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(s state, now, cost int64) time.Duration { return l.delay(s, now, cost+1) }}
	})},
	{name: "queue: held for the first of its drips", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(s state, now, _ int64) time.Duration { return l.delay(s, now, 1) }}
	})},
	{name: "queue: holds nobody", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(state, int64, int64) time.Duration { return 0 }}
	})},
	{name: "queue: the delay is rounded down", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(s state, now, cost int64) time.Duration {
			ahead := new(big.Rat).Add(s.units(), unit(cost-1))
			return time.Duration(floor(ahead.Quo(ahead, l.rate))+max(0, s.since-now)) * micro
		}}
	})},
	{name: "queue: the delay forgets that the clock is behind", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(s state, now, cost int64) time.Duration { return l.delay(s, max(now, s.since), cost) }}
	})},
	{name: "queue: max delay bounds when the first of the drips falls", limit: func(p *ratelimit.Policy, right limit) limit {
		if p.MaxDelay == 0 || p.Quota == 0 {
			return right
		}
		return more(p, 0).(bucketLimit).wider()
	}},
	{name: "queue: ignores max delay", limit: func(p *ratelimit.Policy, _ limit) limit {
		return altered(p, func(q *ratelimit.Policy) { q.MaxDelay = 0 })
	}},
	{name: "queue: gives back the place of who left", tables: true},
	{name: "queue: saves up drips while idle", limit: queued(func(l bucketLimit) limit {
		return override{limit: l, onDelay: func(s state, now, cost int64) time.Duration {
			if s.units().Sign() == 0 {
				return 0
			}
			return l.delay(s, now, cost)
		}}
	})},
}

// wider is l with a drip more, however long that waits.
func (l bucketLimit) wider() bucketLimit {
	l.capacity = new(big.Rat).Add(l.capacity, unit(1))
	l.longest = 0
	return l
}
