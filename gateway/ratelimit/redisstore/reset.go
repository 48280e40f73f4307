package redisstore

import (
	"context"
	"fmt"

	"bouncer/gateway/ratelimit"
)

// Reset empties the buckets of charges, whatever they hold: the next charge finds
// them as if they had never been charged. All of them have one partition, so that on
// a cluster they are on one node, and are emptied in one step. What instances have
// taken out of them in advance, or owe to them, is not known here.
//
// It ends within Options.Timeout; like [Store.Take], it does not end when ctx is
// cancelled. After an error it is not known whether they were emptied; to ask again
// does no harm.
func (s *Store) Reset(ctx context.Context, charges []ratelimit.Charge) error {
	if len(charges) == 0 {
		return nil
	}
	if err := check(charges); err != nil {
		return fmt.Errorf("reset in redis: %w", err)
	}
	args := []any{"del"}
	for i := range charges {
		if charges[i].Partition != charges[0].Partition {
			return fmt.Errorf("reset in redis: charge %d: want the partition of the first", i+1)
		}
		args = append(args, s.key(&charges[i]))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	if _, err := s.processAny(ctx, args); err != nil {
		return fmt.Errorf("reset in redis: %w", err)
	}
	return nil
}
