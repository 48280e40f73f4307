package denycache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/denycache"
	"bouncer/gateway/ratelimit/memory"
)

// A redis stands in for Redis: it decides as Redis does, takes its time, and
// counts how often it is asked.
type redis struct {
	memory     *memory.Store
	asked      atomic.Int64
	to, from   time.Duration // how long a question and its answer travel
	deciding   func()        // called between the two, if set
	fails      error
	admitsAll  bool // as a route does that is open while the store is away
	saysSource ratelimit.Source
}

func newRedis(t testing.TB) *redis {
	t.Helper()
	m, err := memory.New(memory.Options{Source: ratelimit.SourceRedis})
	if err != nil {
		t.Fatal(err)
	}
	return &redis{memory: m}
}

func (r *redis) Take(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	r.asked.Add(1)
	if r.fails != nil {
		return dst[:0], r.fails
	}
	if r.admitsAll {
		return dst[:0], nil
	}
	time.Sleep(r.to)
	ds, err := r.memory.Take(ctx, charges, dst)
	if r.deciding != nil {
		r.deciding()
	}
	time.Sleep(r.from)
	if r.saysSource != "" {
		for i := range ds {
			ds[i].Source = r.saysSource
		}
	}
	return ds, err
}

func newCache(t testing.TB, o denycache.Options) *denycache.Cache {
	t.Helper()
	c, err := denycache.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func policy(t interface{ Fatal(...any) }, spec ratelimit.Policy) *ratelimit.Policy {
	if spec.Name == "" {
		spec.Name = "n"
	}
	if spec.Scope == "" {
		spec.Scope = "plan/" + spec.Name
	}
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func bucket(t testing.TB, name string, quota int64, window time.Duration, burst int64) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{Name: name, Algorithm: ratelimit.TokenBucket, Quota: quota, Window: window, Burst: burst})
}

func window(t testing.TB, name string, quota int64, window time.Duration) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{Name: name, Algorithm: ratelimit.FixedWindow, Quota: quota, Window: window})
}

const priya = "{user:priya123}"

func list(cost int64, ps ...*ratelimit.Policy) (cs []ratelimit.Charge) {
	for _, p := range ps {
		cs = append(cs, ratelimit.Charge{Policy: p, Partition: priya, Caller: priya, Cost: cost})
	}
	return cs
}

// A try is a test's view of one cache over one redis.
type try struct {
	t     testing.TB
	redis *redis
	cache *denycache.Cache
	store ratelimit.Store
}

func newTry(t testing.TB) *try {
	t.Helper()
	r, c := newRedis(t), newCache(t, denycache.Options{})
	return &try{t, r, c, c.Over(r)}
}

func (y *try) take(cs []ratelimit.Charge) []ratelimit.Decision {
	y.t.Helper()
	ds, err := y.store.Take(y.t.Context(), cs, nil)
	if err != nil {
		y.t.Fatal(err)
	}
	return ds
}

// spend admits cs until it is denied, which it returns.
func (y *try) spend(cs []ratelimit.Charge) []ratelimit.Decision {
	y.t.Helper()
	for range 10_000 {
		if ds := y.take(cs); !ratelimit.Admitted(ds) {
			return ds
		}
	}
	y.t.Fatal("never denied")
	return nil
}

// asks wants f to ask redis n times.
func (y *try) asks(n int64, what string, f func()) {
	y.t.Helper()
	before := y.redis.asked.Load()
	f()
	if got := y.redis.asked.Load() - before; got != n {
		y.t.Errorf("%s: redis was asked %d times, want %d", what, got, n)
	}
}

