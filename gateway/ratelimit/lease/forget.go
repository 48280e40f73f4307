package lease

import (
	"hash/maphash"

	"bouncer/gateway/ratelimit"
)

// Forget gives up all that is held of the buckets of charges, since they were emptied
// in the store: what was charged to a bucket before is not to be spent beside what it
// grants now. It is to be called after that. A block that the store has lent
// meanwhile, or is about to, may be given up too; what is in it is then stranded.
func (l *Leases) Forget(charges []ratelimit.Charge) {
	for i := range charges {
		c := &charges[i]
		s := &l.shards[maphash.String(l.seed, c.Partition)%shards]
		s.mu.Lock()
		if b := s.buckets[key{c.Partition, c.Policy.Key()}]; b != nil {
			l.blocks(-len(b.blocks))
			// What requests have paid from them, and give back, goes with them.
			b.blocks = nil
			b.forgotten++
			b.remaining, b.reset, b.at = b.policy.Capacity(), 0, l.now()
		}
		s.mu.Unlock()
	}
}
