package ratelimit

import "time"

// The fixed window: at most Quota units from the caller's first charge until
// Window later; then everything is available again at once. State.Time is the
// window's end. An ended window is the same as none.

func advanceWindow(s State, now int64) State {
	if now >= s.Time {
		return State{}
	}
	return s
}

func (p *Policy) admitWindow(s State, now, cost int64) (State, bool) {
	// cost > Quota first, so that the sum below cannot overflow. After a
	// lowering s.Spent may be above the quota.
	if cost > p.Quota || s.Spent+cost > p.Quota {
		return s, false
	}
	if s.Spent == 0 {
		s.Time = now + p.Window.Microseconds()
	}
	s.Spent += cost
	return s, true
}

func (p *Policy) describeWindow(s State, now int64) (remaining int64, reset time.Duration) {
	remaining = max(0, p.Quota-s.Spent)
	if s.Spent == 0 {
		return remaining, 0
	}
	return remaining, micros(s.Time - now)
}

func (p *Policy) retryWindow(s State, now, cost int64) time.Duration {
	if cost > p.Quota {
		return Never
	}
	return micros(s.Time - now)
}
