package memory

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/limittest"
)

func TestStore(t *testing.T) {
	limittest.Run(t, func(t testing.TB, clock *limittest.Clock) ratelimit.Store {
		return mustStore(t, Options{Now: clock.Now})
	})
}

// The same suite when all keys are in one shard.
func TestStoreOfOneShard(t *testing.T) {
	t.Setenv("LIMITTEST_STEPS", "2000")
	limittest.Run(t, func(t testing.TB, clock *limittest.Clock) ratelimit.Store {
		s := mustStore(t, Options{Now: clock.Now})
		s.makeShards(1)
		return s
	})
}

// The same suite in a table that keeps at most as much as still counts: what has
// run out is pushed out at the first chance, and nobody may notice.
func TestStoreThatForgetsWhatHasRunOutAtOnce(t *testing.T) {
	t.Setenv("LIMITTEST_STEPS", "2000")
	limittest.Run(t, func(t testing.TB, clock *limittest.Clock) ratelimit.Store {
		s := mustStore(t, Options{Now: clock.Now})
		return storeFunc(func(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
			s.keys.Add(int64(-s.search(&list{now: clock.Now()}, math.MaxInt)))
			return s.Take(ctx, charges, dst)
		})
	})
}

type storeFunc func(context.Context, []ratelimit.Charge, []ratelimit.Decision) ([]ratelimit.Decision, error)

func (f storeFunc) Take(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	return f(ctx, charges, dst)
}

func mustStore(tb testing.TB, o Options) *Store {
	tb.Helper()
	s, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// A clock is the store's time, in microseconds.
type clock struct{ atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.Store(1_796_000_000_000_000)
	return c
}

func (c *clock) pass(d time.Duration) { c.Add(d.Microseconds()) }

func window(tb testing.TB, quota int64, length time.Duration) *ratelimit.Policy {
	return mustPolicy(tb, ratelimit.Policy{Name: "window", Scope: "limit/window", Algorithm: ratelimit.FixedWindow, Quota: quota, Window: length})
}

func bucketOf(tb testing.TB, quota int64, length time.Duration, burst int64) *ratelimit.Policy {
	return mustPolicy(tb, ratelimit.Policy{Name: "bucket", Scope: "limit/bucket", Algorithm: ratelimit.TokenBucket, Quota: quota, Window: length, Burst: burst})
}

// takeOne charges one unit of p for the key and returns the decision.
func takeOne(tb testing.TB, s *Store, p *ratelimit.Policy, key string) ratelimit.Decision {
	tb.Helper()
	ds, err := s.Take(context.Background(), []ratelimit.Charge{{Policy: p, Partition: key, Cost: 1}}, nil)
	if err != nil || len(ds) != 1 {
		tb.Fatalf("take: %v, %v", ds, err)
	}
	return ds[0]
}

func key(i int) string { return fmt.Sprintf("{user:%d}", i) }

func TestNewRefuses(t *testing.T) {
	tooMany := int64(maxKeys) + 1 // of 32 bits it is below 0
	for _, n := range []int{-1, int(tooMany)} {
		if s, err := New(Options{MaxKeys: n}); err == nil || s != nil || !strings.Contains(err.Error(), "max keys") {
			t.Errorf("%d keys: got %v, %v", n, s, err)
		}
	}
}

func TestTakeRefusesWhatIsNoChargeAndChargesNothing(t *testing.T) {
	p := window(t, 10, time.Minute)
	s := mustStore(t, Options{})
	good := ratelimit.Charge{Policy: p, Partition: key(1), Cost: 1}
	for name, bad := range map[string]ratelimit.Charge{
		"no policy":     {Partition: key(1), Cost: 1},
		"hand-made":     {Policy: &ratelimit.Policy{Name: "x"}, Partition: key(1), Cost: 1},
		"negative cost": {Policy: p, Partition: key(1), Cost: -1},
	} {
		ds, err := s.Take(t.Context(), []ratelimit.Charge{good, bad}, nil)
		if err == nil || len(ds) != 0 {
			t.Errorf("%s: got %v, %v, want an error and no decision", name, ds, err)
		}
	}
	if s.Len() != 0 {
		t.Errorf("%d keys are stored", s.Len())
	}
	if ds, err := s.Take(t.Context(), nil, []ratelimit.Decision{{}}); err != nil || len(ds) != 0 {
		t.Errorf("no charges: got %v, %v", ds, err)
	}
}

// A client that hung up is no reason to decide otherwise.
func TestTakeIgnoresACancelledContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := mustStore(t, Options{})
	ds, err := s.Take(ctx, []ratelimit.Charge{{Policy: window(t, 10, time.Minute), Partition: key(1), Cost: 1}}, nil)
	if err != nil || !ratelimit.Admitted(ds) {
		t.Errorf("got %v, %v", ds, err)
	}
}

