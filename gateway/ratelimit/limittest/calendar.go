package limittest

import (
	"time"

	"bouncer/gateway/ratelimit"
)

// The calendar as one would look it up: which date is it there, and when did the
// clocks there first show that date?

func calendarName(c *ratelimit.Calendar) string {
	name := c.Unit.String() + " " + c.Location.String()
	if c.Unit == ratelimit.CalendarWeek {
		name += " from " + c.WeekStart.String()
	}
	return name
}

// A date is a day of the civil calendar, in the year that the zone counts.
type date struct {
	year  int
	month time.Month
	day   int
}

func dateOf(t time.Time) date {
	year, month, day := t.Date()
	return date{year, month, day}
}

// plus returns the date so many months and days later. There may be a 31st of
// June on the way.
func (d date) plus(months, days int) date {
	// In UTC every date exists and every day has 24 hours.
	return dateOf(time.Date(d.year, d.month+time.Month(months), d.day+days, 0, 0, 0, 0, time.UTC))
}

func (d date) weekday() time.Weekday {
	return time.Date(d.year, d.month, d.day, 0, 0, 0, 0, time.UTC).Weekday()
}

func (d date) before(e date) bool {
	switch {
	case d.year != e.year:
		return d.year < e.year
	case d.month != e.month:
		return d.month < e.month
	default:
		return d.day < e.day
	}
}

// begins returns the first µs at which the clocks of a place show date d or a
// later one. Midnight may be missing there, or come twice. Clocks are moved at
// full quarters of an hour, and no place is further from UTC than 15 hours.
func (d date) begins(place *time.Location) int64 {
	t := time.Date(d.year, d.month, d.day, -30, 0, 0, 0, time.UTC)
	for dateOf(t.In(place)).before(d) {
		t = t.Add(15 * time.Minute)
	}
	return t.UnixMicro()
}

// calendarWindow returns the window of c that now is in: its first µs, and the
// first after it.
func calendarWindow(c *ratelimit.Calendar, now int64) (from, to int64) {
	if c.Unit == ratelimit.CalendarMinute || c.Unit == ratelimit.CalendarHour {
		return clockWindow(c, now)
	}
	first := dateOf(time.UnixMicro(now).In(c.Location)) // of the window
	months, days := 0, 0
	switch c.Unit {
	case ratelimit.CalendarMonth:
		first.day, months = 1, 1
	case ratelimit.CalendarWeek:
		for first.weekday() != c.WeekStart {
			first = first.plus(0, -1)
		}
		days = 7
	default:
		days = 1
	}
	return first.begins(c.Location), first.plus(months, days).begins(c.Location)
}

// clockWindow returns the minute or the hour on the clock of a place. It begins
// where that clock shows a full one, or is moved.
func clockWindow(c *ratelimit.Calendar, now int64) (from, to int64) {
	begins := func(t time.Time) bool {
		_, offset := t.In(c.Location).Zone()
		_, before := t.Add(-time.Microsecond).In(c.Location).Zone()
		return c.Unit == ratelimit.CalendarMinute || t.In(c.Location).Minute() == 0 || offset != before
	}
	// No place is off UTC by seconds, so all begin with a minute of UTC.
	start := time.UnixMicro(now).UTC().Truncate(time.Minute)
	end := start.Add(time.Minute)
	for !begins(start) {
		start = start.Add(-time.Minute)
	}
	for !begins(end) {
		end = end.Add(time.Minute)
	}
	return start.UnixMicro(), end.UnixMicro()
}
