package ratelimit

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func leakyBucket(tb testing.TB, quota int64, window time.Duration, queue int64, maxDelay time.Duration) *Policy {
	tb.Helper()
	return policy(tb, Policy{
		Name: "queue", Scope: "limit/queue", Algorithm: LeakyBucket,
		Quota: quota, Window: window, Queue: queue, MaxDelay: maxDelay,
	})
}

// queued asks as bucket.take does, and returns the delay as well.
func (b *bucket) queued(p *Policy, now, cost int64) (verdict, time.Duration) {
	delay := p.Delay(p.Advance(b.state, now), now, cost)
	v := b.take(p, now, cost)
	if !v.allowed {
		delay = 0
	}
	return v, delay
}

// Two a second, and three wait. The table of README.md, and around it.
func TestLeakyBucketStory(t *testing.T) {
	const ms, s, us = time.Millisecond, time.Second, time.Microsecond
	p := leakyBucket(t, 2, time.Second, 3, 0)
	b := &bucket{}
	for i, st := range []struct {
		at    time.Duration
		cost  int64
		want  verdict
		delay time.Duration
		why   string
	}{
		{0, 0, allowed(4, 0), 0, "a peek takes no place"},
		{0, 1, allowed(3, 500*ms), 0, "goes at once"},
		{0, 1, allowed(2, 500*ms), 500 * ms, "goes with the next drip"},
		{0, 2, allowed(0, 500*ms), 1500 * ms, "takes two drips and goes with its last"},
		{0, 1, denied(0, 500*ms, 500*ms), 0, "the queue is full"},
		{450 * ms, 1, denied(0, 50*ms, 50*ms), 0, "10 % too soon"},
		{500*ms - us, 1, denied(0, us, us), 0, "1 µs too soon"},
		{500 * ms, 1, allowed(0, 500*ms), 1500 * ms, "exactly when told; it goes at 2 s"},
		{500 * ms, 5, denied(0, 500*ms, Never), 0, "more than there are places"},
		{1750 * ms, 1, allowed(1, 250*ms), 750 * ms, "at 2.5 s, one interval after the one before"},
		{1250 * ms, 1, allowed(0, 750*ms), 1750 * ms, "the clock went back 500 ms, which it has to catch up first: 3 s"},
		{10 * s, 4, allowed(0, 500*ms), 1500 * ms, "idle: the first of four drips takes no time"},
	} {
		if got, delay := b.queued(p, epoch+st.at.Microseconds(), st.cost); got != st.want || delay != st.delay {
			t.Errorf("step %d, cost %d at %s (%s):\n got %+v, delay %s\nwant %+v, delay %s", i, st.cost, st.at, st.why, got, delay, st.want, st.delay)
		}
	}
}

// A wait of more than max_delay is denied, whatever the queue holds.
func TestLeakyBucketDeniesALongerWaitThanMaxDelay(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		queue    int64
		maxDelay time.Duration
		capacity int64
	}{
		{3, 0, 4},
		{3, 1500 * ms, 4},
		{3, 1499 * ms, 3},
		{3, 500 * ms, 2},
		{3, 499 * ms, 1},
		{3, time.Microsecond, 1},
		{3, time.Hour, 4},
		{0, time.Hour, 1},
		{0, 0, 1},
	} {
		p := leakyBucket(t, 2, time.Second, c.queue, c.maxDelay)
		if got := p.Capacity(); got != c.capacity {
			t.Errorf("queue %d, max_delay %s: %d places, want %d", c.queue, c.maxDelay, got, c.capacity)
		}
		b := &bucket{}
		for i := range c.capacity {
			got, delay := b.queued(p, epoch, 1)
			if !got.allowed || delay != time.Duration(i)*500*ms {
				t.Errorf("queue %d, max_delay %s, place %d: %+v, delay %s", c.queue, c.maxDelay, i, got, delay)
			}
		}
		if got, _ := b.queued(p, epoch, 1); got.allowed || got.remaining != 0 {
			t.Errorf("queue %d, max_delay %s: one more: %+v", c.queue, c.maxDelay, got)
		}
	}
}

