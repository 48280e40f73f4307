package redistest

import (
	"context"
	"fmt"
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

// A Cluster is a Redis Cluster of real servers that a test owns, without
// replicas. A node that is killed or frozen takes its slots with it; those of
// the others are served on.
type Cluster struct {
	// Nodes are the masters. Node i has the slots from i*16384/n up to the next.
	Nodes []*Server
}

// StartCluster runs so many redis-servers, 1 or more, as one cluster, each with
// the same number of slots, and returns when all of them agree on who has what.
// They end with the test.
func StartCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	if masters < 1 || masters > slots {
		t.Fatalf("redistest: a cluster of %d masters; want 1 to %d", masters, slots)
	}
	c := &Cluster{}
	for range masters {
		c.Nodes = append(c.Nodes, start(t, lastBusPort-busOffset,
			"--cluster-enabled", "yes",
			"--cluster-config-file", "nodes.conf",
			"--cluster-require-full-coverage", "no",
		))
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if err := c.join(ctx, t); err != nil {
		t.Fatalf("redistest: start a cluster of %d: %v", masters, err)
	}
	return c
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
		for !c.agrees(ctx, client) {
			select {
			case <-ctx.Done():
				info, _ := client.ClusterInfo(context.WithoutCancel(ctx)).Result()
				return fmt.Errorf("the nodes do not agree: %w\n%s", ctx.Err(), info)
			case <-time.After(pollInterval):
			}
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
