package ratelimit

import (
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func location(tb testing.TB, name string) *time.Location {
	tb.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func onCalendar(tb testing.TB, quota int64, unit CalendarUnit, zone string) *Policy {
	tb.Helper()
	return policy(tb, Policy{
		Name: "per-day", Scope: "plan/per-day", Algorithm: FixedWindow, Quota: quota,
		Calendar: &Calendar{Unit: unit, Location: location(tb, zone), WeekStart: time.Monday},
	})
}

// Boundaries are written out here in UTC, as an almanac would have them.
func TestCalendarWindows(t *testing.T) {
	for _, c := range []struct {
		why        string
		zone       string
		unit       CalendarUnit
		weekStart  time.Weekday
		now        string
		boundaries [4]string
	}{
		{"plain days", "UTC", CalendarDay, 0, "2026-11-30T15:04:05Z",
			[4]string{"2026-11-29T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z", "2026-12-02T00:00:00Z"}},
		{"the first instant is of the new window", "UTC", CalendarDay, 0, "2026-11-30T00:00:00Z",
			[4]string{"2026-11-29T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z", "2026-12-02T00:00:00Z"}},
		{"the µs before it is of the old one", "UTC", CalendarDay, 0, "2026-11-29T23:59:59.999999Z",
			[4]string{"2026-11-28T00:00:00Z", "2026-11-29T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z"}},
		{"5:30 ahead", "Asia/Kolkata", CalendarDay, 0, "2026-11-30T18:30:00Z",
			[4]string{"2026-11-29T18:30:00Z", "2026-11-30T18:30:00Z", "2026-12-01T18:30:00Z", "2026-12-02T18:30:00Z"}},
		{"hours of a place 5:30 ahead", "Asia/Kolkata", CalendarHour, 0, "2026-11-30T18:29:59Z",
			[4]string{"2026-11-30T16:30:00Z", "2026-11-30T17:30:00Z", "2026-11-30T18:30:00Z", "2026-11-30T19:30:00Z"}},
		{"minutes", "Asia/Kolkata", CalendarMinute, 0, "2026-11-30T18:29:59Z",
			[4]string{"2026-11-30T18:28:00Z", "2026-11-30T18:29:00Z", "2026-11-30T18:30:00Z", "2026-11-30T18:31:00Z"}},

		{"a day of 23 hours", "Europe/Berlin", CalendarDay, 0, "2027-03-28T12:00:00Z",
			[4]string{"2027-03-26T23:00:00Z", "2027-03-27T23:00:00Z", "2027-03-28T22:00:00Z", "2027-03-29T22:00:00Z"}},
		{"a day of 25 hours", "Europe/Berlin", CalendarDay, 0, "2027-10-31T12:00:00Z",
			[4]string{"2027-10-29T22:00:00Z", "2027-10-30T22:00:00Z", "2027-10-31T23:00:00Z", "2027-11-01T23:00:00Z"}},
		{"the hour that comes twice is two windows", "Europe/Berlin", CalendarHour, 0, "2027-10-31T00:30:00Z",
			[4]string{"2027-10-30T23:00:00Z", "2027-10-31T00:00:00Z", "2027-10-31T01:00:00Z", "2027-10-31T02:00:00Z"}},
		{"a month with an hour less", "Europe/Berlin", CalendarMonth, 0, "2027-03-31T20:00:00Z",
			[4]string{"2027-01-31T23:00:00Z", "2027-02-28T23:00:00Z", "2027-03-31T22:00:00Z", "2027-04-30T22:00:00Z"}},
		{"23 hours", "America/New_York", CalendarDay, 0, "2027-03-14T12:00:00Z",
			[4]string{"2027-03-13T05:00:00Z", "2027-03-14T05:00:00Z", "2027-03-15T04:00:00Z", "2027-03-16T04:00:00Z"}},
		{"25 hours", "America/New_York", CalendarDay, 0, "2027-11-07T12:00:00Z",
			[4]string{"2027-11-06T04:00:00Z", "2027-11-07T04:00:00Z", "2027-11-08T05:00:00Z", "2027-11-09T05:00:00Z"}},
		{"13:45 ahead, 12:45 from 2:45 UTC on", "Pacific/Chatham", CalendarDay, 0, "2027-04-03T20:00:00Z",
			[4]string{"2027-04-02T10:15:00Z", "2027-04-03T10:15:00Z", "2027-04-04T11:15:00Z", "2027-04-05T11:15:00Z"}},
		{"hours of a place at a quarter", "Pacific/Chatham", CalendarHour, 0, "2027-06-01T00:00:00Z",
			[4]string{"2027-05-31T22:15:00Z", "2027-05-31T23:15:00Z", "2027-06-01T00:15:00Z", "2027-06-01T01:15:00Z"}},
		{"clocks change by half an hour: a day of 24:30", "Australia/Lord_Howe", CalendarDay, 0, "2027-04-04T00:00:00Z",
			[4]string{"2027-04-02T13:00:00Z", "2027-04-03T13:00:00Z", "2027-04-04T13:30:00Z", "2027-04-05T13:30:00Z"}},
		{"and one of 23:30", "Australia/Lord_Howe", CalendarDay, 0, "2027-10-03T00:00:00Z",
			[4]string{"2027-10-01T13:30:00Z", "2027-10-02T13:30:00Z", "2027-10-03T13:00:00Z", "2027-10-04T13:00:00Z"}},
		{"put back from 2:00 to 1:30: the half hour that comes twice", "Australia/Lord_Howe", CalendarHour, 0, "2027-04-03T15:10:00Z",
			[4]string{"2027-04-03T14:00:00Z", "2027-04-03T15:00:00Z", "2027-04-03T15:30:00Z", "2027-04-03T16:30:00Z"}},
		{"put forward from 2:00 to 2:30: half an hour is left of it", "Australia/Lord_Howe", CalendarHour, 0, "2027-10-02T15:45:00Z",
			[4]string{"2027-10-02T14:30:00Z", "2027-10-02T15:30:00Z", "2027-10-02T16:00:00Z", "2027-10-02T17:00:00Z"}},

		{"a day that begins at 1:00, since there is no midnight", "Africa/Cairo", CalendarDay, 0, "2027-04-30T12:00:00Z",
			[4]string{"2027-04-28T22:00:00Z", "2027-04-29T22:00:00Z", "2027-04-30T21:00:00Z", "2027-05-01T21:00:00Z"}},
		{"a midnight that comes twice: the day begins with the first", "America/Havana", CalendarDay, 0, "2027-11-07T05:30:00Z",
			[4]string{"2027-11-06T04:00:00Z", "2027-11-07T04:00:00Z", "2027-11-08T05:00:00Z", "2027-11-09T05:00:00Z"}},
		{"put back to yesterday a minute into today: today has begun", "America/St_Johns", CalendarDay, 0, "2010-11-07T02:45:00Z",
			[4]string{"2010-11-06T02:30:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z", "2010-11-09T03:30:00Z"}},
		{"a date that was skipped has no window", "Pacific/Apia", CalendarDay, 0, "2011-12-30T09:00:00Z",
			[4]string{"2011-12-28T10:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"}},

		{"February of a leap year", "UTC", CalendarMonth, 0, "2028-02-29T23:59:59Z",
			[4]string{"2028-01-01T00:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z", "2028-04-01T00:00:00Z"}},
		{"and of another", "UTC", CalendarMonth, 0, "2027-03-01T00:00:00Z",
			[4]string{"2027-02-01T00:00:00Z", "2027-03-01T00:00:00Z", "2027-04-01T00:00:00Z", "2027-05-01T00:00:00Z"}},
		{"the day that a leap year has more", "UTC", CalendarDay, 0, "2028-02-29T12:00:00Z",
			[4]string{"2028-02-28T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z", "2028-03-02T00:00:00Z"}},
		{"the last day of a leap year", "Europe/Berlin", CalendarDay, 0, "2028-12-31T12:00:00Z",
			[4]string{"2028-12-29T23:00:00Z", "2028-12-30T23:00:00Z", "2028-12-31T23:00:00Z", "2029-01-01T23:00:00Z"}},
		{"the last hour of one", "Europe/Berlin", CalendarHour, 0, "2028-12-31T22:59:59Z",
			[4]string{"2028-12-31T21:00:00Z", "2028-12-31T22:00:00Z", "2028-12-31T23:00:00Z", "2029-01-01T00:00:00Z"}},
		{"the new year after one", "America/New_York", CalendarDay, 0, "2029-01-01T12:00:00Z",
			[4]string{"2028-12-31T05:00:00Z", "2029-01-01T05:00:00Z", "2029-01-02T05:00:00Z", "2029-01-03T05:00:00Z"}},
		{"the 31st is followed by the 1st", "UTC", CalendarMonth, 0, "2027-01-31T12:00:00Z",
			[4]string{"2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z", "2027-02-01T00:00:00Z", "2027-03-01T00:00:00Z"}},
		{"the end of a year", "Asia/Kolkata", CalendarMonth, 0, "2026-12-31T18:29:59Z",
			[4]string{"2026-10-31T18:30:00Z", "2026-11-30T18:30:00Z", "2026-12-31T18:30:00Z", "2027-01-31T18:30:00Z"}},

		{"weeks from monday, on a monday", "UTC", CalendarWeek, time.Monday, "2026-11-30T00:00:00Z",
			[4]string{"2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z", "2026-12-14T00:00:00Z"}},
		{"weeks from sunday, on a monday", "UTC", CalendarWeek, time.Sunday, "2026-11-30T00:00:00Z",
			[4]string{"2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z", "2026-12-06T00:00:00Z", "2026-12-13T00:00:00Z"}},
		{"weeks from saturday, on a friday", "UTC", CalendarWeek, time.Saturday, "2026-12-04T12:00:00Z",
			[4]string{"2026-11-21T00:00:00Z", "2026-11-28T00:00:00Z", "2026-12-05T00:00:00Z", "2026-12-12T00:00:00Z"}},
		{"a week with an hour less", "Europe/Berlin", CalendarWeek, time.Monday, "2027-03-28T12:00:00Z",
			[4]string{"2027-03-14T23:00:00Z", "2027-03-21T23:00:00Z", "2027-03-28T22:00:00Z", "2027-04-04T22:00:00Z"}},
	} {
		c1 := &Calendar{Unit: c.unit, Location: location(t, c.zone), WeekStart: c.weekStart}
		now, err := time.Parse(time.RFC3339Nano, c.now)
		if err != nil {
			t.Fatal(err)
		}
		var got [4]string
		for i, b := range c1.Windows(now.UnixMicro()) {
			got[i] = time.UnixMicro(b).UTC().Format(time.RFC3339Nano)
		}
		if got != c.boundaries {
			t.Errorf("%s: %s of %s at %s:\n got %v\nwant %v", c.why, c.unit, c.zone, c.now, got, c.boundaries)
		}
	}
}

var zones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Chatham", "Australia/Lord_Howe",
	"Africa/Cairo", "America/Havana", "America/Santiago", "Asia/Beirut", "Africa/Casablanca", "Europe/Dublin",
	"Antarctica/Troll", "Pacific/Kiritimati", "Asia/Kathmandu", "Asia/Tehran", "America/St_Johns", "Pacific/Apia",
}

// Windows follow each other without a gap, whatever the clocks of a place do,
// and begin and end where its calendar says.
func TestCalendarWindowsFollowEachOtherAndTheCalendar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(zones).Draw(t, "zone")
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		unit := CalendarUnit(rapid.IntRange(1, 5).Draw(t, "unit"))
		start := time.Weekday(rapid.IntRange(0, 6).Draw(t, "week start"))
		c := &Calendar{Unit: unit, Location: loc, WeekStart: start}
		// 1990 to 2060, and close to where the clocks of this place change.
		now := rapid.Int64Range(631_152_000, 2_840_140_800).Draw(t, "second")
		if _, change := time.Unix(now, 0).In(loc).ZoneBounds(); !change.IsZero() && rapid.Bool().Draw(t, "near a change") {
			now = change.Unix() + rapid.Int64Range(-100_000, 100_000).Draw(t, "after")
		}
		us := now*1_000_000 + rapid.Int64Range(0, 999_999).Draw(t, "µs")

		w := c.Windows(us)
		if w[0] >= w[1] || w[1] > us || us >= w[2] || w[2] >= w[3] {
			t.Fatalf("windows %v around %d", w, us)
		}
		// From each point of a window one sees the same bounds.
		for _, at := range []int64{w[1], us, w[2] - 1} {
			if got := (&Calendar{Unit: unit, Location: loc, WeekStart: start}).Windows(at); got != w {
				t.Fatalf("%v at %d, %v at %d", w, us, got, at)
			}
		}
		if got := c.Windows(w[2]); got[0] != w[1] || got[1] != w[2] || got[2] != w[3] {
			t.Fatalf("%v is followed by %v", w, got)
		}
		if got := c.Windows(w[1] - 1); got[1] != w[0] || got[2] != w[1] || got[3] != w[2] {
			t.Fatalf("%v is preceded by %v", w, got)
		}

		civil := func(us int64) time.Time { return time.UnixMicro(us).In(loc) }
		first, last := civil(w[1]), civil(w[2]-1)
		length := time.Duration(w[2]-w[1]) * time.Microsecond
		switch unit {
		case CalendarMinute, CalendarHour:
			// Whole ones by the place's clock, unless it changes there.
			if length > unit.Nominal() {
				t.Fatalf("%s of %s", unit, length)
			}
			for _, at := range []int64{w[1], w[2]} {
				if sec := civil(at).Sub(midnight(civil(at))); sec%unit.Nominal() != 0 && offsetAt(civil(at)) == offsetAt(civil(at-1)) {
					t.Fatalf("%s at %s", unit, civil(at))
				}
			}
			if length < unit.Nominal() && offsetAt(first) == offsetAt(civil(w[1]-1)) && offsetAt(last) == offsetAt(civil(w[2])) {
				t.Fatalf("%s of %s, and no clock changed", unit, length)
			}
		default:
			if dateOf(first) == dateOf(civil(w[1]-1)) || dateOf(last) == dateOf(civil(w[2])) {
				t.Fatalf("a %s from %s to %s begins or ends within a date", unit, first, last)
			}
			if unit == CalendarDay && dateOf(first) != dateOf(last) {
				t.Fatalf("a day from %s to %s", first, last)
			}
			if strings.HasPrefix(zone, "Pacific/") && offsetAt(civil(w[0]-86_400_000_000)) < offsetAt(civil(w[3]))-7200 {
				return // it went over the date line, and may begin without its first date
			}
			if unit == CalendarMonth && (first.Day() != 1 || first.Month() != last.Month() || civil(w[2]).Day() != 1) {
				t.Fatalf("a month from %s to %s", first, last)
			}
			if unit == CalendarWeek && (first.Weekday() != start || civil(w[2]).Weekday() != start) {
				t.Fatalf("a week from %s to %s", first, last)
			}
			if off := (length - unit.Nominal()).Abs(); unit != CalendarMonth && off > time.Hour+time.Hour {
				t.Fatalf("a %s of %s", unit, length)
			}
		}
	})
}