func TestWhoIsDeniedUntilThenIsDeniedUntilThenWithoutAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTry(t)
		cs := list(1, bucket(t, "per-minute", 100, time.Minute, 20), window(t, "per-day", 20, 24*time.Hour))
		first := y.spend(cs)
		wait, _ := ratelimit.RetryAfter(first)
		y.asks(0, "2,000 requests of a denied caller", func() {
			for range 2000 {
				ds := y.take(cs)
				if ratelimit.Admitted(ds) || ds[0].Source != ratelimit.SourceDenyCache || ds[1].Source != ratelimit.SourceDenyCache {
					t.Fatalf("got %+v", ds)
				}
			}
		})
		if h := y.cache.Stats().Hits; h != 2000 {
			t.Errorf("%d hits", h)
		}
		time.Sleep(600 * time.Millisecond) // per-minute allows again, and is still the same list
		y.take(cs)
		time.Sleep(wait - 600*time.Millisecond - time.Microsecond)
		y.asks(0, "a microsecond too soon", func() {
			ds := y.take(cs)
			if left, _ := ratelimit.RetryAfter(ds); left != time.Microsecond || ds[0].Remaining != 20 || ds[0].Reset != 0 || ds[1].Reset != time.Microsecond {
				t.Errorf("got %+v", ds)
			}
		})
		time.Sleep(time.Microsecond)
		y.asks(1, "when told", func() {
			if ds := y.take(cs); !ratelimit.Admitted(ds) || ds[0].Source != ratelimit.SourceRedis {
				t.Errorf("got %+v", ds)
			}
		})
	})
}

// Over any list, any history and any times, the cache answers what the store
// would have answered, to the microsecond, as long as nobody else charges it.
func TestTheCacheAnswersWhatTheStoreWould(t *testing.T) {
	var hits uint64
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, func(t *testing.T) {
			y, twin := newTry(t), newRedis(t)
			cs := drawList(rt)
			for range rapid.IntRange(1, 60).Draw(rt, "requests") {
				cost := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, 4)).Draw(rt, "cost")
				for i := range cs {
					cs[i].Cost = cost
				}
				got := y.take(cs)
				want, err := twin.Take(t.Context(), cs, nil)
				if err != nil {
					rt.Fatal(err)
				}
				for i := range want {
					g := got[i]
					g.Source = want[i].Source
					if g != want[i] {
						rt.Fatalf("limit %d, from %s:\ngot  %+v\nwant %+v", i, got[i].Source, g, want[i])
					}
				}
				time.Sleep(drawGap(rt, want))
			}
			hits += y.cache.Stats().Hits
		})
	})
	if hits == 0 {
		t.Error("the cache never answered")
	}
}

// inBubble runs f in a bubble of its own and lets rapid have its panics.
func inBubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	var panicked any
	synctest.Test(t, func(t *testing.T) {
		defer func() { panicked = recover() }()
		f(t)
	})
	if panicked != nil {
		panic(panicked)
	}
}

func drawList(t *rapid.T) (cs []ratelimit.Charge) {
	for i := range rapid.IntRange(1, 3).Draw(t, "limits") {
		spec := ratelimit.Policy{
			Name:      fmt.Sprintf("n%d", i),
			Algorithm: rapid.SampledFrom([]ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.FixedWindow, ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.LeakyBucket}).Draw(t, "algorithm"),
			Quota:     rapid.Int64Range(0, 12).Draw(t, "quota"),
			Window:    time.Duration(rapid.Int64Range(1, 90).Draw(t, "window")) * time.Second,
		}
		switch spec.Algorithm {
		case ratelimit.TokenBucket:
			spec.Burst = rapid.Int64Range(1, 9).Draw(t, "burst")
		case ratelimit.LeakyBucket:
			spec.Queue = rapid.Int64Range(0, 5).Draw(t, "queue")
		case ratelimit.FixedWindow:
			if rapid.IntRange(0, 2).Draw(t, "calendar") == 0 {
				spec.Calendar, spec.Window = &ratelimit.Calendar{Unit: ratelimit.CalendarMinute, Location: time.UTC}, 0
			}
		}
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0, 1:
			spec.Role = ratelimit.Shadow
		case 2:
			spec.CountRejected = true
		}
		cs = append(cs, list(1, policy(t, spec))...)
		if rapid.IntRange(0, 9).Draw(t, "twice") == 0 {
			cs = append(cs, cs[len(cs)-1])
		}
	}
	return cs
}

