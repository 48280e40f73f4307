package limittest

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// A bench is one store under test, its clock, and what is asked of it.
type bench struct {
	t     testing.TB
	clock *Clock
	store ratelimit.Store
}

func newBench(t testing.TB, newStore NewStore) *bench {
	t.Helper()
	clock := NewClock()
	return &bench{t: t, clock: clock, store: newStore(t, clock)}
}

// take asks the store and ends the test if it fails or breaks the form.
func (b *bench) take(charges ...ratelimit.Charge) []ratelimit.Decision {
	b.t.Helper()
	ds, err := b.store.Take(b.t.Context(), charges, nil)
	if err != nil {
		b.t.Fatalf("take: %v", err)
	}
	if len(ds) != len(charges) {
		b.t.Fatalf("take: %d decisions for %d charges", len(ds), len(charges))
	}
	return ds
}

// want asks for cost units of p for the caller and compares the answer.
func (b *bench) want(caller string, p *ratelimit.Policy, cost int64, w answer) {
	b.t.Helper()
	got := b.take(charge(caller, p, cost))[0]
	b.equal(got, p, w, fmt.Sprintf("%s spends %d of %s", caller, cost, show(p)))
}

func (b *bench) equal(got ratelimit.Decision, p *ratelimit.Policy, w answer, what string) {
	b.t.Helper()
	if got.Policy != p {
		b.t.Errorf("%s: the decision names another policy: %+v", what, got.Policy)
	}
	if have := (answer{got.Allowed, got.Remaining, got.Reset, got.RetryAfter}); have != w {
		b.t.Errorf("%s at +%s:\n got %s\nwant %s", what, time.Duration(b.clock.Now()-start)*time.Microsecond, have, w)
	}
}

// An answer is what a decision says.
type answer struct {
	allowed    bool
	remaining  int64
	reset      time.Duration
	retryAfter time.Duration
}

func yes(remaining int64, reset time.Duration) answer { return answer{true, remaining, reset, 0} }

func no(remaining int64, reset, retryAfter time.Duration) answer {
	return answer{false, remaining, reset, retryAfter}
}

func (a answer) String() string {
	verdict := "denied"
	if a.allowed {
		verdict = "allowed"
	}
	retry := a.retryAfter.String()
	if a.retryAfter == ratelimit.Never {
		retry = "never"
	}
	return fmt.Sprintf("%s, remaining %d, reset %s, retry after %s", verdict, a.remaining, a.reset, retry)
}

func charge(caller string, p *ratelimit.Policy, cost int64) ratelimit.Charge {
	return ratelimit.Charge{Policy: p, Partition: "{user:" + caller + "}", Caller: "{user:" + caller + "}", Cost: cost}
}

// bucket and window make policies whose scope is plan/<name>.
func bucket(t testing.TB, name string, quota int64, window time.Duration, burst int64) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{
		Name: name, Scope: "plan/" + name, Algorithm: ratelimit.TokenBucket,
		Quota: quota, Window: window, Burst: burst,
	})
}

func window(t testing.TB, name string, quota int64, length time.Duration) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{
		Name: name, Scope: "plan/" + name, Algorithm: ratelimit.FixedWindow,
		Quota: quota, Window: length,
	})
}

func policy(t testing.TB, spec ratelimit.Policy) *ratelimit.Policy {
	t.Helper()
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func show(p *ratelimit.Policy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d/%s", p.Algorithm, p.Quota, p.Window)
	if p.Algorithm == ratelimit.TokenBucket {
		fmt.Fprintf(&b, " burst %d", p.Burst)
	}
	return b.String()
}

const (
	never  = ratelimit.Never
	micro  = time.Microsecond
	second = time.Second
	minute = time.Minute
	// tooMuch is a cost beyond every capacity, and beyond what a double holds.
	tooMuch int64 = math.MaxInt64
)
