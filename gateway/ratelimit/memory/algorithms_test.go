package memory

import (
	"testing"
	"time"
	"unsafe"

	"bouncer/gateway/ratelimit"
)

// every returns a policy of each algorithm, of quota units a window.
func every(tb testing.TB, quota int64, length time.Duration) []*ratelimit.Policy {
	tb.Helper()
	var policies []*ratelimit.Policy
	for a := ratelimit.TokenBucket; a <= ratelimit.LeakyBucket; a++ {
		spec := ratelimit.Policy{Name: "n", Scope: "limit/n", Algorithm: a, Quota: quota, Window: length}
		if a == ratelimit.LeakyBucket {
			spec.Queue = quota - 1
		}
		policies = append(policies, mustPolicy(tb, spec))
	}
	return policies
}

func change(tb testing.TB, p *ratelimit.Policy, f func(*ratelimit.Policy)) *ratelimit.Policy {
	tb.Helper()
	spec := *p
	f(&spec)
	return mustPolicy(tb, spec)
}

// An entry is a line of the caches, and begins with one.
func TestAnEntryIsALine(t *testing.T) {
	const line = 64
	if n := unsafe.Sizeof(entry{}); n != line {
		t.Errorf("an entry takes %d bytes, want %d", n, line)
	}
	if n := unsafe.Offsetof(segment{}.slots); n != line {
		t.Errorf("the head of a segment takes %d bytes, want %d", n, line)
	}
	if n := unsafe.Sizeof(shard{}); n != 2*line {
		t.Errorf("a shard takes %d bytes, want %d", n, 2*line)
	}
	for range 10 {
		var a arena
		if at := uintptr(unsafe.Pointer(a.segment())); at%line != 0 {
			t.Errorf("a segment is at %#x", at)
		}
	}
}

func TestOnlyALogAllocatesWhenItIsCharged(t *testing.T) {
	s := mustStore(t, Options{})
	for _, p := range every(t, 100_000, time.Hour) {
		var ds []ratelimit.Decision
		var err error
		charges := []ratelimit.Charge{{Policy: p, Partition: key(1), Cost: 1}}
		take := func() {
			if ds, err = s.Take(t.Context(), charges, ds); err != nil || !ratelimit.Admitted(ds) {
				t.Fatal(ds, err)
			}
		}
		take()
		// A log has a new head for each charge, and sometimes a longer array.
		most := 0.0
		if p.Algorithm == ratelimit.SlidingWindowLog {
			most = 1.1
		}
		if n := testing.AllocsPerRun(1000, take); n > most {
			t.Errorf("%s: %v allocations", p.Algorithm, n)
		}
		charges[0].Cost = 0
		if n := testing.AllocsPerRun(1000, take); n != 0 {
			t.Errorf("%s: %v allocations for a peek", p.Algorithm, n)
		}
	}
}

// A log takes what its quota needs, however long it is hammered, also while it
// denies and while denied attempts count.
func TestALogIsBoundedByItsQuota(t *testing.T) {
	const quota, keys, perUnit = 1000, 50, 28
	c := newClock()
	s := mustStore(t, Options{Now: c.Load})
	p := change(t, every(t, quota, time.Minute)[2], func(p *ratelimit.Policy) { p.CountRejected = true })
	charges := []ratelimit.Charge{{Policy: p, Cost: 1}}
	var before uint64
	var ds []ratelimit.Decision
	for round := range 4 * quota {
		if round == 1 {
			before = heap() // with the segments that the keys are in
		}
		for k := range keys {
			charges[0].Partition = key(k)
			var err error
			if ds, err = s.Take(t.Context(), charges, ds); err != nil {
				t.Fatal(err)
			}
		}
		c.pass(7 * time.Millisecond)
	}
	if ratelimit.Admitted(ds) {
		t.Fatal("the logs are not full")
	}
	if per := float64(heap()-before) / keys / quota; per > perUnit {
		t.Errorf("%.1f bytes a unit, want at most %d", per, perUnit)
	} else {
		t.Logf("%.1f bytes a unit", per)
	}
	charges[0].Partition = key(0)
	if _, err := s.Take(t.Context(), charges, ds); err != nil { // keeps the store alive for heap
		t.Fatal(err)
	}
}

