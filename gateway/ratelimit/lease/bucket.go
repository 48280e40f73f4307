package lease

import (
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"time"

	"bouncer/gateway/ratelimit"
)

const (
	shards = 32
	// maxBlocks is how many blocks of one bucket are held at a time. Two are
	// usual, while one is filled up ahead of need; more come only of blocks that the store
	// could fill in part.
	maxBlocks = 4
	// sample is how many buckets are looked at for one that makes room.
	sample = 8
)

// A shard is some of the buckets.
type shard struct {
	mu      sync.Mutex // protects buckets, and all that is in them
	buckets map[key]*bucket
}

// A key names a bucket: a partition and the key of a policy.
type key struct{ partition, policy string }

// A bucket is what this instance holds of one bucket of the store, and how fast
// it spends it.
type bucket struct {
	policy    *ratelimit.Policy // that charged last
	partition string
	blocks    []*block // oldest first
	refilling bool     // a call is under way that may bring a block
	forgotten int      // how often what is held was given up; see Leases.Forget
	patience  time.Duration
	used      time.Duration // when it was charged last

	// What the store said last, and when it was asked.
	remaining int64
	reset     time.Duration
	at        time.Duration

	// Units asked for since the last half TTL began, and in those before, the
	// older the less. What this bucket denied counts as well: it would have been spent.
	since time.Duration
	spent float64
	rate  float64
}

// A block is units that the store has charged.
type block struct {
	units   int64 // that can be spent
	out     int64 // paid by requests that are not decided yet
	ends    time.Duration
	window  time.Duration // when its window ends; 0 if it has none
	receipt [2]int64
}

// A payment is what becomes of one charge.
type payment struct {
	bucket   *bucket // nil: the charge is not leased, and asked for as it is
	shard    *shard
	cost     int64
	only     bool // from blocks or not at all
	asks     bool // the store is asked
	answered bool // and has answered
	refills  bool
	held     int   // bucket.forgotten when the store was asked
	hot      bool  // the bucket is leased here
	need     int64 // what the store is asked for
	extra    int64 // and what in advance
	at       int   // of the charge in what the store is asked
	parts    [maxBlocks]part
	lent     ratelimit.Block
	decision ratelimit.Decision
}

// A part is what one block has paid.
type part struct {
	block *block
	units int64
}