// midnight returns 0:00 of a time by its own offset.
func midnight(t time.Time) time.Time {
	return t.Add(-time.Duration(t.Hour())*time.Hour - time.Duration(t.Minute())*time.Minute -
		time.Duration(t.Second())*time.Second - time.Duration(t.Nanosecond()))
}

// dateOf names the date of a time where it is.
func dateOf(t time.Time) string { return t.Format(time.DateOnly) }

func TestCalendarRemembersItsLastAnswer(t *testing.T) {
	c := &Calendar{Unit: CalendarDay, Location: location(t, "Europe/Berlin")}
	now := int64(epoch)
	want := c.Windows(now)
	if n := testing.AllocsPerRun(100, func() {
		now += 1_000_000
		if c.Windows(now) != want {
			t.Error("another answer within the same day")
		}
	}); n != 0 {
		t.Errorf("asking again allocates %v times", n)
	}
	if got := c.Windows(want[2]); got[1] != want[2] {
		t.Errorf("the next day got %v", got)
	}
	if got := c.Windows(now); got != want {
		t.Errorf("back in the day before: %v, want %v", got, want)
	}
}

func TestCalendarAskedConcurrently(t *testing.T) {
	c := &Calendar{Unit: CalendarHour, Location: location(t, "Europe/Berlin")}
	var wg sync.WaitGroup
	for g := range int64(8) {
		wg.Go(func() {
			for i := range int64(1000) {
				now := epoch + (g*331+i*977)%50*3_600_000_000
				if w := c.Windows(now); w[1] > now || now >= w[2] {
					t.Errorf("%v at %d", w, now)
				}
			}
		})
	}
	wg.Wait()
}

