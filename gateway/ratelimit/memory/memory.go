// Package memory is a [ratelimit.Store] in this process: the store of a gateway
// that runs alone, the edge limits per IP of every gateway, and the local cap
// while a shared store is away.
//
// It is not shared and not durable: every instance counts for itself, and a
// restart forgets everything that was spent.
//
// What it promises:
//
//   - All charges of one Take are decided in one atomic step, at one time, by
//     [ratelimit.Decide].
//   - It never waits for anything but its own short locks, and never fails but
//     for a programming error in the charges.
//   - It holds at most MaxKeys buckets. A bucket whose state has run out (it
//     has refilled, its window has ended) makes room for a new one; a bucket
//     that still counts is never pushed out, whoever else comes. When all of
//     them still count, new keys share one overflow bucket per policy, so that
//     crowding the table buys nobody a fresh budget.
//   - A bucket is found by a hash of its key, under secrets of the store, and the key
//     is not kept. That two of a thousand million keys share one has a probability
//     of 3·10⁻²¹ (127 bits: 10¹⁸/2 pairs in 1.7·10³⁸), and nobody can choose them.
//   - Time is a monotonic clock, set by the wall clock once, when the store is
//     made; a step of the wall clock changes nothing. Calendar windows and those
//     of a sliding_window_counter follow it, and [ratelimit.Charge.Windows] is
//     not looked at.
//
// A bucket is one line of the processor's caches, so a decision on one of a million
// callers waits for memory once for each of its limits, and for little else. Memory
// is kept in pages of 2 MiB where the kernel grants them. What has run out leaves room
// for others, but the memory itself is not given back.
//
// How it is used:
//
//	store, err := memory.New(memory.Options{})
//	…
//	decisions, err = store.Take(ctx, []ratelimit.Charge{{
//		Policy:    perMinute,
//		Partition: ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: "priya123"}),
//		Cost:      1,
//	}}, decisions)
package memory

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"bouncer/gateway/ratelimit"
)

const (
	// DefaultMaxKeys is Options.MaxKeys when it is 0.
	DefaultMaxKeys = 1_000_000

	// maxKeys keeps the number of an annex within 32 bits, and is an int everywhere.
	maxKeys = math.MaxInt32

	// A decision holds a lock for some 100 ns, so the fewest shards serve any number
	// of cores. Large tables have more, so that no directory gets long.
	keysPerShard, minShards, maxShards = 1 << 14, 64, 4096

	// inline is the length up to which a list of charges is decided without
	// allocating. Most requests have few limits, for which it is worth it not to
	// clear the memory of more.
	few, inline = 3, 8

	// searchMost bounds the segments that one Take looks through in a full table,
	// at some microseconds each.
	searchMost = 64
)

// Options are the settings of a [Store]. The zero value is usable.
type Options struct {
	// MaxKeys is how many buckets are kept; 0 means DefaultMaxKeys. A bucket takes
	// about 100 bytes in a table of a million, and 80 to 160 in others, by how full
	// its segments are, whatever the length of its key. A sliding_window_log takes
	// up to 28 bytes more for each unit of its quota, and some 50 once. A store of
	// few keys takes up to 800 kB.
	MaxKeys int
	// Source is what the decisions say who decided; "" means
	// [ratelimit.SourceMemory].
	Source ratelimit.Source
	// Now returns the time in microseconds; it must be safe for concurrent use
	// and must not call the store. nil means Unix time, read once when the store
	// is made, plus the monotonic time since.
	Now func() int64
	// Hooks are told what happens.
	Hooks Hooks
}

// Hooks are functions that a Store calls; nil ones are skipped. They are called
// without a lock held, from the goroutine of Take, and must be safe for
// concurrent use.
type Hooks struct {
	// Overflow is called for each charge that was decided on an overflow bucket.
	Overflow func()
}

// Store is a [ratelimit.Store] in memory. It starts no goroutine and needs no
// Close. It is safe for concurrent use.
type Store struct {
	maxKeys int64
	source  ratelimit.Source
	now     func() int64
	hooks   Hooks

	hash hasher

	// keys is the number of entries in all shards and of the places that are
	// reserved for new ones: never above maxKeys.
	keys      atomic.Int64
	overflows atomic.Uint64

	shards   []shard // a power of two of them
	arena    arena
	overflow overflow
}

var _ ratelimit.Store = (*Store)(nil)

