package ratelimit

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawList draws charges of any algorithm and role that a denial charges nothing
// to, some of which share a bucket, and what was charged before epoch.
func drawList(t *rapid.T) ([]Charge, []Slot) {
	n := rapid.IntRange(1, 4).Draw(t, "limits")
	charges, slots := make([]Charge, 0, n), make([]Slot, 0, n)
	for i := range n {
		if i > 0 && rapid.IntRange(0, 4).Draw(t, "same bucket") == 0 {
			c := charges[i-1]
			c.Cost = rapid.Int64Range(1, 3).Draw(t, "cost")
			charges, slots = append(charges, c), append(slots, Slot{First: slots[i-1].First})
			continue
		}
		p := drawPolicyToAsk(t)
		b := &bucket{}
		now, last := int64(epoch), verdict{}
		for range rapid.IntRange(0, 12).Draw(t, "requests") {
			if gap := drawGap(t, p, last); now+gap <= epoch+2*p.Window.Microseconds() {
				now += gap
			}
			last = b.take(p, now, drawCost(t, p, last))
		}
		if rapid.IntRange(0, 3).Draw(t, "changed") == 0 {
			p = changed(t, p)
		}
		// Moving the clock is moving the state: the list is decided at one time.
		slots = append(slots, Slot{First: i, State: shifted(p, b.state, epoch-now)})
		left := (&bucket{slots[i].State}).remaining(p, epoch)
		cost := rapid.OneOf(
			rapid.Just(int64(1)), rapid.Int64Range(left+1, left+2), rapid.Int64Range(1, p.Capacity()+2),
		).Draw(t, "cost")
		charges = append(charges, Charge{Policy: p, Cost: cost})
	}
	return charges, slots
}

// drawPolicyToAsk draws a policy as plans have them, some in shadow, some on a
// calendar, some of 0.
func drawPolicyToAsk(t *rapid.T) *Policy {
	spec := *drawPolicy(t, rapid.SampledFrom(algorithms).Draw(t, "algorithm"), drawWindow(t))
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		spec.Quota = 0
	case 1, 2:
		spec.Role = Shadow
	case 3:
		if spec.Algorithm == FixedWindow {
			spec.Calendar, spec.Window = &Calendar{Unit: CalendarHour, Location: time.UTC}, 0
		}
	case 4:
		if spec.Algorithm == TokenBucket { // several units a µs
			spec.Quota, spec.Window = rapid.Int64Range(1_000_000, 9_000_000).Draw(t, "fast"), time.Second
		}
	}
	return mustPolicy(t, spec)
}

