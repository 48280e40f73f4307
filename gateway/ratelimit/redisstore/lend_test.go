package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/limittest"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// mustLend lends and ends the test on an error.
func mustLend(t testing.TB, s *redisstore.Store, cs []ratelimit.Charge, extra ...int64) ([]ratelimit.Decision, []ratelimit.Block) {
	t.Helper()
	ds, blocks, err := s.Lend(t.Context(), cs, extra, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(blocks) != len(cs) {
		t.Fatalf("%d blocks for %d charges", len(blocks), len(cs))
	}
	return ds, blocks
}

// leasable are the limits of everyAlgorithm that can be leased.
func leasable(t testing.TB, quota int64) (ps []*ratelimit.Policy) {
	t.Helper()
	for _, p := range everyAlgorithm(t, quota) {
		if p.Algorithm != ratelimit.LeakyBucket {
			ps = append(ps, p)
		}
	}
	return ps
}

// TestLendingIsTwoCharges: what is charged in advance counts as a charge of its
// own that asks for no more than remains. A twin of each bucket is charged so, in
// two steps, and every number of every decision is the same.
func TestLendingIsTwoCharges(t *testing.T) {
	srv := redistest.Start(t)
	minutes := ratelimit.Calendar{Unit: ratelimit.CalendarMinute, Location: time.UTC}
	for _, spec := range []ratelimit.Policy{
		{Algorithm: ratelimit.TokenBucket, Quota: 7, Window: 10 * time.Second, Burst: 15},
		{Algorithm: ratelimit.FixedWindow, Quota: 9, Window: 10 * time.Second},
		{Algorithm: ratelimit.FixedWindow, Quota: 30, Calendar: &minutes},
		{Algorithm: ratelimit.SlidingWindowLog, Quota: 9, Window: 10 * time.Second},
		{Algorithm: ratelimit.SlidingWindowCounter, Quota: 9, Window: 10 * time.Second},
	} {
		spec.Scope = "plan/lent"
		p := newPolicy(t, spec)
		t.Run(name(p), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(11, uint64(p.Algorithm)))
			clock := limittest.NewClock()
			store := virtual(t, srv, clock)
			some, none := 0, 0
			for step := range 400 {
				clock.Advance(time.Duration(rnd.Int64N(int64(3 * time.Second))))
				cost, extra := rnd.Int64N(4), rnd.Int64N(6)
				ds, blocks := mustLend(t, store, []ratelimit.Charge{in("{lent}", p, cost)}, extra)
				twin := mustTake(t, store, []ratelimit.Charge{in("{twin}", p, cost)})[0]
				want := int64(0)
				if twin.Allowed {
					want = min(extra, twin.Remaining)
				}
				if want > 0 {
					twin = mustTake(t, store, []ratelimit.Charge{in("{twin}", p, want)})[0]
				}
				twin.Source = ds[0].Source
				if ds[0] != twin || blocks[0].Units != want {
					t.Fatalf("step %d: cost %d and %d in advance: %+v and %d units; the twin has %+v and %d", step, cost, extra, ds[0], blocks[0].Units, twin, want)
				}
				if want == 0 {
					none++
					continue
				}
				some++
				windowed := p.Algorithm == ratelimit.FixedWindow || p.Algorithm == ratelimit.SlidingWindowCounter
				if lasts := blocks[0].Lasts; (lasts > 0) != windowed || lasts > p.Window {
					t.Fatalf("step %d: the window ends after %s", step, lasts)
				}
				if p.Algorithm == ratelimit.FixedWindow && blocks[0].Lasts != ds[0].Reset {
					t.Fatalf("step %d: the window ends after %s, and resets after %s", step, blocks[0].Lasts, ds[0].Reset)
				}
			}
			if some < 50 || none < 50 {
				t.Errorf("units were lent %d times and not %d times; the test shows little", some, none)
			}
		})
	}
	everyKeyExpires(t, srv.Client(t))
}

// TestADeniedRequestIsLentNothing: neither where its own bucket denies nor where
// another limit does; and one bucket that is charged twice lends nothing.
func TestADeniedRequestIsLentNothing(t *testing.T) {
	srv := redistest.Start(t)
	store := at(t, srv.Addr())
	for _, p := range leasable(t, 10) {
		other := newPolicy(t, ratelimit.Policy{Scope: "plan/few", Algorithm: ratelimit.FixedWindow, Quota: 1, Window: time.Hour})
		who := "{user:" + name(p) + "}"
		mustTake(t, store, []ratelimit.Charge{in(who, other, 1)})
		for what, cs := range map[string][]ratelimit.Charge{
			"denied itself":     {in(who, p, 11)},
			"denied by another": {in(who, p, 1), in(who, other, 1)},
			"denied before":     {in(who, other, 1), in(who, p, 0)},
			"one bucket twice":  {in(who, p, 1), in(who, p, 1)},
		} {
			extra := make([]int64, len(cs))
			for i := range cs {
				extra[i] = 5
			}
			_, blocks := mustLend(t, store, cs, extra...)
			for i := range blocks {
				if cs[i].Policy == p && blocks[i].Units != 0 {
					t.Errorf("%s, %s: %d units", name(p), what, blocks[i].Units)
				}
			}
		}
		if left := mustTake(t, store, []ratelimit.Charge{in(who, p, 0)})[0].Remaining; left != 8 {
			t.Errorf("%s: %d remain, want 10 less the two that were admitted", name(p), left)
		}
	}
}

