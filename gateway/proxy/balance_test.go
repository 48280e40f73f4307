package proxy

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"testing"
)

// balanced returns a balancer over targets with these weights, named a, b, c…
func balanced(t testing.TB, balance string, weights ...int) *balancer {
	t.Helper()
	o := Options{Name: "weather", Balance: balance}
	for i, w := range weights {
		o.Targets = append(o.Targets, Target{URL: &url.URL{Scheme: "http", Host: string(rune('a' + i))}, Weight: w})
	}
	u, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u.balancer
}

func TestTurnsAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		weights []int
		round   string
	}{
		{[]int{1}, "aaaa"},
		{[]int{0, 1, 1}, "abcabc"},
		{[]int{7, 7}, "abab"},
		{[]int{3, 1}, "aabaaaba"},
		{[]int{1, 5}, "bbabbbbbabbb"},
		{[]int{200, 400, 100}, "babcbabbabcbab"},
	} {
		for _, balance := range []string{RoundRobin, LeastRequests} { // idle ones take turns
			b, got := balanced(t, balance, test.weights...), ""
			for range test.round {
				got += string(rune('a' + b.pick("", nil)))
			}
			if got != test.round {
				t.Errorf("%s of %v: %s, want %s", balance, test.weights, got, test.round)
			}
		}
	}
}

// However many requests are in flight, each target has as many as its weight says.
func TestTheFewestRequestsForItsWeight(t *testing.T) {
	t.Parallel()
	b := balanced(t, LeastRequests, 6, 3, 1)
	for n := 1; n <= 1000; n++ {
		b.targets[b.pick("", nil)].inFlight.Add(1)
		if n < 10 {
			continue
		}
		for _, target := range b.targets {
			if got, want := float64(target.inFlight.Load()), float64(n*int(target.weight))/10; got < want-1.5 || got > want+1.5 {
				t.Fatalf("after %d, %s of weight %d has %v in flight, want %v", n, target.name, target.weight, got, want)
			}
		}
	}
	// One that hangs is left alone by and by, whatever its weight.
	b.targets[0].inFlight.Add(10_000)
	for range 100 {
		if at := b.pick("", nil); at == 0 {
			t.Fatal("a busy target got a request")
		}
	}
}

// A request that could not connect goes to each other target once, and takes no
// one's turn.
func TestARequestGoesNowhereTwice(t *testing.T) {
	t.Parallel()
	for _, balance := range []string{RoundRobin, LeastRequests, Hash} {
		b := balanced(t, balance, 1, 900, 30, 4)
		for key := range 100 {
			been := make([]bool, 4)
			at := b.pick(strconv.Itoa(key), nil)
			for range 3 {
				been[at] = true
				at = b.pick(strconv.Itoa(key), been)
				if been[at] {
					t.Fatalf("%s: at %d again, after %v", balance, at, been)
				}
			}
		}
	}
	b := balanced(t, RoundRobin, 1, 1)
	dead := 0
	for range 100 {
		if b.pick("", nil) == 0 {
			dead++
			if b.pick("", []bool{true, false}) != 1 {
				t.Fatal("not the other one")
			}
		}
	}
	if dead != 50 {
		t.Errorf("the dead one of two had %d turns of 100", dead)
	}
}

const keys = 20_000

// owners says where each key goes.
func owners(b *balancer, been []bool) []int {
	at := make([]int, keys)
	for i := range at {
		at[i] = b.pick("user"+strconv.Itoa(i), been)
	}
	return at
}

func TestKeysAreSharedOutByWeight(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]int{{1, 1}, {1, 1, 1, 1, 1, 1, 1}, {3, 1}, {1000, 500, 1}, {5, 1, 1, 3}} {
		counts, sum := make([]int, len(weights)), 0
		for _, at := range owners(balanced(t, Hash, weights...), nil) {
			counts[at]++
		}
		for _, w := range weights {
			sum += w
		}
		for i, w := range weights {
			// Five standard deviations are less than that.
			if got, want := float64(counts[i]), float64(keys*w)/float64(sum); got < want-400 || got > want+400 {
				t.Errorf("of weights %v, %d keys are at %d, want %.0f", weights, counts[i], i, want)
			}
		}
	}
}

// When a target goes only its own keys move, to all others; when one comes it takes
// its share; and a weight that grows takes keys from others, and moves none else.
func TestFewKeysMove(t *testing.T) {
	t.Parallel()
	five, four := owners(balanced(t, Hash, 1, 1, 1, 1, 1), nil), owners(balanced(t, Hash, 1, 1, 1, 1), nil)
	dead := owners(balanced(t, Hash, 1, 1, 1, 1, 1), []bool{false, false, false, false, true})
	moved := make([]int, 5)
	for i := range keys {
		switch {
		case five[i] == 4:
			moved[four[i]]++
		case five[i] != four[i]:
			t.Fatalf("key %d moved from %d to %d, which both stay", i, five[i], four[i])
		}
		if dead[i] != four[i] {
			t.Fatalf("key %d: %d stands in for one that is dead, and %d for one that is gone", i, dead[i], four[i])
		}
	}
	for at, n := range moved[:4] {
		if n < keys/20*8/10 || n > keys/20*12/10 {
			t.Errorf("%d of the keys went to %d, want a quarter of a fifth", n, at)
		}
	}
	heavy := owners(balanced(t, Hash, 1, 1, 3, 1, 1), nil)
	for i := range keys {
		if heavy[i] != five[i] && heavy[i] != 2 {
			t.Fatalf("key %d moved from %d to %d, whose weight did not grow", i, five[i], heavy[i])
		}
	}
}

// Every instance, of every release, has to come to the same: these may not change.
func TestInstancesAgreeOnKeys(t *testing.T) {
	t.Parallel()
	b := balanced(t, Hash, 1, 2, 1)
	var got []string
	for _, key := range []string{"", "priya123", "203.0.113.7", "2001:db8::/64", "acme", "ü"} {
		got = append(got, b.targets[b.pick(key, nil)].name)
	}
	if want := []string{"c", "c", "b", "a", "c", "a"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPickingAllocatesNothing(t *testing.T) {
	for _, balance := range []string{RoundRobin, LeastRequests, Hash} {
		b := balanced(t, balance, 1, 2, 3, 4)
		b.targets[3].inFlight.Add(1)
		been := []bool{false, true, false, false}
		if n := testing.AllocsPerRun(1000, func() {
			b.pick("priya123", nil)
			b.pick("priya123", been)
		}); n != 0 {
			t.Errorf("%s: %v allocations", balance, n)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, balance := range []string{RoundRobin, LeastRequests, Hash} {
		for _, n := range []int{2, 16} {
			b.Run(fmt.Sprintf("%s/%d", balance, n), func(b *testing.B) {
				weights := make([]int, n)
				u := balanced(b, balance, weights...)
				for _, t := range u.targets {
					t.inFlight.Add(1)
				}
				for b.Loop() {
					u.pick("priya123", nil)
				}
			})
		}
	}
}
