package config

import (
	"slices"
	"strings"
	"time"
)

// calendarUnits are the windows that the calendar has.
var calendarUnits = []string{"minute", "hour", "day", "week", "month"}

// weekdays are the days as the files have them; the index is a time.Weekday.
var weekdays = []string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}

// readCalendar reads where the windows of a fixed_window lie: anchor, timezone
// and week_start. limitAt is the rate, and unit its unit; empty if the rate was
// wrong. It returns false if anything was.
func (l *limitDecl) readCalendar(o *object, limitAt value, unit string) bool {
	anchor, good := "first_request", true
	if v, ok := l.own(o, "anchor", "first_request or calendar"); ok {
		anchor, good = v.choice([]string{"first_request", "calendar"})
	}
	c := &Calendar{Unit: unit, Location: time.UTC, WeekStart: time.Monday}
	if v, ok := l.own(o, "timezone", wantedZone); ok {
		if anchor == "first_request" {
			v.keyErrorf("only windows of the calendar lie in a timezone; want anchor: calendar beside it, or remove it")
			good = false
		} else if location, ok := v.zone(); ok {
			c.Location = location
		} else {
			good = false
		}
	}
	if v, ok := l.own(o, "week_start", oneOf(weekdays)); ok {
		switch {
		case anchor == "first_request", anchor == "calendar" && unit != "week" && unit != "":
			v.keyErrorf("only a limit of N/week with anchor: calendar has a week that starts; remove it")
			good = false
		default:
			day, ok := v.choice(weekdays)
			c.WeekStart = time.Weekday(max(slices.Index(weekdays, day), 0))
			good = good && ok
		}
	}
	if anchor != "calendar" || l.Algorithm != FixedWindow {
		return good
	}
	if unit != "" && !slices.Contains(calendarUnits, unit) {
		limitAt.errorf("the calendar has no windows of %s; with anchor: calendar want N/minute, N/hour, N/day, N/week or N/month",
			quote(unit))
		return false
	}
	l.Calendar = c
	return good
}

// String says where the windows lie, as in "of the calendar in Asia/Kolkata".
func (c *Calendar) String() string {
	if c == nil {
		return ""
	}
	s := "of the calendar in " + c.Location.String()
	if c.Unit == "week" {
		s += " from " + strings.ToLower(c.WeekStart.String())
	}
	return s
}
