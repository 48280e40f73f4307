package limittest

import (
	"maps"
	"math"
	"math/big"
	"time"

	"bouncer/gateway/ratelimit"
)

// A model decides charges as plainly as it can be written: one map, rational
// numbers, no thought of speed. It is what stores are compared with, so it uses
// nothing of package ratelimit but the names of things.
type model struct {
	buckets map[string]state
}

func newModel() *model { return &model{buckets: map[string]state{}} }

// A state is what is remembered of one bucket. The zero state is one that was
// never charged.
type state struct {
	spent *big.Rat // units; of a token bucket as of at, of a fixed window within it
	at    int64    // token bucket: µs, when spent was true
	ends  int64    // fixed window: µs, when it is over
	gone  int64    // µs, from when a store may have forgotten all of this
}

func unit(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func (s state) units() *big.Rat {
	if s.spent == nil {
		return new(big.Rat)
	}
	return s.spent
}

// key names the bucket: what is of one caller, one limit, one algorithm and one
// window is one bucket, whatever the numbers of the plan.
func key(c ratelimit.Charge) string {
	return c.Partition + " " + c.Policy.Scope + " " + c.Policy.Algorithm.String() + " " + c.Policy.Window.String()
}

// take decides charges at now: one after another, all or none.
func (m *model) take(now int64, charges []ratelimit.Charge) []ratelimit.Decision {
	work := map[string]state{}
	wanted := map[string]int64{}
	admitted := true
	out := make([]ratelimit.Decision, len(charges))
	for i, c := range charges {
		k := key(c)
		current, ok := work[k]
		if !ok {
			current = m.buckets[k]
		}
		l := limitOf(c.Policy)
		current = l.now(current, now)
		d := ratelimit.Decision{Policy: c.Policy}
		if l.fits(current, c.Cost) {
			d.Allowed = true
			current = l.spend(current, now, c.Cost)
			work[k] = current
			wanted[k] += c.Cost
		} else {
			admitted = false
			d.RetryAfter = l.wait(l.now(m.buckets[k], now), now, wanted[k], c.Cost)
		}
		d.Remaining, d.Reset = l.describe(current, now)
		out[i] = d
	}
	if admitted {
		maps.Copy(m.buckets, work)
		return out
	}
	for i, c := range charges {
		l := limitOf(c.Policy)
		out[i].Remaining, out[i].Reset = l.describe(l.now(m.buckets[key(c)], now), now)
	}
	return out
}

// A limit is what a policy says, in exact numbers.
type limit struct {
	algorithm ratelimit.Algorithm
	quota     *big.Rat
	capacity  *big.Rat // the most that can be spent at once
	window    int64    // µs
	rate      *big.Rat // units per µs; nil where nothing comes back bit by bit
}

func limitOf(p *ratelimit.Policy) limit {
	l := limit{
		algorithm: p.Algorithm,
		quota:     unit(p.Quota),
		capacity:  unit(p.Quota),
		window:    int64(p.Window / time.Microsecond),
	}
	if p.Algorithm != ratelimit.TokenBucket {
		return l
	}
	l.capacity = unit(p.Burst)
	if p.Quota == 0 {
		return l
	}
	l.rate = big.NewRat(p.Quota, l.window)
	// What is too fine to be counted below 2^53 refills one unit per so many
	// whole microseconds, rounded up.
	count := new(big.Int).Mul(big.NewInt(p.Burst), l.rate.Denom())
	if count.Cmp(big.NewInt(1<<53)) >= 0 {
		l.rate = new(big.Rat).SetFrac(big.NewInt(1), ceil(new(big.Rat).Inv(l.rate)))
	}
	return l
}

// grain is the smallest part of a unit that the bucket counts in.
func (l limit) grain() *big.Rat {
	if l.rate == nil {
		return unit(1)
	}
	return new(big.Rat).SetFrac(big.NewInt(1), l.rate.Denom())
}

// now returns s as it is at now under this limit.
func (l limit) now(s state, now int64) state {
	if l.algorithm == ratelimit.FixedWindow {
		if now >= s.ends {
			return state{}
		}
		return s
	}
	// In this limit's grains, rounded against the caller; never above the
	// capacity; less what came back since.
	grains := ceil(new(big.Rat).Quo(s.units(), l.grain()))
	spent := new(big.Rat).Mul(new(big.Rat).SetInt(grains), l.grain())
	spent = least(spent, l.capacity)
	at := s.at
	if now > at {
		if l.rate != nil {
			back := new(big.Rat).Mul(l.rate, unit(now-at))
			spent.Sub(spent, least(back, spent))
		}
		at = now
	}
	return state{spent: spent, at: at, gone: s.gone}
}

// fits tells whether cost can be spent.
func (l limit) fits(s state, cost int64) bool {
	if l.quota.Sign() == 0 {
		return false
	}
	return new(big.Rat).Add(s.units(), unit(cost)).Cmp(l.capacity) <= 0
}

// spend returns s with cost spent, which fits.
func (l limit) spend(s state, now, cost int64) state {
	spent := new(big.Rat).Add(s.units(), unit(cost))
	if l.algorithm == ratelimit.FixedWindow {
		ends := s.ends
		if s.units().Sign() == 0 {
			ends = now + l.window
		}
		return state{spent: spent, ends: ends, gone: ends}
	}
	full := new(big.Rat).Quo(spent, l.rate)
	return state{spent: spent, at: s.at, gone: s.at + clamp(ceil(full))}
}

// describe returns what can be spent, and how long until that is more.
func (l limit) describe(s state, now int64) (int64, time.Duration) {
	if l.quota.Sign() == 0 {
		return 0, reset0(l, s, now)
	}
	free := new(big.Rat).Sub(l.capacity, s.units())
	if free.Sign() < 0 {
		free = new(big.Rat)
	}
	remaining := floor(free)
	if s.units().Sign() == 0 {
		return remaining, 0
	}
	if l.algorithm == ratelimit.FixedWindow {
		return remaining, micros(big.NewInt(s.ends - now))
	}
	return remaining, l.until(s, now, unit(remaining+1))
}

// reset0 is the reset of a quota of 0: a window that was opened under another
// quota still ends, a bucket never gains.
func reset0(l limit, s state, now int64) time.Duration {
	if l.algorithm == ratelimit.FixedWindow && s.units().Sign() > 0 {
		return micros(big.NewInt(s.ends - now))
	}
	return 0
}

// wait returns how long it is until cost fits beside what earlier charges of the
// same list want of this bucket; s is the bucket without them.
func (l limit) wait(s state, now, earlier, cost int64) time.Duration {
	wanted := new(big.Rat).Add(unit(earlier), unit(cost))
	if l.quota.Sign() == 0 || wanted.Cmp(l.capacity) > 0 {
		return ratelimit.Never
	}
	if l.algorithm == ratelimit.FixedWindow {
		return micros(big.NewInt(s.ends - now))
	}
	return l.until(s, now, wanted)
}

// until returns how long it is until units can be spent.
func (l limit) until(s state, now int64, units *big.Rat) time.Duration {
	// spent - rate*t + units <= capacity
	over := new(big.Rat).Sub(new(big.Rat).Add(s.units(), units), l.capacity)
	t := ceil(over.Quo(over, l.rate))
	if s.at > now {
		t.Add(t, big.NewInt(s.at-now)) // the clock is behind and must catch up first
	}
	return micros(t)
}

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
