package ratelimit

import "time"

// The sliding window counter: what was used in the current window, and of the
// previous one the part that a span of a Window up to now still covers, as if
// its units had been spread evenly over it.
//
// Windows are [k*Window, (k+1)*Window) of the store's clock. State.Spent is what
// was used in the one that begins at State.Time, State.Den in the one before.
// README.md states how far the estimate can be from what a log would know.

// advanceCounter moves s into the window of now.
func (p *Policy) advanceCounter(s *State, now int64) {
	window := p.Window.Microseconds()
	start := floorDiv(now, window) * window
	switch {
	case s.Spent == 0 && s.Den == 0:
		*s = State{Time: start}
	case start <= s.Time:
		// The same window, or the clock went back.
	case start == s.Time+window:
		*s = State{Den: s.Spent, Time: start}
	default:
		*s = State{Time: start}
	}
}

// elapsed returns how much of the window of s has passed, and by how much the
// clock is behind its begin.
func elapsed(s *State, now int64) (elapsed, lag int64) {
	if now < s.Time {
		return 0, s.Time - now
	}
	return now - s.Time, 0
}

// weighted returns what is still counted of the previous window, rounded up.
func (p *Policy) weighted(s *State, now int64) int64 {
	if s.Den == 0 {
		return 0
	}
	window := p.Window.Microseconds()
	e, _ := elapsed(s, now)
	return mulDivUp(s.Den, window-e, window)
}

// room returns how many units fit; below 0 if more are used than the quota.
func (p *Policy) room(s *State, now int64) int64 {
	return p.Quota - s.Spent - p.weighted(s, now)
}

func (p *Policy) fitsCounter(s *State, now, cost int64) bool { return cost <= p.room(s, now) }

func (p *Policy) fillCounter(s *State, now, cost int64) {
	s.Spent += min(cost, max(0, p.room(s, now)))
}

func (p *Policy) describeCounter(s *State, now int64) (remaining int64, reset time.Duration) {
	remaining = max(0, p.room(s, now))
	if remaining == p.Quota {
		return remaining, 0 // nothing is spent, or nothing is ever granted
	}
	return remaining, p.waitCounter(s, now, remaining+1)
}

// waitCounter returns how long from now it is until cost, at most Quota and more
// than there is, fits. It solves ceil(previous*(window-e)/window) <= room for
// the smallest e.
func (p *Policy) waitCounter(s *State, now, cost int64) time.Duration {
	window := p.Window.Microseconds()
	e, lag := elapsed(s, now)
	if room := p.Quota - s.Spent - cost; room >= 0 {
		return micros(lag + max(0, decayed(s.Den, room, window)-e))
	}
	// Not in this window. In the next, what was used in this one is the previous.
	return micros(lag + window - e + decayed(s.Spent, p.Quota-cost, window))
}

// decayed returns how much of a window has to pass until no more than room of
// the previous window's units are counted.
func decayed(previous, room, window int64) int64 {
	if room >= previous {
		return 0
	}
	q, _ := mulDiv(room, window, previous)
	return window - q
}

func (p *Policy) runsOutCounter(s *State) int64 {
	window := p.Window.Microseconds()
	switch {
	case s.Spent > 0:
		return s.Time + 2*window
	case s.Den > 0:
		return s.Time + window
	default:
		return s.Time
	}
}