func mustPolicy(t *rapid.T, spec Policy) *Policy {
	p, err := NewPolicy(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// changed is p with another number.
func changed(t *rapid.T, p *Policy) *Policy {
	spec := *p
	spec.Quota = rapid.Int64Range(0, 2*p.Quota+1).Draw(t, "changed quota")
	if spec.Algorithm == TokenBucket {
		spec.Burst = rapid.Int64Range(1, 12).Draw(t, "changed burst")
	}
	return mustPolicy(t, spec)
}

// shifted is s with all its times moved by so many µs, as far as the algorithm
// lets them be moved: the windows of clocks stay where they are.
func shifted(p *Policy, s State, by int64) State {
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		s.Time += by
	case SlidingWindowLog:
		if s.Log == nil {
			return s
		}
		runs := make([]run, len(s.Log.runs))
		for i, r := range s.Log.runs {
			runs[i] = run{r.at + by, r.total}
		}
		s.Log, s.Time = &Log{runs: runs}, s.Time+by
	case SlidingWindowCounter:
		w := p.Window.Microseconds()
		s.Time += floorDiv(by, w) * w
	default:
		if p.Calendar == nil && s.Spent > 0 {
			s.Time += by
		}
	}
	return s
}

// drawElapsed draws a span that is of interest to some decision.
func drawElapsed(t *rapid.T, ds []Decision) int64 {
	d := rapid.SampledFrom(ds).Draw(t, "about")
	of := func(from time.Duration) *rapid.Generator[int64] {
		us := from.Microseconds()
		return rapid.Int64Range(max(0, us-2), max(0, us)+2)
	}
	full := d.Reset
	if p := d.Policy; p.num > 0 {
		full += time.Duration((p.units-d.Remaining-1)*p.den/p.num) * time.Microsecond
	}
	return rapid.OneOf(
		of(full),
		rapid.Int64Range(0, 3),
		of(d.Reset), of(d.RetryAfter), of(2*d.Reset),
		rapid.Int64Range(0, max(1, d.RetryAfter.Microseconds())),
		rapid.Int64Range(0, 3*d.Policy.Window.Microseconds()),
	).Draw(t, "elapsed")
}

func sharing(slots []Slot) bool {
	for i := range slots {
		if slots[i].First != i {
			return true
		}
	}
	return false
}

func changes(ds []Decision, elapsed int64) bool {
	for _, d := range ds {
		if flips(d, elapsed) {
			return true
		}
	}
	return false
}

// flips reports whether a denial is none any more after so many µs.
func flips(d Decision, elapsed int64) bool {
	return !d.Allowed && d.RetryAfter != Never && d.RetryAfter.Microseconds() <= elapsed
}

// excused reports whether After may not know what d says after so many µs.
func excused(d Decision, elapsed int64) bool {
	p := d.Policy
	exact := p.Algorithm == FixedWindow || p.linear() && p.num <= 1
	return flips(d, elapsed) || !exact && d.Reset > 0 && d.Reset.Microseconds() <= elapsed
}

// What a denial says later is what the same request would be answered later.
func TestADenialCountsDownAsIfAskedAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		charges, slots := drawList(t)
		ds := Decide(nil, SourceRedis, epoch, charges, slots)
		if Admitted(ds) {
			return
		}
		for range 10 {
			elapsed := drawElapsed(t, ds)
			want := Decide(nil, SourceRedis, epoch+elapsed, charges, slots)
			// Where two charges have one bucket, a verdict that changes changes the other.
			still := !Admitted(want) && !(sharing(slots) && changes(ds, elapsed))
			for i, d := range ds {
				got, ok := d.After(time.Duration(elapsed)*time.Microsecond + 999)
				switch {
				case !ok && !excused(d, elapsed):
					t.Fatalf("decision %d: %+v is not known after %d µs; it is %+v", i, d, elapsed, want[i])
				case ok && still && got != want[i]:
					t.Fatalf("decision %d: %+v after %d µs:\ngot  %+v\nwant %+v\n%+v", i, d, elapsed, got, want[i], slots[i].State)
				}
			}
		}
	})
}

// What a denial says of another cost is what a request of that cost would be
// answered.
func TestADenialTellsOfAnotherCost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		charges, slots := drawList(t)
		ds := Decide(nil, SourceRedis, epoch, charges, slots)
		if Admitted(ds) || sharing(slots) {
			return
		}
		for i := range charges {
			charges[i].Cost = rapid.OneOf(
				rapid.Int64Range(max(1, ds[i].Remaining), ds[i].Remaining+2),
				rapid.Int64Range(1, charges[i].Policy.Capacity()+2),
			).Draw(t, "other cost")
		}
		want := Decide(nil, SourceRedis, epoch, charges, slots)
		if Admitted(want) {
			return
		}
		for i, d := range ds {
			got, ok := d.Costing(charges[i].Cost)
			exact := d.Policy.Algorithm == FixedWindow || d.Policy.linear() && d.Policy.num <= 1
			switch {
			case !ok && exact:
				t.Fatalf("decision %d: %+v does not know of cost %d; it is %+v", i, d, charges[i].Cost, want[i])
			case ok && got != want[i]:
				t.Fatalf("decision %d: %+v of cost %d:\ngot  %+v\nwant %+v", i, d, charges[i].Cost, got, want[i])
			}
		}
	})
}

