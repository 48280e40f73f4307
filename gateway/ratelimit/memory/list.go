package memory

import (
	"math"

	"bouncer/gateway/ratelimit"
)

// A list is one Take on its way through the store.
type list struct {
	charges []ratelimit.Charge
	items   []item // one per charge
	shards  uint64 // the set of shards to lock
	now     int64
	newKeys int // buckets that need a place
}

// An item is what is known of one charge. The items of one bucket (two charges
// of one list may have the same) refer to the first of them, which holds what
// belongs to the bucket.
type item struct {
	hash  uint64
	first int // the first item of this bucket; its own index if it is that

	// Of the first item only:
	entry    uint32 // in the hash's shard, or none
	charged  bool   // some charge of the bucket has a cost above 0
	overflow bool   // it has no place: decided on the overflow bucket
	stored   ratelimit.State
	work     ratelimit.State   // after the charges so far
	taken    int64             // by the charges so far, in units
	policy   *ratelimit.Policy // the last one that charged
}

// isNew reports whether it, the item at index i, stands for a bucket that needs
// a place in the table.
func (it *item) isNew(i int) bool { return it.first == i && it.charged && it.entry == none }

// uses reports whether l is about to charge e.
func (l *list) uses(e *entry) bool {
	for i := range l.charges {
		if c := &l.charges[i]; c.Cost > 0 && c.Partition == e.partition && sameKey(c.Policy, e.policy) {
			return true
		}
	}
	return false
}

// merge makes the bucket of item i the one of item j, an earlier one.
func (l *list) merge(i, j int) {
	for k := i; k < len(l.items); k++ {
		if l.items[k].first == i {
			l.items[k].first = j
		}
	}
}

// decide appends one decision per charge to dst and reports whether all are
// allowed. If so, the first item of each bucket holds the state to store.
func (l *list) decide(dst []ratelimit.Decision, source ratelimit.Source) (_ []ratelimit.Decision, admitted bool) {
	admitted = true
	for i := range l.items {
		it := &l.items[i]
		if it.first == i {
			it.work, it.taken = it.stored, 0
		}
	}
	for i := range l.charges {
		c := &l.charges[i]
		p := c.Policy
		bucket := &l.items[l.items[i].first]
		state := p.Advance(bucket.work, l.now)
		after, allowed := p.Admit(state, l.now, c.Cost)

		d := ratelimit.Decision{Policy: p, Allowed: allowed, Source: source}
		switch {
		case !allowed:
			admitted = false
			// Whoever comes back asks again for what earlier charges of this
			// list wanted from the same bucket, so that has to be there as well.
			d.RetryAfter = p.RetryAfter(p.Advance(bucket.stored, l.now), l.now, addCost(bucket.taken, c.Cost))
		case c.Cost > 0:
			bucket.work, bucket.policy = after, p
			bucket.taken += c.Cost
		}
		d.Remaining, d.Reset = p.Describe(after, l.now)
		dst = append(dst, d)
	}
	if admitted {
		return dst, true
	}
	// Nothing is charged, so every decision describes its bucket as it was.
	for i := range l.charges {
		p := l.charges[i].Policy
		bucket := &l.items[l.items[i].first]
		dst[i].Remaining, dst[i].Reset = p.Describe(p.Advance(bucket.stored, l.now), l.now)
	}
	return dst, false
}

// addCost adds two costs. What would overflow is more than any quota anyway.
func addCost(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}
