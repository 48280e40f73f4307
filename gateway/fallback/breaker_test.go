package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway/fallback"
	"bouncer/gateway/ratelimit"
)

// longestInterval is the default probe interval at its longest.
const longestInterval = fallback.DefaultProbeInterval * 12 / 10

func TestPrimaryDecidesWhileItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, local, l := newRemote(up), newStand(), new(log)
		f := start(t, primary, local, fallback.Options{Hooks: l.hooks()})
		for _, m := range []fallback.Mode{fallback.LocalCap, fallback.Deny, fallback.Allow} {
			cs := one(t)
			ds := take(t, f.Store(m), cs)
			if len(ds) != 1 || ds[0].Policy != cs[0].Policy || ds[0].Source != ratelimit.SourceRedis || ds[0].Remaining != 77 || ds[0].Err != nil {
				t.Errorf("%s: got %+v, want the primary's own decision", m, ds)
			}
		}
		if len(local.asked) != 0 || len(l.degraded) != 0 || len(l.seen()) != 0 {
			t.Errorf("local asked %v, degraded %v, changes %v: want none of it", local.asked, l.degraded, l.seen())
		}
		if s := f.State(); s.Open || s.LastErr != nil || s.NextProbe != 0 || s.Admitted != 0 {
			t.Errorf("State = %+v, want closed and without error", s)
		}
		time.Sleep(time.Hour)
		if n := primary.probes.Load(); n != 1 {
			t.Errorf("%d probes in a quiet hour, want only the one at the start", n)
		}
	})
}

func TestFailuresInARowOpen(t *testing.T) {
	for _, apart := range []time.Duration{0, time.Second, time.Hour} {
		t.Run(apart.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				primary, l := newRemote(up), new(log)
				f := start(t, primary, newStand(), fallback.Options{Hooks: l.hooks(), Kind: func(error) string { return "refused" }})
				s := f.Store(fallback.LocalCap)
				cs := one(t)

				primary.set(down)
				for range 4 {
					take(t, s, cs)
					time.Sleep(apart)
				}
				if f.State().Open {
					t.Fatal("open after 4 failures, want 5")
				}
				primary.set(up)
				take(t, s, cs) // ends the row
				primary.set(down)
				for range 5 {
					if f.State().Open {
						t.Fatal("open before the fifth failure in a row")
					}
					time.Sleep(apart)
					take(t, s, cs)
				}
				if st := f.State(); !st.Open || !errors.Is(st.LastErr, errDown) || !st.Since.Equal(time.Now()) || st.Admitted != 9 {
					t.Fatalf("State = %+v, want open now, %v, 9 admitted", st, errDown)
				}
				asked := primary.calls.Load()
				for range 3 {
					take(t, s, cs)
				}
				if n := primary.calls.Load(); n != asked {
					t.Errorf("the primary was asked %d times while the breaker is open", n-asked)
				}
				synctest.Wait()
				if got := l.seen(); len(got) != 1 || !got[0].open || !errors.Is(got[0].err, errDown) {
					t.Errorf("changes = %+v, want one opening", got)
				}
				if n := l.failed("refused"); n != 9 {
					t.Errorf("StoreFailed called %d times, want 9", n)
				}
			})
		})
	}
}

func TestHalfOfTwentyOpens(t *testing.T) {
	check := func(t *testing.T, pattern string, apart time.Duration, wantOpenAt int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			primary := newRemote(up)
			f := start(t, primary, newStand(), fallback.Options{})
			s := f.Store(fallback.Allow)
			openAt := 0
			for i := 1; i <= 200; i++ {
				primary.set(up)
				if pattern[i%len(pattern)] == 'x' {
					primary.set(down)
				}
				take(t, s, one(t))
				if f.State().Open {
					openAt = i
					break
				}
				time.Sleep(apart)
			}
			if openAt != wantOpenAt {
				t.Errorf("%q every %v: opened at request %d, want %d (0 is never)", pattern, apart, openAt, wantOpenAt)
			}
		})
	}
	check(t, "xxxx.", 0, 20)                   // never 5 in a row
	check(t, ".x", 100*time.Millisecond, 21)   // half, at a failure, once there are 20
	check(t, "..x", 0, 0)                      // a third
	check(t, "xxxx.", 800*time.Millisecond, 0) // fewer than 20 in 10 s
	check(t, ".x", 400*time.Millisecond, 21)   // about 25 in 10 s
	check(t, "...x.....", time.Millisecond, 0) // one in nine
}

func TestOldFailuresRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := newRemote(up)
		f := start(t, primary, newStand(), fallback.Options{ConsecutiveFailures: 1000})
		s, cs := f.Store(fallback.Allow), one(t)
		primary.set(down)
		for range 19 {
			take(t, s, cs)
		}
		time.Sleep(11 * time.Second)
		take(t, s, cs)
		if f.State().Open {
			t.Fatal("19 failures of 11 s ago count")
		}
		for range 19 {
			take(t, s, cs)
		}
		if !f.State().Open {
			t.Fatal("20 failures at once do not open")
		}
	})
}

func TestFreezeCostsEachRequestInFlightOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, l := newRemote(up), new(log)
		f := start(t, primary, newStand(), fallback.Options{Hooks: l.hooks()})
		s := f.Store(fallback.Allow)
		primary.set(frozen)

		var wg sync.WaitGroup
		for range 100 {
			cs := one(t)
			wg.Go(func() {
				begin := time.Now()
				if ds, err := s.Take(t.Context(), cs, nil); err != nil || len(ds) != 0 {
					t.Errorf("Take = %v, %v", ds, err)
				}
				if took := time.Since(begin); took != 50*time.Millisecond {
					t.Errorf("took %v, want the store's own 50ms", took)
				}
			})
		}
		wg.Wait()
		before := runtime.NumGoroutine()
		for range 1000 {
			begin := time.Now()
			take(t, s, one(t))
			if took := time.Since(begin); took != 0 {
				t.Fatalf("a request after the opening took %v", took)
			}
			time.Sleep(10 * time.Millisecond) // ten seconds with probes that hang too
		}
		if n := primary.calls.Load(); n != 100 {
			t.Errorf("the primary was asked %d times, want the 100 in flight only", n)
		}
		if n := runtime.NumGoroutine(); n > before+1 { // a probe may be under way
			t.Errorf("%d goroutines, %d before", n, before)
		}
		if n := l.failed("timeout"); n < 100 {
			t.Errorf("%d timeouts reported, want 100 and the probes", n)
		}
	})
}

func TestTrafficReturnsWithinOneInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, l := newRemote(up), new(log)
		f := start(t, primary, newStand(), fallback.Options{Hooks: l.hooks()})
		s, cs := f.Store(fallback.Allow), one(t)
		for range 20 {
			primary.set(down)
			for !f.State().Open {
				take(t, s, cs)
			}
			time.Sleep(rand.N(5 * time.Second))
			if n := f.State().NextProbe; n < 0 || n > longestInterval {
				t.Fatalf("NextProbe = %v, want at most %v", n, longestInterval)
			}
			primary.set(up)
			recovered := time.Now()
			for {
				if ds := take(t, s, cs); len(ds) == 1 && ds[0].Source == ratelimit.SourceRedis {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(recovered); took > longestInterval+time.Millisecond {
				t.Fatalf("the primary is used again %v after its recovery, want %v", took, longestInterval)
			}
			if st := f.State(); st.Open || !errors.Is(st.LastErr, errDown) || st.NextProbe != 0 {
				t.Fatalf("State = %+v, want closed, with the last error kept", st)
			}
		}
		synctest.Wait()
		changes := l.seen()
		if len(changes) != 40 {
			t.Fatalf("%d changes reported, want 20 openings and 20 closings", len(changes))
		}
		for i, c := range changes {
			if c.open != (i%2 == 0) {
				t.Fatalf("change %d: open = %v, want them in turn", i, c.open)
			}
			if !errors.Is(c.err, errDown) {
				t.Errorf("change %d: err = %v", i, c.err)
			}
			if !c.open && (c.lasted <= 0 || c.lasted > 6*time.Second) {
				t.Errorf("change %d: lasted %v", i, c.lasted)
			}
		}
	})
}

func TestStartWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, l := newRemote(frozen), new(log)
		begin := time.Now()
		f := start(t, primary, newStand(), fallback.Options{Hooks: l.hooks()})
		if took := time.Since(begin); took > fallback.DefaultProbeTimeout {
			t.Errorf("Start took %v", took)
		}
		if st := f.State(); !st.Open || !errors.Is(st.LastErr, context.DeadlineExceeded) {
			t.Fatalf("State = %+v, want open when Start returns", st)
		}
		if c := l.seen(); len(c) != 1 || !c[0].open {
			t.Errorf("changes = %+v, want the opening reported when Start returns", c)
		}
		if l.failed("timeout") != 1 {
			t.Errorf("failures = %v, want the probe's", l.failures)
		}
		begin = time.Now()
		take(t, f.Store(fallback.LocalCap), one(t))
		if took := time.Since(begin); took != 0 || primary.calls.Load() != 0 {
			t.Errorf("the first request took %v and asked the primary %d times", took, primary.calls.Load())
		}
		time.Sleep(time.Minute)
		primary.set(up)
		time.Sleep(longestInterval + 50*time.Millisecond) // a probe may just be hanging
		synctest.Wait()
		if ds := take(t, f.Store(fallback.LocalCap), one(t)); ds[0].Source != ratelimit.SourceRedis {
			t.Errorf("decided by %s after the store has come", ds[0].Source)
		}
	})
}

func TestRequestsBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, l := newRemote(down), new(log)
		f, err := fallback.New(primary, newStand(), fallback.Options{Probe: primary.Probe, Hooks: l.hooks()})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for range 10 {
			take(t, f.Store(fallback.Allow), one(t))
		}
		if !f.State().Open || primary.calls.Load() != 5 {
			t.Fatalf("open = %v after %d calls, want open after 5", f.State().Open, primary.calls.Load())
		}
		primary.set(up)
		f.Start()
		time.Sleep(longestInterval)
		synctest.Wait()
		if f.State().Open {
			t.Error("still open")
		}
		if c := l.seen(); len(c) != 2 || !c[0].open || c[1].open {
			t.Errorf("changes = %+v, want an opening and a closing", c)
		}
	})
}

// A probe that never settles must not leave the breaker half-open for ever.
func TestF22BreakerStuckHalfOpen(t *testing.T) {
	probes := map[string]func(context.Context) error{
		"hangs until its context ends": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"hangs 60 s whatever its context says": func(context.Context) error {
			time.Sleep(time.Minute)
			return errDown
		},
		"panics":             func(context.Context) error { panic("nil map") },
		"is cancelled":       func(context.Context) error { return context.Canceled },
		"ends its goroutine": func(context.Context) error { runtime.Goexit(); return nil },
		"answers late": func(context.Context) error {
			time.Sleep(fallback.DefaultProbeTimeout + 10*time.Millisecond)
			return nil
		},
	}
	for name, broken := range probes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				primary := newRemote(up)
				heal := make(chan struct{})
				f := start(t, primary, newStand(), fallback.Options{Probe: func(ctx context.Context) error {
					select {
					case <-heal:
						return nil
					default:
						return broken(ctx)
					}
				}})
				if !f.State().Open {
					t.Fatal("not opened by the probe at the start")
				}
				for range 150 { // 15 s
					take(t, f.Store(fallback.Allow), one(t))
					time.Sleep(100 * time.Millisecond)
				}
				if !f.State().Open || primary.calls.Load() != 0 {
					t.Fatalf("State = %+v, %d calls: want open, and nobody to have asked", f.State(), primary.calls.Load())
				}
				close(heal)
				healed := time.Now()
				for f.State().Open {
					time.Sleep(time.Millisecond)
					if time.Since(healed) > 2*time.Second {
						t.Fatal("still open 2 s after the store has healed")
					}
				}
				// A probe that was under way when it healed may have to end first.
				most := fallback.DefaultProbeTimeout + 50*time.Millisecond + longestInterval + time.Millisecond
				if took := time.Since(healed); took > most {
					t.Errorf("closed after %v, want %v", took, most)
				}
				if ds := take(t, f.Store(fallback.Allow), one(t)); len(ds) != 1 {
					t.Error("the primary is not used")
				}
				time.Sleep(time.Minute) // those left behind return
			})
		})
	}
}

func TestProbesThatHangAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		primary := newRemote(up)
		f := start(t, primary, newStand(), fallback.Options{Probe: func(context.Context) error {
			primary.probes.Add(1)
			<-release
			return nil
		}})
		time.Sleep(time.Hour)
		if n := primary.probes.Load(); n != 64 {
			t.Errorf("%d probes hang, want 64 at most and that many", n)
		}
		close(release)
		time.Sleep(longestInterval)
		synctest.Wait()
		if f.State().Open {
			t.Error("still open after the probes have returned")
		}
	})
}

// A client that hangs up says nothing about the store.
func TestCallersWhoLeaveAreNotFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, local, l := newRemote(up), newStand(), new(log)
		f := start(t, primary, local, fallback.Options{Hooks: l.hooks()})
		s := f.Store(fallback.LocalCap)
		primary.set(frozen)
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, cancel)
			if ds, err := s.Take(ctx, one(t), nil); !errors.Is(err, context.Canceled) || len(ds) != 0 {
				t.Fatalf("Take = %v, %v; want no decision and context.Canceled", ds, err)
			}
			if _, err := s.Take(ctx, one(t), nil); !errors.Is(err, context.Canceled) {
				t.Fatalf("Take with a context that has ended: %v", err)
			}
		}
		if f.State().Open || len(l.failures) != 0 || len(local.asked) != 0 {
			t.Errorf("open %v, failures %v, local asked %d times: want none", f.State().Open, l.failures, len(local.asked))
		}
		if n := primary.calls.Load(); n != 50 {
			t.Errorf("%d calls, want 50: not for those who had left before", n)
		}
	})
}

// A store that was given its time and did not answer is away, also if no caller
// had the patience to see it: such callers would otherwise never be served.
func TestFailuresCountThoughTheCallersHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, local, l := newRemote(up), newStand(), new(log)
		f := start(t, primary, local, fallback.Options{Hooks: l.hooks()})
		s := f.Store(fallback.LocalCap)
		primary.set(func(ctx context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
			return frozen(context.WithoutCancel(ctx), cs, dst)
		})
		for range fallback.DefaultConsecutiveFailures {
			if f.State().Open {
				t.Fatal("open too early")
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, cancel)
			if ds, err := s.Take(ctx, one(t), nil); !errors.Is(err, context.Canceled) || len(ds) != 0 {
				t.Fatalf("Take = %v, %v; want no decision and context.Canceled", ds, err)
			}
		}
		if !f.State().Open {
			t.Error("still closed: nobody would be served while all callers are impatient")
		}
		if len(local.asked) != 0 {
			t.Errorf("the local cap was charged %d times for callers who had left", len(local.asked))
		}
	})
}

