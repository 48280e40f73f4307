package memory

import (
	"math"
	"sync"
	"sync/atomic"

	"bouncer/gateway/ratelimit"
)

// An entry is one bucket, or a free slot if its id is zero. It is one line of the
// processor's caches, since a look-up in a large table costs the lines that it
// misses. It holds no pointer, so the garbage collector need not look into the
// table, and knows no policy, so that those of old configurations are let go.
type entry struct {
	id    id
	until int64 // from when on the state says no more than none: Policy.RunsOut
	spent int64 // see ratelimit.State
	den   int64
	num   int64
	time  int64
	annex uint32 // 1 + the number of its annex; 0: it has none
	_     uint32
}

// An annex is the rest of the state of a bucket that has more of it than an entry
// holds.
type annex struct {
	log    *ratelimit.Log
	former *ratelimit.Former
	next   uint32 // 1 + the number of the next unused annex, if this one is unused
}

// A shard is a part of the table with its own lock. Its entries lie in segments, as
// in extendible hashing (Fagin and others, 1979): a directory takes so many bits of
// an id to its segment, and a segment that is full is split in two by one bit more.
// So no insertion moves more entries than one segment has.
type shard struct {
	mu sync.Mutex
	// mu protects the following fields.
	bits   uint       // the directory has 2^bits places
	places []*segment // a segment that shares fewer bits has several; nil: the shard is empty

	annexes   []annex
	freeAnnex uint32 // 1 + the number of the first unused annex, or 0

	// earliest is when an entry may run out, as far as is known; it is written under
	// mu and read without it by whoever needs a place.
	earliest atomic.Int64

	_ [48]byte // two lines in all: keeps the locks of neighbours apart
}

func (sh *shard) init() {
	sh.places = make([]*segment, 1)
	sh.earliest.Store(math.MaxInt64)
}

// place returns where the directory has the segment of an id.
func (sh *shard) place(id id) int {
	return int(id.place >> (64 - sh.bits)) //nolint:gosec // below len(places)
}

// find returns the entry with this id, or nil. The pointer is valid until the shard
// is swept or something is inserted.
func (sh *shard) find(id id) *entry {
	if g := sh.places[sh.place(id)]; g != nil {
		return g.find(id)
	}
	return nil
}

// insert adds an entry for an id that has none. A new segment comes from a.
func (sh *shard) insert(a *arena, id id, p *ratelimit.Policy, s *ratelimit.State) {
	if sh.places[0] == nil {
		sh.places[0] = a.segment()
	}
	g := sh.places[sh.place(id)]
	for g.used == full {
		sh.split(a, sh.place(id))
		g = sh.places[sh.place(id)]
	}
	e := g.put(entry{id: id})
	sh.set(e, p, s)
	sh.expect(g, e.until)
}

// update writes the state of an entry of sh, as p has left it. Mostly it runs out
// later than before, which whoever sweeps will see; it is sooner if the plan was
// raised, or if a bucket has forgotten a larger plan.
func (sh *shard) update(e *entry, p *ratelimit.Policy, s *ratelimit.State) {
	before := e.until
	if sh.set(e, p, s); e.until < before {
		sh.expect(sh.places[sh.place(e.id)], e.until)
	}
}

// expect notes that an entry of g, a segment of sh, may run out at a time.
func (sh *shard) expect(g *segment, at int64) {
	g.earliest = min(g.earliest, at)
	sh.earliest.Store(min(sh.earliest.Load(), at))
}

// split moves about half of the entries of a segment into a new one.
func (sh *shard) split(a *arena, place int) {
	g, fresh := sh.places[place], a.segment()
	if g.bits == sh.bits {
		places := make([]*segment, 2*len(sh.places))
		for i, g := range sh.places {
			places[2*i], places[2*i+1] = g, g
		}
		sh.places = places
		sh.bits++
		place *= 2
	}
	g.bits++
	fresh.bits, fresh.earliest = g.bits, g.earliest
	// The places of g are a block, whose second half is the new one's.
	half := 1 << (sh.bits - g.bits)
	first := place&^(2*half-1) + half
	for i := range half {
		sh.places[first+i] = fresh
	}
	for i := 0; i < len(g.slots); {
		if e := g.slots[i]; e.id != (id{}) && sh.places[sh.place(e.id)] == fresh {
			fresh.put(e)
			g.remove(i)
		} else {
			i++
		}
	}
	g.again, fresh.again = 0, 0
}

