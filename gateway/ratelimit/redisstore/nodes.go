package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// spreadKeys is how many keys are looked at to find a node each. Of a hundred
// masters with the same number of slots, one is missed in three hundred times.
const spreadKeys = 1024

// Nodes tell which master of a cluster has what, as the client's map of the slots
// says at the moment; see gateway/fallback, which gives each a breaker of its own.
// A master's name is its address. They are safe for concurrent use.
type Nodes struct {
	s *Store
	// known is set once the client has a map. It never loses it again.
	known atomic.Bool
	// free are the slots that no node has; nil for none.
	free atomic.Pointer[slotSet]
}

// nodesOf returns the nodes of the cluster of s, which has not been asked anything
// yet.
func nodesOf(s *Store) *Nodes {
	n := &Nodes{s: s}
	s.cluster.OnNewNode(func(node *redis.Client) { node.AddHook(slotReader{of: n, from: node.Options().Addr}) })
	return n
}

// Nodes returns the masters of the cluster; nil if the store is no cluster.
func (s *Store) Nodes() *Nodes { return s.nodes }

// Node returns the address of the master that has the buckets of a partition, ""
// until [Store.Probe] has reached the cluster once. It waits for nothing: where
// the map is old, the client asks for another in the background, as it does for a
// decision. It is [Unassigned] for a slot that no node has.
func (n *Nodes) Node(partition string) string {
	if !n.known.Load() {
		return ""
	}
	if n.unassigned(partition) {
		return Unassigned
	}
	// The slot of a partition is that of all its keys: it is a hash tag.
	master, err := n.s.cluster.MasterForKey(context.Background(), partition)
	if err != nil {
		return "" // closed
	}
	return master.Options().Addr
}

// unassigned reports whether a key lies in a slot that no node has.
func (n *Nodes) unassigned(key string) bool {
	free := n.free.Load()
	return free != nil && free.has(slot(key))
}

// explain says of an error for key that no node has its slot. Any node was asked, in
// case it knew better; what it answered is no fault of its own.
func (n *Nodes) explain(err error, key string) error {
	switch Kind(err) {
	case KindClusterDown, KindMoved, KindRefused: // the last: sent on to where the former master was
		if n.unassigned(key) {
			return fmt.Errorf("%w: %w", errUnassigned, err)
		}
	}
	return err
}

// Unassigned returns how many slots no node has, of the 16384 of a cluster.
func (n *Nodes) Unassigned() int { return n.free.Load().size() }

// learn gets to know the cluster.
func (n *Nodes) learn(ctx context.Context) error {
	if n.known.Load() {
		return nil
	}
	if _, err := n.s.cluster.MasterForKey(ctx, probePartition); err != nil {
		return err
	}
	n.known.Store(true)
	return nil
}

// Spread returns partitions that lie on different masters, one on each; of a large
// cluster, on most. It returns none until the cluster has been reached.
func (n *Nodes) Spread() (partitions []string) {
	if !n.known.Load() {
		return nil
	}
	seen := make(map[string]bool)
	for i := range spreadKeys {
		partition := "{probe:" + strconv.Itoa(i) + "}"
		if name := n.Node(partition); name != "" && !seen[name] {
			seen[name] = true
			partitions = append(partitions, partition)
		}
	}
	return partitions
}

// Probe is [Store.Probe] with a key in the slot of a partition, wherever that is by
// then.
func (n *Nodes) Probe(ctx context.Context, partition string) error {
	return n.s.probe(ctx, partition)
}

// Failed returns the address of the master that an error of a request with buckets
// on several is of: the first that failed. It is "" for any other error.
func (n *Nodes) Failed(err error) string {
	if e, ok := errors.AsType[*nodeError](err); ok {
		return e.node
	}
	return ""
}

// A nodeError is an error of a node, among several that a request needed.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return e.err.Error() }
func (e *nodeError) Unwrap() error { return e.err }
