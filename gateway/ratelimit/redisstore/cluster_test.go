package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// onCluster returns a store on a cluster, closed when t is over.
func onCluster(t testing.TB, c *redistest.Cluster, o redisstore.Options) *redisstore.Store {
	t.Helper()
	client, err := redisstore.NewClusterClient(c.Addrs(), redisstore.ClientOptions{Timeout: o.Timeout})
	if err != nil {
		t.Fatal(err)
	}
	return storeOn(t, client, o)
}

// everyAlgorithm returns a limit of quota units in an hour by each algorithm, and
// none of them comes back within the time of a test.
func everyAlgorithm(t testing.TB, quota int64) []*ratelimit.Policy {
	t.Helper()
	day := &ratelimit.Calendar{Unit: ratelimit.CalendarMonth, Location: time.UTC}
	specs := []ratelimit.Policy{
		{Algorithm: ratelimit.TokenBucket, Quota: 1, Burst: quota},
		{Algorithm: ratelimit.FixedWindow, Quota: quota},
		{Algorithm: ratelimit.FixedWindow, Quota: quota, Calendar: day},
		{Algorithm: ratelimit.SlidingWindowLog, Quota: quota},
		{Algorithm: ratelimit.SlidingWindowCounter, Quota: quota},
		{Algorithm: ratelimit.LeakyBucket, Quota: 1, Queue: quota - 1},
	}
	ps := make([]*ratelimit.Policy, len(specs))
	for i, spec := range specs {
		spec.Scope = fmt.Sprintf("plan/limit-%d", i)
		if spec.Calendar == nil {
			spec.Window = 30 * 24 * time.Hour
		}
		ps[i] = newPolicy(t, spec)
	}
	return ps
}

func name(p *ratelimit.Policy) string {
	if p.Calendar != nil {
		return "calendar"
	}
	return p.Algorithm.String()
}

// partitionsOnNodes returns a partition on each node of the cluster.
func partitionsOnNodes(t testing.TB, c *redistest.Cluster) []string {
	t.Helper()
	found := make([]string, len(c.Nodes))
	for i, left := 0, len(found); left > 0; i++ {
		partition := ratelimit.Partition(ratelimit.Part{Dimension: "tenant", Value: strconv.Itoa(i)})
		node := c.NodeOf(t, partition)
		for n := range c.Nodes {
			if node == c.Nodes[n] && found[n] == "" {
				found[n] = partition
				left--
			}
		}
	}
	return found
}

func in(partition string, p *ratelimit.Policy, cost int64) ratelimit.Charge {
	return ratelimit.Charge{Policy: p, Partition: partition, Caller: partition, Cost: cost}
}

// TestSlotIsThatOfRedis compares with what a server says, for keys of all kinds.
func TestSlotIsThatOfRedis(t *testing.T) {
	look := redistest.StartCluster(t, 1).Nodes[0].Client(t)
	for _, key := range []string{
		"", "a", "foo", "{user:1}", "rl:v1:{user:priya123}:plan/x", "{}", "{}a", "a{b", "a}b{c}", "{{x}}", "{a}{b}", "\x00{\xff}\r\n",
		strings.Repeat("x", 4096),
	} {
		want, err := look.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got := redisstore.Slot(key); int64(got) != want {
			t.Errorf("%.40q: slot %d; want %d", key, got, want)
		}
	}
}

// TestOneCallForEachSlot: limits of one caller are one call as on one Redis;
// those of three subjects are three.
func TestOneCallForEachSlot(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	store := onCluster(t, c, redisstore.Options{Timeout: generous})
	at := partitionsOnNodes(t, c)
	minute, day := perMinute(t), perDay(t)
	one := []ratelimit.Charge{in(at[0], minute, 1), in(at[0], day, 1)}
	three := []ratelimit.Charge{in(at[0], minute, 1), in(at[1], day, 1), in(at[2], minute, 1), in(at[0], day, 1), in(at[2], day, 1)}
	mustTake(t, store, one)
	mustTake(t, store, three) // the nodes know the scripts
	mustTake(t, store, three)
	for _, want := range []struct {
		charges []ratelimit.Charge
		calls   [3]int
	}{{one, [3]int{1, 0, 0}}, {three, [3]int{1, 1, 1}}} {
		for _, node := range c.Nodes {
			resetStats(t, node.Client(t))
		}
		if ds := mustTake(t, store, want.charges); !ratelimit.Admitted(ds) || len(ds) != len(want.charges) {
			t.Fatalf("decisions: %+v", ds)
		}
		for i, node := range c.Nodes {
			got := commandCalls(t, node.Client(t))
			if got["evalsha"] != want.calls[i] || got["eval"] != 0 {
				t.Errorf("node %d: %v; want %d evalsha", i, got, want.calls[i])
			}
		}
	}
}

