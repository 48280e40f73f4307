// Package topk finds the keys that carry most of the weight in a stream, in
// bounded memory: the callers denied most often, out of however many there
// are. It is the Space-Saving algorithm (Metwally, Agrawal, El Abbadi:
// "Efficient Computation of Frequent and Top-k Elements in Data Streams",
// 2005), with weights and with exponential decay over time.
//
// It is not a counter for billing and not a set: keys with little weight are
// forgotten to make room, and a key that comes back is overestimated by at most
// its entry's Error.
//
// With a table of m entries that has seen a total weight of N (decayed):
//   - every key whose weight is more than N/m is in the table;
//   - for every entry, Count-Error <= the key's true weight <= Count;
//   - Error is at most N/m.
//
// Nothing here fails, blocks on anything but a short mutex, or starts a
// goroutine.
//
//	denied, err := topk.New(1000, 10*time.Minute)
//	…
//	denied.Add("{user:priya123}", 1)
//	for _, e := range denied.Top(20) {
//		fmt.Println(e.Key, e.Count, e.Error)
//	}
package topk

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// MaxKey is how many bytes of a key are kept, so that the table's memory is
// bounded whatever callers put into a key. Keys that agree in their first
// MaxKey bytes count as one.
const MaxKey = 256

// maxExponent is how many half-lives pass before the stored weights are scaled
// back. A weight added then is 2^maxExponent times one added at the landmark,
// far inside a float64.
const maxExponent = 256

// An Entry is one key of the table. Counts are decayed to the moment of the
// call that returned it, and therefore not whole numbers.
type Entry struct {
	Key string
	// Count is the estimate of the key's weight, never less than the truth.
	Count float64
	// Error is by how much Count may be too large, >= 0.
	Error float64
}

// A Sketch is a bounded table of heavy hitters, safe for concurrent use.
type Sketch struct {
	entries  int
	halfLife time.Duration

	mu sync.Mutex // protects the following fields
	// Decay goes forward: instead of shrinking every entry as time passes, a new
	// weight is multiplied by 2^(age of the landmark / half-life). The order of
	// the entries then never changes by itself, which is what keeps the heap valid.
	landmark time.Time
	total    float64
	index    map[string]int // key → place in heap
	heap     []Entry
}

// New returns an empty Sketch of at most entries keys, m in the guarantees.
// halfLife is the time after which a weight counts half; 0 means that weights
// never fade. entries below 1, or a negative halfLife, is an error.
func New(entries int, halfLife time.Duration) (*Sketch, error) {
	if entries < 1 || halfLife < 0 {
		return nil, fmt.Errorf("top keys: want at least 1 entry and a half-life of 0 or more, got %d and %v", entries, halfLife)
	}
	return &Sketch{
		entries:  entries,
		halfLife: halfLife,
		landmark: time.Now(),
		index:    make(map[string]int),
	}, nil
}

// Add gives key a weight of n. A weight of zero or less is ignored.
func (t *Sketch) Add(key string, n int64) {
	if n <= 0 {
		return
	}
	key = cut(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	w := float64(n) * t.scaleLocked(time.Now())
	t.total += w
	if i, ok := t.index[key]; ok {
		t.heap[i].Count += w
		t.downLocked(i)
		return
	}
	// The caller's string may be a small part of a large buffer.
	key = strings.Clone(key)
	if len(t.heap) < t.entries {
		t.heap = append(t.heap, Entry{Key: key, Count: w})
		t.index[key] = len(t.heap) - 1
		t.upLocked(len(t.heap) - 1)
		return
	}
	// The lightest key makes room. The newcomer may have been here before and
	// been forgotten, but then with at most the weight of the one that leaves.
	least := &t.heap[0]
	delete(t.index, least.Key)
	*least = Entry{Key: key, Count: least.Count + w, Error: least.Count}
	t.index[key] = 0
	t.downLocked(0)
}

// Top returns the k heaviest entries, heaviest first; keys of equal weight in
// the order of their names. It returns fewer if the table holds fewer, and none
// for k <= 0.
func (t *Sketch) Top(k int) []Entry {
	if k <= 0 {
		return nil
	}
	t.mu.Lock()
	scale := t.scaleLocked(time.Now())
	all := slices.Clone(t.heap)
	t.mu.Unlock()
	slices.SortFunc(all, func(a, b Entry) int {
		switch {
		case a.Count > b.Count:
			return -1
		case a.Count < b.Count:
			return 1
		}
		return strings.Compare(a.Key, b.Key)
	})
	all = all[:min(k, len(all))]
	for i := range all {
		all[i].Count /= scale
		all[i].Error /= scale
	}
	return slices.Clip(all)
}

// Total is the weight of everything that was added, decayed to now: N in the
// guarantees.
func (t *Sketch) Total() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	scale := t.scaleLocked(time.Now())
	return t.total / scale
}

// scaleLocked is what a weight of one is worth at now, in stored units.
func (t *Sketch) scaleLocked(now time.Time) float64 {
	if t.halfLife == 0 {
		return 1
	}
	exponent := float64(now.Sub(t.landmark)) / float64(t.halfLife)
	if exponent <= maxExponent {
		// A clock that steps back weighs a little less, never nothing.
		return math.Exp2(max(exponent, 0))
	}
	// Move the landmark to now. Dividing all by the same number keeps the order;
	// what has faded to nothing leaves, so that it does not hold a place.
	shrink := math.Exp2(-exponent)
	t.total *= shrink
	kept := t.heap[:0]
	for _, e := range t.heap {
		e.Count *= shrink
		e.Error *= shrink
		if e.Count > 0 {
			kept = append(kept, e)
		}
	}
	clear(t.heap[len(kept):])
	t.heap = kept
	clear(t.index)
	for i, e := range t.heap {
		t.index[e.Key] = i
	}
	for i := len(t.heap)/2 - 1; i >= 0; i-- {
		t.downLocked(i)
	}
	t.landmark = now
	return 1
}

// upLocked moves entry i towards the root until its parent is not heavier.
func (t *Sketch) upLocked(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if t.heap[parent].Count <= t.heap[i].Count {
			return
		}
		t.swapLocked(i, parent)
		i = parent
	}
}

// downLocked moves entry i away from the root until no child is lighter.
func (t *Sketch) downLocked(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(t.heap); child++ {
			if t.heap[child].Count < t.heap[least].Count {
				least = child
			}
		}
		if least == i {
			return
		}
		t.swapLocked(i, least)
		i = least
	}
}

func (t *Sketch) swapLocked(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.index[t.heap[i].Key] = i
	t.index[t.heap[j].Key] = j
}

// cut bounds key to MaxKey bytes, without splitting a character.
func cut(key string) string {
	if len(key) <= MaxKey {
		return key
	}
	n := MaxKey
	for n > MaxKey-utf8.UTFMax && !utf8.RuneStart(key[n]) {
		n--
	}
	return key[:n]
}
