package gateway

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/topk"
)

// What an instance says of itself fits on the board, whatever its figures, and versions
// that know other members read it.
func TestAnAnnouncementFitsAndIsReadByOtherVersions(t *testing.T) {
	t.Parallel()
	a := announcement{
		Hostname: strings.Repeat("h", maxAnnounced), Version: strings.Repeat("v", maxAnnounced),
		Started: time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC), Config: "0123456789abcdef",
		Figures: figures{Requests: 123456.78, Denied: 123456.78, Failed: 123456.78, P99: 64000.123, InFlight: 123456, Away: true}.short(),
	}
	text, err := json.Marshal(a)
	if err != nil || len(text) > 512 {
		t.Fatalf("%d bytes, want 512 at most, %v", len(text), err)
	}
	var old struct {
		Hostname, Version, Config string
		Started                   time.Time
	}
	if err := json.Unmarshal(text, &old); err != nil || old.Hostname != a.Hostname || old.Config != a.Config {
		t.Errorf("a version without figures reads %+v, %v", old, err)
	}
	var now announcement
	if err := json.Unmarshal([]byte(`{"hostname":"a","version":"1","started":"2026-03-02T12:00:00Z","config":"x"}`), &now); err != nil || now.Figures != nil || now.Hostname != "a" {
		t.Errorf("of a version without figures is read %+v, %v", now, err)
	}
	if err := json.Unmarshal([]byte(`{"hostname":"a","now":{"r":5,"p":null,"later":[1]}}`), &now); err != nil || now.Figures.Requests != 5 || !math.IsNaN(float64(now.Figures.P99)) {
		t.Errorf("figures without a request are %+v, %v", now.Figures, err)
	}
}

func TestWhoAPartitionIs(t *testing.T) {
	t.Parallel()
	part := func(dimension, value string) ratelimit.Part {
		return ratelimit.Part{Dimension: dimension, Value: value}
	}
	hostile := "<script>\u202e\x00{|}:%"
	for _, test := range []struct {
		partition, kind, name string
	}{
		{ratelimit.Partition(part("user", "priya123")), "user", "priya123"},
		{ratelimit.Partition(part("user", "key:k-1")), "user", "key:k-1"},
		{ratelimit.Partition(part("user", hostile)), "user", hostile},
		{ratelimit.Partition(part("api_key", "k-1")), "key", "k-1"},
		{ratelimit.Partition(part("ip", "2001:db8::/64")), "ip", "2001:db8::/64"},
		{ratelimit.Partition(part("route", "weather"), part("ip", "203.0.113.7")), "ip", "203.0.113.7"},
		{ratelimit.Partition(part("ip", "203.0.113.7"), part("user", "kim")), "user", "kim"},
		{ratelimit.Partition(part("tenant", "acme")), "other", "{tenant:acme}"},
		{ratelimit.Partition(), "other", "{global}"},
		{"{user:cut%4", "other", "{user:cut%4"},
		{"", "other", ""},
	} {
		if kind, name := whoIs(test.partition); kind != test.kind || name != test.name {
			t.Errorf("%s is %s %q, want %s %q", test.partition, kind, name, test.kind, test.name)
		}
	}
}

// Who is admitted with a tenth of a limit left, or less, is near it; who has more, or
// is near one that is only tried, is not.
func TestNearIsATenthOrLess(t *testing.T) {
	policy := func(role ratelimit.Role) *ratelimit.Policy {
		p, err := ratelimit.NewPolicy(ratelimit.Policy{
			Name: "l" + string('0'+rune(role)), Scope: "s", Algorithm: ratelimit.FixedWindow, Quota: 100, Window: time.Minute, Role: role,
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	enforced, shadow := policy(ratelimit.Enforce), policy(ratelimit.Shadow)
	near, err := topk.New(10, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &snapshot{gw: &Gateway{topNear: near}}
	cs := []ratelimit.Charge{{Partition: "{user:far}"}, {Partition: "{user:near}"}, {Partition: "{user:spent}"}, {Partition: "{user:tried}"}}
	ds := []ratelimit.Decision{
		{Policy: enforced, Allowed: true, Remaining: 11}, {Policy: enforced, Allowed: true, Remaining: 10},
		{Policy: enforced, Allowed: true}, {Policy: shadow},
	}
	s.countNear(cs, ds)
	got := ""
	for _, e := range near.Top(10) {
		got += e.Key + ";"
	}
	if want := "l0 {user:near};l0 {user:spent};"; got != want {
		t.Errorf("near are %s, want %s", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { s.countNear(cs, ds) }); n != 0 {
		t.Errorf("a request of a caller that is known to be near costs %v allocations", n)
	}
	(&snapshot{gw: &Gateway{}}).countNear(cs, ds) // a rehearsal
}

func TestRequestsWaitOnPurposeWhereALimitQueuesThem(t *testing.T) {
	t.Parallel()
	cfg := &config.Config{Plans: []*config.Plan{{Limits: []*config.Limit{{}}}}}
	if waits(cfg) {
		t.Error("no limit queues, and requests wait")
	}
	cfg.Plans[0].Limits[0].Queue = 3
	if !waits(cfg) {
		t.Error("a limit queues, and requests do not wait")
	}
}

func TestTheMachineIsLookedAt(t *testing.T) {
	t.Parallel()
	var m machine
	m.look(0)
	m.look(time.Second)
	if m.goroutines == 0 || m.heap <= 0 || m.rss <= 0 || m.files <= 2 || m.filesMax <= 2 || !(m.cpu >= 0) {
		t.Errorf("%+v", m)
	}
}
