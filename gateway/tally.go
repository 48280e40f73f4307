package gateway

import "sync"

// A tally counts what each of many has at the same time: WebSockets of a caller,
// connections of an address. It is safe for concurrent use, and a count takes the
// same time however many there are.
//
// It holds as many as have something, up to a bound. When it is full, those who are
// not in it share one count among them: they have less, and nobody has more than he
// may.
type tally[K comparable] struct {
	most     int    // how many it tells apart
	overflow func() // told of each that is counted with the rest

	mu     sync.Mutex // protects the following fields
	counts map[K]int
	rest   int
}

// held is one that was counted. The zero value was not.
type held[K comparable] struct {
	of   *tally[K]
	key  K
	rest bool
}

func newTally[K comparable](most int, overflow func()) *tally[K] {
	return &tally[K]{most: most, overflow: overflow, counts: map[K]int{}}
}

// enter counts one more of key, unless it has as many as it may. What is returned
// has to leave.
func (t *tally[K]) enter(key K, may int) (h held[K], ok bool) {
	t.mu.Lock()
	n, known := t.counts[key]
	switch {
	case !known && len(t.counts) >= t.most:
		h = held[K]{of: t, key: key, rest: true}
		if ok = t.rest < may; ok {
			t.rest++
		}
	case n < may:
		h, ok = held[K]{of: t, key: key}, true
		t.counts[key] = n + 1
	}
	t.mu.Unlock()
	if h.rest {
		t.overflow()
	}
	if !ok {
		h = held[K]{}
	}
	return h, ok
}

// leave counts out what was counted. It may be called twice.
func (h *held[K]) leave() {
	t := h.of
	if t == nil {
		return
	}
	h.of = nil
	t.mu.Lock()
	defer t.mu.Unlock()
	switch n := t.counts[h.key]; {
	case h.rest:
		t.rest--
	case n > 1:
		t.counts[h.key] = n - 1
	default:
		delete(t.counts, h.key)
	}
}
