package main

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/memory"
)

// million is how many keys the table holds while it is measured.
const million = 1_000_000

// BenchmarkMemory decides in this process, one limit at a time, in a table of a
// million keys that still count: of hot keys, a hundred that are asked for again
// and again, and of cold ones, all in turn, in another order than they were made
// in, so that hardly any is in the processor's caches. With -cpu 2 it decides on
// two cores at once; ns/op is then the time that passes for each decision, of
// all cores together.
//
//	go test -run '^$' -bench Memory -benchtime 2s -cpu 1,2 ./bench/decisions
func BenchmarkMemory(b *testing.B) {
	who := make([]string, million)
	for i := range who {
		who[i] = user(i)
	}
	for _, a := range []ratelimit.Algorithm{
		ratelimit.TokenBucket, ratelimit.FixedWindow, ratelimit.SlidingWindowCounter,
		ratelimit.LeakyBucket, ratelimit.SlidingWindowLog,
	} {
		b.Run(a.String(), func(b *testing.B) {
			p, s := table(b, a, who)
			for _, keys := range []struct {
				name string
				n    int
			}{{"hot", 100}, {"cold", million}} {
				b.Run(keys.name, func(b *testing.B) { inParallel(b, s, p, who[:keys.n]) })
			}
		})
	}
}

// table returns a store that holds an entry for each of who.
func table(b *testing.B, a ratelimit.Algorithm, who []string) (*ratelimit.Policy, *memory.Store) {
	b.Helper()
	// No entry runs out meanwhile: a unit of a bucket is back after 86 s.
	spec := ratelimit.Policy{
		Name: "limit", Scope: "plan/" + strconv.Itoa(int(a)), Algorithm: a,
		Quota: 10_000_000, Window: 24 * time.Hour,
	}
	switch a {
	case ratelimit.TokenBucket:
		spec.Quota, spec.Burst = 1000, million
	case ratelimit.LeakyBucket:
		spec.Quota, spec.Queue = 1000, million
	case ratelimit.SlidingWindowLog:
		spec.Quota = 10 // it keeps every unit: the hot keys are denied soon
	}
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		b.Fatal(err)
	}
	s, err := memory.New(memory.Options{MaxKeys: 2 * len(who)})
	if err != nil {
		b.Fatal(err)
	}
	var ds []ratelimit.Decision
	for i := range who {
		at := who[i*7919%len(who)] // a prime, so all of them
		if ds, err = s.Take(b.Context(), []ratelimit.Charge{{Policy: p, Partition: at, Caller: at, Cost: 1}}, ds); err != nil {
			b.Fatal(err)
		}
	}
	return p, s
}

func inParallel(b *testing.B, s *memory.Store, p *ratelimit.Policy, who []string) {
	ctx := b.Context()
	runtime.GC() // what making the table has left is nothing that a decision costs
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		charges := []ratelimit.Charge{{Policy: p, Cost: 1}}
		var ds []ratelimit.Decision
		var err error
		i := int(time.Now().UnixNano() % int64(len(who))) // each core somewhere else
		for pb.Next() {
			charges[0].Partition, charges[0].Caller = who[i], who[i]
			if ds, err = s.Take(ctx, charges, ds); err != nil {
				b.Error(err)
				return
			}
			if i++; i == len(who) {
				i = 0
			}
		}
	})
}
