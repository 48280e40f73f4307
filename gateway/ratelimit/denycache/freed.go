package denycache

import "sync/atomic"

// freedSlots is how many groups of buckets are told apart. To free one gives up
// the others of its group that were denied before, which are asked for once more.
const freedSlots = 1 << 14

// freed knows what was given something back, and when, by a count that grows with
// each time. An answer is worth nothing if a bucket that it is about was freed
// after its store was asked, even if the answer comes later; so an entry holds
// the count from before. Nothing has to be found, whatever is held.
type freed struct {
	count  atomic.Uint64
	whole  atomic.Uint64             // the count when all were freed last
	groups [freedSlots]atomic.Uint64 // and when each group was
}

// now returns the count.
func (f *freed) now() uint64 { return f.count.Load() }

func (f *freed) free(buckets []uint64) {
	if len(buckets) == 0 {
		return
	}
	n := f.count.Add(1)
	for _, b := range buckets {
		raise(&f.groups[b%freedSlots], n)
	}
}

func (f *freed) all() { raise(&f.whole, f.count.Add(1)) }

// since reports whether a bucket by which e denies was freed after e was asked
// for.
func (f *freed) since(e *denial) bool {
	if f.whole.Load() > e.asked.generation {
		return true
	}
	for i := range e.rulings {
		r := &e.rulings[i]
		if !r.decision.Allowed && f.groups[r.bucket%freedSlots].Load() > e.asked.generation {
			return true
		}
	}
	return false
}

// raise sets a to n unless it is larger already.
func raise(a *atomic.Uint64, n uint64) {
	for {
		old := a.Load()
		if old >= n || a.CompareAndSwap(old, n) {
			return
		}
	}
}
