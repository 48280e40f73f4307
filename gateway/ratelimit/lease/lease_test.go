package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/lease"
)

// A bucket that is charged all the time costs the store few calls, and admits
// what it grants.
func TestAHotBucketIsSpentInBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		var told counts
		l := start(t, store, lease.Options{Hooks: told.hooks()})
		p := window(t, 5000, 0)
		admitted, local := int64(0), 0
		for range 6000 { // a thousand a second
			time.Sleep(time.Millisecond)
			d := take(t, l, of(1, p))[0]
			if d.Allowed {
				if admitted++; d.Remaining != 5000-admitted {
					t.Fatalf("%d remain after %d, by %s", d.Remaining, admitted, d.Source)
				}
			}
			if d.Source == ratelimit.SourceLease {
				local++
				if !d.Allowed || d.Reset <= 0 || d.Reset > time.Hour || d.Policy != p {
					t.Fatalf("from a block: %+v", d)
				}
			}
		}
		if admitted != 5000 {
			t.Errorf("%d admitted of 5000", admitted)
		}
		if calls := store.calls - (6000 - 5000); calls > 50 || local < 4900 {
			t.Errorf("%d calls for 5000 requests, %d were paid from blocks", calls, local)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if told.now().blocks != 0 || told.now().stranded != 0 || told.now().failures != 0 {
			t.Errorf("afterwards: %+v", told.now())
		}
	})
}

// Keys that are asked for now and then are charged one by one.
func TestAColdKeyIsLeasedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := start(t, store, lease.Options{})
		p := window(t, 5000, 0)
		for range 20 {
			take(t, l, of(1, p))
			time.Sleep(400 * time.Millisecond)
		}
		if store.lent != 0 || store.calls != 20 {
			t.Errorf("%d units were lent in %d calls", store.lent, store.calls)
		}
	})
}

// A block grows and shrinks with what is spent, and never beyond its part of the
// limit.
func TestABlockFollowsWhatIsSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		instances := 1
		l := start(t, store, lease.Options{Instances: func() int { return instances }})
		p := window(t, 1_000_000, 0)
		// run spends at a rate for six seconds and returns the largest block that
		// was asked for in the last one.
		run := func(perSecond int) (most int64) {
			for i := range 6 * perSecond {
				if i == 5*perSecond {
					store.asked = nil
				}
				take(t, l, of(1, p))
				time.Sleep(time.Second / time.Duration(perSecond))
			}
			for _, n := range store.asked {
				most = max(most, n)
			}
			return most
		}
		for _, c := range []struct {
			rate      int
			low, high int64
		}{{100, 40, 76}, {1000, 400, 760}, {20, 8, 16}} {
			if most := run(c.rate); most < c.low || most > c.high {
				t.Errorf("at %d a second a block of %d is asked for, want %d to %d", c.rate, most, c.low, c.high)
			}
		}
		instances = 10_000 // a quarter of the limit, divided: 25
		if most := run(1000); most > 25 {
			t.Errorf("one of %d instances asks for %d", instances, most)
		}
	})
}

// Of several limits all are charged or none: what was paid for a request that
// another limit denies goes back into the block.
func TestWhatWasPaidGoesBackWhenAnotherLimitDenies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := start(t, store, lease.Options{})
		p := window(t, 1000, 10)
		few := policy(t, ratelimit.Policy{Scope: "plan/few", Algorithm: ratelimit.FixedWindow, Quota: 3})
		take(t, l, of(1, p)) // brings a block
		for i := range 20 {
			ds := take(t, l, of(1, few, p))
			want := int64(999 - min(i+1, 3))
			if ratelimit.Admitted(ds) != (i < 3) || !ds[1].Allowed || ds[1].Remaining != want {
				t.Fatalf("request %d: %+v, want %d to remain", i, ds[1], want)
			}
		}
		if store.lent != 10 {
			t.Errorf("%d units were lent; a block of 10 has 7 left", store.lent)
		}
	})
}