// A hundred a day in Kolkata: all are there again at half past six in the
// evening, UTC.
func TestFixedWindowOnACalendar(t *testing.T) {
	const s, h = time.Second, time.Hour
	// The story begins at 2026-11-30 10:00 UTC, 15:30 there.
	begin := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC).Sub(time.UnixMicro(epoch))
	at := func(d time.Duration) time.Duration { return begin + d }
	b := &bucket{}
	tell(t, onCalendar(t, 100, CalendarDay, "Asia/Kolkata"), b, []step{
		{at(0), 101, denied(100, 0, Never), "more than a day grants"},
		{at(0), 99, allowed(1, 8*h+30*time.Minute), "until midnight there"},
		{at(h), 2, denied(1, 7*h+30*time.Minute, 7*h+30*time.Minute), ""},
		{at(8*h + 29*time.Minute + 59*s), 2, denied(1, s, s), "a second before"},
		{at(8*h + 30*time.Minute), 100, allowed(0, 24*h), "the new day"},
		{at(8 * h), 1, denied(0, 24*h+30*time.Minute, 24*h+30*time.Minute), "the clock goes back to the old one: the new day stays used"},
		{at(32*h + 30*time.Minute), 1, allowed(99, 24*h), "as told"},
		{at(300 * h), 0, allowed(100, 0), "days later"},
	})
	tell(t, onCalendar(t, 200, CalendarDay, "Asia/Kolkata"), b, []step{
		{at(33 * h), 0, allowed(199, 23*h+30*time.Minute), "raised: helps at once"},
	})
}

