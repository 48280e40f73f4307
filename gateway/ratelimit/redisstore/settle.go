package redisstore

import (
	"context"
	"fmt"
	"time"

	"bouncer/gateway/ratelimit"
)

// What one call of Settle takes on, so that it keeps the server from others for
// less than a millisecond.
const (
	maxDebts = 64
	// maxDebtRuns bounds the units of logs, counted once where they have one time.
	// A single log may have more.
	maxDebtRuns = 1000
)

// Settle adds to the buckets in Redis what was spent of them while it was away,
// as far as it still counts by the server's clock: what has not drained, what was
// spent in the window of now. Nothing grows beyond what its policy holds, and no
// window there is moved or made longer.
//
// It asks once, in one script call, for the first n of debts: at most 64, on a
// cluster of those the ones that share a slot with the first. n is at least 1 if
// there are any debts, also beside an error, and Charged of those n says what
// came of them; it is 0 for a bucket that holds what this package did not write.
// The debts stand at their Now, which is to be the time of the call.
//
// After an error that is not [Ambiguous] none of the n was charged. After one
// that is, nobody knows, and they must not be settled again. It ends within
// Options.Timeout; like [Store.Take], it does not end when ctx is cancelled.
func (s *Store) Settle(ctx context.Context, debts []ratelimit.Debt) (n int, err error) {
	n = s.together(debts)
	if n == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	grown, err := s.settle(ctx, debts[:n], time.Now().UnixMicro())
	if clock := clockError(err); clock != nil {
		// Nothing was charged, and the server has told its time.
		grown, err = s.settle(ctx, debts[:n], clock.Now)
		if again := clockError(err); again != nil {
			err = again
		}
	}
	if err == nil && len(grown) != n {
		err = fmt.Errorf("%w: %d numbers for %d debts", errReply, len(grown), n)
	}
	if err != nil {
		return n, fmt.Errorf("settle in redis: %w", err)
	}
	for i := range grown {
		debts[i].Charged = max(0, grown[i])
	}
	return n, nil
}

// together is how many of debts, from the first one, go into one script call.
func (s *Store) together(debts []ratelimit.Debt) int {
	runs := 0
	seen := make(map[string]bool)
	var first uint16
	for i := range debts {
		key := s.debtKey(&debts[i])
		runs += debts[i].Runs()
		switch {
		case i == 0:
			first = slot(key)
		case i == maxDebts, runs > maxDebtRuns, seen[key], s.cluster != nil && slot(key) != first:
			return i
		}
		seen[key] = true
	}
	return len(debts)
}

func (s *Store) debtKey(d *ratelimit.Debt) string {
	return s.key(&ratelimit.Charge{Policy: d.Policy, Partition: d.Partition})
}

// settle sends one script call. now lays the windows of calendars, µs since the
// epoch.
func (s *Store) settle(ctx context.Context, debts []ratelimit.Debt, now int64) ([]int64, error) {
	c := &call{script: s.scripts.settle}
	c.args = append(c.args, nil, nil, count(len(debts)))
	for i := range debts {
		d := &debts[i]
		c.args = append(c.args, s.debtKey(d))
		x, y, spent := owed(d)
		// The script reads the nine numbers of a charge, with these in the places
		// of its flags, its earlier charge and its cost.
		c.policy(&ratelimit.Charge{Policy: d.Policy, Partition: d.Partition, Cost: spent}, x, y, now)
	}
	for i := range debts {
		for at, units := range debts[i].State.Units() {
			c.numbers.add(debts[i].Now - at)
			c.numbers.add(units)
		}
	}
	c.finish(s)
	return s.run(ctx, c)
}

// owed returns what lua/settle.lua has to know of a debt.
func owed(d *ratelimit.Debt) (x, y, spent int64) {
	switch d.Policy.Algorithm {
	case ratelimit.FixedWindow:
		if d.Policy.Calendar != nil {
			return d.State.Time, d.Now - d.First, d.State.Spent
		}
		if left := d.State.Time - d.Now; left > 0 {
			return left, 0, d.State.Spent
		}
		return 0, 0, 0
	case ratelimit.SlidingWindowCounter:
		return d.State.Den, d.Now - d.State.Time, d.State.Spent
	case ratelimit.SlidingWindowLog:
		runs := int64(0)
		for range d.State.Units() {
			runs++
		}
		return runs, 0, 0
	}
	return 0, 0, d.State.Spent
}
