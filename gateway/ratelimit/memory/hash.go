package memory

import (
	"hash/maphash"

	"bouncer/gateway/ratelimit"
)

// An id stands for the key of a bucket, which is a partition and the key of a
// policy: 127 bits of hash under secrets of the store. The key itself is kept
// nowhere, and ids that are equal are taken for one bucket.
//
// Two of n keys have one id with a probability of about n²/2 in 2^127: 3·10⁻²¹
// with a thousand million keys. Nobody can do better than chance, since nobody
// knows the secrets or sees an id. Were it to happen, the two would share a count.
//
// The zero id is no key's.
type id struct {
	place uint64 // its last bits choose the shard, its first ones the segment
	slot  uint64 // chooses the slot in the segment; 0 in a slot that is free
}

// A hasher makes ids.
type hasher struct{ place, slot maphash.Seed }

func newHasher() hasher { return hasher{maphash.MakeSeed(), maphash.MakeSeed()} }

// partition returns a partition's half of an id.
func (h hasher) partition(partition string) id {
	return id{maphash.String(h.place, partition), maphash.String(h.slot, partition)}
}

// with returns the id of a policy's bucket in the partition that part is made of.
// The policy's half is no secret, and need not be: two keys have one id only if
// the secret halves differ by exactly as much as the others.
func (part id) with(p *ratelimit.Policy) id {
	a, b := p.KeyHash()
	return id{part.place ^ a, part.slot ^ b | 1}
}