func TestDeniedChargesAndPeeksStoreNothing(t *testing.T) {
	s := mustStore(t, Options{})
	p, none := window(t, 10, time.Minute), bucketOf(t, 0, time.Minute, 0)
	for _, charges := range [][]ratelimit.Charge{
		{{Policy: p, Partition: key(1), Cost: 11}},
		{{Policy: p, Partition: key(1), Cost: 0}},
		{{Policy: none, Partition: key(1), Cost: 1}},
		{{Policy: p, Partition: key(1), Cost: 1}, {Policy: none, Partition: key(2), Cost: 1}},
	} {
		if _, err := s.Take(t.Context(), charges, nil); err != nil {
			t.Fatal(err)
		}
		if s.Len() != 0 {
			t.Errorf("%+v: %d keys are stored", charges, s.Len())
		}
	}
}

func TestSourceIsWhatTheOptionsSay(t *testing.T) {
	p := window(t, 10, time.Minute)
	if got := takeOne(t, mustStore(t, Options{}), p, key(1)).Source; got != ratelimit.SourceMemory {
		t.Errorf("got %q, want memory", got)
	}
	if got := takeOne(t, mustStore(t, Options{Source: ratelimit.SourceLocalCap}), p, key(1)).Source; got != ratelimit.SourceLocalCap {
		t.Errorf("got %q, want local_cap", got)
	}
}

// The default clock follows the time that passes.
func TestDefaultClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustStore(t, Options{})
		p := bucketOf(t, 1, time.Minute, 1)
		if !takeOne(t, s, p, key(1)).Allowed {
			t.Fatal("the first was denied")
		}
		d := takeOne(t, s, p, key(1))
		if d.Allowed || d.RetryAfter != time.Minute {
			t.Fatalf("got %+v", d)
		}
		time.Sleep(d.RetryAfter - time.Microsecond)
		if takeOne(t, s, p, key(1)).Allowed {
			t.Fatal("admitted 1 µs too soon")
		}
		time.Sleep(time.Microsecond)
		if !takeOne(t, s, p, key(1)).Allowed {
			t.Fatal("denied after waiting as told")
		}
	})
}

func TestTakeOfKnownKeysDoesNotAllocate(t *testing.T) {
	s := mustStore(t, Options{})
	var charges []ratelimit.Charge
	for i := range inline {
		charges = append(charges, ratelimit.Charge{Policy: bucketOf(t, 1_000_000, time.Second, 0), Partition: key(i), Cost: 1})
	}
	var ds []ratelimit.Decision
	take := func() {
		var err error
		if ds, err = s.Take(t.Context(), charges, ds); err != nil || !ratelimit.Admitted(ds) {
			t.Fatal(ds, err)
		}
	}
	take()
	if n := testing.AllocsPerRun(1000, take); n != 0 {
		t.Errorf("allocates %v times", n)
	}
}

// The policies of a configuration that is gone are let go, however long its buckets
// count.
func TestBucketsDoNotKeepThePolicyThatChargedThem(t *testing.T) {
	s := mustStore(t, Options{})
	old := func() (old []weak.Pointer[ratelimit.Policy]) {
		for _, p := range every(t, 10, 24*time.Hour) {
			takeOne(t, s, p, key(1))
			old = append(old, weak.Make(p))
		}
		return old
	}()
	runtime.GC()
	for _, p := range old {
		if p := p.Value(); p != nil {
			t.Errorf("the store keeps a %s", p.Algorithm)
		}
	}
	if s.Len() != len(old) {
		t.Errorf("%d keys, want %d", s.Len(), len(old))
	}
}

// A million callers, each with an address and a bucket of their own.
func TestMemoryPerKey(t *testing.T) {
	const keys, limit = manyKeys, 130
	p := bucketOf(t, 600, time.Hour, 100)
	before := heap()
	s := mustStore(t, Options{MaxKeys: keys, Now: newClock().Load}) // nothing runs out
	charges := []ratelimit.Charge{{Policy: p, Cost: 1}}
	var ds []ratelimit.Decision
	for i := range keys {
		charges[0].Partition = ipPartition(i)
		var err error
		if ds, err = s.Take(t.Context(), charges, ds); err != nil || !ds[0].Allowed {
			t.Fatal(ds, err)
		}
	}
	if s.Len() != keys || s.Overflows() != 0 {
		t.Fatalf("%d keys, %d overflows", s.Len(), s.Overflows())
	}
	if per := float64(heap()-before) / keys; per > limit {
		t.Errorf("%.0f bytes a key, want at most %d", per, limit)
	} else {
		t.Logf("%.0f bytes a key", per)
	}
	// One more key than there is room for, and there are no more of them.
	if d := takeOne(t, s, p, "{ip:198.51.100.1}"); !d.Allowed || s.Len() != keys || s.Overflows() != 1 {
		t.Errorf("one more key: %+v, %d keys, %d overflows", d, s.Len(), s.Overflows())
	}
}

