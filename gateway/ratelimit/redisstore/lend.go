package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"bouncer/gateway/ratelimit"
)

// Lend decides charges as [Store.Take] does and, in the same step, charges up to
// extra[i] further units of charge i, 0 to [ratelimit.MaxLeaseSize], as far as
// they are free and the request is admitted. A charge of cost 0 can take some as
// well. It appends one block for each charge to blocks[:0], empty where nothing
// was charged in advance. Of charges that share a bucket, none gets any.
//
// What is in the blocks is charged, also beside a denial or an error: on a
// cluster the slot of a charge may have admitted what that of another denied.
// Where an answer was lost, nobody knows whether something was charged.
func (s *Store) Lend(
	ctx context.Context, charges []ratelimit.Charge, extra []int64, dst []ratelimit.Decision, blocks []ratelimit.Block,
) ([]ratelimit.Decision, []ratelimit.Block, error) {
	blocks = blocks[:0]
	if len(extra) != len(charges) {
		return dst[:0], blocks, fmt.Errorf("lend from redis: want units for each of %d charges, got %d", len(charges), len(extra))
	}
	for i, units := range extra {
		if units < 0 || units > ratelimit.MaxLeaseSize {
			return dst[:0], blocks, fmt.Errorf("lend from redis: charge %d: want 0 to %d units in advance, got %d", i+1, ratelimit.MaxLeaseSize, units)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	if !lends(extra) {
		extra = nil
	}
	dst, blocks, err := s.take(ctx, charges, extra, dst, blocks)
	for len(blocks) < len(charges) {
		blocks = append(blocks, ratelimit.Block{})
	}
	return dst, blocks, err
}

// Return gives back what is left in blocks of [Store.Lend], as far as it still
// weighs: what has drained or ended since is nobody's any more. Each block may be
// returned once. It ends within Options.Timeout, or when ctx does, and is not
// repeated where the answer is lost. stranded is how many units are then not
// known to be back.
func (s *Store) Return(ctx context.Context, blocks []ratelimit.Block) (stranded int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	charges := make([]ratelimit.Charge, len(blocks))
	for i, b := range blocks {
		charges[i] = ratelimit.Charge{Policy: b.Policy, Partition: b.Partition, Cost: b.Units}
	}
	if err := check(charges); err != nil {
		return 0, fmt.Errorf("return to redis: %w", err)
	}
	groups := []*group{{charges: charges, blocks: blocks}}
	if s.cluster != nil {
		groups = s.group(charges)
		for _, g := range groups {
			for _, at := range g.index {
				g.blocks = append(g.blocks, blocks[at])
			}
		}
	}
	// One after the other: nobody waits for it, and it is not to be in the way of
	// those who ask.
	var errs []error
	for _, g := range groups {
		r, units := &refund{}, int64(0)
		for i := range g.charges {
			r.add(s, &g.charges[i], g.blocks[i].Receipt[:])
			units += g.charges[i].Cost
		}
		if err := s.giveBack(ctx, r); err != nil {
			stranded += units
			errs = append(errs, fmt.Errorf("return %d units to redis: %w", units, err))
		}
	}
	return stranded, errors.Join(errs...)
}

// lends reports whether anything is to be charged in advance.
func lends(extra []int64) bool {
	return slices.ContainsFunc(extra, func(units int64) bool { return units > 0 })
}

// loansOf is how many numbers of the reply tell what was charged in advance.
func loansOf(extra []int64) int {
	if !lends(extra) {
		return 0
	}
	return perLoan * len(extra)
}

// checkLoans refuses what the script cannot have said of what it charged in
// advance. numbers are the receipts, and what follows them.
func checkLoans(extra, numbers []int64) error {
	if !lends(extra) {
		return nil
	}
	for i, loans := 0, numbers[perReceipt*len(extra):]; i < len(extra); i++ {
		if units, lasts := loans[perLoan*i], loans[perLoan*i+1]; units < 0 || units > extra[i] || lasts < 0 {
			return fmt.Errorf("%w: %d units for %d µs were lent to charge %d, which asked for %d", errReply, units, lasts, i+1, extra[i])
		}
	}
	return nil
}

// appendBlocks makes blocks of what a reply says behind its decisions.
func appendBlocks(blocks []ratelimit.Block, charges []ratelimit.Charge, numbers []int64) []ratelimit.Block {
	receipts, loans := numbers[:perReceipt*len(charges)], numbers[perReceipt*len(charges):]
	for i := range charges {
		blocks = append(blocks, ratelimit.Block{
			Policy: charges[i].Policy, Partition: charges[i].Partition,
			Units: loans[perLoan*i], Lasts: micros(loans[perLoan*i+1]),
			Receipt: [2]int64(receipts[perReceipt*i:]),
		})
	}
	return blocks
}

// lends notes which units of the request's charges are asked for here.
func (g *group) lends(extra []int64) {
	if extra == nil {
		return
	}
	g.extra = make([]int64, len(g.index))
	for i, at := range g.index {
		g.extra[i] = extra[at]
	}
	if !lends(g.extra) {
		g.extra = nil
	}
}

// lent makes the blocks of a group that was asked for some. What was charged in
// advance lies above the charge itself, so that a refund of that has to be told
// where it ends.
func (g *group) lent() {
	if g.extra == nil || g.err != nil {
		return
	}
	g.blocks = appendBlocks(nil, g.charges, g.receipts)
	g.receipts = g.receipts[:perReceipt*len(g.charges)]
	for i, b := range g.blocks {
		if b.Policy.Algorithm == ratelimit.TokenBucket {
			g.receipts[perReceipt*i] -= b.Units * b.Policy.Den()
		}
	}
}
