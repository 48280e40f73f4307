package limittest

import (
	"time"

	"bouncer/gateway/ratelimit"
)

// laid changes where the windows of calendars end.
func laid(ends func(c *ratelimit.Calendar, now int64) int64) func(*ratelimit.Policy, limit) limit {
	return of(func(l fixed) limit {
		if l.calendar == nil {
			return l
		}
		return override{limit: l, onSpend: func(s state, now, cost int64) state {
			fresh := s.empty()
			s = l.spend(s, now, cost)
			if fresh {
				s.ends = ends(l.calendar, now)
			}
			return s
		}}
	})
}

// in is c in another place.
func in(c *ratelimit.Calendar, place *time.Location) *ratelimit.Calendar {
	return &ratelimit.Calendar{Unit: c.Unit, Location: place, WeekStart: c.WeekStart}
}

var calendarMutants = []mutant{
	{name: "calendar: every day has 24 hours", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		from, to := calendarWindow(c, now)
		if c.Unit == ratelimit.CalendarDay {
			return from + day.Microseconds()
		}
		return to
	})},
	{name: "calendar: months are UTC's", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		if c.Unit == ratelimit.CalendarMonth {
			c = in(c, time.UTC)
		}
		_, to := calendarWindow(c, now)
		return to
	})},
	{name: "calendar: hours are UTC's", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		if c.Unit == ratelimit.CalendarHour {
			c = in(c, time.UTC)
		}
		_, to := calendarWindow(c, now)
		return to
	})},
	{name: "calendar: every month has 30 days", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		from, to := calendarWindow(c, now)
		if c.Unit == ratelimit.CalendarMonth {
			return from + 30*day.Microseconds()
		}
		return to
	})},
	{name: "calendar: weeks begin on Monday", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		_, to := calendarWindow(&ratelimit.Calendar{Unit: c.Unit, Location: c.Location, WeekStart: time.Monday}, now)
		return to
	})},
	{name: "calendar: the zone's offset is that of January", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		_, offset := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC).In(c.Location).Zone()
		_, to := calendarWindow(in(c, time.FixedZone("fixed", offset)), now)
		return to
	})},
	{name: "calendar: opens with the first charge", limit: laid(func(c *ratelimit.Calendar, now int64) int64 {
		return now + c.Unit.Nominal().Microseconds()
	})},
	{name: "calendar: ends when the clock steps back before it", limit: of(func(l fixed) limit {
		return override{limit: l, onAt: func(s state, now int64) state {
			if l.calendar != nil && s.ends > now {
				if _, to := calendarWindow(l.calendar, now); to < s.ends {
					return state{}
				}
			}
			return l.at(s, now)
		}}
	})},
	{name: "calendar: the instance says which window it is", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		s.model.limitOf = func(p *ratelimit.Policy) limit {
			for _, c := range charges {
				if c.Policy == p && p.Calendar != nil {
					return laid(func(*ratelimit.Calendar, int64) int64 { return c.Windows[2] })(p, limitOf(p))
				}
			}
			return limitOf(p)
		}
		return s.model.take(now, charges)
	}},
	{name: "calendar: two calendars of one name are one count", tables: true, key: func(c ratelimit.Charge) string {
		q := *c.Policy
		q.Calendar = nil
		c.Policy = &q
		return key(c)
	}},
}