// TestABlockComesBackOnce: what is left in it, as far as it weighs.
func TestABlockComesBackOnce(t *testing.T) {
	srv := redistest.Start(t)
	store := at(t, srv.Addr())
	for _, p := range leasable(t, 20) {
		who := []ratelimit.Charge{in("{user:"+name(p)+"}", p, 1)}
		_, blocks := mustLend(t, store, who, 9)
		if blocks[0].Units != 9 {
			t.Fatalf("%s: %d units, want 9", name(p), blocks[0].Units)
		}
		blocks[0].Units = 6 // three were spent
		if stranded, err := store.Return(t.Context(), blocks); stranded != 0 || err != nil {
			t.Errorf("%s: %d units are stranded: %v", name(p), stranded, err)
		}
		who[0].Cost = 0
		if left := mustTake(t, store, who)[0].Remaining; left != 20-1-3 {
			t.Errorf("%s: %d remain, want 16", name(p), left)
		}
	}
}

// TestReturnsAreBounded lends several blocks of a bucket, lets others charge and
// time pass, returns them in any order, and compares with a twin of the bucket
// that nothing was lent from: no return lets anybody have more than that one has.
func TestReturnsAreBounded(t *testing.T) {
	srv := redistest.Start(t)
	for _, spec := range []ratelimit.Policy{
		{Algorithm: ratelimit.TokenBucket, Quota: 7, Window: 10 * time.Second, Burst: 60},
		{Algorithm: ratelimit.FixedWindow, Quota: 60, Window: 10 * time.Second},
		{Algorithm: ratelimit.SlidingWindowLog, Quota: 60, Window: 10 * time.Second},
		{Algorithm: ratelimit.SlidingWindowCounter, Quota: 60, Window: 10 * time.Second},
	} {
		spec.Scope = "plan/lent"
		p := newPolicy(t, spec)
		t.Run(name(p), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(5, uint64(p.Algorithm)))
			clock := limittest.NewClock()
			store := virtual(t, srv, clock)
			whole := 0
			for round := range 150 {
				lent, never := fmt.Sprintf("{user:%d}", round), fmt.Sprintf("{twin:%d}", round)
				look := func(partition string) int64 {
					return mustTake(t, store, []ratelimit.Charge{in(partition, p, 0)})[0].Remaining
				}
				both := func() {
					cost := 1 + rnd.Int64N(3)
					if ratelimit.Admitted(mustTake(t, store, []ratelimit.Charge{in(lent, p, cost)})) {
						if !ratelimit.Admitted(mustTake(t, store, []ratelimit.Charge{in(never, p, cost)})) {
							t.Fatalf("round %d: the bucket that was charged less denies", round)
						}
					}
				}
				var blocks []ratelimit.Block
				both() // so that a window is the same one in both
				for range 1 + rnd.IntN(4) {
					if rnd.IntN(2) == 0 {
						clock.Advance(time.Duration(rnd.Int64N(int64(6 * time.Second))))
					}
					if rnd.IntN(2) == 0 {
						both()
						continue
					}
					_, got := mustLend(t, store, []ratelimit.Charge{in(lent, p, 0)}, 1+rnd.Int64N(8))
					blocks = append(blocks, got...)
				}
				both()
				rnd.Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
				before, most := look(lent), look(never)
				if _, err := store.Return(t.Context(), blocks); err != nil {
					t.Fatal(err)
				}
				if after := look(lent); after < before || after > most {
					t.Errorf("round %d: %d remained, after the return of %v it is %d; had nothing been lent, %d", round, before, blocks, after, most)
				} else if after == most && before < most {
					whole++
				}
				clock.Advance(100 * time.Second)
			}
			if whole < 20 {
				t.Errorf("all came back %d times; the test shows little", whole)
			}
		})
	}
}

