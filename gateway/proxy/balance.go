package proxy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

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
	ward    *ward
	turns   []int32 // a round: indices of targets, each as often as its weight says
	next    atomic.Uint64
}

// newBalancer returns a balancer for targets, whose weights are set.
func newBalancer(balance string, targets []*target, w *ward) (*balancer, error) {
	b := &balancer{balance: balance, targets: targets, ward: w}
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

// asking is what one request may get. It is passed by value: picking allocates nothing.
type asking struct {
	key  string // only a hash looks at it
	been []bool // targets that the request was at already, of which it gets none; nil for none
	now  time.Duration
	sure bool // none that was left out, not even to try it
}

// anyhow is no time: every target has its whole share, however it is.
const anyhow time.Duration = -1

// pick returns the index of a target for a request with that key. been marks the
// targets that the request was at already; nil for none. There must be another. Targets
// that are left out get no request, unless all are.
func (b *balancer) pick(key string, been []bool) int {
	if len(b.targets) == 1 {
		return 0
	}
	if b.ward.troubled.Load() > 0 {
		a := asking{key: key, been: been, now: b.ward.now()}
		for range b.targets {
			at := b.choose(a)
			if at < 0 {
				break
			}
			if b.ward.try(b.targets[at], a.now) {
				return at
			}
		}
	}
	return b.choose(asking{key: key, been: been, now: anyhow})
}

// another returns the index of a target that is not left out, for a request that has
// failed at those that been marks; -1 if there is none. It tries none: a request that
// has got an answer of a sort is not to end in silence.
func (b *balancer) another(key string, been []bool) int {
	now := anyhow
	if b.ward.troubled.Load() > 0 {
		now = b.ward.now()
	}
	return b.choose(asking{key: key, been: been, now: now, sure: true})
}

// share is which part of its requests a target gets.
func (b *balancer) share(at int, a asking) float64 {
	t := b.targets[at]
	switch {
	case a.been != nil && a.been[at]:
		return 0
	case a.now == anyhow:
		return 1
	case a.sure && t.leftOut():
		return 0
	}
	return b.ward.share(t, a.now)
}

// choose returns a target that has a share; -1 if none has.
func (b *balancer) choose(a asking) int {
	if b.balance == Hash {
		return b.hashed(a)
	}
	best := b.turn(a)
	if best < 0 || b.balance == RoundRobin || b.targets[best].inFlight.Load() == 0 {
		return best
	}
	// The start moves on with every request, so that equals take turns and a quiet
	// upstream's first target does not get everything.
	start, n := best, len(b.targets)
	load, weight := b.load(start, b.share(start, a))
	for i := 1; i < n; i++ {
		at := (start + i) % n
		share := b.share(at, a)
		if share == 0 {
			continue
		}
		if l, w := b.load(at, share); l*weight < load*w {
			best, load, weight = at, l, w
		}
	}
	return best
}

// load is how many requests a target would have in flight with one more, and what it
// weighs now.
func (b *balancer) load(at int, share float64) (load, weight float64) {
	t := b.targets[at]
	return float64(t.inFlight.Load() + 1), float64(t.weight) * share
}

// turn returns whose turn it is; -1 if none has a share. The turn of one that is left
// out is used up, so that the one behind it does not get both. A request that has been
// somewhere takes the next turn without using it up: otherwise, of two targets one of
// which is dead, the dead one would have the first turn of every request.
func (b *balancer) turn(a asking) int {
	n := uint64(len(b.turns))
	some, next := -1, b.next.Load()
	for i := range 2 * n {
		// Others take turns meanwhile: whoever had none in a whole round looks on alone.
		if a.been == nil && i < n {
			next = b.next.Add(1) - 1
		}
		at := int(b.turns[next%n])
		next++
		switch share := b.share(at, a); {
		case share == 0:
		case share == 1 || share > rand.Float64(): //nolint:gosec // nobody gains by guessing it
			return at
		case some < 0:
			some = at
		}
	}
	return some
}

// hashed is weighted rendezvous hashing: each target draws a number by lot, which
// depends on the key and on itself alone, and the highest wins. What becomes of the
// keys of one that is gone is drawn among all others.
func (b *balancer) hashed(a asking) int {
	var sum [8]byte
	binary.LittleEndian.PutUint64(sum[:], xxhash.Sum64String(a.key))
	best, most := -1, 0.0
	for at, t := range b.targets {
		share := b.share(at, a)
		if share == 0 {
			continue
		}
		var d xxhash.Digest
		d.ResetWithSeed(t.seed)
		_, _ = d.Write(sum[:])
		// -1/ln(u), for u evenly spread over (0, 1), times the weight: the share of a
		// target of the keys is its share of all weights. One that is coming back
		// weighs less, so that its own keys come back to it one after the other.
		u := (float64(d.Sum64()>>11) + 0.5) / (1 << 53)
		if lot := -float64(t.weight) * share / math.Log(u); best < 0 || lot > most {
			best, most = at, lot
		}
	}
	return best
}
