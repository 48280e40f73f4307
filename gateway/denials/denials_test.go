package denials

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC)

func newLog(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// deny has a caller be denied once, and reports whether that is kept.
func deny(l *Log, user string, at time.Time) bool {
	if !l.Room("{user:"+user+"}", at) {
		return false
	}
	l.Add("{user:"+user+"}", "203.0.113.7", &Denial{Time: Time{at}, User: user, ClientIP: "203.0.113.7", Status: 429, DeniedBy: "per-minute"})
	return true
}

func users(l *Log) map[string]int {
	by := map[string]int{}
	for _, d := range l.List(Filter{}, l.o.Max) {
		by[d.User]++
	}
	return by
}

func TestOneNoisyCallerDoesNotPushOutTheOthers(t *testing.T) {
	l := newLog(t, Options{Max: 100, PerCaller: 20, PerSecond: 4})
	for i := range 10 {
		deny(l, fmt.Sprint("quiet", i), noon)
	}
	skipped := uint64(0)
	for s := range 1000 { // of each of which it is denied 50 times
		for range 50 {
			if !deny(l, "noisy", noon.Add(time.Duration(s)*time.Second)) {
				skipped++
			}
		}
	}
	by := users(l)
	if len(by) != 11 || by["noisy"] != 20 {
		t.Errorf("kept: %v", by)
	}
	if s := l.Stats(); skipped != 1000*46 || s.Skipped != skipped || s.Kept != 30 || !s.Oldest.Equal(noon.Truncate(time.Microsecond)) {
		t.Errorf("%d were skipped, and it says %+v", skipped, s)
	}
	// Of the noisy one the newest are kept.
	if d := l.List(Filter{User: "noisy"}, 1)[0]; !d.Time.Equal(noon.Add(999 * time.Second).Truncate(time.Microsecond)) {
		t.Errorf("the newest is of %s", d.Time)
	}
}

func TestTheOldestMakesRoom(t *testing.T) {
	l := newLog(t, Options{Max: 5})
	for i := range 12 {
		deny(l, fmt.Sprint(i), noon.Add(time.Duration(i)*time.Second))
	}
	var got []string
	for _, d := range l.List(Filter{}, 100) {
		got = append(got, d.User)
	}
	if fmt.Sprint(got) != "[11 10 9 8 7]" {
		t.Errorf("kept %v", got)
	}
	if len(l.callers) != 5 {
		t.Errorf("%d callers are remembered for 5 denials", len(l.callers))
	}
	if got := l.List(Filter{}, 2); len(got) != 2 || got[0].User != "11" {
		t.Errorf("two of them are %v", got)
	}
}

// Who asks for room and does not add, since the request panicked, is forgotten.
func TestRoomThatIsNotUsedIsBounded(t *testing.T) {
	l := newLog(t, Options{Max: 10})
	for i := range 1000 {
		l.Room(fmt.Sprint("gone", i), noon)
	}
	if len(l.callers) > 20 {
		t.Errorf("%d callers are remembered", len(l.callers))
	}
	if deny(l, "new", noon) {
		t.Error("there is room beyond the bound")
	}
	l = newLog(t, Options{Max: 10})
	for i := range 15 {
		l.Room(fmt.Sprint("gone", i), noon)
	}
	if !deny(l, "new", noon.Add(time.Second)) || len(l.callers) != 1 {
		t.Errorf("%d callers are remembered", len(l.callers))
	}
}

func TestFilters(t *testing.T) {
	l := newLog(t, Options{})
	add := func(d Denial) {
		if !l.Room(d.User+d.ClientIP, d.Time.Time) {
			t.Fatal("no room")
		}
		l.Add(d.User+d.ClientIP, d.ClientIP, &d)
	}
	add(Denial{Time: Time{noon}, RequestID: "1", User: "priya123", KeyID: "k-1", ClientIP: "203.0.113.7", Route: "weather", Plan: "free", Status: 429, DeniedBy: "per-minute", Path: "/v1/Weather"})
	add(Denial{Time: Time{noon.Add(time.Minute)}, RequestID: "2", User: "sam", ClientIP: "2001:db8::1", Route: "export", Plan: "pro", Status: 503, DeniedBy: "local-cap", Decisions: []Decision{
		{Limit: "per-day", Mode: "enforce"}, {Limit: "per-hour", Mode: "enforce", Allowed: true}, {Limit: "trial", Mode: "shadow"},
	}})
	add(Denial{Time: Time{noon.Add(2 * time.Minute)}, RequestID: "3", ClientIP: "203.0.113.99", Route: "weather", Status: 429, DeniedBy: "crowd"})
	for _, tc := range []struct {
		name string
		f    Filter
		want string
	}{
		{"all", Filter{}, "321"},
		{"user", Filter{User: "priya123"}, "1"},
		{"no part of a user", Filter{User: "priya"}, ""},
		{"key", Filter{KeyID: "k-1"}, "1"},
		{"route", Filter{Route: "weather"}, "31"},
		{"plan", Filter{Plan: "pro"}, "2"},
		{"status", Filter{Status: 429}, "31"},
		{"since", Filter{Since: noon.Add(time.Minute).Truncate(time.Microsecond)}, "32"},
		{"the limit that denied", Filter{Limit: "crowd"}, "3"},
		{"one of those that denied", Filter{Limit: "per-day"}, "2"},
		{"a limit that allowed", Filter{Limit: "per-hour"}, ""},
		{"a limit in shadow", Filter{Limit: "trial"}, ""},
		{"address", Filter{IP: netip.MustParsePrefix("203.0.113.7/32")}, "1"},
		{"network", Filter{IP: netip.MustParsePrefix("203.0.113.0/24")}, "31"},
		{"network of version 6", Filter{IP: netip.MustParsePrefix("2001:db8::/64")}, "2"},
		{"bucket", Filter{Bucket: "203.0.113.99"}, "3"},
		{"text", Filter{Text: "WEATHER"}, "31"},
		{"text of a user", Filter{Text: "iya1"}, "1"},
		{"two", Filter{Route: "weather", Plan: "free"}, "1"},
	} {
		got := ""
		for _, d := range l.List(tc.f, 10) {
			got += d.RequestID
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestWhatIsKeptIsBounded(t *testing.T) {
	for _, s := range []string{`"><script>alert(1)</script>`, "\u202egnp", "\x00\x1b[31m\n", "\xff\xfe", strings.Repeat("x", 64<<10), strings.Repeat("\xff", 4096), strings.Repeat("é", 4096)} {
		l := newLog(t, Options{})
		l.Room("c", noon)
		d := &Denial{
			Time: Time{noon}, RequestID: s, ClientIP: s, Method: s, Host: s, Path: s, Route: s, User: s, Tenant: s, KeyID: s, Plan: s, DeniedBy: s,
			Decisions: make([]Decision, 100),
		}
		for i := range d.Decisions {
			d.Decisions[i].Partition = s
		}
		l.Add("c", s, d)
		got := l.List(Filter{}, 1)[0]
		for _, f := range []string{got.RequestID, got.Method, got.Host, got.Path, got.User, got.Decisions[0].Partition} {
			if len(f) > MaxText || !utf8.ValidString(f) {
				t.Errorf("%.20q is kept as %d bytes", s, len(f))
			}
		}
		if len(got.Decisions) != MaxDecisions {
			t.Errorf("%d decisions are kept", len(got.Decisions))
		}
		b, err := json.Marshal(got)
		if err != nil || strings.Contains(string(b), "<script") || strings.Contains(string(b), "\x1b") {
			t.Errorf("as JSON %s, %v", b, err)
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	l := newLog(t, Options{})
	long := strings.Repeat("x", 4096)
	for i := range 3 * DefaultMax {
		d := &Denial{Time: Time{noon}, RequestID: long, ClientIP: long, Method: long, Host: long, Path: long, Route: long, User: long, Tenant: long, KeyID: long, Plan: long, DeniedBy: long}
		for range 4 {
			d.Decisions = append(d.Decisions, Decision{Limit: "per-minute", Partition: "{user:" + strings.Repeat("x", 128) + "}"})
		}
		name := fmt.Sprint(i)
		if l.Room(name, noon) {
			l.Add(name, "203.0.113.7", d)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / DefaultMax
	t.Logf("%d bytes each", each)
	if n := l.Stats().Kept; n != DefaultMax || each > 6<<10+4*400 {
		t.Errorf("%d take %d bytes each", n, each)
	}
	runtime.KeepAlive(l)
}

func TestNoRoomCostsNoAllocation(t *testing.T) {
	l := newLog(t, Options{})
	now := noon
	for deny(l, "noisy", now) {
	}
	name := "{user:noisy}"
	if n := testing.AllocsPerRun(100, func() { l.Room(name, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	var none *Log
	if none.Room("x", noon) || none.List(Filter{}, 1) != nil || none.Stats() != (Stats{}) {
		t.Error("none has something")
	}
	if _, err := New(Options{PerSecond: -1}); err == nil {
		t.Error("-1 a second is no mistake")
	}
}

func BenchmarkNoRoom(b *testing.B) {
	l := newLog(b, Options{})
	for deny(l, "noisy", noon) {
	}
	b.ReportAllocs()
	for b.Loop() {
		l.Room("{user:noisy}", noon)
	}
}

func ExampleLog() {
	l, err := New(Options{})
	if err != nil {
		panic(err)
	}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	if l.Room("{user:priya123}", at) {
		l.Add("{user:priya123}", "203.0.113.7", &Denial{Time: Time{at}, User: "priya123", Status: 429, DeniedBy: "per-minute"})
	}
	for _, d := range l.List(Filter{User: "priya123"}, 50) {
		fmt.Println(d.Time.Format(time.RFC3339), d.Status, d.DeniedBy)
	}
	// Output: 2026-11-30T12:00:00Z 429 per-minute
}

// The access log has six digits, also where the last are zero.
func TestTheTimeIsThatOfTheAccessLog(t *testing.T) {
	d := &Denial{Time: Time{time.Date(2026, 11, 30, 12, 0, 0, 729_410_000, time.UTC)}, User: "priya123", Status: 429}
	text, err := json.Marshal([]*Denial{d})
	if err != nil {
		t.Fatal(err)
	}
	if want := `[{"time":"2026-11-30T12:00:00.729410Z","request_id":""`; !strings.HasPrefix(string(text), want) {
		t.Errorf("%s, want %s…", text, want)
	}
	if strings.Count(string(text), `"time"`) != 1 || !strings.Contains(string(text), `"user":"priya123"`) {
		t.Errorf("%s", text)
	}
}