// Entries that come and go do not leave annexes behind, nor find those of
// others.
func TestAnnexesAreUsedAgain(t *testing.T) {
	c := newClock()
	s := mustStore(t, Options{MaxKeys: 100, Now: c.Load})
	const rounds = 100
	for round := range rounds {
		for i, p := range every(t, 3, time.Second) {
			for k := range 10 {
				// A peek first: whoever is new finds nothing spent.
				ds, err := s.Take(t.Context(), []ratelimit.Charge{{Policy: p, Partition: key(round*100 + i*10 + k)}}, nil)
				if err != nil || ds[0].Remaining != 3 {
					t.Fatal(p.Algorithm, ds, err)
				}
				if d := takeOne(t, s, p, key(round*100+i*10+k)); !d.Allowed || d.Remaining != 2 {
					t.Fatalf("round %d, %s: %+v", round, p.Algorithm, d)
				}
			}
		}
		c.pass(3 * time.Second)
	}
	annexes := 0
	for i := range s.shards {
		sh := &s.shards[i]
		annexes += len(sh.annexes)
	}
	// Each shard has as many as it ever needed at once.
	if made := rounds * 20; annexes > made/3 || s.Overflows() != 0 {
		t.Errorf("%d annexes were made for %d keys, of which 100 are kept; %d overflows", annexes, made, s.Overflows())
	}
}

// What counts rejected attempts gets a place for a request that is not admitted;
// what does not, gets none.
func TestARejectedAttemptThatCountsIsStored(t *testing.T) {
	none := bucketOf(t, 0, time.Minute, 0)
	for _, p := range every(t, 5, time.Minute) {
		s := mustStore(t, Options{})
		counts := change(t, p, func(p *ratelimit.Policy) { p.CountRejected = true })
		for i, q := range []*ratelimit.Policy{p, counts} {
			ds, err := s.Take(t.Context(), []ratelimit.Charge{{Policy: q, Partition: key(1), Cost: 2}, {Policy: none, Partition: key(1), Cost: 1}}, nil)
			if err != nil || ratelimit.Admitted(ds) || s.Len() != i || ds[0].Remaining != 5-2*int64(i) {
				t.Errorf("%s, counting rejected attempts %v: %+v, %v; %d keys", p.Algorithm, q.CountRejected, ds, err, s.Len())
			}
		}
	}
}

// A candidate is stored beside its twin, also when the table is full: then both
// go to overflow buckets of their own.
func TestACandidateHasABucketOfItsOwn(t *testing.T) {
	for _, p := range every(t, 2, time.Hour) {
		s := mustStore(t, Options{MaxKeys: 2})
		twin := change(t, p, func(p *ratelimit.Policy) {
			p.Quota, p.Role = 5, ratelimit.Candidate
			if p.Algorithm == ratelimit.TokenBucket {
				p.Burst = 5
			}
			if p.Algorithm == ratelimit.LeakyBucket {
				p.Queue = 4
			}
		})
		for _, k := range []string{key(1), key(2)} { // the second overflows
			for i, want := range []int64{4, 3, 2, 1, 0, 0} {
				ds, err := s.Take(t.Context(), []ratelimit.Charge{{Policy: p, Partition: k, Cost: 1}, {Policy: twin, Partition: k, Cost: 1}}, nil)
				if err != nil || ratelimit.Admitted(ds) != (i < 2) || ds[1].Remaining != want || ds[1].Allowed != (i < 5) {
					t.Fatalf("%s, %s, request %d: %+v, %v", p.Algorithm, k, i, ds, err)
				}
			}
		}
		if s.Len() != 2 || s.Overflows() == 0 {
			t.Errorf("%d keys, %d overflows", s.Len(), s.Overflows())
		}
	}
}

