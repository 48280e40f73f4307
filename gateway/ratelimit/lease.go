package ratelimit

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of a [Lease].
const (
	MinLeaseTTL = 100 * time.Millisecond
	MaxLeaseTTL = 10 * time.Second
	// MaxLeaseSize is the largest block, in units. It is far more than an
	// instance spends while a block lasts, and small enough to go into a Redis
	// script's numbers together with what else is said of a charge.
	MaxLeaseSize int64 = 1_000_000_000
)

// A Lease lets an instance take a block of a policy's budget out of the shared
// store in advance and spend it by itself. What is leased is charged already,
// so no more is ever admitted than the store has charged; but what it charged at
// one moment may be admitted up to TTL later. Over any span dt a policy with a
// lease so admits at most what it grants in dt + TTL: what it grants in dt, and
// what lay in blocks when dt began.
//
// The zero value is no lease. Only gateway/ratelimit/lease looks at it.
type Lease struct {
	// TTL is how long a block may be spent: [MinLeaseTTL] to [MaxLeaseTTL].
	TTL time.Duration
	// Size is how many units a block has, up to [MaxLeaseSize] and to what the
	// policy grants at once. 0 follows what each bucket spends.
	Size int64
}

// check validates the lease of p, whose other fields are valid and filled in.
func (l Lease) check(p *Policy) error {
	switch {
	case l == Lease{}:
		return nil
	case l.TTL < MinLeaseTTL || l.TTL > MaxLeaseTTL:
		return fmt.Errorf("ttl: want %s to %s, got %s", MinLeaseTTL, MaxLeaseTTL, l.TTL)
	case l.Size < 0 || l.Size > MaxLeaseSize:
		return fmt.Errorf("size: want 0 to %d, got %d", MaxLeaseSize, l.Size)
	case p.Quota > 0 && l.Size > p.units:
		return fmt.Errorf("size: want at most %d, which is all that can be spent at once, got %d", p.units, l.Size)
	case p.Algorithm == LeakyBucket:
		return errors.New("want none, since each request waits for a drip of its own in a leaky_bucket")
	case p.CountRejected:
		return errors.New("want none beside count_rejected, since denied attempts are charged where all are counted")
	case p.Role == Candidate:
		return errors.New("want none, since a candidate is decided beside its limit, at the store")
	}
	return nil
}

// A Block is budget of one bucket that a store has charged in advance, on behalf
// of whoever holds the block.
type Block struct {
	// Policy and Partition name the bucket.
	Policy    *Policy
	Partition string
	// Units are charged and not spent, >= 0.
	Units int64
	// Lasts is how long after the charge the window ends that it was charged to, by the
	// store's clock; 0 where units are not charged to a window.
	Lasts time.Duration
	// Receipt is what the store has to know to take units back.
	Receipt [2]int64
}
