package simulate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bouncer/gateway"
)

// What has gone wrong with plans and quotas for people who run gateways, and what
// happens here instead.

func perDay(n int) string {
	return fmt.Sprintf("{name: per-day, algorithm: fixed_window, anchor: calendar, limit: %d/day}", n)
}

// A lowered quota counts what was spent: it denies from its own number on, and
// says so beside what was allowed before.
func TestALoweredQuotaCountsWhatWasSpent(t *testing.T) {
	t.Parallel()
	var j journal
	for i := range 300 {
		j.add(noon.Add(time.Duration(i)*time.Second), "/api/x", `,"user":"u"`)
	}
	before := load(t, routes, plans(perDay(1000)))
	for _, n := range []int{100, 500, 5000} {
		r := run(t, Options{Config: load(t, routes, plans(perDay(n))), Against: before}, j.String())
		want := int64(max(0, 300-n))
		if r.Denied != want || *r.NewlyDenied != want || *r.limit(t, "free", "api", "per-day").SmallestOK != 300 {
			t.Errorf("%d a day: %d denied, %+v", n, r.Denied, r.Limits)
		}
	}
}

// A caller whose lines name another plan now and then keeps what it spent.
func TestWhoMovesBetweenPlansKeepsWhatItSpent(t *testing.T) {
	t.Parallel()
	var j journal
	for i := range 200 {
		plan := "free"
		if i%10 == 9 {
			plan = "pro" // an old token, or a toggle
		}
		j.add(noon.Add(time.Duration(i)*time.Second), "/api/x", fmt.Sprintf(`,"user":"u","plan":%q`, plan))
	}
	text := plans(perDay(50))
	text = strings.Replace(text, "{name: per-minute, algorithm: token_bucket, limit: 1000/minute}", perDay(10_000), 1)
	r := run(t, Options{Config: load(t, routes, text)}, j.String())
	// 50 requests, of both plans, use up what the small one has; after that only
	// the 15 of the large one pass.
	if r.Allowed != 50+15 {
		t.Errorf("%d allowed: %+v", r.Allowed, r.Limits)
	}
}

// The day begins where the plan says, to the second.
func TestADayBeginsWhereThePlanSays(t *testing.T) {
	t.Parallel()
	for zone, midnight := range map[string]string{
		"UTC": "2026-11-02T00:00:00Z", "Asia/Shanghai": "2026-11-01T16:00:00Z",
		"Asia/Kolkata": "2026-11-01T18:30:00Z", "Pacific/Chatham": "2026-11-01T10:15:00Z",
	} {
		at, err := time.Parse(time.RFC3339, midnight)
		if err != nil {
			t.Fatal(err)
		}
		var j journal
		for _, d := range []time.Duration{-2 * time.Second, -time.Second, 0, time.Second} {
			j.add(at.Add(d), "/api/x", `,"user":"u"`)
		}
		cfg := load(t, routes, plans("{name: per-day, algorithm: fixed_window, anchor: calendar, timezone: "+zone+", limit: 1/day}"))
		var denied []bool
		run(t, Options{Config: cfg, observe: func(_ *record, v *gateway.Verdict) { denied = append(denied, v.Refused != nil) }}, j.String())
		if !slices.Equal(denied, []bool{false, true, false, true}) {
			t.Errorf("%s: %v", zone, denied)
		}
	}
}

// A month of the calendar ends with it, whether it has 28 days or 31, and does
// not drift.
func TestAMonthEndsWithTheCalendar(t *testing.T) {
	t.Parallel()
	var j journal
	var want []bool
	for m := range 14 {
		first := time.Date(2027, time.December+time.Month(m), 1, 0, 0, 0, 0, time.UTC) // 2028 is a leap year
		j.add(first, "/api/x", `,"user":"u"`)
		j.add(first.AddDate(0, 1, 0).Add(-time.Second), "/api/x", `,"user":"u"`)
		want = append(want, false, true)
	}
	cfg := load(t, routes, plans("{name: per-month, algorithm: fixed_window, anchor: calendar, limit: 1/month}"))
	var denied []bool
	run(t, Options{Config: cfg, observe: func(_ *record, v *gateway.Verdict) { denied = append(denied, v.Refused != nil) }}, j.String())
	if !slices.Equal(denied, want) {
		t.Errorf("%v", denied)
	}
}

// A quota of a provider's day, given in the provider's zone, holds in it.
func TestADayOfAnotherZoneIsGrantedOnce(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 11, 3, 8, 0, 0, 0, time.UTC) // midnight in Los Angeles
	var j journal
	for i := range 1000 { // in the night between two UTC days
		j.add(from.Add(15*time.Hour+time.Duration(i)*4*time.Second), "/api/x", `,"user":"u"`)
	}
	cfg := load(t, routes, plans("{name: per-day, per: global, algorithm: fixed_window, anchor: calendar, timezone: America/Los_Angeles, limit: 300/day}"))
	if r := run(t, Options{Config: cfg}, j.String()); r.Allowed != 300 {
		t.Errorf("%d in one day of the provider", r.Allowed)
	}
}

// One number for all instances is what is rehearsed, however many wrote the logs.
func TestLogsOfSeveralInstancesShareOneLimit(t *testing.T) {
	t.Parallel()
	var j journal
	for i := range 33 {
		j.add(noon.Add(time.Duration(i)*time.Millisecond), "/api/x", fmt.Sprintf(`,"user":"u","instance":"%d"`, i%3))
	}
	cfg := load(t, routes, plans("{name: per-minute, algorithm: fixed_window, limit: 10/minute}"))
	if r := run(t, Options{Config: cfg}, j.String()); r.Allowed != 10 {
		t.Errorf("%d allowed", r.Allowed)
	}
}

// A plan that is not in the file, or none, is the default plan; case matters.
func TestAnUnknownPlanIsTheDefaultPlan(t *testing.T) {
	t.Parallel()
	var j journal
	for i, plan := range []string{`,"plan":"platinum"`, "", `,"plan":"PRO"`, `,"plan":""`, `,"plan":null`} {
		for range 3 {
			j.add(noon, "/api/x", fmt.Sprintf(`,"user":"u%d"%s`, i, plan))
		}
	}
	cfg := load(t, routes, plans(perDay(2)))
	r := run(t, Options{Config: cfg}, j.String())
	for _, c := range r.Callers {
		if c.Plan != "free" {
			t.Errorf("%+v", c)
		}
	}
	if l := r.limit(t, "free", "api", "per-day"); l.Asked != 15 || l.Denied != 5 {
		t.Errorf("%+v", l)
	}
}
