package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var errRefused = errors.New("connection refused")

// fail says n times that a target could not be connected to.
func (b *balancer) fail(at, n int) {
	for range n {
		b.ward.connected(context.Background(), b.targets[at], errRefused)
	}
}

// shares says how many of 900 requests each target gets.
func shares(b *balancer) []int {
	counts := make([]int, len(b.targets))
	for i := range 900 {
		counts[b.pick(strconv.Itoa(i), nil)]++
	}
	return counts
}

func TestATargetThatCannotBeConnectedToIsLeftOut(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastRequests, Hash} {
		synctest.Test(t, func(t *testing.T) {
			b := balanced(t, balance, 1, 1, 1)
			var told []string
			b.ward.told = func(t *target, up bool, err error) { told = append(told, fmt.Sprintf("%s %v %v", t.name, up, err)) }
			all := shares(b)
			// Now and then is nothing, and what a client gave up says nothing.
			b.fail(1, mayFail-1)
			b.ward.connected(t.Context(), b.targets[1], nil)
			b.fail(1, mayFail-1)
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			b.ward.connected(gone, b.targets[1], context.Canceled)
			if got := shares(b); got[1] != all[1] || told != nil {
				t.Fatalf("%s: left out too early: %v, %q", balance, got, told)
			}
			b.fail(1, 1)
			if got := shares(b); got[1] != 0 || got[0] < all[0]*5/4 || got[2] < all[2]*5/4 {
				t.Fatalf("%s: left out %v, and before %v", balance, got, all)
			}
			// It is tried by one request, and is away for twice as long each time.
			for rest := restFirst; rest <= restMost; rest *= 2 {
				time.Sleep(rest - time.Millisecond)
				if got := shares(b); got[1] != 0 {
					t.Fatalf("%s: tried before %v are over: %v", balance, rest, got)
				}
				time.Sleep(time.Millisecond)
				if got := shares(b); got[1] != 1 {
					t.Fatalf("%s: %d requests try it after %v, want one", balance, got[1], rest)
				}
				b.fail(1, 5) // others found nothing else, and fail as well
			}
			time.Sleep(restMost - time.Millisecond)
			if got := shares(b); got[1] != 0 {
				t.Fatalf("%s: %v", balance, got)
			}
			time.Sleep(time.Millisecond)
			if got := shares(b); got[1] != 1 {
				t.Fatalf("%s: away for longer than %v: %v", balance, restMost, got)
			}
			// Of that one nothing is heard.
			time.Sleep(b.ward.patience)
			if got := shares(b); got[1] != 1 {
				t.Fatalf("%s: nobody else tries: %v", balance, got)
			}
			if want := []string{"b false connection refused"}; !slices.Equal(told, want) {
				t.Errorf("told %q, want %q", told, want)
			}
			// It comes back by and by.
			b.ward.connected(t.Context(), b.targets[1], nil)
			for _, c := range []struct{ after, low, high int }{{0, 10, 80}, {50, 100, 240}, {100, all[1], all[1]}} {
				time.Sleep(DefaultSlowStart * time.Duration(min(c.after, 50)) / 100)
				if got := shares(b); got[1] < c.low || got[1] > c.high {
					t.Errorf("%s: after %d%% of the time %v, want %d to %d, and before %v", balance, c.after, got, c.low, c.high, all)
				}
			}
			if want := []string{"b false connection refused", "b true <nil>"}; !slices.Equal(told, want) || b.ward.troubled.Load() != 0 {
				t.Errorf("told %q, want %q; %d have a trouble", told, want, b.ward.troubled.Load())
			}
		})
	}
}

// However the turns of several requests at the same time fall, none gets one that is
// left out.
func TestTurnsOfManyRequestsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balanced(t, RoundRobin, 1, 1)
		b.fail(0, mayFail)
		var wg sync.WaitGroup
		var wrong atomic.Int32
		for range 4 {
			wg.Go(func() {
				for range 100_000 {
					wrong.Add(int32(1 - b.pick("", nil)))
				}
			})
		}
		wg.Wait()
		if n := wrong.Load(); n > 0 {
			t.Errorf("%d of 400,000 got it", n)
		}
	})
}

// Of requests that choose it at the same time one gets to try it.
func TestOneRequestTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balanced(t, RoundRobin, 1, 1)
		b.fail(0, mayFail)
		time.Sleep(restFirst)
		now := b.ward.now()
		if !b.ward.try(b.targets[0], now) || b.ward.try(b.targets[0], now) {
			t.Error("want one, and no other")
		}
	})
}

// One that goes again while it is coming back is left out at once, for longer.
func TestATargetThatComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balanced(t, RoundRobin, 1, 1)
		b.fail(0, mayFail)
		for range 3 {
			rest := b.targets[0].trouble.Load().rest
			time.Sleep(rest)
			shares(b)
			b.ward.connected(t.Context(), b.targets[0], nil)
			if got := shares(b); got[0] == 0 {
				t.Fatalf("it is not coming back: %v", got)
			}
			b.fail(0, 1)
			if p := b.targets[0].trouble.Load(); p.rest != 2*rest || shares(b)[0] != 0 {
				t.Fatalf("left out for %v, want %v", p.rest, 2*rest)
			}
		}
	})
}

// If all are left out all are used: one may be well again, and an answer of 502 is no
// better without a try.
func TestNotAllAreLeftOut(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastRequests, Hash} {
		synctest.Test(t, func(t *testing.T) {
			b := balanced(t, balance, 1, 1, 1)
			all := shares(b)
			for at := range 3 {
				b.fail(at, mayFail)
			}
			if got := shares(b); !slices.Equal(got, all) {
				t.Errorf("%s: %v, want %v", balance, got, all)
			}
			b.ward.connected(t.Context(), b.targets[2], nil)
			if got := shares(b); got[2] != 900 {
				t.Errorf("%s: one is coming back: %v", balance, got)
			}
			// And a request that was there goes to the others.
			if at := b.pick("", []bool{true, false, true}); at != 1 {
				t.Errorf("%s: to %d, want 1", balance, at)
			}
		})
	}
}

// Callers come back to their target one after the other, and to no other.
func TestKeysComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balanced(t, Hash, 1, 1, 1)
		before := owners(b, nil)
		b.fail(1, mayFail)
		without := owners(b, nil)
		b.ward.connected(t.Context(), b.targets[1], nil)
		back := map[int]bool{}
		for range 10 {
			for i, at := range owners(b, nil) {
				switch {
				case at == 1 && before[i] == 1:
					back[i] = true
				case back[i] || at != without[i]:
					t.Fatalf("key %d of %d went to %d and then to %d", i, before[i], without[i], at)
				}
			}
			time.Sleep(DefaultSlowStart / 10)
		}
		if got := owners(b, nil); !slices.Equal(got, before) {
			t.Error("not all keys are where they were")
		}
	})
}