func drawGap(t *rapid.T, ds []ratelimit.Decision) time.Duration {
	d := rapid.SampledFrom(ds).Draw(t, "about")
	around := max(0, d.Reset, d.RetryAfter).Microseconds()
	return time.Microsecond * time.Duration(rapid.OneOf(
		rapid.Int64Range(0, 2),
		rapid.Int64Range(max(0, around-1), around+1),
		rapid.Int64Range(0, 2_000_000),
		rapid.Int64Range(0, 20_000_000),
	).Draw(t, "gap"))
}

// Whoever else charges the same limits, with whatever lists, nobody is denied by
// the cache whom the store would have admitted.
func TestTheCacheDeniesNobodyWhomTheStoreWouldAdmit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, func(t *testing.T) {
			y := newTry(t)
			all := drawList(rt)
			for i := range all {
				all[i].Partition = rapid.SampledFrom([]string{priya, "{global}", "{tenant:acme}"}).Draw(rt, "partition")
			}
			for range rapid.IntRange(1, 60).Draw(rt, "requests") {
				from := rapid.IntRange(0, len(all)-1).Draw(rt, "from")
				cs := append([]ratelimit.Charge(nil), all[from:]...)
				cost := rapid.Int64Range(1, 3).Draw(rt, "cost")
				for i := range cs {
					cs[i].Cost = cost
				}
				last := y.take(cs)
				if last[0].Source == ratelimit.SourceDenyCache {
					if ds, _ := y.redis.Take(t.Context(), cs, nil); ratelimit.Admitted(ds) {
						rt.Fatalf("denied by the cache: %+v, admitted by the store: %+v", last, ds)
					}
				}
				time.Sleep(drawGap(rt, last))
			}
		})
	})
}

// An answer travels. Whoever waits as told is admitted, whatever told it, and
// the cache denies nobody for longer than the first answer said.
func TestWaitingAsToldIsEnoughWhenAnswersTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, slow := range []struct{ to, from time.Duration }{{40 * time.Millisecond, 0}, {0, 40 * time.Millisecond}, {7 * time.Millisecond, 3 * time.Millisecond}} {
			y := newTry(t)
			y.redis.to, y.redis.from = slow.to, slow.from
			cs := list(5, bucket(t, "per-minute", 60, time.Minute, 5))
			first := y.spend(cs)
			answered := time.Now()
			until := answered.Add(first[0].RetryAfter)
			for range 40 {
				time.Sleep(111 * time.Millisecond)
				if ds := y.take(cs); time.Now().Add(ds[0].RetryAfter) != until || ds[0].Source != ratelimit.SourceDenyCache {
					t.Fatalf("%+v: told another moment after %s: %+v", slow, time.Since(answered), ds)
				}
			}
			y.redis.to, y.redis.from = 0, 0 // it comes sooner to the store than its first question did
			time.Sleep(time.Until(until))
			if ds := y.take(cs); !ratelimit.Admitted(ds) {
				t.Errorf("%+v: waited as told and was denied: %+v", slow, ds)
			}
		}
	})
}

func TestTheDenialEndsByTheTimeBeforeTheStoreWasAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTry(t)
		cs := list(1, window(t, "n", 1, time.Minute))
		y.take(cs)
		y.redis.to = 40 * time.Millisecond
		asked := time.Now()
		wait := y.take(cs)[0].RetryAfter
		y.redis.to = 0
		time.Sleep(wait - time.Since(asked))
		y.asks(1, "when it is over, seen from the question", func() { y.take(cs) })
	})
}

func TestACostAndMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTry(t)
		p := bucket(t, "n", 60, time.Minute, 20) // one a second
		y.take(list(17, p))                      // 3 are left
		if ds := y.take(list(5, p)); ds[0].RetryAfter != 2*time.Second {
			t.Fatalf("got %+v", ds)
		}
		y.asks(0, "the same and more", func() {
			for cost, want := range map[int64]time.Duration{5: 2 * time.Second, 6: 3 * time.Second, 20: 17 * time.Second, 21: ratelimit.Never} {
				if ds := y.take(list(cost, p)); ds[0].Allowed || ds[0].RetryAfter != want || ds[0].Remaining != 3 || ds[0].Source != ratelimit.SourceDenyCache {
					t.Errorf("cost %d: got %+v", cost, ds)
				}
			}
		})
		y.asks(1, "less, which is denied", func() {
			if ds := y.take(list(4, p)); ds[0].Allowed || ds[0].RetryAfter != time.Second {
				t.Errorf("got %+v", ds)
			}
		})
		y.asks(0, "what is denied now includes it", func() { y.take(list(4, p)) })
		y.asks(1, "less, which is admitted", func() {
			if ds := y.take(list(3, p)); !ds[0].Allowed {
				t.Errorf("got %+v", ds)
			}
		})
		y.asks(1, "the fields have changed by that", func() {
			if ds := y.take(list(4, p)); ds[0].Remaining != 0 || ds[0].RetryAfter != 4*time.Second {
				t.Errorf("got %+v", ds)
			}
		})
	})
}

// How long a log denies one cost does not tell how long it denies another.
func TestACostWhoseWaitIsNotKnownIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTry(t)
		p := policy(t, ratelimit.Policy{Algorithm: ratelimit.SlidingWindowLog, Quota: 5, Window: time.Minute})
		y.spend(list(1, p))
		y.asks(1, "the other cost, once", func() { y.take(list(3, p)); y.take(list(3, p)) })
		y.asks(0, "more than it ever grants, by arithmetic", func() { y.take(list(6, p)) })
	})
}

func TestWhatIsNotRemembered(t *testing.T) {
	counts := ratelimit.Policy{Algorithm: ratelimit.FixedWindow, Quota: 1, Window: time.Minute, CountRejected: true}
	live := ratelimit.Policy{Name: "live", Algorithm: ratelimit.FixedWindow, Quota: 1, Window: time.Minute}
	trial := live
	trial.Role = ratelimit.Candidate
	for _, c := range []struct {
		what   string
		charge []ratelimit.Charge
		set    func(*redis)
	}{
		{"a limit that counts rejected attempts", list(1, policy(t, live), policy(t, counts)), nil},
		{"a candidate", list(1, policy(t, live), policy(t, trial)), nil},
		{"a denial by a local cap", list(1, policy(t, live)), func(r *redis) { r.saysSource = ratelimit.SourceLocalCap }},
		{"a denial by a lease", list(1, policy(t, live)), func(r *redis) { r.saysSource = ratelimit.SourceLease }},
		{"no decision", list(1, policy(t, live)), func(r *redis) { r.admitsAll = true }},
	} {
		synctest.Test(t, func(t *testing.T) {
			y := newTry(t)
			if c.set != nil {
				c.set(y.redis)
			}
			y.asks(5, c.what, func() {
				for range 5 {
					y.take(c.charge)
				}
			})
			if n := y.cache.Stats().Entries; n != 0 {
				t.Errorf("%s: %d entries", c.what, n)
			}
		})
	}
}

func TestErrorsAreNotRememberedAndPassThrough(t *testing.T) {
	y := newTry(t)
	y.redis.fails = errors.New("away")
	cs := list(1, window(t, "n", 1, time.Minute))
	y.asks(3, "errors", func() {
		for range 3 {
			if _, err := y.store.Take(t.Context(), cs, nil); !errors.Is(err, y.redis.fails) {
				t.Errorf("got %v", err)
			}
		}
	})
	y.redis.fails = nil
	y.spend(cs)
	if _, err := y.store.Take(t.Context(), []ratelimit.Charge{{Cost: 1}}, nil); err == nil {
		t.Error("a charge without a policy: no error from the store behind")
	}
}

