package gateway

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How much garbage the heap may hold beside what is live. Go's own default is
// as much again, which is little for a gateway with 10 MB of live heap, that
// then collects many times a second, and much for one whose tables have grown
// to hundreds of MB under a crowd of addresses.
const (
	garbageRoom  = 64 << 20 // bytes beside the live heap, in between the bounds below
	leastPercent = 25
	mostPercent  = 400

	// The live heap changes with the number of callers, which is slow.
	gcTuneEvery = time.Second
)

// gcPercent is the value of GOGC that leaves garbageRoom beside this live heap.
func gcPercent(live uint64) int {
	if live == 0 {
		return mostPercent
	}
	return int(min(max(garbageRoom*100/live, leastPercent), mostPercent))
}

// tuneGC keeps the collector's effort fitted to the live heap until ctx ends.
// Somebody who sets GOGC or GOMEMLIMIT knows better, and is left alone.
func tuneGC(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	set := gcPercent(0)
	before := debug.SetGCPercent(set)
	defer debug.SetGCPercent(before)
	tick := time.NewTicker(gcTuneEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(sample)
		// Setting it stops the world for a moment, so small changes are not worth it.
		if want := gcPercent(sample[0].Value.Uint64()); want*10 < set*9 || want*9 > set*10 {
			debug.SetGCPercent(want)
			set = want
		}
	}
}