func TestExactlyNAreAdmittedUnder50Goroutines(t *testing.T) {
	const n, rounds = 100, 20
	for range rounds {
		s := mustStore(t, Options{})
		p, q := window(t, n, time.Hour), bucketOf(t, 1, 24*time.Hour, n)
		var a, b atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range n / 10 {
					if takeOne(t, s, p, key(1)).Allowed {
						a.Add(1)
					}
					if takeOne(t, s, q, key(1)).Allowed {
						b.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if a.Load() != n || b.Load() != n {
			t.Fatalf("admitted %d in the window and %d in the bucket, want %d", a.Load(), b.Load(), n)
		}
	}
}

// Many keys, few places, time that passes: whatever the goroutines do to each
// other, no limit admits more than it grants and the table stays bounded.
func TestBoundsHoldUnderConcurrency(t *testing.T) {
	const maxKeys, quota = 40, 5
	c := newClock()
	s := mustStore(t, Options{MaxKeys: maxKeys, Now: c.Load})
	p := window(t, quota, time.Hour) // never runs out here
	q := window2(t, quota)           // the second limit of each list
	var admitted [100]atomic.Int64
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			var ds []ratelimit.Decision
			for i := range 500 {
				k := (i*7 + g*13) % len(admitted)
				var err error
				ds, err = s.Take(context.Background(), []ratelimit.Charge{
					{Policy: p, Partition: key(k), Cost: 1},
					{Policy: q, Partition: key(k), Cost: 1},
				}, ds)
				if err != nil {
					t.Error(err)
					return
				}
				if ratelimit.Admitted(ds) {
					admitted[k].Add(1)
				}
				if n := s.Len(); n > maxKeys {
					t.Errorf("%d keys", n)
					return
				}
				c.pass(time.Microsecond)
			}
		})
	}
	wg.Wait()
	total := int64(0)
	for k := range admitted {
		if n := admitted[k].Load(); n > 2*quota {
			// Its own bucket, and at most what the overflow bucket grants.
			t.Errorf("key %d was admitted %d times", k, n)
		}
		total += admitted[k].Load()
	}
	// Each entry of p, and the overflow bucket of either policy.
	if most := int64((maxKeys + 1) * quota); total > most {
		t.Errorf("%d admitted, want at most %d", total, most)
	}
	if held := count(s); s.Len() != held {
		t.Errorf("the store says it holds %d keys, and holds %d", s.Len(), held)
	}
}

// window2 is a second limit, of an hour.
func window2(tb testing.TB, quota int64) *ratelimit.Policy {
	return mustPolicy(tb, ratelimit.Policy{Name: "window2", Scope: "limit/window2", Algorithm: ratelimit.FixedWindow, Quota: quota, Window: time.Hour})
}

