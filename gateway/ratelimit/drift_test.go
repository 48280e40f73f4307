package ratelimit

import (
	"math/big"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// decisions returns how many decisions a long run takes: RATELIMIT_DECISIONS, or
// a short one's.
func decisions(t *testing.T) int64 {
	t.Helper()
	s := os.Getenv("RATELIMIT_DECISIONS")
	if s == "" {
		return 200_000
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 {
		t.Fatalf("RATELIMIT_DECISIONS: want a number above 0, got %q", s)
	}
	return n
}

// A bucket that is kept from running empty has, after any number of decisions,
// spent what was charged less what came back, to the last part of a unit.
// RATELIMIT_DECISIONS=1000000000 takes some minutes.
func TestALongRunDoesNotDrift(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, p := range []*Policy{
		tokenBucket(t, 1_000_003, time.Hour, 1000),
		tokenBucket(t, 1, time.Hour, 3), // 57,000 years in 10^9 decisions
		tokenBucket(t, 1_000_000, time.Second, 1_000_000),
		leakyBucket(t, 7, time.Minute, 100, 0),
	} {
		rnd := rand.New(rand.NewPCG(seed, 0))
		interval := p.Window.Microseconds()/p.Quota + 1
		now := int64(epoch)
		s, _ := p.Admit(p.Advance(State{}, now), now, p.Capacity())
		charged := p.Capacity() // since the begin, in units
		check := func(i int64) {
			want := new(big.Int).Mul(big.NewInt(charged), big.NewInt(p.Den()))
			want.Sub(want, new(big.Int).Mul(big.NewInt(now-epoch), big.NewInt(p.Num())))
			if !want.IsInt64() || want.Int64() != s.Spent {
				t.Fatalf("%s %d/%s: after %d decisions %d parts are spent, want %s", p.Algorithm, p.Quota, p.Window, i, s.Spent, want)
			}
		}
		for i := range decisions(t) {
			// About one unit comes back between two, so that it never empties: the
			// second half of what it holds is asked for again at once.
			now += rnd.Int64N(interval)
			s = p.Advance(s, now)
			cost := int64(1)
			if left, _ := p.Describe(s, now); left > p.Capacity()/2 {
				cost = left
			}
			after, ok := p.Admit(s, now, cost)
			if ok {
				s, charged = after, charged+cost
			}
			if i%100_003 == 0 {
				check(i)
			}
		}
		check(decisions(t))
	}
}

// One a month and a million a second are exact, and what a window or a log
// counts is whole units, which cannot drift.
func TestTheSlowestAndTheFastestAreExact(t *testing.T) {
	month, second := tokenBucket(t, 1, 30*day, 1), tokenBucket(t, 1_000_000, time.Second, 1)
	if !month.Exact() || !second.Exact() {
		t.Fatal("not exact")
	}
	b := &bucket{}
	for i := range int64(1200) { // a century
		at := epoch + i*30*86_400_000_000
		if i > 0 && b.would(month, at-1, 1) {
			t.Fatalf("month %d: admitted 1 µs too soon", i)
		}
		if got := b.take(month, at, 1); !got.allowed {
			t.Fatalf("month %d: %+v", i, got)
		}
	}
	b = &bucket{}
	for i := range int64(1_000_000) {
		if got := b.take(second, epoch+i, 1); !got.allowed {
			t.Fatalf("µs %d: %+v", i, got)
		}
		if b.would(second, epoch+i, 1) {
			t.Fatalf("µs %d: two in one", i)
		}
	}
}
