package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/limittest"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// settleAll settles debts as they stand at now and returns what was charged.
func settleAll(t testing.TB, store *redisstore.Store, now int64, debts ...*ratelimit.Debt) (charged int64) {
	t.Helper()
	var list []ratelimit.Debt
	for _, d := range debts {
		if d.Policy != nil {
			d.Advance(now)
			list = append(list, *d)
		}
	}
	for len(list) > 0 {
		n, err := store.Settle(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list[:n] {
			charged += d.Charged
		}
		list = list[n:]
	}
	return charged
}

func peek(t testing.TB, store *redisstore.Store, partition string, p *ratelimit.Policy) ratelimit.Decision {
	t.Helper()
	return mustTake(t, store, []ratelimit.Charge{in(partition, p, 0)})[0]
}

// An uncapped is what was spent of a limit in all, whatever it grants.
type uncapped struct {
	p     *ratelimit.Policy
	parts int64 // of a bucket, at time at
	at    int64
	units []struct{ at, cost int64 }
}

func (u *uncapped) charge(now, cost int64) {
	u.parts = max(0, u.parts-(now-u.at)*u.p.Num()) + cost*u.p.Den()
	u.at = now
	u.units = append(u.units, struct{ at, cost int64 }{now, cost})
}

// counts are the units that can count at now, rounded up.
func (u *uncapped) counts(now int64) (n int64) {
	if u.p.Num() > 0 {
		return (max(0, u.parts-(now-u.at)*u.p.Num()) + u.p.Den() - 1) / u.p.Den()
	}
	spans := int64(1)
	if u.p.Algorithm == ratelimit.SlidingWindowCounter || u.p.Algorithm == ratelimit.FixedWindow && u.p.Calendar == nil {
		spans = 2 // a window that opened before the debt came in keeps it to its own end
	}
	length := u.p.Window.Microseconds()
	if u.p.Calendar != nil {
		length += length / 15 // a month has up to 31 days, and a day up to 25 hours
	}
	for _, c := range u.units {
		if c.at > now-spans*length {
			n += c.cost
		}
	}
	return n
}

// An account is one bucket in one outage: what Redis has, what it would have
// without being told of the outage, and what a store would have that had been
// there all the time.
type account struct {
	t              testing.TB
	rnd            *rand.Rand
	clock          *limittest.Clock
	store          *redisstore.Store
	p              *ratelimit.Policy
	settled, plain string // partitions
	always         ratelimit.State
	spent          uncapped
	skew           int64 // of the instances' clocks
	debts          []*ratelimit.Debt
	capped         bool // something was charged less than it cost
	touched        bool // something was spent in Redis too
}

func (a *account) fill(cost int64) {
	now := a.clock.Now()
	before := a.p.Advance(a.always, now)
	after, fits := a.p.Admit(before, now, cost)
	a.capped = a.capped || !fits
	if !fits {
		after = a.p.ChargeRejected(before, now, cost)
	}
	a.always = after
	a.spent.charge(now, cost)
}

// shared spends in Redis.
func (a *account) shared(cost int64) {
	a.t.Helper()
	admitted := ratelimit.Admitted(mustTake(a.t, a.store, []ratelimit.Charge{in(a.settled, a.p, cost)}))
	if !admitted && !a.p.CountRejected {
		return
	}
	if !ratelimit.Admitted(mustTake(a.t, a.store, []ratelimit.Charge{in(a.plain, a.p, cost)})) && admitted {
		a.t.Error("the bucket that was told nothing denies what the other admits")
	}
	a.fill(cost)
	a.touched = true
}

// alone spends on one instance while Redis is away.
func (a *account) alone(cost int64) {
	a.debts[a.rnd.IntN(len(a.debts))].Charge(a.p, a.clock.Now()+a.skew, cost)
	a.fill(cost)
}

func (a *account) wait(most time.Duration) {
	a.clock.Advance(time.Duration(a.rnd.Int64N(most.Microseconds())) * time.Microsecond)
}

// TestAnOutageIsChargedOnce: random traffic on several instances, that share a
// bucket until Redis is away, decide by themselves meanwhile, and settle when it
// is back, each at its own time and with traffic in between.
//
//   - A log and a calendar's window then are as if Redis had never been away; so is
//     a counter if nothing exceeded it, and every other bucket if only one instance
//     spent of it.
//   - Nobody has more left than if Redis had not been told; only a window that a
//     request opens may begin earlier, as it should, and so end earlier.
//   - Nobody is charged for more than was spent.
//   - A bucket is charged no less than if Redis had never been away, but for what
//     drained meanwhile in several places at once.
func TestAnOutageIsChargedOnce(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	clock := limittest.NewClock()
	store := virtual(t, srv, clock)
	seed := rand.Uint64()
	if s := os.Getenv("LIMITTEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LIMITTEST_SEED=%d repeats it", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	exact := map[string]int{}
	for round := range 900 {
		p := randomLimit(t, rnd, fmt.Sprintf("outage-%d", round), false)[0]
		a := &account{
			t: t, rnd: rnd, clock: clock, store: store, p: p, spent: uncapped{p: p},
			settled: fmt.Sprintf("{user:%d}", round), plain: fmt.Sprintf("{twin:%d}", round),
		}
		if p.Role == ratelimit.Shadow {
			continue // its debt is what a shadow allows; that is another rule
		}
		for range 1 + rnd.IntN(3) {
			a.debts = append(a.debts, &ratelimit.Debt{Partition: a.settled})
		}
		if p.Calendar == nil && p.Algorithm != ratelimit.SlidingWindowCounter {
			a.skew = (rnd.Int64N(3) - 1) * (365 * 24 * time.Hour).Microseconds()
		}
		length := p.Window / time.Duration([]int{1, 3, 20}[rnd.IntN(3)])
		began := clock.Now()
		traffic := rnd.IntN(3) > 0
		for range rnd.IntN(4) {
			if traffic {
				a.shared(1 + rnd.Int64N(3))
			}
			a.wait(length)
		}
		gone := clock.Now()
		for range 1 + rnd.IntN(8) {
			a.alone(1 + rnd.Int64N(3))
			a.wait(length)
		}
		for _, d := range a.debts {
			if traffic && rnd.IntN(3) == 0 {
				a.shared(1)
			}
			settleAll(t, store, clock.Now()+a.skew, d)
			a.wait(length / 10)
		}
		now := clock.Now()
		got, told := peek(t, store, a.settled, p), peek(t, store, a.plain, p)
		state := p.Advance(a.always, now)
		want, reset := p.Describe(state, now)
		what := fmt.Sprintf("LIMITTEST_SEED=%d, round %d: %s %d/%s, burst %d, queue %d, %d instances: remaining %d, reset %s; untold %d; never away %d, %s",
			seed, round, name(p), p.Quota, p.Window, p.Burst, p.Queue, len(a.debts), got.Remaining, got.Reset, told.Remaining, want, reset)
		within := p.Algorithm == ratelimit.FixedWindow && now-began < p.Window.Microseconds()
		if got.Remaining > told.Remaining && (within || p.Algorithm != ratelimit.FixedWindow || p.Calendar != nil) {
			t.Errorf("%s: an outage gives quota", what)
		}
		if least := p.Capacity() - a.spent.counts(now); p.Quota > 0 && got.Remaining < least {
			t.Errorf("%s: charged for more than was spent, want %d at least", what, least)
		}
		one := len(a.debts) == 1 && !a.touched && !a.capped
		same := p.Algorithm == ratelimit.SlidingWindowLog || p.Calendar != nil || one ||
			!a.capped && p.Algorithm == ratelimit.SlidingWindowCounter
		if same || within {
			exact[name(p)]++
			if got.Remaining != want || same && got.Reset != reset {
				t.Errorf("%s: want it as if Redis had never been away", what)
			}
		}
		if p.Num() > 0 {
			drained := float64(now-gone)*float64(p.Num())/float64(p.Den()) + 2
			if most := float64(want) + drained*float64(len(a.debts)); float64(got.Remaining) > most {
				t.Errorf("%s: want %.0f at most, since %.0f drained", what, most, drained)
			}
		}
		clock.Advance(3 * p.Window)
	}
	for _, algorithm := range []string{"token_bucket", "fixed_window", "calendar", "sliding_window_log", "sliding_window_counter", "leaky_bucket"} {
		if exact[algorithm] < 3 {
			t.Errorf("%s: only %d rounds could be compared exactly", algorithm, exact[algorithm])
		}
	}
	everyKeyExpires(t, look)
}

// TestSettleLeavesTheOrderOfALog: units of several instances come in one after
// another and are put at their times, before and between what is there.
func TestSettleLeavesTheOrderOfALog(t *testing.T) {
	srv := redistest.Start(t)
	clock := limittest.NewClock()
	store := virtual(t, srv, clock)
	p := newPolicy(t, ratelimit.Policy{Scope: "plan/log", Algorithm: ratelimit.SlidingWindowLog, Quota: 3000, Window: time.Hour})
	const user = "{user:priya123}"
	early, late := ratelimit.Debt{Partition: user}, ratelimit.Debt{Partition: user}
	mustTake(t, store, []ratelimit.Charge{in(user, p, 10)})
	want := []int64{}
	add := func(n int) {
		for range n {
			want = append(want, clock.Now())
		}
	}
	add(10)
	for range 30 {
		clock.Advance(time.Second)
		early.Charge(p, clock.Now(), 70)
		add(70)
		clock.Advance(time.Second)
		late.Charge(p, clock.Now(), 50)
		add(50)
	}
	clock.Advance(time.Second)
	mustTake(t, store, []ratelimit.Charge{in(user, p, 5)})
	add(5)
	settleAll(t, store, clock.Now(), &late)
	settleAll(t, store, clock.Now(), &early)
	want = want[len(want)-3000:]
	look := srv.Client(t)
	got, err := look.LRange(t.Context(), "rl.TestSettleLeavesTheOrderOfALog:v1:"+user+":"+p.Key(), 0, -1).Result()
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d units, %v; want the newest %d", len(got), err, len(want))
	}
	for i := range got {
		if got[i] != strconv.FormatInt(want[i], 10) {
			t.Fatalf("unit %d was charged at %s, want %d", i, got[i], want[i])
		}
	}
}

// TestSettleByAnotherClock: the clock of the instance is off, and the ages say
// which window is meant.
func TestSettleByAnotherClock(t *testing.T) {
	srv := redistest.Start(t)
	clock := limittest.NewClock()
	store := virtual(t, srv, clock)
	p := kolkata(t, 10)
	const user = "{user:priya123}"
	for _, c := range []struct {
		what     string
		skew     time.Duration
		midnight time.Duration // from when the instance spent to the end of the day
		later    time.Duration // from then to when it settles
		left     int64         // of 10, of which 4 were spent
	}{
		{"right", 0, time.Hour, time.Minute, 6},
		{"right, the day after", 0, time.Minute, time.Hour, 10},
		{"5s fast", 5 * time.Second, time.Hour, time.Minute, 6},
		{"5s fast, just before midnight", 5 * time.Second, 3 * time.Second, time.Second, 6},
		{"5s slow, just after midnight", -5 * time.Second, 3 * time.Second, 4 * time.Second, 10},
		{"a year fast", 365 * 24 * time.Hour, time.Hour, time.Minute, 6},
		{"a year slow", -365 * 24 * time.Hour, time.Hour, time.Minute, 6},
		{"a year slow, the day after", -365 * 24 * time.Hour, time.Minute, time.Hour, 10},
	} {
		clock.Advance(72 * time.Hour) // what the case before left is over
		clock.Advance(time.Duration(p.Calendar.Windows(clock.Now())[2]-clock.Now())*time.Microsecond - c.midnight)
		d := ratelimit.Debt{Partition: user}
		d.Charge(p, clock.Now()+c.skew.Microseconds(), 4)
		clock.Advance(c.later)
		settleAll(t, store, clock.Now()+c.skew.Microseconds(), &d)
		if got := peek(t, store, user, p); got.Remaining != c.left {
			t.Errorf("%s: remaining %d, want %d", c.what, got.Remaining, c.left)
		}
	}
}

// TestSettleKeepsAWindow: an open window is neither moved nor made longer, also
// if it opened after the debt; without one, that of the debt opens.
func TestSettleKeepsAWindow(t *testing.T) {
	srv := redistest.Start(t)
	clock := limittest.NewClock()
	store := virtual(t, srv, clock)
	p := newPolicy(t, ratelimit.Policy{Scope: "plan/hourly", Algorithm: ratelimit.FixedWindow, Quota: 10, Window: time.Hour})
	for _, c := range []struct {
		what          string
		before, after time.Duration // Redis was asked so long before the debt began, or after; 0: not
		later         time.Duration // until it is settled
		remaining     int64
		reset         time.Duration
		reported      int64
	}{
		{what: "none open", later: time.Minute, remaining: 6, reset: 59 * time.Minute, reported: 4},
		{what: "an older one", before: 30 * time.Minute, later: time.Minute, remaining: 5, reset: 29 * time.Minute, reported: 4},
		{what: "a newer one", after: 30 * time.Minute, later: 31 * time.Minute, remaining: 5, reset: 59 * time.Minute, reported: 4},
		{what: "the debt is over", later: time.Hour, remaining: 10},
		{what: "the older one is over", before: 30 * time.Minute, later: 45 * time.Minute, remaining: 6, reset: 15 * time.Minute, reported: 4},
	} {
		t.Run(c.what, func(t *testing.T) {
			d := ratelimit.Debt{Partition: "{user:" + strconv.Itoa(int(clock.Now())) + "}"}
			if c.before > 0 {
				mustTake(t, store, []ratelimit.Charge{in(d.Partition, p, 1)})
				clock.Advance(c.before)
			}
			d.Charge(p, clock.Now(), 4)
			if c.after > 0 {
				clock.Advance(c.after)
				mustTake(t, store, []ratelimit.Charge{in(d.Partition, p, 1)})
			}
			clock.Advance(c.later - c.after)
			reported := settleAll(t, store, clock.Now(), &d)
			got := peek(t, store, d.Partition, p)
			if got.Remaining != c.remaining || got.Reset != c.reset || reported != c.reported {
				t.Errorf("remaining %d, reset %s, %d reported; want %d, %s, %d", got.Remaining, got.Reset, reported, c.remaining, c.reset, c.reported)
			}
			clock.Advance(2 * time.Hour)
		})
	}
}

// TestSettleManyAtOnce: a call takes some, the next the rest, on a cluster only
// what lives in one slot; what we did not write is left alone and stops nobody.
func TestSettleManyAtOnce(t *testing.T) {
	debts := func(p *ratelimit.Policy) (ds []ratelimit.Debt) {
		for i := range 150 {
			d := ratelimit.Debt{Partition: fmt.Sprintf("{user:%d}", i)}
			d.Charge(p, time.Now().UnixMicro(), 3)
			d.Advance(time.Now().UnixMicro())
			ds = append(ds, d)
		}
		return ds
	}
	settle := func(t *testing.T, store *redisstore.Store, ds []ratelimit.Debt) (calls int) {
		for left := ds; len(left) > 0; calls++ {
			n, err := store.Settle(t.Context(), left)
			if err != nil || n < 1 {
				t.Fatalf("settled %d: %v", n, err)
			}
			left = left[n:]
		}
		return calls
	}
	t.Run("one server", func(t *testing.T) {
		srv := redistest.Start(t)
		look := srv.Client(t)
		store := at(t, srv.Addr())
		p := perDay(t)
		ds := debts(p)
		look.Set(t.Context(), "rl:v1:{user:7}:"+p.Key(), "hello", 0)
		if calls := settle(t, store, ds); calls != 3 {
			t.Errorf("%d calls for 150 debts, want 3", calls)
		}
		for i := range ds {
			want := int64(3)
			if i == 7 {
				want = 0
			} else if left := peek(t, store, ds[i].Partition, p).Remaining; left != 97 {
				t.Errorf("%s has %d left, want 97", ds[i].Partition, left)
			}
			if ds[i].Charged != want {
				t.Errorf("%s: %d charged, want %d", ds[i].Partition, ds[i].Charged, want)
			}
		}
		if got := look.Get(t.Context(), "rl:v1:{user:7}:"+p.Key()).Val(); got != "hello" {
			t.Errorf("a foreign value became %q", got)
		}
		// The same bucket twice is two calls.
		if n, err := store.Settle(t.Context(), []ratelimit.Debt{ds[0], ds[0]}); n != 1 || err != nil {
			t.Errorf("settled %d, %v", n, err)
		}
	})
	t.Run("a cluster", func(t *testing.T) {
		c := redistest.StartCluster(t, 3)
		store := onCluster(t, c, redisstore.Options{Timeout: generous})
		p := perDay(t)
		ds := debts(p)
		settle(t, store, ds)
		for i := range ds {
			if left := peek(t, store, ds[i].Partition, p).Remaining; left != 97 {
				t.Errorf("%s has %d left, want 97", ds[i].Partition, left)
			}
		}
	})
}

// TestSettleIsRefusedWhole: a server that takes no writes has charged nothing,
// and the error says so.
func TestSettleIsRefusedWhole(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	var ds []ratelimit.Debt
	now := time.Now().UnixMicro()
	for _, p := range everyAlgorithm(t, 100) {
		d := ratelimit.Debt{Partition: "{user:priya123}"}
		d.Charge(p, now, 3)
		ds = append(ds, d)
	}
	refused := func(kind string) {
		t.Helper()
		n, err := store.Settle(t.Context(), ds)
		if n != len(ds) || redisstore.Kind(err) != kind || redisstore.Ambiguous(err) {
			t.Errorf("settled %d: kind %q, ambiguous %t: %v; want %q", n, redisstore.Kind(err), redisstore.Ambiguous(err), err, kind)
		}
		if n := look.DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("%s: %d keys were written", kind, n)
		}
	}
	set := func(name, value string) {
		t.Helper()
		if err := look.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("maxmemory", "1kb")
	refused(redisstore.KindOOM)
	set("maxmemory", "0")
	look.ReplicaOf(t.Context(), "127.0.0.1", "1")
	refused(redisstore.KindReadOnly)
	look.ReplicaOf(t.Context(), "no", "one")
	if n, err := store.Settle(t.Context(), ds); n != len(ds) || err != nil {
		t.Fatalf("settled %d: %v", n, err)
	}
	for i := range ds {
		if left := peek(t, store, ds[i].Partition, ds[i].Policy).Remaining; left != 97 || ds[i].Charged != 3 {
			t.Errorf("%s: %d left of 100, %d charged; want 97 and 3", name(ds[i].Policy), left, ds[i].Charged)
		}
	}
	everyKeyExpires(t, look)
}
