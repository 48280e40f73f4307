package limittest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

const (
	// defaultSteps is how many charges or lists of charges a history has.
	defaultSteps = 10_000
	// chapter is how many of them are spent on the same few limits and callers.
	chapter = 250
	// kept is how many past steps a failure shows.
	kept = 12
	// horizon is how far a clock may be moved: times stay below 2^53 µs, which
	// is the year 2255.
	horizon = start + 1<<52
)

// histories are random charges that the store and the model must answer alike.
func histories() []check {
	return []check{
		{"History/TokenBucket", history([]ratelimit.Algorithm{ratelimit.TokenBucket}, 1)},
		{"History/FixedWindow", history([]ratelimit.Algorithm{ratelimit.FixedWindow}, 1)},
		{"History/Lists", history([]ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.FixedWindow}, 4)},
	}
}

// history returns a check of lists of up to atOnce charges of the algorithms.
func history(algorithms []ratelimit.Algorithm, atOnce int) func(testing.TB, NewStore) {
	return func(t testing.TB, newStore NewStore) {
		t.Helper()
		seed := number(t, "LIMITTEST_SEED", rand.Uint64()) //nolint:gosec // a history is to be repeatable, not secret
		steps := number(t, "LIMITTEST_STEPS", defaultSteps)
		b := newBench(t, newStore)
		h := &teller{
			bench: b, seed: seed,
			rnd:   rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // see above
			model: newModel(), algorithms: algorithms, atOnce: atOnce,
		}
		for step := range steps {
			if step%chapter == 0 {
				h.begin(step / chapter)
			}
			h.step(step)
		}
		t.Logf("%d steps agree, %d of them denied (seed %d)", steps, h.denied, seed)
		// A history in which nearly everything goes one way shows little.
		if steps >= defaultSteps && (h.denied < steps/20 || h.denied > steps*19/20) {
			t.Errorf("%d of %d steps were denied; the history does not test both verdicts", h.denied, steps)
		}
	}
}

// number returns the environment variable name, or otherwise if it is not set.
func number(t testing.TB, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: want a number, got %q", name, s)
	}
	return n
}

// A teller makes up a history and compares the answers.
type teller struct {
	*bench
	seed       uint64
	rnd        *rand.Rand
	model      *model
	algorithms []ratelimit.Algorithm
	atOnce     int
	denied     uint64

	latest  int64 // the latest time the clock ever showed
	limits  []*plan
	callers []*caller
	waits   []time.Duration // of the last answers: where things are about to change
	past    []string
}

// A plan is one limit and the numbers it takes in turn.
type plan struct {
	versions []*ratelimit.Policy
	current  int
}

func (p *plan) policy() *ratelimit.Policy { return p.versions[p.current] }

// A caller has a name, and for each limit a generation that is counted up when
// its bucket is given up.
type caller struct {
	name        string
	generations []int
}

// begin makes new limits and callers, and puts the clock back to where it began;
// nobody has a bucket yet that could notice.
func (h *teller) begin(n uint64) {
	h.clock.micros.Store(start)
	h.latest = start
	h.limits, h.callers, h.waits = nil, nil, nil
	for i := range h.atOnce {
		h.limits = append(h.limits, h.newPlan(fmt.Sprintf("c%d-%d", n, i)))
	}
	for i := range 1 + h.rnd.IntN(3) {
		h.callers = append(h.callers, &caller{
			name:        fmt.Sprintf("c%d-%d", n, i),
			generations: make([]int, len(h.limits)),
		})
	}
}

// newPlan makes a limit of up to four versions, which differ in their numbers.
func (h *teller) newPlan(name string) *plan {
	spec := ratelimit.Policy{
		Name: name, Scope: "plan/" + name,
		Algorithm: h.algorithms[h.rnd.IntN(len(h.algorithms))],
		Window:    h.window(),
	}
	p := &plan{}
	for want := 1 + h.rnd.IntN(4); len(p.versions) < want; {
		spec.Quota = h.quota(spec.Window)
		if spec.Algorithm == ratelimit.TokenBucket {
			spec.Burst = h.burst(spec.Quota)
		}
		// Some of what is drawn cannot be counted, and is refused.
		if made, err := ratelimit.NewPolicy(spec); err == nil {
			p.versions = append(p.versions, made)
		}
	}
	return p
}

func (h *teller) window() time.Duration {
	switch h.rnd.IntN(4) {
	case 0:
		return pick(h.rnd, time.Second, time.Minute, time.Hour, 24*time.Hour, 30*24*time.Hour, ratelimit.MaxWindow)
	case 1:
		return time.Duration(1+h.rnd.IntN(100)) * time.Second
	default:
		return time.Duration(1+h.rnd.Int64N(int64(ratelimit.MaxWindow/time.Second))) * time.Second
	}
}

func (h *teller) quota(window time.Duration) int64 {
	us := window.Microseconds()
	switch h.rnd.IntN(12) {
	case 0:
		return 0
	case 1:
		return pick(h.rnd, ratelimit.MaxQuota, ratelimit.MaxQuota-1)
	case 2: // about one unit a µs
		return min(us+h.rnd.Int64N(5)-2, ratelimit.MaxQuota)
	case 3:
		return 1
	default:
		return h.about(ratelimit.MaxQuota)
	}
}

func (h *teller) burst(quota int64) int64 {
	switch h.rnd.IntN(4) {
	case 0:
		return max(1, quota)
	case 1:
		return h.about(ratelimit.MaxQuota)
	default:
		return 1 + h.rnd.Int64N(20)
	}
}

