package ratelimit

import "time"

// The fixed window: at most Quota units from the caller's first charge until
// Window later, or until the end of the calendar's window; then everything is
// available again at once. State.Time is the window's end. An ended window is
// the same as none.

func advanceWindow(s *State, now int64) {
	if now >= s.Time {
		*s = State{}
	}
}

// fitsWindow reports whether cost fits beside the units that count in s, of a
// window or a log.
func fitsWindow(s *State, quota, cost int64) bool {
	// A difference, since the sum might overflow. After a lowering s.Spent may be
	// above the quota.
	return cost <= quota-s.Spent
}

func (p *Policy) chargeWindow(s *State, now, cost int64) {
	if s.Spent == 0 {
		s.Time = p.windowEnd(now)
	}
	s.Spent += cost
}

// windowEnd returns the end of a window that opens at now.
func (p *Policy) windowEnd(now int64) int64 {
	if p.Calendar != nil {
		return p.Calendar.Windows(now)[2]
	}
	return now + p.Window.Microseconds()
}

func (p *Policy) fillWindow(s *State, now, cost int64) {
	if cost = min(cost, p.Quota-s.Spent); cost > 0 {
		p.chargeWindow(s, now, cost)
	}
}

func (p *Policy) describeWindow(s *State, now int64) (remaining int64, reset time.Duration) {
	remaining = max(0, p.Quota-s.Spent)
	if s.Spent == 0 {
		return remaining, 0
	}
	return remaining, waitWindow(s, now)
}

func waitWindow(s *State, now int64) time.Duration { return micros(s.Time - now) }