// New returns an empty store. The error says which option is wrong.
func New(o Options) (*Store, error) {
	if o.MaxKeys < 0 || o.MaxKeys > maxKeys {
		return nil, fmt.Errorf("make memory store: max keys: want 0 (for %d) to %d, got %d", DefaultMaxKeys, maxKeys, o.MaxKeys)
	}
	s := &Store{
		maxKeys: int64(o.MaxKeys),
		source:  o.Source,
		now:     o.Now,
		hooks:   o.Hooks,
		hash:    newHasher(),
	}
	if s.maxKeys == 0 {
		s.maxKeys = DefaultMaxKeys
	}
	if s.source == "" {
		s.source = ratelimit.SourceMemory
	}
	if s.now == nil {
		start := time.Now()
		epoch := start.UnixMicro()
		s.now = func() int64 { return epoch + time.Since(start).Microseconds() }
	}
	s.makeShards(1 << bits.Len64(uint64(min(max(s.maxKeys/keysPerShard, minShards), maxShards))-1))
	return s, nil
}

// makeShards gives the store n empty shards, a power of two.
func (s *Store) makeShards(n int) {
	s.shards = make([]shard, n)
	for i := range s.shards {
		s.shards[i].init()
	}
}

// Len returns how many buckets are kept, those included whose state has run
// out and whose place nobody needed yet. It is never above MaxKeys.
func (s *Store) Len() int { return int(s.keys.Load()) }

// Overflows returns how many charges were decided on an overflow bucket.
func (s *Store) Overflows() uint64 { return s.overflows.Load() }

// Take implements [ratelimit.Store]. A cost of 0 is a peek: it is allowed and
// writes nothing. The error is always a programming error: a charge without a
// policy made by [ratelimit.NewPolicy], or with a negative cost; nothing is
// charged then. The context is not looked at, since Take does not wait.
//
// It does not allocate for keys that are known, in lists of up to eight charges
// and with room in dst, unless it charges a sliding_window_log.
func (s *Store) Take(_ context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	dst = dst[:0]
	for i := range charges {
		if err := check(&charges[i]); err != nil {
			return dst, fmt.Errorf("take from memory store: charge %d: %w", i, err)
		}
	}
	if len(charges) == 0 {
		return dst, nil
	}

	var overflowed int
	switch n := len(charges); {
	case n <= few:
		var items [few]item
		var slots [few]ratelimit.Slot
		var shards [few]uint32
		dst, overflowed = s.take(&list{charges: charges, items: items[:n], slots: slots[:n], shards: shards[:n]}, dst)
	case n <= inline:
		var items [inline]item
		var slots [inline]ratelimit.Slot
		var shards [inline]uint32
		dst, overflowed = s.take(&list{charges: charges, items: items[:n], slots: slots[:n], shards: shards[:n]}, dst)
	default:
		dst, overflowed = s.take(&list{charges: charges, items: make([]item, n), slots: make([]ratelimit.Slot, n), shards: make([]uint32, n)}, dst)
	}

	if overflowed > 0 {
		s.overflows.Add(uint64(overflowed))
		if s.hooks.Overflow != nil {
			for range overflowed {
				s.hooks.Overflow()
			}
		}
	}
	return dst, nil
}

func check(c *ratelimit.Charge) error {
	switch {
	case c.Policy == nil:
		return errors.New("it has no policy")
	case c.Policy.Key() == "":
		return errors.New("its policy was not made by NewPolicy")
	case c.Cost < 0:
		return fmt.Errorf("cost: want 0 or more, got %d", c.Cost)
	}
	return nil
}

// take decides l and charges what is to be charged. It returns how many charges
// met an overflow bucket.
func (s *Store) take(l *list, dst []ratelimit.Decision) (_ []ratelimit.Decision, overflowed int) {
	s.identify(l)

	// A new key needs a place in the table. Places are reserved before the
	// verdict, because a key without one is decided on the overflow bucket.
	places := 0
	for found := true; ; {
		s.lock(l)
		l.now = s.now() // under the locks: never before what they hold
		if want := s.find(l) - places; want > 0 {
			places += s.reserve(l, want)
		}
		if places >= l.newKeys || !found {
			break
		}
		// The table is full. Somewhere an entry may have run out; looking for it
		// takes other shards' locks, which must not be waited for with ours held.
		// Meanwhile the table may change, so everything is looked up again.
		s.unlock(l)
		n := s.search(l, l.newKeys-places)
		places += n
		found = n > 0
	}

	overflowed = s.assign(l, places)
	if overflowed > 0 {
		s.overflow.mu.Lock()
		s.overflow.find(l)
	}
	dst = ratelimit.Decide(dst, s.source, l.now, l.charges, l.slots)
	places -= s.commit(l)
	if overflowed > 0 {
		s.overflow.mu.Unlock()
	}
	s.unlock(l)

	if places > 0 {
		s.keys.Add(int64(-places))
	}
	return dst, overflowed
}

