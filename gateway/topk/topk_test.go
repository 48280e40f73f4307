package topk

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func sketch(t testing.TB, entries int, halfLife time.Duration) *Sketch {
	t.Helper()
	s, err := New(entries, halfLife)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for _, o := range []struct {
		entries  int
		halfLife time.Duration
	}{{0, 0}, {-1, time.Hour}, {1, -1}} {
		if _, err := New(o.entries, o.halfLife); err == nil {
			t.Errorf("New(%d, %v): no error", o.entries, o.halfLife)
		}
	}
}

func TestExactWhileKeysFit(t *testing.T) {
	s := sketch(t, 4, 0)
	s.Add("a", 3)
	s.Add("b", 5)
	s.Add("a", 4)
	s.Add("c", 5)
	s.Add("d", 0)  // no weight
	s.Add("e", -7) // none either
	want := []Entry{{"a", 7, 0}, {"b", 5, 0}, {"c", 5, 0}}
	if got := s.Top(10); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("Top(10) = %v, want %v", got, want)
	}
	if got := s.Top(2); fmt.Sprint(got) != fmt.Sprint(want[:2]) {
		t.Errorf("Top(2) = %v, want %v", got, want[:2])
	}
	for _, k := range []int{0, -1} {
		if got := s.Top(k); len(got) != 0 {
			t.Errorf("Top(%d) = %v, want none", k, got)
		}
	}
	if got := s.Total(); got != 17 {
		t.Errorf("Total() = %v, want 17", got)
	}
}

// checkGuarantees compares s with the true weights. Sums of floats are allowed
// the tolerance of their last digits.
func checkGuarantees(t *rapid.T, s *Sketch, truth map[string]float64, slack float64) {
	total := 0.0
	for _, w := range truth {
		total += w
	}
	if d := math.Abs(s.Total() - total); d > slack*total {
		t.Fatalf("Total() = %v, true total %v", s.Total(), total)
	}
	top := s.Top(s.entries + 10)
	if len(top) > s.entries {
		t.Fatalf("%d entries in a sketch of %d", len(top), s.entries)
	}
	bound := total / float64(s.entries)
	held := make(map[string]bool)
	for i, e := range top {
		if held[e.Key] {
			t.Fatalf("%q stands twice in %v", e.Key, top)
		}
		held[e.Key] = true
		if i > 0 && e.Count > top[i-1].Count {
			t.Fatalf("not heaviest first: %v", top)
		}
		tolerance := slack * e.Count
		if w := truth[e.Key]; e.Count < w-tolerance || e.Count-e.Error > w+tolerance {
			t.Fatalf("%q weighs %v, entry says %v with error %v", e.Key, w, e.Count, e.Error)
		}
		if e.Error < 0 || e.Error > bound*(1+slack) {
			t.Fatalf("%q: error %v, bound %v", e.Key, e.Error, bound)
		}
	}
	for key, w := range truth {
		if w > bound*(1+slack) && !held[key] {
			t.Fatalf("%q weighs %v of %v and is not among %d entries", key, w, total, s.entries)
		}
	}
}

func TestHeavyKeysAreFoundAndErrorsBounded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := sketch(t, rapid.IntRange(1, 8).Draw(rt, "entries"), 0)
		truth := make(map[string]float64)
		for range rapid.IntRange(1, 300).Draw(rt, "adds") {
			// Few keys often, many keys seldom.
			key := fmt.Sprint(rapid.IntRange(0, 40).Draw(rt, "key") * rapid.IntRange(0, 1).Draw(rt, "rare"))
			n := int64(rapid.IntRange(1, 20).Draw(rt, "n"))
			s.Add(key, n)
			truth[key] += float64(n)
		}
		checkGuarantees(rt, s, truth, 0) // whole numbers: exact
	})
}

func TestGuaranteesHoldUnderDecay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			const halfLife = time.Minute
			s := sketch(t, rapid.IntRange(1, 6).Draw(rt, "entries"), halfLife)
			truth := make(map[string]float64)
			for range rapid.IntRange(1, 100).Draw(rt, "adds") {
				// Some pauses are longer than the landmark lives.
				pause := time.Duration(rapid.SampledFrom([]int{0, 1, 30, 600, 20_000}).Draw(rt, "pause")) * time.Second
				time.Sleep(pause)
				fade := math.Exp2(-pause.Seconds() / halfLife.Seconds())
				for key := range truth {
					truth[key] *= fade
				}
				key := fmt.Sprint(rapid.IntRange(0, 15).Draw(rt, "key"))
				s.Add(key, 3)
				truth[key] += 3
			}
			checkGuarantees(rt, s, truth, 1e-9)
		})
	})
}

func TestWeightHalvesInAHalfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sketch(t, 10, time.Hour)
		s.Add("old", 100)
		time.Sleep(time.Hour)
		if got := s.Top(1)[0].Count; math.Abs(got-50) > 1e-9 {
			t.Errorf("after one half-life: %v, want 50", got)
		}
		time.Sleep(2 * time.Hour)
		s.Add("new", 13)
		if got := s.Top(1)[0].Key; got != "new" {
			t.Errorf("12.5 of old outweigh 13 of new: %v", s.Top(2))
		}
		// So long that nothing is left of it, not even a rounding error.
		time.Sleep(2000 * time.Hour)
		if got := s.Top(10); len(got) != 0 {
			t.Errorf("after 2000 half-lives: %v, want nothing", got)
		}
		s.Add("again", 1)
		if got := s.Top(10); len(got) != 1 || got[0] != (Entry{"again", 1, 0}) {
			t.Errorf("after fading: %v", got)
		}
	})
}

// FIELD-REPORTS H05: however many are denied, the list of them is as long as it may be.
func TestMemoryIsBounded(t *testing.T) {
	const m = 100
	s := sketch(t, m, time.Hour)
	for i := range 200_000 {
		s.Add(fmt.Sprintf("{user:%d}", i), 1)
	}
	if len(s.heap) != m || len(s.index) != m {
		t.Errorf("%d entries and %d index entries, want %d", len(s.heap), len(s.index), m)
	}
	long := strings.Repeat("x", MaxKey-1) + "é" + strings.Repeat("y", 1<<20)
	s.Add(long, 1_000_000)
	s.Add(strings.Repeat("\x80", 1<<20), 1_000_000) // never the start of a character
	for _, e := range s.Top(2) {
		if len(e.Key) > MaxKey {
			t.Errorf("a key of %d bytes is held, want at most %d", len(e.Key), MaxKey)
		}
		if strings.HasPrefix(e.Key, "x") && !utf8.ValidString(e.Key) {
			t.Errorf("a character was split: %q", e.Key)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	s := sketch(t, 50, 0)
	var wg sync.WaitGroup
	const workers, each = 8, 2000
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				s.Add("hot", 1)
				s.Add(fmt.Sprint(w, i), 1)
				if i%500 == 0 {
					s.Top(10)
				}
			}
		})
	}
	wg.Wait()
	if got, want := s.Total(), float64(2*workers*each); got != want {
		t.Errorf("Total() = %v, want %v", got, want)
	}
	if top := s.Top(1)[0]; top.Key != "hot" || top.Count != workers*each {
		t.Errorf("heaviest is %+v, want hot with %d", top, workers*each)
	}
}

func ExampleSketch() {
	denied, err := New(1000, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	denied.Add("{ip:203.0.113.7}", 1)
	for range 3 {
		denied.Add("{user:priya123}", 1)
	}
	for _, e := range denied.Top(2) {
		fmt.Printf("%s between %v and %v\n", e.Key, e.Count-e.Error, e.Count)
	}
	// Output:
	// {user:priya123} between 3 and 3
	// {ip:203.0.113.7} between 1 and 1
}

func BenchmarkAdd(b *testing.B) {
	keys := make([]string, 5000)
	for i := range keys {
		keys[i] = fmt.Sprintf("{user:%d}", i)
	}
	for name, n := range map[string]int{"held": 500, "crowding": 5000} {
		b.Run(name, func(b *testing.B) {
			s := sketch(b, 1000, time.Hour)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Add(keys[i%n], 1)
			}
		})
	}
}

// A pair is its two parts and a space, and costs nothing where it is known.
func TestAPairIsAKey(t *testing.T) {
	s := sketch(t, 100, 0)
	long := strings.Repeat("ä", MaxKey)
	for _, pair := range [][2]string{{"per-minute", "{user:a}"}, {"", ""}, {"l", long}, {long, "x"}, {strings.Repeat("x", MaxKey-1), "ä"}, {strings.Repeat("x", MaxKey+9), "y"}} {
		s.AddPair(pair[0], pair[1], 2)
		s.Add(pair[0]+" "+pair[1], 3)
		s.AddPair(pair[0], pair[1], 0)
	}
	for _, e := range s.Top(100) {
		if e.Count != 5 {
			t.Errorf("%q has %v, want 5: the two ways make one key", e.Key, e.Count)
		}
		if len(e.Key) > MaxKey || !utf8.ValidString(e.Key) {
			t.Errorf("%q is no key", e.Key)
		}
	}
	limit, partition := "per-minute", "{user:a}"
	if n := testing.AllocsPerRun(100, func() { s.AddPair(limit, partition, 1) }); n != 0 {
		t.Errorf("a pair that is known costs %v allocations", n)
	}
}
