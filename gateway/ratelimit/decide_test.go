package ratelimit

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A ledger keeps states as a store does, by partition and key, and takes lists
// by Decide.
type ledger map[string]State

func (l ledger) take(now int64, charges ...Charge) []Decision {
	slots := make([]Slot, len(charges))
	at := map[string]int{}
	name := func(c Charge) string { return c.Partition + c.Policy.Key() }
	for i, c := range charges {
		first, ok := at[name(c)]
		if !ok {
			first = i
			at[name(c)] = i
		}
		slots[i] = Slot{First: first, State: l[name(c)]}
	}
	ds := Decide(nil, SourceMemory, now, charges, slots)
	for i, s := range slots {
		if s.First == i && s.Charged != nil {
			l[name(charges[i])] = s.After
		}
	}
	return ds
}

// used returns what a policy has counted of its capacity at epoch.
func (l ledger) used(p *Policy) int64 {
	ds := l.take(epoch, Charge{Policy: p, Partition: "{user:priya123}"})
	return p.Capacity() - ds[0].Remaining
}

func charge(p *Policy, cost int64) Charge {
	return Charge{Policy: p, Partition: "{user:priya123}", Cost: cost}
}

// as returns p with another role, or with rejected attempts counted.
func as(tb testing.TB, p *Policy, change func(*Policy)) *Policy {
	tb.Helper()
	spec := *p
	change(&spec)
	return policy(tb, spec)
}

func shadow(p *Policy)        { p.Role = Shadow }
func candidate(p *Policy)     { p.Role = Candidate }
func countRejected(p *Policy) { p.CountRejected = true }

func verdicts(ds []Decision) (s string) {
	for _, d := range ds {
		if d.Allowed {
			s += "+"
		} else {
			s += "-"
		}
	}
	return s
}

func TestAShadowIsDecidedAndCountedAndDeniesNobody(t *testing.T) {
	l := ledger{}
	live := fixedWindow(t, 5, day)
	trial := as(t, slidingLog(t, 2, time.Minute), shadow)
	for i, want := range []string{"++", "++", "+-", "+-", "+-"} {
		ds := l.take(epoch, charge(live, 1), charge(trial, 1))
		if got := verdicts(ds); got != want || !Admitted(ds) {
			t.Fatalf("request %d: %s, want %s", i, got, want)
		}
		if ds[1].Allowed == (ds[1].RetryAfter != 0) {
			t.Errorf("request %d: the shadow says %+v", i, ds[1])
		}
	}
	// The live limit denies: the shadow would allow, and is not charged.
	ds := l.take(epoch+61_000_000, charge(live, 1), charge(trial, 1))
	if verdicts(ds) != "-+" || Admitted(ds) || ds[1].Remaining != 2 {
		t.Errorf("denied by the live limit: %+v", ds)
	}
	if got := l.used(live); got != 5 {
		t.Errorf("the live limit has counted %d", got)
	}
}

// The candidate counts what would have been admitted with its number: it is not
// held back by its twin, but by the other limits.
func TestACandidateCountsWhatItsNumberWouldAdmit(t *testing.T) {
	live, other := fixedWindow(t, 2, day), slidingLog(t, 7, time.Hour)
	for _, c := range []struct {
		number int64
		want   string // the candidate's own verdicts
		count  int64
	}{
		{1, "+--------", 1},
		{4, "++++-----", 4},
		{9, "+++++++++", 4}, // from the fifth on the other limit denies as well
	} {
		l := ledger{}
		twin := as(t, fixedWindow(t, c.number, day), candidate)
		if twin.Key() != live.Key()+":candidate" {
			t.Fatalf("the candidate's key is %q", twin.Key())
		}
		got, admitted := "", 0
		for range 9 {
			// The other limit is charged by other requests as well, so that it runs
			// out: 5 of them and 2 of ours are 7.
			l.take(epoch, charge(other, 1))
			ds := l.take(epoch, charge(live, 1), charge(twin, 1), charge(other, 1))
			got += verdicts(ds[1:2])
			if Admitted(ds) {
				admitted++
			}
		}
		if got != c.want {
			t.Errorf("candidate %d: verdicts %s, want %s", c.number, got, c.want)
		}
		if admitted != 2 || l.used(live) != 2 {
			t.Errorf("candidate %d: %d admitted, %d counted by the live limit, want 2", c.number, admitted, l.used(live))
		}
		if n := l.used(twin); n != c.count {
			t.Errorf("candidate %d has counted %d, want %d", c.number, n, c.count)
		}
	}
}

