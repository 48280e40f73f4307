package ratelimit

import (
	"slices"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"
)

// priya is what a caller of two limits gets: admitted, one second until the
// next unit of the first, half a day until the second is whole again.
func priya(t *testing.T) []Decision {
	perMinute := tokenBucket(t, 100, time.Minute, 20)
	perDay := fixedWindow(t, 100, day)
	return []Decision{
		{Policy: perMinute, Allowed: true, Remaining: 19, Reset: 600 * time.Millisecond, Source: SourceRedis},
		{Policy: perDay, Allowed: true, Remaining: 81, Reset: 40211 * time.Second, Source: SourceRedis},
	}
}

func TestFieldsOfTwoLimits(t *testing.T) {
	ds := priya(t)
	if got, want := string(AppendPolicyField(nil, ds)), `"per-minute";q=100;w=60, "per-day";q=100;w=86400`; got != want {
		t.Errorf("RateLimit-Policy\n got %s\nwant %s", got, want)
	}
	if got, want := string(AppendLimitField(nil, ds, Draft11, 1)), `"per-minute";r=19;t=1, "per-day";r=81;t=40211`; got != want {
		t.Errorf("RateLimit\n got %s\nwant %s", got, want)
	}
}

// The newer text says the same with a, w and c; both at once keep one item a
// policy, since a policy may be listed only once.
func TestFieldsInTheWordsOfTheNewerDraft(t *testing.T) {
	ds := priya(t)
	for in, want := range map[Dialect]string{
		Draft11:    `"per-minute";r=19;t=1, "per-day";r=81;t=40211`,
		Draft12:    `"per-minute";a=19;w=1;c=10, "per-day";a=81;w=40211;c=10`,
		BothDrafts: `"per-minute";r=19;t=1;a=19;w=1;c=10, "per-day";r=81;t=40211;a=81;w=40211;c=10`,
	} {
		if got := string(AppendLimitField(nil, ds, in, 10)); got != want {
			t.Errorf("dialect %d\n got %s\nwant %s", in, got, want)
		}
	}
	ds[0].Reset, ds[0].Remaining = 0, 20
	if got, want := string(AppendLimitField(nil, ds[:1], BothDrafts, 1)), `"per-minute";r=20;a=20;c=1`; got != want {
		t.Errorf("nothing spent: %s, want %s", got, want)
	}
}

