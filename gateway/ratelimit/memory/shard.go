package memory

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"bouncer/gateway/ratelimit"
)

const (
	none      = math.MaxUint32 // no entry
	chunkBits = 6
	chunkSize = 1 << chunkBits
)

// An entry is one bucket. A million of them are meant to fit into little
// memory, so it holds a pointer to the policy that charged last instead of what
// that policy says: the key's other half, the scale of spent, and how it drains.
type entry struct {
	partition string
	policy    *ratelimit.Policy
	spent     int64 // see ratelimit.State, whose Den and Num are the policy's
	time      int64
	next      uint32 // the next unused entry, if this one is unused
	annex     uint32 // its number, or none
}

// An annex is the rest of the state of a bucket that has more of it than an entry
// holds.
type annex struct {
	den    int64 // see ratelimit.State
	log    *ratelimit.Log
	former *ratelimit.Former
	next   uint32 // the next unused annex, if this one is unused
}

// needsAnnex reports whether s, of a bucket of p, is more than an entry holds.
func needsAnnex(p *ratelimit.Policy, s ratelimit.State) bool {
	return p.Algorithm == ratelimit.SlidingWindowLog || p.Algorithm == ratelimit.SlidingWindowCounter || s.Former != nil
}

// state returns the state of an entry of sh.
func (sh *shard) state(e *entry) ratelimit.State {
	s := ratelimit.State{Spent: e.spent, Num: e.policy.Num(), Time: e.time}
	if e.annex == none {
		s.Den = e.policy.Den()
	} else {
		a := &sh.annexes[e.annex]
		s.Den, s.Log, s.Former = a.den, a.log, a.former
	}
	return s
}

// set writes the state of an entry of sh.
func (sh *shard) set(e *entry, p *ratelimit.Policy, s ratelimit.State) {
	e.policy, e.spent, e.time = p, s.Spent, s.Time
	switch needs := needsAnnex(p, s); {
	case needs && e.annex == none:
		e.annex = sh.newAnnex()
	case !needs && e.annex != none:
		sh.dropAnnex(e)
	}
	if e.annex != none {
		a := &sh.annexes[e.annex]
		a.den, a.log, a.former = s.Den, s.Log, s.Former
	}
}

// A shard is a part of the table with its own lock.
//
// Entries live in chunks that never move, and are found through an index of
// hashes. A heap orders them by when they run out at the earliest. A charge puts
// that off, so a charge need not touch the heap: an entry that comes up is looked
// at again, and is put back if it still counts. (A plan that was raised brings it
// forward, and so does what a bucket no longer remembers of a larger plan; its
// entries then make room when they would have before.)
type shard struct {
	hash hasher

	mu sync.Mutex
	// mu protects the following fields.
	index  index
	chunks []*[chunkSize]entry
	free   uint32 // the first unused entry, or none
	heap   []due

	annexes   []annex
	freeAnnex uint32 // the first unused annex, or none

	// earliest is heap[0].at, or the end of time; it is written under mu and
	// read without it by whoever needs a place.
	earliest atomic.Int64

	_ [64]byte // keeps the locks of neighbours on different cache lines
}

// due says that an entry does not run out before at.
type due struct {
	at    int64
	entry uint32
}

func (sh *shard) init(h hasher) {
	sh.hash = h
	sh.free, sh.freeAnnex = none, none
	sh.earliest.Store(math.MaxInt64)
}

// at returns the entry with index i. The pointer stays valid.
func (sh *shard) at(i uint32) *entry {
	return &sh.chunks[i>>chunkBits][i&(chunkSize-1)]
}

// lookup returns the entry of a key, or none.
func (sh *shard) lookup(hash uint64, partition string, p *ratelimit.Policy) uint32 {
	slots := sh.index.slots
	if len(slots) == 0 {
		return none
	}
	tag, mask := tagOf(hash), sh.index.mask()
	for i := tag & mask; slots[i].ref != 0; i = (i + 1) & mask {
		if slots[i].tag != tag {
			continue
		}
		n := slots[i].ref - 1
		if e := sh.at(n); e.partition == partition && sameKey(e.policy, p) {
			return n
		}
	}
	return none
}