func TestACandidateWithoutItsTwinBeforeItWaitsForAll(t *testing.T) {
	none, twin := fixedWindow(t, 0, day), as(t, slidingLog(t, 5, time.Minute), candidate)
	for _, charges := range [][]Charge{
		{charge(twin, 1), charge(none, 1)},
		{{Policy: none, Partition: "{user:mallory}", Cost: 1}, charge(twin, 1)},
		{charge(none, 1), charge(fixedWindow(t, 9, time.Hour), 1), charge(twin, 1)},
	} {
		l := ledger{}
		l.take(epoch, charges...)
		if n := l.used(twin); n != 0 {
			t.Errorf("%d counted, of a request that another limit denies", n)
		}
	}
}

// Five attempts a minute, and every further one counts: whoever keeps trying
// stays out, and what it is told stays true.
func TestCountRejectedLocksOutWhoKeepsTrying(t *testing.T) {
	const second = 1_000_000
	for _, c := range []struct {
		policy *Policy
		wait   time.Duration // told to a client that retries every second
	}{
		// The newest five are of the last five seconds: the oldest leaves in 56.
		{slidingLog(t, 5, time.Minute), 56 * time.Second},
		// It stays full: one unit takes 12 s.
		{tokenBucket(t, 5, time.Minute, 5), 12 * time.Second},
		{leakyBucket(t, 5, time.Minute, 4, 0), 12 * time.Second},
	} {
		p := as(t, c.policy, countRejected)
		l := ledger{}
		now := int64(epoch)
		for range 5 {
			if ds := l.take(now, charge(p, 1)); !Admitted(ds) {
				t.Fatalf("%s: %+v", p.Algorithm, ds)
			}
		}
		var last []Decision
		for i := range 120 {
			now += second
			if last = l.take(now, charge(p, 1)); Admitted(last) {
				t.Fatalf("%s: admitted after %d retries", p.Algorithm, i)
			}
			if wait, _ := RetryAfter(last); i > 5 && wait != c.wait || last[0].Remaining != 0 {
				t.Fatalf("%s: retry %d was told to wait %s, want %s; %+v", p.Algorithm, i, wait, c.wait, last[0])
			}
		}
		wait := last[0].RetryAfter.Microseconds()
		if ds := (ledger{"{user:priya123}" + p.Key(): l["{user:priya123}"+p.Key()]}).take(now+wait-wait/10, charge(p, 1)); Admitted(ds) {
			t.Errorf("%s: admitted 10 %% too soon", p.Algorithm)
		}
		if ds := l.take(now+wait, charge(p, 1)); !Admitted(ds) {
			t.Errorf("%s: denied after waiting as told: %+v", p.Algorithm, ds)
		}
	}
	// A fixed window ends when it was to: its count is full anyway.
	p := as(t, fixedWindow(t, 5, time.Minute), countRejected)
	l := ledger{}
	for i := range int64(59) {
		ds := l.take(epoch+i*second, charge(p, 1))
		if want := time.Minute - time.Duration(i)*time.Second; !Admitted(ds) && ds[0].RetryAfter != want {
			t.Fatalf("fixed_window: told to wait %s, want %s", ds[0].RetryAfter, want)
		}
	}
	if ds := l.take(epoch+60*second, charge(p, 1)); !Admitted(ds) {
		t.Error("fixed_window: the window did not end")
	}
	// A counter fills what fades of the previous window, so it has to wait until
	// this one has faded, from whenever it stops.
	p = as(t, slidingCounter(t, 5, time.Minute), countRejected)
	l = ledger{}
	now := int64(epoch)
	for range 300 {
		now += second
		if ds := l.take(now, charge(p, 1)); !Admitted(ds) {
			wait := ds[0].RetryAfter.Microseconds()
			again := ledger{"{user:priya123}" + p.Key(): l["{user:priya123}"+p.Key()]}
			if Admitted(again.take(now+wait-max(1, wait/10), charge(p, 1))) {
				t.Fatal("sliding_window_counter: admitted too soon")
			}
			again = ledger{"{user:priya123}" + p.Key(): l["{user:priya123}"+p.Key()]}
			if !Admitted(again.take(now+wait, charge(p, 1))) {
				t.Fatal("sliding_window_counter: denied after waiting as told")
			}
		}
	}
}

