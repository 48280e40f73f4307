package memory

import (
	"sync"

	"bouncer/gateway/ratelimit"
)

// overflow keeps what new keys spend while the table is full of entries that
// still count: one bucket per policy key, shared by all of them.
//
// Giving a new key a bucket by pushing out another's would let a caller with
// many keys wipe out what it, or anybody else, has spent; refusing it would let
// the same caller shut everybody else out. One shared bucket does neither: new
// keys together get what the policy grants to one.
//
// The map is bounded by the policies that are in use: it is cleared of what has
// run out whenever another policy key is added.
type overflow struct {
	mu sync.Mutex // taken after the shards' locks
	// mu protects the following field.
	buckets map[string]bucket // by Policy.Key
}

type bucket struct {
	policy *ratelimit.Policy
	state  ratelimit.State
}

// find looks up the overflow buckets of l. Those of its new keys whose policies
// have the same key become one bucket. mu is held.
func (o *overflow) find(l *list) {
	for i := range l.items {
		if !l.isFirst(i) || !l.items[i].overflow {
			continue
		}
		p := l.charges[i].Policy
		l.slots[i].State = o.buckets[p.Key()].state
		for j := range i {
			if l.isFirst(j) && l.items[j].overflow && sameKey(l.charges[j].Policy, p) {
				l.merge(i, j)
				break
			}
		}
	}
}

// set stores the state of an overflow bucket. mu is held.
func (o *overflow) set(p *ratelimit.Policy, s ratelimit.State, now int64) {
	if _, ok := o.buckets[p.Key()]; !ok {
		for key, b := range o.buckets {
			if b.policy.RunsOut(b.state) <= now {
				delete(o.buckets, key)
			}
		}
		if o.buckets == nil {
			o.buckets = make(map[string]bucket)
		}
	}
	o.buckets[p.Key()] = bucket{policy: p, state: s}
}
