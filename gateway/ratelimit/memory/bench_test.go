package memory

import (
	"strconv"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
)

// BenchmarkTake decides on one of a million callers, the worst case for the
// processor's caches.
func BenchmarkTake(b *testing.B) {
	// A thousand a day: no entry runs out while the benchmark lasts.
	bucket := mustPolicy(b, ratelimit.Policy{Name: "bucket", Scope: "plan/bucket", Algorithm: ratelimit.TokenBucket, Quota: 1000, Window: 24 * time.Hour})
	perDay := mustPolicy(b, ratelimit.Policy{Name: "per-day", Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow, Quota: 1_000_000, Window: 24 * time.Hour})
	perWeek := mustPolicy(b, ratelimit.Policy{Name: "per-week", Scope: "plan/per-week", Algorithm: ratelimit.FixedWindow, Quota: 1_000_000, Window: 7 * 24 * time.Hour})
	all := []*ratelimit.Policy{bucket, perDay, perWeek}

	for _, keys := range []int{1, 100, 1_000_000} {
		for n := 1; n <= len(all); n += 2 {
			b.Run(strconv.Itoa(keys)+"keys/"+strconv.Itoa(n)+"limits", func(b *testing.B) {
				s, err := New(Options{MaxKeys: len(all) * keys})
				if err != nil {
					b.Fatal(err)
				}
				partitions := make([]string, keys)
				charges := make([]ratelimit.Charge, n)
				var ds []ratelimit.Decision
				take := func(partition string) {
					for i := range charges {
						charges[i] = ratelimit.Charge{Policy: all[i], Partition: partition, Cost: 1}
					}
					ds, err = s.Take(b.Context(), charges, ds)
					if err != nil || len(ds) != n {
						b.Fatal(ds, err)
					}
				}
				for i := range partitions {
					partitions[i] = ipPartition(i)
				}
				// Stored in another order than asked for: the caller's string is
				// fresh in the cache, as a request's is, and the entry is not.
				for i := range partitions {
					take(partitions[i*7919%keys]) // a prime, so all of them
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					take(partitions[i%keys])
					i++
				}
			})
		}
	}
}

// BenchmarkTakeParallel decides from all cores at once.
func BenchmarkTakeParallel(b *testing.B) {
	p := mustPolicy(b, ratelimit.Policy{Name: "bucket", Scope: "plan/bucket", Algorithm: ratelimit.TokenBucket, Quota: 1000, Window: 24 * time.Hour})
	s, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	const keys = 100_000
	partitions := make([]string, keys)
	for i := range partitions {
		partitions[i] = ipPartition(i)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		charges := []ratelimit.Charge{{Policy: p, Cost: 1}}
		var ds []ratelimit.Decision
		i := 0
		for pb.Next() {
			charges[0].Partition = partitions[i%keys]
			ds, _ = s.Take(b.Context(), charges, ds)
			i++
		}
	})
}

// BenchmarkTakeNewKeyWhenFull is a crowd of new keys at a table full of entries
// that still count.
func BenchmarkTakeNewKeyWhenFull(b *testing.B) {
	p := mustPolicy(b, ratelimit.Policy{Name: "per-day", Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow, Quota: 100, Window: 24 * time.Hour})
	const keys = 100_000
	s, err := New(Options{MaxKeys: keys})
	if err != nil {
		b.Fatal(err)
	}
	charges := []ratelimit.Charge{{Policy: p, Cost: 1}}
	var ds []ratelimit.Decision
	partitions := make([]string, 2*keys)
	for i := range partitions {
		partitions[i] = ipPartition(i)
		charges[0].Partition = partitions[i]
		ds, _ = s.Take(b.Context(), charges, ds)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		charges[0].Partition = partitions[keys+i%keys]
		ds, _ = s.Take(b.Context(), charges, ds)
		i++
	}
}

// BenchmarkTakeOfNewKeys replaces entries that have run out.
func BenchmarkTakeOfNewKeys(b *testing.B) {
	p := mustPolicy(b, ratelimit.Policy{Name: "per-second", Scope: "limit/per-second", Algorithm: ratelimit.FixedWindow, Quota: 100, Window: time.Second})
	var now int64
	s, err := New(Options{MaxKeys: 100_000, Now: func() int64 { return now }})
	if err != nil {
		b.Fatal(err)
	}
	charges := []ratelimit.Charge{{Policy: p, Cost: 1}}
	var ds []ratelimit.Decision
	partitions := make([]string, 1_000_000)
	for i := range partitions {
		partitions[i] = ipPartition(i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		now += 15 // some 67,000 live keys
		charges[0].Partition = partitions[i%len(partitions)]
		ds, _ = s.Take(b.Context(), charges, ds)
		i++
	}
}

func ipPartition(i int) string {
	ip := strconv.Itoa(10+i>>24) + "." + strconv.Itoa(i>>16&255) + "." + strconv.Itoa(i>>8&255) + "." + strconv.Itoa(i&255)
	return ratelimit.Partition(ratelimit.Part{Dimension: "ip", Value: ip})
}

func mustPolicy(tb testing.TB, spec ratelimit.Policy) *ratelimit.Policy {
	tb.Helper()
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}