// A calendar follows the store's own clock, whatever windows a charge brings.
func TestACalendarFollowsTheStoresClock(t *testing.T) {
	kolkata, err := time.LoadLocation("Asia/Kolkata")
	if err != nil {
		t.Fatal(err)
	}
	c := newClock()
	c.Store(time.Date(2026, 11, 30, 18, 29, 0, 0, time.UTC).UnixMicro()) // a minute before midnight there
	s := mustStore(t, Options{Now: c.Load})
	p := mustPolicy(t, ratelimit.Policy{
		Name: "per-day", Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow, Quota: 1,
		Calendar: &ratelimit.Calendar{Unit: ratelimit.CalendarDay, Location: kolkata},
	})
	take := func() ratelimit.Decision {
		t.Helper()
		ds, err := s.Take(t.Context(), []ratelimit.Charge{{Policy: p, Partition: key(1), Cost: 1, Windows: [4]int64{1, 2, 3, 4}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return ds[0]
	}
	if d := take(); !d.Allowed || d.Reset != time.Minute {
		t.Fatalf("%+v", d)
	}
	if d := take(); d.Allowed || d.RetryAfter != time.Minute {
		t.Fatalf("%+v", d)
	}
	c.pass(time.Minute)
	if d := take(); !d.Allowed || d.Reset != 24*time.Hour {
		t.Fatalf("the next day: %+v", d)
	}
}

// BenchmarkTakeEach decides by each algorithm on one of 100,000 callers.
func BenchmarkTakeEach(b *testing.B) {
	const keys = 100_000
	for _, p := range every(b, 1000, 24*time.Hour) {
		b.Run(p.Algorithm.String(), func(b *testing.B) {
			s := mustStore(b, Options{})
			partitions := make([]string, keys)
			charges := []ratelimit.Charge{{Policy: p, Cost: 1}}
			var ds []ratelimit.Decision
			for i := range partitions {
				partitions[i] = ipPartition(i)
				charges[0].Partition = partitions[i]
				ds, _ = s.Take(b.Context(), charges, ds)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				charges[0].Partition = partitions[i%keys]
				ds, _ = s.Take(b.Context(), charges, ds)
				i++
			}
		})
	}
}

// What a bucket remembers of a larger plan has an annex, which is given back when
// it is forgotten.
func TestWhatALargerPlanSpentHasAnAnnexForAsLongAsItCounts(t *testing.T) {
	c := newClock()
	s := mustStore(t, Options{Now: c.Load})
	large, small := bucketOf(t, 10, time.Minute, 100), bucketOf(t, 10, time.Minute, 10)
	annexes := func() (all, unused int) {
		for i := range s.shards {
			sh := &s.shards[i]
			all += len(sh.annexes)
			for n := sh.freeAnnex; n != 0; n = sh.annexes[n-1].next {
				unused++
			}
		}
		return all, unused
	}
	spend := func(p *ratelimit.Policy, i int, cost int64) {
		t.Helper()
		ds, err := s.Take(t.Context(), []ratelimit.Charge{{Policy: p, Partition: key(i), Cost: cost}}, nil)
		if err != nil || !ds[0].Allowed {
			t.Fatalf("%+v, %v", ds, err)
		}
	}
	for round := range 3 {
		for i := range 50 {
			spend(large, i, 100)
			c.pass(6 * time.Second)
			spend(small, i, 1)
		}
		if all, unused := annexes(); all != 50 || unused != 0 {
			t.Fatalf("round %d: %d annexes for 50 buckets, %d of them unused", round, all, unused)
		}
		c.pass(time.Minute)
		for i := range 50 {
			spend(large, i, 1)
		}
		if all, unused := annexes(); all != 50 || unused != 50 {
			t.Fatalf("round %d: %d annexes, %d unused; want 50 of each", round, all, unused)
		}
		c.pass(time.Hour)
	}
}
