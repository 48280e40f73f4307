package redisstore_test

import (
	"fmt"
	"testing"

	"bouncer/gateway/ratelimit"
	"bouncer/internal/redistest"
)

// TestBytesPerKey measures what a caller costs Redis under each algorithm, and
// holds it to what the documentation says.
func TestBytesPerKey(t *testing.T) {
	srv := redistest.Start(t)
	look := srv.Client(t)
	store := at(t, srv.Addr())
	const callers = 10_000
	for i, p := range append(everyAlgorithm(t, 100), everyAlgorithm(t, 100)[3]) {
		cost := int64(1)
		if i == 6 {
			cost = 100 // the log when it is full
		}
		if err := look.FlushDB(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		used := func() int64 {
			n, err := look.InfoMap(t.Context(), "memory").Result()
			if err != nil {
				t.Fatal(err)
			}
			var bytes int64
			if _, err := fmt.Sscan(n["Memory"]["used_memory_dataset"], &bytes); err != nil {
				t.Fatal(err)
			}
			return bytes
		}
		var key string
		before := used()
		for n := range callers {
			c := in(ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: fmt.Sprintf("user-%06d", n)}), p, cost)
			mustTake(t, store, []ratelimit.Charge{c})
			key = "rl:v1:" + c.Partition + ":" + p.Key()
		}
		usage := look.MemoryUsage(t.Context(), key).Val()
		whole := (used() - before) / callers
		t.Logf("%-24s %3d units: MEMORY USAGE %4d bytes, %4d in all (key of %d bytes)", name(p), cost, usage, whole, len(key))
		if most := int64(240) + 12*cost; usage > most {
			t.Errorf("%s: %d bytes for a key; want %d or fewer", name(p), usage, most)
		}
	}
}
