package ratelimit

import (
	"math"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const day = 24 * time.Hour

func tokenBucket(tb testing.TB, quota int64, window time.Duration, burst int64) *Policy {
	tb.Helper()
	return policy(tb, Policy{
		Name: "per-minute", Scope: "plan/per-minute",
		Algorithm: TokenBucket, Quota: quota, Window: window, Burst: burst,
	})
}

func fixedWindow(tb testing.TB, quota int64, window time.Duration) *Policy {
	tb.Helper()
	return policy(tb, Policy{
		Name: "per-day", Scope: "plan/per-day",
		Algorithm: FixedWindow, Quota: quota, Window: window,
	})
}

func policy(tb testing.TB, spec Policy) *Policy {
	tb.Helper()
	p, err := NewPolicy(spec)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestPolicyKeyNamesScopeAlgorithmAndWindowOnly(t *testing.T) {
	for _, c := range []struct {
		policy *Policy
		want   string
	}{
		{tokenBucket(t, 100, time.Minute, 20), "plan/per-minute:tb/60"},
		{tokenBucket(t, 7, time.Minute, 3), "plan/per-minute:tb/60"},
		{tokenBucket(t, 100, time.Hour, 20), "plan/per-minute:tb/3600"},
		{fixedWindow(t, 100, day), "plan/per-day:fw/86400"},
		{tokenBucket(t, 100, time.Minute, 20).Share(3), "plan/per-minute:tb/60"},
		{slidingLog(t, 100, time.Minute), "plan/log:sl/60"},
		{slidingCounter(t, 100, time.Minute), "plan/counter:sc/60"},
		{leakyBucket(t, 100, time.Minute, 5, time.Second), "limit/queue:lb/60"},
		{leakyBucket(t, 7, time.Minute, 0, 0), "limit/queue:lb/60"},
		{as(t, slidingLog(t, 100, time.Minute), shadow), "plan/log:sl/60"},
		{as(t, slidingLog(t, 100, time.Minute), countRejected), "plan/log:sl/60"},
		{as(t, slidingLog(t, 100, time.Minute), candidate), "plan/log:sl/60:candidate"},
		{as(t, slidingLog(t, 100, time.Minute), candidate).Share(2), "plan/log:sl/60:candidate"},
	} {
		if got := c.policy.Key(); got != c.want {
			t.Errorf("key of %+v: got %q, want %q", c.policy, got, c.want)
		}
	}
}

func TestPolicyRefill(t *testing.T) {
	for _, c := range []struct {
		name     string
		policy   *Policy
		num, den int64
		exact    bool
	}{
		{"100 a minute are one in 600,000 µs", tokenBucket(t, 100, time.Minute, 20), 1, 600_000, true},
		{"7 a minute do not divide", tokenBucket(t, 7, time.Minute, 7), 7, 60_000_000, true},
		{"three a µs", tokenBucket(t, 3_000_000, time.Second, 1), 3, 1, true},
		{"5,000,000,000 in 30 days", tokenBucket(t, 5_000_000_000, 30*day, 0), 5, 2592, true},
		{"nothing refills", tokenBucket(t, 0, time.Minute, 0), 0, 1, true},
		{"the largest that is exact", tokenBucket(t, 1, time.Second, 9_007_199_254), 1, 1_000_000, true},
		// 1,000,003 is prime, so a day cannot be divided: 86,399.74 µs a unit.
		{"rounded up to whole µs a unit", tokenBucket(t, 1_000_003, day, 0), 1, 86_400, false},
		{"faster than one a µs, and not to be counted", tokenBucket(t, 999_999_999_999_999, time.Second, 0), 1, 1, false},
		{"a fixed window does not refill", fixedWindow(t, 100, day), 0, 1, true},
	} {
		p := c.policy
		if p.Num() != c.num || p.Den() != c.den || p.Exact() != c.exact {
			t.Errorf("%s: got %d/%d, exact %v, want %d/%d, %v", c.name, p.Num(), p.Den(), p.Exact(), c.num, c.den, c.exact)
		}
		if p.Algorithm == TokenBucket && p.Burst > (1<<53-1)/p.Den() {
			t.Errorf("%s: burst %d in units of 1/%d does not fit below 2^53", c.name, p.Burst, p.Den())
		}
	}
}

func TestPolicyBurstDefaultsToQuotaAndAtLeastOne(t *testing.T) {
	for quota, want := range map[int64]int64{100: 100, 1: 1, 0: 1} {
		if got := tokenBucket(t, quota, time.Minute, 0).Burst; got != want {
			t.Errorf("quota %d: burst is %d, want %d", quota, got, want)
		}
	}
	if got := fixedWindow(t, 100, day).Burst; got != 0 {
		t.Errorf("a fixed window has burst %d, want 0", got)
	}
}

func TestNewPolicyRefuses(t *testing.T) {
	good := Policy{Name: "n", Scope: "plan/n", Algorithm: TokenBucket, Quota: 100, Window: time.Minute, Burst: 20}
	with := func(change func(*Policy)) Policy {
		p := good
		change(&p)
		return p
	}
	for _, c := range []struct {
		spec Policy
		want string
	}{
		{with(func(p *Policy) { p.Name = "" }), "name: "},
		{with(func(p *Policy) { p.Name = `x"` }), "name: "},
		{with(func(p *Policy) { p.Name = "Per-Minute" }), "name: "},
		{with(func(p *Policy) { p.Scope = "" }), "scope: "},
		{with(func(p *Policy) { p.Scope = "plan/" }), "scope: "},
		{with(func(p *Policy) { p.Scope = "/n" }), "scope: "},
		{with(func(p *Policy) { p.Scope = "plan//n" }), "scope: "},
		{with(func(p *Policy) { p.Scope = "plan/n:tb" }), "scope: "},
		{with(func(p *Policy) { p.Scope = "{plan}" }), "scope: "},
		{with(func(p *Policy) { p.Algorithm = 0 }), "algorithm: "},
		{with(func(p *Policy) { p.Algorithm = 99 }), "algorithm: "},
		{with(func(p *Policy) { p.Window = 0 }), "window: "},
		{with(func(p *Policy) { p.Window = -time.Second }), "window: "},
		{with(func(p *Policy) { p.Window = 1500 * time.Millisecond }), "window: "},
		{with(func(p *Policy) { p.Window = MaxWindow + time.Second }), "window: "},
		{with(func(p *Policy) { p.Quota = -1 }), "quota: "},
		{with(func(p *Policy) { p.Quota = MaxQuota + 1 }), "quota: "},
		{with(func(p *Policy) { p.Quota = math.MaxInt64 }), "quota: "},
		{with(func(p *Policy) { p.Burst = -1 }), "burst: "},
		{with(func(p *Policy) { p.Burst = MaxQuota + 1 }), "burst: "},
		{with(func(p *Policy) { p.Algorithm = FixedWindow }), "burst: "},
		{with(func(p *Policy) { p.Algorithm = SlidingWindowLog }), "burst: "},
		{with(func(p *Policy) { p.Algorithm = SlidingWindowCounter }), "burst: "},
		{with(func(p *Policy) { p.Algorithm = LeakyBucket }), "burst: "},
		{with(func(p *Policy) { p.Algorithm, p.Burst, p.Quota = SlidingWindowLog, 0, MaxLogQuota+1 }), "quota: want 0 to 100000"},
		{with(func(p *Policy) { p.Queue = 1 }), "queue: want 0, since token_bucket has none"},
		{with(func(p *Policy) { p.MaxDelay = 1 }), "max_delay: want 0, since token_bucket has none"},
		{with(func(p *Policy) { p.Algorithm, p.Burst, p.Queue = LeakyBucket, 0, -1 }), "queue: "},
		{with(func(p *Policy) { p.Algorithm, p.Burst, p.Queue = LeakyBucket, 0, MaxQuota }), "queue: "},
		{with(func(p *Policy) { p.Algorithm, p.Burst, p.MaxDelay = LeakyBucket, 0, -1 }), "max_delay: "},
		{with(func(p *Policy) { p.Algorithm, p.Burst, p.MaxDelay = LeakyBucket, 0, 1500 }), "max_delay: "},
		{with(func(p *Policy) { p.Algorithm, p.Burst, p.MaxDelay = LeakyBucket, 0, MaxWindow+time.Second }), "max_delay: "},
		{with(func(p *Policy) {
			p.Algorithm, p.Burst, p.Quota, p.Window, p.Queue = LeakyBucket, 0, 1, MaxWindow, 285
		}), "queue: "},
		{with(func(p *Policy) { p.Calendar = &Calendar{Unit: CalendarMinute, Location: time.UTC} }), "calendar: "},
		{with(func(p *Policy) { p.Role = 3 }), "role: "},
		{with(func(p *Policy) { p.Role, p.CountRejected = Candidate, true }), "count_rejected: "},
		// 366 days a unit and 286 units: more µs than can be counted.
		{with(func(p *Policy) { p.Quota, p.Window, p.Burst = 1, MaxWindow, 286 }), "burst: "},
	} {
		p, err := NewPolicy(c.spec)
		if err == nil || p != nil {
			t.Errorf("%+v: got %v, want an error about %q", c.spec, p, c.want)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %q, want it to name %q", c.spec, err, c.want)
		}
	}
	for _, spec := range []Policy{
		good,
		with(func(p *Policy) { p.Quota = MaxQuota; p.Burst = 0 }),
		with(func(p *Policy) { p.Quota, p.Window, p.Burst = 1, MaxWindow, 284 }),
		with(func(p *Policy) { p.Algorithm, p.Burst, p.Quota = FixedWindow, 0, MaxQuota }),
		with(func(p *Policy) { p.Scope = "edge" }),
	} {
		if _, err := NewPolicy(spec); err != nil {
			t.Errorf("%+v: %v", spec, err)
		}
	}
}

// Whatever is asked for is refused, or can be counted, and refills never faster
// than asked for and at most 1 µs a unit slower.
func TestPolicyRefillIsTrueOrRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := NewPolicy(Policy{
			Name: "n", Scope: "plan/n", Algorithm: TokenBucket,
			Quota:  rapid.Int64Range(1, MaxQuota).Draw(t, "quota"),
			Window: time.Duration(rapid.Int64Range(1, 366*86400).Draw(t, "window")) * time.Second,
			Burst:  rapid.Int64Range(0, MaxQuota).Draw(t, "burst"),
		})
		if err != nil {
			return
		}
		if p.Burst < 1 || p.Burst > (1<<53-1)/p.Den() {
			t.Fatalf("burst %d in units of 1/%d", p.Burst, p.Den())
		}
		perUnit := big.NewRat(p.Den(), p.Num())
		asked := big.NewRat(p.Window.Microseconds(), p.Quota)
		late := new(big.Rat).Sub(perUnit, asked)
		if late.Sign() < 0 || late.Cmp(big.NewRat(1, 1)) >= 0 || p.Exact() != (late.Sign() == 0) {
			t.Fatalf("a unit takes %s µs, want %s; exact %v", perUnit, asked, p.Exact())
		}
	})
}

