// Package denycache answers for Redis where its answer is known: a caller that
// was denied until t is denied until t, for that cost or more, with the same
// fields counting down, and Redis is not asked. So a caller that hammers on a
// spent limit costs Redis one call and not one for each request.
//
// It is not a limiter: it admits nobody, and whatever it does not know for
// certain it asks the store behind it. It remembers no admission, so no limit
// admits more because of it.
//
// # What is remembered
//
// The last denial of a list of charges, whole, if Redis gave it, and if to ask
// again would charge nothing: no limit of the list counts rejected attempts, and
// none is a candidate. A shadow in the list is told too, as long as its own
// verdict holds. A list is known by its partitions and policies: policies by
// pointer, so that a reload starts anew; partitions by a hash of 128 bits under
// seeds of this process, so that a caller can neither make the table hold its
// strings nor find two names with one hash.
//
// An entry is over once the verdict of one of its decisions changes, or once one
// of them cannot be told exactly any more ([ratelimit.Decision.After]). Where no
// wait would help, there is no t: the denial holds for a second, since it is
// arithmetic and others may change the rest of its fields.
//
// # What it promises
//
//   - A denial ends no later than Redis would end it: its time counts from before
//     Redis was asked. The fields tell no less than what is left: they count from
//     when Redis had answered. So whoever waits for Retry-After is admitted, and
//     every denial of one entry tells of the same moment.
//   - What others charge meanwhile to the limits that deny makes the denial longer,
//     which Redis says when it is asked at t. What they charge to the others of the
//     list shows when it is asked again.
//   - Something given back to a limit that denied gives the denial up at once when
//     [Cache.Free] is told, also one whose answer is still on its way. A limit that
//     allowed changes no verdict by having more, so that what a cluster's store
//     charges and gives back for each denied request gives up nothing.
//   - At most MaxEntries denials are held; the one that was not asked for longest
//     makes room. Who is pushed out costs Redis one call more.
//   - While Redis is away, a denial that it gave still holds. Errors, and denials
//     of anybody else, such as a local cap, are not remembered.
//   - It starts no goroutine and never waits but for its own short locks. An
//     admitted request costs one look-up, and only while somebody is denied.
//
// # Use
//
//	cache, err := denycache.New(denycache.Options{})
//	store := cache.Over(redis) // a ratelimit.Store
//	…
//	cache.Free([]uint64{ratelimit.BucketHash(partition, policy)}) // somebody gave something back
//	cache.Clear()                                                 // the plans have changed
package denycache

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"bouncer/gateway/ratelimit"
)

const (
	// DefaultMaxEntries is Options.MaxEntries when it is 0.
	DefaultMaxEntries = 100_000

	// maxLimits is the longest list of charges that is remembered. It bounds what
	// an entry takes; longer ones are asked for each time.
	maxLimits = 16

	// arithmetic is how long a denial holds that no wait would lift.
	arithmetic = time.Second
)

// Options are the settings of a [Cache]. The zero value is usable.
type Options struct {
	// MaxEntries is how many denials are held, 1 or more; 0 means
	// DefaultMaxEntries. One takes about 250 bytes, and 100 for each limit.
	MaxEntries int
}

// A Cache holds the denials of one or more stores that count in the same place.
// It is safe for concurrent use and needs no Close. Make it with [New].
type Cache struct {
	start time.Time // its clock is the monotonic time since
	seeds [2]maphash.Seed

	table table
	freed freed
	hits  atomic.Uint64
}

// Stats is what a [Cache] has done.
type Stats struct {
	// Entries is how many denials are held, those included that are over and
	// whose place nobody needed yet. It is never above MaxEntries.
	Entries int
	// Hits is how many requests were denied without asking.
	Hits uint64
	// Evictions is how many denials were pushed out by others.
	Evictions uint64
}

// New returns an empty cache. The error says which option is wrong.
func New(o Options) (*Cache, error) {
	if o.MaxEntries < 0 {
		return nil, fmt.Errorf("make deny cache: max entries: want 0 (for %d) or more, got %d", DefaultMaxEntries, o.MaxEntries)
	}
	if o.MaxEntries == 0 {
		o.MaxEntries = DefaultMaxEntries
	}
	c := &Cache{start: time.Now(), seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	if err := c.table.init(o.MaxEntries); err != nil {
		return nil, fmt.Errorf("make deny cache: %w", err)
	}
	return c, nil
}

// Free gives up the denials by buckets that something was given back to, each
// named by [ratelimit.BucketHash], and those by any other bucket of the same
// hash. It is to be called once the store has it. It costs a few ns a bucket,
// whatever is held; the entries go when they are next asked for.
func (c *Cache) Free(buckets []uint64) { c.freed.free(buckets) }

// Clear gives up all denials.
func (c *Cache) Clear() {
	c.freed.all()
	c.table.clear()
}

// Stats returns what the cache has done so far.
func (c *Cache) Stats() Stats {
	return Stats{Entries: int(c.table.held.Load()), Hits: c.hits.Load(), Evictions: c.table.evictions.Load()}
}

// Over returns a store that answers what c knows, and asks next for the rest.
// Stores over one cache share what they know: their next stores must count in
// the same place, and may differ in what they do while that is away.
func (c *Cache) Over(next ratelimit.Store) ratelimit.Store { return &store{cache: c, next: next} }

// store is a Cache over one store.
type store struct {
	cache *Cache
	next  ratelimit.Store
}

// Take implements [ratelimit.Store]. A decision that the cache makes has
// [ratelimit.SourceDenyCache] as its source and does not look at the context.
func (s *store) Take(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	c := s.cache
	var k key
	var held *denial
	asks := c.table.held.Load() > 0 && rememberable(charges)
	if asks {
		k = c.keyOf(charges)
		var hit bool
		if dst, held, hit = c.answer(k, charges, dst); hit {
			c.hits.Add(1)
			return dst, nil
		}
	}

	// Before the store is asked: what is freed, or passes, meanwhile counts.
	asked := moment{generation: c.freed.now(), at: time.Since(c.start)}
	ds, err := s.next.Take(ctx, charges, dst)
	switch {
	case err != nil, len(ds) == 0, len(ds) != len(charges):
		return ds, err
	case ratelimit.Admitted(ds):
		if held != nil { // it knows nothing of what was charged now
			c.table.remove(k, held)
		}
		return ds, nil
	}
	if !asks && rememberable(charges) {
		k, asks = c.keyOf(charges), true
	}
	if asks {
		if e := remember(charges, ds, asked, time.Since(c.start)); e != nil {
			c.table.put(k, e)
		}
	}
	return ds, nil
}

// answer denies charges as the entry of k does, if there is one that covers
// them. It also returns an entry that does not, and may be outdated by what the
// store says.
func (c *Cache) answer(k key, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, *denial, bool) {
	e := c.table.get(k)
	if e == nil || !e.isOf(charges) {
		return dst, nil, false
	}
	now := time.Since(c.start)
	if now-e.asked.at >= e.holds || c.freed.since(e) {
		c.table.remove(k, e)
		return dst, nil, false
	}
	dst = dst[:0]
	for i := range charges {
		r := &e.rulings[i]
		d, ok := r.decision.After(now - e.answered)
		if !ok {
			c.table.remove(k, e)
			return dst, nil, false
		}
		switch cost := charges[i].Cost; {
		case cost < r.cost:
			return dst, e, false
		case cost > r.cost:
			if d, ok = d.Costing(cost); !ok || e.sharing {
				return dst, e, false
			}
		}
		dst = append(dst, d)
	}
	return dst, e, true
}
