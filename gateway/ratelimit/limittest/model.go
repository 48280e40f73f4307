package limittest

import (
	"maps"
	"math"
	"math/big"
	"time"

	"bouncer/gateway/ratelimit"
)

// A model decides charges as plainly as it can be written: one map, numbers of
// any size, every timestamp kept, no thought of speed. It is what stores are
// compared with, so it uses nothing of package ratelimit but the names of things.
type model struct {
	buckets map[string]state

	// What the suite's own test replaces, to be caught.
	limitOf      func(*ratelimit.Policy) limit
	key          func(ratelimit.Charge) string
	pays         func(verdicts []ratelimit.Decision, i int) bool
	paysRejected func(verdicts []ratelimit.Decision, i int) bool
}

func newModel() *model {
	return &model{
		buckets: map[string]state{},
		limitOf: limitOf, key: key, pays: pays, paysRejected: paysRejected,
	}
}

// A state is what is remembered of one bucket. The zero state is one that was
// never charged. Each algorithm uses some of it.
type state struct {
	spent *big.Rat // units; of a bucket or queue as of since, of a fixed window within it
	since int64    // bucket, queue: µs, when spent was true
	rate  *big.Rat // bucket, queue: units per µs, by which whoever charged last drains it
	past  *past    // bucket, queue: what a larger plan has spent, or nil
	ends  int64    // fixed window: µs, when it is over
	log   []int64  // log: µs, when each unit was charged, oldest first
	tally tally    // counter
	gone  int64    // µs, from when a store may have forgotten all of this
}

// A tally is what was charged in window number k, counted from the epoch, and in
// the window before it.
type tally struct{ k, current, previous int64 }

// units is spent, which may be nil.
func (s state) units() *big.Rat {
	if s.spent == nil {
		return new(big.Rat)
	}
	return s.spent
}

// empty tells whether nothing is remembered that could matter to a verdict.
func (s state) empty() bool {
	return s.units().Sign() == 0 && s.past == nil && len(s.log) == 0 && s.tally.current == 0 && s.tally.previous == 0
}

// A limit is what a policy says. There is one kind for each algorithm.
type limit interface {
	// at returns s as it is at now under this limit; the other methods want it so.
	at(s state, now int64) state
	// fits tells whether units can be spent.
	fits(s state, now int64, units *big.Rat) bool
	// spend returns s with cost spent, which fits.
	spend(s state, now, cost int64) state
	// fill returns s with as much of cost spent as there is room for: what a
	// denied attempt is charged where those count.
	fill(s state, now, cost int64) state
	// describe returns what can be spent, and how long until that is more.
	describe(s state, now int64) (int64, time.Duration)
	// wait returns how long it is until units, which do not fit, would.
	wait(s state, now int64, units *big.Rat) time.Duration
	// delay returns how long a request of cost, which fits, is held.
	delay(s state, now, cost int64) time.Duration
}

func limitOf(p *ratelimit.Policy) limit {
	window := p.Window.Microseconds()
	switch p.Algorithm {
	case ratelimit.TokenBucket:
		return newBucket(p.Quota, window, p.Burst)
	case ratelimit.LeakyBucket:
		return newQueue(p.Quota, window, p.Queue, p.MaxDelay.Microseconds())
	case ratelimit.SlidingWindowLog:
		return logged{quota: p.Quota, window: window}
	case ratelimit.SlidingWindowCounter:
		return counted{quota: p.Quota, window: window}
	default:
		return fixed{quota: unit(p.Quota), window: window, calendar: p.Calendar}
	}
}

// key names the bucket: what is of one caller, one limit, one algorithm and one
// window is one bucket, whatever the numbers of the plan. A candidate counts
// beside its limit.
func key(c ratelimit.Charge) string {
	p := c.Policy
	k := c.Partition + " " + p.Scope + " " + p.Algorithm.String() + " " + p.Window.String()
	if p.Calendar != nil {
		k += " " + calendarName(p.Calendar)
	}
	if p.Role == ratelimit.Candidate {
		k += " candidate"
	}
	return k
}