// TestExactlyAsManyByEveryAlgorithm: fifty callers on three gateways, on one
// Redis and on a cluster where each request has limits on two nodes.
func TestExactlyAsManyByEveryAlgorithm(t *testing.T) {
	const callers, each, quota = 50, 4, 60
	exactly := func(t *testing.T, stores []*redisstore.Store, at []string) {
		t.Helper()
		for _, p := range everyAlgorithm(t, quota) {
			wide := newPolicy(t, ratelimit.Policy{
				Scope: "plan/wide-" + p.Name, Algorithm: ratelimit.FixedWindow, Quota: 1_000_000, Window: 24 * time.Hour,
			})
			charges := []ratelimit.Charge{in(at[0], p, 1), in(at[1], wide, 1)}
			var admitted atomic.Int64
			var wg sync.WaitGroup
			gate := make(chan struct{})
			for i := range callers {
				wg.Go(func() {
					<-gate
					for range each {
						ds, err := stores[i%len(stores)].Take(t.Context(), charges, nil)
						if err != nil {
							t.Error(err)
						} else if ratelimit.Admitted(ds) {
							admitted.Add(1)
						}
					}
				})
			}
			close(gate)
			wg.Wait()
			if n := admitted.Load(); n != quota {
				t.Errorf("%s: %d admitted; want %d", name(p), n, quota)
			}
			// What was charged beside a denial was given back.
			if d := mustTake(t, stores[0], []ratelimit.Charge{in(at[1], wide, 0)})[0]; d.Remaining != 1_000_000-quota {
				t.Errorf("%s: %d units of the other limit are used; want %d", name(p), 1_000_000-d.Remaining, quota)
			}
		}
	}
	t.Run("one", func(t *testing.T) {
		srv := redistest.Start(t)
		exactly(t, []*redisstore.Store{at(t, srv.Addr()), at(t, srv.Addr()), at(t, srv.Addr())}, []string{"{user:a}", "{user:a}"})
		everyKeyExpires(t, srv.Client(t))
	})
	t.Run("cluster", func(t *testing.T) {
		c := redistest.StartCluster(t, 3)
		o := redisstore.Options{Timeout: generous, OnRefundLost: func(err error) { t.Error(err) }}
		exactly(t, []*redisstore.Store{onCluster(t, c, o), onCluster(t, c, o), onCluster(t, c, o)}, partitionsOnNodes(t, c))
		for _, node := range c.Nodes {
			if node.Client(t).DBSize(t.Context()).Val() > 0 {
				everyKeyExpires(t, node.Client(t))
			}
		}
	})
}

// TestADenialLeavesTheOthersWhereTheyWere: user, tenant and global live on three
// nodes and one of them denies. What the others charged is given back, in every
// algorithm that gives back.
func TestADenialLeavesTheOthersWhereTheyWere(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	store := onCluster(t, c, redisstore.Options{Timeout: generous, OnRefundLost: func(err error) { t.Error(err) }})
	at := partitionsOnNodes(t, c)
	off := newPolicy(t, ratelimit.Policy{Scope: "plan/off", Algorithm: ratelimit.FixedWindow, Quota: 0, Window: time.Hour})
	for _, p := range everyAlgorithm(t, 10) {
		for _, spent := range []int64{0, 4} {
			key := "rl:v1:" + at[0] + ":" + p.Key()
			node := c.NodeOf(t, key).Client(t)
			if spent > 0 {
				mustTake(t, store, []ratelimit.Charge{in(at[0], p, spent)})
			}
			before := mustTake(t, store, []ratelimit.Charge{in(at[0], p, 0)})[0]
			ds := mustTake(t, store, []ratelimit.Charge{in(at[0], p, 3), in(at[1], off, 1), in(at[2], perDay(t), 2)})
			if ratelimit.Admitted(ds) || !ds[0].Allowed || ds[1].Allowed || !ds[2].Allowed {
				t.Fatalf("%s: %+v", name(p), ds)
			}
			after := mustTake(t, store, []ratelimit.Charge{in(at[0], p, 0)})[0]
			if p.Algorithm == ratelimit.LeakyBucket {
				if after.Remaining != before.Remaining-3 || ds[0].Remaining != after.Remaining || ds[0].Delay != 0 {
					t.Errorf("%s: %+v, then %+v: drips are not given back", name(p), ds[0], after)
				}
				continue
			}
			if after.Remaining != before.Remaining || ds[0].Remaining != before.Remaining {
				t.Errorf("%s: %d remained, %d was said, %d remain", name(p), before.Remaining, ds[0].Remaining, after.Remaining)
			}
			if n := node.Exists(t.Context(), key).Val(); n != min(spent, 1) {
				t.Errorf("%s: %d keys after %d units", name(p), n, spent)
			}
			if d := mustTake(t, store, []ratelimit.Charge{in(at[2], perDay(t), 0)})[0]; d.Remaining != 100 {
				t.Errorf("the third subject has %d left; want 100", d.Remaining)
			}
		}
	}
}

