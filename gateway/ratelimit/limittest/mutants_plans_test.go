package limittest

import "math/big"

// plansMutants get wrong what a bucket remembers of a larger plan.
var plansMutants = []mutant{
	{name: "plans: forgets what a smaller one has cut", history: "History/Plans", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			s = l.at(s, now)
			s.past = nil
			return s
		}}
	})},
	{name: "plans: forgets what is charged under the smaller one", history: "History/Plans", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			past := s.past
			s = l.spend(s, now, cost)
			s.past = past
			return s
		}}
	})},
	{name: "plans: the smaller one sees what the larger one has spent", history: "History/Plans", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			s.past = s.past.with(func(p *past) { p.above = unit(-1) })
			return l.at(s, now)
		}}
	})},
	{name: "plans: a larger one, but not as large, does not see it", history: "History/Plans", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			s.past = s.past.with(func(p *past) { p.above = p.most })
			return l.at(s, now)
		}}
	})},
	{name: "plans: what is remembered does not drain", history: "History/Plans", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			before := s.past
			s = l.at(s, now)
			if before != nil {
				s.past = s.past.with(func(p *past) { p.spent = before.spent })
			}
			return s
		}}
	})},
	{name: "plans: what is remembered drains as the plan that asks", history: "History/Plans", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			if l.rate != nil {
				s.past = s.past.with(func(p *past) { p.rate = l.rate })
			}
			return l.at(s, now)
		}}
	})},
	{name: "plans: a second cut takes the place of the first", history: "History/Plans", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			if s.past != nil && l.capacity.Cmp(s.past.above) <= 0 && s.units().Cmp(l.capacity) > 0 {
				s.past = nil
			}
			return l.at(s, now)
		}}
	})},
	{name: "plans: a second cut is not seen by the plan that made the first", history: "History/Plans", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			before := s.past
			s = l.at(s, now)
			if before != nil {
				s.past = s.past.with(func(p *past) {
					if p.above.Cmp(before.above) < 0 {
						p.above = before.above
					}
				})
			}
			return s
		}}
	})},
	{name: "plans: what is remembered grows without bound", history: "History/Plans", limit: of(func(l bucketLimit) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			s = l.at(s, now)
			s.past = s.past.with(func(p *past) { p.most = unit(1 << 60) })
			return s
		}}
	})},
	{name: "plans: a rejected attempt throws away the units of a larger one", history: "History/Plans", limit: of(func(l logged) limit {
		return override{limit: l, onFill: func(s state, now, cost int64) state {
			s = l.spend(s, now, min(cost, l.quota))
			s.log = s.log[max(0, len(s.log)-int(l.quota)):]
			return s
		}}
	})},
}

// with is a changed copy of p, which may be nil.
func (p *past) with(change func(*past)) *past {
	if p == nil {
		return nil
	}
	q := *p
	change(&q)
	return &q
}

// lagMutants get wrong what a clock that is behind does to a longest wait.
var lagMutants = []mutant{
	{name: "queue: max delay forgets that the clock is behind", limit: queued(func(l bucketLimit) limit {
		patient := l
		patient.longest = 0
		return override{limit: l, onFits: patient.fits, onFill: patient.fill}
	})},
	{name: "queue: a clock that is behind takes places", limit: queued(func(l bucketLimit) limit {
		if l.longest == 0 {
			return l
		}
		return override{limit: l, onFits: func(s state, now int64, units *big.Rat) bool {
			lag := new(big.Rat)
			if l.rate != nil {
				lag.Mul(l.rate, unit(max(0, s.since-now)))
			}
			return l.fits(s, now, lag.Add(lag, units))
		}}
	})},
}
