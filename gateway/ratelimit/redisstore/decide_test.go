package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/limittest"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// A reference is a store in a map, decided by ratelimit.Decide.
type reference struct {
	buckets map[string]ratelimit.State
}

func (r *reference) take(now int64, charges []ratelimit.Charge) []ratelimit.Decision {
	slots := make([]ratelimit.Slot, len(charges))
	first := map[string]int{}
	for i, c := range charges {
		key := c.Partition + c.Policy.Key()
		if _, ok := first[key]; !ok {
			first[key] = i
		}
		slots[i] = ratelimit.Slot{First: first[key], State: r.buckets[key]}
	}
	ds := ratelimit.Decide(nil, ratelimit.SourceRedis, now, charges, slots)
	for key, i := range first {
		if slots[i].Charged != nil {
			r.buckets[key] = slots[i].After
		}
	}
	return ds
}

// virtual returns a store on one Redis whose time is clock's.
func virtual(t testing.TB, srv *redistest.Server, clock *limittest.Clock) *redisstore.Store {
	t.Helper()
	client, err := redisstore.NewClient(redisstore.ClientOptions{Network: "unix", Address: srv.Socket(), Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	return virtualOn(t, client, clock)
}

// virtualCluster is the same on a cluster.
func virtualCluster(t testing.TB, c *redistest.Cluster, clock *limittest.Clock) *redisstore.Store {
	t.Helper()
	client, err := redisstore.NewClusterClient(c.Addrs(), redisstore.ClientOptions{Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	return virtualOn(t, client, clock)
}

func virtualOn(t testing.TB, client redis.UniversalClient, clock *limittest.Clock) *redisstore.Store {
	t.Helper()
	// Each part has a prefix of its own on the one server.
	prefix := "rl." + strings.Map(plain, t.Name())
	store, err := redisstore.NewVirtual(client, redisstore.Options{Timeout: generous, KeyPrefix: prefix}, clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	return closed(t, store)
}

// TestDecidesAsDecide drives the scripts and ratelimit.Decide with the same
// random lists of charges: all algorithms, calendars, roles, rejections that are
// counted, several charges on one bucket, and a clock that stands still, jumps
// and goes back. Every number of every decision is the same.
func TestDecidesAsDecide(t *testing.T) {
	srv := redistest.Start(t)
	clock := limittest.NewClock()
	decideAlike(t, virtual(t, srv, clock), clock, []string{"{user:priya123}"})
	everyKeyExpires(t, srv.Client(t))
}

// TestClusterDecidesAsDecide is the same where the charges of a list live on
// several nodes: what a slot charged for a request that another one denies is
// given back to the unit, and described so.
func TestClusterDecidesAsDecide(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	clock := limittest.NewClock()
	decideAlike(t, virtualCluster(t, c, clock), clock, []string{"{user:priya123}", "{tenant:acme}", "{global}", "{ip:192.0.2.7}"})
	for _, node := range c.Nodes {
		everyKeyExpires(t, node.Client(t))
	}
}

func decideAlike(t *testing.T, store *redisstore.Store, clock *limittest.Clock, partitions []string) {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("LIMITTEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LIMITTEST_SEED=%d repeats it", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	model := &reference{buckets: map[string]ratelimit.State{}}
	var latest int64
	for chapter := range 60 {
		limits := make([][]*ratelimit.Policy, 4)
		for i := range limits {
			limits[i] = randomLimit(t, rnd, fmt.Sprintf("c%d-%d", chapter, i), len(partitions) > 1)
		}
		var waits []time.Duration
		var past []string
		for step := range 100 {
			switch rnd.IntN(8) {
			case 0, 1, 2:
			case 3:
				clock.Advance(time.Duration(rnd.Int64N(5_000_000)) * time.Microsecond)
			case 4:
				// Not so far that a state may have been forgotten.
				// What was charged and given back leaves out what had ended.
				if back := rnd.Int64N(900_000); len(partitions) == 1 && clock.Now()-back > latest-1_000_000 {
					clock.Advance(-time.Duration(back) * time.Microsecond)
				}
			case 5:
				clock.Advance(time.Duration(rnd.Int64N(100_000_000)) * time.Microsecond)
			default:
				if len(waits) > 0 {
					if w := waits[rnd.IntN(len(waits))]; w > 0 && w < 40*24*time.Hour {
						clock.Advance(w + time.Duration(rnd.IntN(3)-1)*time.Microsecond)
					}
				}
			}
			now := clock.Now()
			latest = max(latest, now)
			charges := randomCharges(rnd, limits, partitions, now)
			want := model.take(now, charges)
			got := mustTake(t, store, charges)
			past = append(past, describe(step, charges, want))
			waits = waits[:0]
			for i := range charges {
				waits = append(waits, want[i].Reset, want[i].RetryAfter)
				if got[i] != want[i] {
					t.Fatalf("chapter %d, LIMITTEST_SEED=%d; charge %d:\n got %+v\nwant %+v\nafter\n%s",
						chapter, seed, i+1, got[i], want[i], strings.Join(past[max(0, len(past)-6):], "\n"))
				}
			}
		}
	}
}

// randomLimit returns a limit in some versions of it, each with its candidate or
// nil.
func randomLimit(t testing.TB, rnd *rand.Rand, name string, spread bool) (versions []*ratelimit.Policy) {
	t.Helper()
	spec := ratelimit.Policy{
		Name: name, Scope: "plan/" + name,
		Algorithm: ratelimit.Algorithm(1 + rnd.IntN(5)),
		Window:    time.Duration(1+rnd.IntN(100)) * time.Second,
	}
	if spread && spec.Algorithm == ratelimit.LeakyBucket {
		spec.Algorithm = ratelimit.TokenBucket // drips are not given back
	}
	if rnd.IntN(4) == 0 {
		spec.Window = []time.Duration{time.Second, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour}[rnd.IntN(4)]
	}
	if spec.Algorithm == ratelimit.FixedWindow && rnd.IntN(2) == 0 {
		zone, err := time.LoadLocation([]string{"UTC", "Asia/Kolkata", "America/New_York"}[rnd.IntN(3)])
		if err != nil {
			t.Fatal(err)
		}
		spec.Window = 0
		spec.Calendar = &ratelimit.Calendar{Unit: ratelimit.CalendarUnit(1 + rnd.IntN(5)), Location: zone, WeekStart: time.Monday}
	}
	for len(versions) < 3 {
		spec.Quota = rnd.Int64N(12)
		if rnd.IntN(6) == 0 {
			spec.Quota = rnd.Int64N(1_000_000_000)
			if rnd.IntN(2) == 0 {
				spec.Quota = rnd.Int64N(ratelimit.MaxQuota)
			}
			if spec.Algorithm == ratelimit.SlidingWindowLog {
				spec.Quota %= 3000
			}
		}
		spec.Burst, spec.Queue, spec.MaxDelay = 0, 0, 0
		switch spec.Algorithm {
		case ratelimit.TokenBucket:
			spec.Burst = 1 + rnd.Int64N(20)
		case ratelimit.LeakyBucket:
			spec.Queue = rnd.Int64N(20)
			if rnd.IntN(2) == 0 {
				spec.MaxDelay = time.Duration(rnd.Int64N(30_000_000)) * time.Microsecond
			}
		}
		spec.CountRejected = rnd.IntN(3) == 0
		spec.Role = ratelimit.Enforce
		if rnd.IntN(4) == 0 {
			spec.Role = ratelimit.Shadow
		}
		if spread && spec.Role == ratelimit.Shadow {
			// Denied by itself, it is filled up if the request is rejected; its
			// own slot does not know that of another.
			spec.CountRejected = false
		}
		if p, err := ratelimit.NewPolicy(spec); err == nil {
			versions = append(versions, p)
		}
	}
	return versions
}

// candidateOf returns p with another number, on trial beside it.
func candidateOf(p *ratelimit.Policy, quota int64) *ratelimit.Policy {
	spec := *p
	spec.Role, spec.CountRejected, spec.Quota = ratelimit.Candidate, false, quota
	made, err := ratelimit.NewPolicy(spec)
	if err != nil {
		return nil
	}
	return made
}

func randomCharges(rnd *rand.Rand, limits [][]*ratelimit.Policy, partitions []string, now int64) (cs []ratelimit.Charge) {
	version := rnd.IntN(3)
	if len(partitions) > 1 {
		// A charge that is given back leaves its bucket as it stood by the numbers
		// of its plan; those of another would show that.
		version = 0
	}
	for range 1 + rnd.IntN(4) {
		l := rnd.IntN(len(limits))
		p := limits[l][version]
		c := ratelimit.Charge{Policy: p, Partition: partitions[l%len(partitions)], Cost: 1}
		switch rnd.IntN(8) {
		case 0:
			c.Cost = 0
		case 1, 2:
			c.Cost = 1 + rnd.Int64N(5)
		case 3:
			c.Cost = max(1, p.Capacity()/2)
		case 4:
			c.Cost = max(1, p.Capacity()+rnd.Int64N(2))
		}
		if len(partitions) > 1 && p.CountRejected {
			c.Cost = min(c.Cost, 1) // above it, RetryAfter is a lower bound
		}
		if p.Calendar != nil {
			// This instance's clock is some seconds apart.
			c.Windows = p.Calendar.Windows(now + rnd.Int64N(10_000_000) - 5_000_000)
		}
		cs = append(cs, c)
		if rnd.IntN(4) == 0 {
			quota := rnd.Int64N(15)
			if len(partitions) > 1 {
				quota = 1 + p.Quota/2 // the same each time
			}
			if twin := candidateOf(p, quota); twin != nil {
				c.Policy = twin
				cs = append(cs, c)
			}
		}
	}
	// Candidates of one limit with different numbers share a bucket; one list has
	// one of each.
	seen := map[string]*ratelimit.Policy{}
	kept, twin := cs[:0], false
	for _, c := range cs {
		if c.Policy.Role == ratelimit.Candidate && !twin {
			continue
		}
		twin = false
		q := seen[c.Policy.Key()]
		if q != nil && (q.Quota != c.Policy.Quota || len(partitions) > 1 && q.CountRejected) {
			continue
		}
		if q != nil && len(partitions) > 1 {
			c.Policy = q
		}
		seen[c.Policy.Key()] = c.Policy
		kept, twin = append(kept, c), true
	}
	return kept
}

// describe shows a step.
func describe(step int, charges []ratelimit.Charge, ds []ratelimit.Decision) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  step %d:", step)
	for i, c := range charges {
		p := c.Policy
		fmt.Fprintf(&b, "\n    %s:%s %d of %d (capacity %d, %s, counted %t): allowed %t, remaining %d, reset %s, retry after %s",
			c.Partition, p.Key(), c.Cost, p.Quota, p.Capacity(), p.Role, p.CountRejected,
			ds[i].Allowed, ds[i].Remaining, ds[i].Reset, ds[i].RetryAfter)
	}
	return b.String()
}