// insert adds an entry for a key that has none.
func (sh *shard) insert(hash uint64, partition string, p *ratelimit.Policy, s ratelimit.State) {
	if sh.free == none {
		sh.grow()
	}
	i := sh.free
	e := sh.at(i)
	sh.free = e.next

	// A copy, since the caller's string may be part of a larger one.
	e.partition = strings.Clone(partition)
	e.annex = none
	sh.set(e, p, s)
	sh.index.add(tagOf(hash), i)
	sh.push(due{at: p.RunsOut(s), entry: i})
	sh.earliest.Store(sh.heap[0].at)
}

// newAnnex returns the number of an unused annex. There are no more of them than
// entries.
func (sh *shard) newAnnex() uint32 {
	i := sh.freeAnnex
	if i == none {
		sh.annexes = append(sh.annexes, annex{})
		return uint32(len(sh.annexes) - 1) //nolint:gosec // below 2^32, see maxKeys
	}
	sh.freeAnnex = sh.annexes[i].next
	return i
}

// dropAnnex gives back the annex of e, which has one.
func (sh *shard) dropAnnex(e *entry) {
	sh.annexes[e.annex] = annex{next: sh.freeAnnex}
	sh.freeAnnex, e.annex = e.annex, none
}

// grow adds a chunk of unused entries.
func (sh *shard) grow() {
	base := uint32(len(sh.chunks)) << chunkBits //nolint:gosec // below 2^32, see maxKeys
	c := new([chunkSize]entry)
	for i := range c {
		c[i].next = base + uint32(i) + 1
	}
	c[chunkSize-1].next = sh.free
	sh.chunks = append(sh.chunks, c)
	sh.free = base
}

// sweep looks at up to looks entries that may have run out at l.now, and removes
// up to want that have, but none that l is about to charge. It returns how many
// were removed and how many looked at.
func (sh *shard) sweep(l *list, looks, want int) (removed, looked int) {
	for looked < looks && removed < want && len(sh.heap) > 0 && sh.heap[0].at <= l.now {
		looked++
		i := sh.heap[0].entry
		e := sh.at(i)
		at := e.policy.RunsOut(sh.state(e))
		if at <= l.now && l.uses(e) {
			at = l.now + 1
		}
		if at > l.now {
			sh.heap[0].at = at
			sh.siftDown()
			continue
		}
		sh.pop()
		sh.remove(i)
		removed++
	}
	if looked > 0 {
		sh.earliest.Store(math.MaxInt64)
		if len(sh.heap) > 0 {
			sh.earliest.Store(sh.heap[0].at)
		}
	}
	return removed, looked
}

// remove forgets entry i, which has left the heap.
func (sh *shard) remove(i uint32) {
	e := sh.at(i)
	sh.index.remove(tagOf(sh.hash.sum(e.partition, e.policy)), i)
	if e.annex != none {
		sh.dropAnnex(e)
	}
	*e = entry{next: sh.free}
	sh.free = i
}

// push adds d to the heap.
func (sh *shard) push(d due) {
	h := append(sh.heap, d)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].at <= d.at {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = d
	sh.heap = h
}

// pop removes the head of the heap.
func (sh *shard) pop() {
	last := len(sh.heap) - 1
	sh.heap[0] = sh.heap[last]
	sh.heap = sh.heap[:last]
	if last > 0 {
		sh.siftDown()
	}
}

// siftDown moves the head of the heap to where it belongs.
func (sh *shard) siftDown() {
	h := sh.heap
	d := h[0]
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if right := child + 1; right < len(h) && h[right].at < h[child].at {
			child = right
		}
		if d.at <= h[child].at {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = d
}
