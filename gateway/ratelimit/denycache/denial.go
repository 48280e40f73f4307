package denycache

import (
	"hash/maphash"
	"time"

	"bouncer/gateway/ratelimit"
)

// A denial is one entry: what the store said of a list that it denied. It is
// never changed.
type denial struct {
	asked    moment
	answered time.Duration // when its answer was there, by the cache's clock
	holds    time.Duration // since asked
	sharing  bool          // some charges have one bucket
	rulings  []ruling      // one per charge
}

// A moment is when a store was asked.
type moment struct {
	generation uint64 // of freed
	at         time.Duration
}

// A ruling is what was decided on one charge.
type ruling struct {
	decision ratelimit.Decision
	cost     int64
	bucket   uint64
}

// rememberable reports whether a denial of charges may be remembered: to ask
// again for it would charge nothing. A list with a peek in it is one of them: it
// wants to know how things stand.
func rememberable(charges []ratelimit.Charge) bool {
	if len(charges) == 0 || len(charges) > maxLimits {
		return false
	}
	for i := range charges {
		c := &charges[i]
		if c.Cost <= 0 || c.Policy == nil || c.Policy.CountRejected || c.Policy.Role == ratelimit.Candidate {
			return false
		}
	}
	return true
}

// remember returns the entry of a denied list, or nil if there can be none: it
// was not Redis that said so, or not by the policies that were asked.
func remember(charges []ratelimit.Charge, ds []ratelimit.Decision, asked moment, answered time.Duration) *denial {
	e := &denial{asked: asked, answered: answered, holds: arithmetic, rulings: make([]ruling, len(charges))}
	changes := time.Duration(0) // when the first verdict changes; 0: none does
	lifts := false              // some wait lifts the denial
	for i := range charges {
		c, d := &charges[i], &ds[i]
		// What was paid in advance was there to be spent; it was another limit that
		// denied.
		redis := d.Source == ratelimit.SourceRedis || d.Source == ratelimit.SourceLease && d.Allowed
		if !redis || d.Policy != c.Policy || d.Err != nil {
			return nil
		}
		r := &e.rulings[i]
		r.decision, r.cost, r.bucket = *d, c.Cost, ratelimit.BucketHash(c.Partition, c.Policy)
		r.decision.Source = ratelimit.SourceDenyCache
		for j := range i {
			e.sharing = e.sharing || e.rulings[j].bucket == r.bucket
		}
		switch {
		case d.Allowed, d.RetryAfter == ratelimit.Never:
			continue
		case d.RetryAfter <= 0:
			return nil // it does not say until when
		}
		lifts = lifts || d.Policy.Role == ratelimit.Enforce
		if changes == 0 || d.RetryAfter < changes {
			changes = d.RetryAfter
		}
	}
	switch {
	case lifts:
		e.holds = changes
	case changes > 0:
		e.holds = min(changes, arithmetic)
	}
	return e
}

// isOf reports whether e is of the policies of charges; its key is of their
// partitions.
func (e *denial) isOf(charges []ratelimit.Charge) bool {
	if len(e.rulings) != len(charges) {
		return false
	}
	for i := range charges {
		if e.rulings[i].decision.Policy != charges[i].Policy {
			return false
		}
	}
	return true
}

// A key is a hash of a list. Two lists with the same policies have the same key
// with a probability of 2^-128 unless their partitions are the same, and nobody
// can look for two: the seeds are secret. A false denial is less likely than a
// fault of the memory. It is all that is held of a caller.
type key [2]uint64

// keyOf returns the key of a list that is rememberable.
func (c *Cache) keyOf(charges []ratelimit.Charge) (k key) {
	// An odd number spreads: sums of hashes, each times another power of it, are
	// equal by chance only.
	const spread = 0x9e3779b97f4a7c15
	var name key // of the last partition, which most often is the next one's
	for i := range charges {
		ch := &charges[i]
		if i == 0 || ch.Partition != charges[i-1].Partition {
			name[0] = maphash.String(c.seeds[0], ch.Partition)
			name[1] = maphash.String(c.seeds[1], ch.Partition)
		}
		policy := maphash.String(c.seeds[0], ch.Policy.Key())
		k[0] = (k[0] + name[0] + policy) * spread
		k[1] = (k[1] + name[1]) * spread
	}
	return k
}
