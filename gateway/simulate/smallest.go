package simulate

import (
	"math/bits"
	"slices"

	"bouncer/gateway/ratelimit"
)

// What number a limit would need.
//
// A limit that denies nobody has been charged for every request, whatever its
// number is: so what its buckets hold does not depend on the number, but for
// how fast a bucket refills, and one pass finds the number that each would have
// needed.
//
//   - Windows, logs and counters: a policy with the largest number there is goes
//     along, by the production code. What it has used at most is the number.
//   - Buckets: what was spent is P(t) − P(s) − N/W·(t−s), of the span from any
//     request s on, and has to stay within the burst. Each pair of requests gives
//     a least N, and the largest is wanted. For that it is enough to keep the
//     lower convex hull of the points (s, P before s), and of it what the number
//     found so far cannot have drained: a handful, since any pause empties the
//     bucket. All in integers of 128 bits, so exact where a policy is
//     (ratelimit.Policy.Exact).
//
// A caller is denied by a number if and only if it is below what its bucket
// needs, so that the number for 99 of 100 callers is found by counting. Where
// callers share a bucket that is not so: which of them are denied depends on who
// comes first. For these the requests are kept, up to maxTimeline in all, and
// numbers are tried with ratelimit.Decide until the smallest is found.

const (
	// maxHull bounds the points kept for one bucket. It takes as many requests,
	// each sooner after the one before than that one was, to reach it.
	maxHull = 1 << 14
	// maxTimeline bounds the requests kept for limits whose buckets are shared.
	maxTimeline = 1 << 20
)

// A meter finds the smallest numbers of one limit.
type meter struct {
	policy *ratelimit.Policy
	big    *ratelimit.Policy // windows, logs, counters: the same with the largest quota
	moves  bool              // a token bucket whose burst is its number
	window int64             // µs

	buckets map[string]*bucket // by partition
	order   []*bucket
	shared  bool // some bucket has more than one caller
	lost    bool // a bound was hit: the number is not known

	burst int64 // the largest burst that a bucket would have needed at this rate

	timeline []request // of limits whose buckets may be shared; nil after a bound
	keeping  bool
	callers  map[*caller]struct{}
}

// A request is one of the timeline.
type request struct {
	at     int64
	cost   int64
	caller *caller
	bucket int
}

// A bucket is what one bucket would have needed.
type bucket struct {
	partition string
	index     int
	caller    *caller
	need      int64
	never     bool // no number would do

	state ratelimit.State // windows, logs, counters

	charged int64 // buckets: units so far
	hull    []point
	spent   int64 // at this rate, in 1/Den units
	at      int64
}

// A point is a time, and what had been charged before it.
type point struct{ at, charged int64 }

// newMeter returns a meter of p; keep, if its buckets may have several callers.
func newMeter(p *ratelimit.Policy, keep bool) *meter {
	m := &meter{policy: p, keeping: keep, window: p.Window.Microseconds(), buckets: map[string]*bucket{}, callers: map[*caller]struct{}{}}
	switch p.Algorithm {
	case ratelimit.TokenBucket:
		m.moves = p.Burst == max(1, p.Quota)
	case ratelimit.LeakyBucket:
	default:
		quota := ratelimit.MaxQuota
		if p.Algorithm == ratelimit.SlidingWindowLog {
			quota = ratelimit.MaxLogQuota
		}
		m.big = m.with(quota)
	}
	return m
}

// with is the policy with another number; nil if there is none with it.
func (m *meter) with(n int64) *ratelimit.Policy {
	spec := *m.policy
	spec.Quota, spec.LocalCap, spec.Lease, spec.Role = n, nil, ratelimit.Lease{}, ratelimit.Enforce
	if m.moves {
		spec.Burst = max(1, n)
	}
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		return nil
	}
	return p
}

