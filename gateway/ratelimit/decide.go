package ratelimit

import "math"

// A Slot is what a store knows of the bucket of one charge. The charges of a
// list that have one bucket, which is the same Partition and the same
// Policy.Key, refer to the first of them, whose Slot stands for all.
type Slot struct {
	// First is the index of the first charge of this bucket; its own if it is
	// that. The other fields are the first one's only.
	First int
	// State is what is stored.
	State State
	// After is what [Decide] wants stored, if Charged is not nil.
	After State
	// Charged is the policy that charged last, nil if none did.
	Charged *Policy

	taken int64 // by the allowed charges so far, in units
}

// begin makes a slot, its bucket's first one, as it is before any charge.
func (s *Slot) begin() { s.After, s.Charged, s.taken = s.State, nil, 0 }

// Decide decides a list of charges at one time, now. It appends one decision per
// charge to dst and leaves in slots what is to be stored. There is one slot for
// each charge, with First and State, and no charge has a negative cost.
//
// Every charge is decided by its policy, one after another, each as if those
// before it that are allowed had been charged. The request is admitted if all
// that are enforced are allowed; then all that are allowed are charged. If it is
// not admitted, nothing is charged, with two exceptions:
//
//   - A candidate is charged if it allows, and all that are enforced allow but
//     its live twin, the charge before it. So it counts what would have been
//     admitted with its number in force.
//   - A policy with CountRejected is charged up to what it grants, never beyond.
//
// A decision then describes its bucket as it stands after all, and RetryAfter is
// how long it takes from there.
func Decide(dst []Decision, source Source, now int64, charges []Charge, slots []Slot) []Decision {
	base := len(dst)
	denied := 0 // of those that are enforced
	for i := range charges {
		c := &charges[i]
		p, bucket := c.Policy, &slots[slots[i].First]
		if slots[i].First == i {
			bucket.begin()
		}
		// Decided in its place, see advance; and put back unless it is charged.
		before, state := bucket.After, &bucket.After
		p.advance(state, now)

		d := Decision{Policy: p, Allowed: c.Cost == 0 || p.fits(state, now, c.Cost), Source: source}
		charged := d.Allowed && c.Cost > 0
		switch {
		case charged:
			d.Delay = p.delay(state, now, c.Cost)
			p.charge(state, now, c.Cost)
			bucket.Charged = p
			bucket.taken += c.Cost
		case !d.Allowed:
			if p.Role == Enforce {
				denied++
			}
			// Whoever comes back asks again for what earlier charges of this
			// list wanted from the same bucket, so that has to be there as well.
			from := *state
			if bucket.taken > 0 {
				from = p.Advance(bucket.State, now)
			}
			d.RetryAfter = p.retryAfter(&from, now, addCost(bucket.taken, c.Cost))
		}
		if denied == 0 { // else reject describes it
			d.Remaining, d.Reset = p.describe(state, now)
		}
		dst = append(dst, d)
		if !charged {
			bucket.After = before
		}
	}
	if denied > 0 {
		reject(dst[base:], now, charges, slots, denied)
	}
	return dst
}

// reject turns decisions of a list, of which so many that are enforced are
// denied, into those of a request that is not admitted.
func reject(ds []Decision, now int64, charges []Charge, slots []Slot, denied int) {
	for i := range charges {
		c, d := &charges[i], &ds[i]
		p, bucket := c.Policy, &slots[slots[i].First]
		if slots[i].First == i {
			bucket.begin()
		}
		state := p.Advance(bucket.After, now)
		switch {
		case c.Cost == 0:
		case p.Role == Candidate:
			if d.Allowed && denied == deniedTwin(ds, charges, i) {
				state, _ = p.Admit(state, now, c.Cost)
				bucket.After, bucket.Charged = state, p
			}
		case p.CountRejected && p.Quota > 0:
			state = p.ChargeRejected(state, now, c.Cost)
			bucket.After, bucket.Charged = state, p
			d.RetryAfter = 0
			if again := addCost(bucket.taken, c.Cost); !p.fits(&state, now, again) {
				d.RetryAfter = p.RetryAfter(state, now, again)
			}
		}
		if d.Allowed {
			bucket.taken += c.Cost
		}
		d.Delay = 0
		d.Remaining, d.Reset = p.Describe(state, now)
	}
}

// deniedTwin returns 1 if the live twin of candidate i is enforced and denied,
// else 0.
func deniedTwin(ds []Decision, charges []Charge, i int) int {
	if i == 0 || charges[i-1].Partition != charges[i].Partition {
		return 0
	}
	if twin := &ds[i-1]; twin.Policy.Role == Enforce && !twin.Allowed {
		return 1
	}
	return 0
}

// addCost adds two costs. What would overflow is more than any quota anyway.
func addCost(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}
