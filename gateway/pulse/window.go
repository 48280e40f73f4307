package pulse

import "time"

// windowSpan is over how long the rates of lists are taken: one second's noise is
// not to shout.
const windowSpan = 10 * time.Second

// counts are what a window counts of one thing; what each place means is the
// business of whoever counts.
type counts [6 + len(Sources)]float64

// A window sums up what was counted in the last windowSpan. Its cost is that of
// what moves: what stands still leaves it.
type window[K comparable] struct {
	slots []slot[K] // a sample each, oldest first
	span  time.Duration
	sums  map[K]*sum
}

type slot[K comparable] struct {
	span    time.Duration
	entries []entry[K]
}

type entry[K comparable] struct {
	key       K
	counts    counts
	latencies sparse
}

type sum struct {
	counts
	latencies Latencies
	slots     int // how many hold it
}

func newWindow[K comparable]() *window[K] { return &window[K]{sums: map[K]*sum{}} }

// add takes a sample in, which covers span, and lets go of what is too old.
func (w *window[K]) add(span time.Duration, entries []entry[K]) {
	w.slots = append(w.slots, slot[K]{span, entries})
	w.span += span
	for i := range entries {
		e := &entries[i]
		s := w.sums[e.key]
		if s == nil {
			s = &sum{}
			w.sums[e.key] = s
		}
		s.slots++
		s.latencies.add(e.latencies)
		for j, n := range e.counts {
			s.counts[j] += n
		}
	}
	// A tick is a little late now and then, and a tenth of a second is no reason to
	// forget a whole one.
	for len(w.slots) > 1 && w.span > windowSpan+windowSpan/20 {
		w.drop()
	}
}

func (w *window[K]) drop() {
	old := w.slots[0]
	w.slots[0] = slot[K]{}
	w.slots = w.slots[1:]
	w.span -= old.span
	for i := range old.entries {
		e := &old.entries[i]
		s := w.sums[e.key]
		if s.slots--; s.slots == 0 {
			delete(w.sums, e.key)
			continue
		}
		s.latencies.remove(e.latencies)
		for j, n := range e.counts {
			s.counts[j] -= n
		}
	}
}

// clear forgets everything.
func (w *window[K]) clear() {
	w.slots, w.span = nil, 0
	clear(w.sums)
}

// per is what a count is per second.
func (w *window[K]) per(n float64) float64 {
	if w.span <= 0 {
		return 0
	}
	return n / w.span.Seconds()
}