// A quota a day is a quota in each, across the changes of the clocks: a year of
// requests, one every ten minutes.
func TestFixedWindowOnACalendarAdmitsTheQuotaOfEachDate(t *testing.T) {
	for _, zone := range zones {
		p := onCalendar(t, 50, CalendarDay, zone)
		loc := location(t, zone)
		b := &bucket{}
		admitted := map[string]int{}
		first := time.Date(2027, 1, 1, 12, 0, 0, 0, loc)
		for at := first; at.Before(first.AddDate(1, 0, 0)); at = at.Add(10 * time.Minute) {
			got := b.take(p, at.UnixMicro(), 1)
			if got.allowed {
				admitted[dateOf(at.In(loc))]++
			} else if next := at.Add(got.retryAfter).In(loc); dateOf(next) == dateOf(at.In(loc)) || dateOf(next.Add(-time.Microsecond)) != dateOf(at.In(loc)) {
				t.Fatalf("%s: denied at %s until %s", zone, at.In(loc), next)
			}
		}
		for date, n := range admitted {
			if n != 50 {
				t.Errorf("%s: %d admitted on %s", zone, n, date)
			}
		}
		if len(admitted) < 366 {
			t.Errorf("%s: %d dates", zone, len(admitted))
		}
	}
}

func TestCalendarKeys(t *testing.T) {
	week := func(start time.Weekday, zone string) *Policy {
		return policy(t, Policy{Name: "n", Scope: "plan/n", Algorithm: FixedWindow, Quota: 1,
			Calendar: &Calendar{Unit: CalendarWeek, Location: location(t, zone), WeekStart: start}})
	}
	for _, c := range []struct {
		policy *Policy
		want   string
	}{
		{onCalendar(t, 1, CalendarDay, "Asia/Kolkata"), "plan/per-day:fc/day/Asia%2FKolkata"},
		{onCalendar(t, 1, CalendarMonth, "UTC"), "plan/per-day:fc/month/UTC"},
		{week(time.Monday, "UTC"), "plan/n:fc/week/UTC/monday"},
		{week(time.Sunday, "America/New_York"), "plan/n:fc/week/America%2FNew_York/sunday"},
	} {
		if got := c.policy.Key(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		if share := c.policy.Share(2); share.Key() != c.want || share.Calendar.Windows(epoch) != c.policy.Calendar.Windows(epoch) {
			t.Errorf("%s: its share has other windows", c.want)
		}
	}
}

func TestCalendarRefuses(t *testing.T) {
	for _, c := range []struct {
		calendar *Calendar
		window   time.Duration
		want     string
	}{
		{&Calendar{Unit: 0, Location: time.UTC}, 0, "unit: "},
		{&Calendar{Unit: 6, Location: time.UTC}, 0, "unit: "},
		{&Calendar{Unit: CalendarDay}, 0, "location: "},
		{&Calendar{Unit: CalendarDay, Location: time.Local}, 0, "location: "},
		{&Calendar{Unit: CalendarDay, Location: time.FixedZone("", 3600)}, 0, "location: "},
		{&Calendar{Unit: CalendarWeek, Location: time.UTC, WeekStart: 7}, 0, "week start: "},
		{&Calendar{Unit: CalendarWeek, Location: time.UTC, WeekStart: -1}, 0, "week start: "},
		{&Calendar{Unit: CalendarMonth, Location: time.UTC}, 31 * 24 * time.Hour, "window: want 720h"},
	} {
		p, err := NewPolicy(Policy{Name: "n", Scope: "plan/n", Algorithm: FixedWindow, Quota: 1, Window: c.window, Calendar: c.calendar})
		if err == nil || p != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, window %s: got %v, %v, want an error about %q", c.calendar.Unit, c.window, p, err, c.want)
		}
	}
}