func TestShareIsDividedRoundedUpAndNeverNothing(t *testing.T) {
	for _, c := range []struct {
		policy       *Policy
		instances    int
		quota, burst int64
	}{
		{tokenBucket(t, 100, time.Minute, 20), 3, 34, 7},
		{tokenBucket(t, 100, time.Minute, 20), 1000, 1, 1},
		{tokenBucket(t, 0, time.Minute, 20), 3, 0, 7},
		{tokenBucket(t, 100, time.Minute, 20), 1, 100, 20},
		{tokenBucket(t, 100, time.Minute, 20), 0, 100, 20},
		{tokenBucket(t, 100, time.Minute, 20), -5, 100, 20},
		{fixedWindow(t, 10, day), 4, 3, 0},
		{fixedWindow(t, 0, day), 4, 0, 0},
		{slidingLog(t, 10, day), 4, 3, 0},
		{slidingCounter(t, 10, day), 4, 3, 0},
		{leakyBucket(t, 10, day, 5, time.Hour), 4, 3, 0},
		// Almost 285 years to refill; a share of it is rounded to no more than
		// can be counted.
		{tokenBucket(t, 1, MaxWindow, 284), 2, 1, 142},
	} {
		s := c.policy.Share(c.instances)
		if s.Quota != c.quota || s.Burst != c.burst {
			t.Errorf("%d/%s burst %d among %d: got %d burst %d, want %d burst %d", c.policy.Quota, c.policy.Window,
				c.policy.Burst, c.instances, s.Quota, s.Burst, c.quota, c.burst)
		}
		if s.Name != c.policy.Name || s.Scope != c.policy.Scope || s.Window != c.policy.Window || s.Algorithm != c.policy.Algorithm {
			t.Errorf("the share of %+v is of another limit: %+v", c.policy, s)
		}
	}
}