// While Redis is away: what it denied stays denied, and only that.
func TestADenialHoldsWhileTheStoreIsAway(t *testing.T) {
	y := newTry(t)
	cs, other := list(1, window(t, "n", 1, time.Minute)), list(1, window(t, "m", 1, time.Minute))
	y.spend(cs)
	y.redis.fails = errors.New("away")
	if ds := y.take(cs); ratelimit.Admitted(ds) {
		t.Errorf("got %+v", ds)
	}
	if _, err := y.store.Take(t.Context(), other, nil); err == nil {
		t.Error("nobody said anything of the other one")
	}
}

// A peek wants to know how things stand, and tells nobody that they have changed.
func TestAPeekIsAnsweredByTheStore(t *testing.T) {
	y := newTry(t)
	p := window(t, "n", 1, time.Minute)
	y.spend(list(1, p))
	y.asks(1, "a peek", func() { y.take(list(0, p)) })
	y.asks(0, "the denial stands", func() { y.take(list(1, p)) })
}

func TestAShadowIsToldUntilItsVerdictChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTry(t)
		shadow := policy(t, ratelimit.Policy{Name: "shadow", Algorithm: ratelimit.FixedWindow, Quota: 1, Window: time.Second, Role: ratelimit.Shadow})
		cs := list(1, window(t, "n", 1, time.Minute), shadow)
		y.spend(cs)
		y.asks(0, "the shadow would deny", func() {
			if ds := y.take(cs); ds[1].Allowed {
				t.Errorf("got %+v", ds)
			}
		})
		time.Sleep(time.Second)
		y.asks(1, "the shadow would allow", func() {
			if ds := y.take(cs); !ds[1].Allowed {
				t.Errorf("got %+v", ds)
			}
		})
		y.asks(0, "and so on", func() { y.take(cs) })
	})
}

// What can never be paid is denied by arithmetic; the rest of what is said about
// it is looked at again every second.
func TestADenialThatNoWaitLiftsIsHeldForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTry(t)
		cs := list(5, window(t, "n", 4, time.Minute))
		y.take(cs)
		y.asks(0, "within a second", func() { y.take(cs); time.Sleep(time.Second - time.Microsecond); y.take(cs) })
		time.Sleep(time.Microsecond)
		y.asks(1, "after it", func() { y.take(cs) })
	})
}

func TestAPolicyThatIsMadeAnewStartsAnew(t *testing.T) {
	y := newTry(t)
	cs := list(1, window(t, "n", 1, time.Minute))
	y.spend(cs)
	cs[0].Policy = window(t, "n", 2, time.Minute)
	if ds := y.take(cs); !ratelimit.Admitted(ds) {
		t.Errorf("the plan was raised: %+v", ds)
	}
}

func hash(c ratelimit.Charge) uint64 { return ratelimit.BucketHash(c.Partition, c.Policy) }

func TestWhatIsFreedIsAskedForAgain(t *testing.T) {
	for what, free := range map[string]func(*try, []ratelimit.Charge){
		"one bucket": func(y *try, cs []ratelimit.Charge) { y.cache.Free([]uint64{hash(cs[1])}) },
		"many": func(y *try, cs []ratelimit.Charge) {
			y.cache.Free([]uint64{1, 2, hash(cs[1]), 3})
		},
		"all": func(y *try, _ []ratelimit.Charge) { y.cache.Clear() },
	} {
		y := newTry(t)
		cs := list(1, window(t, "wide", 100, time.Minute), window(t, "narrow", 1, time.Minute))
		others := list(1, window(t, "other", 1, time.Minute))
		y.spend(cs)
		y.spend(others)
		y.asks(0, what+": before", func() { y.take(cs); y.take(others) })
		free(y, cs)
		y.asks(1, what+": the list", func() { y.take(cs) })
		y.asks(0, what+": it is held again", func() { y.take(cs) })
		kept := int64(0)
		if what == "all" {
			kept = 1
		}
		y.asks(kept, what+": the other list", func() { y.take(others) })
	}
}

