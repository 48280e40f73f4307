package memory

// An index finds entries by the hash of their keys: a hash table with linear
// probing, whose slots hold half of the hash beside the entry's number. It is
// here because a look-up in a large table costs what it misses in the
// processor's caches: this one reads one line of slots and then the entry, and
// takes 11 to 21 bytes a key. It holds no pointers, so the garbage collector
// need not look into it.
//
// The zero index is empty. Different keys may have equal tags, so whoever looks
// something up compares keys.
type index struct {
	slots []slot // a power of two of them, at most three quarters in use
	used  int
}

// A slot is free if ref is 0; else ref-1 is the entry.
type slot struct {
	tag uint32
	ref uint32
}

// tagOf returns the half of a hash that the index keeps. The shard was chosen by
// the other one.
func tagOf(hash uint64) uint32 { return uint32(hash) } //nolint:gosec // the half that is meant

// mask takes a tag to its home. There are slots.
func (x *index) mask() uint32 { return uint32(len(x.slots) - 1) } //nolint:gosec // at most 2^32 slots, see maxKeys

// add adds an entry that is not there.
func (x *index) add(tag, entry uint32) {
	if 4*(x.used+1) > 3*len(x.slots) {
		x.grow()
	}
	x.put(slot{tag: tag, ref: entry + 1})
	x.used++
}

// grow doubles the slots.
func (x *index) grow() {
	old := x.slots
	x.slots = make([]slot, max(8, 2*len(old)))
	for _, s := range old {
		if s.ref != 0 {
			x.put(s)
		}
	}
}

// put writes s into the first free slot from its home on. There is one.
func (x *index) put(s slot) {
	mask := x.mask()
	i := s.tag & mask
	for x.slots[i].ref != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = s
}

// remove removes an entry that is there.
func (x *index) remove(tag, entry uint32) {
	mask := x.mask()
	hole := tag & mask
	for x.slots[hole].ref != entry+1 {
		hole = (hole + 1) & mask
	}
	// A look-up stops at the first free slot, so what follows the hole moves up
	// into it, unless it would come before its home.
	for i := (hole + 1) & mask; x.slots[i].ref != 0; i = (i + 1) & mask {
		home := x.slots[i].tag & mask
		if (i-home)&mask >= (i-hole)&mask {
			x.slots[hole] = x.slots[i]
			hole = i
		}
	}
	x.slots[hole] = slot{}
	x.used--
}
