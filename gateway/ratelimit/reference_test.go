package ratelimit

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A reference decides by one algorithm as plainly as it can be said: it keeps
// every unit there ever was with its time, and counts in fractions of any size.
type reference interface {
	fits(now, cost int64) bool
	spend(now, cost int64)
}

// referenceOf returns the reference of a policy.
func referenceOf(p *Policy) reference {
	window := p.Window.Microseconds()
	switch p.Algorithm {
	case SlidingWindowLog:
		return &logReference{quota: p.Quota, window: window}
	case SlidingWindowCounter:
		return &counterReference{quota: p.Quota, window: window, used: map[int64]int64{}}
	case FixedWindow:
		return &windowReference{policy: p}
	default:
		capacity := big.NewRat(p.Burst, 1)
		if p.Algorithm == LeakyBucket {
			capacity = big.NewRat(p.Queue+1, 1)
			if p.MaxDelay > 0 {
				within := big.NewRat(p.MaxDelay.Microseconds()*p.Quota, window)
				within.Add(within, big.NewRat(1, 1))
				if within.Cmp(capacity) < 0 {
					capacity = within
				}
			}
		}
		return &bucketReference{
			rate: big.NewRat(p.Quota, window), capacity: capacity, spent: new(big.Rat),
			longest: p.MaxDelay.Microseconds(),
		}
	}
}

// logReference keeps the time of each unit.
type logReference struct {
	quota, window int64
	units         []int64
}

func (r *logReference) count(now int64) (n int64) {
	for _, at := range r.units {
		if now-at < r.window {
			n++
		}
	}
	return n
}

func (r *logReference) fits(now, cost int64) bool { return r.count(now)+cost <= r.quota }

func (r *logReference) spend(now, cost int64) {
	// What has left stays away, also when the clock goes back afterwards.
	var live []int64
	for _, at := range r.units {
		if now-at < r.window {
			live = append(live, at)
			now = max(now, at)
		}
	}
	for range cost {
		live = append(live, now)
	}
	r.units = live
}

// counterReference keeps the count of every window there was.
type counterReference struct {
	quota, window int64
	used          map[int64]int64
	latest        int64 // the window of the last charge
}

func (r *counterReference) fits(now, cost int64) bool {
	k := max(now/r.window, r.latest)
	e := max(0, now-k*r.window)
	sum := big.NewRat(r.used[k-1]*(r.window-e), r.window) // small enough in these tests
	sum.Add(sum, big.NewRat(r.used[k]+cost, 1))
	return sum.Cmp(big.NewRat(r.quota, 1)) <= 0
}

func (r *counterReference) spend(now, cost int64) {
	r.latest = max(now/r.window, r.latest)
	r.used[r.latest] += cost
}

// windowReference knows one window at a time.
type windowReference struct {
	policy    *Policy
	used, end int64
}

func (r *windowReference) fits(now, cost int64) bool {
	if now >= r.end {
		return cost <= r.policy.Quota
	}
	return r.used+cost <= r.policy.Quota
}

func (r *windowReference) spend(now, cost int64) {
	if now >= r.end {
		r.used, r.end = 0, now+r.policy.Window.Microseconds()
	}
	r.used += cost
}

// bucketReference keeps what was spent, as of at.
type bucketReference struct {
	rate, capacity, spent *big.Rat
	at                    int64
	longest               int64 // wait for a drip, µs; 0: any
}

func (r *bucketReference) now(now int64) *big.Rat {
	back := new(big.Rat).Mul(r.rate, big.NewRat(max(0, now-r.at), 1))
	if back.Sub(r.spent, back).Sign() < 0 {
		return new(big.Rat)
	}
	return back
}

func (r *bucketReference) fits(now, cost int64) bool {
	sum := r.now(now)
	sum.Add(sum, big.NewRat(cost, 1))
	if sum.Cmp(r.capacity) > 0 {
		return false
	}
	if r.longest == 0 {
		return true
	}
	// Its last drip is one after what is before it, once the clock has caught up.
	ahead := sum.Sub(sum, big.NewRat(1, 1))
	within := big.NewRat(r.longest-max(0, r.at-now), 1)
	return within.Sign() >= 0 && ahead.Cmp(within.Mul(within, r.rate)) <= 0
}

func (r *bucketReference) spend(now, cost int64) {
	sum := r.now(now)
	r.spent = sum.Add(sum, big.NewRat(cost, 1))
	r.at = max(r.at, now)
}