// A block is spent until its TTL and no longer, and what is left of it comes back
// once.
func TestABlockEndsAfterItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		var told counts
		l := start(t, store, lease.Options{Hooks: told.hooks()})
		p := window(t, 1000, 10)
		take(t, l, of(1, p))
		time.Sleep(990 * time.Millisecond)
		synctest.Wait()
		if d := take(t, l, of(1, p))[0]; d.Source != ratelimit.SourceLease || store.calls != 1 {
			t.Errorf("shortly before its end: %+v after %d calls", d, store.calls)
		}
		if told.now().blocks != 1 {
			t.Errorf("%d blocks are held", told.now().blocks)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if d := take(t, l, of(1, p))[0]; d.Source != ratelimit.SourceRedis {
			t.Errorf("after its end: %+v", d)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(store.returned) != 2 || store.returned[0].Units != 10-1 || store.returned[1].Units != 10 {
			t.Errorf("returned: %+v", store.returned)
		}
		if told.now().blocks != 0 || told.now().stranded != 0 {
			t.Errorf("afterwards %d blocks are held and %d units stranded", told.now().blocks, told.now().stranded)
		}
	})
}

// A block that ends while a request has units of it waits for what becomes of
// them, and comes back whole.
func TestABlockWaitsForWhatIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		var told counts
		l := start(t, store, lease.Options{Hooks: told.hooks()})
		p, none := window(t, 1000, 10), policy(t, ratelimit.Policy{Scope: "plan/none", Algorithm: ratelimit.FixedWindow, Quota: 0})
		take(t, l, of(1, p))
		store.during = func() { time.Sleep(2 * time.Second) }
		if ds := take(t, l, of(1, p, none)); ratelimit.Admitted(ds) {
			t.Errorf("admitted: %+v", ds)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if back := store.back(); back != 10 || told.now().stranded != 0 || told.now().blocks != 0 {
			t.Errorf("%d units came back, %+v", back, told.now())
		}
	})
}

// Units of a window are not spent in the next one, and not given back to it.
func TestABlockEndsWithItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := start(t, store, lease.Options{})
		p := policy(t, ratelimit.Policy{
			Algorithm: ratelimit.FixedWindow, Quota: 100, Window: time.Second, Lease: ratelimit.Lease{TTL: 10 * time.Second, Size: 10},
		})
		take(t, l, of(1, p))
		time.Sleep(900 * time.Millisecond)
		take(t, l, of(9, p)) // takes a new block along
		time.Sleep(100 * time.Millisecond)
		if d := take(t, l, of(1, p))[0]; d.Source != ratelimit.SourceRedis || d.Remaining != 99 {
			t.Errorf("in the next window: %+v", d)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if back := store.back(); back != 0 {
			t.Errorf("%d units were returned to a window that is over", back)
		}
	})
}

// While the store is away, blocks are good until their TTL, and no request waits
// or fails for what was only to be filled up.
func TestBlocksAreGoodWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		var told counts
		l := start(t, store, lease.Options{Hooks: told.hooks()})
		p := window(t, 1000, 20)
		take(t, l, of(1, p))
		store.fail(errAway)
		for i := range 20 {
			if d := take(t, l, of(1, p))[0]; d.Source != ratelimit.SourceLease {
				t.Fatalf("request %d: %+v", i, d)
			}
		}
		if _, err := l.Take(t.Context(), of(1, p), nil); !errors.Is(err, errAway) {
			t.Errorf("beyond the block: %v", err)
		}
		if store.calls != 3 || told.now().failures != 1 {
			t.Errorf("%d calls, %d failures reported; want one to fill up, and one for the last request", store.calls, told.now().failures)
		}
		store.fail(nil)
		time.Sleep(time.Second)
		take(t, l, of(1, p))
		store.fail(errAway)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if told.now().stranded != 20 || told.now().failures != 2 || told.now().blocks != 0 {
			t.Errorf("a block that could not be returned: %+v", told.now())
		}
	})
}

