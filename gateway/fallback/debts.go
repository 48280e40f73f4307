package fallback

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bouncer/gateway/ratelimit"
)

// Bounds of what is noted while the primary is away.
const (
	// maxDebts is how many buckets are noted.
	maxDebts = 100_000
	// maxRuns is how many groups of units the logs among them hold together, 16
	// bytes each.
	maxRuns = 1_000_000
	// sweepEvery is how often a full table is searched for what counts no more.
	sweepEvery = time.Second
	debtShards = 16
)

// debts is what was admitted without the primary and is yet to be charged to it.
// It is empty while the primary answers.
type debts struct {
	buckets, runs atomic.Int64 // what is noted, or being settled
	swept         atomic.Int64 // when a full table was last swept, µs
	seed          maphash.Seed
	shards        [debtShards]debtShard
}

type debtShard struct {
	mu sync.Mutex
	// mu protects the following field.
	accounts map[string]*account // by partition; nil if there are none
}

// An account is the debts of one partition: those of a few limits.
type account struct{ debts []ratelimit.Debt }

// find returns the debt of the bucket of p, or nil.
func (a *account) find(p *ratelimit.Policy) *ratelimit.Debt {
	for i := range a.debts {
		if q := a.debts[i].Policy; q == p || q.Key() == p.Key() {
			return &a.debts[i]
		}
	}
	return nil
}

func (d *debts) shard(partition string) *debtShard {
	return &d.shards[maphash.String(d.seed, partition)%debtShards]
}

// note adds c, which was admitted at now. It is false if there is no room.
func (d *debts) note(c *ratelimit.Charge, now int64) bool {
	sh := d.shard(c.Partition)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	log := c.Policy.Algorithm == ratelimit.SlidingWindowLog
	if log && d.runs.Load() >= maxRuns {
		return false
	}
	a := sh.accounts[c.Partition]
	var debt *ratelimit.Debt
	if a != nil {
		debt = a.find(c.Policy)
	}
	if debt == nil {
		if d.buckets.Add(1) > maxDebts {
			d.buckets.Add(-1)
			return false
		}
		if a == nil {
			if sh.accounts == nil {
				sh.accounts = make(map[string]*account)
			}
			// A copy, since the caller's string may be part of a larger one.
			a = new(account)
			sh.accounts[strings.Clone(c.Partition)] = a
		}
		a.debts = append(a.debts, ratelimit.Debt{Policy: c.Policy, Partition: strings.Clone(c.Partition)})
		debt = &a.debts[len(a.debts)-1]
	}
	before := debt.Runs()
	debt.Charge(c.Policy, now, c.Cost)
	if log {
		d.runs.Add(int64(debt.Runs() - before))
	}
	return true
}

// full reports whether a new bucket, or a log, might find no room.
func (d *debts) full() bool { return d.buckets.Load() >= maxDebts || d.runs.Load() >= maxRuns }

// sweep forgets what does not count any more at now, unless that was done within
// the last second. It returns the units of it.
func (d *debts) sweep(now int64) (units int64) {
	last := d.swept.Load()
	if now-last < sweepEvery.Microseconds() || !d.swept.CompareAndSwap(last, now) {
		return 0
	}
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		for partition, a := range sh.accounts {
			kept := a.debts[:0]
			for j := range a.debts {
				debt := a.debts[j]
				before := debt.Runs()
				debt.Advance(now)
				if debt.Counts() {
					d.runs.Add(int64(debt.Runs() - before))
					kept = append(kept, debt)
					continue
				}
				units += debt.Units
				d.runs.Add(int64(-before))
				d.buckets.Add(-1)
			}
			clear(a.debts[len(kept):])
			a.debts = kept
			if len(kept) == 0 {
				delete(sh.accounts, partition)
			}
		}
		sh.mu.Unlock()
	}
	return units
}

// take removes some debts, of partitions that are ready: whole accounts of at least
// n debts in all if there are so many. They take up room until done is told of them.
func (d *debts) take(n int, ready func(partition string) bool) (list []ratelimit.Debt) {
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		for partition, a := range sh.accounts {
			if len(list) >= n {
				break
			}
			if !ready(partition) {
				continue
			}
			list = append(list, a.debts...)
			delete(sh.accounts, partition)
		}
		if len(sh.accounts) == 0 {
			sh.accounts = nil // a map keeps the room of all that it ever held
		}
		sh.mu.Unlock()
		if len(list) >= n {
			break
		}
	}
	return list
}

// forget drops the debts of the bucket of a policy in a partition, and returns the
// units of them.
func (d *debts) forget(partition string, p *ratelimit.Policy) (units int64) {
	sh := d.shard(partition)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	a := sh.accounts[partition]
	if a == nil {
		return 0
	}
	debt := a.find(p)
	if debt == nil {
		return 0
	}
	units = debt.Units
	d.done([]ratelimit.Debt{*debt})
	last := len(a.debts) - 1
	*debt, a.debts[last] = a.debts[last], ratelimit.Debt{}
	if a.debts = a.debts[:last]; last == 0 {
		delete(sh.accounts, partition)
	}
	return units
}

// done gives back the room of debts that were taken and are settled or given up.
func (d *debts) done(list []ratelimit.Debt) {
	for i := range list {
		d.runs.Add(int64(-list[i].Runs()))
	}
	d.buckets.Add(int64(-len(list)))
}
