package ratelimit

// A Former is what a bucket had spent when a policy charged it that holds less:
// that policy's State is capped at what it holds, and this is beside it what
// stood there before. So the caller of a larger plan that has spent its burst
// does not find it back after a request under a smaller one.
//
// It is a bucket of its own, as of the State's Time: it drains as it did, and
// what is charged under the smaller policy is charged to it too. Policies that
// hold more than the one that cut see the larger of the two. A charge finds it
// gone when it has drained, when it says no more than the state does, or when
// the policy sees it and does not cut it.
//
// There is one for a bucket. A cut while one stands keeps it, which is the
// larger, and changes the mark from which on it is seen. It is never changed
// itself, so that states can share it.
type Former struct {
	// spent drains by num every µs, and both count in 1/den units.
	spent, den, num int64
	// most is what spent was when it was cut. It never comes to more, however
	// slowly it drains: the smaller policy, which begins at its own cap, admits
	// no more than comes back.
	most int64
	// Policies that hold more than under/scale units see it.
	under, scale int64
}

// convert returns s in p's scale and capped at what p holds, as of s.Time, beside
// its former as of now.
func (p *Policy) convert(s State, now int64) State {
	spent := rescale(s.Spent, s.Den, p.den, p.capacity+1)
	var f Former // of which nothing is left, if there is none
	if s.Former != nil {
		f = *s.Former
		f.spent = drain(f.spent, f.num, now-s.Time)
		if above(p.capacity, p.den, f.under, f.scale) {
			spent = max(spent, rescale(s.Former.spent, f.den, p.den, p.capacity+1))
			if spent <= p.capacity {
				f.spent = 0
			}
		}
	}
	if spent > p.capacity {
		// After a lowering, more has been spent than the bucket now holds. The rest
		// is let go, else a caller would pay a debt for having been larger.
		spent = p.capacity
		if f.spent == 0 {
			f = Former{spent: drain(s.Spent, s.Num, now-s.Time), den: s.Den, num: s.Num, most: s.Spent}
		}
		f.under, f.scale = p.capacity, p.den
	}
	s = State{Spent: spent, Den: p.den, Time: s.Time}
	if f.spent > 0 {
		kept := f // so that nothing is allocated if nothing is kept
		s.Former = &kept
	}
	return s
}

// charge returns f with so many 1/den units more.
func (f *Former) charge(parts, den int64) *Former {
	g := *f
	g.spent = min(g.most, g.spent+rescale(parts, den, g.den, g.most))
	return &g
}