func TestFieldsLeaveOutTWhenNothingIsSpent(t *testing.T) {
	ds := priya(t)
	ds[0].Reset, ds[0].Remaining = 0, 20
	if got, want := string(AppendLimitField(nil, ds, Draft11, 1)), `"per-minute";r=20, "per-day";r=81;t=40211`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFieldsOfNoDecisionAreEmpty(t *testing.T) {
	if got := string(AppendPolicyField([]byte("x"), nil)) + string(AppendLimitField([]byte("y"), nil, BothDrafts, 1)); got != "xy" {
		t.Errorf("got %q", got)
	}
}

func TestFieldsShowALocalCapThatAnsweredForTwoLimitsOnce(t *testing.T) {
	ds := priya(t)
	ds = append(ds, ds[0], ds[1])
	if got, want := string(AppendPolicyField(nil, ds)), `"per-minute";q=100;w=60, "per-day";q=100;w=86400`; got != want {
		t.Errorf("RateLimit-Policy\n got %s\nwant %s", got, want)
	}
	if got, want := string(AppendLimitField(nil, ds, Draft11, 1)), `"per-minute";r=19;t=1, "per-day";r=81;t=40211`; got != want {
		t.Errorf("RateLimit\n got %s\nwant %s", got, want)
	}
}

// What is a shadow or a candidate is nobody's business, and has no say.
func TestFieldsShowWhatIsEnforcedOnly(t *testing.T) {
	ds := priya(t)
	trial := Decision{Policy: as(t, fixedWindow(t, 5, time.Hour), shadow), RetryAfter: Never}
	other := Decision{Policy: as(t, ds[0].Policy, candidate), RetryAfter: time.Hour, Delay: time.Hour}
	mixed := []Decision{trial, ds[0], other, ds[1], trial}
	if got, want := string(AppendPolicyField(nil, mixed)), string(AppendPolicyField(nil, ds)); got != want {
		t.Errorf("RateLimit-Policy\n got %s\nwant %s", got, want)
	}
	if got, want := string(AppendLimitField(nil, mixed, Draft11, 1)), string(AppendLimitField(nil, ds, Draft11, 1)); got != want {
		t.Errorf("RateLimit\n got %s\nwant %s", got, want)
	}
	limit, remaining, reset, ok := Legacy(mixed)
	if limit != 100 || remaining != 19 || reset != 1 || !ok {
		t.Errorf("legacy %d, %d, %d, %v", limit, remaining, reset, ok)
	}
	if wait, denied := RetryAfter(mixed); wait != 0 || denied || !Admitted(mixed) || Violated(mixed) != nil || Delay(mixed) != 0 {
		t.Errorf("retry after %s, denied %v, admitted %v, violated %q, delay %s", wait, denied, Admitted(mixed), Violated(mixed), Delay(mixed))
	}
	mixed[3].Allowed, mixed[3].RetryAfter = false, time.Minute
	if wait, denied := RetryAfter(mixed); wait != time.Minute || !denied || Admitted(mixed) || !slices.Equal(Violated(mixed), []string{"per-day"}) {
		t.Errorf("retry after %s, denied %v, admitted %v, violated %q", wait, denied, Admitted(mixed), Violated(mixed))
	}
	trials := []Decision{trial, other}
	if _, _, _, ok := Legacy(trials); ok || !Admitted(trials) || len(AppendPolicyField(nil, trials))+len(AppendLimitField(nil, trials, BothDrafts, 1)) > 0 {
		t.Error("trials alone have fields")
	}
}

func TestFieldsDoNotAllocate(t *testing.T) {
	ds := priya(t)
	buf := make([]byte, 0, 300)
	if n := testing.AllocsPerRun(100, func() {
		buf = AppendPolicyField(buf[:0], ds)
		buf = AppendLimitField(buf, ds, BothDrafts, 3)
		Legacy(ds)
		RetryAfter(ds)
		if Violated(ds) != nil {
			t.Error("nobody denied")
		}
	}); n != 0 {
		t.Errorf("allocates %v times", n)
	}
}

// An independent parser of structured fields reads what was written.
func TestFieldsAreStructuredFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ds []Decision
		for range rapid.IntRange(1, 5).Draw(t, "decisions") {
			p, err := NewPolicy(Policy{
				Name:      rapid.StringMatching(`[a-z0-9_-]{1,20}`).Draw(t, "name"),
				Scope:     "plan/x",
				Algorithm: FixedWindow,
				Quota:     rapid.Int64Range(0, MaxQuota).Draw(t, "quota"),
				Window:    time.Duration(rapid.Int64Range(1, 366*86400).Draw(t, "window")) * time.Second,
			})
			if err != nil {
				t.Fatal(err)
			}
			ds = append(ds, Decision{
				Policy:    p,
				Remaining: rapid.Int64Range(0, MaxQuota).Draw(t, "remaining"),
				Reset:     time.Duration(rapid.Int64Range(0, 1<<62).Draw(t, "reset")),
			})
		}
		policies, err := httpsfv.UnmarshalList([]string{string(AppendPolicyField(nil, ds))})
		if err != nil {
			t.Fatal(err)
		}
		in := Dialect(rapid.IntRange(int(Draft11), int(BothDrafts)).Draw(t, "dialect"))
		cost := rapid.Int64Range(1, MaxQuota).Draw(t, "cost")
		limits, err := httpsfv.UnmarshalList([]string{string(AppendLimitField(nil, ds, in, cost))})
		if err != nil {
			t.Fatal(err)
		}
		if len(policies) != len(ds) || len(limits) != len(ds) {
			t.Fatalf("%d and %d items for %d decisions", len(policies), len(limits), len(ds))
		}
		for i, d := range ds {
			wantItem(t, policies[i], d.Policy.Name, map[string]int64{"q": d.Policy.Quota, "w": int64(d.Policy.Window / time.Second)})
			params := map[string]int64{}
			if in != Draft12 {
				params["r"] = d.Remaining
			}
			if in != Draft11 {
				params["a"], params["c"] = d.Remaining, cost
			}
			if d.Reset > 0 {
				seconds := int64((d.Reset-1)/time.Second) + 1
				if in != Draft12 {
					params["t"] = seconds
				}
				if in != Draft11 {
					params["w"] = seconds
				}
			}
			wantItem(t, limits[i], d.Policy.Name, params)
		}
	})
}

func wantItem(t *rapid.T, m httpsfv.Member, name string, params map[string]int64) {
	t.Helper()
	item, ok := m.(httpsfv.Item)
	if !ok || item.Value != any(name) {
		t.Fatalf("got %+v, want the item %q", m, name)
	}
	if got := len(item.Params.Names()); got != len(params) {
		t.Fatalf("%s has the parameters %v, want %v", name, item.Params.Names(), params)
	}
	for k, want := range params {
		if got, _ := item.Params.Get(k); got != any(want) {
			t.Fatalf("%s;%s=%v, want %d", name, k, got, want)
		}
	}
}

