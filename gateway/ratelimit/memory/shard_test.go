package memory

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bouncer/gateway/ratelimit"
)

// eachSegment calls f for each segment of sh.
func eachSegment(sh *shard, f func(*segment)) {
	for i := 0; i < len(sh.places) && sh.places[i] != nil; i += 1 << (sh.bits - sh.places[i].bits) {
		f(sh.places[i])
	}
}

// entries calls f for each entry of sh and returns their number. It panics if one is
// not where it is found.
func entries(sh *shard, f func(*entry)) (n int) {
	eachSegment(sh, func(g *segment) {
		used := 0
		for i := range g.slots {
			if e := &g.slots[i]; e.id.slot != 0 {
				used++
				if sh.find(e.id) != e {
					panic("an entry is not found")
				}
				f(e)
			} else if *e != (entry{}) {
				panic("a free slot holds something")
			}
		}
		if used != g.used || used > full {
			panic("a segment has lost count")
		}
		n += used
	})
	return n
}

// Entries that come and go, in segments that are split: each is found with what was
// stored last, and nothing else is. Some ids differ in few bits, of either half.
func TestAShardEqualsAMap(t *testing.T) {
	p := window(t, 1_000_000, time.Hour)
	rapid.Check(t, func(t *rapid.T) {
		var sh shard
		var a arena
		sh.init()
		model := map[id]int64{} // what was spent
		slots := rapid.Uint64Range(1, math.MaxUint64)
		if rapid.Bool().Draw(t, "crowded") {
			// One home near the end, so that the rest begins again at the front.
			slots = rapid.Uint64Range(math.MaxUint64-1000, math.MaxUint64)
		}
		now := int64(0)
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			many := rapid.IntRange(1, full).Draw(t, "many")
			place, slot := rapid.Uint64().Draw(t, "place"), slots.Draw(t, "slot")
			for i := range uint64(many) {
				// Places all over, in an order of their own.
				id := id{(place + i) * 0x9e3779b97f4a7c15, max(1, slot-i)}
				spent := int64(i) + 1
				s := ratelimit.State{Spent: spent, Time: now + 1 + int64(i%3)}
				if e := sh.find(id); e != nil {
					sh.set(e, p, &s)
				} else {
					sh.insert(&a, id, p, &s)
				}
				model[id] = spent
			}
			before := len(model)
			now += int64(rapid.IntRange(0, 3).Draw(t, "passed"))
			for id := range model {
				if sh.find(id).until <= now {
					delete(model, id)
				}
			}
			if removed, _ := sh.search(&list{now: now}, math.MaxInt, math.MaxInt); removed != before-len(model) {
				t.Fatalf("%d removed, want %d", removed, before-len(model))
			}
			n := entries(&sh, func(e *entry) {
				if g := sh.places[sh.place(e.id)]; e.until < g.earliest || e.until < sh.earliest.Load() {
					t.Fatalf("entry %v runs out before anybody looks", e.id)
				}
				if want, ok := model[e.id]; !ok || e.spent != want {
					t.Fatalf("entry %v has %d, want %d", e.id, e.spent, want)
				}
			})
			if n != len(model) {
				t.Fatalf("%d entries, want %d", n, len(model))
			}
		}
	})
}

// A directory that was doubled for one segment has the others at several places, of
// which each stands for all.
func TestOneCrowdedSegmentIsSplitUntilItFits(t *testing.T) {
	p := window(t, 1_000_000, time.Hour)
	var sh shard
	var a arena
	sh.init()
	const places = 3 * full
	for i := range uint64(places) {
		// All in the last of 256 places, but each seventh, which is in the first half.
		id := id{0xff<<56 | i<<46, i<<40 + 1}
		if i%7 == 0 {
			id.place &^= 1 << 63
		}
		sh.insert(&a, id, p, &ratelimit.State{Spent: 1, Time: 1})
	}
	if sh.bits < 8 || len(sh.places) != 1<<sh.bits {
		t.Fatalf("%d bits, %d places", sh.bits, len(sh.places))
	}
	segments := 0
	eachSegment(&sh, func(*segment) { segments++ })
	if n := entries(&sh, func(*entry) {}); n != places || segments > 20 {
		t.Errorf("%d entries in %d segments, want %d in a few", n, segments, places)
	}
	if removed, swept := sh.search(&list{now: 1}, math.MaxInt, math.MaxInt); removed != places || swept > segments {
		t.Errorf("%d removed from %d segments, want %d from %d at most", removed, swept, places, segments)
	}
	if at := sh.earliest.Load(); at != math.MaxInt64 {
		t.Errorf("the empty shard is looked through again at %d", at)
	}
}

// The two halves of an id come from two secrets, and equal keys of two policies have
// equal ids.
func TestIDs(t *testing.T) {
	h := newHasher()
	p, q := window(t, 1, time.Minute), window2(t, 1)
	part := h.partition(key(1))
	if part.place == part.slot {
		t.Error("both halves are made with one secret")
	}
	if part.with(p) != part.with(change(t, p, func(p *ratelimit.Policy) { p.Quota = 2 })) {
		t.Error("another quota makes another id")
	}
	seen := map[id]bool{}
	for i := range 10_000 {
		for _, p := range []*ratelimit.Policy{p, q} {
			x := h.partition(key(i)).with(p)
			if x.slot == 0 || seen[x] {
				t.Fatalf("%v is none, or another's", x)
			}
			seen[x] = true
		}
	}
	if newHasher().partition(key(1)) == part {
		t.Error("two stores have one secret")
	}
}
