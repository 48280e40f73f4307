package limittest

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	_ "time/tzdata" // calendars are the same on every machine

	"bouncer/gateway/ratelimit"
)

// A bench is one store under test, its clock, and what is asked of it.
type bench struct {
	t     testing.TB
	clock *Clock
	store ratelimit.Store
	skew  time.Duration // of the instance's wall clock, by which calendars are read
}

func newBench(t testing.TB, newStore NewStore) *bench {
	t.Helper()
	clock := NewClock()
	return &bench{t: t, clock: clock, store: newStore(t, clock)}
}

// take asks the store and ends the test if it fails or breaks the form.
func (b *bench) take(charges ...ratelimit.Charge) []ratelimit.Decision {
	b.t.Helper()
	b.look(charges)
	ds, err := b.store.Take(b.t.Context(), charges, nil)
	if err != nil {
		b.t.Fatalf("take: %v", err)
	}
	if len(ds) != len(charges) {
		b.t.Fatalf("take: %d decisions for %d charges", len(ds), len(charges))
	}
	return ds
}

// look adds to charges what the instance reads in its calendar, by a wall clock
// that is wrong by b.skew.
func (b *bench) look(charges []ratelimit.Charge) {
	for i := range charges {
		if c := charges[i].Policy.Calendar; c != nil {
			charges[i].Windows = c.Windows(b.clock.Now() + b.skew.Microseconds())
		}
	}
}

// set puts the clock to a time.
func (b *bench) set(t time.Time) { b.clock.micros.Store(t.UnixMicro()) }

// align puts the clock to the next multiple of d since the epoch.
func (b *bench) align(d time.Duration) {
	us := d.Microseconds()
	b.clock.micros.Store((b.clock.Now()/us + 1) * us)
}

// want asks for cost units of p for the caller and compares the answer.
func (b *bench) want(caller string, p *ratelimit.Policy, cost int64, w answer) {
	b.t.Helper()
	got := b.take(charge(caller, p, cost))[0]
	b.equal(got, p, w, fmt.Sprintf("%s spends %d of %s", caller, cost, show(p)))
}

// wantAll asks for cost units of each of the policies at once, for one caller,
// and compares the answers, which come in the same order.
func (b *bench) wantAll(cost int64, ps []*ratelimit.Policy, ws ...answer) {
	b.t.Helper()
	const caller = "priya123"
	charges := make([]ratelimit.Charge, len(ps))
	for i, p := range ps {
		charges[i] = charge(caller, p, cost)
	}
	for i, got := range b.take(charges...) {
		b.equal(got, ps[i], ws[i], fmt.Sprintf("%s spends %d of %d limits; number %d, %s", caller, cost, len(ps), i+1, show(ps[i])))
	}
}

func (b *bench) equal(got ratelimit.Decision, p *ratelimit.Policy, w answer, what string) {
	b.t.Helper()
	if got.Policy != p {
		b.t.Errorf("%s: the decision names another policy: %+v", what, got.Policy)
	}
	if have := answerOf(got); have != w {
		b.t.Errorf("%s at +%s:\n got %s\nwant %s", what, time.Duration(b.clock.Now()-start)*time.Microsecond, have, w)
	}
}

// An answer is what a decision says.
type answer struct {
	allowed    bool
	remaining  int64
	reset      time.Duration
	retryAfter time.Duration
	delay      time.Duration
}

func answerOf(d ratelimit.Decision) answer {
	return answer{d.Allowed, d.Remaining, d.Reset, d.RetryAfter, d.Delay}
}

func yes(remaining int64, reset time.Duration) answer { return answer{true, remaining, reset, 0, 0} }

func no(remaining int64, reset, retryAfter time.Duration) answer {
	return answer{false, remaining, reset, retryAfter, 0}
}

// held is yes, after a wait for the drip of a queue.
func held(remaining int64, reset, delay time.Duration) answer {
	return answer{true, remaining, reset, 0, delay}
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
	return fmt.Sprintf("%s, remaining %d, reset %s, retry after %s, delay %s", verdict, a.remaining, a.reset, retry, a.delay)
}

func charge(caller string, p *ratelimit.Policy, cost int64) ratelimit.Charge {
	return ratelimit.Charge{Policy: p, Partition: "{user:" + caller + "}", Caller: "{user:" + caller + "}", Cost: cost}
}

// An option changes the spec of a policy.
type option func(*ratelimit.Policy)

func shadow(p *ratelimit.Policy)        { p.Role = ratelimit.Shadow }
func candidate(p *ratelimit.Policy)     { p.Role = ratelimit.Candidate }
func countRejected(p *ratelimit.Policy) { p.CountRejected = true }

// bucket, window, log, counter, queue and calendar make policies whose scope is
// plan/<name>.
func bucket(t testing.TB, name string, quota int64, window time.Duration, burst int64, options ...option) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{Name: name, Algorithm: ratelimit.TokenBucket, Quota: quota, Window: window, Burst: burst}, options...)
}

func window(t testing.TB, name string, quota int64, length time.Duration, options ...option) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{Name: name, Algorithm: ratelimit.FixedWindow, Quota: quota, Window: length}, options...)
}

func log(t testing.TB, name string, quota int64, length time.Duration, options ...option) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{Name: name, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: length}, options...)
}

func counter(t testing.TB, name string, quota int64, length time.Duration, options ...option) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{Name: name, Algorithm: ratelimit.SlidingWindowCounter, Quota: quota, Window: length}, options...)
}

// queue drips at quota/length; places more than the one that goes at once wait,
// none for longer than longest, if that is not 0.
func queue(t testing.TB, name string, quota int64, length time.Duration, places int64, longest time.Duration, options ...option) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{
		Name: name, Algorithm: ratelimit.LeakyBucket,
		Quota: quota, Window: length, Queue: places, MaxDelay: longest,
	}, options...)
}

func calendar(t testing.TB, name string, quota int64, c *ratelimit.Calendar, options ...option) *ratelimit.Policy {
	t.Helper()
	return policy(t, ratelimit.Policy{Name: name, Algorithm: ratelimit.FixedWindow, Quota: quota, Calendar: c}, options...)
}

func policy(t testing.TB, spec ratelimit.Policy, options ...option) *ratelimit.Policy {
	t.Helper()
	if spec.Scope == "" {
		spec.Scope = "plan/" + spec.Name
	}
	for _, o := range options {
		o(&spec)
	}
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func show(p *ratelimit.Policy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d/%s", p.Algorithm, p.Quota, p.Window)
	if p.Calendar != nil {
		fmt.Fprintf(&b, " by the calendar: %s", calendarName(p.Calendar))
	}
	if p.Algorithm == ratelimit.TokenBucket {
		fmt.Fprintf(&b, " burst %d", p.Burst)
	}
	if p.Algorithm == ratelimit.LeakyBucket {
		fmt.Fprintf(&b, " queue %d", p.Queue)
	}
	if p.MaxDelay > 0 {
		fmt.Fprintf(&b, " max delay %s", p.MaxDelay)
	}
	switch p.Role {
	case ratelimit.Shadow:
		b.WriteString(", shadow")
	case ratelimit.Candidate:
		b.WriteString(", candidate")
	}
	if p.CountRejected {
		b.WriteString(", counts what is rejected")
	}
	return b.String()
}

const (
	never  = ratelimit.Never
	micro  = time.Microsecond
	milli  = time.Millisecond
	second = time.Second
	minute = time.Minute
	hour   = time.Hour
	day    = 24 * time.Hour
	// tooMuch is a cost beyond every capacity, and beyond what a double holds.
	tooMuch int64 = math.MaxInt64
)
