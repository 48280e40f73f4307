package gateway

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
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

// The part of a container's memory that the runtime is to stay below, in
// percent: it counts neither the program's own pages nor what the kernel keeps
// for its files.
const softPercent = 90

// boundMemory has the runtime stay below the memory that this process may have,
// as its cgroup limits it (bytes tells how much that is). The runtime takes the
// number of processors from there, but not this; and a heap that may double
// before it is looked at is killed at the limit, with nothing in the log. It
// returns what puts the former bound back. Somebody who sets GOMEMLIMIT knows
// better, and is left alone.
func boundMemory(log *slog.Logger, bytes func() (uint64, error)) (restore func()) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	n, err := bytes()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		return func() {}
	case err != nil:
		log.Warn("how much memory the container may have is not known; if it has a limit, set GOMEMLIMIT to nine tenths of it", "error", err)
		return func() {}
	case n > math.MaxInt64/100:
		return func() {} // a way of version 1 to say that there is none
	}
	soft := int64(n) / 100 * softPercent
	before := debug.SetMemoryLimit(soft)
	log.Info("memory is limited", "limit_bytes", n, "soft_limit_bytes", soft)
	return func() { debug.SetMemoryLimit(before) }
}