// about returns 1 to most, all orders of magnitude alike, the small ones more
// often: most limits are small.
func (h *teller) about(most int64) int64 {
	if h.rnd.IntN(2) == 0 {
		return 1 + h.rnd.Int64N(50)
	}
	n := int64(1)
	for h.rnd.IntN(12) > 0 && n < most/10 {
		n *= 10
	}
	return min(most, n+h.rnd.Int64N(9*n+1))
}

func pick[T any](rnd *rand.Rand, of ...T) T { return of[rnd.IntN(len(of))] }

// step lets some time pass, perhaps changes a plan, and asks for something.
func (h *teller) step(n uint64) {
	h.t.Helper()
	if d := h.gap(); h.clock.Now()+d.Microseconds() < horizon {
		h.clock.Advance(d)
	}
	h.latest = max(h.latest, h.clock.Now())
	now := h.clock.Now()
	if h.rnd.IntN(10) == 0 {
		p := h.limits[h.rnd.IntN(len(h.limits))]
		p.current = h.rnd.IntN(len(p.versions))
	}
	who := h.callers[h.rnd.IntN(len(h.callers))]
	charges := make([]ratelimit.Charge, 1+h.rnd.IntN(h.atOnce))
	for i := range charges {
		l := h.rnd.IntN(len(h.limits))
		charges[i] = h.charge(who, l, now)
	}

	want := h.model.take(now, charges)
	got := h.take(charges...)
	h.remember(n, now, charges, want)
	for i := range charges {
		w := answer{want[i].Allowed, want[i].Remaining, want[i].Reset, want[i].RetryAfter}
		h.equal(got[i], charges[i].Policy, w, fmt.Sprintf("charge %d of step %d", i+1, n))
	}
	if h.t.Failed() {
		h.t.Fatalf("the store and the model differ in step %d; LIMITTEST_SEED=%d repeats it; before it:\n%s",
			n, h.seed, strings.Join(h.past, "\n"))
	}
	if !ratelimit.Admitted(want) {
		h.denied++
	}
	h.waits = h.waits[:0]
	for _, d := range want {
		h.waits = append(h.waits, d.Reset, max(0, d.RetryAfter))
	}
}

// charge asks for some of limit l.
func (h *teller) charge(who *caller, l int, now int64) ratelimit.Charge {
	p := h.limits[l].policy()
	c := ratelimit.Charge{Policy: p}
	for {
		c.Partition = fmt.Sprintf("{user:%s-%d}", who.name, who.generations[l])
		c.Caller = c.Partition
		s := h.model.buckets[key(c)]
		// A store may have forgotten what ran out, by the numbers it was charged
		// under. Where that would show, because the clock has gone back since or
		// the plan now drains more slowly, there is no one right answer.
		if s.units().Sign() == 0 || s.gone > h.latest || limitOf(p).now(s, now).units().Sign() == 0 {
			break
		}
		who.generations[l]++
	}
	capacity := p.Quota
	if p.Algorithm == ratelimit.TokenBucket {
		capacity = p.Burst
	}
	remaining, _ := limitOf(p).describe(limitOf(p).now(h.model.buckets[key(c)], now), now)
	switch h.rnd.IntN(16) {
	case 0:
		c.Cost = capacity
	case 1:
		c.Cost = capacity + 1
	case 2, 3:
		c.Cost = remaining
	case 4, 5:
		c.Cost = remaining + 1
	case 6:
		c.Cost = remaining - 1
	case 7:
		c.Cost = 1 + h.rnd.Int64N(max(1, remaining))
	case 8:
		c.Cost = pick(h.rnd, tooMuch, tooMuch-1, 1<<53, 1<<53-1)
	default:
		c.Cost = 1
	}
	c.Cost = max(1, c.Cost)
	return c
}

// gap is how far the clock moves before the next step, mostly not at all or to
// just before, at or after the moment at which something changes.
func (h *teller) gap() time.Duration {
	switch h.rnd.IntN(20) {
	case 0, 1, 2, 3, 4, 5:
		return 0
	case 6, 7, 8, 9, 10, 11:
		if len(h.waits) > 0 {
			w := h.waits[h.rnd.IntN(len(h.waits))]
			if w < 10*ratelimit.MaxWindow {
				return w + time.Duration(h.rnd.IntN(3)-1)*time.Microsecond
			}
		}
		return time.Microsecond
	case 12:
		return -time.Duration(1+h.rnd.IntN(3_000_000)) * time.Microsecond
	case 13:
		return -time.Duration(1+h.rnd.IntN(3)) * time.Microsecond
	case 14:
		return ratelimit.MaxWindow
	case 15, 16:
		return time.Duration(h.rnd.Int64N(5_000_000)) * time.Microsecond
	case 17:
		return time.Duration(h.rnd.Int64N(int64(48*time.Hour/time.Microsecond))) * time.Microsecond
	default:
		return time.Duration(1+h.rnd.IntN(1000)) * time.Microsecond
	}
}

// remember keeps the last steps for a failure.
func (h *teller) remember(n uint64, now int64, charges []ratelimit.Charge, want []ratelimit.Decision) {
	var b strings.Builder
	fmt.Fprintf(&b, "  step %d at +%dµs:", n, now-start)
	for i, c := range charges {
		d := want[i]
		fmt.Fprintf(&b, "\n    %s %s: cost %d → %s", c.Partition, show(c.Policy), c.Cost,
			answer{d.Allowed, d.Remaining, d.Reset, d.RetryAfter})
	}
	if len(h.past) == kept {
		h.past = append(h.past[:0], h.past[1:]...)
	}
	h.past = append(h.past, b.String())
}
