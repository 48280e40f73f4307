package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/internal/redistest"
)

// A cluster is a Redis Cluster of three masters, and a client of each to torment
// it with.
type cluster struct {
	*redistest.Cluster
	x     *experiment
	nodes []*server
	ids   []string
}

const masters = 3

func (x *experiment) cluster(c *redistest.Cluster) *cluster {
	out := &cluster{Cluster: c, x: x}
	for _, node := range c.Nodes {
		s := &server{Server: node, x: x, rdb: node.Client(x)}
		id, err := s.rdb.Do(x.ctx, "CLUSTER", "MYID").Text()
		x.must(err, "ask a node for its id")
		out.nodes, out.ids = append(out.nodes, s), append(out.ids, id)
	}
	return out
}

func (c *cluster) fault(inject, heal func()) fault {
	var urls, ports []string
	for _, s := range append(slices.Clone(c.Nodes), c.Replicas...) {
		urls = append(urls, strconv.Quote("redis://"+s.Addr()))
		ports = append(ports, port(s.Addr()))
	}
	return fault{
		store: "store: {redis: {urls: [" + strings.Join(urls, ", ") + "]}}", ports: ports,
		inject: inject, heal: heal,
	}
}

// slots are those of all callers of a row.
func (c *cluster) slots() (out []int) {
	seen := map[int]bool{}
	for _, user := range []string{hot, late, "capped-0", "capped-1", "closed-0", "closed-1", "open-0", "open-1"} {
		slot, err := c.nodes[0].rdb.ClusterKeySlot(c.x.ctx, bucketOf(user)).Result()
		c.x.must(err, "ask for a slot")
		if !seen[int(slot)] {
			seen[int(slot)] = true
			out = append(out, int(slot))
		}
	}
	return out
}

// owner returns which node has a slot, as node asked sees it.
func (c *cluster) owner(asked, slot int) (int, error) {
	//lint:ignore SA1019 Redis 6.2, the oldest one we serve, has no CLUSTER SHARDS
	ranges, err := c.nodes[asked].rdb.ClusterSlots(c.x.ctx).Result() //nolint:staticcheck // as above
	if err != nil {
		return 0, err
	}
	for _, r := range ranges {
		if slot < r.Start || slot > r.End {
			continue
		}
		for i, node := range c.nodes {
			if r.Nodes[0].Addr == node.Addr() {
				return i, nil
			}
		}
	}
	return 0, fmt.Errorf("nobody has slot %d", slot)
}

// begin announces that a slot moves to the next node and moves its keys. Whoever
// asks the old node for them is told ASK from then on.
func (c *cluster) begin(slot int) (to int, err error) {
	from, err := c.owner(0, slot)
	if err != nil {
		return 0, err
	}
	to = (from + 1) % len(c.nodes)
	ctx := c.x.ctx
	if err := errors.Join(
		c.nodes[to].rdb.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[from]).Err(),
		c.nodes[from].rdb.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[to]).Err(),
	); err != nil {
		return to, err
	}
	keys, err := c.nodes[from].rdb.ClusterGetKeysInSlot(ctx, slot, 1000).Result()
	if err != nil {
		return to, err
	}
	for _, k := range keys {
		if err := c.nodes[from].rdb.Migrate(ctx, "127.0.0.1", port(c.nodes[to].Addr()), k, 0, 5*time.Second).Err(); err != nil && !errors.Is(err, redis.Nil) {
			return to, err
		}
	}
	return to, nil
}