// TestAFrozenNodeNeverAdmitsMore: a node stands still between charges, answers
// late, and what was charged elsewhere is given back or lost; no limit ever
// admits more than it grants, and slots of the others are served.
func TestAFrozenNodeNeverAdmitsMore(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	var lost atomic.Int64
	store := onCluster(t, c, redisstore.Options{Timeout: 100 * time.Millisecond, OnRefundLost: func(error) { lost.Add(1) }})
	at := partitionsOnNodes(t, c)
	const quota = 40
	for _, p := range everyAlgorithm(t, quota) {
		charges := []ratelimit.Charge{in(at[0], p, 1), in(at[1], p, 1), in(at[2], p, 1)}
		untilTaken(t, store, charges)
		admitted := 1
		var failed int
		for i := range 3 * quota {
			if i%20 == 5 {
				c.Nodes[(i/20)%3].Freeze()
			}
			ds, err := store.Take(t.Context(), charges, nil)
			switch kind := redisstore.Kind(err); {
			case err == nil && ratelimit.Admitted(ds):
				admitted++
			case err == nil:
			case kind == redisstore.KindTimeout || kind == redisstore.KindPool:
				failed++
			default:
				t.Fatalf("%s: %v", name(p), err)
			}
			if i%20 == 5 {
				begun := time.Now()
				other := []ratelimit.Charge{in(at[(i/20+1)%3], perDay(t), 0)}
				if _, err := store.Take(t.Context(), other, nil); err != nil && time.Since(begun) < slack {
					t.Errorf("a healthy slot: %v", err)
				}
				c.Nodes[(i/20)%3].Thaw()
			}
		}
		if admitted > quota || failed == 0 {
			t.Errorf("%s: %d admitted of %d, %d failed", name(p), admitted, quota, failed)
		}
		t.Logf("%s: %d admitted of %d, %d calls failed, %d refunds lost", name(p), admitted, quota, failed, lost.Load())
	}
}

// TestADeadNodeLeavesTheOthers: what lives on a dead node is an error at once;
// everybody else is served.
func TestADeadNodeLeavesTheOthers(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	store := onCluster(t, c, redisstore.Options{Timeout: generous})
	at := partitionsOnNodes(t, c)
	p := perDay(t)
	for _, partition := range at {
		mustTake(t, store, []ratelimit.Charge{in(partition, p, 1)})
	}
	c.Nodes[1].Kill()
	for i := range 20 {
		begun := time.Now()
		_, err := store.Take(t.Context(), []ratelimit.Charge{in(at[1], p, 1)}, nil)
		switch redisstore.Kind(err) {
		case redisstore.KindRefused, redisstore.KindLost, redisstore.KindClusterDown:
		default:
			t.Fatalf("a dead node: %v", err)
		}
		if took := time.Since(begun); took > slack {
			t.Errorf("a dead node was waited for for %s", took)
		}
		ds := mustTake(t, store, []ratelimit.Charge{in(at[0], p, 1)})
		if ds[0].Remaining != int64(98-i) {
			t.Errorf("a healthy slot: %+v", ds[0])
		}
		// A request with a limit on each: the healthy one gets its charge back.
		if _, err := store.Take(t.Context(), []ratelimit.Charge{in(at[1], p, 1), in(at[2], p, 1)}, nil); err == nil {
			t.Error("a request with a dead limit: no error")
		}
	}
	if d := mustTake(t, store, []ratelimit.Charge{in(at[2], p, 0)})[0]; d.Remaining != 99 {
		t.Errorf("beside a dead node: %d left; want 99", d.Remaining)
	}
}