// algorithms are all that there are.
var algorithms = []Algorithm{TokenBucket, FixedWindow, SlidingWindowLog, SlidingWindowCounter, LeakyBucket}

// drawPolicy draws a policy of an algorithm: numbers as plans have them.
func drawPolicy(t *rapid.T, a Algorithm, window time.Duration) *Policy {
	spec := Policy{Name: "n", Scope: "plan/n", Algorithm: a, Window: window}
	spec.Quota = rapid.OneOf(rapid.Int64Range(1, 12), rapid.Int64Range(1, 5000)).Draw(t, "quota")
	switch a {
	case TokenBucket:
		spec.Burst = rapid.Int64Range(1, 12).Draw(t, "burst")
	case LeakyBucket:
		spec.Queue = rapid.Int64Range(0, 12).Draw(t, "queue")
		interval := window.Microseconds()/spec.Quota + 1
		spec.MaxDelay = time.Duration(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, 14*interval)).Draw(t, "max delay")) * time.Microsecond
	}
	p, err := NewPolicy(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func drawWindow(t *rapid.T) time.Duration {
	return time.Duration(rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(1, 86400)).Draw(t, "window")) * time.Second
}

// drawGap draws a span to the next request: none, some of the window, just about
// when the last answer said that something changes, or a step back.
func drawGap(t *rapid.T, p *Policy, last verdict) int64 {
	window := p.Window.Microseconds()
	around := max(0, last.retryAfter, last.reset).Microseconds()
	return rapid.OneOf(
		rapid.Just(int64(0)),
		rapid.Int64Range(1, window/20),
		rapid.Int64Range(1, 2*window+1),
		rapid.Int64Range(around-1, around+1),
		rapid.Int64Range(-window/3, -1),
	).Draw(t, "gap")
}

// Every algorithm gives the verdicts of its reference, in histories with gaps,
// equal times and a clock that goes back.
func TestEveryAlgorithmDecidesAsItsReference(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := drawPolicy(t, a, drawWindow(t))
				compare(t, p, referenceOf(p), func(now int64, last verdict) (int64, int64) {
					return now + drawGap(t, p, last), drawCost(t, p, last)
				}, rapid.IntRange(1, 60).Draw(t, "requests"))
			})
		})
	}
}

// compare drives p and its reference with the times and costs that next makes up.
func compare(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, p *Policy, ref reference, next func(now int64, last verdict) (at, cost int64), requests int) {
	t.Helper()
	b := &bucket{}
	now, last := int64(epoch), verdict{}
	for i := range requests {
		var cost int64
		now, cost = next(now, last)
		want := cost == 0 || ref.fits(now, cost)
		if last = b.take(p, now, cost); last.allowed != want {
			t.Fatalf("request %d, cost %d at +%d µs: allowed %v, the reference says %v; %+v", i, cost, now-epoch, last.allowed, want, b.state)
		}
		if want && cost > 0 {
			ref.spend(now, cost)
		}
		// What remains is the largest cost that fits.
		left := last.remaining
		if left > 0 && !ref.fits(now, left) || ref.fits(now, left+1) {
			t.Fatalf("request %d at +%d µs: %d remain, the reference disagrees; %+v", i, now-epoch, left, b.state)
		}
	}
}

func drawCost(t *rapid.T, p *Policy, last verdict) int64 {
	return rapid.OneOf(
		rapid.Just(int64(1)),
		rapid.Int64Range(0, p.Capacity()+1),
		rapid.Int64Range(last.remaining, last.remaining+1),
	).Draw(t, "cost")
}

