package limittest

import (
	"time"

	"bouncer/gateway/ratelimit"
)

// calendarStories: windows along the civil time of a place.
func calendarStories(add func(name string, story func(b *bench))) {
	// at is a time in a place.
	at := func(b *bench, place, s string) time.Time {
		b.t.Helper()
		t, err := time.ParseInLocation("2006-01-02 15:04:05", s, zone(b.t, place))
		if err != nil {
			b.t.Fatal(err)
		}
		return t
	}
	per := func(b *bench, unit ratelimit.CalendarUnit, place string, quota int64) *ratelimit.Policy {
		b.t.Helper()
		return calendar(b.t, "per-"+unit.String(), quota, &ratelimit.Calendar{Unit: unit, Location: zone(b.t, place), WeekStart: time.Monday})
	}

	add("Calendar/ADayEndsAtMidnight", func(b *bench) {
		p := per(b, ratelimit.CalendarDay, "Asia/Kolkata", 5) // five and a half hours ahead
		b.set(at(b, "UTC", "2027-01-15 18:00:00"))
		b.want("priya123", p, 3, yes(2, 30*minute))
		b.clock.Advance(30*minute - micro)
		b.want("priya123", p, 3, no(2, micro, micro))
		b.want("priya123", p, 6, no(2, micro, never))
		b.want("priya123", p, 2, yes(0, micro))
		b.clock.Advance(micro)
		b.want("priya123", p, 3, yes(2, day))
		b.clock.Advance(6 * hour) // midnight elsewhere
		b.want("priya123", p, 3, no(2, 18*hour, 18*hour))
	})
	add("Calendar/DaysOf23And25Hours", func(b *bench) {
		for _, d := range []struct {
			place, begins string
			hours         time.Duration
		}{
			{"America/New_York", "2027-03-14 00:00:00", 23 * hour},
			{"America/New_York", "2027-03-15 00:00:00", 24 * hour},
			{"America/New_York", "2027-11-07 00:00:00", 25 * hour},
			{"Europe/Berlin", "2027-03-28 00:00:00", 23 * hour},
			{"Europe/Berlin", "2027-10-31 00:00:00", 25 * hour},
			{"Australia/Lord_Howe", "2027-04-04 00:00:00", 24*hour + 30*minute},
			{"Australia/Lord_Howe", "2027-10-03 00:00:00", 23*hour + 30*minute},
			{"America/Santiago", "2027-04-03 00:00:00", 25 * hour}, // its last hour comes twice
			{"America/Santiago", "2027-09-05 01:00:00", 23 * hour}, // it begins at one
		} {
			p := per(b, ratelimit.CalendarDay, d.place, 5)
			b.set(at(b, d.place, d.begins))
			b.clock.Advance(-micro)
			b.want(d.begins, p, 5, yes(0, micro))
			b.clock.Advance(micro)
			b.want(d.begins, p, 1, yes(4, d.hours))
			b.clock.Advance(d.hours - micro)
			b.want(d.begins, p, 5, no(4, micro, micro))
			b.clock.Advance(micro)
			b.want(d.begins, p, 5, yes(0, 24*hour))
		}
	})
	add("Calendar/MonthsHaveTheirLengths", func(b *bench) {
		for _, m := range []struct {
			place, begins string
			length        time.Duration
		}{
			{"UTC", "2027-02-01 00:00:00", 28 * day},
			{"UTC", "2028-02-01 00:00:00", 29 * day},
			{"UTC", "2027-04-01 00:00:00", 30 * day},
			{"UTC", "2027-12-01 00:00:00", 31 * day},
			{"Pacific/Kiritimati", "2027-02-01 00:00:00", 28 * day}, // 14 hours before UTC's
			{"America/New_York", "2027-03-01 00:00:00", 31*day - hour},
			{"America/New_York", "2027-11-01 00:00:00", 30*day + hour},
			{"Pacific/Chatham", "2028-02-01 00:00:00", 29 * day},
		} {
			p := per(b, ratelimit.CalendarMonth, m.place, 5)
			b.set(at(b, m.place, m.begins))
			b.clock.Advance(-micro)
			b.want(m.begins, p, 5, yes(0, micro))
			b.clock.Advance(micro)
			b.want(m.begins, p, 5, yes(0, m.length))
			b.clock.Advance(m.length - micro)
			b.want(m.begins, p, 1, no(0, micro, micro))
			b.clock.Advance(micro)
			b.take(charge(m.begins, p, 5))
		}
	})
	add("Calendar/WeeksBeginOnTheirDay", func(b *bench) {
		place := zone(b.t, "Europe/Berlin")
		monday := calendar(b.t, "per-week", 5, &ratelimit.Calendar{Unit: ratelimit.CalendarWeek, Location: place, WeekStart: time.Monday})
		sunday := calendar(b.t, "per-week", 5, &ratelimit.Calendar{Unit: ratelimit.CalendarWeek, Location: place, WeekStart: time.Sunday})
		// A Wednesday; the clocks are put forward on Sunday the 28th.
		b.set(at(b, "Europe/Berlin", "2027-03-24 12:00:00"))
		b.want("priya123", monday, 1, yes(4, 4*day+11*hour))
		b.want("priya123", sunday, 5, yes(0, 3*day+12*hour)) // a count of its own
		b.clock.Advance(3*day + 12*hour)
		b.want("priya123", sunday, 1, yes(4, 7*day-hour))
		b.want("priya123", monday, 5, no(4, 23*hour, 23*hour))
		b.clock.Advance(23 * hour)
		b.want("priya123", monday, 1, yes(4, 7*day))
	})
	add("Calendar/HoursAndMinutesAreThePlaces", func(b *bench) {
		kolkata, chatham := per(b, ratelimit.CalendarHour, "Asia/Kolkata", 5), per(b, ratelimit.CalendarHour, "Pacific/Chatham", 5)
		utc, minutes := per(b, ratelimit.CalendarHour, "UTC", 5), per(b, ratelimit.CalendarMinute, "Asia/Kathmandu", 5)
		b.set(at(b, "UTC", "2027-01-15 08:10:20"))
		b.want("priya123", utc, 1, yes(4, 49*minute+40*second))
		b.want("priya123", kolkata, 1, yes(4, 19*minute+40*second))
		b.want("priya123", chatham, 1, yes(4, 4*minute+40*second))
		b.want("priya123", minutes, 1, yes(4, 40*second))
		b.clock.Advance(40 * second)
		b.want("priya123", minutes, 1, yes(4, minute))
		b.clock.Advance(19 * minute)
		b.want("priya123", kolkata, 1, yes(4, hour))
	})
	add("Calendar/TheHourThatComesTwiceIsTwo", func(b *bench) {
		p := per(b, ratelimit.CalendarHour, "America/New_York", 5)
		b.set(at(b, "UTC", "2027-11-07 05:30:00")) // half past one, summer time
		b.want("priya123", p, 5, yes(0, 30*minute))
		b.clock.Advance(30 * minute) // one o'clock again
		b.want("priya123", p, 5, yes(0, hour))
		b.clock.Advance(hour) // two
		b.want("priya123", p, 5, yes(0, hour))
		// Where the clocks are moved by half an hour, that ends one as well.
		q := per(b, ratelimit.CalendarHour, "Australia/Lord_Howe", 5)
		b.set(at(b, "UTC", "2027-10-02 15:00:00")) // half past one; at two it is half past two
		b.want("priya123", q, 5, yes(0, 30*minute))
		b.clock.Advance(30 * minute)
		b.want("priya123", q, 5, yes(0, 30*minute))
	})
	add("Calendar/TheInstancesClockDecidesNothing", func(b *bench) {
		p := per(b, ratelimit.CalendarDay, "UTC", 5)
		b.set(at(b, "UTC", "2027-01-15 23:59:58"))
		for i, skew := range []time.Duration{0, 5 * second, -5 * second, 40 * day, -40 * day} {
			b.skew = skew
			b.want("priya123", p, 1, yes(int64(4-i), 2*second))
		}
		b.want("priya123", p, 1, no(0, 2*second, 2*second))
		b.clock.Advance(2 * second)
		for i, skew := range []time.Duration{-5 * second, 5 * second, -40 * day} {
			b.skew = skew
			b.want("priya123", p, 1, yes(int64(4-i), day))
		}
		// Beside limits that need no calendar, all are decided once.
		b.skew = 40 * day
		other := bucket(b.t, "per-second", 1, second, 5)
		b.wantAll(1, []*ratelimit.Policy{other, p}, yes(4, second), yes(1, day))
		b.wantAll(2, []*ratelimit.Policy{other, p}, yes(4, second), no(1, day, day))
	})
	add("Calendar/ADenialOpensNoWindow", func(b *bench) {
		p := per(b, ratelimit.CalendarDay, "UTC", 5)
		b.want("priya123", p, 6, no(5, 0, never))
		b.want("priya123", per(b, ratelimit.CalendarHour, "UTC", 0), 1, no(0, 0, never))
		b.want("priya123", p, 0, yes(5, 0))
	})
	add("Calendar/APlanThatChangesKeepsTheCount", func(b *bench) {
		free, pro := per(b, ratelimit.CalendarDay, "UTC", 10), per(b, ratelimit.CalendarDay, "UTC", 100)
		b.set(at(b, "UTC", "2027-01-15 20:00:00"))
		b.want("priya123", free, 10, yes(0, 4*hour))
		b.want("priya123", pro, 40, yes(50, 4*hour))
		b.want("priya123", free, 1, no(0, 4*hour, 4*hour))
	})
	add("Calendar/AClockThatStepsBackEndsNothing", func(b *bench) {
		p := per(b, ratelimit.CalendarDay, "UTC", 5)
		b.set(at(b, "UTC", "2027-01-16 00:00:01"))
		b.want("priya123", p, 3, yes(2, day-second))
		b.clock.Advance(-2 * second) // yesterday: the window that has begun goes on
		b.want("priya123", p, 1, yes(1, day+second))
		b.want("priya123", p, 2, no(1, day+second, day+second))
		b.clock.Advance(2 * second)
		b.want("priya123", p, 1, yes(0, day-second))
	})
	add("Calendar/EachCalendarIsABucket", func(b *bench) {
		utc := per(b, ratelimit.CalendarDay, "UTC", 1)
		b.set(at(b, "UTC", "2027-01-15 12:00:00"))
		b.want("priya123", utc, 1, yes(0, 12*hour))
		b.want("priya123", per(b, ratelimit.CalendarDay, "Asia/Kolkata", 1), 1, yes(0, 6*hour+30*minute))
		b.want("priya123", window(b.t, "per-day", 1, day), 1, yes(0, day))
		// Made anew by a reload it is the same one, on whatever day a week begins.
		again := calendar(b.t, "per-day", 1, &ratelimit.Calendar{Unit: ratelimit.CalendarDay, Location: time.UTC, WeekStart: time.Friday})
		b.want("priya123", again, 1, no(0, 12*hour, 12*hour))
	})
}
