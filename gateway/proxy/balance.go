package proxy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// How an Upstream picks a target. All three go by the weights of the targets.
const (
	// LeastRequests picks the target with the fewest requests in flight for its
	// weight; those that have none take turns.
	LeastRequests = "least_requests"
	// RoundRobin picks the targets in turn, one of weight 3 three times as often as
	// one of weight 1, and not three times in a row.
	RoundRobin = "round_robin"
	// Hash picks the same target for all requests with the same Forward.Key, as does
	// every other instance with the same targets. When a target goes, or comes, only
	// the keys move that were, or will be, its own.
	Hash = "hash"
)

// MaxWeight is the largest weight of a target. It bounds how long a round of turns
// is, and so how much memory it takes.
const MaxWeight = 1000

// A balancer picks targets. It is safe for concurrent use, and picking allocates
// nothing.
type balancer struct {
	balance string
	targets []*target
	turns   []int32 // a round: indices of targets, each as often as its weight says
	next    atomic.Uint64
}

// newBalancer returns a balancer for targets, whose weights are set.
func newBalancer(balance string, targets []*target) (*balancer, error) {
	b := &balancer{balance: balance, targets: targets}
	switch balance {
	case "":
		b.balance = LeastRequests
	case LeastRequests, RoundRobin, Hash:
	default:
		return nil, fmt.Errorf("balance %q: want %s, %s or %s", balance, LeastRequests, RoundRobin, Hash)
	}
	if b.balance != Hash {
		b.turns = turns(targets)
	}
	return b, nil
}

// turns writes out one round: the i-th turn of a target of weight w stands where
// (i+½)/w of the round is over, so that the turns of each are spread evenly.
func turns(targets []*target) []int32 {
	common := int64(0)
	for _, t := range targets {
		common = divisor(common, t.weight)
	}
	type turn struct{ target, twice, weight int64 } // it stands at twice/(2·weight)
	var all []turn
	for at, t := range targets {
		w := t.weight / common
		for i := range w {
			all = append(all, turn{int64(at), 2*i + 1, w})
		}
	}
	slices.SortStableFunc(all, func(a, b turn) int { return cmp.Compare(a.twice*b.weight, b.twice*a.weight) })
	round := make([]int32, len(all))
	for i, t := range all {
		round[i] = int32(t.target) //nolint:gosec // an index
	}
	return round
}

// divisor is the greatest common divisor.
func divisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// pick returns the index of a target for a request with that key, which only a hash
// looks at. been marks the targets that the request was at already, of which it gets
// none; nil for none. There must be another.
func (b *balancer) pick(key string, been []bool) int {
	switch {
	case len(b.targets) == 1:
		return 0
	case b.balance == Hash:
		return b.hashed(key, been)
	}
	start := b.turn(been)
	if b.balance == RoundRobin || b.targets[start].inFlight.Load() == 0 {
		return start
	}
	// The start moves on with every request, so that equals take turns and a quiet
	// upstream's first target does not get everything.
	best, n := start, len(b.targets)
	load, weight := b.targets[start].inFlight.Load()+1, b.targets[start].weight
	for i := 1; i < n; i++ {
		at := (start + i) % n
		if been != nil && been[at] {
			continue
		}
		t := b.targets[at]
		if l := t.inFlight.Load() + 1; l*weight < load*t.weight {
			best, load, weight = at, l, t.weight
		}
	}
	return best
}

// turn returns whose turn it is. A request that has been somewhere takes the next one
// without using it up: otherwise, of two targets one of which is dead, the dead one
// would have the first turn of every request.
func (b *balancer) turn(been []bool) int {
	n := uint64(len(b.turns))
	if been == nil {
		return int(b.turns[(b.next.Add(1)-1)%n])
	}
	at := b.next.Load()
	for been[b.turns[at%n]] {
		at++
	}
	return int(b.turns[at%n])
}

// hashed is weighted rendezvous hashing: each target draws a number by lot, which
// depends on the key and on itself alone, and the highest wins. What becomes of the
// keys of one that is gone is drawn among all others.
func (b *balancer) hashed(key string, been []bool) int {
	var sum [8]byte
	binary.LittleEndian.PutUint64(sum[:], xxhash.Sum64String(key))
	best, most := -1, 0.0
	for at, t := range b.targets {
		if been != nil && been[at] {
			continue
		}
		var d xxhash.Digest
		d.ResetWithSeed(t.seed)
		_, _ = d.Write(sum[:])
		// -1/ln(u), for u evenly spread over (0, 1), times the weight: the share of a
		// target of the keys is its share of all weights.
		u := (float64(d.Sum64()>>11) + 0.5) / (1 << 53)
		if lot := -float64(t.weight) / math.Log(u); best < 0 || lot > most {
			best, most = at, lot
		}
	}
	return best
}