// charge takes note of one request. last is the bucket that this caller charged
// before, mostly the same: so that it need not be looked up.
func (m *meter) charge(at int64, c *ratelimit.Charge, who *caller, last **bucket, room *int) {
	b := *last
	if b == nil || b.partition != c.Partition {
		if b = m.buckets[c.Partition]; b == nil {
			b = &bucket{partition: c.Partition, index: len(m.order), caller: who}
			m.buckets[c.Partition] = b
			m.order = append(m.order, b)
		}
		if b.caller != who {
			m.shared = true
		}
		m.callers[who] = struct{}{}
		*last = b
	}
	if m.keeping {
		if *room == 0 {
			*room += len(m.timeline)
			m.keeping, m.timeline = false, nil
		} else {
			*room--
			m.timeline = append(m.timeline, request{at, c.Cost, who, b.index})
		}
	}
	if m.big != nil {
		m.chargeWindow(b, at, c.Cost)
		return
	}
	m.chargeBurst(b, at, c.Cost)
	m.chargeBucket(b, at, c.Cost)
}

func (m *meter) chargeWindow(b *bucket, at, cost int64) {
	s, ok := m.big.Admit(m.big.Advance(b.state, at), at, cost)
	b.state = s
	if !ok {
		b.never = true
		return
	}
	left, _ := m.big.Describe(s, at)
	b.need = max(b.need, m.big.Quota-left)
}

// chargeBurst finds the burst that the bucket would have needed at this rate.
func (m *meter) chargeBurst(b *bucket, at, cost int64) {
	num, den := m.policy.Num(), m.policy.Den()
	if num == 0 {
		return
	}
	if us := at - b.at; us >= b.spent/num+1 {
		b.spent = 0
	} else {
		b.spent = max(0, b.spent-us*num)
	}
	b.at = at
	b.spent += cost * den
	m.burst = max(m.burst, (b.spent+den-1)/den)
}

func (m *meter) chargeBucket(b *bucket, at, cost int64) {
	b.need = max(b.need, 1)
	if n := len(b.hull); n == 0 || b.hull[n-1].at < at {
		b.add(point{at, b.charged})
	}
	b.charged += cost
	if len(b.hull) > maxHull {
		m.lost = true
		b.hull = append(b.hull[:0], b.hull[len(b.hull)-1])
	}
	switch p := m.policy; {
	case p.Algorithm == ratelimit.LeakyBucket:
		b.least(m.window, point{at, b.charged - p.Queue - 1})
		if p.MaxDelay > 0 {
			b.least(m.window, point{at + p.MaxDelay.Microseconds(), b.charged - 1})
		}
	case m.moves:
		// N·(1 + t/W) ≥ charged: as if a whole window had been there to refill.
		b.least(m.window, point{at + m.window, b.charged})
	default:
		b.least(m.window, point{at, b.charged - p.Burst})
	}
	// What the number found so far drains before the next point, the bucket has
	// forgotten.
	drop := 0
	for drop+1 < len(b.hull) && !steeper(b.hull[drop], b.hull[drop+1], b.need, m.window) {
		drop++
	}
	if drop > 0 {
		b.hull = append(b.hull[:0], b.hull[drop:]...)
	}
}

// add appends a point to the lower convex hull.
func (b *bucket) add(p point) {
	h := b.hull
	for len(h) >= 2 && !turnsUp(h[len(h)-2], h[len(h)-1], p) {
		h = h[:len(h)-1]
	}
	b.hull = append(h, p)
}

