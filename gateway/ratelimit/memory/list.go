package memory

import "bouncer/gateway/ratelimit"

// A list is one Take on its way through the store.
type list struct {
	charges []ratelimit.Charge
	items   []item           // one per charge
	slots   []ratelimit.Slot // one per charge: which share a bucket, and its state
	shards  uint64           // the set of shards to lock
	now     int64
	newKeys int // buckets that need a place
}

// An item is what the store knows of one charge beside its slot. All but the
// hash is of the first charge of a bucket only, as in a slot.
type item struct {
	hash     uint64
	entry    uint32 // in the hash's shard, or none
	charged  bool   // some charge of the bucket has a cost above 0
	overflow bool   // it has no place: decided on the overflow bucket
}

// isFirst reports whether charge i stands for its bucket.
func (l *list) isFirst(i int) bool { return l.slots[i].First == i }

// isNew reports whether charge i stands for a bucket that needs a place in the
// table. It needs one also if the list is denied: what counts rejected attempts
// and what is a candidate may be charged all the same.
func (l *list) isNew(i int) bool {
	return l.isFirst(i) && l.items[i].charged && l.items[i].entry == none
}

// uses reports whether l is about to charge e.
func (l *list) uses(e *entry) bool {
	for i := range l.charges {
		if c := &l.charges[i]; c.Cost > 0 && c.Partition == e.partition && sameKey(c.Policy, e.policy) {
			return true
		}
	}
	return false
}

// merge makes the bucket of charge i the one of charge j, an earlier one.
func (l *list) merge(i, j int) {
	for k := i; k < len(l.slots); k++ {
		if l.slots[k].First == i {
			l.slots[k].First = j
		}
	}
}
