package ratelimit

import (
	"testing"
	"time"
)

// The table "What a change of a plan does" of README.md: each row a test, for
// each algorithm. Ten a minute, of which eight are spent, become something else.

// plan makes a policy of an algorithm that holds units, in a plan's limit.
func plan(tb testing.TB, a Algorithm, units int64, window time.Duration) *Policy {
	tb.Helper()
	spec := Policy{Name: "per-minute", Scope: "plan/per-minute", Algorithm: a, Quota: units, Window: window}
	switch a {
	case TokenBucket:
		spec.Burst = units
	case LeakyBucket:
		spec.Queue = max(0, units-1)
	}
	return policy(tb, spec)
}

// minute is the begin of one, so that a counter's windows are the clock's.
const minute int64 = epoch/60_000_000*60_000_000 + 60_000_000

// eachAlgorithm runs a test for all of them, with eight of ten a minute spent.
func eachAlgorithm(t *testing.T, test func(t *testing.T, a Algorithm, l ledger)) {
	t.Helper()
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			l := ledger{}
			if ds := l.take(minute, charge(plan(t, a, 10, time.Minute), 8)); !Admitted(ds) {
				t.Fatalf("%+v", ds)
			}
			test(t, a, l)
		})
	}
}

func TestChangeRaisedNumberHelpsAtOnce(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm, l ledger) {
		raised := plan(t, a, 15, time.Minute)
		if ds := l.take(minute, charge(raised, 8)); Admitted(ds) || ds[0].Remaining != 7 {
			t.Errorf("8 more of 15, of which 8 are spent: %+v", ds[0])
		}
		if ds := l.take(minute, charge(raised, 7)); !Admitted(ds) || ds[0].Remaining != 0 {
			t.Errorf("7 more: %+v", ds[0])
		}
	})
}

func TestChangeLoweredNumberLeavesNothingAndNeverLess(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm, l ledger) {
		lowered := plan(t, a, 5, time.Minute)
		ds := l.take(minute, charge(lowered, 1))
		if Admitted(ds) || ds[0].Remaining != 0 {
			t.Fatalf("8 of 5 are spent: %+v", ds[0])
		}
		// Nobody is locked out beyond the window that was spent and a new one: a
		// counter has the rest of it, and then a part of the next.
		wait := ds[0].RetryAfter
		if most := 2 * time.Minute; wait > most || a != SlidingWindowCounter && wait > most/2 {
			t.Errorf("told to wait %s", wait)
		}
		if ds := l.take(minute+wait.Microseconds()-1, charge(lowered, 1)); Admitted(ds) {
			t.Error("admitted 1 µs before that")
		}
		if ds := l.take(minute+wait.Microseconds(), charge(lowered, 1)); !Admitted(ds) {
			t.Errorf("denied after waiting as told: %+v", ds[0])
		}
	})
}

func TestChangeLoweredAndRaisedAgainGivesNothing(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm, l ledger) {
		l.take(minute, charge(plan(t, a, 5, time.Minute), 1))
		// A denial under the lower number writes nothing, so 8 are still spent.
		if ds := l.take(minute, charge(plan(t, a, 10, time.Minute), 3)); Admitted(ds) || ds[0].Remaining != 2 {
			t.Errorf("toggled: %+v", ds[0])
		}
		// Nor does a charge: once one of five fits, the other plan has no more than
		// what came back meanwhile, less that one.
		wait := l.take(minute, charge(plan(t, a, 5, time.Minute), 1))[0].RetryAfter.Microseconds()
		before := l.take(minute+wait, charge(plan(t, a, 10, time.Minute), 0))[0].Remaining
		if ds := l.take(minute+wait, charge(plan(t, a, 5, time.Minute), 1)); !Admitted(ds) {
			t.Fatalf("denied after waiting as told: %+v", ds[0])
		}
		if after := l.take(minute+wait, charge(plan(t, a, 10, time.Minute), 0))[0].Remaining; after != before-1 {
			t.Errorf("%d of ten remained, and after one more under the lower number %d", before, after)
		}
	})
}

