package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/lease"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// A lossy store hands calls on and loses some answers: the server has done what
// was asked, and nobody here knows.
type lossy struct {
	lease.Store
	mu  sync.Mutex
	rnd *rand.Rand
}

var errLost = errors.New("the answer was lost")

func (l *lossy) loses() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rnd.IntN(20) == 0
}

func (l *lossy) Lend(ctx context.Context, charges []ratelimit.Charge, extra []int64, dst []ratelimit.Decision, blocks []ratelimit.Block) ([]ratelimit.Decision, []ratelimit.Block, error) {
	ds, got, err := l.Store.Lend(ctx, charges, extra, dst, blocks)
	if l.loses() {
		clear(got)
		return dst[:0], got, errLost
	}
	return ds, got, err
}

func (l *lossy) Return(ctx context.Context, blocks []ratelimit.Block) (int64, error) {
	stranded, err := l.Store.Return(ctx, blocks)
	if l.loses() {
		for _, b := range blocks {
			stranded += b.Units
		}
		return stranded, errLost
	}
	return stranded, err
}

// An admission is units that were let through: at some moment between from and to,
// by the clock of this process.
type admission struct {
	from, to time.Duration
	units    int64
}

// Several holders, random costs, answers that are lost, and one that dies now and
// then and forgets its blocks: no span of time sees more than the rule allows in it and
// one TTL, to the unit, and windows see what they grant.
func TestHoldersNeverAdmitMoreThanTheRule(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of real time")
	}
	const ttl = 100 * time.Millisecond
	srv := redistest.Start(t)
	for _, spec := range []ratelimit.Policy{
		{Algorithm: ratelimit.TokenBucket, Quota: 300, Burst: 60, Window: time.Second},
		{Algorithm: ratelimit.FixedWindow, Quota: 200, Window: time.Second},
		{Algorithm: ratelimit.SlidingWindowLog, Quota: 200, Window: time.Second},
		{Algorithm: ratelimit.SlidingWindowCounter, Quota: 200, Window: time.Second},
	} {
		for _, size := range []int64{0, 25} {
			spec.Lease = ratelimit.Lease{TTL: ttl, Size: size}
			p := policy(t, spec)
			t.Run(fmt.Sprintf("%s/%d", p.Algorithm, size), func(t *testing.T) {
				t.Parallel()
				who := fmt.Sprintf("{tenant:%d}", size)
				began := time.Now()
				var mu sync.Mutex
				var all []admission
				local, denied := 0, 0
				var holders sync.WaitGroup
				for holder := range 4 {
					holders.Go(func() {
						rnd := rand.New(rand.NewPCG(uint64(holder), uint64(size)))
						client, err := redisstore.NewClient(redisstore.ClientOptions{Network: "unix", Address: srv.Socket(), Timeout: 10 * time.Second})
						if err != nil {
							t.Error(err)
							return
						}
						store, err := redisstore.New(client, redisstore.Options{Timeout: 10 * time.Second})
						if err != nil {
							t.Error(err)
							return
						}
						defer func() { _ = store.Close() }()
						life := func() *lease.Leases {
							l, err := lease.New(&lossy{Store: store, rnd: rand.New(rand.NewPCG(rnd.Uint64(), 1))}, lease.Options{Instances: func() int { return 2 }})
							if err != nil {
								t.Error(err)
							}
							return l
						}
						l := life()
						l.Start()
						for time.Since(began) < 1500*time.Millisecond {
							if rnd.IntN(200) == 0 {
								// It dies: what it holds is never returned.
								dead := l
								defer dead.Close()
								l = life()
								if rnd.IntN(2) == 0 {
									l.Start()
								}
							}
							cost := 1 + rnd.Int64N(3)
							a := admission{units: cost, from: time.Since(began)}
							ds, err := l.Take(context.Background(), []ratelimit.Charge{{Policy: p, Partition: who, Caller: who, Cost: cost}}, nil)
							a.to = time.Since(began)
							mu.Lock()
							switch {
							case errors.Is(err, errLost):
							case err != nil:
								t.Error(err)
							case !ds[0].Allowed:
								denied++
							default:
								all = append(all, a)
								if ds[0].Source == ratelimit.SourceLease {
									local++
								}
							}
							mu.Unlock()
							wait := time.Duration(rnd.Int64N(int64(2 * time.Millisecond)))
							if err == nil && !ds[0].Allowed {
								wait = min(ds[0].RetryAfter, 20*time.Millisecond) // as told, so that units gather
							}
							time.Sleep(wait)
						}
						l.Close()
					})
				}
				holders.Wait()
				t.Logf("%d were admitted, %d of them from blocks, and %d denied", len(all), local, denied)
				if local < 5 || denied < 5 {
					t.Errorf("%d were paid from blocks and %d denied; the test shows little", local, denied)
				}
				judge(t, p, ttl, all)
			})
		}
	}
	t.Cleanup(func() {
		rdb := srv.Client(t)
		for _, k := range rdb.Keys(context.Background(), "*").Val() {
			if rdb.PTTL(context.Background(), k).Val() == -1 {
				t.Errorf("key %q has no expiry", k)
			}
		}
	})
}

// judge holds every span of time against the rule. Of each admission only is
// counted what surely lies within the span.
func judge(t *testing.T, p *ratelimit.Policy, ttl time.Duration, all []admission) {
	t.Helper()
	slices.SortFunc(all, func(a, b admission) int { return int(a.from - b.from) })
	for i := range all {
		units, end := int64(0), time.Duration(0)
		for _, a := range all[i:] {
			units, end = units+a.units, max(end, a.to)
			// What was admitted within dt was charged within dt and a TTL before.
			span := end - all[i].from + ttl
			if most := grants(p, span); units > most {
				t.Fatalf("%d units were admitted within %s, which grants %d with a TTL more", units, end-all[i].from, most)
			}
		}
	}
}

// grants is the most that a policy admits in any span.
func grants(p *ratelimit.Policy, span time.Duration) int64 {
	windows := int64(span / p.Window)
	switch p.Algorithm {
	case ratelimit.TokenBucket:
		return p.Burst + int64(span)*p.Quota/int64(p.Window)
	case ratelimit.SlidingWindowLog:
		return p.Quota * (windows + 1)
	default: // edges of windows lie anywhere
		return p.Quota * (windows + 2)
	}
}
