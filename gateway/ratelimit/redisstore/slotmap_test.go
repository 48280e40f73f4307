package redisstore_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
	"bouncer/internal/redistest"
)

// A master that comes back without its nodes.conf knows of no slots, and the others
// know of no address for those that it had.
func TestAMasterThatHasForgottenItsSlots(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	store := onCluster(t, c, redisstore.Options{Timeout: generous})
	nodes, at := store.Nodes(), partitionsOnNodes(t, c)
	if err := store.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := nodes.Unassigned(); n != 0 {
		t.Fatalf("%d slots have no node; want none", n)
	}
	if err := c.Nodes[2].Client(t).ClusterResetHard(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p := perDay(t)
	soon(t, "the slots are known to have no node", func() bool {
		_ = nodes.Probe(t.Context(), at[2])
		return nodes.Node(at[2]) == redisstore.Unassigned
	})
	if n := nodes.Unassigned(); n < 5000 || n > 6000 {
		t.Errorf("%d slots have no node; want a third of 16384", n)
	}
	for range 50 {
		_, err := store.Take(t.Context(), []ratelimit.Charge{in(at[2], p, 1)}, nil) // has the slots asked for again, of any node
		if kind := redisstore.Kind(err); kind != redisstore.KindClusterDown || redisstore.Ambiguous(err) {
			t.Fatalf("a caller in a slot without a node: kind %q, ambiguous %v: %v", kind, redisstore.Ambiguous(err), err)
		}
		for i := range 2 {
			if name := nodes.Node(at[i]); name != c.Nodes[i].Addr() {
				t.Fatalf("%s is said to lie on %q; want %s", at[i], name, c.Nodes[i].Addr())
			}
			mustTake(t, store, []ratelimit.Charge{in(at[i], p, 1)})
		}
	}
	var names []string
	for _, partition := range nodes.Spread() {
		names = append(names, nodes.Node(partition))
	}
	slices.Sort(names)
	want := []string{c.Nodes[0].Addr(), c.Nodes[1].Addr(), redisstore.Unassigned}
	if slices.Sort(want); !slices.Equal(names, want) {
		t.Errorf("a partition on each of %q; want %q", names, want)
	}

	// The others share out what it had.
	const first, last = 2 * 16384 / 3, 16383
	for _, node := range c.Nodes[:2] {
		if err := node.Client(t).ClusterDelSlotsRange(t.Context(), first, last).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Nodes[0].Client(t).ClusterAddSlotsRange(t.Context(), first, last).Err(); err != nil {
		t.Fatal(err)
	}
	soon(t, "the slots are served again", func() bool { return nodes.Probe(t.Context(), at[2]) == nil })
	soon(t, "the slots are known to have a node", func() bool {
		_ = nodes.Probe(t.Context(), at[2]) // has the slots asked for again
		return nodes.Node(at[2]) == c.Nodes[0].Addr()
	})
	if n := nodes.Unassigned(); n != 0 {
		t.Errorf("%d slots have no node; want none", n)
	}
}

// A cluster that is entered through such a master alone is not reached.
func TestANodeThatKnowsOfNoSlotsIsNoWayIn(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2)
	if err := c.Nodes[1].Client(t).ClusterResetHard(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	client, err := redisstore.NewClusterClient([]string{c.Nodes[1].Addr()}, redisstore.ClientOptions{Timeout: generous})
	if err != nil {
		t.Fatal(err)
	}
	store := storeOn(t, client, redisstore.Options{Timeout: generous})
	if err := store.Probe(t.Context()); redisstore.Kind(err) != redisstore.KindClusterDown {
		t.Errorf("kind %q: %v; want %s", redisstore.Kind(err), err, redisstore.KindClusterDown)
	}
	if spread := store.Nodes().Spread(); spread != nil {
		t.Errorf("nodes are known: %q", spread)
	}
}

func TestWhatANodeSaysOfTheSlots(t *testing.T) {
	t.Parallel()
	at := func(start, end int, addresses ...string) redis.ClusterSlot {
		s := redis.ClusterSlot{Start: start, End: end}
		for _, a := range addresses {
			s.Nodes = append(s.Nodes, redis.ClusterNode{Addr: a})
		}
		return s
	}
	for _, test := range []struct {
		name         string
		answer, want []redis.ClusterSlot
		free         int
	}{
		{"all slots", []redis.ClusterSlot{at(0, 99, "a:1", "b:1"), at(100, 16383, "b:1")}, []redis.ClusterSlot{at(0, 99, "a:1", "b:1"), at(100, 16383, "b:1")}, 0},
		{"slots that nobody has", []redis.ClusterSlot{at(0, 99, "a:1"), at(110, 16383, "b:1")}, []redis.ClusterSlot{at(0, 99, "a:1"), at(110, 16383, "b:1")}, 10},
		{"a master without an address", []redis.ClusterSlot{at(0, 99, ":0", "c:1"), at(100, 16383, "b:1")}, []redis.ClusterSlot{at(100, 16383, "b:1")}, 100},
		{"a replica without an address", []redis.ClusterSlot{at(0, 16383, "a:1", ":0")}, []redis.ClusterSlot{at(0, 16383, "a:1")}, 0},
		{"a node that does not know its host", []redis.ClusterSlot{at(0, 16383, ":7000", "b:1")}, []redis.ClusterSlot{at(0, 16383, "[::1]:7000", "b:1")}, 0},
		{"a port that TLS hides", []redis.ClusterSlot{at(0, 16383, "a:0")}, []redis.ClusterSlot{at(0, 16383, "a:0")}, 0},
		{"slots that do not exist", []redis.ClusterSlot{at(-1, 5, "a:1"), at(0, 16383, "b:1"), at(5, 16384, "a:1")}, []redis.ClusterSlot{at(0, 16383, "b:1")}, 0},
		{"a range without nodes", []redis.ClusterSlot{at(0, 16382, "b:1"), at(16383, 16383)}, []redis.ClusterSlot{at(0, 16382, "b:1")}, 1},
	} {
		got, free, err := redisstore.ReadSlots(test.answer, "[::1]:6379")
		if err != nil || free != test.free || !slices.EqualFunc(got, test.want, func(a, b redis.ClusterSlot) bool {
			return a.Start == b.Start && a.End == b.End && slices.EqualFunc(a.Nodes, b.Nodes, func(a, b redis.ClusterNode) bool { return a.Addr == b.Addr })
		}) {
			t.Errorf("%s: %+v, %d slots without a node, %v; want %+v, %d", test.name, got, free, err, test.want, test.free)
		}
	}
	for _, answer := range [][]redis.ClusterSlot{nil, {at(0, 16383, ":0")}} {
		if got, _, err := redisstore.ReadSlots(answer, "a:1"); !errors.Is(err, redisstore.ErrNoSlots) {
			t.Errorf("%+v: %+v, %v; want an error", answer, got, err)
		}
	}
}
