package ratelimit

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Five a minute. The window opens with the first request, not with the minute.
func TestFixedWindowStory(t *testing.T) {
	const s = time.Second
	p := fixedWindow(t, 5, time.Minute)
	tell(t, p, &bucket{}, []step{
		{0, 0, allowed(5, 0), "a peek opens no window"},
		{10 * s, 6, denied(5, 0, Never), "more than a window grants; a denial opens none either"},
		{20 * s, 1, allowed(4, 60*s), "the first opens it"},
		{30 * s, 3, allowed(1, 50*s), ""},
		{40 * s, 2, denied(1, 40*s, 40*s), "two do not fit"},
		{40 * s, 1, allowed(0, 40*s), "one does: the denial charged nothing"},
		{74 * s, 1, denied(0, 6*s, 6*s), "10 % of the wait too soon"},
		{80*s - 1*time.Microsecond, 1, denied(0, 1*time.Microsecond, 1*time.Microsecond), "1 µs too soon"},
		{80 * s, 1, allowed(4, 60*s), "exactly when told; the next window opens here"},
		{70 * s, 4, allowed(0, 70*s), "the clock went back: the window is the same one"},
		{70 * s, 1, denied(0, 70*s, 70*s), "and is used up"},
		{140 * s, 5, allowed(0, 60*s), "a cost of the whole quota works"},
		{400 * s, 0, allowed(5, 0), "long over"},
	})
}

func TestFixedWindowAfterAChangeOfQuota(t *testing.T) {
	const s = time.Second
	b := &bucket{}
	tell(t, fixedWindow(t, 5, time.Minute), b, []step{{0, 5, allowed(0, 60*s), "all is used"}})
	tell(t, fixedWindow(t, 8, time.Minute), b, []step{
		{10 * s, 1, allowed(2, 50*s), "raised: 5 of 8 are used, in the same window"},
	})
	tell(t, fixedWindow(t, 3, time.Minute), b, []step{
		{10 * s, 1, denied(0, 50*s, 50*s), "lowered: 6 of 3 are used, and remaining is 0, not -3"},
	})
	tell(t, fixedWindow(t, 0, time.Minute), b, []step{{10 * s, 1, denied(0, 50*s, Never), "0 denies"}})
	tell(t, fixedWindow(t, 8, time.Minute), b, []step{
		{10 * s, 2, allowed(0, 50*s), "raised again: the count was kept"},
		{60 * s, 8, allowed(0, 60*s), "the window ended when it was to"},
	})
}

func TestFixedWindowCostsFromHell(t *testing.T) {
	for _, quota := range []int64{0, 1, 100, MaxQuota} {
		p := fixedWindow(t, quota, time.Minute)
		for _, cost := range []int64{quota + 1, 1 << 53, math.MaxInt64} {
			b := &bucket{}
			b.take(p, epoch, quota) // so that a sum might overflow
			if got := b.take(p, epoch, cost); got.allowed || got.retryAfter != Never || got.remaining != 0 {
				t.Errorf("quota %d, cost %d: got %+v", quota, cost, got)
			}
		}
	}
}

func TestFixedWindowOfNAdmitsN(t *testing.T) {
	for _, n := range []int64{1, 2, 5, 100} {
		p := fixedWindow(t, n, time.Minute)
		b := &bucket{}
		for i := range n {
			if got := b.take(p, epoch+i, 1); !got.allowed || got.remaining != n-1-i {
				t.Fatalf("%d/minute, request %d: got %+v", n, i+1, got)
			}
		}
		if got := b.take(p, epoch+n, 1); got.allowed {
			t.Fatalf("%d/minute, one more: got %+v", n, got)
		}
	}
}

// The model keeps every admission and knows of windows only that each opens at
// the first admission outside the one before.
func TestFixedWindowAdmitsAtMostQuotaPerWindowAndTwiceAcrossAnEdge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := NewPolicy(Policy{
			Name: "n", Scope: "plan/n", Algorithm: FixedWindow,
			Quota:  rapid.Int64Range(0, 12).Draw(t, "quota"),
			Window: time.Duration(rapid.Int64Range(1, 90).Draw(t, "window")) * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		window := p.Window.Microseconds()
		b := &bucket{}
		type admission struct{ at, cost int64 }
		var admitted []admission
		opened := int64(math.MinInt64 / 2)
		used := int64(0)
		now := int64(epoch)
		for range rapid.IntRange(1, 80).Draw(t, "requests") {
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, window/4), rapid.Int64Range(window-2, window+2)).Draw(t, "step")
			cost := rapid.Int64Range(1, 4).Draw(t, "cost")
			if now-opened >= window {
				used = 0
			}
			want := used+cost <= p.Quota
			got := b.take(p, now, cost)
			if got.allowed != want {
				t.Fatalf("cost %d with %d of %d used: allowed %v", cost, used, p.Quota, got.allowed)
			}
			if want {
				if used == 0 {
					opened = now
				}
				used += cost
				admitted = append(admitted, admission{now, cost})
			}
			checkPromises(t, p, b, now, cost, got, p.Quota)
		}
		for i := range admitted {
			sum := int64(0)
			for _, a := range admitted[i:] {
				if a.at-admitted[i].at >= window {
					break
				}
				sum += a.cost
			}
			if sum > 2*p.Quota {
				t.Fatalf("%d within one window's length, quota %d", sum, p.Quota)
			}
		}
	})
}

// Steps of the clock in both directions open no window early.
func TestFixedWindowWithAClockThatGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := NewPolicy(Policy{Name: "n", Scope: "plan/n", Algorithm: FixedWindow, Quota: 5, Window: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		b := &bucket{}
		now := int64(epoch)
		opened, sum := int64(math.MinInt64/2), int64(0)
		for range rapid.IntRange(1, 80).Draw(t, "requests") {
			now += rapid.Int64Range(-12_000_000, 14_000_000).Draw(t, "step")
			cost := rapid.Int64Range(1, 3).Draw(t, "cost")
			before := b.state
			got := b.take(p, now, cost)
			checkPromises(t, p, b, now, cost, got, 5)
			if !got.allowed {
				if b.state != before {
					t.Fatal("a denial wrote")
				}
				continue
			}
			if b.state.Time != before.Time {
				if now < opened+10_000_000 {
					t.Fatalf("a window opened at %d, the last at %d", now, opened)
				}
				opened, sum = now, 0
			}
			if sum += cost; sum > 5 {
				t.Fatalf("%d in one window", sum)
			}
		}
	})
}
