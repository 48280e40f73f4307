package redisstore_test

import (
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// resets has each bucket of a caller spent, one of them emptied, and looks at all.
func resets(t *testing.T, store *redisstore.Store, partitions ...string) {
	t.Helper()
	const quota = 5
	ps := everyAlgorithm(t, quota)
	for _, partition := range partitions {
		for _, p := range ps {
			for range quota {
				mustTake(t, store, []ratelimit.Charge{in(partition, p, 1)})
			}
		}
	}
	left := func(partition string, p *ratelimit.Policy) int64 {
		return mustTake(t, store, []ratelimit.Charge{in(partition, p, 0)})[0].Remaining
	}
	for _, partition := range partitions {
		for i, p := range ps {
			if err := store.Reset(t.Context(), []ratelimit.Charge{in(partition, p, 0)}); err != nil {
				t.Fatalf("%s: %v", name(p), err)
			}
			if got := left(partition, p); got != p.Capacity() {
				t.Errorf("%s of %s: %d are left after a reset, want %d", name(p), partition, got, p.Capacity())
			}
			for _, q := range ps[i+1:] {
				if got := left(partition, q); got > 1 { // a bucket may have dripped
					t.Errorf("%s of %s: %d are left, and another limit was reset", name(q), partition, got)
				}
			}
		}
	}
}

func TestResetEmptiesOneBucket(t *testing.T) {
	srv := redistest.Start(t)
	store := open(t, redisstore.ClientOptions{Address: srv.Addr()}, redisstore.Options{Timeout: 2 * time.Second})
	resets(t, store, "{user:priya123}")
	if err := store.Reset(t.Context(), nil); err != nil {
		t.Error(err)
	}
	// A value that nobody here wrote is gone as well: that is what it is for.
	p := perDay(t)
	c := srv.Client(t)
	key := "rl:v1:{user:x}:" + p.Key()
	if err := c.Set(t.Context(), key, "nonsense", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := store.Reset(t.Context(), []ratelimit.Charge{in("{user:x}", p, 0)}); err != nil {
		t.Fatal(err)
	}
	mustTake(t, store, []ratelimit.Charge{in("{user:x}", p, 1)})
	for what, cs := range map[string][]ratelimit.Charge{
		"two partitions": {in("{user:a}", p, 0), in("{user:b}", p, 0)}, "no policy": {{Partition: "{user:a}"}},
	} {
		if err := store.Reset(t.Context(), cs); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	srv.Kill()
	if err := store.Reset(t.Context(), []ratelimit.Charge{in("{user:x}", p, 0)}); err == nil {
		t.Error("a server that is away has emptied a bucket")
	}
}

func TestResetOnACluster(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	store := onCluster(t, c, redisstore.Options{Timeout: 2 * time.Second})
	resets(t, store, partitionsOnNodes(t, c)...)
}
