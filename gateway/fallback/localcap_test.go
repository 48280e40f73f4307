package fallback_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bouncer/gateway/fallback"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/memory"
)

// away returns a Fallback whose primary has been away from the start.
func away(t *testing.T, local ratelimit.Store, o fallback.Options) *fallback.Fallback {
	t.Helper()
	return start(t, newRemote(down), local, o)
}

func TestShareOfEachLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local, instances := newStand(), 3
		f := away(t, local, fallback.Options{Instances: func() int { return instances }})
		minute := perMinute(t) // 100/minute, burst 20
		day := policy(t, ratelimit.Policy{Name: "per-day", Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow, Quota: 10, Window: 24 * time.Hour})
		cs := []ratelimit.Charge{
			{Policy: minute, Partition: "{tenant:acme}", Caller: priya, Cost: 1},
			{Policy: day, Partition: priya, Caller: priya, Cost: 1},
		}
		s := f.Store(fallback.LocalCap)

		ds := take(t, s, cs)
		if len(ds) != 2 {
			t.Fatalf("%d decisions for 2 charges", len(ds))
		}
		for i, want := range []int64{6, 3} { // ceil(20/3) - 1, ceil(10/3) - 1
			d := ds[i]
			if d.Policy != cs[i].Policy || d.Remaining != want || d.Source != ratelimit.SourceLocalCap {
				t.Errorf("decision %d = %+v, want the charge's own policy, remaining %d, local_cap", i, d, want)
			}
			if !errors.Is(d.Err, errDown) || !strings.HasPrefix(d.Err.Error(), "breaker open: ") {
				t.Errorf("decision %d: Err = %v", i, d.Err)
			}
		}
		if got := local.asked[0]; got[0].Partition != "{tenant:acme}" || got[1].Partition != priya {
			t.Errorf("asked %+v, want each limit's own partition", got)
		}

		for range 3 {
			take(t, s, cs)
		}
		ds, err := s.Take(t.Context(), cs, ds)
		if err != nil || ratelimit.Admitted(ds) {
			t.Fatalf("Take = %+v, %v: want a denial by the share of the day", ds, err)
		}
		if d := ds[1]; d.Allowed || d.Policy != day || d.Remaining != 0 || d.RetryAfter <= 23*time.Hour {
			t.Errorf("the day's decision = %+v", d)
		}
		if d := ds[0]; !d.Allowed || d.Remaining != 3 {
			t.Errorf("the minute's decision = %+v, want 3 remaining: a denied request charges nothing", d)
		}
		instances = 0 // nobody known counts as one: this instance
		if ds := take(t, s, cs); ds[1].Remaining != 5 {
			t.Errorf("remaining %d of 10 after 5, alone", ds[1].Remaining)
		}
		if st := f.State(); st.Admitted != 5 || st.Denied != 1 {
			t.Errorf("State = %+v, want 5 admitted, 1 denied", st)
		}
	})
}

func TestPlanCapReplacesThePlansLimits(t *testing.T) {
	for _, scope := range []string{"local-cap", "plan/local-cap"} {
		synctest.Test(t, func(t *testing.T) {
			planCap := policy(t, ratelimit.Policy{Name: "local-cap", Scope: scope, Algorithm: ratelimit.TokenBucket, Quota: 50, Window: time.Second, Burst: 50})
			minute := policy(t, ratelimit.Policy{Name: "per-minute", Scope: "plan/per-minute", Algorithm: ratelimit.TokenBucket, Quota: 6000, Window: time.Minute, Burst: 6000, LocalCap: planCap})
			day := policy(t, ratelimit.Policy{Name: "per-day", Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow, Quota: 2, Window: 24 * time.Hour, LocalCap: planCap})
			login := policy(t, ratelimit.Policy{Name: "login-try", Scope: "limit/login-try", Algorithm: ratelimit.FixedWindow, Quota: 1000, Window: time.Minute})
			cs := []ratelimit.Charge{
				{Policy: minute, Partition: "{tenant:acme}:route:export", Caller: priya, Cost: 10},
				{Policy: day, Partition: "{tenant:acme}", Caller: priya, Cost: 10},
				{Policy: login, Partition: "{ip:203.0.113.7}", Caller: priya, Cost: 10},
			}
			local := newStand()
			f := away(t, local, fallback.Options{Instances: func() int { return 5 }})
			s := f.Store(fallback.LocalCap)
			for i := range 5 {
				ds := take(t, s, cs)
				for _, d := range ds[:2] {
					if want := int64(40 - 10*i); d.Policy != planCap || d.Remaining != want || d.Source != ratelimit.SourceLocalCap {
						t.Errorf("request %d: %+v, want the cap with %d remaining: it is not divided", i, d, want)
					}
				}
				if want := int64(190 - 10*i); ds[2].Policy != login || ds[2].Remaining != want {
					t.Errorf("request %d: %+v, want the named limit's share with %d remaining", i, ds[2], want)
				}
			}
			if got := local.asked[0]; len(got) != 2 || got[0].Policy != planCap || got[0].Partition != priya || got[0].Cost != 10 || got[1].Partition != "{ip:203.0.113.7}" {
				t.Errorf("asked %+v, want the cap once, by caller, and the named limit's share", got)
			}
			ds, err := s.Take(t.Context(), cs, nil)
			if err != nil || ratelimit.Admitted(ds) || ds[0].RetryAfter != 200*time.Millisecond || ds[1] != ds[0] || !ds[2].Allowed {
				t.Errorf("beyond the cap: %+v, %v; want the cap to deny for 200ms, in both places", ds, err)
			}
			time.Sleep(200 * time.Millisecond)
			take(t, s, cs)
		})
	}
}