// One spoiled key is the trouble of the caller whose key it is. It is reported,
// and neither opens the breaker nor makes up for failures that do.
func TestAKeyFaultIsNoFailureOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spoiled := errors.New("the key holds something else")
		primary, l := newRemote(up), new(log)
		f := start(t, primary, newStand(), fallback.Options{
			Hooks:    l.hooks(),
			KeyFault: func(err error) bool { return errors.Is(err, spoiled) },
		})
		fault := func(_ context.Context, _ []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
			return dst[:0], fmt.Errorf("take: %w", spoiled)
		}
		primary.set(fault)
		for range 100 {
			if _, err := f.Store(fallback.Deny).Take(t.Context(), one(t), nil); !errors.Is(err, ratelimit.ErrUnavailable) || !errors.Is(err, spoiled) {
				t.Fatalf("deny: %v", err)
			}
			if ds, err := f.Store(fallback.Allow).Take(t.Context(), one(t), nil); err != nil || len(ds) != 0 {
				t.Fatalf("allow: %v, %v", ds, err)
			}
			ds, err := f.Store(fallback.LocalCap).Take(t.Context(), one(t), nil)
			if err != nil || len(ds) != 1 || ds[0].Source != ratelimit.SourceLocalCap || !errors.Is(ds[0].Err, spoiled) {
				t.Fatalf("local cap: %v, %v", ds, err)
			}
		}
		if f.State().Open || l.failed("other") != 300 {
			t.Fatalf("open %v, %d failures reported; want closed and 300", f.State().Open, l.failed("other"))
		}
		for range fallback.DefaultConsecutiveFailures {
			primary.set(down)
			_, _ = f.Store(fallback.Allow).Take(t.Context(), one(t), nil)
			primary.set(fault)
			_, _ = f.Store(fallback.Allow).Take(t.Context(), one(t), nil)
		}
		if !f.State().Open {
			t.Error("key faults between the failures have kept the breaker closed")
		}
	})
}

// What began before the breaker opened is no evidence about the time after it
// closed again, and no success of old closes it.
func TestStragglersDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := newRemote(up)
		f := start(t, primary, newStand(), fallback.Options{})
		s, cs := f.Store(fallback.Allow), one(t)

		var wg sync.WaitGroup
		slow := func(d time.Duration, err error) {
			primary.set(func(ctx context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
				time.Sleep(d)
				if err != nil {
					return dst[:0], err
				}
				return up(ctx, cs, dst)
			})
			wg.Go(func() { _, _ = s.Take(context.Background(), cs, nil) })
			synctest.Wait()
		}
		for range 10 {
			slow(10*time.Second, errDown)
		}
		slow(10*time.Millisecond, nil)
		slow(9*time.Second, nil)
		primary.set(down)
		for range 5 {
			take(t, s, cs)
		}
		time.Sleep(20 * time.Millisecond)
		if !f.State().Open {
			t.Fatal("a success that began before the opening closed the breaker")
		}
		primary.set(up)
		time.Sleep(longestInterval)
		synctest.Wait()
		if f.State().Open {
			t.Fatal("not recovered")
		}
		primary.set(down)
		for range 4 {
			take(t, s, cs)
		}
		wg.Wait() // ten failures and a success of ten seconds ago
		if f.State().Open {
			t.Error("failures that began before the recovery opened the breaker again")
		}
		take(t, s, cs)
		if !f.State().Open {
			t.Error("a success that began before the recovery ended a row of failures after it")
		}
	})
}

