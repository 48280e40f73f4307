package limittest

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// A coreStore keeps the states of the pure algorithms in a map under one lock.
type coreStore struct {
	clock *Clock

	mu     sync.Mutex
	states map[string]ratelimit.State
}

// Take implements [ratelimit.Store].
func (s *coreStore) Take(_ context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slots := make([]ratelimit.Slot, len(charges))
	first := map[string]int{}
	for i, c := range charges {
		k := c.Partition + c.Policy.Key()
		if _, ok := first[k]; !ok {
			first[k] = i
			slots[i].State = s.states[k]
		}
		slots[i].First = first[k]
	}
	dst = ratelimit.Decide(dst[:0], ratelimit.SourceMemory, s.clock.Now(), charges, slots)
	for k, i := range first {
		if slots[i].Charged != nil {
			s.states[k] = slots[i].After
		}
	}
	return dst, nil
}

// TestCore: the pure algorithms pass the suite.
func TestCore(t *testing.T) { Run(t, newCore) }

func newCore(_ testing.TB, clock *Clock) ratelimit.Store {
	return &coreStore{clock: clock, states: map[string]ratelimit.State{}}
}

// TestCoreShared: what can do more can do less.
func TestCoreShared(t *testing.T) {
	for _, c := range shared() {
		t.Run(c.name, func(t *testing.T) { c.run(t, newCore) })
	}
}

// TestCalendarWindows: the boundaries that an instance sends are those that one
// finds by looking dates up.
func TestCalendarWindows(t *testing.T) {
	rnd := random(t, 3)
	for range 5000 {
		c := &ratelimit.Calendar{
			Unit:      ratelimit.CalendarMinute + ratelimit.CalendarUnit(rnd.IntN(5)),
			Location:  zone(t, zones[rnd.IntN(len(zones))]),
			WeekStart: time.Weekday(rnd.IntN(7)),
		}
		at := time.Date(2020+rnd.IntN(80), 1, 1+rnd.IntN(366), 0, 0, rnd.IntN(86_400), 0, time.UTC)
		if _, changes := at.In(c.Location).ZoneBounds(); !changes.IsZero() && rnd.IntN(2) == 0 {
			at = changes.Add(time.Duration(rnd.IntN(7200)-3600) * time.Second)
		}
		now := at.UnixMicro() + rnd.Int64N(1_000_000)
		var want [4]int64
		want[1], want[2] = calendarWindow(c, now)
		want[0], _ = calendarWindow(c, want[1]-1)
		_, want[3] = calendarWindow(c, want[2])
		if got := c.Windows(now); got != want {
			t.Fatalf("windows of %s at %d, %s: got %d, want %d", calendarName(c), now, at, got, want)
		}
	}
}

// FuzzCore has the fuzzer choose what a history tells of.
func FuzzCore(f *testing.F) {
	f.Add(uint64(1), uint8(0))
	f.Add(uint64(2), uint8(6))
	f.Add(uint64(3), uint8(7))
	all := append(histories(), apart()...)
	f.Fuzz(func(t *testing.T, seed uint64, which uint8) {
		t.Setenv("LIMITTEST_SEED", strconv.FormatUint(seed, 10))
		t.Setenv("LIMITTEST_STEPS", strconv.Itoa(chapter))
		all[int(which)%len(all)].run(t, newCore)
	})
}

// A modelStore is the model as a store.
type modelStore struct {
	clock *Clock

	mu    sync.Mutex
	model *model
}

// Take implements [ratelimit.Store].
func (s *modelStore) Take(_ context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(dst[:0], s.model.take(s.clock.Now(), charges)...), nil
}

// TestModel: the tables and the model, which are written apart, agree.
func TestModel(t *testing.T) {
	newStore := func(_ testing.TB, clock *Clock) ratelimit.Store { return &modelStore{clock: clock, model: newModel()} }
	for _, c := range append(tables(), concurrent()...) {
		t.Run(c.name, func(t *testing.T) { c.run(t, newStore) })
	}
}