// least raises need to the least N for which no span up to q is charged more
// than N/window drains. The slopes from the hull to a point behind it rise up to
// the tangent and fall after it.
func (b *bucket) least(window int64, q point) {
	h := b.hull
	lo, hi := 0, len(h)-1
	for lo < hi {
		mid := (lo + hi) / 2
		if turnsUp(h[mid], h[mid+1], q) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	s := h[lo]
	// The newest may be of the same time, with no span at all.
	if last := h[len(h)-1]; q.at == last.at && q.charged > last.charged {
		b.never = true
		return
	}
	if q.charged <= s.charged || q.at == s.at || !steeper(s, q, b.need, window) {
		return
	}
	high, low := bits.Mul64(uint64(q.charged-s.charged), uint64(window)) //nolint:gosec // neither is negative
	span := uint64(q.at - s.at)                                          //nolint:gosec // above 0
	if high >= span {
		b.never = true
		return
	}
	n, rest := bits.Div64(high, low, span)
	if rest > 0 {
		n++
	}
	if n > uint64(ratelimit.MaxQuota) {
		b.never = true
		return
	}
	b.need = int64(n)
}

// turnsUp reports whether a, m, q, of rising times, turn upwards at m.
func turnsUp(a, m, q point) bool {
	// (q−m).charged·(m−a).at > (m−a).charged·(q−m).at
	if q.charged <= m.charged {
		return false
	}
	return more(q.charged-m.charged, m.at-a.at, m.charged-a.charged, q.at-m.at)
}

// steeper reports whether from a to q more is charged than n/window drains.
func steeper(a, q point, n, window int64) bool {
	if q.charged <= a.charged {
		return false
	}
	return more(q.charged-a.charged, window, n, q.at-a.at)
}

// more reports whether a·b > c·d; none is negative.
func more(a, b, c, d int64) bool {
	h1, l1 := bits.Mul64(uint64(a), uint64(b)) //nolint:gosec // see above
	h2, l2 := bits.Mul64(uint64(c), uint64(d)) //nolint:gosec // see above
	return h1 > h2 || h1 == h2 && l1 > l2
}

// ok is the smallest number that denies nobody; false if there is none, or none
// is known.
func (m *meter) ok() (int64, bool) {
	n := int64(0)
	for _, b := range m.order {
		if b.never {
			return 0, false
		}
		n = max(n, b.need)
	}
	return n, !m.lost && m.with(n) != nil
}

// most is the smallest number that denies at most one caller in a hundred.
func (m *meter) most() (int64, bool) {
	if m.lost {
		return 0, false
	}
	spare := len(m.callers) / 100
	if m.shared {
		return m.tried(spare)
	}
	const none = ratelimit.MaxQuota + 1
	needs := map[*caller]int64{}
	for _, b := range m.order {
		n := b.need
		if b.never {
			n = none
		}
		needs[b.caller] = max(needs[b.caller], n)
	}
	sorted := make([]int64, 0, len(needs))
	for _, n := range needs {
		sorted = append(sorted, n)
	}
	slices.Sort(sorted)
	if len(sorted) == 0 {
		return 0, true
	}
	n := sorted[len(sorted)-1-spare]
	return n, n != none && m.with(n) != nil
}

// tried finds it by trying.
func (m *meter) tried(spare int) (int64, bool) {
	top, ok := m.ok()
	if !ok {
		top = m.enough(spare)
		if top == 0 {
			return 0, false
		}
	}
	if spare == 0 {
		return top, ok
	}
	if m.timeline == nil {
		return 0, false
	}
	lo, hi := int64(0), top // lo denies too many, or is 0
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if m.denies(mid) <= spare {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi, true
}

// enough finds some number that denies few enough, where none denies nobody.
func (m *meter) enough(spare int) int64 {
	if m.timeline == nil || spare == 0 {
		return 0
	}
	for n := int64(1); n <= ratelimit.MaxQuota/4; n *= 4 {
		if m.with(n) == nil {
			return 0
		}
		if m.denies(n) <= spare {
			return n
		}
	}
	return 0
}

// denies counts the callers that the number n denies.
func (m *meter) denies(n int64) int {
	p := m.with(n)
	if p == nil {
		return len(m.callers)
	}
	states := make([]ratelimit.State, len(m.order))
	denied := map[*caller]struct{}{}
	charges := []ratelimit.Charge{{Policy: p}}
	slots := make([]ratelimit.Slot, 1)
	var ds []ratelimit.Decision
	for _, r := range m.timeline {
		charges[0].Cost = r.cost
		slots[0] = ratelimit.Slot{State: states[r.bucket]}
		ds = ratelimit.Decide(ds[:0], ratelimit.SourceMemory, r.at, charges, slots)
		if !ds[0].Allowed {
			denied[r.caller] = struct{}{}
		}
		if slots[0].Charged != nil {
			states[r.bucket] = slots[0].After
		}
	}
	return len(denied)
}

// larger is what the other number of a bucket, its burst or its queue, would
// have to be at this rate; 0 if it has none of its own.
func (m *meter) larger() (burst, queue int64) {
	switch {
	case m.lost || m.policy.Num() == 0:
		return 0, 0
	case m.policy.Algorithm == ratelimit.LeakyBucket:
		return 0, max(0, m.burst-1)
	case m.policy.Algorithm == ratelimit.TokenBucket && !m.moves:
		return max(1, m.burst), 0
	}
	return 0, 0
}