// pay pays charge i from the blocks of its bucket, as far as they go, and says in
// p what the store is to be asked for.
func (l *Leases) pay(p *payment, charges []ratelimit.Charge, i int, now time.Duration) {
	c := &charges[i]
	p.cost, p.need, p.asks = c.Cost, c.Cost, true
	// A bucket that is charged twice is the store's to decide, in order; and what
	// never fits is denied whatever lies in blocks.
	if c.Policy.Lease.TTL == 0 || c.Cost < 0 || c.Cost > c.Policy.Capacity() || shared(charges, i) {
		return
	}
	s := &l.shards[maphash.String(l.seed, c.Partition)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[key{c.Partition, c.Policy.Key()}]
	if b == nil {
		if c.Cost == 0 || p.only {
			return
		}
		if b = l.watch(s, c, now); b == nil {
			return
		}
	}
	if !alike(b.policy, c.Policy) {
		if len(b.blocks) > 0 || b.refilling {
			return // they are spent by those whose numbers they were charged by
		}
		b.since, b.spent, b.rate = now, 0, 0
	}
	b.policy, p.bucket, p.shard, p.held = c.Policy, b, s, b.forgotten
	if c.Cost == 0 {
		return // a look: the store is asked, and what lies here added
	}
	b.used = now
	b.measure(now)
	left := b.left(now)
	if p.only && left < c.Cost {
		return
	}
	paid := min(left, c.Cost)
	left -= paid
	p.need = c.Cost - paid
	b.spend(p, paid, now)
	size := b.size(c.Cost, l)
	p.hot = size > 0
	if !p.only && size > left && !b.refilling && b.room() &&
		(p.need > 0 || left <= size/4 && now >= b.patience) {
		p.extra, p.refills, b.refilling = size-left, true, true
	}
	p.asks = p.need > 0 || p.extra > 0
	if p.need == 0 {
		// This stands if the store is not asked, or does not answer.
		p.decision = ratelimit.Decision{
			Policy: c.Policy, Allowed: true, Source: ratelimit.SourceLease,
			Remaining: min(b.remaining+left, c.Policy.Capacity()),
			// What is leased is spent, so that there is always something to come.
			Reset: max(b.reset-(now-b.at), time.Microsecond),
		}
	}
}

// settle ends payments: what was paid is spent if the request is admitted, or
// else goes back. What was lent is there for the next ones in any case. now is
// when the store was asked, or would have been.
func (l *Leases) settle(ps []payment, admitted bool, now time.Duration) {
	for i := range ps {
		if ps[i].bucket != nil {
			l.settleOne(&ps[i], admitted, now)
		}
	}
}

func (l *Leases) settleOne(p *payment, admitted bool, now time.Duration) {
	b, d := p.bucket, &p.decision
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	back := int64(0)
	denied := p.answered && !d.Allowed // by this limit, which may be a shadow
	for _, part := range p.parts {
		if part.block == nil {
			break
		}
		part.block.out -= part.units
		if !admitted || denied {
			part.block.units += part.units
			back += part.units
		}
	}
	if admitted || denied {
		b.spent += float64(p.cost)
	}
	if p.answered && now >= b.at && p.held == b.forgotten {
		b.remaining, b.reset, b.at = d.Remaining, d.Reset, now
	}
	if p.refills {
		b.refilling = false
		if p.lent.Units > 0 && p.held != b.forgotten {
			l.stranded(p.lent.Units) // of what the bucket was, for all that is known
		} else if p.lent.Units > 0 {
			l.add(b, p.lent, now)
		} else {
			// There is none, or nobody there to ask: not again for every request
			// that could be paid from here.
			b.patience = l.now() + b.policy.Lease.TTL/8
		}
	}
	switch {
	case p.answered:
		d.Remaining = min(d.Remaining+b.left(l.now()), d.Policy.Capacity())
		if p.hot && d.RetryAfter > 0 {
			d.RetryAfter = max(d.RetryAfter, b.policy.Lease.TTL/8)
		}
	case back > 0 && p.need == 0: // else there is no decision
		d.Remaining = min(d.Remaining+back, d.Policy.Capacity())
	}
}

// add puts a block that was lent, by an answer to what was asked at asked, among
// those of b.
func (l *Leases) add(b *bucket, lent ratelimit.Block, asked time.Duration) {
	if l.closed.Load() {
		l.stranded(lent.Units) // nobody will return it
		return
	}
	before := len(b.blocks)
	b.blocks = slices.DeleteFunc(b.blocks, func(k *block) bool { return k.units == 0 && k.out == 0 })
	k := &block{units: lent.Units, receipt: lent.Receipt}
	lasts := b.policy.Lease.TTL
	if lent.Lasts > 0 {
		k.window = asked + lent.Lasts
		lasts = min(lasts, lent.Lasts)
	}
	k.ends = asked + lasts - lasts/1000
	b.blocks = append(b.blocks, k)
	l.blocks(len(b.blocks) - before)
}

// watch returns a new bucket for c, or nil if there is no room.
func (l *Leases) watch(s *shard, c *ratelimit.Charge, now time.Duration) *bucket {
	if l.buckets.Load() >= int64(l.o.MaxBuckets) && !l.evict(s) {
		if l.o.Hooks.Full != nil {
			l.o.Hooks.Full()
		}
		return nil
	}
	b := &bucket{policy: c.Policy, partition: c.Partition, since: now, used: now}
	s.buckets[key{c.Partition, c.Policy.Key()}] = b
	if l.buckets.Add(1) == 1 {
		l.sweeper.notify()
	}
	return b
}

// evict removes a bucket of s that holds nothing: the one that spends least of
// some that come first, so that a crowd of cold keys does not push out a hot one.
// It reports whether there was one.
func (l *Leases) evict(s *shard) bool {
	var coldest key
	var least *bucket
	looked := 0
	for k, b := range s.buckets {
		if looked++; looked > sample {
			break
		}
		if len(b.blocks) == 0 && !b.refilling && (least == nil || b.spending() < least.spending()) {
			coldest, least = k, b
		}
	}
	if least == nil {
		return false
	}
	delete(s.buckets, coldest)
	l.buckets.Add(-1)
	return true
}

// measure moves on to the half TTL that now lies in.
func (b *bucket) measure(now time.Duration) {
	half := b.policy.Lease.TTL / 2
	n := (now - b.since) / half
	if n < 1 {
		return
	}
	b.rate = math.Ldexp(b.rate+b.spent, -int(min(n, 64)))
	b.since, b.spent = b.since+n*half, 0
}

// spending is what is spent in half a TTL. What was spent in the one that is not
// over counts whole, so that a bucket that becomes hot is leased at once.
func (b *bucket) spending() float64 { return max(b.rate, b.spent) }

// size is how many units the bucket should have here when a request of cost
// comes; 0 for none at all.
func (b *bucket) size(cost int64, l *Leases) int64 {
	if n := b.policy.Lease.Size; n > 0 {
		return n
	}
	spending := b.spending()
	if spending < 2*float64(cost) {
		return 0
	}
	most := max(1, min(b.policy.Quota, b.policy.Capacity(), 4*ratelimit.MaxLeaseSize)/(4*l.instances()))
	size := min(int64(min(spending*1.5, float64(most))), most)
	if size < cost {
		return 0
	}
	return size
}

// left is how many units can be spent at now.
func (b *bucket) left(now time.Duration) (units int64) {
	for _, k := range b.blocks {
		if now < k.ends {
			units += k.units
		}
	}
	return units
}

// spend takes units out of blocks, oldest first. There are as many.
func (b *bucket) spend(p *payment, units int64, now time.Duration) {
	n := 0
	for _, k := range b.blocks {
		if some := min(k.units, units); some > 0 && now < k.ends {
			k.units -= some
			k.out += some
			units -= some
			p.parts[n] = part{k, some}
			n++
		}
	}
}

// room reports whether one block more may be held. One that is used up makes room.
func (b *bucket) room() bool {
	n := 0
	for _, k := range b.blocks {
		if k.units+k.out > 0 {
			n++
		}
	}
	return n < maxBlocks
}

// alike reports whether what is charged by one policy may be spent by another one
// of the same key.
func alike(p, q *ratelimit.Policy) bool {
	return p == q || p.Quota == q.Quota && p.CapacityParts() == q.CapacityParts() &&
		p.Num() == q.Num() && p.Den() == q.Den() && p.Lease == q.Lease
}
