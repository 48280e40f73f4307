package memory

import (
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

func TestResetEmptiesOneBucket(t *testing.T) {
	clock := newClock()
	s := mustStore(t, Options{MaxKeys: 16, Now: clock.Load})
	month := ratelimit.Calendar{Unit: ratelimit.CalendarMonth, Location: time.UTC}
	for _, spec := range []ratelimit.Policy{
		{Algorithm: ratelimit.TokenBucket, Quota: 1, Window: time.Hour, Burst: 5},
		{Algorithm: ratelimit.FixedWindow, Quota: 5, Window: time.Hour},
		{Algorithm: ratelimit.FixedWindow, Quota: 5, Calendar: &month},
		{Algorithm: ratelimit.SlidingWindowLog, Quota: 5, Window: time.Hour},
		{Algorithm: ratelimit.SlidingWindowCounter, Quota: 5, Window: time.Hour},
		{Algorithm: ratelimit.LeakyBucket, Quota: 1, Window: time.Hour, Queue: 4},
	} {
		spec.Name, spec.Scope = "x", "plan/x"
		p, err := ratelimit.NewPolicy(spec)
		if err != nil {
			t.Fatal(err)
		}
		look := func(key string) int64 {
			ds, err := s.Take(t.Context(), []ratelimit.Charge{{Policy: p, Partition: key}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return ds[0].Remaining
		}
		for range 5 {
			takeOne(t, s, p, "{user:a}")
			takeOne(t, s, p, "{user:b}")
		}
		held := s.Len()
		if err := s.Reset([]ratelimit.Charge{{Policy: p, Partition: "{user:a}"}, {Policy: p, Partition: "{user:unknown}"}}); err != nil {
			t.Fatal(err)
		}
		if a, b := look("{user:a}"), look("{user:b}"); a != p.Capacity() || b != 0 || s.Len() != held {
			t.Errorf("%s: %d and %d are left, want %d and 0; %d keys, before %d", p.Algorithm, a, b, p.Capacity(), s.Len(), held)
		}
		for range 5 {
			if d := takeOne(t, s, p, "{user:a}"); !d.Allowed {
				t.Errorf("%s: denied after a reset", p.Algorithm)
			}
		}
		if d := takeOne(t, s, p, "{user:a}"); d.Allowed {
			t.Errorf("%s: more than it grants", p.Algorithm)
		}
	}
	if err := s.Reset([]ratelimit.Charge{{Partition: "x"}}); err == nil {
		t.Error("a charge without a policy is no mistake")
	}
	// The place of one that was reset is free for others.
	p := window(t, 5, time.Hour)
	s = mustStore(t, Options{MaxKeys: 1, Now: clock.Load})
	takeOne(t, s, p, "{user:a}")
	if err := s.Reset([]ratelimit.Charge{{Policy: p, Partition: "{user:a}"}}); err != nil {
		t.Fatal(err)
	}
	if takeOne(t, s, p, "{user:b}"); s.Overflows() != 0 {
		t.Error("the place of a bucket that was reset is not free")
	}
}