// Held pays from blocks alone, all or nothing.
func TestHeldAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := start(t, store, lease.Options{})
		p, other := window(t, 1000, 10), policy(t, ratelimit.Policy{Scope: "plan/other", Algorithm: ratelimit.FixedWindow, Quota: 3})
		held := func(cs []ratelimit.Charge) bool {
			ds, ok := l.Held(cs, nil)
			if ok && (len(ds) != len(cs) || ds[0].Source != ratelimit.SourceLease || !ratelimit.Admitted(ds)) {
				t.Errorf("held: %+v", ds)
			}
			return ok
		}
		if held(of(1, p)) {
			t.Error("paid from no block")
		}
		take(t, l, of(1, p))
		if !held(of(8, p)) || held(of(3, p)) || held(of(1, p, other)) || held(of(1, other)) || !held(of(2, p)) || held(of(1, p)) {
			t.Error("a block of 10 does not pay 8 and 2, and nothing else")
		}
		if store.calls != 1 {
			t.Errorf("%d calls", store.calls)
		}
	})
}

// Close returns all that is left, and what comes after is charged one by one.
func TestCloseReturnsAllBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		var told counts
		l := start(t, store, lease.Options{Hooks: told.hooks()})
		p := window(t, 1000, 5)
		for i := range 200 {
			cs := of(1, p)
			cs[0].Partition = fmt.Sprintf("{tenant:%d}", i)
			take(t, l, cs)
		}
		if told.now().blocks != 200 {
			t.Errorf("%d blocks", told.now().blocks)
		}
		l.Close()
		if back := store.back(); back != 200*5 || told.now().blocks != 0 || told.now().stranded != 0 {
			t.Errorf("%d units came back, %+v", back, told.now())
		}
		if d := take(t, l, of(1, p))[0]; d.Source != ratelimit.SourceRedis || store.lent != 200*5 {
			t.Errorf("after the end: %+v, %d lent", d, store.lent)
		}
		l.Close()
	})
}

// A request that costs more than is left pays what there is and asks for the rest;
// if it is denied all the same, that goes back.
func TestACostIsPaidInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := start(t, store, lease.Options{})
		p := window(t, 20, 5)
		take(t, l, of(1, p)) // 6 charged
		d := take(t, l, of(8, p))[0]
		if !d.Allowed || d.Remaining != 20-9 || store.lent != 5+5 { // and 3 + 5 more
			t.Errorf("8 of 5 here and 14 there: %+v, %d lent", d, store.lent)
		}
		if d := take(t, l, of(12, p))[0]; d.Allowed || d.Remaining != 11 {
			t.Errorf("12 of 11: %+v", d)
		}
		if d := take(t, l, of(11, p))[0]; !d.Allowed || d.Remaining != 0 {
			t.Errorf("11 of 11: %+v", d)
		}
		if d := take(t, l, of(21, p))[0]; d.Allowed || d.RetryAfter != ratelimit.Never {
			t.Errorf("21 of 20: %+v", d)
		}
	})
}

// A shadow that denies is charged nothing, though the request is admitted.
func TestADeniedShadowPaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, newFake(t), lease.Options{})
		p := policy(t, ratelimit.Policy{
			Algorithm: ratelimit.FixedWindow, Quota: 10, Role: ratelimit.Shadow, Lease: ratelimit.Lease{TTL: time.Second, Size: 4},
		})
		take(t, l, of(5, p))
		if d := take(t, l, of(6, p))[0]; d.Allowed || d.Remaining != 5 {
			t.Errorf("6 of 5: %+v", d)
		}
		if d := take(t, l, of(5, p))[0]; !d.Allowed || d.Remaining != 0 {
			t.Errorf("5 of 5: %+v", d)
		}
	})
}

// What a hot bucket denies is told to come back no sooner than an eighth of the
// TTL, so that what comes back meanwhile is fetched together.
func TestAHotBucketIsNotAskedForEveryUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := start(t, store, lease.Options{})
		p := policy(t, ratelimit.Policy{
			Algorithm: ratelimit.TokenBucket, Quota: 1000, Burst: 100, Window: time.Second, Lease: ratelimit.Lease{TTL: time.Second},
		})
		cold := of(100, p)
		cold[0].Partition = "{tenant:cold}"
		take(t, l, cold)
		if d := take(t, l, cold)[0]; d.Allowed || d.RetryAfter != 100*time.Millisecond {
			t.Errorf("a cold bucket: %+v", d)
		}
		denied := false
		for !denied {
			d := take(t, l, of(1, p))[0]
			if denied = !d.Allowed; denied && d.RetryAfter != 125*time.Millisecond {
				t.Errorf("a hot bucket: %+v", d)
			}
		}
	})
}

