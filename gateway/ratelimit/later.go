package ratelimit

import "time"

// After returns what d, a decision of a request that was not admitted or of a
// peek, says once elapsed has passed and nobody else has charged the bucket: what
// the store would answer if it were asked again then. Elapsed counts in whole
// microseconds; none has passed if it is negative.
//
// ok is false if that cannot be told from d:
//
//   - The verdict is another one then: RetryAfter has passed.
//   - Reset has passed, and how much has come back depends on what d does not
//     hold: the times of a log's units, the two counts of a counter, how far the
//     clock of a queue with a MaxDelay is behind, or the part of a microsecond at
//     which a bucket gains a unit, if it gains units at a rate whose reduced
//     numerator, [Policy.Num], is above 1.
//   - The policy has CountRejected: to be asked is to be charged.
//
// Other charges of the list on the same bucket are taken to keep their verdicts:
// where one is not ok, what the others say is of no use.
//
// Otherwise it is exact, in the whole life of a fixed window and of a bucket
// with a numerator of 1 and no MaxDelay, as nearly every plan's is. What others charge
// meanwhile makes a denial last longer, never shorter, and leaves less.
func (d Decision) After(elapsed time.Duration) (later Decision, ok bool) {
	if d.Policy.CountRejected {
		return d, false
	}
	elapsed = max(0, elapsed).Truncate(time.Microsecond)
	if !d.Allowed && d.RetryAfter != Never {
		if d.RetryAfter <= elapsed {
			return d, false
		}
		d.RetryAfter -= elapsed
	}
	switch {
	case d.Reset == 0: // nothing is spent, or nothing ever comes back
		return d, true
	case d.Reset > elapsed:
		d.Reset -= elapsed
		return d, true
	}
	return d.grown(elapsed - d.Reset)
}

// grown returns d since after the moment at which Remaining grew.
func (d Decision) grown(since time.Duration) (Decision, bool) {
	p := d.Policy
	if p.Algorithm == FixedWindow || d.Remaining+1 >= p.units {
		d.Remaining, d.Reset = p.units, 0
		return d, true
	}
	if !p.linear() {
		return d, false
	}
	// At that moment there was one unit more and, since it was rounded up to a
	// whole microsecond, up to num-1 parts of the next one.
	us, missing := since.Microseconds(), (p.units-d.Remaining-1)*p.den
	if us >= ceilDiv(missing, p.num) {
		d.Remaining, d.Reset = p.units, 0
		return d, true
	}
	least := us * p.num // below missing, so no overflow
	most := least + p.num - 1
	n := least / p.den
	reset := ceilDiv((n+1)*p.den-least, p.num)
	if most/p.den != n || ceilDiv((n+1)*p.den-most, p.num) != reset {
		return d, false
	}
	d.Remaining += 1 + n
	d.Reset = micros(reset)
	return d, true
}

// linear reports whether units come back at one rate from the first one on. With
// a MaxDelay, a clock that went back holds some of them up.
func (p *Policy) linear() bool { return p.isBucket() && p.MaxDelay == 0 }

// Costing returns what d, a decision of a request that was not admitted or of a
// peek, would say if the charge had been of cost units, above 0, and no other
// charge of the list had its bucket.
//
// ok is false if it would deny and for how long cannot be told from d, as in
// After: of a log, a counter, or a bucket that is not exact; or if the policy has
// CountRejected, since it was charged already.
func (d Decision) Costing(cost int64) (other Decision, ok bool) {
	p := d.Policy
	if p.CountRejected {
		return d, false
	}
	d.Allowed, d.RetryAfter = cost <= d.Remaining, 0
	switch {
	case d.Allowed:
		return d, true
	case p.Quota == 0 || cost > p.units:
		d.RetryAfter = Never
		return d, true
	case p.Algorithm == FixedWindow || cost == d.Remaining+1:
		d.RetryAfter = d.Reset
		return d, true
	case !p.linear():
		return d, false
	}
	// Reset is when the next unit is there; as in grown, up to num-1 parts more.
	most := (cost - d.Remaining - 1) * p.den
	least := most - (p.num - 1)
	wait := ceilDiv(most, p.num)
	if least <= 0 || ceilDiv(least, p.num) != wait {
		return d, false
	}
	d.RetryAfter = d.Reset + micros(wait)
	return d, true
}
