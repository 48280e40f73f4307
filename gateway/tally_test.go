package gateway

import (
	"sync"
	"testing"
)

func TestATallyCountsEachAlone(t *testing.T) {
	y := newTally[string](10, func() { t.Error("it is not full") })
	first, ok := y.enter("a", 2)
	second, ok2 := y.enter("a", 2)
	if !ok || !ok2 {
		t.Fatal("two of two are refused")
	}
	if _, ok := y.enter("a", 2); ok {
		t.Error("a third of two")
	}
	if _, ok := y.enter("b", 2); !ok {
		t.Error("a neighbour is refused for it")
	}
	first.leave()
	first.leave() // counts once
	if _, ok := y.enter("a", 2); !ok {
		t.Error("what was given back is not there")
	}
	if _, ok := y.enter("a", 2); ok {
		t.Error("what was given back twice is there twice")
	}
	second.leave()
	if _, ok := y.enter("a", 1); ok {
		t.Error("a smaller number lets a second in")
	}
}

// A full table takes no more entries: who is not in it has less, never more.
func TestAFullTallyGrowsNoMore(t *testing.T) {
	told := 0
	y := newTally[int](3, func() { told++ })
	var in []held[int]
	for k := range 3 {
		h, _ := y.enter(k, 1)
		in = append(in, h)
	}
	rest, ok := y.enter(3, 1)
	if !ok {
		t.Error("the rest has nothing at all")
	}
	if _, ok := y.enter(4, 1); ok {
		t.Error("each of the rest has as much as one in the table")
	}
	if told != 2 || len(y.counts) != 3 {
		t.Errorf("told %d times, %d entries; want 2 and 3", told, len(y.counts))
	}
	in[0].leave()
	if h, ok := y.enter(4, 1); !ok {
		t.Error("there is room in the table, and it is not used")
	} else {
		h.leave()
	}
	rest.leave()
	in[1].leave()
	in[2].leave()
	if len(y.counts) != 0 || y.rest != 0 {
		t.Errorf("%v and %d are left of nothing", y.counts, y.rest)
	}
}

func TestATallyOfManyAtOnce(t *testing.T) {
	y := newTally[int](8, func() {})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 1000 {
				if h, ok := y.enter(i, 3); ok {
					h.leave()
				}
			}
		})
	}
	wg.Wait()
	if len(y.counts) != 0 || y.rest != 0 {
		t.Errorf("%v and %d are left of nothing", y.counts, y.rest)
	}
}