func TestLegacy(t *testing.T) {
	const s = time.Second
	a, b, c := tokenBucket(t, 100, time.Minute, 20), fixedWindow(t, 1000, day), fixedWindow(t, 50, time.Hour)
	yes := func(p *Policy, remaining int64, reset time.Duration) Decision {
		return Decision{Policy: p, Allowed: true, Remaining: remaining, Reset: reset}
	}
	no := func(p *Policy, remaining int64, reset, retryAfter time.Duration) Decision {
		return Decision{Policy: p, Remaining: remaining, Reset: reset, RetryAfter: retryAfter}
	}
	for _, tt := range []struct {
		name                    string
		ds                      []Decision
		limit, remaining, reset int64
	}{
		{"one", []Decision{yes(a, 19, 600*time.Millisecond)}, 100, 19, 1},
		{"nothing spent", []Decision{yes(a, 20, 0)}, 100, 20, 0},
		{"the smallest remaining", []Decision{yes(b, 900, 40000*s), yes(a, 19, s), yes(c, 30, 9*s)}, 100, 19, 1},
		{"a tie goes to the larger reset", []Decision{yes(a, 19, s), yes(c, 19, 9*s), yes(b, 19, 3*s)}, 50, 19, 9},
		{"a whole tie goes to the first", []Decision{yes(b, 19, s), yes(c, 19, s)}, 1000, 19, 1},
		{"the one that denies, not the smallest", []Decision{yes(c, 0, 9*s), no(a, 3, s, 2500*time.Millisecond)}, 100, 3, 3},
		{"of two, the one that waits longer", []Decision{no(a, 0, s, s), no(b, 2, 5*s, 5*s), yes(c, 1, s)}, 1000, 2, 5},
		{"never is the longest, and reset is its t", []Decision{no(b, 0, 9000*s, 9000*s), no(a, 7, s, Never)}, 100, 7, 1},
		{"never, first", []Decision{no(a, 7, 0, Never), no(b, 0, 9000*s, 9000*s)}, 100, 7, 0},
	} {
		limit, remaining, reset, ok := Legacy(tt.ds)
		if !ok || limit != tt.limit || remaining != tt.remaining || reset != tt.reset {
			t.Errorf("%s: got %d, %d, %d, %v, want %d, %d, %d", tt.name, limit, remaining, reset, ok, tt.limit, tt.remaining, tt.reset)
		}
	}
	if _, _, _, ok := Legacy(nil); ok {
		t.Error("no decision has legacy fields")
	}
}

func TestRetryAfterIsTheLongestOfThoseThatDeny(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		ds     []Decision
		want   time.Duration
		denied bool
	}{
		{"none", nil, 0, false},
		{"all allow", []Decision{{Allowed: true, Reset: 9 * s}}, 0, false},
		{"two deny", []Decision{{RetryAfter: s}, {Allowed: true, Reset: 9 * s}, {RetryAfter: 3 * s}, {RetryAfter: 2 * s}}, 3 * s, true},
		{"one of them for ever", []Decision{{RetryAfter: Never}, {RetryAfter: 3 * s}}, Never, true},
		{"the last of them for ever", []Decision{{RetryAfter: 3 * s}, {RetryAfter: Never}}, Never, true},
	} {
		if got, denied := RetryAfter(c.ds); got != c.want || denied != c.denied {
			t.Errorf("%s: got %s, %v, want %s, %v", c.name, got, denied, c.want, c.denied)
		}
	}
}

func TestViolatedNamesEachPolicyThatDeniesOnce(t *testing.T) {
	a, b := tokenBucket(t, 100, time.Minute, 20), fixedWindow(t, 1000, day)
	ds := []Decision{{Policy: b}, {Policy: a, Allowed: true}, {Policy: b}, {Policy: a}}
	if got, want := Violated(ds), []string{"per-day", "per-minute"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSecondsAreRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		Never: 0, 0: 0, 1: 1, time.Microsecond: 1, time.Second: 1, time.Second + 1: 2, 1<<63 - 1: 9223372037,
	} {
		if got := Seconds(d); got != want {
			t.Errorf("%s: got %d, want %d", d, got, want)
		}
	}
}

func BenchmarkFields(b *testing.B) {
	p, q := tokenBucket(b, 100, time.Minute, 20), fixedWindow(b, 100, day)
	ds := []Decision{{Policy: p, Allowed: true, Remaining: 19, Reset: 600 * time.Millisecond}, {Policy: q, Allowed: true, Remaining: 81, Reset: 40211 * time.Second}}
	buf := make([]byte, 0, 300)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendPolicyField(buf[:0], ds)
		buf = AppendLimitField(buf, ds, BothDrafts, 3)
	}
}

func BenchmarkPartition(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Partition(Part{"tenant", "acme"}, Part{"ip", "2001:db8::/64"})
	}
}