// identify fills in what depends on the charges alone: the id of each key, which
// charges share a bucket, and the shards to lock.
func (s *Store) identify(l *list) {
	var part id
	for i := range l.charges {
		c, it := &l.charges[i], &l.items[i]
		if i == 0 || c.Partition != l.charges[i-1].Partition {
			part = s.hash.partition(c.Partition)
		}
		it.id = part.with(c.Policy)
		l.slots[i].First = i
		for j := range i {
			if l.items[j].id == it.id {
				l.slots[i].First = j
				break
			}
		}
		n := it.id.place & uint64(len(s.shards)-1) //nolint:gosec // above 0; the directories take the other end of it
		it.shard = &s.shards[n]
		l.addShard(uint32(n)) //nolint:gosec // below maxShards
	}
}

func sameKey(p, q *ratelimit.Policy) bool { return p == q || p.Key() == q.Key() }

// lock takes the locks of a list in ascending order, so that no two lists wait
// for each other.
func (s *Store) lock(l *list) {
	for _, n := range l.shards[:l.locks] {
		s.shards[n].mu.Lock()
	}
}

func (s *Store) unlock(l *list) {
	for _, n := range l.shards[:l.locks] {
		s.shards[n].mu.Unlock()
	}
}

// find looks up every bucket of l and returns how many of them are new and are
// to be charged.
func (s *Store) find(l *list) (newKeys int) {
	for i := range l.items {
		it, c := &l.items[i], &l.charges[i]
		if !l.isFirst(i) {
			if c.Cost > 0 {
				l.items[l.slots[i].First].charged = true
			}
			continue
		}
		it.charged = c.Cost > 0
		it.overflow = false
		l.slots[i].State = ratelimit.State{}
		if it.entry = it.shard.find(it.id); it.entry != nil {
			it.shard.load(it.entry, &l.slots[i].State)
		}
	}
	for i := range l.items {
		if l.isNew(i) {
			newKeys++
		}
	}
	l.newKeys = newKeys
	return newKeys
}

// reserve gets up to want places without leaving l's shards: from entries that
// have run out there, else from what the table has free.
func (s *Store) reserve(l *list, want int) (got int) {
	for i := range l.items {
		if l.isNew(i) {
			got += l.items[i].shard.tidy(l, l.items[i].id)
		}
	}
	for got < want {
		n := s.keys.Load()
		if n >= s.maxKeys {
			break
		}
		if s.keys.CompareAndSwap(n, n+1) {
			got++
		}
	}
	return got
}

// search gets want places, or more, from entries anywhere that have run out at
// l.now, but none that l is about to charge. No lock may be held.
//
// It finds one if there is one, unless the more than searchMost segments that it
// has to look through first hold only what was charged again. Even then the next
// search goes on where this one stopped.
func (s *Store) search(l *list, want int) (got int) {
	most := searchMost
	for i := range s.shards {
		sh := &s.shards[i]
		if sh.earliest.Load() > l.now {
			continue
		}
		sh.mu.Lock()
		n, swept := sh.search(l, most, want-got)
		sh.mu.Unlock()
		got += n
		most -= swept
		if got >= want || most == 0 {
			break
		}
	}
	return got
}

// assign gives the places to the new keys in the order of the charges and sends
// those that get none to the overflow. It returns how many charges went there.
func (s *Store) assign(l *list, places int) (overflowed int) {
	for i := range l.items {
		it := &l.items[i]
		switch {
		case !l.isFirst(i):
			if l.items[l.slots[i].First].overflow {
				overflowed++
			}
		case l.isNew(i):
			if places > 0 {
				places--
			} else {
				it.overflow = true
				overflowed++
			}
		}
	}
	return overflowed
}

// commit writes the states that have changed, and returns how many places it
// used.
func (s *Store) commit(l *list) (used int) {
	for i := range l.items {
		it, slot := &l.items[i], &l.slots[i]
		if slot.First != i || slot.Charged == nil {
			continue
		}
		if l.newKeys > 0 && it.entry != nil {
			it.entry = it.shard.find(it.id) // it may have moved to make room
		}
		switch {
		case it.overflow:
			s.overflow.set(slot.Charged, slot.After, l.now)
		case it.entry != nil:
			it.shard.update(it.entry, slot.Charged, &slot.After)
		default:
			it.shard.insert(&s.arena, it.id, slot.Charged, &slot.After)
			used++
		}
	}
	return used
}
