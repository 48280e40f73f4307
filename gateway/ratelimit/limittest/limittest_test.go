package limittest

import (
	"context"
	"fmt"
	"math/big"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// A naive store keeps the states of the pure algorithms in a map under one lock.
// It is right unless it is given a fault.
type naive struct {
	clock *Clock
	fault string

	mu     sync.Mutex
	states map[string]record
}

// A record is a state and the policy that charged it.
type record struct {
	ratelimit.State
	by *ratelimit.Policy
}

func newNaive(fault string) NewStore {
	return func(_ testing.TB, clock *Clock) ratelimit.Store {
		return &naive{clock: clock, fault: fault, states: map[string]record{}}
	}
}

// The faults: what implementations of limits really get wrong.
var faults = []string{
	"admits one too many",
	"admits one too few",
	"charges the others on a denial",
	"charges the denied attempt",
	"opens the window at a denial",
	"extends the window with each charge",
	"aligns the window to the clock",
	"retry after is a microsecond short",
	"retry after is a microsecond long",
	"retry after in whole milliseconds, rounded down",
	"retry after is the reset",
	"a wait where none helps",
	"reset is until all is refilled",
	"refills on a clock that stepped back",
	"ends a window on a clock that stepped back",
	"keeps what was left when the plan changes",
	"keeps the debt when the plan is lowered",
	"rounds a part of a unit for the caller",
	"remaining is negative after a lowering",
	"remaining is after the charge on a denial",
	"remaining is before the charge on an admission",
	"a key with the quota in it",
	"a key without the window",
	"a key without the limit's name",
	"a key without the caller",
	"each charge of a list is decided alone",
	"retry after forgets the other charges of the list",
	"decisions in another order",
	"the decision names an equal policy",
	"times printed with 14 digits",
	"reads and writes in two steps",
	"a new slice instead of the caller's",
}

// Take decides as the contract says, unless there is a fault.
func (n *naive) Take(_ context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.clock.Now()
	work, before, taken := map[string]record{}, map[string]record{}, map[string]int64{}
	dst = dst[:0]
	if n.fault == "a new slice instead of the caller's" {
		dst = nil
	}
	admitted := true
	for _, c := range charges {
		k, p := n.key(c), c.Policy
		stored, ok := before[k]
		if !ok {
			stored = n.states[k]
			before[k] = stored
		}
		if n.fault == "reads and writes in two steps" {
			n.mu.Unlock()
			runtime.Gosched()
			n.mu.Lock()
		}
		from, ok := work[k]
		if !ok || n.fault == "each charge of a list is decided alone" {
			from = stored
		}
		state := n.advance(p, from, now)
		after, allowed := n.admit(p, state, now, c.Cost)
		d := ratelimit.Decision{Policy: p, Allowed: allowed}
		if allowed {
			work[k] = record{after, p}
			taken[k] += c.Cost
		} else {
			admitted = false
			wanted := taken[k] + c.Cost
			if n.fault == "retry after forgets the other charges of the list" || wanted < 0 {
				wanted = c.Cost
			}
			d.RetryAfter = n.retryAfter(p, n.advance(p, stored, now), now, wanted)
		}
		d.Remaining, d.Reset = n.describe(p, after, now)
		if n.fault == "remaining is before the charge on an admission" {
			d.Remaining, _ = n.describe(p, state, now)
		}
		if n.fault == "the decision names an equal policy" {
			d.Policy, _ = ratelimit.NewPolicy(*p)
		}
		dst = append(dst, d)
	}
	switch {
	case admitted, n.fault == "charges the others on a denial":
		for k, s := range work {
			if n.fault == "times printed with 14 digits" {
				s.Time = digits(s.Time)
			}
			n.states[k] = s
		}
	case n.fault == "charges the denied attempt":
		for i, c := range charges {
			if !dst[i].Allowed && c.Cost < 1000 {
				s := n.advance(c.Policy, n.states[n.key(c)], now)
				s.Spent += c.Cost * c.Policy.Den()
				n.states[n.key(c)] = record{s, c.Policy}
			}
		}
	case n.fault == "opens the window at a denial":
		for _, c := range charges {
			if s := n.advance(c.Policy, n.states[n.key(c)], now); c.Policy.Algorithm == ratelimit.FixedWindow && s.Spent == 0 && s.Time <= now {
				s.Time = now + c.Policy.Window.Microseconds()
				n.states[n.key(c)] = record{s, c.Policy}
			}
		}
	}
	if !admitted && n.fault != "remaining is after the charge on a denial" {
		for i, c := range charges {
			dst[i].Remaining, dst[i].Reset = n.describe(c.Policy, n.advance(c.Policy, before[n.key(c)], now), now)
		}
	}
	if n.fault == "decisions in another order" {
		slices.Reverse(dst)
	}
	return dst, nil
}

func (n *naive) key(c ratelimit.Charge) string {
	p := c.Policy
	switch n.fault {
	case "a key with the quota in it":
		return fmt.Sprint(c.Partition, p.Key(), p.Quota)
	case "a key without the window":
		return fmt.Sprint(c.Partition, p.Scope, p.Algorithm)
	case "a key without the limit's name":
		return fmt.Sprint(c.Partition, p.Algorithm, p.Window)
	case "a key without the caller":
		return p.Key()
	}
	return c.Partition + p.Key()
}

func (n *naive) advance(p *ratelimit.Policy, s record, now int64) ratelimit.State {
	bucket := p.Algorithm == ratelimit.TokenBucket
	switch {
	case n.fault == "refills on a clock that stepped back" && bucket && now < s.Time:
		s.Time = now
	case n.fault == "ends a window on a clock that stepped back" && !bucket && now < s.Time-p.Window.Microseconds():
		s = record{}
	case n.fault == "keeps what was left when the plan changes" && bucket && s.by != nil && s.by.Burst != p.Burst && s.Den > 0:
		left := s.by.Burst*s.Den - s.Spent
		s.Spent = max(0, min(p.Burst, s.by.Burst)*s.Den-left)
	case n.fault == "keeps the debt when the plan is lowered" && bucket && s.Den > 0 && s.Den == p.Den() && s.Spent > p.Burst*p.Den():
		// Refilled as if it were larger, then cut.
		if larger, err := ratelimit.NewPolicy(func() ratelimit.Policy { q := *p; q.Burst = s.by.Burst; return q }()); err == nil {
			return p.Advance(larger.Advance(s.State, now), now)
		}
	case n.fault == "rounds a part of a unit for the caller" && bucket && s.Den > 0 && s.Den != p.Den():
		v := new(big.Int).Mul(big.NewInt(s.Spent), big.NewInt(p.Den()))
		if v.Div(v, big.NewInt(s.Den)); v.IsInt64() {
			s.Spent, s.Den = v.Int64(), p.Den()
		}
	}
	return p.Advance(s.State, now)
}

func (n *naive) admit(p *ratelimit.Policy, s ratelimit.State, now, cost int64) (ratelimit.State, bool) {
	spec := *p
	change := int64(0)
	switch n.fault {
	case "admits one too many":
		change = 1
	case "admits one too few":
		change = -1
	}
	spec.Quota += change
	if p.Algorithm == ratelimit.TokenBucket {
		spec.Quota, spec.Burst = p.Quota, p.Burst+change
	}
	if q, err := ratelimit.NewPolicy(spec); change != 0 && err == nil && (spec.Burst != 0 || p.Algorithm != ratelimit.TokenBucket) {
		p = q
	}
	after, ok := p.Admit(s, now, cost)
	if !ok || p.Algorithm != ratelimit.FixedWindow {
		return after, ok
	}
	window := p.Window.Microseconds()
	switch {
	case n.fault == "opens the window at a denial" && s.Spent == 0 && s.Time > now:
		after.Time = s.Time
	case n.fault == "extends the window with each charge":
		after.Time = now + window
	case n.fault == "aligns the window to the clock" && s.Spent == 0:
		after.Time = (now/window + 1) * window
	}
	return after, ok
}

func (n *naive) describe(p *ratelimit.Policy, s ratelimit.State, now int64) (int64, time.Duration) {
	remaining, reset := p.Describe(s, now)
	switch {
	case n.fault == "reset is until all is refilled" && p.Algorithm == ratelimit.TokenBucket && s.Spent > 0 && p.Num() > 0:
		reset = time.Duration(p.RunsOut(s)-now) * time.Microsecond
	case n.fault == "remaining is negative after a lowering" && p.Algorithm == ratelimit.FixedWindow:
		remaining = p.Quota - s.Spent
	}
	return remaining, reset
}

func (n *naive) retryAfter(p *ratelimit.Policy, s ratelimit.State, now, cost int64) time.Duration {
	d := p.RetryAfter(s, now, cost)
	if d == ratelimit.Never {
		if n.fault == "a wait where none helps" {
			return p.Window
		}
		return d
	}
	switch n.fault {
	case "retry after is a microsecond short":
		d -= time.Microsecond
	case "retry after is a microsecond long":
		d += time.Microsecond
	case "retry after in whole milliseconds, rounded down":
		d = d.Truncate(time.Millisecond)
	case "retry after is the reset":
		_, d = p.Describe(s, now)
	}
	return d
}

// digits is what is left of n after Lua's tostring.
func digits(n int64) int64 {
	f, err := strconv.ParseFloat(strconv.FormatFloat(float64(n), 'g', 14, 64), 64)
	if err != nil {
		panic(err)
	}
	return int64(f)
}

// TestCore: the pure algorithms pass the suite.
func TestCore(t *testing.T) { Run(t, newNaive("")) }

// onlyTables are the faults that no history can show.
var onlyTables = []string{
	"a new slice instead of the caller's",        // histories bring none
	"reads and writes in two steps",              // they ask one at a time
	"a key without the window",                   // and no two limits of theirs
	"a key without the limit's name",             // differ in one thing only
	"ends a window on a clock that stepped back", // needs two steps back in one window
}

// TestSuiteFindsFaults: a suite that passes everything shows nothing. Each
// broken store must fail some table or, where it can, some history.
func TestSuiteFindsFaults(t *testing.T) {
	t.Setenv("LIMITTEST_SEED", "1") // so that what is rare is found every time
	for _, fault := range faults {
		t.Run(fault, func(t *testing.T) {
			finds := func(c check) bool {
				r := &recorder{TB: t}
				r.watch(func() { c.run(r, newNaive(fault)) })
				return r.Failed()
			}
			tables := append(tables(), concurrent()...)
			if slices.Contains(onlyTables, fault) {
				if !slices.ContainsFunc(tables, finds) {
					t.Error("no table found this fault")
				}
				return
			}
			all := histories()
			slices.Reverse(all) // the one of lists, which has everything, finds most
			if !slices.ContainsFunc(all, finds) {
				t.Error("no history found this fault")
			}
		})
	}
}

// A recorder is a test that can fail without failing the one it stands in.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
}

// watch runs f, which may end with FailNow.
func (r *recorder) watch(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) FailNow()              { r.Fail(); runtime.Goexit() }
func (r *recorder) Error(...any)          { r.Fail() }
func (r *recorder) Errorf(string, ...any) { r.Fail() }
func (r *recorder) Fatal(...any)          { r.FailNow() }
func (r *recorder) Fatalf(string, ...any) { r.FailNow() }
func (r *recorder) Log(...any)            {}
func (r *recorder) Logf(string, ...any)   {}
func (r *recorder) Helper()               {}