// A store that comes and goes, under many callers: no change is lost or told
// twice, and the last word is that it is back.
func TestFlappingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, l := newRemote(up), new(log)
		f := start(t, primary, newStand(), fallback.Options{Hooks: l.hooks()})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 30 {
			mode := []fallback.Mode{fallback.LocalCap, fallback.Deny, fallback.Allow}[i%3]
			cs := one(t)
			cs[0].Partition = fmt.Sprintf("{user:%d}", i)
			wg.Go(func() {
				var ds []ratelimit.Decision
				for ctx.Err() == nil {
					var err error
					ds, err = f.Store(mode).Take(context.Background(), cs, ds)
					if err != nil && (mode != fallback.Deny || !errors.Is(err, ratelimit.ErrUnavailable)) {
						t.Errorf("%s: %v", mode, err)
					}
					if len(ds) > 0 && (ds[0].Source == ratelimit.SourceLocalCap) != (ds[0].Err != nil) {
						t.Errorf("%s: %+v", mode, ds[0])
					}
					_ = f.State()
					time.Sleep(rand.N(20 * time.Millisecond))
				}
			})
		}
		behaviours := []takeFunc{up, down, frozen}
		for i := range 100 {
			primary.set(behaviours[i%3])
			time.Sleep(rand.N(2 * time.Second))
		}
		primary.set(up)
		time.Sleep(2 * time.Second)
		if f.State().Open {
			t.Error("open at the end")
		}
		stop()
		wg.Wait()
		synctest.Wait()
		changes := l.seen()
		for i, c := range changes {
			if c.open != (i%2 == 0) {
				t.Fatalf("change %d: open = %v, want them in turn", i, c.open)
			}
		}
		if n := len(changes); n < 20 || n%2 != 0 {
			t.Errorf("%d changes, want many, and as many closings as openings", n)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := newRemote(down)
		f := start(t, primary, newStand(), fallback.Options{})
		f.Start() // a second one starts nothing
		f.Close()
		f.Close()
		f.Start()
		probes := primary.probes.Load()
		time.Sleep(time.Minute)
		if n := primary.probes.Load(); n != probes {
			t.Errorf("%d probes after Close", n-probes)
		}
		take(t, f.Store(fallback.LocalCap), one(t)) // still decides

		g, err := fallback.New(primary, newStand(), fallback.Options{Probe: primary.Probe})
		if err != nil {
			t.Fatal(err)
		}
		g.Close() // never started
		g.Start()
	})
}

func TestCloseEndsAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := newRemote(frozen)
		f, err := fallback.New(primary, newStand(), fallback.Options{
			ProbeTimeout: time.Minute,
			Probe:        func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(f.Start)
		synctest.Wait()
		begin := time.Now()
		f.Close()
		if took := time.Since(begin); took != 0 {
			t.Errorf("Close took %v", took)
		}
		wg.Wait()
		if st := f.State(); st.Open {
			t.Errorf("State = %+v: a probe that Close ended is no evidence", st)
		}
	})
}

func TestCloseEndsAProbeOfAnOpenBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, l := newRemote(down), new(log)
		f := start(t, primary, newStand(), fallback.Options{Hooks: l.hooks()})
		primary.set(frozen)
		for primary.probes.Load() == 1 {
			time.Sleep(time.Millisecond)
		}
		f.Close() // the second probe hangs
		if st := f.State(); !st.Open || !errors.Is(st.LastErr, errDown) || l.failed("other") != 1 || l.failed("timeout") != 0 {
			t.Errorf("State = %+v, failures %v: a probe that Close ended is no evidence", st, l.failures)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	primary, local := newRemote(up), newStand()
	for want, o := range map[string]fallback.Options{
		"no probe":             {},
		"probe interval":       {Probe: primary.Probe, ProbeInterval: time.Millisecond},
		"probe timeout":        {Probe: primary.Probe, ProbeTimeout: -1},
		"consecutive failures": {Probe: primary.Probe, ConsecutiveFailures: -1},
		"failure ratio":        {Probe: primary.Probe, FailureRatio: 1.5},
		"min requests":         {Probe: primary.Probe, MinRequests: -3},
		"window":               {Probe: primary.Probe, Window: time.Millisecond},
	} {
		if _, err := fallback.New(primary, local, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, want an error about %s", o, err, want)
		}
	}
	for _, stores := range [][2]ratelimit.Store{{nil, local}, {primary, nil}} {
		if _, err := fallback.New(stores[0], stores[1], fallback.Options{Probe: primary.Probe}); err == nil {
			t.Error("New with a nil store: no error")
		}
	}
}