// A history in bytes: two of them say how far the time moves, the third what is
// asked for.
func FuzzEveryAlgorithmDecidesAsItsReference(f *testing.F) {
	for a := range byte(5) {
		f.Add(a, byte(5), byte(2), byte(3), []byte{0, 0, 1, 0, 0, 1, 0, 200, 3, 1, 0, 1})
		f.Add(a, byte(1), byte(0), byte(0), []byte{0, 0, 1, 255, 255, 1, 3, 232, 1, 0, 1, 1})
		f.Add(a, byte(12), byte(9), byte(200), []byte{128, 0, 5, 0, 3, 7, 128, 1, 1, 64, 0, 9, 200, 0, 12})
		f.Add(a, byte(3), byte(0), byte(1), []byte{3, 231, 3, 0, 1, 1, 3, 230, 2, 0, 2, 1, 7, 208, 3})
	}
	f.Fuzz(func(t *testing.T, algorithm, quota, more, delay byte, history []byte) {
		spec := Policy{
			Name: "n", Scope: "plan/n", Algorithm: algorithms[int(algorithm)%len(algorithms)],
			Quota: 1 + int64(quota), Window: time.Second,
		}
		switch spec.Algorithm {
		case TokenBucket:
			spec.Burst = 1 + int64(more)
		case LeakyBucket:
			spec.Queue, spec.MaxDelay = int64(more), time.Duration(delay)*7*time.Millisecond
		}
		p, err := NewPolicy(spec)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, p, referenceOf(p), func(now int64, _ verdict) (int64, int64) {
			gap := int64(int8(history[0]))<<8 | int64(history[1]) // milliseconds, back as well
			cost := int64(history[2])
			history = history[3:]
			return now + gap*1000, cost
		}, len(history)/3)
	})
}

// What a verdict promises holds in each history, whatever numbers the plan has
// in between, and whether or not denied attempts are charged.
func TestEveryAlgorithmKeepsItsPromises(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				window := drawWindow(t)
				b := &bucket{}
				now, last := int64(epoch), verdict{}
				var p *Policy
				for range rapid.IntRange(1, 40).Draw(t, "requests") {
					if p == nil || rapid.IntRange(0, 5).Draw(t, "change") == 0 {
						p = drawPolicy(t, a, window)
					}
					now += drawGap(t, p, last)
					cost := drawCost(t, p, last)
					last = b.take(p, now, cost)
					charged := last.allowed && cost > 0
					if !last.allowed && rapid.Bool().Draw(t, "count rejected") {
						s := p.Advance(b.state, now)
						left, _ := p.Describe(s, now)
						b.state, charged = p.ChargeRejected(s, now, cost), true
						if r := b.remaining(p, now); r < 0 || r > left {
							t.Fatalf("remaining %d became %d by a rejection", left, r)
						}
						if b.would(p, now, cost) {
							t.Fatalf("cost %d would be admitted once it was rejected", cost)
						}
						last.retryAfter = p.RetryAfter(b.state, now, cost)
						last.remaining, last.reset = p.Describe(b.state, now)
					}
					checkPromises(t, p, b, now, cost, last, p.Capacity())
					checkStepBack(t, p, b, now, max(1, cost))
					if charged { // a store judges by the policy that charged last
						checkRunsOut(t, p, b.state)
					}
				}
			})
		})
	}
}

// checkStepBack checks that a clock that goes back frees nothing, and locks
// nobody out for longer than it went back.
func checkStepBack(t *rapid.T, p *Policy, b *bucket, now, cost int64) {
	t.Helper()
	step := rapid.Int64Range(1, 2*p.Window.Microseconds()).Draw(t, "back")
	if here, there := b.remaining(p, now), b.remaining(p, now-step); there > here {
		t.Fatalf("%d remain, and %d once the clock went back %d µs", here, there, step)
	}
	if cost > p.Capacity() {
		return
	}
	var wait int64
	if !b.would(p, now, cost) {
		wait = p.RetryAfter(p.Advance(b.state, now), now, cost).Microseconds()
	}
	if b.would(p, now-step, cost) {
		return
	}
	if w := p.RetryAfter(p.Advance(b.state, now-step), now-step, cost).Microseconds(); w > wait+step {
		t.Fatalf("a wait of %d µs became %d when the clock went back %d", wait, w, step)
	}
}

// checkRunsOut checks that a state says what none says from when it has run out,
// and not before: a store may forget it, and must not forget it earlier.
func checkRunsOut(t *rapid.T, p *Policy, s State) {
	t.Helper()
	out := p.RunsOut(s)
	fresh, _ := p.Describe(p.Advance(State{}, out), out)
	if got, reset := p.Describe(p.Advance(s, out), out); got != fresh || reset != 0 {
		t.Fatalf("%+v has run out, and %d of %d remain, reset in %s", s, got, fresh, reset)
	}
	before := p.Advance(s, out-1)
	if before.Spent == 0 && before.Former == nil && (p.Algorithm != SlidingWindowCounter || before.Den == 0) {
		t.Fatalf("%+v says nothing any more before %d", s, out)
	}
}
