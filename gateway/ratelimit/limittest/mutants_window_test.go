package limittest

import (
	"math/big"
	"slices"
	"time"

	"bouncer/gateway/ratelimit"
)

var logMutants = []mutant{
	{name: "log: admits one too many", limit: of(func(l logged) limit {
		if l.quota == 0 {
			return l
		}
		return override{limit: l, onFits: func(s state, now int64, units *big.Rat) bool {
			return logged{l.quota + 1, l.window}.fits(s, now, units)
		}, onWait: logged{l.quota + 1, l.window}.wait, onFill: logged{l.quota + 1, l.window}.fill}
	})},
	{name: "log: keeps one unit more of what is denied", limit: of(func(l logged) limit {
		return override{limit: l, onFill: logged{l.quota + 1, l.window}.fill}
	})},
	{name: "log: keeps the oldest of what is denied", limit: of(func(l logged) limit {
		return override{limit: l, onFill: func(s state, now, cost int64) state {
			s = l.spend(s, now, min(cost, l.quota))
			s.log = s.log[:min(len(s.log), int(l.quota))]
			return s
		}}
	})},
	{name: "log: charges denials", limit: of(func(l logged) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state { return l.spend(s, now, min(cost, 1000)) }}
	}), pays: func(ds []ratelimit.Decision, i int) bool {
		return pays(ds, i) || ds[i].Policy.Algorithm == ratelimit.SlidingWindowLog && !ds[i].Allowed && ds[i].Policy.Quota > 0
	}},
	{name: "log: equal timestamps are one entry", limit: of(func(l logged) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			s = l.spend(s, now, cost)
			s.log = slices.Compact(s.log)
			return s
		}}
	})},
	{name: "log: an entry counts a microsecond too long", limit: of(func(l logged) limit {
		return override{limit: l, onAt: logged{l.quota, l.window + 1}.at, onWait: logged{l.quota, l.window + 1}.wait}
	})},
	{name: "log: entries of a clock that stepped back are out of order", history: "History/SlidingWindowLog", limit: of(func(l logged) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			log := slices.Clone(s.log)
			for range cost {
				log = append(log, now)
			}
			return state{log: log, gone: now + l.window}
		}}
	})},
	{name: "log: waits for the oldest only", limit: of(func(l logged) limit {
		return override{limit: l, onWait: func(s state, now int64, units *big.Rat) time.Duration {
			if d := l.wait(s, now, units); d == never {
				return d
			}
			return time.Duration(s.log[0]+l.window-now) * micro
		}}
	})},
	{name: "log: times printed with 14 digits", limit: of(func(l logged) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state { return l.spend(s, digits(now), cost) }}
	})},
}

// weighs tells whether s is within the quota, by another share of the previous
// window.
func weighs(l counted, s state, now int64, share func(previous, left, window int64) int64) bool {
	elapsed := max(0, now-s.tally.k*l.window)
	return s.tally.current+share(s.tally.previous, l.window-elapsed, l.window) <= l.quota
}

var counterMutants = []mutant{
	{name: "counter: admits one too many", limit: of(func(l counted) limit {
		if l.quota == 0 {
			return l
		}
		return override{limit: l, onFits: func(s state, now int64, units *big.Rat) bool {
			return counted{l.quota + 1, l.window}.fits(s, now, units)
		}, onWait: counted{l.quota + 1, l.window}.wait}
	})},
	{name: "counter: rounds the weight down", limit: of(func(l counted) limit {
		return override{limit: l, onFits: func(s state, now int64, units *big.Rat) bool {
			s.tally.current += clampRat(units)
			return units.Cmp(unit(l.quota)) <= 0 && weighs(l, s, now, func(previous, left, window int64) int64 {
				return floor(new(big.Rat).Mul(unit(previous), big.NewRat(left, window)))
			})
		}}
	})},
	{name: "counter: weighs in floating point", history: "History/SlidingWindowCounter", limit: of(func(l counted) limit {
		return override{limit: l, onFits: func(s state, now int64, units *big.Rat) bool {
			s.tally.current += clampRat(units)
			return units.Cmp(unit(l.quota)) <= 0 && weighs(l, s, now, func(previous, left, window int64) int64 {
				share := float64(previous) * float64(left) / float64(window)
				n := int64(share)
				if float64(n) < share {
					n++
				}
				return n
			})
		}}
	})},
	{name: "counter: forgets the previous window at the edge", limit: of(func(l counted) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			s = l.at(s, now)
			s.tally.previous = 0
			return s
		}}
	})},
	{name: "counter: keeps the previous window for another", limit: of(func(l counted) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			if t := s.tally; t != (tally{}) && now/l.window == t.k+2 {
				return state{tally: tally{k: t.k + 2, previous: t.current}, gone: s.gone}
			}
			return l.at(s, now)
		}}
	})},
	{name: "counter: lives by the instance's clock", limit: of(func(l counted) limit {
		const ahead = 5_000_000
		return override{
			limit:      l,
			onAt:       func(s state, now int64) state { return l.at(s, now+ahead) },
			onFits:     func(s state, now int64, units *big.Rat) bool { return l.fits(s, now+ahead, units) },
			onDescribe: func(s state, now int64) (int64, time.Duration) { return l.describe(s, now+ahead) },
			onWait:     func(s state, now int64, units *big.Rat) time.Duration { return l.wait(s, now+ahead, units) },
		}
	})},
	{name: "counter: begins anew when the clock steps back", history: "History/SlidingWindowCounter", limit: of(func(l counted) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			if now/l.window < s.tally.k {
				return state{tally: tally{k: now / l.window}}
			}
			return l.at(s, now)
		}}
	})},
	{name: "counter: waits for the end of the window", limit: of(func(l counted) limit {
		return override{limit: l, onWait: func(s state, now int64, units *big.Rat) time.Duration {
			if d := l.wait(s, now, units); d == never {
				return d
			}
			return time.Duration((s.tally.k+1)*l.window-now) * micro
		}}
	})},
	{name: "counter: charges denials", limit: of(func(l counted) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state { return l.spend(s, now, min(cost, 1000)) }}
	}), pays: func(ds []ratelimit.Decision, i int) bool {
		return pays(ds, i) || ds[i].Policy.Algorithm == ratelimit.SlidingWindowCounter && !ds[i].Allowed && ds[i].Policy.Quota > 0
	}},
}

func clampRat(r *big.Rat) int64 { return clamp(new(big.Int).Quo(r.Num(), r.Denom())) }
