package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
	"bouncer/internal/redistest"
)

// bareScript is the cheapest limiter that anybody runs in Redis: a counter with
// an expiry, decided by nobody. It is the yardstick of the benchmarks below.
const bareScript = `local n = redis.call('INCR', KEYS[1])
redis.call('EXPIRE', KEYS[1], ARGV[1])
return n`

const (
	benchCallers = 8      // calls under way at once
	benchKeys    = 10_000 // callers that are charged in turn
	benchRounds  = 15     // of each contender, in turn
	benchCalls   = 4_000  // of one round
)

// A contender is one way to spend the CPU of Redis.
type contender struct {
	name string
	call func(ctx context.Context, key int) error
	// µs of the server for each call, one number for each round: all the
	// process used, and the part of it in which commands were run.
	process, command []float64
}

// BenchmarkRedisCPU shows what a decision costs Redis beside the bare script, on
// the same server in the same run: the CPU of the whole process, which is what
// an operator pays, and of that the time inside of commands. The contenders take
// turns, so that what else the machine does meets all of them; each number is
// the median of the rounds.
func BenchmarkRedisCPU(b *testing.B) {
	srv := redistest.Start(b)
	store := at(b, srv.Addr())
	look := srv.Client(b)
	client := srv.Client(b)
	sha := look.ScriptLoad(b.Context(), bareScript).Val()

	who := make([]string, benchKeys)
	for i := range who {
		who[i] = ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: "u" + strconv.Itoa(i)})
	}
	limits := func(n int, algorithm ratelimit.Algorithm) []*ratelimit.Policy {
		ps := make([]*ratelimit.Policy, n)
		for i := range ps {
			spec := ratelimit.Policy{
				Scope: fmt.Sprintf("plan/limit-%d", i), Algorithm: algorithm,
				Quota: 1000, Window: time.Hour,
			}
			if algorithm == ratelimit.LeakyBucket {
				spec.Queue = 999
			}
			ps[i] = newPolicy(b, spec)
		}
		return ps
	}
	take := func(ps []*ratelimit.Policy) func(context.Context, int) error {
		return func(ctx context.Context, key int) error {
			cs := make([]ratelimit.Charge, len(ps))
			for i, p := range ps {
				cs[i] = ratelimit.Charge{Policy: p, Partition: who[key], Caller: who[key], Cost: 1}
			}
			_, err := store.Take(ctx, cs, nil)
			return err
		}
	}
	bare := func(ctx context.Context, key int) error {
		return client.Process(ctx, redis.NewCmd(ctx, "evalsha", sha, "1", "bare:"+who[key], "3600"))
	}
	contenders := []*contender{
		{name: "bare", call: bare},
		{name: "token_bucket/limits=1", call: take(limits(1, ratelimit.TokenBucket))},
		{name: "token_bucket/limits=2", call: take(limits(2, ratelimit.TokenBucket))},
		{name: "token_bucket/limits=4", call: take(limits(4, ratelimit.TokenBucket))},
	}
	for _, a := range []ratelimit.Algorithm{
		ratelimit.FixedWindow, ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.LeakyBucket,
	} {
		contenders = append(contenders, &contender{name: a.String() + "/limits=1", call: take(limits(1, a))})
	}
	for b.Loop() {
		for round := range benchRounds {
			for _, c := range contenders {
				c.round(b, look, round)
			}
		}
	}
	base := contenders[0]
	for _, c := range contenders {
		b.Logf("%-32s process %6.2f µs (%.2f × bare)   commands %6.2f µs (%.2f × bare)", c.name,
			median(c.process), median(c.process)/median(base.process),
			median(c.command), median(c.command)/median(base.command))
	}
	one, four := contenders[1], contenders[3]
	b.ReportMetric(median(one.process)/median(base.process), "×bare/1-limit")
	b.ReportMetric(median(four.process)/(4*median(one.process)), "×4-calls/4-limits")
}

// round makes the calls of one round and notes what they cost.
func (c *contender) round(b *testing.B, look *redis.Client, round int) {
	b.Helper()
	var next atomic.Int64
	run := func(calls int64) {
		next.Store(0)
		var wg sync.WaitGroup
		for range benchCallers {
			wg.Go(func() {
				for i := next.Add(1); i <= calls; i = next.Add(1) {
					if err := c.call(context.Background(), (round*benchCalls+int(i))%benchKeys); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	run(200) // connections and caches are warm
	cpu, command := redisCPU(b, look)
	run(benchCalls)
	cpu2, command2 := redisCPU(b, look)
	c.process = append(c.process, (cpu2-cpu)/benchCalls)
	c.command = append(c.command, (command2-command)/benchCalls)
}

// redisCPU returns the µs of CPU that the server's process has used, and the µs
// that scripts have run.
func redisCPU(b *testing.B, look *redis.Client) (process, command float64) {
	b.Helper()
	info, err := look.Info(b.Context(), "cpu", "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	number := func(s string) float64 {
		f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil {
			b.Fatal(err)
		}
		return f
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "used_cpu_user", "used_cpu_sys":
			process += 1e6 * number(value)
		case "cmdstat_evalsha":
			_, value, _ = strings.Cut(value, "usec=")
			value, _, _ = strings.Cut(value, ",")
			command = number(value)
		}
	}
	return process, command
}

func median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	return xs[len(xs)/2]
}
