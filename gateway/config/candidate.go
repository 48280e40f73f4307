package config

// readCandidate reads the other number of a limit: what would change if its
// fields stood in place of the limit's own. What it leaves out is as in the
// limit. burstGiven says that the limit itself has a burst; nil is returned
// where anything was wrong.
func (l *limitDecl) readCandidate(v value, rateOK, burstGiven bool) *Candidate {
	wanted := "limit"
	if l.Algorithm == TokenBucket {
		wanted = "limit, burst or both"
	}
	o, ok := v.object(wanted)
	if !ok {
		return nil
	}
	switch {
	case o.has("limit"), l.Algorithm == TokenBucket && o.has("burst"):
	case l.Algorithm == TokenBucket:
		v.errorf("has no number; want %s", wanted)
	default:
		o.missing("limit", wantedRate+", with another number than the limit's own")
	}
	rate, at, good := l.Rate, v, true
	if v, ok := o.get("limit", wantedRate); ok {
		at = v
		if rate, good = v.rate(); good && rateOK && rate.Window != l.Rate.Window {
			v.errorf("%s has another window than the limit (%s); a candidate is another number for the same window",
				quote(rate.String()), l.Rate)
			good = false
		}
	}
	c := &Candidate{Quota: rate.Quota}
	if v, ok := l.own(o, "burst", wantedBurst); ok {
		at = v
		var ok bool
		c.Burst, ok = v.integer(1, maxQuota)
		good = good && ok
	}
	for _, name := range []string{"queue", "max_delay"} {
		if v, ok := o.get(name, "nothing"); ok {
			v.keyErrorf("a candidate waits in the queue of its limit; remove it")
			good = false
		}
	}
	o.done()
	if l.Algorithm == TokenBucket && c.Burst == 0 {
		c.Burst = max(rate.Quota, 1)
		if burstGiven {
			c.Burst = l.Burst
		}
	}
	if !good || !rateOK {
		return nil
	}
	other := l.Limit
	other.Rate, other.Burst = rate, c.Burst
	if !other.checkNumbers(at, at) {
		return nil
	}
	return c
}
