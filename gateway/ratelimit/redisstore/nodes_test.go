package redisstore_test

import (
	"slices"
	"testing"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

func TestNodesTellWhoHasWhat(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	store := onCluster(t, c, redisstore.Options{Timeout: generous})
	nodes, at := store.Nodes(), partitionsOnNodes(t, c)
	if name, spread := nodes.Node(at[0]), nodes.Spread(); name != "" || spread != nil {
		t.Fatalf("before the cluster was reached: %q, %q", name, spread)
	}
	if err := store.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, partition := range at {
		if name := nodes.Node(partition); name != c.Nodes[i].Addr() {
			t.Errorf("%s is said to lie on %s; want %s", partition, name, c.Nodes[i].Addr())
		}
	}
	var names []string
	for _, partition := range nodes.Spread() {
		names = append(names, nodes.Node(partition))
	}
	slices.Sort(names)
	if want := slices.Sorted(slices.Values(c.Addrs())); !slices.Equal(names, want) {
		t.Errorf("a partition on each of %q; want %q", names, want)
	}
	if n := testing.AllocsPerRun(100, func() { nodes.Node(at[0]) }); n >= 1 && !raceEnabled {
		t.Errorf("%v allocations to find a node, want none", n)
	}

	c.Nodes[1].Kill()
	for i, partition := range at {
		if err := nodes.Probe(t.Context(), partition); (err != nil) != (i == 1) {
			t.Errorf("probe of node %d: %v; node 1 is dead", i, err)
		}
	}
	p := perDay(t)
	_, err := store.Take(t.Context(), []ratelimit.Charge{in(at[0], p, 1), in(at[1], p, 1), in(at[2], p, 1)}, nil)
	if name := nodes.Failed(err); name != c.Nodes[1].Addr() {
		t.Errorf("%v is said to be of %q; want %s", err, name, c.Nodes[1].Addr())
	}
	if !redisstore.Ambiguous(err) || redisstore.Kind(err) == redisstore.KindOther {
		t.Errorf("%v: kind %s; want the dead node's, and ambiguous since others were asked", err, redisstore.Kind(err))
	}
}

func TestAProbeFollowsItsSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartClusterWithReplicas(t, 3)
	store := onCluster(t, c, redisstore.Options{Timeout: generous})
	nodes, at := store.Nodes(), partitionsOnNodes(t, c)
	if err := store.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Nodes[2].Kill()
	soon(t, "who took over is probed", func() bool { return nodes.Probe(t.Context(), at[2]) == nil })
	if name := nodes.Node(at[2]); name != c.Replicas[2].Addr() {
		t.Errorf("the slots of the dead node are said to be %s's; want %s", name, c.Replicas[2].Addr())
	}
}

func TestOneServerHasNoNodes(t *testing.T) {
	t.Parallel()
	client, err := redisstore.NewClient(redisstore.ClientOptions{Address: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if nodes := storeOn(t, client, redisstore.Options{}).Nodes(); nodes != nil {
		t.Errorf("nodes of one server: %v", nodes)
	}
}
