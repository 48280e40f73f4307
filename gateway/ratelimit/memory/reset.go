package memory

import (
	"fmt"

	"bouncer/gateway/ratelimit"
)

// Reset empties the buckets of charges: the next charge finds them as if they had
// never been charged. What was charged to a bucket that many share because the table
// was full stays there. The error is that of [Store.Take].
func (s *Store) Reset(charges []ratelimit.Charge) error {
	for i := range charges {
		if err := check(&charges[i]); err != nil {
			return fmt.Errorf("reset in memory store: charge %d: %w", i, err)
		}
	}
	for i := range charges {
		l := &list{charges: charges[i : i+1], items: make([]item, 1), slots: make([]ratelimit.Slot, 1), shards: make([]uint32, 1)}
		s.identify(l)
		s.lock(l)
		s.find(l)
		if it := &l.items[0]; it.entry != nil {
			// Its place is nobody's from now on, and is found like any that has run out.
			it.shard.update(it.entry, charges[i].Policy, &ratelimit.State{})
		}
		s.unlock(l)
	}
	return nil
}
