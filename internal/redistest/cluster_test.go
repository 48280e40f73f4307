package redistest

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func TestClusterServesEverySlot(t *testing.T) {
	c := StartCluster(t, 3)
	client := c.Client(t)
	seen := map[*Server]int{}
	for i := range 300 {
		key := fmt.Sprintf("{k%d}", i)
		if err := client.Set(t.Context(), key, "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
		node := c.NodeOf(t, key)
		// The node itself, asked without a client that follows redirections.
		if got, err := node.Client(t).Get(t.Context(), key).Result(); got != "v" || err != nil {
			t.Fatalf("%s on %s: %q, %v", key, node.Addr(), got, err)
		}
		seen[node]++
	}
	if len(seen) != 3 {
		t.Errorf("300 keys are on %d nodes; want all 3: %v", len(seen), seen)
	}
}

func TestClusterOfOneIsACluster(t *testing.T) {
	c := StartCluster(t, 1)
	client := c.Nodes[0].Client(t)
	if err := client.MSet(t.Context(), "a", 1, "b", 2).Err(); err == nil {
		t.Error("two slots in one command: no error; want CROSSSLOT")
	}
}

// TestClusterOutlivesANode: what the others have is served while one stands still.
func TestClusterOutlivesANode(t *testing.T) {
	c := StartCluster(t, 3)
	c.Nodes[2].Freeze()
	for i := range 100 {
		key := fmt.Sprintf("{k%d}", i)
		node := c.NodeOf(t, key)
		if node == c.Nodes[2] {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := node.Client(t).Set(ctx, key, "v", 0).Err(); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		cancel()
	}
	c.Nodes[2].Thaw()
}
