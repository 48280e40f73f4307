package limittest

import (
	"maps"
	"math/big"
	"runtime"
	"slices"
	"strconv"
	"time"

	"bouncer/gateway/ratelimit"
)

// commonMutants are of the oldest algorithms, or of all.
var commonMutants = []mutant{
	{name: "admits one too many", limit: func(p *ratelimit.Policy, _ limit) limit { return more(p, 1) }},
	{name: "admits one too few", limit: func(p *ratelimit.Policy, _ limit) limit { return more(p, -1) }},
	{name: "charges the others on a denial", history: "History/Lists", pays: func(ds []ratelimit.Decision, i int) bool { return ds[i].Allowed }},
	{name: "charges the denied attempt", pays: func([]ratelimit.Decision, int) bool { return true }, limit: func(p *ratelimit.Policy, right limit) limit {
		return override{limit: right, onSpend: func(s state, now, cost int64) state {
			if p.Quota == 0 {
				return s
			}
			return right.spend(s, now, min(cost, 1000))
		}}
	}},
	{name: "opens the window at a denial", limit: of(func(l fixed) limit {
		return override{
			limit:  l,
			onFill: func(s state, now, _ int64) state { return opened(l, s, now) },
			onSpend: func(s state, now, cost int64) state {
				open := opened(l, s, now)
				s = l.spend(s, now, cost)
				s.ends = open.ends
				return s
			},
		}
	}), paysRejected: func(ds []ratelimit.Decision, i int) bool {
		return paysRejected(ds, i) || !admitted(ds) && ds[i].Policy.Algorithm == ratelimit.FixedWindow
	}},
	{name: "extends the window with each charge", limit: of(func(l fixed) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			s = l.spend(s, now, cost)
			s.ends = now + l.window
			return s
		}}
	})},
	{name: "aligns the window to the clock", limit: of(func(l fixed) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			s = l.spend(s, now, cost)
			if l.calendar == nil {
				s.ends = (now/l.window + 1) * l.window
			}
			return s
		}}
	})},
	{name: "retry after is a microsecond short", limit: waiting(func(d time.Duration) time.Duration { return d - micro })},
	{name: "retry after is a microsecond long", limit: waiting(func(d time.Duration) time.Duration { return d + micro })},
	{name: "retry after in whole milliseconds, rounded down", limit: waiting(func(d time.Duration) time.Duration { return d.Truncate(milli) })},
	{name: "retry after is the reset", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		for i := range ds {
			if ds[i].RetryAfter > 0 {
				ds[i].RetryAfter = ds[i].Reset
			}
		}
		return ds
	}},
	{name: "a wait where none helps", limit: func(p *ratelimit.Policy, right limit) limit {
		return override{limit: right, onWait: func(s state, now int64, units *big.Rat) time.Duration {
			if d := right.wait(s, now, units); d != never {
				return d
			}
			return p.Window
		}}
	}},
	{name: "reset is until all is refilled", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onDescribe: func(s state, now int64) (int64, time.Duration) {
			remaining, reset := l.describe(s, now)
			if reset > 0 {
				reset = micros(l.drained(s, now, s.units()))
			}
			return remaining, reset
		}}
	})},
	{name: "refills on a clock that stepped back", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			s.since = min(s.since, now)
			return l.at(s, now)
		}}
	})},
	{name: "ends a window on a clock that stepped back", tables: true, limit: of(func(l fixed) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			if now < s.ends-l.window {
				return state{}
			}
			return l.at(s, now)
		}}
	})},
	{name: "keeps what was left when the plan changes", history: "History/TokenBucket", limit: of(func(l bucketLimit) limit {
		capacity := floor(l.capacity)
		return override{limit: l, onAt: func(s state, now int64) state {
			if s.ends > 0 && s.ends != capacity { // the capacity it was charged under
				left := new(big.Rat).Sub(unit(s.ends), s.units())
				spent := new(big.Rat).Sub(unit(min(s.ends, capacity)), left)
				if spent.Sign() < 0 {
					spent = new(big.Rat)
				}
				s.spent = spent
			}
			return l.at(s, now)
		}, onSpend: func(s state, now, cost int64) state {
			s = l.spend(s, now, cost)
			s.ends = capacity
			return s
		}}
	})},
	{name: "keeps the debt when the plan is lowered", history: "History/TokenBucket", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			endless := l
			endless.capacity = unit(1 << 60)
			s = endless.at(s, now)
			s.spent = least(s.spent, l.capacity)
			return s
		}}
	})},
	{name: "rounds a part of a unit for the caller", history: "History/TokenBucket", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			down := inGrains(new(big.Rat).Neg(s.units()), l.rate)
			s.spent = down.Neg(down)
			return l.at(s, now)
		}}
	})},
	{name: "remaining is negative after a lowering", limit: of(func(l fixed) limit {
		return override{limit: l, onDescribe: func(s state, now int64) (int64, time.Duration) {
			_, reset := l.describe(s, now)
			return floor(new(big.Rat).Sub(l.quota, s.units())), reset
		}}
	})},
	{name: "remaining is after the charge on a denial", history: "History/Lists", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		for i := range ds {
			if !admitted(ds) && ds[i].Allowed && !ds[i].Policy.CountRejected && ds[i].Policy.Role == ratelimit.Enforce {
				ds[i].Remaining -= charges[i].Cost
			}
		}
		return ds
	}},
	{name: "remaining is before the charge on an admission", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		for i := range ds {
			if pays(ds, i) {
				ds[i].Remaining += charges[i].Cost
			}
		}
		return ds
	}},
	{name: "a key with the quota in it", key: func(c ratelimit.Charge) string {
		return key(c) + strconv.FormatInt(c.Policy.Quota, 10)
	}},
	{name: "a key without the window", tables: true, key: func(c ratelimit.Charge) string {
		q := *c.Policy
		q.Window = 0
		c.Policy = &q
		return key(c)
	}},
	{name: "a key without the limit's name", tables: true, key: func(c ratelimit.Charge) string {
		q := *c.Policy
		q.Scope = ""
		c.Policy = &q
		return key(c)
	}},
	{name: "a key without the caller", key: func(c ratelimit.Charge) string {
		c.Partition = ""
		return key(c)
	}},
	{name: "each charge of a list is decided alone", history: "History/Lists", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		var ds []ratelimit.Decision
		for i, c := range charges {
			if c.Policy.Role != ratelimit.Candidate {
				ds = append(ds, s.model.take(now, charges[i:i+1])[0])
			} else {
				ds = append(ds[:i-1], s.model.take(now, charges[i-1:i+1])...)
			}
		}
		return ds
	}},
	{name: "retry after forgets the other charges of the list", history: "History/Lists", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		var waits []time.Duration
		for _, c := range charges {
			waits = append(waits, alone(s.model, now, c))
		}
		ds := s.model.take(now, charges)
		for i := range ds {
			if !ds[i].Policy.CountRejected && ds[i].Policy.Role != ratelimit.Candidate {
				ds[i].RetryAfter = waits[i]
			}
		}
		return ds
	}},
	{name: "decisions in another order", history: "History/Lists", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		slices.Reverse(ds)
		return ds
	}},
	{name: "the decision names an equal policy", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		for i := range ds {
			q := *ds[i].Policy
			ds[i].Policy = &q
		}
		return ds
	}},
	{name: "times printed with 14 digits", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		ds := s.model.take(now, charges)
		for k, b := range s.model.buckets {
			b.since, b.ends = digits(b.since), digits(b.ends)
			s.model.buckets[k] = b
		}
		return ds
	}},
	{name: "reads and writes in two steps", tables: true, take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		trial := *s.model
		trial.buckets = maps.Clone(s.model.buckets)
		s.mu.Unlock()
		runtime.Gosched()
		ds := trial.take(now, charges)
		s.mu.Lock()
		maps.Copy(s.model.buckets, trial.buckets)
		return ds
	}},
	{name: "a new slice instead of the caller's", tables: true, take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		return s.model.take(now, charges)
	}},
}

// opened is s with a window open at now.
func opened(l fixed, s state, now int64) state {
	if s.ends > now {
		return s
	}
	return l.holding(s, now, s.units())
}

// digits is what is left of n after Lua's tostring.
func digits(n int64) int64 {
	f, err := strconv.ParseFloat(strconv.FormatFloat(float64(n), 'g', 14, 64), 64)
	if err != nil {
		panic(err)
	}
	return int64(f)
}