func TestShareOfEverythingElseIsTheSame(t *testing.T) {
	for _, c := range []struct{ queue, instances, want int64 }{{5, 4, 2}, {1, 4, 1}, {0, 4, 0}, {100, 3, 34}} {
		p := as(t, leakyBucket(t, 10, time.Second, c.queue, 2*time.Second), func(p *Policy) { p.CountRejected, p.Role = true, Shadow })
		s := p.Share(int(c.instances))
		if s.Queue != c.want || s.MaxDelay != p.MaxDelay || !s.CountRejected || s.Role != Shadow {
			t.Errorf("a queue of %d among %d: %+v", c.queue, c.instances, s)
		}
	}
}

func TestShareIsRemembered(t *testing.T) {
	p := tokenBucket(t, 100, time.Minute, 20)
	first := p.Share(3)
	if n := testing.AllocsPerRun(100, func() {
		if p.Share(3) != first {
			t.Error("the second answer is another pointer")
		}
	}); n != 0 {
		t.Errorf("asking again allocates %v times", n)
	}
	if p.Share(4) == first {
		t.Error("four instances got the share of three")
	}
}

func TestShareAskedConcurrently(t *testing.T) {
	p := tokenBucket(t, 100, time.Minute, 20)
	var wg sync.WaitGroup
	got := make([]*Policy, 50)
	for i := range got {
		wg.Go(func() { got[i] = p.Share(3) })
	}
	wg.Wait()
	for _, s := range got {
		if s != got[0] {
			t.Fatal("two goroutines got different pointers for one share")
		}
	}
}
