package limittest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
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

// A kind is an algorithm, and whether its windows are a calendar's.
type kind struct {
	algorithm ratelimit.Algorithm
	calendar  bool
}

var (
	tokenBucket = kind{algorithm: ratelimit.TokenBucket}
	firstCharge = kind{algorithm: ratelimit.FixedWindow}
	byCalendar  = kind{algorithm: ratelimit.FixedWindow, calendar: true}
	windowLog   = kind{algorithm: ratelimit.SlidingWindowLog}
	windowCount = kind{algorithm: ratelimit.SlidingWindowCounter}
	leakyBucket = kind{algorithm: ratelimit.LeakyBucket}
)

// A story is what a history tells of.
type story struct {
	kinds  []kind // of limits
	atOnce int    // charges of one list, at most, not counting candidates
	// apart: each limit of a list counts by a partition of its own, as those of a
	// user, a tenant and a route do. Else they are all one caller's.
	apart bool
	// toggles: a caller is on two plans and more, and asks under one or another.
	toggles bool
	// steady: all limits are enforced and keep their numbers, no denied attempt
	// counts, and the clock does not go back.
	steady bool
}

var allKinds = []kind{tokenBucket, firstCharge, byCalendar, windowLog, windowCount, leakyBucket}

// histories are random charges that the store and the model must answer alike.
func histories() []check {
	return []check{
		{"History/TokenBucket", history(story{kinds: []kind{tokenBucket}, atOnce: 1})},
		{"History/FixedWindow", history(story{kinds: []kind{firstCharge}, atOnce: 1})},
		{"History/Calendar", history(story{kinds: []kind{byCalendar}, atOnce: 1})},
		{"History/SlidingWindowLog", history(story{kinds: []kind{windowLog}, atOnce: 1})},
		{"History/SlidingWindowCounter", history(story{kinds: []kind{windowCount}, atOnce: 1})},
		{"History/LeakyBucket", history(story{kinds: []kind{leakyBucket}, atOnce: 1})},
		{"History/Plans", history(story{kinds: []kind{tokenBucket, leakyBucket, windowLog}, atOnce: 1, toggles: true})},
		{"History/Lists", history(story{kinds: allKinds, atOnce: 5})},
	}
}

