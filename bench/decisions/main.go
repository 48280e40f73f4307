// Command decisions measures what a decision costs Redis: each algorithm with
// one limit, and one, two and four token buckets in one call, admitted and
// denied, through the gateway's own store (gateway/ratelimit/redisstore) with a
// fixed number of callers at once. Beside them stands the least that anybody
// would run in Redis to count requests, a script of INCR and EXPIRE that decides
// nothing, and below that a script that does nothing and PING: what the network
// and the call cost by themselves.
//
// It is not a test of how fast a machine is: the callers share its cores with
// Redis. What is comparable is the CPU time that the process of Redis used per
// call, in user and in kernel mode, as a ratio to the bare script in the same
// round. Rounds are short and interleaved, so that a machine that slows down slows
// all.
//
// A verdict other than the one that a row is named for ends it with an error.
//
//	make bench-decisions BENCHFLAGS='-rounds 99 -json'
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"bouncer/bench/internal/rig"
)

type options struct {
	rounds, callers int
	time            time.Duration
	json            bool
	write           string // Markdown file, or empty
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 25, "rounds of all subjects")
	flag.IntVar(&o.callers, "callers", 16, "calls under way at once")
	flag.DurationVar(&o.time, "time", 200*time.Millisecond, "how long each is driven in each round")
	flag.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flag.StringVar(&o.write, "write", "", "Markdown `file` whose decisions section is replaced")
	flag.Parse()
	rig.Main("bench-decisions", func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) error {
	if o.rounds < 1 || o.callers < 1 || o.time < 100*time.Millisecond {
		return fmt.Errorf("want at least one round, one caller and 100ms, got -rounds %d -callers %d -time %v", o.rounds, o.callers, o.time)
	}
	s, err := setUp(ctx, o)
	if s != nil {
		defer s.tearDown()
	}
	if err != nil {
		return err
	}
	r, err := s.measure(ctx, o)
	if err != nil {
		return err
	}
	return rig.Output{Write: o.write, Section: "decisions", JSON: o.json}.Show(r)
}

// measure drives every subject once a round.
func (s *setup) measure(ctx context.Context, o options) (*report, error) {
	for _, x := range s.subjects { // connections, scripts and keys are there after this
		if err := x.prepare(ctx); err != nil {
			return nil, fmt.Errorf("prepare %s: %w", x.name, err)
		}
		if _, err := s.drive(ctx, o, x, 200*time.Millisecond); err != nil {
			return nil, fmt.Errorf("warm up %s: %w", x.name, err)
		}
	}
	samples := make([][]sample, len(s.subjects))
	for round := range o.rounds {
		if round%10 == 0 {
			fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, o.rounds)
		}
		for i, x := range s.subjects {
			m, err := s.drive(ctx, o, x, o.time)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", x.name, err)
			}
			samples[i] = append(samples[i], m)
		}
	}
	return newReport(s, o, samples), nil
}

// A sample is one subject in one round.
type sample struct {
	rate   float64 // calls per second
	cpu    float64 // µs of the process of Redis per call
	script float64 // of that, µs inside of EVALSHA
}

// drive makes calls until d has passed; the first failure ends it.
func (s *setup) drive(ctx context.Context, o options, x *subject, d time.Duration) (sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	micros, _, err := rig.ScriptTime(ctx, s.look)
	if err != nil {
		return sample{}, err
	}
	before, err := rig.RedisCPU(ctx, s.look)
	if err != nil {
		return sample{}, err
	}
	var done atomic.Bool
	var calls atomic.Int64
	start := time.Now()
	defer time.AfterFunc(d, func() { done.Store(true) }).Stop()
	var all sync.WaitGroup
	for range o.callers {
		call := x.caller()
		all.Go(func() {
			n := int64(0)
			for !done.Load() && ctx.Err() == nil {
				// Every subject goes through its keys in the same order.
				if err := call(ctx, int(x.next.Add(1))); err != nil {
					cancel(err)
					return
				}
				n++
			}
			calls.Add(n)
		})
	}
	all.Wait()
	elapsed := time.Since(start)
	if err := context.Cause(ctx); err != nil {
		return sample{}, err
	}
	after, err := rig.RedisCPU(ctx, s.look)
	if err != nil {
		return sample{}, err
	}
	micros2, _, err := rig.ScriptTime(ctx, s.look)
	if err != nil {
		return sample{}, err
	}
	n := float64(calls.Load())
	return sample{
		rate:   n / elapsed.Seconds(),
		cpu:    float64((after - before).Microseconds()) / n,
		script: float64(micros2-micros) / n,
	}, nil
}
