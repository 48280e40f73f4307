package ratelimit

import (
	"testing"
	"time"
)

// A bucket drives one state through a policy as a store does: a denial or a
// peek changes nothing.
type bucket struct {
	state State
}

type verdict struct {
	allowed    bool
	remaining  int64
	reset      time.Duration
	retryAfter time.Duration
}

// take decides cost at now and charges it if it is allowed.
func (b *bucket) take(p *Policy, now, cost int64) verdict {
	s := p.Advance(b.state, now)
	after, ok := p.Admit(s, now, cost)
	v := verdict{allowed: ok}
	if ok && cost > 0 {
		b.state = after
	}
	if !ok {
		v.retryAfter = p.RetryAfter(s, now, cost)
	}
	v.remaining, v.reset = p.Describe(after, now)
	return v
}

// would reports whether cost would be allowed at now, changing nothing.
func (b *bucket) would(p *Policy, now, cost int64) bool {
	_, ok := p.Admit(p.Advance(b.state, now), now, cost)
	return ok
}

// remaining returns what there is at now.
func (b *bucket) remaining(p *Policy, now int64) int64 {
	r, _ := p.Describe(p.Advance(b.state, now), now)
	return r
}

// A step of a story: at a time, a caller asks for cost under a policy.
type step struct {
	at   time.Duration
	cost int64
	want verdict
	why  string
}

func allowed(remaining int64, reset time.Duration) verdict {
	return verdict{allowed: true, remaining: remaining, reset: reset}
}

func denied(remaining int64, reset, retryAfter time.Duration) verdict {
	return verdict{remaining: remaining, reset: reset, retryAfter: retryAfter}
}

// epoch is where the stories begin: a time like those of a real clock.
const epoch = 1_796_000_000_000_000

func tell(t *testing.T, p *Policy, b *bucket, story []step) {
	t.Helper()
	for i, s := range story {
		if got := b.take(p, epoch+s.at.Microseconds(), s.cost); got != s.want {
			t.Errorf("step %d, cost %d at %s (%s):\n got %+v\nwant %+v", i, s.cost, s.at, s.why, got, s.want)
		}
	}
}

func TestDecidingDoesNotAllocate(t *testing.T) {
	for _, p := range []*Policy{
		tokenBucket(t, 7, time.Minute, 20), fixedWindow(t, 7, day), slidingCounter(t, 7, time.Minute),
		leakyBucket(t, 7, time.Minute, 20, time.Minute), onCalendar(t, 7, CalendarDay, "Asia/Kolkata"),
	} {
		b := bucket{}
		now := int64(epoch)
		if n := testing.AllocsPerRun(1000, func() {
			now += 1000
			b.take(p, now, 3)
			p.Delay(p.Advance(b.state, now), now, 1)
			p.RunsOut(b.state)
		}); n != 0 {
			t.Errorf("%s allocates %v times", p.Algorithm, n)
		}
	}
}
