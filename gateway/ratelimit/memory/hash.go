package memory

import (
	"hash/maphash"
	"math/bits"

	"bouncer/gateway/ratelimit"
)

// A hasher hashes keys under a secret of its store, so that no caller can choose
// keys that crowd one shard.
type hasher struct {
	seed maphash.Seed
	mask uint64 // all ones, but in tests of colliding hashes
}

func newHasher() hasher { return hasher{seed: maphash.MakeSeed(), mask: ^uint64(0)} }

// sum returns the hash of a key. Its two halves are hashed one by one, so that
// they need not be put together first.
func (h hasher) sum(partition string, p *ratelimit.Policy) uint64 {
	a := maphash.String(h.seed, partition)
	b := maphash.String(h.seed, p.Key())
	// The rotation tells (a, b) from (b, a).
	return (a ^ bits.RotateLeft64(b, 29)) & h.mask
}

// shardOf returns the number of the shard that keeps the keys of this hash.
func shardOf(hash uint64) int { return int(hash >> (64 - shardBits)) }
