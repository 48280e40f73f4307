package main

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/memory"
)

// million is how many keys the table holds while it is measured.
const million = 1_000_000

// BenchmarkMemory decides in this process, one limit at a time, in a table of a
// million keys that still count: of hot keys, a hundred that are asked for again
// and again; of cold ones, all in turn, in another order than they were made
// in, so that hardly any is in the processor's caches; and as callers are, of whom
// few come often and most seldom (Zipf's law). With -cpu 2 it decides on
// two cores at once; ns/op is then the time that passes for each decision, of
// all cores together.
//
//	go test -run '^$' -bench Memory -benchtime 2s -cpu 1,2 ./bench/decisions
func BenchmarkMemory(b *testing.B) {
	who := make([]string, million)
	for i := range who {
		who[i] = user(i)
	}
	often := asTraffic(who)
	for _, a := range []ratelimit.Algorithm{
		ratelimit.TokenBucket, ratelimit.FixedWindow, ratelimit.SlidingWindowCounter,
		ratelimit.LeakyBucket, ratelimit.SlidingWindowLog,
	} {
		b.Run(a.String(), func(b *testing.B) {
			p, s := table(b, a, who)
			for _, keys := range []struct {
				name string
				who  []string
			}{{"hot", who[:100]}, {"traffic", often}, {"cold", who}} {
				b.Run(keys.name, func(b *testing.B) { inParallel(b, s, p, keys.who) })
			}
		})
	}
}

// asTraffic returns a million requests of callers of whom few come often: the n-th
// most frequent one 1/n^1.1 times as often as the first. Their names follow each
// other in memory, as what has just been read from a connection is at hand.
func asTraffic(who []string) []string {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(len(who)-1)) // the same each time
	requests := make([]string, len(who))
	for i := range requests {
		requests[i] = strings.Clone(who[int(zipf.Uint64())*7919%len(who)])
	}
	return requests
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