func TestNamedLimitsCapIsCountedAsTheLimitIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := policy(t, ratelimit.Policy{Name: "login-try", Scope: "limit/login-try", Algorithm: ratelimit.TokenBucket, Quota: 2, Window: time.Minute, Burst: 2})
		login := policy(t, ratelimit.Policy{Name: "login-try", Scope: "limit/login-try", Algorithm: ratelimit.FixedWindow, Quota: 5, Window: time.Minute, LocalCap: own})
		f := away(t, newStand(), fallback.Options{Instances: func() int { return 2 }})
		s := f.Store(fallback.LocalCap)
		attempt := func(user string) ratelimit.Decision {
			ds, err := s.Take(t.Context(), []ratelimit.Charge{{Policy: login, Partition: "{ip:203.0.113.7}", Caller: user, Cost: 1}}, nil)
			if err != nil || len(ds) != 1 || ds[0].Policy != own {
				t.Fatalf("Take = %+v, %v, want one decision of the limit's cap", ds, err)
			}
			return ds[0]
		}
		if !attempt("{user:a}").Allowed || !attempt("{user:b}").Allowed || attempt("{user:c}").Allowed {
			t.Error("want two attempts from one address, whoever is asking")
		}
	})
}

func TestDeny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, local := newRemote(up), newStand()
		f := start(t, primary, local, fallback.Options{})
		s := f.Store(fallback.Deny)
		primary.set(down)
		for i := range 10 {
			ds, err := s.Take(t.Context(), one(t), nil)
			u, ok := errors.AsType[*ratelimit.UnavailableError](err)
			if !ok || len(ds) != 0 || !errors.Is(err, ratelimit.ErrUnavailable) || !errors.Is(err, errDown) {
				t.Fatalf("request %d: %v, %v; want an UnavailableError with the store's error", i, ds, err)
			}
			if u.RetryAfter <= 0 || u.RetryAfter > longestInterval {
				t.Errorf("request %d: RetryAfter = %v, want the time to the next probe", i, u.RetryAfter)
			}
		}
		time.Sleep(100 * time.Millisecond)
		_, err := s.Take(t.Context(), one(t), nil)
		u, _ := errors.AsType[*ratelimit.UnavailableError](err)
		if next := f.State().NextProbe; u == nil || u.RetryAfter != next {
			t.Errorf("%v: want RetryAfter %v, the next probe", err, next)
		}
		if len(local.asked) != 0 || f.State().Denied != 11 {
			t.Errorf("local asked %d times, %d denied; want 0, 11", len(local.asked), f.State().Denied)
		}
		if n := primary.calls.Load(); n != 5 {
			t.Errorf("the primary was asked %d times for 5 failures: want once each", n)
		}
	})
}

func TestAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := newStand()
		type key struct{}
		var why error
		f := away(t, local, fallback.Options{Hooks: fallback.Hooks{Degraded: func(ctx context.Context, m fallback.Mode, err error) {
			if ctx.Value(key{}) != "the request's" || m != fallback.Allow {
				t.Errorf("Degraded(%v, %v)", ctx.Value(key{}), m)
			}
			why = err
		}}})
		used := make([]ratelimit.Decision, 3, 8)
		ds, err := f.Store(fallback.Allow).Take(context.WithValue(t.Context(), key{}, "the request's"), one(t), used)
		if err != nil || len(ds) != 0 {
			t.Errorf("Take = %v, %v, want no decisions and no error", ds, err)
		}
		if !errors.Is(why, errDown) {
			t.Errorf("the hook got %v, want the store's error", why)
		}
		if len(local.asked) != 0 || f.State().Admitted != 1 {
			t.Errorf("local asked %d times, State = %+v", len(local.asked), f.State())
		}
	})
}