// history returns a check that tells of s.
func history(s story) func(testing.TB, NewStore) {
	return func(t testing.TB, newStore NewStore) {
		t.Helper()
		seed := number(t, "LIMITTEST_SEED", rand.Uint64()) //nolint:gosec // a history is to be repeatable, not secret
		steps := number(t, "LIMITTEST_STEPS", defaultSteps)
		b := newBench(t, newStore)
		h := &teller{
			bench: b, seed: seed,
			rnd:   rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // see above
			model: newModel(), story: s,
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
	story
	seed   uint64
	rnd    *rand.Rand
	model  *model
	denied uint64

	latest  int64 // the latest time the clock ever showed
	limits  []*plan
	callers []*caller
	waits   []time.Duration // of the last answers: where things are about to change
	past    []string
}

// A plan is one limit and the numbers it takes in turn.
type plan struct {
	versions []version
	current  int
}

// A version is a limit and the candidate that is decided beside it, or nil.
type version struct{ live, candidate *ratelimit.Policy }

func (p *plan) version() version { return p.versions[p.current] }

// A caller has a name, and a generation that is counted up when its buckets are
// given up.
type caller struct {
	name       string
	generation int
}

// partition names the bucket of c in limit l.
func (h *teller) partition(c *caller, l int) string {
	if h.apart {
		return fmt.Sprintf("{user:%s-%d-%d}", c.name, c.generation, l)
	}
	return fmt.Sprintf("{user:%s-%d}", c.name, c.generation)
}

// zones are places where the clocks do all that clocks do: none, changes at
// midnight, at two, by half an hour, by two, in both halves of the year, and
// places far from UTC or off it by quarters of an hour.
var zones = []string{
	"UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Asia/Kathmandu", "Pacific/Chatham",
	"Australia/Lord_Howe", "America/Santiago", "America/Havana", "America/Nuuk", "Atlantic/Azores",
	"Africa/Cairo", "Africa/Casablanca", "Asia/Beirut", "Antarctica/Troll", "Pacific/Kiritimati", "Pacific/Apia",
}

// begin makes new limits and callers, and puts the clock back to where it began;
// nobody has a bucket yet that could notice.
func (h *teller) begin(n uint64) {
	h.clock.micros.Store(start)
	h.limits, h.callers, h.waits, h.skew = nil, nil, nil, 0
	for i := range h.atOnce {
		h.limits = append(h.limits, h.newPlan(fmt.Sprintf("c%d-%d", n, i)))
	}
	h.latest = h.clock.Now()
	for i := range 1 + h.rnd.IntN(3) {
		h.callers = append(h.callers, &caller{name: fmt.Sprintf("c%d-%d", n, i)})
	}
}

// newPlan makes a limit of up to four versions, which differ in their numbers and
// in what their verdict is for.
func (h *teller) newPlan(name string) *plan {
	k := h.kinds[h.rnd.IntN(len(h.kinds))]
	spec := ratelimit.Policy{Name: name, Scope: "plan/" + name, Algorithm: k.algorithm, Window: h.window()}
	if k.calendar {
		spec.Calendar = h.calendar()
		spec.Window = spec.Calendar.Unit.Nominal()
	}
	if h.steady {
		return &plan{versions: []version{{live: h.draw(spec)}}}
	}
	twin := h.rnd.IntN(4) == 0
	p := &plan{}
	want := 1 + h.rnd.IntN(4)
	if h.toggles {
		want = max(2, want)
	}
	for len(p.versions) < want {
		spec.CountRejected, spec.Role = h.rnd.IntN(4) == 0, ratelimit.Enforce
		if h.rnd.IntN(8) == 0 {
			spec.Role = ratelimit.Shadow
		}
		v := version{live: h.draw(spec)}
		if twin {
			spec.CountRejected, spec.Role = false, ratelimit.Candidate
			v.candidate = h.draw(spec)
		}
		p.versions = append(p.versions, v)
	}
	return p
}

// draw makes a policy of spec with numbers of its own.
func (h *teller) draw(spec ratelimit.Policy) *ratelimit.Policy {
	for {
		spec.Quota = h.quota(spec.Window)
		switch spec.Algorithm {
		case ratelimit.TokenBucket:
			spec.Burst = h.burst(spec.Quota)
		case ratelimit.LeakyBucket:
			spec.Queue, spec.MaxDelay = h.burst(spec.Quota)-1, h.maxDelay(spec)
		case ratelimit.SlidingWindowLog:
			// Every unit is kept, by the model too.
			spec.Quota = min(spec.Quota, 1+h.rnd.Int64N(300))
		}
		// Some of what is drawn cannot be counted, and is refused.
		if made, err := ratelimit.NewPolicy(spec); err == nil {
			return made
		}
	}
}

// calendar makes a calendar, and puts the clock to shortly before or after the
// clocks are changed there, or a month or a year begins.
func (h *teller) calendar() *ratelimit.Calendar {
	c := &ratelimit.Calendar{
		Unit:      ratelimit.CalendarMinute + ratelimit.CalendarUnit(h.rnd.IntN(5)), //nolint:gosec // below 5
		Location:  zone(h.t, zones[h.rnd.IntN(len(zones))]),
		WeekStart: time.Weekday(h.rnd.IntN(7)),
	}
	day := date{2026 + h.rnd.IntN(10), time.January + time.Month(h.rnd.IntN(12)), 1}
	at := time.UnixMicro(day.begins(c.Location)).In(c.Location)
	if _, changes := at.ZoneBounds(); !changes.IsZero() && h.rnd.IntN(3) > 0 {
		at = changes
	}
	h.set(at.Add(time.Duration(h.rnd.Int64N(int64(3*time.Hour)) - int64(time.Hour)).Truncate(time.Microsecond)))
	return c
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

// maxDelay draws a longest wait, from less than a drip to more than the queue.
func (h *teller) maxDelay(spec ratelimit.Policy) time.Duration {
	if spec.Quota == 0 || h.rnd.IntN(2) == 0 {
		return 0
	}
	drip := max(1, spec.Window.Microseconds()/spec.Quota)
	longest := ratelimit.MaxWindow.Microseconds()
	return time.Duration(1+h.rnd.Int64N(min(longest, drip*(1+h.rnd.Int64N(10))))) * time.Microsecond
}

// step lets some time pass, perhaps changes a plan, and asks for something.
func (h *teller) step(n uint64) {
	h.t.Helper()
	if d := h.gap(); h.clock.Now()+d.Microseconds() < horizon && (d >= 0 || !h.steady) {
		h.clock.Advance(d)
	}
	h.latest = max(h.latest, h.clock.Now())
	now := h.clock.Now()
	if h.toggles && h.rnd.IntN(2) == 0 || h.rnd.IntN(10) == 0 {
		p := h.limits[h.rnd.IntN(len(h.limits))]
		p.current = h.rnd.IntN(len(p.versions))
	}
	if h.rnd.IntN(10) == 0 {
		h.skew = pick(h.rnd, 0, 0, 5*time.Second, -5*time.Second, 40*day, -40*day)
	}
	charges := h.list(now)

	want := h.model.take(now, charges)
	got := h.take(charges...)
	h.remember(n, now, charges, want)
	for i := range charges {
		h.equal(got[i], charges[i].Policy, answerOf(want[i]), fmt.Sprintf("charge %d of step %d", i+1, n))
	}
	if h.t.Failed() {
		h.t.Fatalf("the store and the model differ in step %d; LIMITTEST_SEED=%d repeats it; before it:\n%s",
			n, h.seed, strings.Join(h.past, "\n"))
	}
	if !admitted(want) {
		h.denied++
	}
	h.waits = h.waits[:0]
	for _, d := range want {
		h.waits = append(h.waits, d.Reset, max(0, d.RetryAfter), d.Delay)
	}
}

// list makes charges for one caller.
func (h *teller) list(now int64) (charges []ratelimit.Charge) {
	who := h.callers[h.rnd.IntN(len(h.callers))]
	limits := make([]int, 1+h.rnd.IntN(h.atOnce))
	for i := range limits {
		limits[i] = h.rnd.IntN(len(h.limits))
	}
	uncertain := func(l int) bool {
		v := h.limits[l].version()
		return !h.certain(h.partition(who, l), v.live, now) || !h.certain(h.partition(who, l), v.candidate, now)
	}
	for slices.ContainsFunc(limits, uncertain) {
		who.generation++
	}
	for _, l := range limits {
		v := h.limits[l].version()
		c := h.charge(ratelimit.Charge{Policy: v.live, Partition: h.partition(who, l), Caller: h.partition(who, 0)}, now)
		charges = append(charges, c)
		if v.candidate != nil {
			c.Policy = v.candidate
			charges = append(charges, c)
		}
	}
	return charges
}

// charge chooses what c costs.
func (h *teller) charge(c ratelimit.Charge, now int64) ratelimit.Charge {
	lim := limitOf(c.Policy)
	capacity, _ := lim.describe(lim.at(state{}, now), now)
	remaining, _ := lim.describe(lim.at(h.model.buckets[key(c)], now), now)
	switch h.rnd.IntN(17) {
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
	case 9:
		c.Cost = 0 // looks
	default:
		c.Cost = 1
	}
	if c.Cost < 0 {
		c.Cost = 1
	}
	return c
}

// certain tells whether there is one right answer to p, which may be nil, in a
// partition.
// A store may have forgotten what ran out, by the numbers it was charged under.
// Where that would show, because the clock has gone back since or the plan now
// drains more slowly, there is none.
func (h *teller) certain(partition string, p *ratelimit.Policy, now int64) bool {
	if p == nil {
		return true
	}
	s := h.model.buckets[key(ratelimit.Charge{Policy: p, Partition: partition})]
	return s.empty() || s.gone > h.latest || limitOf(p).at(s, now).empty()
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
		return time.Duration(h.rnd.Int64N(int64(2*day/time.Microsecond))) * time.Microsecond
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
			answerOf(d))
	}
	if len(h.past) == kept {
		h.past = append(h.past[:0], h.past[1:]...)
	}
	h.past = append(h.past, b.String())
}
