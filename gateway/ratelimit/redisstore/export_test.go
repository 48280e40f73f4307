package redisstore

import (
	"context"
	_ "embed"
	"slices"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
)

// virtualPrelude takes the time from the caller, so that a suite needs no sleep
// on a real server. It is no part of the program.
//
//go:embed testdata/prelude.lua
var virtualPrelude string

// NewVirtual returns a store whose now is what clock returns, in µs.
func NewVirtual(client Client, o Options, clock func() int64) (*Store, error) {
	return newStore(client, o, virtualPrelude, clock)
}

// Slot is the hash slot of a key.
func Slot(key string) uint16 { return slot(key) }

// TakeForRefund takes with receipts, and returns what gives back all that it
// charged.
func (s *Store) TakeForRefund(ctx context.Context, charges []ratelimit.Charge) ([]ratelimit.Decision, func() error, error) {
	ds, receipts, err := s.ask(ctx, charges, nil, nil, true)
	if err != nil {
		return nil, nil, err
	}
	g := &group{charges: charges, decisions: slices.Clone(ds), receipts: receipts}
	r := s.refundOf(g, 1, false)
	return ds, func() error {
		if r == nil {
			return nil
		}
		return s.giveBack(ctx, r)
	}, nil
}

// Call has the board make one call, of a board that was not started.
func (b *Board) Call() { b.call(false) }

// Crash ends the board as the death of its process would: nobody is told.
func (b *Board) Crash() {
	b.closing.Do(func() {
		close(b.stop)
		if b.started.CompareAndSwap(false, true) {
			close(b.done)
		}
	})
	<-b.done
}

// ErrNoSlots is of a node that knows nothing of the cluster.
var ErrNoSlots = errNoSlots

// ReadSlots returns what can be used of an answer to CLUSTER SLOTS, and how many
// slots it gives no node.
func ReadSlots(answer []redis.ClusterSlot, from string) ([]redis.ClusterSlot, int, error) {
	used, free, err := readSlots(answer, from)
	return used, free.size(), err
}