// The store that really stands in, under callers that come all at once.
func TestCapHoldsItsNumberInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local, err := memory.New(memory.Options{MaxKeys: 1000, Source: ratelimit.SourceLocalCap})
		if err != nil {
			t.Fatal(err)
		}
		planCap := policy(t, ratelimit.Policy{Name: "local-cap", Scope: "plan/local-cap", Algorithm: ratelimit.TokenBucket, Quota: 50, Window: time.Second, Burst: 50})
		minute := policy(t, ratelimit.Policy{Name: "per-minute", Scope: "plan/per-minute", Algorithm: ratelimit.TokenBucket, Quota: 6, Window: time.Minute, LocalCap: planCap})
		day := policy(t, ratelimit.Policy{Name: "per-day", Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow, Quota: 2, Window: 24 * time.Hour, LocalCap: planCap})
		cs := []ratelimit.Charge{
			{Policy: minute, Partition: "{tenant:acme}", Caller: priya, Cost: 1},
			{Policy: day, Partition: priya, Caller: priya, Cost: 1},
		}
		f := away(t, local, fallback.Options{Instances: func() int { return 7 }})
		for _, round := range []struct {
			after time.Duration
			want  int64
		}{{0, 50}, {time.Second, 50}, {500 * time.Millisecond, 25}} {
			time.Sleep(round.after)
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for range 200 {
				wg.Go(func() {
					ds, err := f.Store(fallback.LocalCap).Take(t.Context(), cs, nil)
					if err != nil || len(ds) != 2 || ds[0] != ds[1] || ds[0].Source != ratelimit.SourceLocalCap {
						t.Errorf("Take = %+v, %v", ds, err)
					} else if ratelimit.Admitted(ds) {
						admitted.Add(1)
					}
				})
			}
			wg.Wait()
			if n := admitted.Load(); n != round.want {
				t.Errorf("after %v: %d of 200 admitted, want %d", round.after, n, round.want)
			}
		}
	})
}

// No decisions would read as "admitted": a store that answers nothing has failed.
func TestPrimaryThatAnswersNonsense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := newRemote(up)
		f := start(t, primary, newStand(), fallback.Options{})
		primary.set(func(_ context.Context, _ []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
			return dst[:0], nil
		})
		ds := take(t, f.Store(fallback.LocalCap), one(t))
		if len(ds) != 1 || ds[0].Source != ratelimit.SourceLocalCap || ds[0].Err == nil {
			t.Errorf("got %+v, want a decision of the local cap", ds)
		}
		if f.State().LastErr == nil {
			t.Error("not counted as a failure")
		}
	})
}

func TestBothStoresFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := newStand()
		local.err = errors.New("no room")
		f := away(t, local, fallback.Options{})
		ds, err := f.Store(fallback.LocalCap).Take(t.Context(), one(t), nil)
		u, ok := errors.AsType[*ratelimit.UnavailableError](err)
		if !ok || len(ds) != 0 || u.RetryAfter <= 0 || !errors.Is(err, errDown) || !errors.Is(err, local.err) {
			t.Errorf("Take = %v, %v; want to be refused with both errors", ds, err)
		}
		if f.State().Denied != 1 {
			t.Errorf("State = %+v", f.State())
		}
	})
}

func TestNothingToCharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := newRemote(down)
		f := start(t, primary, newStand(), fallback.Options{})
		for _, m := range []fallback.Mode{fallback.LocalCap, fallback.Deny, fallback.Allow} {
			if ds, err := f.Store(m).Take(t.Context(), nil, nil); err != nil || len(ds) != 0 {
				t.Errorf("%s: %v, %v", m, ds, err)
			}
		}
	})
}

func TestUnknownModeIsTheDefault(t *testing.T) {
	f, err := fallback.New(newRemote(up), newStand(), fallback.Options{Probe: newRemote(up).Probe})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []fallback.Mode{"", "local_cap", "nonsense"} {
		if f.Store(m) != f.Store(fallback.LocalCap) {
			t.Errorf("Store(%q) is not the local cap's", m)
		}
	}
}