// A store of several nodes charges what allows and gives it back for each denied
// request. That changes nobody's verdict.
func TestWhatAllowedAnywayFreesNothing(t *testing.T) {
	y := newTry(t)
	cs := list(1, window(t, "wide", 100, time.Minute), window(t, "narrow", 1, time.Minute))
	y.redis.deciding = func() { y.cache.Free([]uint64{hash(cs[0])}) }
	y.spend(cs)
	y.asks(0, "the list", func() { y.take(cs) })
}

// The answer was true when it was given. It comes after the word that it is not
// true any more.
func TestAnAnswerFromBeforeWhatWasFreedIsNotRemembered(t *testing.T) {
	for what, free := range map[string]func(*denycache.Cache, uint64){
		"free":  func(c *denycache.Cache, b uint64) { c.Free([]uint64{b}) },
		"clear": func(c *denycache.Cache, _ uint64) { c.Clear() },
	} {
		y := newTry(t)
		cs := list(1, window(t, "n", 1, time.Minute))
		y.take(cs)
		y.redis.deciding = func() { free(y.cache, hash(cs[0])) }
		y.take(cs)
		y.redis.deciding = nil
		y.asks(1, what, func() { y.take(cs) })
	}
}

// An older answer that comes late does not replace a newer one.
func TestTheLaterQuestionIsTheOneThatIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTry(t)
		p := bucket(t, "n", 60, time.Minute, 20)
		y.take(list(17, p))
		late := make(chan struct{})
		y.redis.deciding = func() { <-late }
		var done sync.WaitGroup
		done.Go(func() { y.take(list(5, p)) }) // 3 of 5
		synctest.Wait()
		y.redis.deciding = nil
		time.Sleep(time.Second)
		y.take(list(2, p))
		y.take(list(4, p)) // 2 of 4: the newer one
		close(late)
		done.Wait()
		y.asks(0, "the newer one", func() {
			if ds := y.take(list(4, p)); ds[0].Remaining != 2 {
				t.Errorf("got %+v", ds)
			}
		})
	})
}

func TestStoresOfOneCacheShareWhatTheyKnow(t *testing.T) {
	y := newTry(t)
	cs := list(1, window(t, "n", 1, time.Minute))
	y.spend(cs)
	other := y.cache.Over(y.redis)
	y.asks(0, "the other store", func() {
		if ds, err := other.Take(t.Context(), cs, nil); err != nil || ratelimit.Admitted(ds) {
			t.Errorf("got %+v, %v", ds, err)
		}
	})
}

