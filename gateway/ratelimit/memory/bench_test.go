package memory

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"bouncer/gateway/ratelimit"
)

// A caller writes names of partitions into one buffer, as a request's is written:
// it is fresh in the processor's caches, and a million strings are not there to push
// out what the store needs. A name is valid until the next.
type caller struct{ buf [len("{user:00000000}")]byte }

func (c *caller) name(i uint32) string {
	const digits = "0123456789abcdef"
	copy(c.buf[:], "{user:00000000}")
	for at := len(c.buf) - 2; i > 0; at-- {
		c.buf[at] = digits[i&15]
		i >>= 4
	}
	return unsafe.String(&c.buf[0], len(c.buf))
}

// shuffled returns the numbers below n in an order that nothing can guess.
func shuffled(n int) []uint32 {
	order := make([]uint32, n)
	for i, x := range rand.Perm(n) {
		order[i] = uint32(x)
	}
	return order
}

// threeLimits are limits of which nothing runs out, and which deny nobody, while a
// benchmark lasts.
func threeLimits(b *testing.B) []*ratelimit.Policy {
	const day = 24 * time.Hour
	return []*ratelimit.Policy{
		mustPolicy(b, ratelimit.Policy{Name: "bucket", Scope: "plan/bucket", Algorithm: ratelimit.TokenBucket, Quota: 1000, Window: day, Burst: 100_000_000}),
		mustPolicy(b, ratelimit.Policy{Name: "per-day", Scope: "plan/per-day", Algorithm: ratelimit.FixedWindow, Quota: ratelimit.MaxQuota, Window: day}),
		mustPolicy(b, ratelimit.Policy{Name: "per-week", Scope: "plan/per-week", Algorithm: ratelimit.FixedWindow, Quota: ratelimit.MaxQuota, Window: 7 * day}),
	}
}

// BenchmarkTake decides on one caller of so many, in random order: with a million of
// them no bucket is in the processor's caches. "0limits" is what the loop itself
// takes: the next number of the order, and the name.
func BenchmarkTake(b *testing.B) {
	all := threeLimits(b)
	for _, keys := range []int{1, 100, 1_000_000} {
		for _, n := range []int{0, 1, 3} {
			b.Run(strconv.Itoa(keys)+"keys/"+strconv.Itoa(n)+"limits", func(b *testing.B) {
				s := mustStore(b, Options{MaxKeys: len(all) * keys})
				charges := make([]ratelimit.Charge, n)
				var ds []ratelimit.Decision
				var c caller
				take := func(i uint32) {
					name := c.name(i)
					for i := range charges {
						charges[i] = ratelimit.Charge{Policy: all[i], Partition: name, Cost: 1}
					}
					var err error
					ds, err = s.Take(b.Context(), charges, ds)
					if err != nil || len(ds) != n || !ratelimit.Admitted(ds) {
						b.Fatal(ds, err)
					}
				}
				order := shuffled(keys)
				for i := range keys {
					take(uint32(i))
				}
				runtime.GC() // what filling the table has left is nothing that a decision costs
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					take(order[i])
					if i++; i == keys {
						i = 0
					}
				}
			})
		}
	}
}

// BenchmarkTakeParallel decides on one of a million callers from all cores at once.
// With -cpu 1,2 it shows what a second core adds: ns/op is the time that passes for
// each decision of all of them.
func BenchmarkTakeParallel(b *testing.B) {
	const keys = 1_000_000
	p := threeLimits(b)[0]
	s := mustStore(b, Options{MaxKeys: keys})
	order := shuffled(keys)
	var c caller
	for i := range order {
		takeOne(b, s, p, c.name(order[i]))
	}
	order = shuffled(keys)
	runtime.GC()
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		charges := []ratelimit.Charge{{Policy: p, Cost: 1}}
		var ds []ratelimit.Decision
		var c caller
		i := rand.IntN(keys) // each core somewhere else
		for pb.Next() {
			charges[0].Partition = c.name(order[i])
			ds, _ = s.Take(b.Context(), charges, ds)
			if i++; i == keys {
				i = 0
			}
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
