package ratelimit

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// A CalendarUnit is the length of a calendar's windows.
type CalendarUnit uint8

// The units of a calendar.
const (
	CalendarMinute CalendarUnit = iota + 1
	CalendarHour
	CalendarDay
	CalendarWeek
	CalendarMonth
)

// String returns the name the configuration uses.
func (u CalendarUnit) String() string {
	switch u {
	case CalendarMinute:
		return "minute"
	case CalendarHour:
		return "hour"
	case CalendarDay:
		return "day"
	case CalendarWeek:
		return "week"
	case CalendarMonth:
		return "month"
	default:
		return "unknown"
	}
}

// Nominal returns the length that the unit has on an ordinary day; that of a
// month is 30 days. It is 0 for an unknown unit.
func (u CalendarUnit) Nominal() time.Duration {
	const day = 24 * time.Hour
	switch u {
	case CalendarMinute:
		return time.Minute
	case CalendarHour:
		return time.Hour
	case CalendarDay:
		return day
	case CalendarWeek:
		return 7 * day
	case CalendarMonth:
		return 30 * day
	default:
		return 0
	}
}

// A Calendar lays windows along the civil time of a place. The windows follow
// each other without a gap: each instant is in one of them.
//
// A day, week or month begins with the first instant of its first date, so it is
// an hour shorter or longer where the clocks change, and a date that a place
// skips has no window. Minutes and hours begin where the place's clocks show a
// whole one; where the clocks change in the middle of one, it ends there. So
// they are never longer than their name, and the hour that is repeated in autumn
// is two windows.
//
// It must not be changed or copied once it is in use; its methods are safe for
// concurrent use.
type Calendar struct {
	// Unit is the length of the windows.
	Unit CalendarUnit
	// Location is the place, a zone with a name that means the same everywhere:
	// not nil and not [time.Local].
	Location *time.Location
	// WeekStart is the first day of a week. It is not looked at elsewhere.
	WeekStart time.Weekday

	last atomic.Pointer[[4]int64] // the last answer of Windows
}

func (c *Calendar) check() error {
	switch {
	case c.Unit < CalendarMinute || c.Unit > CalendarMonth:
		return fmt.Errorf("unit: want minute, hour, day, week or month, got %d", c.Unit)
	case c.Location == nil || c.Location == time.Local || c.Location.String() == "":
		return errors.New("location: want a time zone with a name, such as UTC or Asia/Kolkata")
	case c.WeekStart < time.Sunday || c.WeekStart > time.Saturday:
		return fmt.Errorf("week start: want sunday to saturday, 0 to 6, got %d", c.WeekStart)
	}
	return nil
}

// tag names the calendar in a key: fc/day/Asia%2FKolkata, fc/week/UTC/monday.
func (c *Calendar) tag() string {
	tag := "fc/" + c.Unit.String() + "/" + string(appendEscaped(nil, c.Location.String()))
	if c.Unit == CalendarWeek {
		tag += "/" + strings.ToLower(c.WeekStart.String())
	}
	return tag
}

// Windows returns four consecutive boundaries, µs since the Unix epoch, around
// nowMicros: the previous window begins at the first and ends at the second, the
// current one ends at the third, the next at the fourth. It depends on nothing
// but its argument and the calendar.
//
// The last answer is remembered, so that asking again within the same window
// costs one atomic load.
func (c *Calendar) Windows(nowMicros int64) [4]int64 {
	if w := c.last.Load(); w != nil && w[1] <= nowMicros && nowMicros < w[2] {
		return *w
	}
	w := c.windows(nowMicros)
	c.last.Store(&w)
	return w
}

// windows computes what Windows returns.
func (c *Calendar) windows(nowMicros int64) [4]int64 {
	const second = 1_000_000
	now := floorDiv(nowMicros, second)
	start, end := c.window(now)
	before, _ := c.window(start - 1)
	_, after := c.window(end)
	return [4]int64{before * second, start * second, end * second, after * second}
}

// window returns the bounds of the window that contains the second now.
// Boundaries are whole seconds: so are the offsets of zones.
func (c *Calendar) window(now int64) (start, end int64) {
	switch c.Unit {
	case CalendarMinute, CalendarHour:
		return c.aligned(now, int64(c.Unit.Nominal()/time.Second))
	}
	y, m, d := time.Unix(now, 0).In(c.Location).Date()
	switch c.Unit {
	case CalendarWeek:
		today := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Weekday()
		d -= int((today - c.WeekStart + 7) % 7)
	case CalendarMonth:
		d = 1
	}
	// Where clocks are put back across midnight, now may stand in yesterday
	// after today has begun; where a date is skipped, it has no length. In both
	// cases the next window that ends after now is meant.
	for {
		start, end = c.begins(y, m, d), c.begins(c.next(y, m, d))
		if now < end {
			return start, end
		}
		y, m, d = c.next(y, m, d)
	}
}

// next returns the first date of the window after the one that begins with a
// date. Days beyond a month's last are those of the next, as in time.Date.
func (c *Calendar) next(y int, m time.Month, d int) (int, time.Month, int) {
	switch c.Unit {
	case CalendarWeek:
		return y, m, d + 7
	case CalendarMonth:
		return y, m + 1, d
	}
	return y, m, d + 1
}

// begins returns the first second at which the place's calendar shows the date
// or a later one.
func (c *Calendar) begins(y int, m time.Month, d int) int64 {
	// Midnight as UTC would have it; here it comes that much earlier or later
	// which the clocks here are ahead or behind, no more than 16 hours.
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix()
	for t := time.Unix(midnight-26*3600, 0).In(c.Location); ; {
		_, offset := t.Zone()
		_, ends := t.ZoneBounds()
		at := max(t.Unix(), midnight-int64(offset))
		if !ends.IsZero() && !ends.After(t) {
			// On the last day of a leap year, package time lets a zone end the day
			// before. No zone begins between two quarters of an hour.
			ends = t.Truncate(15 * time.Minute).Add(15 * time.Minute)
		}
		if ends.IsZero() || at < ends.Unix() {
			return at
		}
		t = ends
	}
}

// aligned returns the window of length seconds that contains now and begins
// where the place's clocks show a multiple of it, cut where they change.
func (c *Calendar) aligned(now, length int64) (start, end int64) {
	t := time.Unix(now, 0).In(c.Location)
	_, offset := t.Zone()
	start = floorDiv(now+int64(offset), length)*length - int64(offset)
	end = start + length
	from, to := t.ZoneBounds()
	if !from.IsZero() && from.Unix() > start && offsetAt(from.Add(-time.Second)) != offset {
		start = from.Unix()
	}
	if !to.IsZero() && to.Unix() < end && offsetAt(to) != offset {
		end = to.Unix()
	}
	return start, end
}

func offsetAt(t time.Time) int {
	_, offset := t.Zone()
	return offset
}

// floorDiv returns a/b rounded down, for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