func TestADenialStoryInWords(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	bucket := tokenBucket(t, 100, time.Minute, 20)
	seven := tokenBucket(t, 7, time.Minute, 20)
	day := fixedWindow(t, 100, 24*time.Hour)
	log := mustLog(t, 5)
	queue := leakyBucket(t, 2, time.Second, 3, 0)
	for _, c := range []struct {
		why     string
		d       Decision
		elapsed time.Duration
		want    Decision
		ok      bool
	}{
		{"nothing has passed", Decision{Policy: bucket, Reset: 600 * ms, RetryAfter: 1800 * ms}, 0,
			Decision{Policy: bucket, Reset: 600 * ms, RetryAfter: 1800 * ms}, true},
		{"three units are wanted, one is back and half of the next", Decision{Policy: bucket, Reset: 600 * ms, RetryAfter: 1800 * ms}, 900 * ms,
			Decision{Policy: bucket, Remaining: 1, Reset: 300 * ms, RetryAfter: 900 * ms}, true},
		{"the wait is over", Decision{Policy: bucket, Reset: 600 * ms, RetryAfter: 1800 * ms}, 1800 * ms, Decision{}, false},
		{"a bucket that allows fills up", Decision{Policy: bucket, Allowed: true, Remaining: 5, Reset: 600 * ms}, time.Hour,
			Decision{Policy: bucket, Allowed: true, Remaining: 20}, true},
		{"to the microsecond", Decision{Policy: bucket, Allowed: true, Remaining: 18, Reset: 600 * ms}, 1200 * ms,
			Decision{Policy: bucket, Allowed: true, Remaining: 20}, true},
		{"so does a queue", Decision{Policy: queue, Allowed: true, Remaining: 1, Reset: 200 * ms}, 800 * ms,
			Decision{Policy: queue, Allowed: true, Remaining: 3, Reset: 400 * ms}, true},
		{"7 a minute: the next unit but one comes at a µs that is not known", Decision{Policy: seven, Allowed: true, Remaining: 5, Reset: s}, 2 * s, Decision{}, false},
		{"a window that allows is new", Decision{Policy: day, Allowed: true, Remaining: 5, Reset: s}, s,
			Decision{Policy: day, Allowed: true, Remaining: 100}, true},
		{"more than the window ever grants", Decision{Policy: day, Remaining: 5, Reset: s, RetryAfter: Never}, 2 * s,
			Decision{Policy: day, Remaining: 100, RetryAfter: Never}, true},
		{"how many units leave a log at once is not known", Decision{Policy: log, Allowed: true, Remaining: 2, Reset: s}, s, Decision{}, false},
		{"but if it was the last one", Decision{Policy: log, Allowed: true, Remaining: 4, Reset: s}, s,
			Decision{Policy: log, Allowed: true, Remaining: 5}, true},
	} {
		got, ok := c.d.After(c.elapsed)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: got %+v, %v", c.why, got, ok)
		}
	}
}

// Three units and a little come back every microsecond: how long two of them take
// depends on a part of a microsecond.
func TestADenialOfAFastBucketDoesNotTellOfAnotherCost(t *testing.T) {
	d := Decision{Policy: tokenBucket(t, 3_000_001, time.Second, 20), Remaining: 1, Reset: time.Microsecond, RetryAfter: time.Microsecond}
	if got, ok := d.Costing(3); ok {
		t.Errorf("got %+v", got)
	}
}

func mustLog(t *testing.T, quota int64) *Policy {
	t.Helper()
	p, err := NewPolicy(Policy{Name: "n", Scope: "plan/n", Algorithm: SlidingWindowLog, Quota: quota, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// To be asked is to be charged, so nothing can be told without asking.
func TestADenialOfALimitThatCountsRejectedIsAskedForAnew(t *testing.T) {
	p, err := NewPolicy(Policy{Name: "n", Scope: "plan/n", Algorithm: SlidingWindowLog, Quota: 5, Window: time.Minute, CountRejected: true})
	if err != nil {
		t.Fatal(err)
	}
	d := Decision{Policy: p, Reset: time.Second, RetryAfter: time.Second}
	if _, ok := d.After(0); ok {
		t.Error("After knows it")
	}
	if _, ok := d.Costing(2); ok {
		t.Error("Costing knows it")
	}
}