// sweep removes what has run out at l.now from a segment, but nothing that l is
// about to charge. It returns how many entries that were.
func (sh *shard) sweep(l *list, g *segment) (removed int) {
	g.earliest = math.MaxInt64
	for i := 0; i < len(g.slots); {
		switch e := &g.slots[i]; {
		case e.id == id{}:
		case e.until > l.now:
			g.earliest = min(g.earliest, e.until)
		case l.uses(e.id):
			g.earliest = min(g.earliest, l.now+1)
		default:
			if e.annex != 0 {
				sh.dropAnnex(e)
			}
			g.remove(i)
			removed++
			continue // with what has moved up
		}
		i++
	}
	g.again = g.used + g.used/8
	return removed
}

// tidy sweeps the segment of an id that is to be inserted, unless nothing can have
// run out there, or so little has been inserted since it was last swept that it is
// not worth it: the table shrinks to what still counts and an eighth, and nobody
// has to walk it.
func (sh *shard) tidy(l *list, id id) (removed int) {
	g := sh.places[sh.place(id)]
	if g == nil || g.earliest > l.now || g.used < g.again {
		return 0
	}
	return sh.sweep(l, g)
}

// search sweeps up to most segments in which something may have run out, until want
// entries are removed. It returns how many were, and how many segments it swept.
func (sh *shard) search(l *list, most, want int) (removed, swept int) {
	earliest := int64(math.MaxInt64)
	for i := 0; i < len(sh.places) && sh.places[i] != nil; {
		g := sh.places[i]
		if g.earliest <= l.now {
			if swept == most || removed >= want {
				return removed, swept
			}
			removed += sh.sweep(l, g)
			swept++
		}
		earliest = min(earliest, g.earliest)
		i += 1 << (sh.bits - g.bits)
	}
	sh.earliest.Store(earliest)
	return removed, swept
}

// load reads the state of an entry of sh into s, which is zero.
func (sh *shard) load(e *entry, s *ratelimit.State) {
	s.Spent, s.Den, s.Num, s.Time = e.spent, e.den, e.num, e.time
	if e.annex != 0 {
		a := &sh.annexes[e.annex-1]
		s.Log, s.Former = a.log, a.former
	}
}

// set writes the state of an entry of sh, as p has left it; see update.
func (sh *shard) set(e *entry, p *ratelimit.Policy, s *ratelimit.State) {
	e.spent, e.den, e.num, e.time = s.Spent, s.Den, s.Num, s.Time
	e.until = p.RunsOut(*s)
	switch needs := s.Log != nil || s.Former != nil; {
	case needs && e.annex == 0:
		e.annex = sh.newAnnex()
	case !needs && e.annex != 0:
		sh.dropAnnex(e)
	}
	if e.annex != 0 {
		a := &sh.annexes[e.annex-1]
		a.log, a.former = s.Log, s.Former
	}
}

// newAnnex returns 1 + the number of an unused annex. There are no more of them
// than there ever were entries at once.
func (sh *shard) newAnnex() uint32 {
	n := sh.freeAnnex
	if n == 0 {
		sh.annexes = append(sh.annexes, annex{})
		return uint32(len(sh.annexes)) //nolint:gosec // below 2^32, see maxKeys
	}
	sh.freeAnnex = sh.annexes[n-1].next
	return n
}

// dropAnnex gives back the annex of e, which has one.
func (sh *shard) dropAnnex(e *entry) {
	sh.annexes[e.annex-1] = annex{next: sh.freeAnnex}
	sh.freeAnnex, e.annex = e.annex, 0
}
