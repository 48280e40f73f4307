package limittest

import (
	"context"
	"sync"
	"testing"

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
func TestCore(t *testing.T) {
	Run(t, func(_ testing.TB, clock *Clock) ratelimit.Store {
		return &coreStore{clock: clock, states: map[string]ratelimit.State{}}
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
