// Package limittest is the suite that every store must pass: what a limit
// promises, as tables of charges and answers, and long random histories driven
// through the store and through a plain model at once, which must agree on every
// verdict, remaining, reset, retry-after and delay to the microsecond.
//
// The model is written from the meaning of the limits, in numbers of any size,
// and shares no code with the algorithms it judges: it keeps every timestamp,
// looks a date up where a calendar is asked for, and tries times where the others
// solve a formula. Time is a [Clock] that the suite sets, so nothing sleeps; it
// crosses midnights, ends of months and changes of the clocks in many zones, and
// stands still and goes back. Besides, each algorithm's promise is checked
// against the admissions alone, without the model.
//
// It is for tests. It does not judge how fast a store is, what it does when it
// is full or away, nor when it forgets: a state that has run out may be kept or
// dropped, so the histories give up a bucket where that would show (after a
// clock that went back, or a plan that became slower).
//
//	func TestStore(t *testing.T) {
//		limittest.Run(t, func(t testing.TB, clock *limittest.Clock) ratelimit.Store {
//			s, err := memory.New(memory.Options{Now: clock.Now})
//			…
//			return s
//		})
//	}
//
// A store that cannot decide several partitions in one step, such as a cluster,
// is held by [RunShared] to what is left to promise then.
//
// Each failure names the seed of its history. LIMITTEST_SEED=n runs that one
// again, LIMITTEST_STEPS=n makes histories longer or shorter than 10,000 charges.
package limittest

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// A Clock is the time of a store under test, in microseconds. It stands still
// unless it is moved. It is safe for concurrent use.
type Clock struct{ micros atomic.Int64 }

// start is where clocks begin: late enough that a time in microseconds is as
// large as in production, since that is where numbers lose digits.
const start int64 = 1_800_000_000_123_457

// NewClock returns a clock that stands at some time in 2027.
func NewClock() *Clock {
	c := new(Clock)
	c.micros.Store(start)
	return c
}

// Now returns microseconds since the epoch.
func (c *Clock) Now() int64 { return c.micros.Load() }

// Advance moves the clock by d, whole microseconds; backwards if d is negative.
func (c *Clock) Advance(d time.Duration) { c.micros.Add(d.Microseconds()) }

// NewStore makes an empty store that lives by clock. What it needs to end, it
// gives to t.Cleanup.
type NewStore func(t testing.TB, clock *Clock) ratelimit.Store

// A check is one part of the suite. It takes a testing.TB, so that the suite's
// own test can watch it fail.
type check struct {
	name string
	run  func(t testing.TB, newStore NewStore)
}

// Run runs the whole suite against the stores that newStore makes, each part as
// a subtest with a store of its own.
func Run(t *testing.T, newStore NewStore) {
	t.Helper()
	run(t, newStore, slices.Concat(tables(), promises(), concurrent(), histories(), apart()))
}

// RunShared is [Run] for a store that decides what is of one partition in one
// step, and puts together the answers of several: everything that Run demands of
// lists of one partition, and of the others that
//
//   - a limit never admits more than it grants, whoever asks at the same time;
//   - a request that is denied leaves nothing behind once it is answered, if
//     nothing fails, but in a leaky bucket, whose drips are not given back.
//
// What is charged for denied attempts and on trial is not looked at there.
func RunShared(t *testing.T, newStore NewStore) {
	t.Helper()
	run(t, newStore, slices.Concat(tables(), promises(), concurrent(), histories(), shared()))
}

func run(t *testing.T, newStore NewStore, checks []check) {
	t.Helper()
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) { c.run(t, newStore) })
	}
}
