package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/bench/internal/rig"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
)

// users are charged in turn.
const users = 10_000

// bareScript counts requests and decides nothing.
const bareScript = `local n = redis.call('INCR', KEYS[1])
redis.call('EXPIRE', KEYS[1], ARGV[1])
return n`

// A setup is a Redis and everything that is measured on it.
type setup struct {
	dir      string
	redis    *rig.Process
	client   *redis.Client // of the bare script
	look     *redis.Client // for questions about the server
	store    *redisstore.Store
	who      []string
	subjects []*subject
}

// A subject is one way to spend the CPU of Redis.
type subject struct {
	name, verdict string
	limits        int // 0: no decision

	prepare func(context.Context) error
	// caller returns a function for one goroutine, which makes the i-th call of
	// the subject.
	caller func() func(ctx context.Context, i int) error
	next   atomic.Int64
}

// setUp starts everything. The setup is not nil if something has to be torn
// down, even beside an error.
func setUp(ctx context.Context, o options) (*setup, error) {
	dir, err := os.MkdirTemp("", "bouncer-decisions-")
	if err != nil {
		return nil, err
	}
	s := &setup{dir: dir}
	process, address, err := rig.StartRedis(ctx, dir)
	if err != nil {
		return s, err
	}
	s.redis = process
	newClient := func() (*redis.Client, error) {
		// A saturated machine may take longer than a gateway would wait.
		return redisstore.NewClient(redisstore.ClientOptions{Address: address, Timeout: 5 * time.Second, PoolSize: o.callers})
	}
	if s.client, err = newClient(); err != nil {
		return s, err
	}
	if s.look, err = newClient(); err != nil {
		return s, err
	}
	client, err := newClient()
	if err != nil {
		return s, err
	}
	if s.store, err = redisstore.New(client, redisstore.Options{Timeout: 5 * time.Second}); err != nil {
		_ = client.Close() // never used
		return s, err
	}
	for i := range users {
		s.who = append(s.who, user(i))
	}
	return s, s.addSubjects(ctx)
}

func user(i int) string {
	return ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: "u" + strconv.Itoa(1_000_000+i)})
}

// tearDown ends everything.
func (s *setup) tearDown() {
	for _, c := range []*redis.Client{s.client, s.look} {
		if c != nil {
			_ = c.Close() // nothing is under way
		}
	}
	if s.store != nil {
		_ = s.store.Close()
	}
	if s.redis != nil {
		s.redis.Stop()
	}
	_ = os.RemoveAll(s.dir) // what is left in a temporary directory hurts nobody
}

// Names that the verdicts of the report look for.
const (
	admitted = "admitted"
	denied   = "denied"
	bare     = "bare INCR+EXPIRE"
	newKeys  = ", a new key each time"
)

func (s *setup) addSubjects(ctx context.Context) error {
	if err := s.addBare(ctx); err != nil {
		return err
	}
	if err := s.addDecisions(); err != nil {
		return err
	}
	return s.addFloor(ctx)
}

func (s *setup) addDecisions() error {
	for _, a := range []ratelimit.Algorithm{
		// What has a bar stands next to the bare script, also in time.
		ratelimit.TokenBucket, ratelimit.FixedWindow, ratelimit.SlidingWindowLog,
		ratelimit.SlidingWindowCounter, ratelimit.LeakyBucket,
	} {
		counts := []int{1}
		if a == ratelimit.TokenBucket {
			counts = []int{1, 4, 2}
		}
		for _, verdict := range []string{admitted, denied} {
			for _, n := range counts {
				if err := s.addDecision(a, n, verdict); err != nil {
					return err
				}
			}
		}
	}
	return s.addNewcomers()
}

// addBare adds the bare script, the first subject: the ratios are to it.
func (s *setup) addBare(ctx context.Context) error {
	sha, err := s.look.ScriptLoad(ctx, bareScript).Result()
	if err != nil {
		return err
	}
	known := func(i int) []any { return []any{"evalsha", sha, "1", "bare:" + s.who[i%users], "3600"} }
	x := s.addCommand(bare, known)
	x.prepare = func(ctx context.Context) error { return s.each(ctx, x.caller) }
	return nil
}

