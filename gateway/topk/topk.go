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
	index    map[string]*node
	heap     []*node // lightest first
}

// A node is an entry that knows its place in the heap, so that moving it costs
// no look-up by key.
type node struct {
	Entry
	place int
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
		index:    make(map[string]*node),
	}, nil
}

// Add gives key more weight, in whatever is counted; a weight of zero or less
// is ignored.
func (s *Sketch) Add(key string, weight int64) {
	if weight <= 0 {
		return
	}
	key = cut(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := float64(weight) * s.scaleLocked(time.Now()) // which may let go of keys
	s.addLocked(s.index[key], key, w)
}

// AddPair is Add of first, a space, and second. It allocates nothing for a key that
// is in the table.
func (s *Sketch) AddPair(first, second string, weight int64) {
	var room [MaxKey + utf8.UTFMax]byte
	key := append(room[:0], first[:min(len(first), len(room))]...)
	if len(key) < len(room) {
		key = append(key, ' ')
	}
	key = append(key, second[:min(len(second), len(room)-len(key))]...)
	if weight <= 0 {
		return
	}
	key = key[:cutAt(key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	w := float64(weight) * s.scaleLocked(time.Now())
	if n := s.index[string(key)]; n != nil {
		s.addLocked(n, n.Key, w)
		return
	}
	s.addLocked(nil, string(key), w)
}

// addLocked gives a key w more, in stored units; n is its node if it is in the table.
func (s *Sketch) addLocked(n *node, key string, w float64) {
	s.total += w
	if n != nil {
		n.Count += w
		s.downLocked(n.place)
		return
	}
	// The caller's string may be a small part of a large buffer.
	key = strings.Clone(key)
	if len(s.heap) < s.entries {
		n := &node{Entry{Key: key, Count: w}, len(s.heap)}
		s.heap = append(s.heap, n)
		s.index[key] = n
		s.upLocked(n.place)
		return
	}
	// The lightest key makes room. The newcomer may have been here before and
	// been forgotten, but then with at most the weight of the one that leaves.
	n = s.heap[0]
	delete(s.index, n.Key)
	n.Entry = Entry{Key: key, Count: n.Count + w, Error: n.Count}
	s.index[key] = n
	s.downLocked(0)
}

// Top returns the k heaviest entries, heaviest first; keys of equal weight in
// the order of their names. It returns fewer if the sketch holds fewer, and none
// for k <= 0.
func (s *Sketch) Top(k int) []Entry {
	if k <= 0 {
		return nil
	}
	s.mu.Lock()
	scale := s.scaleLocked(time.Now())
	all := make([]Entry, len(s.heap))
	for i, n := range s.heap {
		all[i] = n.Entry
	}
	s.mu.Unlock()
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
func (s *Sketch) Total() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	scale := s.scaleLocked(time.Now())
	return s.total / scale
}

// scaleLocked is what a weight of one is worth at now, in stored units.
func (s *Sketch) scaleLocked(now time.Time) float64 {
	if s.halfLife == 0 {
		return 1
	}
	exponent := float64(now.Sub(s.landmark)) / float64(s.halfLife)
	if exponent <= maxExponent {
		// A clock that steps back weighs a little less, never nothing.
		return math.Exp2(max(exponent, 0))
	}
	// Move the landmark to now. Dividing all by the same number keeps the order;
	// what has faded to nothing leaves, so that it does not hold a place.
	shrink := math.Exp2(-exponent)
	s.total *= shrink
	kept := s.heap[:0]
	for _, n := range s.heap {
		n.Count *= shrink
		n.Error *= shrink
		if n.Count == 0 {
			delete(s.index, n.Key)
			continue
		}
		n.place = len(kept)
		kept = append(kept, n)
	}
	clear(s.heap[len(kept):])
	s.heap = kept
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.downLocked(i)
	}
	s.landmark = now
	return 1
}

// upLocked moves entry i towards the root until its parent is not heavier.
func (s *Sketch) upLocked(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if s.heap[parent].Count <= s.heap[i].Count {
			return
		}
		s.swapLocked(i, parent)
		i = parent
	}
}

// downLocked moves entry i away from the root until no child is lighter.
func (s *Sketch) downLocked(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(s.heap); child++ {
			if s.heap[child].Count < s.heap[least].Count {
				least = child
			}
		}
		if least == i {
			return
		}
		s.swapLocked(i, least)
		i = least
	}
}

func (s *Sketch) swapLocked(i, j int) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.heap[i].place, s.heap[j].place = i, j
}

// cut bounds key to MaxKey bytes, without splitting a character.
func cut(key string) string { return key[:cutAt(key)] }

// cutAt is how much of key is kept.
func cutAt[K string | []byte](key K) int {
	if len(key) <= MaxKey {
		return len(key)
	}
	n := MaxKey
	for n > MaxKey-utf8.UTFMax && !utf8.RuneStart(key[n]) {
		n--
	}
	return n
}