// One request at a time takes a block along; those that come meanwhile pay from
// what is left, or are charged one by one.
func TestOneRefillAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := start(t, store, lease.Options{})
		p := window(t, 1000, 8)
		take(t, l, of(1, p))
		store.during = func() { time.Sleep(10 * time.Millisecond) }
		var all sync.WaitGroup
		for range 12 {
			all.Go(func() { take(t, l, of(1, p)) })
		}
		all.Wait()
		// 8 were paid from the block, one of which asked for another one.
		if store.lent > 8+8 || store.calls != 1+1+4 {
			t.Errorf("%d units were lent in %d calls", store.lent, store.calls)
		}
	})
}

// Two charges on one bucket are the store's to decide, in order.
func TestABucketThatIsChargedTwiceIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := start(t, store, lease.Options{})
		p := window(t, 1000, 8)
		take(t, l, of(1, p))
		ds := take(t, l, of(1, p, p))
		if ds[0].Source != ratelimit.SourceRedis || ds[1].Source != ratelimit.SourceRedis || store.calls != 2 || store.lent != 8 {
			t.Errorf("%+v, %d calls, %d lent", ds, store.calls, store.lent)
		}
	})
}

// A look tells what could be spent here: what the store has, and what lies in
// blocks.
func TestALookAddsWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, newFake(t), lease.Options{})
		p := window(t, 1000, 8)
		take(t, l, of(1, p))
		if d := take(t, l, of(0, p))[0]; !d.Allowed || d.Remaining != 999 {
			t.Errorf("%+v", d)
		}
	})
}

// A plan with another number is asked for at once; what lies here is of the old
// one.
func TestANewNumberIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		l := start(t, store, lease.Options{})
		take(t, l, of(1, window(t, 1000, 8)))
		if d := take(t, l, of(1, window(t, 1000, 8)))[0]; d.Source != ratelimit.SourceLease {
			t.Errorf("after a reload that changed nothing: %+v", d)
		}
		if d := take(t, l, of(1, window(t, 500, 8)))[0]; d.Source != ratelimit.SourceRedis || d.Remaining != 500-1-8-1 {
			t.Errorf("of half the limit: %+v", d)
		}
		none := policy(t, ratelimit.Policy{Algorithm: ratelimit.FixedWindow, Quota: 0, Lease: ratelimit.Lease{TTL: time.Second, Size: 8}})
		if d := take(t, l, of(1, none))[0]; d.Allowed {
			t.Errorf("of a limit of 0: %+v", d)
		}
	})
}

// The number of buckets is bounded. A crowd of cold ones does not push out a hot
// one, and is counted one by one.
func TestTheTableIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFake(t)
		var told counts
		l := start(t, store, lease.Options{MaxBuckets: 64, Hooks: told.hooks()})
		p := window(t, 1_000_000, 0)
		local := 0
		for i := range 2000 {
			crowd := of(1, p)
			crowd[0].Partition = fmt.Sprintf("{tenant:%d}", i)
			take(t, l, crowd)
			if take(t, l, of(1, p))[0].Source == ratelimit.SourceLease {
				local++
			}
			time.Sleep(time.Millisecond)
		}
		if local < 1900 {
			t.Errorf("the hot one was paid from blocks %d times of 2000", local)
		}
		fixed := window(t, 1_000_000, 5) // each has a block
		for i := range 200 {
			crowd := of(1, fixed)
			crowd[0].Partition = fmt.Sprintf("{user:%d}", i)
			take(t, l, crowd)
		}
		if told.now().full == 0 || told.now().blocks > 64+32 {
			t.Errorf("%d charges found the table full, %d blocks are held", told.now().full, told.now().blocks)
		}
	})
}

