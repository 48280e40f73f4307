package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"bouncer/gateway/ratelimit"
)

// maxRefunds is how many requests may be given back what they were charged at
// the same time.
const maxRefunds = 256

// errManyRefunds says that a refund was not tried.
var errManyRefunds = errors.New("too many refunds are under way")

// errPart says that a request failed on one slot of a cluster, and that others
// may have charged it: what they were to give back may be lost, or may be drips.
var errPart = errors.New("other slots were asked as well")

// A group is the charges of a request that live in one hash slot, and what came
// of them.
type group struct {
	slot      uint16
	index     []int // of its charges in those of the request
	charges   []ratelimit.Charge
	extra     []int64 // units of each to be charged in advance; nil for none at all
	decisions []ratelimit.Decision
	receipts  []int64
	blocks    []ratelimit.Block // what came of extra
	err       error
}

// oneSlot reports whether all charges live in the same slot.
func (s *Store) oneSlot(charges []ratelimit.Charge) bool {
	same := true
	for i := 1; i < len(charges) && same; i++ {
		same = charges[i].Partition == charges[0].Partition
	}
	if same {
		return true
	}
	first := slot(s.key(&charges[0]))
	for i := range charges[1:] {
		if slot(s.key(&charges[i+1])) != first {
			return false
		}
	}
	return true
}

// group sorts charges by slot and keeps their order.
func (s *Store) group(charges []ratelimit.Charge) (groups []*group) {
	for i := range charges {
		at := slot(s.key(&charges[i]))
		n := slices.IndexFunc(groups, func(g *group) bool { return g.slot == at })
		if n < 0 {
			n, groups = len(groups), append(groups, &group{slot: at})
		}
		groups[n].index = append(groups[n].index, i)
		groups[n].charges = append(groups[n].charges, charges[i])
	}
	return groups
}

// takeSlots decides charges of several slots, in one script call each, sent at
// the same time. Where one denies or fails, what the others charged is given
// back, but for what they charged in advance: that is in the blocks, whatever
// becomes of this request.
func (s *Store) takeSlots(ctx context.Context, charges []ratelimit.Charge, extra []int64, dst []ratelimit.Decision, blocks []ratelimit.Block) ([]ratelimit.Decision, []ratelimit.Block, error) {
	groups := s.group(charges)
	var wg sync.WaitGroup
	for _, g := range groups {
		g.lends(extra)
		wg.Go(func() {
			g.decisions, g.receipts, g.err = s.ask(ctx, g.charges, g.extra, nil, true)
			g.lent()
		})
	}
	wg.Wait()
	if extra != nil {
		blocks = append(blocks, make([]ratelimit.Block, len(charges))...)
		lent := blocks[len(blocks)-len(charges):]
		for _, g := range groups {
			for i := range g.blocks {
				lent[g.index[i]] = g.blocks[i]
			}
		}
	}

	denied := 0 // of those that are enforced
	var failed error
	for _, g := range groups {
		if g.err != nil && failed == nil {
			failed = &nodeError{node: s.nodes.Node(g.charges[0].Partition), err: g.err} //nolint:contextcheck // it waits for nothing
		}
		denied += denials(g.decisions)
	}
	if failed != nil || denied > 0 {
		s.undo(ctx, groups, denied, failed != nil)
	}
	if failed != nil {
		if slices.ContainsFunc(groups, func(g *group) bool { return g.err == nil || Ambiguous(g.err) }) {
			failed = fmt.Errorf("%w (%w)", failed, errPart)
		}
		return dst, blocks, failed
	}
	dst = append(dst, make([]ratelimit.Decision, len(charges))...)
	for _, g := range groups {
		for i, at := range g.index {
			dst[at] = g.decisions[i]
		}
	}
	return dst, blocks, nil
}

// denials counts the decisions that are enforced and denied.
func denials(ds []ratelimit.Decision) (n int) {
	for i := range ds {
		if !ds[i].Allowed && ds[i].Policy.Role == ratelimit.Enforce {
			n++
		}
	}
	return n
}

