package memory

import (
	"math"
	"math/bits"
	"sync"
)

const (
	// A segment is so large that the directories stay in the processor's caches,
	// and so small that it is split in some microseconds. With this size segments
	// are two thirds full in a table of a million keys.
	segmentSlots = 191 // with the head: 12 KiB

	// full is how many of its slots are used at most, so that a look-up finds what
	// it looks for in the first three slots on average, which follow each other.
	full = segmentSlots * 4 / 5

	// Memory is asked for in blocks of so many segments: as many as there are
	// already, so that a small table is small, up to 12 MiB.
	minBlock, maxBlock = 4, 1024
)

// A segment is a hash table of fixed size with linear probing. It holds no pointers.
type segment struct {
	used     int   // slots that are not free
	bits     uint  // how many bits all its ids share, as a directory has them
	earliest int64 // when an entry may run out, as far as is known: not before
	again    int   // with so many entries it is worth looking again for what has run out
	_        [32]byte

	slots [segmentSlots]entry
}

// home returns the slot from which on an id is looked for.
func home(id id) int {
	hi, _ := bits.Mul64(id.slot, segmentSlots)
	return int(hi) //nolint:gosec // below segmentSlots
}

// after returns the slot that follows slot i.
func after(i int) int {
	if i++; i < segmentSlots {
		return i
	}
	return 0
}

// find returns the entry with this id, or nil.
func (g *segment) find(id id) *entry {
	for i := home(id); ; i = after(i) {
		switch e := &g.slots[i]; e.id.slot {
		case id.slot:
			if e.id.place == id.place {
				return e
			}
		case 0:
			return nil
		}
	}
}

// put stores an entry whose id has none, and returns it. There is a free slot.
func (g *segment) put(e entry) *entry {
	i := home(e.id)
	for g.slots[i].id.slot != 0 {
		i = after(i)
	}
	g.slots[i] = e
	g.used++
	return &g.slots[i]
}

// remove frees a slot that is used.
func (g *segment) remove(hole int) {
	// A look-up stops at the first free slot, so what follows the hole moves up
	// into it, unless it would come before its home.
	for i := after(hole); g.slots[i].id.slot != 0; i = after(i) {
		if from := home(g.slots[i].id); between(from, i) >= between(hole, i) {
			g.slots[hole] = g.slots[i]
			hole = i
		}
	}
	g.slots[hole] = entry{}
	g.used--
}

// between returns how many slots lie from slot i on to before slot j.
func between(i, j int) int {
	if j -= i; j < 0 {
		j += segmentSlots
	}
	return j
}

// An arena hands out segments. They are never given back: what has run out leaves
// its segment, and that is there for others.
type arena struct {
	mu sync.Mutex
	// mu protects the following fields.
	block []segment // those of the last block that are left
	made  int
}

func (a *arena) segment() *segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.block) == 0 {
		a.block = make([]segment, min(max(a.made, minBlock), maxBlock))
		a.made += len(a.block)
		wantHugePages(a.block)
	}
	g := &a.block[0]
	a.block = a.block[1:]
	g.earliest = math.MaxInt64
	return g
}