// Millions of callers make it hold no more, and what they are called is not held
// at all.
func TestACrowdOfDeniedCallersIsBounded(t *testing.T) {
	const most, crowd = 1000, 20_000
	p := policy(t, ratelimit.Policy{Algorithm: ratelimit.FixedWindow, Quota: 1, Window: time.Hour})
	denies := denier{until: time.Hour}
	c := newCache(t, denycache.Options{MaxEntries: most})
	store := c.Over(denies)
	name := make([]byte, 4096)
	var dst [1]ratelimit.Decision
	ask := func(n int) {
		copy(name, fmt.Sprintf("{user:%d", n))
		cs := []ratelimit.Charge{{Policy: p, Partition: string(name), Cost: 1}}
		if _, err := store.Take(t.Context(), cs, dst[:0]); err != nil {
			t.Fatal(err)
		}
	}
	for n := range crowd {
		ask(n)
	}
	s := c.Stats()
	if s.Entries > most || s.Entries < most*9/10 || s.Evictions != uint64(crowd-s.Entries) {
		t.Errorf("%+v of %d callers, at most %d", s, crowd, most)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 32<<20 { // 80 MB of names went by
		t.Errorf("%d bytes are held", m.HeapAlloc)
	}
	ask(crowd - 1)
	if c.Stats().Hits != 1 {
		t.Error("the last one is not held")
	}
	c.Clear()
	if s := c.Stats(); s.Entries != 0 {
		t.Errorf("%+v after Clear", s)
	}
}

// A denier denies everybody.
type denier struct{ until time.Duration }

func (d denier) Take(_ context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	dst = dst[:0]
	for i := range charges {
		dst = append(dst, ratelimit.Decision{Policy: charges[i].Policy, Reset: d.until, RetryAfter: d.until, Source: ratelimit.SourceRedis})
	}
	return dst, nil
}

// Who was not asked for longest makes room.
func TestTheOneNotAskedForLongestMakesRoom(t *testing.T) {
	c := newCache(t, denycache.Options{MaxEntries: 2})
	store := c.Over(denier{time.Hour})
	p := window(t, "n", 1, time.Hour)
	ask := func(user string) {
		cs := []ratelimit.Charge{{Policy: p, Partition: "{user:" + user + "}", Cost: 1}}
		if _, err := store.Take(t.Context(), cs, nil); err != nil {
			t.Fatal(err)
		}
	}
	ask("a")
	ask("b")
	ask("a") // a hit
	ask("c") // pushes b out
	ask("a")
	if s := c.Stats(); s.Hits != 2 || s.Evictions != 1 || s.Entries != 2 {
		t.Errorf("%+v", s)
	}
}

// Everything at once, for the race detector; and whoever is freed last is asked
// for once everybody is done.
func TestManyAtOnce(t *testing.T) {
	y := newTry(t)
	p := window(t, "n", 1, time.Hour)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 500 {
				cs := []ratelimit.Charge{{Policy: p, Partition: fmt.Sprintf("{user:%d}", i%20), Cost: 1 + int64(g%2)}}
				if _, err := y.store.Take(t.Context(), cs, nil); err != nil {
					t.Error(err)
				}
				switch {
				case i%50 == g:
					y.cache.Free([]uint64{hash(cs[0])})
				case i == 250+g:
					y.cache.Clear()
				}
			}
		})
	}
	all.Wait()
	y.cache.Clear()
	if s := y.cache.Stats(); s.Entries != 0 {
		t.Errorf("%+v once all is cleared", s)
	}
	y.asks(20, "all are asked for", func() {
		for i := range 20 {
			y.take([]ratelimit.Charge{{Policy: p, Partition: fmt.Sprintf("{user:%d}", i), Cost: 1}})
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	if _, err := denycache.New(denycache.Options{MaxEntries: -1}); err == nil {
		t.Error("no error")
	}
}

func TestAHitAllocatesNothing(t *testing.T) {
	y := newTry(t)
	cs := list(1, bucket(t, "per-minute", 100, time.Minute, 20), window(t, "per-day", 1, 24*time.Hour))
	y.spend(cs)
	var room [4]ratelimit.Decision
	if n := testing.AllocsPerRun(200, func() {
		if ds, err := y.store.Take(t.Context(), cs, room[:0]); err != nil || ds[0].Source != ratelimit.SourceDenyCache {
			t.Fatal(ds, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a hit", n)
	}
}

func TestAnAdmittedRequestAllocatesNothingMore(t *testing.T) {
	c := newCache(t, denycache.Options{})
	store := c.Over(admitter{})
	p := window(t, "n", 1, time.Hour)
	if _, err := c.Over(denier{time.Hour}).Take(t.Context(), list(1, p), nil); err != nil { // somebody is denied
		t.Fatal(err)
	}
	cs := []ratelimit.Charge{{Policy: p, Partition: "{user:other}", Cost: 1}}
	var room [4]ratelimit.Decision
	if n := testing.AllocsPerRun(200, func() {
		if ds, err := store.Take(t.Context(), cs, room[:0]); err != nil || !ratelimit.Admitted(ds) {
			t.Fatal(ds, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

type admitter struct{}

func (admitter) Take(_ context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	dst = dst[:0]
	for i := range charges {
		dst = append(dst, ratelimit.Decision{Policy: charges[i].Policy, Allowed: true, Source: ratelimit.SourceRedis})
	}
	return dst, nil
}