// undo gives back what a request that is not admitted was charged, and describes
// it so. It returns when that is done or ctx ends; the refunds then go on for
// their own time.
func (s *Store) undo(ctx context.Context, groups []*group, denied int, failed bool) {
	var back []*refund
	for _, g := range groups {
		if g.err != nil {
			continue // nobody knows what it charged
		}
		if r := s.refundOf(g, denied, failed); r != nil {
			back = append(back, r)
		}
	}
	if len(back) == 0 {
		return
	}
	select {
	case s.refunds <- struct{}{}:
	default:
		s.lost(errManyRefunds)
		return
	}
	done := make(chan struct{})
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	go func() {
		defer close(done)
		defer func() { <-s.refunds }()
		defer cancel()
		var wg sync.WaitGroup
		for _, r := range back {
			wg.Go(func() {
				if err := s.giveBack(own, r); err != nil {
					s.lost(err)
				}
			})
		}
		wg.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (s *Store) lost(err error) {
	if s.onRefundLost != nil {
		s.onRefundLost(fmt.Errorf("refund in redis: %w", err))
	}
}

// A refund is one script call that gives back charges of one slot.
type refund struct {
	keys    []string
	buckets []uint64 // the hash of each, where somebody wants to be told
	numbers blob
}

// refundOf says what of g is to be given back, nil for nothing, and describes
// its decisions as those of a request that is not admitted. denied is how many
// limits of all groups deny.
func (s *Store) refundOf(g *group, denied int, failed bool) *refund {
	r := &refund{}
	back := make([]bool, len(g.charges))
	for i := range g.charges {
		c, d := &g.charges[i], &g.decisions[i]
		d.Delay = 0
		if back[i] = g.charged(i, denied, failed); back[i] {
			r.add(s, c, g.receipts[perReceipt*i:])
		} else if c.Policy.CountRejected && d.Allowed && d.Remaining < c.Cost && d.RetryAfter == 0 {
			// It stays charged, and RetryAfter counts from there. For a cost
			// above 1 this is no more than its lower bound.
			d.RetryAfter = d.Reset
		}
	}
	if len(r.keys) == 0 {
		return nil
	}
	for i := range g.charges {
		g.describe(i, back)
	}
	return r
}

// charged reports whether charge i was charged and, since the request is not
// admitted, should not have been.
func (g *group) charged(i, denied int, failed bool) bool {
	c, d := &g.charges[i], &g.decisions[i]
	own := denials(g.decisions)
	switch {
	case !d.Allowed, c.Cost == 0:
		return false
	case c.Policy.Algorithm == ratelimit.LeakyBucket:
		return false // drips are not given back
	case c.Policy.Role == ratelimit.Candidate:
		twin := 0
		if hasTwin(g.charges, i) {
			twin = denials(g.decisions[i-1 : i])
		}
		return own == twin && (failed || denied > twin)
	case c.Policy.CountRejected:
		// It is charged for a request that is not admitted too, and since it
		// fitted, as much. Without a verdict it is given back.
		return own == 0 && failed
	}
	return own == 0
}

// describe has decision i say how its bucket stands without the charges that are
// given back.
func (g *group) describe(i int, back []bool) {
	d, given := &g.decisions[i], int64(0)
	for n := i + 1; n > 0; n = sharing(g.charges, n-1) {
		if back[n-1] {
			given += g.charges[n-1].Cost
		}
	}
	if given == 0 {
		return
	}
	d.Remaining += given
	switch p := d.Policy; {
	case d.Remaining >= p.Capacity():
		d.Reset = 0
	case p.Algorithm == ratelimit.SlidingWindowCounter:
		d.Reset = micros(g.receipts[perReceipt*i+1])
	}
}

// add appends a charge and its receipt.
func (r *refund) add(s *Store, c *ratelimit.Charge, receipt []int64) {
	p := c.Policy
	number := int64(numTokenBucket)
	switch p.Algorithm {
	case ratelimit.FixedWindow:
		number = numFixedWindow
	case ratelimit.SlidingWindowLog:
		number = numWindowLog
	case ratelimit.SlidingWindowCounter:
		number = numWindowCounter
	}
	r.keys = append(r.keys, s.key(c))
	if s.onFreed != nil {
		r.buckets = append(r.buckets, ratelimit.BucketHash(c.Partition, p))
	}
	for _, n := range [...]int64{number, c.Cost, receipt[0], receipt[1], p.Num(), p.Den(), p.Window.Microseconds()} {
		r.numbers.add(n)
	}
}

// giveBack sends a refund, once.
func (s *Store) giveBack(ctx context.Context, r *refund) error {
	c := &call{script: s.scripts.refund, numbers: r.numbers}
	c.args = append(c.args, nil, nil, count(len(r.keys)))
	for _, key := range r.keys {
		c.args = append(c.args, key)
	}
	c.finish(s)
	reply, err := s.run(ctx, c)
	for i, bucket := range r.buckets {
		// Without an answer it may have been given back all the same.
		if err != nil || i < len(reply) && reply[i] == 1 {
			s.onFreed(bucket)
		}
	}
	return err
}

// relearn has the cluster's client ask who has which slot, after an error that
// may mean that this has changed. It does so by itself when it is redirected,
// but a node that is gone redirects nobody.
func (s *Store) relearn(ctx context.Context, err error) {
	switch Kind(err) {
	case KindRefused, KindTimeout, KindLost, KindClusterDown, KindReadOnly, KindLoading:
		s.cluster.ReloadState(ctx)
	}
}