func FuzzCalendarWindows(f *testing.F) {
	for i := range byte(len(zones)) {
		f.Add(i, byte(3), byte(1), int64(1_806_278_400))
		f.Add(i, byte(2), byte(0), int64(1_822_521_600))
		f.Add(i, byte(5), byte(6), int64(-1))
		f.Add(i, byte(1), byte(3), int64(1)<<52/1_000_000)
	}
	f.Fuzz(func(t *testing.T, zone, unit, start byte, now int64) {
		// As far as a time in µs stays below 2^53.
		const most = 1 << 53 / 1_000_000
		now %= most
		c := &Calendar{
			Unit: 1 + CalendarUnit(unit%5), WeekStart: time.Weekday(start % 7),
			Location: location(t, zones[int(zone)%len(zones)]),
		}
		us := now * 1_000_000
		w := c.Windows(us)
		if w[0] >= w[1] || w[1] > us || us >= w[2] || w[2] >= w[3] {
			t.Fatalf("%s of %s: windows %v around %d", c.Unit, c.Location, w, us)
		}
		if next := c.Windows(w[2]); next[0] != w[1] || next[1] != w[2] || next[2] != w[3] {
			t.Fatalf("%s of %s: %v is followed by %v", c.Unit, c.Location, w, next)
		}
	})
}
