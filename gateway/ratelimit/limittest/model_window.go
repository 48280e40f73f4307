package limittest

import (
	"math/big"
	"slices"
	"sort"
	"time"

	"bouncer/gateway/ratelimit"
)

// A fixed window counts from its first charge until its end, when all of it is
// available again. Of a calendar it ends where the calendar says, else a window's
// length after it was opened.
type fixed struct {
	quota    *big.Rat
	window   int64 // µs
	calendar *ratelimit.Calendar
}

func (l fixed) at(s state, now int64) state {
	if now >= s.ends {
		return state{}
	}
	return s
}

func (l fixed) fits(s state, _ int64, units *big.Rat) bool {
	return new(big.Rat).Add(s.units(), units).Cmp(l.quota) <= 0
}

func (l fixed) spend(s state, now, cost int64) state {
	return l.holding(s, now, new(big.Rat).Add(s.units(), unit(cost)))
}

func (l fixed) fill(s state, now, cost int64) state {
	used := least(l.quota, new(big.Rat).Add(s.units(), unit(cost)))
	if used.Cmp(s.units()) <= 0 {
		return s // full, or more than that since the plan was lowered
	}
	return l.holding(s, now, used)
}

func (l fixed) holding(s state, now int64, used *big.Rat) state {
	ends := s.ends
	if s.units().Sign() == 0 {
		if l.calendar != nil {
			_, ends = calendarWindow(l.calendar, now)
		} else {
			ends = now + l.window
		}
	}
	return state{spent: used, ends: ends, gone: ends}
}

func (l fixed) describe(s state, now int64) (int64, time.Duration) {
	free := new(big.Rat).Sub(l.quota, s.units())
	remaining := max(0, floor(free))
	if s.units().Sign() == 0 {
		return remaining, 0
	}
	return remaining, micros(big.NewInt(s.ends - now))
}

func (l fixed) wait(s state, now int64, units *big.Rat) time.Duration {
	if l.quota.Sign() == 0 || units.Cmp(l.quota) > 0 {
		return ratelimit.Never
	}
	return micros(big.NewInt(s.ends - now))
}

func (l fixed) delay(state, int64, int64) time.Duration { return 0 }

// A log knows when every unit was charged. A unit counts for one window's length
// from then.
type logged struct{ quota, window int64 }

func (l logged) at(s state, now int64) state {
	out := state{gone: s.gone}
	for _, at := range s.log {
		if now-at < l.window {
			out.log = append(out.log, at)
		}
	}
	return out
}

func (l logged) fits(s state, _ int64, units *big.Rat) bool {
	return units.Cmp(unit(l.quota-int64(len(s.log)))) <= 0
}

func (l logged) spend(s state, now, cost int64) state {
	if n := len(s.log); n > 0 {
		now = max(now, s.log[n-1]) // the clock is behind; the order holds
	}
	out := state{log: slices.Clone(s.log), gone: now + l.window}
	for range cost {
		out.log = append(out.log, now)
	}
	return out
}

// fill: the oldest make room, but never so that fewer count than did, which may be
// more than the quota after a larger one.
func (l logged) fill(s state, now, cost int64) state {
	keep := max(int(l.quota), len(s.log))
	s = l.spend(s, now, min(cost, l.quota))
	s.log = s.log[max(0, len(s.log)-keep):]
	return s
}

func (l logged) describe(s state, now int64) (int64, time.Duration) {
	remaining := max(0, l.quota-int64(len(s.log)))
	if remaining == l.quota {
		return remaining, 0
	}
	return remaining, l.wait(s, now, unit(remaining+1))
}

func (l logged) wait(s state, now int64, units *big.Rat) time.Duration {
	if l.quota == 0 || units.Cmp(unit(l.quota)) > 0 {
		return ratelimit.Never
	}
	over := int64(len(s.log)) + floor(units) - l.quota // so many have to leave
	return time.Duration(s.log[over-1]+l.window-now) * time.Microsecond
}

func (l logged) delay(state, int64, int64) time.Duration { return 0 }

// A counter has two counts: of the window that the clock is in, windows being
// counted from the epoch, and of the one before. Of that, the share counts that
// the last window's length still covers, as if its charges had been spread evenly.
type counted struct{ quota, window int64 }

func (l counted) at(s state, now int64) state {
	k := now / l.window
	switch t := s.tally; {
	case t == tally{}, k > t.k+1:
		return state{tally: tally{k: k}, gone: s.gone}
	case k == t.k+1:
		return state{tally: tally{k: k, previous: t.current}, gone: s.gone}
	default: // in the window that it was, or the clock is behind it
		return s
	}
}

// used is what counts of the quota.
func (l counted) used(s state, now int64) *big.Int {
	elapsed := max(0, now-s.tally.k*l.window)
	covered := new(big.Int).Mul(big.NewInt(s.tally.previous), big.NewInt(l.window-elapsed))
	share, part := covered.DivMod(covered, big.NewInt(l.window), new(big.Int))
	if part.Sign() > 0 {
		share.Add(share, big.NewInt(1)) // a part counts as one
	}
	return share.Add(share, big.NewInt(s.tally.current))
}

// room is what is not used of the quota; below 0 after the plan was lowered.
func (l counted) room(s state, now int64) *big.Int {
	return new(big.Int).Sub(big.NewInt(l.quota), l.used(s, now))
}

func (l counted) fits(s state, now int64, units *big.Rat) bool {
	return units.Cmp(new(big.Rat).SetInt(l.room(s, now))) <= 0
}

func (l counted) spend(s state, _, cost int64) state {
	t := s.tally
	t.current += cost
	return state{tally: t, gone: (t.k + 2) * l.window}
}

func (l counted) fill(s state, now, cost int64) state {
	cost = min(cost, clamp(l.room(s, now)))
	if cost <= 0 {
		return s
	}
	return l.spend(s, now, cost)
}

func (l counted) describe(s state, now int64) (int64, time.Duration) {
	remaining := max(0, clamp(l.room(s, now)))
	if remaining == l.quota {
		return remaining, 0
	}
	return remaining, l.wait(s, now, unit(remaining+1))
}

// wait tries: units that do not fit now do not fit before they do, since what is
// used only ever falls while nobody charges, and after two windows there is none.
func (l counted) wait(s state, now int64, units *big.Rat) time.Duration {
	if l.quota == 0 || units.Cmp(unit(l.quota)) > 0 {
		return ratelimit.Never
	}
	end := (s.tally.k+2)*l.window - now
	wait := sort.Search(int(end), func(t int) bool {
		later := now + int64(t)
		return l.fits(l.at(s, later), later, units)
	})
	return micros(big.NewInt(int64(wait)))
}

func (l counted) delay(state, int64, int64) time.Duration { return 0 }