// finish gives a slot that has moved to its new node, and returns when all agree.
// Whoever asks the old one is told MOVED.
func (c *cluster) finish(slot, to int) error {
	for range 100 {
		// The new owner first: until it knows, it would send clients back.
		errs := []error{c.nodes[to].rdb.Do(c.x.ctx, "CLUSTER", "SETSLOT", slot, "NODE", c.ids[to]).Err()}
		for i, node := range c.nodes {
			if i != to {
				errs = append(errs, node.rdb.Do(c.x.ctx, "CLUSTER", "SETSLOT", slot, "NODE", c.ids[to]).Err())
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		// What the old owner had said just before may arrive now and be believed.
		time.Sleep(5 * time.Millisecond)
		if c.agree(slot, to) {
			return nil
		}
	}
	return fmt.Errorf("the nodes do not agree on who has slot %d", slot)
}

// agree reports whether every node takes another for the owner of a slot.
func (c *cluster) agree(slot, owner int) bool {
	for asked := range c.nodes {
		if got, err := c.owner(asked, slot); err != nil || got != owner {
			return false
		}
	}
	return true
}

// finishAll is finish for many, and looks again when all has been said.
func (c *cluster) finishAll(targets map[int]int) {
	for range 2 {
		for slot, to := range targets {
			c.x.must(c.finish(slot, to), "move a slot")
		}
		c.x.sleep(50 * time.Millisecond)
	}
}

// well waits until every node calls the cluster well.
func (c *cluster) well() {
	for range 400 {
		n := 0
		for _, node := range c.nodes {
			if strings.Contains(node.rdb.ClusterInfo(c.x.ctx).Val(), "cluster_state:ok") {
				n++
			}
		}
		if n == len(c.nodes) {
			return
		}
		c.x.sleep(25 * time.Millisecond)
	}
	c.x.Fatalf("the cluster does not recover")
}

// quickly has the nodes notice within a second that one of them is gone.
func (c *cluster) quickly() {
	for _, node := range c.nodes {
		node.do("CONFIG", "SET", "cluster-node-timeout", 1000)
	}
}

// masterOf returns who serves a caller now, a master of the start or a replica that
// has taken over from it, as somebody says who is not dead.
func (c *cluster) masterOf(caller string, dead *redistest.Server) (*redistest.Server, error) {
	for _, asked := range slices.Concat(c.Nodes, c.Replicas) {
		if asked == dead {
			continue
		}
		rdb := asked.Client(c.x)
		slot, err := rdb.ClusterKeySlot(c.x.ctx, bucketOf(caller)).Result()
		if err != nil {
			return nil, err
		}
		//lint:ignore SA1019 Redis 6.2, the oldest one we serve, has no CLUSTER SHARDS
		ranges, err := rdb.ClusterSlots(c.x.ctx).Result() //nolint:staticcheck // as above
		if err != nil {
			return nil, err
		}
		for _, r := range ranges {
			if int(slot) < r.Start || int(slot) > r.End {
				continue
			}
			for _, s := range slices.Concat(c.Nodes, c.Replicas) {
				if s.Addr() == r.Nodes[0].Addr {
					return s, nil
				}
			}
		}
	}
	return nil, fmt.Errorf("nobody knows who has the slot of %s", caller)
}

// taken waits until somebody else than dead serves a caller.
func (c *cluster) taken(caller string, dead *redistest.Server) {
	for range 600 {
		if s, err := c.masterOf(caller, dead); err == nil && s != dead {
			return
		}
		c.x.sleep(25 * time.Millisecond)
	}
	c.x.Fatalf("nobody takes over from the dead master")
}

// bucketOf is a key in the slot of a caller.
func bucketOf(caller string) string { return "rl:v1:{user:" + caller + "}:" }

// replicates waits until a server that has come back is a replica with all data.
func (x *experiment) replicates(s *redistest.Server) {
	rdb := s.Client(x)
	for range 800 {
		info := rdb.InfoMap(x.ctx, "replication")
		if info.Item("Replication", "role") == "slave" && info.Item("Replication", "master_link_status") == "up" {
			return
		}
		x.sleep(25 * time.Millisecond)
	}
	x.Fatalf("a server that has come back does not follow its new master")
}

// sentinelStore is the section store for a master that sentinels name.
func sentinelStore(s *redistest.Sentinel) string {
	var addresses []string
	for _, a := range s.Addrs() {
		addresses = append(addresses, strconv.Quote(a))
	}
	return "store: {redis: {sentinel: {master: " + redistest.MasterName + ", addresses: [" + strings.Join(addresses, ", ") + "]}}}"
}

// portsOf are the ports of servers.
func portsOf(servers []*redistest.Server) (out []string) {
	for _, s := range servers {
		out = append(out, port(s.Addr()))
	}
	return out
}

// elected waits until the sentinels name another master than old, and returns it.
func (x *experiment) elected(s *redistest.Sentinel, old *redistest.Server) *redistest.Server {
	for range 800 {
		if m := s.Master(x, s.Sentinels[0]); m != old {
			if role := m.Client(x).InfoMap(x.ctx, "replication").Item("Replication", "role"); role == "master" {
				return m
			}
		}
		x.sleep(25 * time.Millisecond)
	}
	x.Fatalf("the sentinels elect no other master")
	return nil
}

// clusterRows are the faults of a cluster.
func clusterRows() []row {
	return []row{
		{
			name: "MOVED", what: "cluster: every caller's slot is another node's from one moment to the next",
			opens: may,
			start: func(x *experiment) fault {
				c := x.cluster(redistest.StartCluster(x, masters))
				return c.fault(func() {
					targets := map[int]int{}
					for _, slot := range c.slots() {
						to, err := c.begin(slot)
						x.must(err, "begin to move a slot")
						x.must(c.finish(slot, to), "move a slot")
						targets[slot] = to
					}
					c.finishAll(targets)
				}, func() {})
			},
		},
		{
			name: "ASK", what: "cluster: every caller's keys have moved, the slots have not",
			opens: may,
			start: func(x *experiment) fault {
				c := x.cluster(redistest.StartCluster(x, masters))
				targets := map[int]int{}
				return c.fault(func() {
					for _, slot := range c.slots() {
						to, err := c.begin(slot)
						x.must(err, "begin to move a slot")
						targets[slot] = to
					}
				}, func() {
					c.finishAll(targets)
				})
			},
		},
		{
			name: "resharding", what: "cluster: the callers' slots move on and on, one every 50 ms",
			opens: may,
			start: func(x *experiment) fault {
				c := x.cluster(redistest.StartCluster(x, masters))
				slots, n := c.slots(), 0
				var stop func()
				return c.fault(func() {
					stop = x.background(25*time.Millisecond, func() error {
						slot := slots[n%len(slots)]
						n++
						to, err := c.begin(slot)
						if err != nil {
							return err
						}
						time.Sleep(25 * time.Millisecond)
						return c.finish(slot, to)
					})
				}, func() { stop() })
			},
		},
		{
			name: "CLUSTERDOWN", what: "cluster without replicas that requires full coverage: one node is killed, and restarted empty",
			opens: must, kinds: []string{"clusterdown"}, forget: 1,
			start: func(x *experiment) fault {
				c := x.cluster(redistest.StartCluster(x, masters))
				c.quickly()
				for _, node := range c.nodes {
					node.do("CONFIG", "SET", "cluster-require-full-coverage", "yes")
				}
				return c.fault(func() {
					c.nodes[2].Kill()
					for !strings.Contains(c.nodes[0].rdb.ClusterInfo(x.ctx).Val(), "cluster_state:fail") {
						x.sleep(25 * time.Millisecond)
					}
				}, func() {
					c.nodes[2].Restart()
					c.well()
				})
			},
		},
		{
			name: "a node lost", what: "cluster without replicas: one node of three is killed, and restarted empty; callers of the others are not to notice",
			opens: may, kinds: []string{"refused", "lost", "clusterdown", "moved"}, forget: 1,
			start: func(x *experiment) fault {
				c := x.cluster(redistest.StartCluster(x, masters))
				c.quickly()
				return c.fault(func() { c.nodes[2].Kill() }, func() {
					c.nodes[2].Restart()
					c.well()
				})
			},
		},
		{
			name: "a master lost, takeover", what: "cluster with replicas: one master of three is killed, its replica takes over",
			opens: may, kinds: []string{"refused", "lost", "clusterdown", "moved"}, loses: lostUnits,
			start: func(x *experiment) fault {
				c := x.cluster(redistest.StartClusterWithReplicas(x, masters))
				victim, err := c.masterOf("closed-0", nil)
				x.must(err, "find a caller's master")
				f := c.fault(victim.Kill, func() { c.taken("closed-0", victim) })
				f.itself = true
				return f
			},
		},
		{
			name: "sentinel failover", what: "the master is killed; the sentinels have a replica take over",
			opens: must, kinds: []string{"refused", "lost"}, loses: lostUnits,
			start: func(x *experiment) fault {
				s := redistest.StartSentinel(x, redistest.SentinelOptions{})
				old := s.Master(x, s.Sentinels[0])
				return fault{
					store: sentinelStore(s), ports: portsOf(s.Servers),
					inject: old.Kill, heal: func() { x.elected(s, old) }, itself: true,
				}
			},
		},
		{
			name: "sentinel, master frozen", what: "the master stops with SIGSTOP; a replica takes over; the old one wakes up and has to be told",
			opens: must, kinds: []string{"timeout"}, loses: splitUnits,
			start: func(x *experiment) fault {
				s := redistest.StartSentinel(x, redistest.SentinelOptions{})
				old := s.Master(x, s.Sentinels[0])
				return fault{
					store: sentinelStore(s), ports: portsOf(s.Servers),
					inject: old.Freeze, heal: func() {
						x.elected(s, old)
						old.Thaw()
					},
					itself: true,
				}
			},
		},
	}
}