// A rejected cost is charged as far as there is room, and never beyond what the
// policy grants.
func TestCountRejectedChargesUpToTheLimitAndNeverBeyond(t *testing.T) {
	for _, p := range []*Policy{
		tokenBucket(t, 5, time.Minute, 5), leakyBucket(t, 5, time.Minute, 4, 0), slidingLog(t, 5, time.Minute),
		slidingCounter(t, 5, time.Minute), fixedWindow(t, 5, time.Minute), onCalendar(t, 5, CalendarDay, "Asia/Kolkata"),
	} {
		p = as(t, p, countRejected)
		none := fixedWindow(t, 0, day)
		for _, c := range []struct{ spent, cost, want int64 }{
			{0, 3, 3}, {3, 3, 5}, {5, 3, 5}, {0, 1 << 62, 5}, {2, 1<<63 - 1, 5}, {3, 0, 3},
		} {
			l := ledger{}
			if c.spent > 0 {
				l.take(epoch, charge(p, c.spent))
			}
			ds := l.take(epoch, charge(p, c.cost), charge(none, 1))
			if Admitted(ds) || ds[0].Remaining != 5-c.want || l.used(p) != c.want {
				t.Errorf("%s: %d spent, %d rejected: %d counted, want %d; %+v", p.Algorithm, c.spent, c.cost, l.used(p), c.want, ds[0])
			}
			if ds[0].Allowed != (c.spent+c.cost <= 5 && c.cost < 1<<60) {
				t.Errorf("%s: %d spent, %d rejected: its own verdict is %v", p.Algorithm, c.spent, c.cost, ds[0].Allowed)
			}
			if ds[0].Delay != 0 {
				t.Errorf("%s: a request that is not admitted waits %s", p.Algorithm, ds[0].Delay)
			}
		}
		// Quota 0 stores nothing.
		zero := as(t, p, func(p *Policy) { p.Quota = 0 })
		l := ledger{}
		if ds := l.take(epoch, charge(zero, 1)); Admitted(ds) || ds[0].RetryAfter != Never || len(l) != 0 {
			t.Errorf("%s of 0: %+v, %d states", p.Algorithm, ds[0], len(l))
		}
	}
}

// One limit denies and another, which allowed, counts the attempt and is used up
// by it: the client has to wait for both.
func TestRetryAfterWaitsForWhatARejectedAttemptUsedUp(t *testing.T) {
	short, long := fixedWindow(t, 1, time.Second), as(t, slidingLog(t, 2, time.Hour), countRejected)
	l := ledger{}
	l.take(epoch, charge(short, 1), charge(long, 1))
	ds := l.take(epoch, charge(short, 1), charge(long, 1))
	if verdicts(ds) != "-+" || ds[1].RetryAfter != time.Hour {
		t.Fatalf("%+v", ds)
	}
	wait, denied := RetryAfter(ds)
	if wait != time.Hour || !denied {
		t.Fatalf("told to wait %s, want an hour", wait)
	}
	if got := Violated(ds); len(got) != 1 || got[0] != short.Name {
		t.Errorf("violated: %q", got)
	}
	if ds := l.take(epoch+wait.Microseconds(), charge(short, 1), charge(long, 1)); !Admitted(ds) {
		t.Errorf("denied after waiting as told: %+v", ds)
	}
}

func TestDelayIsTheLongestOfThoseThatAreEnforced(t *testing.T) {
	slow, fast := leakyBucket(t, 1, time.Second, 9, 0), as(t, leakyBucket(t, 2, time.Second, 9, 0), func(p *Policy) { p.Scope = "limit/other" })
	trial := as(t, leakyBucket(t, 1, time.Minute, 9, 0), shadow)
	l := ledger{}
	for i := range 3 {
		ds := l.take(epoch, charge(fast, 1), charge(slow, 1), charge(trial, 1))
		if got, want := Delay(ds), time.Duration(i)*time.Second; got != want || !Admitted(ds) {
			t.Errorf("request %d waits %s, want %s; %+v", i, got, want, ds)
		}
		if got, want := ds[2].Delay, time.Duration(i)*time.Minute; got != want {
			t.Errorf("request %d would wait %s in the shadow, want %s", i, got, want)
		}
	}
}

// Two charges on one queue: the second goes after the first.
func TestTwoChargesOnOneQueueGoOneAfterTheOther(t *testing.T) {
	p := leakyBucket(t, 1, time.Second, 3, 0)
	ds := ledger{}.take(epoch, charge(p, 1), charge(p, 2))
	if ds[0].Delay != 0 || ds[1].Delay != 2*time.Second || ds[1].Remaining != 1 {
		t.Errorf("%+v", ds)
	}
}

