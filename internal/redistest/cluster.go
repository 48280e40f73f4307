package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	slots = 16384
	// busOffset is what a node adds to its port for the port on which it talks to
	// the others. Both have to lie below what kernels hand out by themselves.
	busOffset   = 10_000
	lastBusPort = 32_700
)

// A Cluster is a Redis Cluster of real servers that a test owns. A node without
// a replica that is killed or frozen takes its slots with it; those of the others
// are served on.
type Cluster struct {
	// Nodes are the masters at the start. Node i has the slots from i*16384/n up
	// to the next.
	Nodes []*Server
	// Replicas[i] follows Nodes[i]; none after StartCluster.
	Replicas []*Server
}

// StartCluster runs so many redis-servers, 1 or more, as one cluster, each with
// the same number of slots, and returns when all of them agree on who has what.
// They end with the test.
func StartCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	return startCluster(t, masters, 0)
}

// StartClusterWithReplicas is StartCluster with a replica for each of the
// masters, 3 or more, that takes over within some two seconds.
func StartClusterWithReplicas(t testing.TB, masters int) *Cluster {
	t.Helper()
	return startCluster(t, masters, masters)
}

func startCluster(t testing.TB, masters, replicas int) *Cluster {
	t.Helper()
	if masters < 1 || masters > slots {
		t.Fatalf("redistest: a cluster of %d masters; want 1 to %d", masters, slots)
	}
	args := []string{
		"--cluster-enabled", "yes",
		"--cluster-config-file", "nodes.conf",
		"--cluster-require-full-coverage", "no",
	}
	if replicas > 0 {
		// A replica that has been sent nothing yet, not even a ping, is not listed.
		args = append(args, "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
	}
	nodes := make([]*Server, masters+replicas)
	for i := range nodes {
		nodes[i] = newServer(t, args)
	}
	startAll(t, lastBusPort-busOffset, nodes...)
	c := &Cluster{Nodes: nodes[:masters], Replicas: nodes[masters:]}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if err := c.join(ctx, t); err != nil {
		t.Fatalf("redistest: start a cluster of %d: %v", masters, err)
	}
	if err := c.follow(ctx, t); err != nil {
		t.Fatalf("redistest: start the replicas of a cluster of %d: %v", masters, err)
	}
	return c
}

// until asks ok, which may fail for a while, until it holds.
func until(ctx context.Context, what string, ok func() bool) error {
	for !ok() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
	return nil
}

// follow makes each replica one of its node, and waits until it has its data and
// every node knows of it.
func (c *Cluster) follow(ctx context.Context, t testing.TB) error {
	for _, replica := range c.Replicas {
		for _, node := range c.Nodes { // each of them: word of mouth takes seconds
			if err := replica.Client(t).ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(node.port)).Err(); err != nil {
				return err
			}
		}
	}
	for i, replica := range c.Replicas {
		client := replica.Client(t)
		id, err := c.Nodes[i].Client(t).Do(ctx, "cluster", "myid").Text()
		if err != nil {
			return err
		}
		if err := until(ctx, "a replica does not get to know its master", func() bool {
			return client.ClusterReplicate(ctx, id).Err() == nil
		}); err != nil {
			return err
		}
	}
	for i, replica := range c.Replicas {
		client := replica.Client(t)
		if err := until(ctx, "a replica does not reach its master", func() bool {
			return strings.Contains(client.Info(ctx, "replication").Val(), "master_link_status:up")
		}); err != nil {
			return err
		}
		for _, node := range c.Nodes {
			client := node.Client(t)
			if err := until(ctx, "the nodes do not get to know a replica", func() bool {
				//lint:ignore SA1019 Redis 6.2, the oldest one we serve, has no CLUSTER SHARDS
				ranges := client.ClusterSlots(ctx).Val() //nolint:staticcheck // as above
				return slices.ContainsFunc(ranges, func(r redis.ClusterSlot) bool {
					return len(r.Nodes) == 2 && r.Nodes[0].Addr == c.Nodes[i].Addr() && r.Nodes[1].Addr == replica.Addr()
				})
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// join makes one cluster of the nodes.
func (c *Cluster) join(ctx context.Context, t testing.TB) error {
	clients := make([]*redis.Client, len(c.Nodes))
	for i, node := range c.Nodes {
		clients[i] = node.Client(t)
		// An epoch of its own, so that no two have to be told apart later.
		if err := clients[i].Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return err
		}
		first, next := c.slotsOf(i)
		if err := clients[i].ClusterAddSlotsRange(ctx, first, next-1).Err(); err != nil {
			return err
		}
		if err := clients[0].ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(node.port)).Err(); err != nil {
			return err
		}
	}
	for _, client := range clients {
		if err := until(ctx, "the nodes do not agree", func() bool { return c.agrees(ctx, client) }); err != nil {
			info, _ := client.ClusterInfo(context.WithoutCancel(ctx)).Result()
			return fmt.Errorf("%w\n%s", err, info)
		}
	}
	return nil
}

// agrees reports whether a node knows every slot and who has it.
func (c *Cluster) agrees(ctx context.Context, client *redis.Client) bool {
	info, err := client.ClusterInfo(ctx).Result()
	if err != nil || !strings.Contains(info, "cluster_state:ok") {
		return false
	}
	//lint:ignore SA1019 Redis 6.2, the oldest one we serve, has no CLUSTER SHARDS
	ranges, err := client.ClusterSlots(ctx).Result() //nolint:staticcheck // as above
	if err != nil || len(ranges) != len(c.Nodes) {
		return false
	}
	for _, r := range ranges {
		i := c.nodeOf(r.Start)
		if first, next := c.slotsOf(i); r.Start != first || r.End != next-1 || r.Nodes[0].Addr != c.Nodes[i].Addr() {
			return false
		}
	}
	return true
}

// slotsOf returns the first slot of node i and that of the next.
func (c *Cluster) slotsOf(i int) (first, next int) {
	n := len(c.Nodes)
	return i * slots / n, (i + 1) * slots / n
}

// nodeOf returns which node has a slot.
func (c *Cluster) nodeOf(slot int) int {
	i := 0
	for {
		if _, next := c.slotsOf(i); slot < next {
			return i
		}
		i++
	}
}

// NodeOf returns the node that has key, whether the key exists or not.
func (c *Cluster) NodeOf(t testing.TB, key string) *Server {
	t.Helper()
	for _, node := range c.Nodes {
		if slot, err := node.Client(t).ClusterKeySlot(t.Context(), key).Result(); err == nil {
			return c.Nodes[c.nodeOf(int(slot))]
		}
	}
	t.Fatalf("redistest: no node answers")
	return nil
}

// Addrs returns the TCP addresses of all nodes.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.Nodes))
	for i, node := range c.Nodes {
		addrs[i] = node.Addr()
	}
	return addrs
}

// Client returns a new client of the cluster with the library's own settings,
// closed when t is over. It is for looking, not for what is being tested.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}
