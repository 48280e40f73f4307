package denycache_test

import (
	"fmt"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/denycache"
)

// What a request costs before the store is asked, and instead of it.
func BenchmarkTake(b *testing.B) {
	ps := []*ratelimit.Policy{
		bucket(b, "per-minute", 100, time.Minute, 20), window(b, "per-day", 1, 24*time.Hour), bucket(b, "per-second", 10, time.Second, 10),
	}
	run := func(name string, store ratelimit.Store, cs []ratelimit.Charge) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				var room [4]ratelimit.Decision
				for pb.Next() {
					if _, err := store.Take(b.Context(), cs, room[:0]); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
	for _, n := range []int{1, 3} {
		cs := list(1, ps[:n]...)
		run(fmt.Sprintf("limits=%d/bare", n), admitter{}, cs)
		c, err := denycache.New(denycache.Options{})
		if err != nil {
			b.Fatal(err)
		}
		run(fmt.Sprintf("limits=%d/nobody_denied", n), c.Over(admitter{}), cs)
		denied := c.Over(denier{time.Hour})
		for i := range 50_000 {
			other := append([]ratelimit.Charge(nil), cs...)
			for j := range other {
				other[j].Partition = fmt.Sprintf("{user:%d}", i)
			}
			if _, err := denied.Take(b.Context(), other, nil); err != nil {
				b.Fatal(err)
			}
		}
		run(fmt.Sprintf("limits=%d/others_denied", n), c.Over(admitter{}), cs)
		if _, err := denied.Take(b.Context(), cs, nil); err != nil {
			b.Fatal(err)
		}
		run(fmt.Sprintf("limits=%d/hit", n), denied, cs)
	}
}