// The lists of two callers overlap in both orders, so that locks taken in the
// order of the charges would deadlock; and what one limit denies must not show
// in the other.
func TestAllOrNoneUnderConcurrency(t *testing.T) {
	s := mustStore(t, Options{})
	wide, narrow := window(t, 1000, time.Hour), window2(t, 30)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			charges := []ratelimit.Charge{
				{Policy: wide, Partition: key(1), Cost: 1},
				{Policy: narrow, Partition: key(2), Cost: 1},
				{Policy: wide, Partition: key(3), Cost: 1},
			}
			if g%2 == 1 {
				charges[0], charges[2] = charges[2], charges[0]
			}
			for range 10 {
				ds, err := s.Take(context.Background(), charges, nil)
				if err != nil {
					t.Error(err)
				} else if ratelimit.Admitted(ds) {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 30 {
		t.Errorf("admitted %d, want 30", admitted.Load())
	}
	for _, k := range []string{key(1), key(3)} {
		if d := takeOne(t, s, wide, k); d.Remaining != 1000-30-1 {
			t.Errorf("%s: %d remain, so a denied list was charged", k, d.Remaining)
		}
	}
}

// A list longer than what is kept on the stack, with every kind of bucket twice.
func TestLongList(t *testing.T) {
	s := mustStore(t, Options{})
	p := window(t, 100, time.Hour)
	var charges []ratelimit.Charge
	for i := range 3 * inline {
		charges = append(charges, ratelimit.Charge{Policy: p, Partition: key(i % (2 * inline)), Cost: 1})
	}
	ds, err := s.Take(t.Context(), charges, nil)
	if err != nil || !ratelimit.Admitted(ds) || s.Len() != 2*inline {
		t.Fatal(ds, err, s.Len())
	}
	for i, d := range ds {
		want := int64(99)
		if i >= 2*inline {
			want = 98 // the second charge of its bucket
		}
		if d.Remaining != want {
			t.Errorf("charge %d: remaining %d, want %d", i, d.Remaining, want)
		}
	}
}

// Histories of new, known and run-out keys in a table that is mostly full, held
// against a map of states without a bound: whoever has a place must be answered
// as if the table were endless.
func TestSmallTableAnswersAsAnEndlessOneUnlessItSaysSo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		maxKeys := rapid.IntRange(1, 6).Draw(t, "max keys")
		small, err := New(Options{MaxKeys: maxKeys, Now: c.Load})
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "one shard") {
			small.makeShards(1)
		}
		endless, err := New(Options{Now: c.Load})
		if err != nil {
			t.Fatal(err)
		}
		var policies []*ratelimit.Policy
		for _, spec := range []ratelimit.Policy{
			{Name: "w", Scope: "limit/w", Algorithm: ratelimit.FixedWindow, Quota: 3, Window: time.Second},
			{Name: "b", Scope: "limit/b", Algorithm: ratelimit.TokenBucket, Quota: 3, Window: 2 * time.Second, Burst: 4},
			{Name: "l", Scope: "limit/l", Algorithm: ratelimit.SlidingWindowLog, Quota: 3, Window: time.Second, CountRejected: true},
			{Name: "l", Scope: "limit/l", Algorithm: ratelimit.SlidingWindowLog, Quota: 2, Window: time.Second, Role: ratelimit.Candidate},
			{Name: "c", Scope: "limit/c", Algorithm: ratelimit.SlidingWindowCounter, Quota: 3, Window: time.Second, Role: ratelimit.Shadow},
			{Name: "q", Scope: "limit/q", Algorithm: ratelimit.LeakyBucket, Quota: 3, Window: 2 * time.Second, Queue: 2},
		} {
			p, err := ratelimit.NewPolicy(spec)
			if err != nil {
				t.Fatal(err)
			}
			policies = append(policies, p)
		}
		for range rapid.IntRange(1, 100).Draw(t, "takes") {
			passed := time.Duration(rapid.SampledFrom([]int{0, 1, 333_333, 666_667, 3_000_000}).Draw(t, "µs")) * time.Microsecond
			c.pass(passed)
			var charges []ratelimit.Charge
			for range rapid.IntRange(1, 3).Draw(t, "charges") {
				charges = append(charges, ratelimit.Charge{
					Policy:    rapid.SampledFrom(policies).Draw(t, "policy"),
					Partition: key(rapid.IntRange(0, 7).Draw(t, "key")),
					Cost:      rapid.Int64Range(0, 4).Draw(t, "cost"),
				})
			}
			live := live(small, c.Load())
			before := small.Overflows()
			got, err := small.Take(context.Background(), charges, nil)
			if err != nil {
				t.Fatal(err)
			}
			if small.Len() > maxKeys || small.Len() != count(small) {
				t.Fatalf("%d keys, says %d, of %d", count(small), small.Len(), maxKeys)
			}
			if small.Overflows() > before {
				// An entry that has run out, and that an earlier list asked about
				// in the same µs, is not looked at again until the next.
				if passed > 0 && live+len(charges) <= maxKeys {
					t.Fatalf("overflow with %d of %d live", live, maxKeys)
				}
				// From here on the two have been told different things.
				return
			}
			want, err := endless.Take(context.Background(), charges, nil)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got, cmp.Comparer(func(a, b *ratelimit.Policy) bool { return a == b })); d != "" {
				t.Fatalf("small table differs (-endless +small):\n%s", d)
			}
		}
	})
}

// count returns the number of entries that are there, each where it is found.
func count(s *Store) (n int) {
	for i := range s.shards {
		n += entries(&s.shards[i], func(e *entry) {
			if int(e.id.place)&(len(s.shards)-1) != i {
				panic("an entry is in a shard of others")
			}
		})
	}
	return n
}

// live returns the number of entries that still count at now.
func live(s *Store, now int64) (n int) {
	for i := range s.shards {
		entries(&s.shards[i], func(e *entry) {
			if e.until > now {
				n++
			}
		})
	}
	return n
}
