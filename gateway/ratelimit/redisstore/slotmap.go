package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"

	"github.com/redis/go-redis/v9"
)

// Unassigned is the name of what has the slots that no node has, as if it were a
// node: a master that came back without its nodes.conf has forgotten them, or
// somebody took them from it. It is no address.
const Unassigned = "unassigned slots"

const allSlots = 16384

var (
	// errUnassigned says that a key lies in a slot that no node has.
	errUnassigned = errors.New("no node of the cluster has the slot of this key")
	// errNoSlots is what comes of a node that knows nothing of the cluster.
	errNoSlots = errors.New("it knows of no slots; has it lost its nodes.conf?")
)

// nowhere is how Redis writes the address of a node that it does not know any
// more: the one that was there is another node now.
var nowhere = net.JoinHostPort("", "0")

// A slotSet is a set of slots.
type slotSet [allSlots / 64]uint64

func (s *slotSet) has(slot uint16) bool { return s[slot/64]&(1<<(slot%64)) != 0 }

// size returns how many slots are in s; nil is the empty set.
func (s *slotSet) size() (n int) {
	if s == nil {
		return 0
	}
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// readSlots returns what of a node's answer to CLUSTER SLOTS can be used, and the
// slots that no node has, nil for none. go-redis takes such an answer as it is: one
// of a master that came back without its nodes.conf and knows of no slots, and the
// address ":0" for what that one had, which it then takes for the gateway's own
// machine.
func readSlots(answer []redis.ClusterSlot, from string) ([]redis.ClusterSlot, *slotSet, error) {
	host, _, _ := net.SplitHostPort(from)
	free := new(slotSet)
	for i := range free {
		free[i] = ^uint64(0)
	}
	var used []redis.ClusterSlot
	for _, r := range answer {
		if len(r.Nodes) == 0 || r.Nodes[0].Addr == nowhere || r.Start < 0 || r.End >= allSlots {
			continue
		}
		var nodes []redis.ClusterNode
		for _, n := range r.Nodes {
			if n.Addr == nowhere {
				continue // a replica
			}
			if h, port, err := net.SplitHostPort(n.Addr); err == nil && h == "" {
				n.Addr = net.JoinHostPort(host, port) // a node that does not know how it is reached
			}
			nodes = append(nodes, n)
		}
		r.Nodes = nodes
		used = append(used, r)
		for slot := r.Start; slot <= r.End; slot++ {
			free[slot/64] &^= 1 << (slot % 64)
		}
	}
	switch {
	case len(used) == 0:
		return nil, nil, fmt.Errorf("ask %s for the slots: %w", from, errNoSlots)
	case free.size() == 0:
		free = nil
	}
	return used, free, nil
}

// A slotReader is a hook of one node's client. It has go-redis see only what can
// be used of the node's answers to CLUSTER SLOTS, so that it asks another node
// where that is nothing.
type slotReader struct {
	of   *Nodes
	from string // the node's address
}

var _ redis.Hook = slotReader{}

// DialHook implements [redis.Hook].
func (slotReader) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (slotReader) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook implements [redis.Hook].
func (h slotReader) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		slots, ok := cmd.(*redis.ClusterSlotsCmd)
		if err != nil || !ok {
			return err
		}
		used, free, err := readSlots(slots.Val(), h.from)
		if err != nil {
			slots.SetErr(err)
			return err
		}
		slots.SetVal(used)
		h.of.free.Store(free)
		return nil
	}
}