// TestOnAClusterABlockOutlivesADenial: a slot has admitted and lent, another one
// denies. The charge is given back to the unit, and the block is kept.
func TestOnAClusterABlockOutlivesADenial(t *testing.T) {
	c := redistest.StartCluster(t, 2)
	store := onCluster(t, c, redisstore.Options{Timeout: generous})
	places := partitionsOnNodes(t, c)
	none := newPolicy(t, ratelimit.Policy{Scope: "plan/none", Algorithm: ratelimit.FixedWindow, Quota: 0, Window: time.Hour})
	for _, p := range leasable(t, 20) {
		ds, blocks := mustLend(t, store, []ratelimit.Charge{in(places[0], p, 4), in(places[1], none, 1)}, 9, 0)
		if ratelimit.Admitted(ds) || blocks[0].Units != 9 || blocks[1].Units != 0 {
			t.Fatalf("%s: %+v, %+v", name(p), ds, blocks)
		}
		if ds[0].Remaining != 20-9 {
			t.Errorf("%s: %d remain beside the block, want 11", name(p), ds[0].Remaining)
		}
		look := []ratelimit.Charge{in(places[0], p, 0)}
		if left := mustTake(t, store, look)[0].Remaining; left != 20-9 {
			t.Errorf("%s: %d remain, want 11", name(p), left)
		}
		if stranded, err := store.Return(t.Context(), blocks[:1]); stranded != 0 || err != nil {
			t.Errorf("%s: %d units are stranded: %v", name(p), stranded, err)
		}
		if left := mustTake(t, store, look)[0].Remaining; left != 20 {
			t.Errorf("%s: %d remain after the return, want 20", name(p), left)
		}
	}
}

// TestOnAClusterALateRefundLeavesTheBlock: what has drained before the charge is
// given back was the charge, and not the block that was charged above it.
func TestOnAClusterALateRefundLeavesTheBlock(t *testing.T) {
	c := redistest.StartCluster(t, 2)
	client, err := redisstore.NewClusterClient(c.Addrs(), redisstore.ClientOptions{Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	// Five seconds pass between any two calls.
	var calls atomic.Int64
	start := limittest.NewClock().Now()
	store, err := redisstore.NewVirtual(client, redisstore.Options{Timeout: generous}, func() int64 {
		return start + calls.Add(1)*5_000_000
	})
	if err != nil {
		t.Fatal(err)
	}
	closed(t, store)
	places := partitionsOnNodes(t, c)
	none := newPolicy(t, ratelimit.Policy{Scope: "plan/none", Algorithm: ratelimit.FixedWindow, Quota: 0, Window: time.Hour})
	p := newPolicy(t, ratelimit.Policy{Scope: "plan/lent", Algorithm: ratelimit.TokenBucket, Quota: 1, Window: time.Second, Burst: 100})
	// The script is known, and the bucket is empty again by the next call.
	mustTake(t, store, []ratelimit.Charge{in(places[0], p, 1)})
	calls.Add(100)
	before := calls.Load()
	if _, blocks := mustLend(t, store, []ratelimit.Charge{in(places[0], p, 4), in(places[1], none, 1)}, 50, 0); blocks[0].Units != 50 {
		t.Fatalf("%+v", blocks)
	}
	left := mustTake(t, store, []ratelimit.Charge{in(places[0], p, 0)})[0].Remaining
	// The bucket was charged by the first call or the second, a refund came after
	// both, then this look. Four units had drained before the refund in any case.
	took := calls.Load() - before
	if late, soon := 100-54+5*(took-1), 100-54+5*(took-2); left != late && left != soon {
		t.Errorf("%d remain after %d calls, want %d or %d", left, took, soon, late)
	}
}

// TestLendRefusesWhatItCannotSay: mistakes of the program, said before anything
// is sent; and replies that the script does not give.
func TestLendRefusesWhatItCannotSay(t *testing.T) {
	store := at(t, "127.0.0.1:1") // nobody is there to be asked
	cs := charges(perDay(t))
	for _, extra := range [][]int64{nil, {1, 1}, {-1}, {ratelimit.MaxLeaseSize + 1}} {
		if _, _, err := store.Lend(t.Context(), cs, extra, nil, nil); redisstore.Kind(err) != redisstore.KindOther {
			t.Errorf("%v in advance: %v", extra, err)
		}
	}
	for _, reply := range []string{
		"*6\r\n:1\r\n:9\r\n:0\r\n:0\r\n:0\r\n:0\r\n",
		"*8\r\n:1\r\n:9\r\n:0\r\n:0\r\n:0\r\n:0\r\n:6\r\n:0\r\n",
		"*8\r\n:1\r\n:9\r\n:0\r\n:0\r\n:0\r\n:0\r\n:-1\r\n:0\r\n",
		"*8\r\n:1\r\n:9\r\n:0\r\n:0\r\n:0\r\n:0\r\n:5\r\n:-1\r\n",
	} {
		_, blocks, err := at(t, startFake(t, reply)).Lend(t.Context(), cs, []int64{5}, nil, nil)
		if redisstore.Kind(err) != redisstore.KindCorrupt || len(blocks) != 1 || blocks[0].Units != 0 {
			t.Errorf("%q: %v and %v", reply, blocks, err)
		}
	}
	stranded, err := store.Return(t.Context(), []ratelimit.Block{{Policy: cs[0].Policy, Partition: "{x}", Units: 7}})
	if stranded != 7 || redisstore.Kind(err) != redisstore.KindRefused {
		t.Errorf("to nobody: %d stranded, %v", stranded, err)
	}
}