// TestASlotThatMoved: the node says where it went, and the charge happens once,
// there.
func TestASlotThatMoved(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	store := onCluster(t, c, redisstore.Options{Timeout: generous})
	at := partitionsOnNodes(t, c)
	p := perDay(t)
	mustTake(t, store, []ratelimit.Charge{in(at[1], p, 1)}) // knows the slots
	moved := redisstore.Slot(at[0])
	to := c.Nodes[2].Client(t)
	id := to.Do(t.Context(), "cluster", "myid").Val()
	for _, node := range []*redistest.Server{c.Nodes[2], c.Nodes[0], c.Nodes[1]} {
		if err := node.Client(t).Do(t.Context(), "cluster", "setslot", int(moved), "node", id).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(10) {
		if d := mustTake(t, store, []ratelimit.Charge{in(at[0], p, 1)})[0]; d.Remaining != 99-i {
			t.Fatalf("charge %d: %d left; want %d", i, d.Remaining, 99-i)
		}
	}
	if n := to.Exists(t.Context(), "rl:v1:"+at[0]+":"+p.Key()).Val(); n != 1 {
		t.Errorf("the node that has the slot has %d keys", n)
	}
}

// TestClusterLostReplyIsChargedOnce: go-redis would send a command again whose
// reply was lost; a charge is not.
func TestClusterLostReplyIsChargedOnce(t *testing.T) {
	var srv *redistest.Server
	var n atomic.Int64
	front := serve(t, func(client net.Conn) { loseThirdReply(t, srv.Addr(), client, &n) })
	_, port, _ := net.SplitHostPort(front)
	// The node tells everybody that it is reached there.
	srv = redistest.Start(t, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", port)
	look := srv.Client(t)
	if err := look.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(look.ClusterInfo(t.Context()).Val(), "cluster_state:ok") {
		if t.Context().Err() != nil {
			t.Fatal("the cluster never became ready")
		}
	}
	client, err := redisstore.NewClusterClient([]string{front}, redisstore.ClientOptions{Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	store, err := redisstore.New(client, redisstore.Options{Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	isChargedOnceLostOrNot(t, store, srv)
}

// TestARefundIsBounded: whatever happens between, a refund raises what remains by
// no more than was charged, and to no more than there would be without the
// charge.
func TestARefundIsBounded(t *testing.T) {
	srv := redistest.Start(t)
	for _, p := range everyAlgorithm(t, 10) {
		if p.Algorithm == ratelimit.LeakyBucket {
			continue
		}
		t.Run(name(p), func(t *testing.T) { refundIsBounded(t, srv, p) })
	}
	everyKeyExpires(t, srv.Client(t))
}

// TestClusterOptionsSayWhatIsWrong: what one Redis has and a cluster has not.
func TestClusterOptionsSayWhatIsWrong(t *testing.T) {
	const there = "127.0.0.1:1"
	for _, c := range []struct {
		addresses []string
		options   redisstore.ClientOptions
		want      string
	}{
		{nil, redisstore.ClientOptions{}, "redis cluster client: addresses: want host:port of one or more nodes of a cluster"},
		{[]string{there, "localhost"}, redisstore.ClientOptions{}, `redis cluster client: addresses: want host:port, got "localhost"`},
		{[]string{there}, redisstore.ClientOptions{DB: 1}, "redis cluster client: db: want 0, the only one that a cluster has, got 1"},
		{[]string{there}, redisstore.ClientOptions{Address: there}, `redis cluster client: address: want it among the addresses, got "127.0.0.1:1"`},
		{[]string{there}, redisstore.ClientOptions{Network: "unix"}, `redis cluster client: network: want tcp, which nodes of a cluster talk, got "unix"`},
		{[]string{there}, redisstore.ClientOptions{Username: "x"}, "redis cluster client: username: want a password or a password file beside it"},
	} {
		_, err := redisstore.NewClusterClient(c.addresses, c.options)
		if err == nil || err.Error() != c.want {
			t.Errorf("%v %+v:\n got %v\nwant %s", c.addresses, c.options, err, c.want)
		}
	}
}

// TestHostilePartitions: callers of any name have a count of their own, on one
// Redis and on a cluster, and all of their keys are ours.
func TestHostilePartitions(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	srv := redistest.Start(t)
	minute, day := perMinute(t), perDay(t)
	for where, store := range map[string]*redisstore.Store{
		"one": at(t, srv.Addr()), "cluster": onCluster(t, c, redisstore.Options{Timeout: generous}),
	} {
		for _, value := range []string{
			"a:b", "a", "b", "{x}", "}", "{", "*", "\x00", "a\r\nSET x y", strings.Repeat("\u00e9", 2048), strings.Repeat("\u00e9", 2047) + "e",
			"a|route:b", "~", "%7B", "\xff\xfe", " ", "a b",
		} {
			user := ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: value})
			cs := []ratelimit.Charge{in(user, minute, 1), in(user, day, 1), in("{global}", day, 0)}
			ds := mustTake(t, store, cs)
			if ds[0].Remaining != 19 || ds[1].Remaining != 99 {
				t.Errorf("%s: %.20q shares a count: %+v", where, value, ds)
			}
		}
	}
	for _, look := range []*redis.Client{srv.Client(t), c.Nodes[0].Client(t), c.Nodes[1].Client(t), c.Nodes[2].Client(t)} {
		keys, err := look.Keys(context.Background(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if !strings.HasPrefix(key, "rl:v1:{user:") || len(key) > 200 || strings.ContainsAny(key, " \r\n\x00*") {
				t.Errorf("key %q", key)
			}
		}
	}
}