func TestLeakyBucketAfterAChangeOfPlan(t *testing.T) {
	const ms = time.Millisecond
	b := &bucket{}
	small, large := leakyBucket(t, 2, time.Second, 1, 0), leakyBucket(t, 4, time.Second, 5, 0)
	tell(t, small, b, []step{{0, 2, allowed(0, 500*ms), "full"}})
	tell(t, large, b, []step{
		{0, 0, allowed(4, 250*ms), "raised: four more places at once, and faster drips"},
		{0, 4, allowed(0, 250*ms), ""},
	})
	tell(t, small, b, []step{{0, 1, denied(0, 500*ms, 500*ms), "lowered: what does not fit is let go, and one drip is enough"}})
	tell(t, leakyBucket(t, 0, time.Second, 1, 0), b, []step{{0, 1, denied(0, 0, Never), "0 denies"}})
}

func TestLeakyBucketCostsFromHell(t *testing.T) {
	for _, p := range []*Policy{
		leakyBucket(t, 2, time.Second, 3, 0),
		leakyBucket(t, 0, time.Second, 3, time.Second),
		leakyBucket(t, MaxQuota, time.Second, MaxQuota-1, MaxWindow),
		leakyBucket(t, 1, MaxWindow, 283, 0),
	} {
		for _, cost := range []int64{p.Capacity() + 1, 1 << 53, math.MaxInt64 / p.Den(), math.MaxInt64} {
			b := &bucket{}
			if got, delay := b.queued(p, epoch, cost); got.allowed || got.retryAfter != Never || delay != 0 {
				t.Errorf("%d places, cost %d: got %+v", p.Capacity(), cost, got)
			}
		}
	}
}

// What is admitted goes at least its cost in intervals after what went before,
// no sooner than it came, no later than max_delay after; and no more than the
// queue ever waits. Times are whole µs, so a departure is rounded up to one, and
// what does not divide may look up to 1 µs shorter.
func TestLeakyBucketDeparturesAreAnIntervalApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t, LeakyBucket, drawWindow(t))
		b, last := &bucket{}, verdict{}
		now := int64(epoch)
		type departure struct{ at, cost int64 }
		var departures []departure
		type drip struct{ from, parts int64 } // when so much has dripped since
		var drips []drip
		for range rapid.IntRange(1, 80).Draw(t, "requests") {
			now += max(0, drawGap(t, p, last))
			cost := drawCost(t, p, last)
			before := p.Advance(b.state, now).Spent
			var delay time.Duration
			last, delay = b.queued(p, now, cost)
			if !last.allowed || cost == 0 {
				continue
			}
			if delay < 0 || p.MaxDelay > 0 && delay > p.MaxDelay {
				t.Fatalf("a delay of %s, max_delay %s", delay, p.MaxDelay)
			}
			departures = append(departures, departure{now + delay.Microseconds(), cost})
			for i := range cost {
				drips = append(drips, drip{now, before + i*p.Den()})
			}
			waiting := int64(0)
			for _, d := range drips {
				if d.parts > (now-d.from)*p.Num() {
					waiting++
				}
			}
			if waiting > p.Queue {
				t.Fatalf("%d wait in a queue of %d", waiting, p.Queue)
			}
		}
		// Over any number of them, nothing adds up.
		for i := range departures {
			drips := int64(0)
			for _, d := range departures[i+1:] {
				drips += d.cost
				least := new(big.Int).Mul(big.NewInt(drips), big.NewInt(p.Window.Microseconds()))
				least.Div(least, big.NewInt(p.Quota))
				if span := d.at - departures[i].at; span < least.Int64() {
					t.Fatalf("%d drips in %d µs, want at least %d", drips, span, least)
				}
			}
		}
	})
}

// Fifty a second and a crowd: one leaves every 20 ms, for as long as it comes.
func TestLeakyBucketSmoothsACrowd(t *testing.T) {
	p := leakyBucket(t, 50, time.Second, 100, 2*time.Second)
	if p.Capacity() != 101 {
		t.Fatalf("%d places, want 101: 2 s are 100 drips, and one goes at once", p.Capacity())
	}
	b := &bucket{}
	next := int64(epoch)
	for now := int64(epoch); now < epoch+10_000_000; now += 5000 { // 200 a second
		got, delay := b.queued(p, now, 1)
		if !got.allowed {
			continue
		}
		if at := now + delay.Microseconds(); at != next {
			t.Fatalf("a departure at +%d µs, want +%d", at-epoch, next-epoch)
		}
		next += 20_000
	}
	if n := (next - epoch) / 20_000; n != 500+100 {
		t.Errorf("%d admitted in 10 s, want 600: 500 have gone, 100 wait", n)
	}
}