// Random lists over buckets of their own, held against each bucket asked alone
// and who is to pay as the words of Decide say.
func TestDecideChargesWhoItSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var policies []*Policy
		for i := range rapid.IntRange(1, 4).Draw(t, "limits") {
			spec := Policy{Name: "n", Scope: fmt.Sprintf("plan/n%d", i), Algorithm: rapid.SampledFrom(algorithms).Draw(t, "algorithm"),
				Quota: rapid.Int64Range(0, 6).Draw(t, "quota"), Window: time.Second,
				CountRejected: rapid.Bool().Draw(t, "count rejected"), Role: Role(rapid.IntRange(0, 1).Draw(t, "role"))}
			p, err := NewPolicy(spec)
			if err != nil {
				t.Fatal(err)
			}
			policies = append(policies, p)
			if rapid.Bool().Draw(t, "candidate") {
				spec.Role, spec.CountRejected, spec.Quota = Candidate, false, rapid.Int64Range(0, 6).Draw(t, "candidate's quota")
				if p, err = NewPolicy(spec); err != nil {
					t.Fatal(err)
				}
				policies = append(policies, p)
			}
		}
		l := ledger{}
		alone := make([]bucket, len(policies))
		now := int64(epoch)
		for range rapid.IntRange(1, 25).Draw(t, "requests") {
			now += rapid.SampledFrom([]int64{0, 1, 166_667, 500_000, 1_000_000, -300_000}).Draw(t, "gap")
			var charges []Charge
			for _, p := range policies {
				charges = append(charges, charge(p, rapid.Int64Range(0, 4).Draw(t, "cost")))
			}
			ds := l.take(now, charges...)

			allows := make([]bool, len(policies))
			for i, p := range policies {
				allows[i] = alone[i].would(p, now, charges[i].Cost)
				if ds[i].Allowed != allows[i] {
					t.Fatalf("charge %d: allowed %v", i, ds[i].Allowed)
				}
			}
			// others reports whether all that are enforced allow, but for one.
			others := func(but int) bool {
				for i, p := range policies {
					if i != but && p.Role == Enforce && !allows[i] {
						return false
					}
				}
				return true
			}
			admitted := others(-1)
			if Admitted(ds) != admitted {
				t.Fatalf("admitted %v: %+v", Admitted(ds), ds)
			}
			for i, p := range policies {
				b, cost := &alone[i], charges[i].Cost
				s := p.Advance(b.state, now)
				switch {
				case cost == 0:
				case p.Role == Candidate && allows[i] && others(i-1), p.Role != Candidate && allows[i] && admitted:
					b.state, _ = p.Admit(s, now, cost)
				case p.CountRejected && !admitted && p.Quota > 0:
					b.state = p.ChargeRejected(s, now, cost)
				}
				remaining, reset := p.Describe(p.Advance(b.state, now), now)
				if ds[i].Remaining != remaining || ds[i].Reset != reset {
					t.Fatalf("charge %d, %s %s: got %+v, want remaining %d, reset %s", i, p.Role, p.Algorithm, ds[i], remaining, reset)
				}
			}
			// One that waits as told, and finds nobody else there, is admitted.
			if wait, denied := RetryAfter(ds); denied && wait != Never {
				again := maps.Clone(l)
				if got := again.take(now+wait.Microseconds(), charges...); !Admitted(got) {
					t.Fatalf("denied after waiting %s as told: %+v, before %+v", wait, got, ds)
				}
			}
		}
	})
}

func TestDecideDoesNotAllocate(t *testing.T) {
	l := []*Policy{
		tokenBucket(t, 7, time.Minute, 20), as(t, slidingCounter(t, 7, time.Minute), countRejected),
		as(t, slidingCounter(t, 9, time.Minute), candidate), leakyBucket(t, 7, time.Minute, 9, 0),
		onCalendar(t, 7, CalendarDay, "Europe/Berlin"), as(t, fixedWindow(t, 7, day), shadow),
	}
	var charges []Charge
	slots := make([]Slot, len(l))
	for i, p := range l {
		charges = append(charges, charge(p, 1))
		slots[i].First = i
	}
	ds := make([]Decision, 0, len(l))
	now := int64(epoch)
	if n := testing.AllocsPerRun(1000, func() {
		now += 1_000_000
		ds = Decide(ds[:0], SourceMemory, now, charges, slots)
		for i := range slots {
			if slots[i].Charged != nil {
				slots[i].State = slots[i].After
			}
		}
	}); n != 0 {
		t.Errorf("allocates %v times", n)
	}
}
