package fallback

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"bouncer/gateway/ratelimit"
)

// maxNodes bounds the nodes that are remembered. Beyond that those that are in
// use are forgotten, with what was counted of them.
const maxNodes = 1000

// Nodes are the parts of a primary that fail by themselves, as the masters of a
// cluster do. Each has a breaker of its own. Its methods are safe for concurrent
// use.
//
// A node has a name, and what it has may change hands at any time.
type Nodes interface {
	// Node names the node that has the buckets of a partition, as far as is known
	// at the moment; "" while nothing is known. It is called for each request: it
	// must be quick and must not wait for the primary.
	Node(partition string) string
	// Failed names the node that an error of the primary is of, where a request
	// needed several; "" if it is of no one node.
	Failed(err error) string
	// Spread returns partitions that lie on different nodes, one on each that is
	// known. It may take a millisecond.
	Spread() []string
	// Probe is [Options.Probe] for the node that has the buckets of a partition,
	// whichever that is by then.
	Probe(ctx context.Context, partition string) error
}

// began is a node that a request needs, and the condition it began with.
type began struct {
	node      *node
	cond      *condition
	partition string // one that the node has
}

// begin appends the nodes that charges need to list.
func (f *Fallback) begin(charges []ratelimit.Charge, list []began) []began {
	if f.o.Nodes == nil {
		return append(list, began{node: f.whole, cond: f.whole.cond.Load()})
	}
	for i := range charges {
		p := charges[i].Partition
		if i > 0 && p == charges[i-1].Partition {
			continue
		}
		n := f.nodeOf(p)
		if !slices.ContainsFunc(list, func(b began) bool { return b.node == n }) {
			list = append(list, began{node: n, cond: n.cond.Load(), partition: p})
		}
	}
	return list
}

// away returns the condition of a node that is away, nil if there is none.
func away(list []began) *condition {
	for i := range list {
		if list[i].cond.open {
			return list[i].cond
		}
	}
	return nil
}

// succeeded counts an answer for each node that was asked. What was paid from
// what had been taken in advance says nothing of the primary.
func (f *Fallback) succeeded(list []began, charges []ratelimit.Charge, ds []ratelimit.Decision) {
	for i := range list {
		b := &list[i]
		for j := range ds {
			if ds[j].Source != ratelimit.SourceLease && (len(list) == 1 || f.nodeOf(charges[j].Partition) == b.node) {
				b.node.succeeded(b.cond)
				break
			}
		}
	}
}

// failed counts an error for the node that it is of; for each that the request
// needed if it is of none of them. A node that has lost the partition meanwhile is
// not counted: the request may have been sent on.
func (f *Fallback) failed(list []began, err error) {
	name := ""
	if len(list) > 1 {
		name = f.o.Nodes.Failed(err)
	}
	for i := range list {
		b := &list[i]
		if name != "" && name != b.node.name || f.nodeOf(b.partition) != b.node {
			continue // not its error, or it may be that of who has the partition by now
		}
		b.node.failed(b.cond, b.partition, err)
	}
	f.failure(err)
}

// nodeOf returns the node that has a partition.
func (f *Fallback) nodeOf(partition string) *node {
	if f.o.Nodes == nil {
		return f.whole
	}
	return f.node(f.o.Nodes.Node(partition))
}

// node returns the node of that name.
func (f *Fallback) node(name string) *node {
	if n, ok := (*f.nodes.Load())[name]; ok {
		return n
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	old := *f.nodes.Load()
	if n, ok := old[name]; ok {
		return n
	}
	table := maps.Clone(old)
	if len(table) >= maxNodes {
		// It cannot be told here which of them are no nodes any more. One that is
		// away is kept: it is to come back.
		maps.DeleteFunc(table, func(_ string, n *node) bool { return n != f.whole && n.retire() })
	}
	n := f.makeNode(strings.Clone(name), time.Now())
	table[n.name] = n
	f.nodes.Store(&table)
	return n
}

// retire has nothing count any more of a node that is in use. It is false for
// one that is away. f.mu is held, so a node whose own lock is taken is left.
func (n *node) retire() bool {
	if !n.mu.TryLock() {
		return false
	}
	defer n.mu.Unlock()
	if n.cond.Load().open {
		return false
	}
	n.gone = true
	return true
}

// forget removes a node that has nothing any more.
func (f *Fallback) forget(n *node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n == f.whole || !n.retire() {
		return // there is time: it is bounded
	}
	table := maps.Clone(*f.nodes.Load())
	delete(table, n.name)
	f.nodes.Store(&table)
}