func TestChangeToZeroDeniesAndForgetsNothing(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm, l ledger) {
		if ds := l.take(minute, charge(plan(t, a, 0, time.Minute), 1)); Admitted(ds) || ds[0].RetryAfter != Never || ds[0].Remaining != 0 {
			t.Errorf("a quota of 0: %+v", ds[0])
		}
		if ds := l.take(minute, charge(plan(t, a, 10, time.Minute), 1)); !Admitted(ds) || ds[0].Remaining != 1 {
			t.Errorf("and back: %+v", ds[0])
		}
	})
}

func TestChangeToAnotherAlgorithmBeginsAnew(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm, l ledger) {
		for _, other := range algorithms {
			want := int64(10)
			if other == a {
				want = 2
			}
			if ds := l.take(minute, charge(plan(t, other, 10, time.Minute), 0)); ds[0].Remaining != want {
				t.Errorf("%s: %d remain, want %d", other, ds[0].Remaining, want)
			}
		}
	})
}

func TestChangeToAnotherWindowBeginsAnew(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm, l ledger) {
		if ds := l.take(minute, charge(plan(t, a, 10, time.Hour), 0)); ds[0].Remaining != 10 {
			t.Errorf("%d remain, want 10", ds[0].Remaining)
		}
	})
}

func TestChangeToAnotherCalendarBeginsAnew(t *testing.T) {
	l := ledger{}
	l.take(minute, charge(onCalendar(t, 10, CalendarDay, "Asia/Kolkata"), 8))
	for _, c := range []struct {
		policy *Policy
		want   int64
	}{
		{onCalendar(t, 10, CalendarDay, "Asia/Kolkata"), 2},
		{onCalendar(t, 15, CalendarDay, "Asia/Kolkata"), 7},
		{onCalendar(t, 10, CalendarDay, "UTC"), 10},
		{onCalendar(t, 10, CalendarWeek, "Asia/Kolkata"), 10},
		{fixedWindow(t, 10, day), 10},
	} {
		if ds := l.take(minute, charge(c.policy, 0)); ds[0].Remaining != c.want {
			t.Errorf("%s: %d remain, want %d", c.policy.Key(), ds[0].Remaining, c.want)
		}
	}
}

// Two plans whose limits have the same name, algorithm and window share what was
// spent, so that moving between them gives no second budget.
func TestChangeToAnotherPlanKeepsWhatWasSpentInALimitOfTheSameName(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm, l ledger) {
		pro, free := plan(t, a, 100, time.Minute), plan(t, a, 10, time.Minute)
		if ds := l.take(minute, charge(pro, 1)); !Admitted(ds) || ds[0].Remaining != 91 {
			t.Errorf("moved up: %+v", ds[0])
		}
		if ds := l.take(minute, charge(free, 1)); !Admitted(ds) || ds[0].Remaining != 0 {
			t.Errorf("moved back: %+v", ds[0])
		}
		other := as(t, pro, func(p *Policy) { p.Name, p.Scope = "per-second", "plan/per-second" })
		if ds := l.take(minute, charge(other, 0)); ds[0].Remaining != 100 {
			t.Errorf("a limit of another name: %+v", ds[0])
		}
	})
}

// A shadow counts in the bucket that it enforces from, a candidate beside it.
func TestChangeOfRoleFromShadowToEnforceKeepsWhatWasSpent(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a Algorithm, l ledger) {
		live := plan(t, a, 10, time.Minute)
		if ds := l.take(minute, charge(as(t, live, shadow), 0)); ds[0].Remaining != 2 {
			t.Errorf("as a shadow: %+v", ds[0])
		}
		if ds := l.take(minute, charge(as(t, live, countRejected), 0)); ds[0].Remaining != 2 {
			t.Errorf("counting rejected attempts: %+v", ds[0])
		}
		if ds := l.take(minute, charge(as(t, live, candidate), 0)); ds[0].Remaining != 10 {
			t.Errorf("as a candidate: %+v", ds[0])
		}
	})
}