// addFloor adds what is there to compare the parts of the cost with.
func (s *setup) addFloor(ctx context.Context) error {
	bareSHA, err := s.look.ScriptLoad(ctx, bareScript).Result()
	if err != nil {
		return err
	}
	emptySHA, err := s.look.ScriptLoad(ctx, "return 1").Result()
	if err != nil {
		return err
	}
	s.addCommand(bare+newKeys, func(i int) []any { return []any{"evalsha", bareSHA, "1", "new:" + user(i), "60"} })
	s.addCommand("a script that does nothing", func(i int) []any {
		return []any{"evalsha", emptySHA, "1", "bare:" + s.who[i%users], "3600"}
	})
	s.addCommand("PING", func(int) []any { return []any{"ping"} })
	return nil
}

// addCommand adds a command that decides nothing.
func (s *setup) addCommand(name string, args func(i int) []any) *subject {
	x := &subject{
		name:    name,
		prepare: func(context.Context) error { return nil },
		caller: func() func(context.Context, int) error {
			return func(ctx context.Context, i int) error {
				return s.client.Process(ctx, redis.NewCmd(ctx, args(i)...))
			}
		},
	}
	s.subjects = append(s.subjects, x)
	return x
}

// addDecision adds n limits of one algorithm in one call.
func (s *setup) addDecision(a ratelimit.Algorithm, n int, verdict string) error {
	// Admitted: no user comes near to it, and what was spent is never all back.
	// Denied: prepare spends it all, and nothing of it is back for hours.
	quota, window := int64(10_000), time.Hour
	if verdict == denied {
		quota, window = 100, 30*24*time.Hour
	}
	policies := make([]*ratelimit.Policy, n)
	for i := range policies {
		spec := ratelimit.Policy{
			Name: "limit", Scope: fmt.Sprintf("plan/%s-%d-of-%d", verdict, i+1, n),
			Algorithm: a, Quota: quota, Window: window,
		}
		if a == ratelimit.LeakyBucket {
			spec.Queue = quota - 1
		}
		var err error
		if policies[i], err = ratelimit.NewPolicy(spec); err != nil {
			return err
		}
	}
	x := &subject{name: a.String(), verdict: verdict, limits: n}
	take := func(want bool, cost int64) func(context.Context, int) error {
		return s.taker(policies, cost, want, func(i int) string { return s.who[i%users] })
	}
	x.prepare = func(ctx context.Context) error {
		cost := int64(1) // so that all keys are there
		if verdict == denied {
			cost = quota
		}
		return s.each(ctx, func() func(context.Context, int) error { return take(true, cost) })
	}
	x.caller = func() func(context.Context, int) error { return take(verdict == admitted, 1) }
	s.subjects = append(s.subjects, x)
	return nil
}

// addNewcomers adds a token bucket that nobody has been charged in: each key is
// made, and given an expiry. Callers who come less often than their bucket
// refills are all of this kind.
func (s *setup) addNewcomers() error {
	p, err := ratelimit.NewPolicy(ratelimit.Policy{
		Name: "limit", Scope: "plan/newcomers", Algorithm: ratelimit.TokenBucket, Quota: 100, Window: time.Minute,
	})
	if err != nil {
		return err
	}
	s.subjects = append(s.subjects, &subject{
		name: ratelimit.TokenBucket.String() + newKeys, verdict: admitted, limits: 1,
		prepare: func(context.Context) error { return nil },
		caller: func() func(context.Context, int) error {
			return s.taker([]*ratelimit.Policy{p}, 1, true, user)
		},
	})
	return nil
}

// taker returns a function that charges all policies, and fails if the verdict
// is not what is wanted. It is for one goroutine.
func (s *setup) taker(policies []*ratelimit.Policy, cost int64, want bool, who func(i int) string) func(context.Context, int) error {
	charges := make([]ratelimit.Charge, len(policies))
	decisions := make([]ratelimit.Decision, 0, len(policies))
	return func(ctx context.Context, i int) error {
		caller := who(i)
		for j, p := range policies {
			charges[j] = ratelimit.Charge{Policy: p, Partition: caller, Caller: caller, Cost: cost}
		}
		var err error
		decisions, err = s.store.Take(ctx, charges, decisions)
		if err != nil {
			return err
		}
		if got := ratelimit.Admitted(decisions); got != want {
			return fmt.Errorf("call %d for %s: admitted %t, want %t", i, caller, got, want)
		}
		return nil
	}
}

// each makes one call for each user, several at once.
func (s *setup) each(ctx context.Context, caller func() func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		call := caller()
		all.Go(func() {
			for i := int(next.Add(1)); i <= users && ctx.Err() == nil; i = int(next.Add(1)) {
				if err := call(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
