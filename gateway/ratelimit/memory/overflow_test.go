package memory

import (
	"runtime"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// heap returns the bytes that are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers and the sweep of the first have let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// FIELD-REPORTS I07: a crowd of keys that are seen once pushes out nobody, and gets together what
// one of them would get.
func TestACrowdOfNewKeysSharesOneBucket(t *testing.T) {
	const maxKeys, quota = 100, 5
	c := newClock()
	told := 0
	s := mustStore(t, Options{MaxKeys: maxKeys, Now: c.Load, Hooks: Hooks{Overflow: func() { told++ }}})
	p := window(t, quota, time.Hour)

	// The hot key has spent all it has; 99 others fill the table.
	for range quota {
		takeOne(t, s, p, key(0))
	}
	for i := 1; i < maxKeys; i++ {
		if !takeOne(t, s, p, key(i)).Allowed {
			t.Fatalf("key %d was denied in a table with room", i)
		}
	}
	if s.Overflows() != 0 || s.Len() != maxKeys {
		t.Fatalf("%d keys, %d overflows", s.Len(), s.Overflows())
	}

	admitted := 0
	for i := range 1000 {
		d := takeOne(t, s, p, key(maxKeys+i))
		if d.Allowed {
			admitted++
		} else if d.RetryAfter != time.Hour {
			t.Fatalf("denied, retry after %s, want %s", d.RetryAfter, time.Hour)
		}
		if want := max(0, int64(quota-1-i)); d.Remaining != want {
			t.Fatalf("new key %d: %d remain, want %d", i, d.Remaining, want)
		}
	}
	if admitted != quota {
		t.Errorf("1000 new keys were admitted %d times, want %d", admitted, quota)
	}
	if s.Overflows() != 1000 || told != 1000 || s.Len() != maxKeys {
		t.Errorf("%d overflows, told of %d, %d keys", s.Overflows(), told, s.Len())
	}
	if takeOne(t, s, p, key(0)).Allowed {
		t.Error("the crowd gave the hot key a fresh bucket")
	}
	if d := takeOne(t, s, p, key(1)); !d.Allowed || d.Remaining != quota-2 {
		t.Errorf("a known key lost its bucket: %+v", d)
	}
}

// A plan that was raised lets a bucket run out sooner than when it was stored. Its
// place is there from then on, not from when it would have been.
func TestABucketThatRunsOutSoonerMakesRoomSooner(t *testing.T) {
	c := newClock()
	s := mustStore(t, Options{MaxKeys: 1, Now: c.Load})
	slow := bucketOf(t, 1, time.Hour, 100)
	fast := change(t, slow, func(p *ratelimit.Policy) { p.Quota = 3600 })
	for range 60 {
		takeOne(t, s, slow, key(0)) // for 60 hours
	}
	takeOne(t, s, fast, key(0)) // 61 units at one a second
	c.pass(61*time.Second - time.Microsecond)
	if takeOne(t, s, fast, key(1)); s.Overflows() != 1 {
		t.Fatalf("%d overflows beside a bucket that still counts, want 1", s.Overflows())
	}
	c.pass(time.Microsecond)
	if takeOne(t, s, fast, key(2)); s.Overflows() != 1 {
		t.Error("no room, though the only bucket has run out")
	}
}

// Each policy has an overflow bucket of its own.
func TestOverflowBucketsOfTwoPoliciesAreTwo(t *testing.T) {
	s := mustStore(t, Options{MaxKeys: 1})
	p, q := window(t, 5, time.Hour), window2(t, 5)
	takeOne(t, s, p, key(0))
	for i := range 5 {
		takeOne(t, s, p, key(1+i))
	}
	if takeOne(t, s, p, key(9)).Allowed {
		t.Error("a sixth unit from the overflow bucket of five")
	}
	if d := takeOne(t, s, q, key(9)); !d.Allowed || d.Remaining != 4 {
		t.Errorf("the other policy: %+v", d)
	}
}

// Two new keys in one list share the overflow bucket, so the second sees what
// the first has spent.
func TestTwoOverflowingChargesOfOneListAreDecidedOneAfterAnother(t *testing.T) {
	s := mustStore(t, Options{MaxKeys: 1})
	p, q := window(t, 5, time.Hour), window2(t, 5)
	takeOne(t, s, p, key(0))
	list := func(a, b, c int64) []ratelimit.Decision {
		ds, err := s.Take(t.Context(), []ratelimit.Charge{
			{Policy: p, Partition: key(1), Cost: a},
			{Policy: q, Partition: key(1), Cost: b},
			{Policy: p, Partition: key(2), Cost: c},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return ds
	}
	ds := list(3, 1, 3)
	if !ds[0].Allowed || !ds[1].Allowed || ds[2].Allowed {
		t.Fatalf("3 and 3 of 5: %+v", ds)
	}
	for i, d := range ds {
		if d.Remaining != 5 {
			t.Errorf("charge %d: %d remain, but nothing was charged", i, d.Remaining)
		}
	}
	ds = list(3, 1, 2)
	if !ratelimit.Admitted(ds) || ds[0].Remaining != 2 || ds[1].Remaining != 4 || ds[2].Remaining != 0 {
		t.Errorf("3 and 2 of 5: %+v", ds)
	}
	if got := s.Overflows(); got != 6 {
		t.Errorf("%d overflows, want 6", got)
	}
}

// One place and two new keys: the first gets it.
func TestTheLastPlaceGoesToTheFirstOfAList(t *testing.T) {
	s := mustStore(t, Options{MaxKeys: 2})
	p, q := window(t, 5, time.Hour), window2(t, 5)
	takeOne(t, s, p, key(0))
	ds, err := s.Take(t.Context(), []ratelimit.Charge{{Policy: p, Partition: key(1), Cost: 1}, {Policy: q, Partition: key(1), Cost: 1}}, nil)
	if err != nil || !ratelimit.Admitted(ds) || s.Len() != 2 || s.Overflows() != 1 {
		t.Fatal(ds, err, s.Len(), s.Overflows())
	}
	if d := takeOne(t, s, p, key(1)); d.Remaining != 3 || s.Overflows() != 1 {
		t.Errorf("the first has no place of its own: %+v", d)
	}
}

// A denied list holds no place back.
func TestADeniedListGivesItsPlacesBack(t *testing.T) {
	s := mustStore(t, Options{MaxKeys: 2})
	p, never := window(t, 5, time.Hour), bucketOf(t, 0, time.Hour, 0)
	for range 10 {
		ds, err := s.Take(t.Context(), []ratelimit.Charge{{Policy: p, Partition: key(1), Cost: 1}, {Policy: never, Partition: key(1), Cost: 1}}, nil)
		if err != nil || ratelimit.Admitted(ds) {
			t.Fatal(ds, err)
		}
	}
	takeOne(t, s, p, key(1))
	takeOne(t, s, p, key(2))
	if s.Len() != 2 || s.Overflows() != 0 {
		t.Errorf("%d keys, %d overflows", s.Len(), s.Overflows())
	}
}

// Wherever it is in the table, the one entry that has run out makes room, and
// the 999 that were charged again in the meantime do not.
func TestTheOneEntryThatHasRunOutMakesRoom(t *testing.T) {
	const maxKeys = 1000
	for _, gone := range []int{0, 1, 500, 999} {
		c := newClock()
		s := mustStore(t, Options{MaxKeys: maxKeys, Now: c.Load})
		p := bucketOf(t, 10, 10*time.Second, 10) // one unit a second
		for i := range maxKeys {
			takeOne(t, s, p, key(i))
		}
		c.pass(999 * time.Millisecond)
		for i := range maxKeys {
			if i != gone {
				takeOne(t, s, p, key(i))
			}
		}
		if takeOne(t, s, p, "{user:early}"); s.Overflows() != 1 {
			t.Fatalf("%d overflows, want 1: all 1000 still count", s.Overflows())
		}
		c.pass(time.Millisecond)
		if d := takeOne(t, s, p, "{user:new}"); !d.Allowed || d.Remaining != 9 || s.Overflows() != 1 {
			t.Fatalf("the place of %d was not found: %+v, %d overflows", gone, d, s.Overflows())
		}
		if takeOne(t, s, p, "{user:late}"); s.Overflows() != 2 {
			t.Fatalf("%d overflows, want 2: there was one place", s.Overflows())
		}
		for i := range maxKeys {
			if d := takeOne(t, s, p, key(i)); i != gone && d.Remaining != 8 {
				t.Fatalf("key %d lost its bucket: %+v", i, d)
			}
		}
	}
}

// With more to look through than one Take may, it takes the next segments: none of
// them begins anew.
func TestASearchThatWasCutShortGoesOn(t *testing.T) {
	const maxKeys = 5 * searchMost * segmentSlots
	c := newClock()
	s := mustStore(t, Options{MaxKeys: maxKeys, Now: c.Load})
	p := bucketOf(t, 10, 10*time.Second, 10)
	for i := range maxKeys {
		takeOne(t, s, p, key(i))
	}
	c.pass(900 * time.Millisecond)
	for i := 1; i < maxKeys; i++ {
		takeOne(t, s, p, key(i))
	}
	// By their first charge all of them have run out by now, but only key 0 was
	// not charged again.
	c.pass(200 * time.Millisecond)
	segments := 0
	for i := range s.shards {
		eachSegment(&s.shards[i], func(*segment) { segments++ })
	}
	tries := 0
	for s.Overflows() == uint64(tries) {
		takeOne(t, s, p, "{user:new}")
		if tries++; tries > segments/searchMost+1 {
			t.Fatalf("%d Takes have not looked through all %d segments", tries, segments)
		}
	}
	for i := 1; i < maxKeys; i += 97 {
		if d := takeOne(t, s, p, key(i)); d.Remaining != 8 {
			t.Fatalf("key %d lost its bucket: %+v", i, d)
		}
	}
}

// The entry that a list is about to charge has itself run out: it must not make
// room for the list's new key.
func TestAListDoesNotPushOutItsOwnEntry(t *testing.T) {
	c := newClock()
	s := mustStore(t, Options{MaxKeys: 1, Now: c.Load})
	s.makeShards(1)
	p := window(t, 5, time.Second)
	takeOne(t, s, p, key(1))
	c.pass(time.Second)
	ds, err := s.Take(t.Context(), []ratelimit.Charge{{Policy: p, Partition: key(1), Cost: 1}, {Policy: p, Partition: key(2), Cost: 1}}, nil)
	if err != nil || !ratelimit.Admitted(ds) {
		t.Fatal(ds, err)
	}
	if s.Len() != 1 || s.Overflows() != 1 {
		t.Errorf("%d keys, %d overflows", s.Len(), s.Overflows())
	}
	if d := takeOne(t, s, p, key(1)); d.Remaining != 3 {
		t.Errorf("its charge was lost: %+v", d)
	}
}

// What has run out makes room even where there is room, so a table that was
// full once does not stay so.
func TestTheTableShrinksToWhatCounts(t *testing.T) {
	c := newClock()
	s := mustStore(t, Options{Now: c.Load})
	p := window(t, 5, time.Second)
	for i := range 10_000 {
		takeOne(t, s, p, key(i))
	}
	c.pass(time.Second)
	for i := range 10_000 {
		takeOne(t, s, p, key(20_000+i))
	}
	if n := s.Len(); n > 10_100 {
		t.Errorf("%d keys, of which 10,000 count", n)
	}
}

// The overflow buckets are bounded by the policies in use: those of policies
// that are gone run out and are cleared.
func TestOverflowBucketsRunOut(t *testing.T) {
	c := newClock()
	s := mustStore(t, Options{MaxKeys: 1, Now: c.Load})
	takeOne(t, s, window(t, 5, 24*time.Hour), key(0))
	for i := range 100 {
		// Another window, so another key, as after a reload.
		takeOne(t, s, bucketOf(t, 1, time.Duration(1+i)*time.Second, 1), key(1))
		c.pass(time.Hour)
	}
	if n := len(s.overflow.buckets); n != 1 {
		t.Errorf("%d overflow buckets, want 1", n)
	}
}
