package memory

import "bouncer/gateway/ratelimit"

// A list is one Take on its way through the store.
type list struct {
	charges []ratelimit.Charge
	items   []item           // one per charge
	slots   []ratelimit.Slot // one per charge: which share a bucket, and its state
	shards  []uint32         // room for one per charge: the numbers of the shards to lock, ascending
	locks   int              // how many of them there are
	now     int64
	newKeys int // buckets that need a place
}

// An item is what the store knows of one charge beside its slot. All but the id
// is of the first charge of a bucket only, as in a slot.
type item struct {
	id       id
	shard    *shard
	entry    *entry // nil if there is none
	charged  bool   // some charge of the bucket has a cost above 0
	overflow bool   // it has no place: decided on the overflow bucket
}

// isFirst reports whether charge i stands for its bucket.
func (l *list) isFirst(i int) bool { return l.slots[i].First == i }

// isNew reports whether charge i stands for a bucket that needs a place in the
// table. It needs one also if the list is denied: what counts rejected attempts
// and what is a candidate may be charged all the same.
func (l *list) isNew(i int) bool {
	return l.isFirst(i) && l.items[i].charged && l.items[i].entry == nil
}

// uses reports whether l is about to charge the bucket with this id.
func (l *list) uses(id id) bool {
	for i := range l.items {
		if l.items[i].id == id && l.charges[i].Cost > 0 {
			return true
		}
	}
	return false
}

// addShard adds a shard to those to lock, unless it is one of them.
func (l *list) addShard(n uint32) {
	i := l.locks
	for ; i > 0 && l.shards[i-1] >= n; i-- {
		if l.shards[i-1] == n {
			return
		}
	}
	copy(l.shards[i+1:], l.shards[i:l.locks])
	l.shards[i] = n
	l.locks++
}

// merge makes the bucket of charge i the one of charge j, an earlier one.
func (l *list) merge(i, j int) {
	for k := i; k < len(l.slots); k++ {
		if l.slots[k].First == i {
			l.slots[k].First = j
		}
	}
}