// A list without leases goes to the store as it is, and an answer of another
// length is an error.
func TestWhatIsNotLeasedPassesThrough(t *testing.T) {
	store := newFake(t)
	l := start(t, store, lease.Options{})
	p := policy(t, ratelimit.Policy{Algorithm: ratelimit.FixedWindow, Quota: 3})
	if d := take(t, l, of(1, p))[0]; d.Source != ratelimit.SourceRedis || d.Remaining != 2 {
		t.Errorf("%+v", d)
	}
	if ds, err := start(t, mute{store}, lease.Options{}).Take(t.Context(), of(1, window(t, 3, 1)), nil); err == nil {
		t.Errorf("no decision was taken for %+v", ds)
	}
	for _, o := range []lease.Options{{MaxBuckets: -1}} {
		if _, err := lease.New(store, o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	if _, err := lease.New(nil, lease.Options{}); err == nil {
		t.Error("no store is taken")
	}
}

// mute decides nothing.
type mute struct{ *fake }

func (mute) Lend(_ context.Context, _ []ratelimit.Charge, _ []int64, dst []ratelimit.Decision, blocks []ratelimit.Block) ([]ratelimit.Decision, []ratelimit.Block, error) {
	return dst[:0], blocks[:0], nil
}

// What is paid from a block allocates nothing.
func TestABlockAllocatesNothing(t *testing.T) {
	l, err := lease.New(newFake(t), lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := policy(t, ratelimit.Policy{
		Algorithm: ratelimit.FixedWindow, Quota: 1_000_000, Lease: ratelimit.Lease{TTL: 10 * time.Second, Size: 500_000},
	})
	cs := of(1, p)
	dst := take(t, l, cs)
	n := testing.AllocsPerRun(1000, func() { dst, _ = l.Take(t.Context(), cs, dst) })
	if n > 0 && !raceEnabled {
		t.Errorf("%v allocations a decision", n)
	}
}

func BenchmarkTake(b *testing.B) {
	l, err := lease.New(newFake(b), lease.Options{})
	if err != nil {
		b.Fatal(err)
	}
	p := policy(b, ratelimit.Policy{
		Algorithm: ratelimit.FixedWindow, Quota: 1 << 40, Lease: ratelimit.Lease{TTL: 10 * time.Second, Size: 500_000_000},
	})
	cs := of(1, p)
	take(b, l, cs)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var room [1]ratelimit.Decision
		for pb.Next() {
			if _, err := l.Take(b.Context(), cs, room[:0]); err != nil {
				b.Error(err)
			}
		}
	})
}

// A bucket that was emptied in the store grants what it grants: what was taken out of
// it before is not spent beside that.
func TestForgottenBlocksAreNotSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, told := newFake(t), &counts{}
		l := start(t, store, lease.Options{Hooks: told.hooks()})
		p := window(t, 100, 20)
		take(t, l, of(1, p))
		if n := told.now().blocks; n != 1 {
			t.Fatalf("%d blocks are held", n)
		}
		reset := func() {
			if err := store.store.Reset(of(0, p)); err != nil {
				t.Fatal(err)
			}
			l.Forget(of(0, p))
		}
		reset()
		if n := told.now().blocks; n != 0 {
			t.Errorf("%d blocks are held after a reset", n)
		}
		admitted := int64(0)
		for ratelimit.Admitted(take(t, l, of(1, p))) {
			admitted++
		}
		if admitted != 100 {
			t.Errorf("%d are admitted after a reset, want 100", admitted)
		}

		// A block that is under way when the bucket is emptied is not spent either.
		reset()
		take(t, l, of(0, p))
		time.Sleep(2 * time.Second)
		before := told.now().stranded
		once := true
		store.during = func() {
			if once {
				once = false
				reset()
			}
		}
		admitted = 0
		for ratelimit.Admitted(take(t, l, of(1, p))) {
			admitted++
		}
		if lost := told.now().stranded - before; admitted+lost != 100 || lost == 0 {
			t.Errorf("%d are admitted and %d stranded, of 100", admitted, lost)
		}
		store.mu.Lock()
		defer store.mu.Unlock()
		for _, b := range store.returned {
			t.Errorf("%d units are returned to a bucket that was emptied", b.Units)
		}
	})
}