// take decides charges at now.
func (m *model) take(now int64, charges []ratelimit.Charge) []ratelimit.Decision {
	// What each of them says, one after another: a charge finds what those before
	// it would have spent.
	out := make([]ratelimit.Decision, len(charges))
	asked := make([]*big.Rat, len(charges)) // with what those before it ask of the bucket
	trial := map[string]state{}
	wanted := map[string]*big.Rat{}
	for i, c := range charges {
		k, l := m.key(c), m.limitOf(c.Policy)
		if wanted[k] == nil {
			wanted[k] = new(big.Rat)
		}
		before := m.under(l, trial, k, now)
		asked[i] = new(big.Rat).Add(wanted[k], unit(c.Cost))
		out[i] = ratelimit.Decision{Policy: c.Policy, Allowed: c.Cost == 0 || l.fits(before, now, unit(c.Cost))}
		if c.Cost > 0 && out[i].Allowed {
			trial[k] = l.spend(before, now, c.Cost)
			wanted[k] = asked[i]
		}
	}

	// Who pays what, and how it stands with each then.
	spent := map[string]state{}
	for i, c := range charges {
		k, l := m.key(c), m.limitOf(c.Policy)
		s := m.under(l, spent, k, now)
		from := l.at(m.buckets[k], now) // where those who are denied begin to wait
		waits := !out[i].Allowed
		switch {
		case c.Cost == 0:
		case m.pays(out, i):
			if admitted(out) {
				out[i].Delay = l.delay(s, now, c.Cost)
			}
			s = l.spend(s, now, c.Cost)
			spent[k] = s
		case m.paysRejected(out, i):
			s = l.fill(s, now, c.Cost)
			spent[k] = s
			from, waits = s, !l.fits(s, now, asked[i])
		}
		out[i].Remaining, out[i].Reset = l.describe(s, now)
		if waits {
			out[i].RetryAfter = l.wait(from, now, asked[i])
		}
	}
	maps.Copy(m.buckets, spent)
	return out
}

// admitted tells whether a request with these verdicts is: every limit that is
// enforced allows.
func admitted(ds []ratelimit.Decision) bool {
	for _, d := range ds {
		if d.Policy.Role == ratelimit.Enforce && !d.Allowed {
			return false
		}
	}
	return true
}

// pays tells whether limit i is charged its cost. Only those are that allow it. A
// candidate is if the request would be admitted with the candidate in the place
// of its twin, which stands before it.
func pays(ds []ratelimit.Decision, i int) bool {
	if !ds[i].Allowed {
		return false
	}
	if ds[i].Policy.Role == ratelimit.Candidate {
		return admitted(ds[:i-1]) && admitted(ds[i:])
	}
	return admitted(ds)
}

// paysRejected tells whether limit i is charged for a request that is denied. One
// that grants nothing has nothing to charge.
func paysRejected(ds []ratelimit.Decision, i int) bool {
	return !admitted(ds) && ds[i].Policy.CountRejected && ds[i].Policy.Quota > 0
}

// under returns the state of bucket k under l at now: what the list at hand made
// of it so far, or what it was before.
func (m *model) under(l limit, list map[string]state, k string, now int64) state {
	s, ok := list[k]
	if !ok {
		s = m.buckets[k]
	}
	return l.at(s, now)
}

func unit(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func least(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return new(big.Rat).Set(a)
	}
	return new(big.Rat).Set(b)
}

func ceil(r *big.Rat) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

func floor(r *big.Rat) int64 {
	return new(big.Int).Div(r.Num(), r.Denom()).Int64()
}

func clamp(i *big.Int) int64 {
	if !i.IsInt64() || i.Int64() > math.MaxInt64/4 {
		return math.MaxInt64 / 4
	}
	return i.Int64()
}

// micros is a Duration of i µs, or the longest there is.
func micros(i *big.Int) time.Duration {
	ns := new(big.Int).Mul(i, big.NewInt(int64(time.Microsecond)))
	if !ns.IsInt64() {
		return math.MaxInt64
	}
	return time.Duration(ns.Int64())
}
