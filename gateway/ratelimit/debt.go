package ratelimit

import "iter"

// A Debt is what was admitted to one bucket without the store that keeps it, as
// far as it still counts: what the store is to be told once it is back. It is
// kept by the same functions as the store's own state, on a clock of whoever
// keeps it; what travels are ages, so that the two clocks need not agree.
//
// It is not safe for concurrent use.
type Debt struct {
	// Policy is the limit that was charged last.
	Policy *Policy
	// Partition names the bucket, together with the policy's key.
	Partition string
	// State is what counts, as if the bucket had been empty before. It is never
	// more than the policy holds.
	State State
	// Now is the time that State was advanced to, µs.
	Now int64
	// First is when the oldest unit that State may hold was charged, µs.
	First int64
	// Units are all units that were admitted, whether they still count or not.
	Units int64
	// Charged is set by whoever tells the store: the units by which the bucket
	// there has grown, rounded up. What the store holds is bounded by the policy,
	// and windows end, so it may be less than Units.
	Charged int64
}

// Charge adds a request of cost, above 0, that was admitted at now without
// having been decided by p. What p enforces is charged up to what p grants and
// never beyond: whatever admitted the request may have been more generous. A
// shadow or a candidate is charged if it would have allowed, as in [Decide].
func (d *Debt) Charge(p *Policy, now, cost int64) {
	d.Policy = p
	d.Advance(now)
	if d.State.Spent == 0 {
		d.First = now
	}
	if p.Role == Enforce {
		d.State = p.ChargeRejected(d.State, now, cost)
	} else {
		d.State, _ = p.Admit(d.State, now, cost)
	}
	d.Units = addCost(d.Units, cost)
}

// Advance brings d to now.
func (d *Debt) Advance(now int64) {
	d.State, d.Now = d.Policy.Advance(d.State, now), now
}

// Counts reports whether anything of d counted at d.Now.
func (d *Debt) Counts() bool { return d.Policy.RunsOut(d.State) > d.Now }

// Runs returns how many groups of units the log of d holds in memory; 0 for
// every other algorithm.
func (d *Debt) Runs() int {
	if d.State.Log == nil {
		return 0
	}
	return len(d.State.Log.runs)
}

// Units yields the units of a sliding window log that count in s, oldest first:
// when they were charged, µs, and how many were at that time. It yields nothing
// for the state of another algorithm.
func (s State) Units() iter.Seq2[int64, int64] {
	return func(yield func(at, units int64) bool) {
		if s.Log == nil || s.Spent == 0 {
			return
		}
		gone := s.Log.total() - s.Spent
		for _, r := range s.Log.runs[s.Log.find(gone+1):] {
			if !yield(r.at, r.total-gone) {
				return
			}
			gone = r.total
		}
	}
}
