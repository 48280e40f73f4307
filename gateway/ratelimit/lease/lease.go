// Package lease takes blocks of a limit's budget out of the shared store in
// advance and spends them in this process, so that a bucket that everybody
// charges does not cost the store a call for every request.
//
// It is not a limiter: it decides nothing that the store has not charged before.
// It is not for cold keys, whose next request may come to another instance; they
// are asked for one by one, as ever. And it holds nothing in reserve for an
// outage: a block is good until its TTL, whether the store is there or not, and
// no longer.
//
// # How it is spent
//
// A charge whose policy has a [ratelimit.Lease] is paid from the live blocks of
// its bucket. What they do not hold, and all other charges of the request, the
// store is asked for in one call; if nothing is left to ask, there is no call. If
// the store denies, what was paid goes back into the blocks: all or none.
//
// One request at a time takes a new block along, when a quarter of the last one
// is left or it is used up: its call to the store asks for further units of the
// bucket, which the store charges in the same step as far as they are free.
// Others pay from what is left meanwhile, or are asked for one by one.
//
// A block of Size 0 follows what the bucket has spent here of late: three quarters
// of a TTL's worth, at most the quota / (4 × instances), so that what lies in
// blocks is at most a quarter of the limit. A bucket that spends less than two
// requests in half a TTL has none.
//
// A block ends after its TTL, or with the window that it was charged to, counted from before the
// store was asked, and less a thousandth, by which clocks may differ. What
// is left is returned to the store, once, by one goroutine.
//
// # What it promises
//
//   - What is admitted is charged, and what is charged is admitted once or not at
//     all. So no more is admitted than the store grants, whatever fails. But what was
//     charged at one moment may be admitted up to a TTL later: over any span dt a
//     limit admits at most what it grants in dt + TTL. In a fixed window, on a
//     calendar or not, and in a window of a sliding_window_counter it is exact.
//   - What an instance holds and does not spend, others cannot: at most a block for
//     each instance and bucket, until it ends. If it was not returned by then (a crash, an
//     answer that was lost), it is stranded: spent, and admitted nobody.
//   - A store that fails is asked as often as without leases. While it is away,
//     live blocks are spent on, and a block that could not be filled up ahead of need fails no
//     request.
//   - A denial of a bucket that is leased here holds for an eighth of the TTL at
//     least, so that the units that come back meanwhile are fetched together. Nobody gets less for it.
//   - At most MaxBuckets are watched, at most four blocks are held of each; what
//     is beyond is asked for one by one, and Hooks.Full is told.
//
// # Use
//
//	leases, err := lease.New(redis, lease.Options{})
//	leases.Start()
//	…
//	decisions, err := leases.Take(ctx, charges, nil) // a ratelimit.Store
//	…
//	leases.Close() // returns all blocks
package lease

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"bouncer/gateway/ratelimit"
)

// DefaultMaxBuckets is Options.MaxBuckets when it is 0.
const DefaultMaxBuckets = 10_000

// A Store is a store that can charge in advance.
// gateway/ratelimit/redisstore documents both methods.
type Store interface {
	ratelimit.Store
	// Lend decides charges as Take does and, in the same step, charges up to
	// extra[i] further units of charge i. It returns a block for each charge, also
	// beside an error, empty where nothing was charged.
	Lend(ctx context.Context, charges []ratelimit.Charge, extra []int64, dst []ratelimit.Decision, blocks []ratelimit.Block) ([]ratelimit.Decision, []ratelimit.Block, error)
	// Return gives back what is left in blocks, once, and says how many units are
	// not known to be back.
	Return(ctx context.Context, blocks []ratelimit.Block) (stranded int64, err error)
}

// Options tune [Leases]. The zero value is good.
type Options struct {
	// Instances is how many instances share each limit, as last known; it is
	// called for charges that are leased, so it is to be cheap. Below 1 counts as
	// 1; nil means 1.
	Instances func() int
	// MaxBuckets bounds how many buckets are watched and can have blocks: 1 or
	// more, default 10,000. The bucket that spends least makes room.
	MaxBuckets int
	// Hooks report what happens.
	Hooks Hooks
}

// Hooks are called when something happens; nil ones are skipped. They must not
// block, and must be safe for concurrent use.
type Hooks struct {
	// Blocks says that so many blocks more, or less, are held.
	Blocks func(change int)
	// Stranded counts units that were taken in advance and are not known to be
	// spent or back.
	Stranded func(units int64)
	// Full counts charges that were asked for one by one since MaxBuckets have
	// blocks.
	Full func()
	// Failed reports an error of the store that no request has seen: a block
	// that was to be filled up ahead of need, or returned.
	Failed func(error)
}

// Leases is a [ratelimit.Store] that leases from another one. It is safe for
// concurrent use.
type Leases struct {
	store  Store
	o      Options
	start  time.Time // what all times here count from
	seed   maphash.Seed
	shards [shards]shard
	asks   sync.Pool // *ask

	buckets atomic.Int64 // how many there are
	closed  atomic.Bool
	sweeper sweeper
}

var _ ratelimit.Store = (*Leases)(nil)

// New returns leases from store. It starts nothing; until [Leases.Start] blocks
// end and are not returned.
func New(store Store, o Options) (*Leases, error) {
	if store == nil {
		return nil, errors.New("lease: want a store, got nil")
	}
	if o.MaxBuckets == 0 {
		o.MaxBuckets = DefaultMaxBuckets
	}
	if o.MaxBuckets < 1 {
		return nil, fmt.Errorf("lease: max buckets: want 1 or more, got %d", o.MaxBuckets)
	}
	l := &Leases{store: store, o: o, start: time.Now(), seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i].buckets = map[key]*bucket{}
	}
	l.asks.New = func() any { return new(ask) }
	l.sweeper.init()
	return l, nil
}

// An ask is what one decision needs besides its answer.
type ask struct {
	payments  []payment          // one for each charge of the request
	charges   []ratelimit.Charge // what the store is asked
	extra     []int64            // and what in advance
	decisions []ratelimit.Decision
	blocks    []ratelimit.Block
	lends     bool // some of extra is not 0
	needs     bool // some of charges has to be answered for the request to be
}

// Take decides charges; see [ratelimit.Store] and the package comment.
func (l *Leases) Take(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	if !leased(charges) || l.closed.Load() {
		return l.store.Take(ctx, charges, dst)
	}
	now := l.now()
	a := l.asks.Get().(*ask)
	defer l.release(a)
	for i := range charges {
		p := a.payment()
		l.pay(p, charges, i, now)
		if p.asks {
			p.at = len(a.charges)
			a.charges = append(a.charges, charges[i])
			a.charges[p.at].Cost = p.need
			a.extra = append(a.extra, p.extra)
			a.lends = a.lends || p.extra > 0
			a.needs = a.needs || p.need > 0 || charges[i].Cost == 0
		}
	}
	if len(a.charges) == 0 {
		l.settle(a.payments, true, now)
		return decided(dst, a.payments), nil
	}

	var err error
	if a.lends {
		a.decisions, a.blocks, err = l.store.Lend(ctx, a.charges, a.extra, a.decisions, a.blocks)
	} else {
		a.decisions, err = l.store.Take(ctx, a.charges, a.decisions)
	}
	if err == nil && len(a.decisions) != len(a.charges) {
		err = fmt.Errorf("lease: %d decisions for %d charges", len(a.decisions), len(a.charges))
	}
	admitted := !a.needs // by the blocks alone, whatever the store says
	if err == nil {
		admitted = ratelimit.Admitted(a.decisions)
	}
	for i := range a.payments {
		p := &a.payments[i]
		if !p.asks {
			continue
		}
		if err == nil {
			p.decision, p.answered = a.decisions[p.at], true
		}
		if a.lends && p.at < len(a.blocks) {
			p.lent = a.blocks[p.at]
		}
	}
	l.settle(a.payments, admitted, now)
	switch {
	case err == nil:
	case admitted:
		l.failed(err)
	default:
		return dst[:0], err
	}
	return decided(dst, a.payments), nil
}

// Held decides charges from blocks alone, as far as they go: it asks no store.
// It reports false, and has charged nothing, if some charge cannot be paid so.
func (l *Leases) Held(charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, bool) {
	if !leased(charges) {
		return dst[:0], false
	}
	now := l.now()
	a := l.asks.Get().(*ask)
	defer l.release(a)
	all := true
	for i := 0; i < len(charges) && all; i++ {
		p := a.payment()
		p.only = true
		l.pay(p, charges, i, now)
		all = !p.asks
	}
	l.settle(a.payments, all, now)
	if !all {
		return dst[:0], false
	}
	return decided(dst, a.payments), true
}

// leased reports whether some policy of charges has a lease.
func leased(charges []ratelimit.Charge) bool {
	for i := range charges {
		if charges[i].Policy.Lease.TTL > 0 {
			return true
		}
	}
	return false
}

// shared reports whether another one of charges has the bucket of charge i.
func shared(charges []ratelimit.Charge, i int) bool {
	for j := range charges {
		if j != i && charges[j].Partition == charges[i].Partition && charges[j].Policy.Key() == charges[i].Policy.Key() {
			return true
		}
	}
	return false
}

// decided returns the decisions of payments in dst.
func decided(dst []ratelimit.Decision, ps []payment) []ratelimit.Decision {
	dst = dst[:0]
	for i := range ps {
		dst = append(dst, ps[i].decision)
	}
	return dst
}

func (a *ask) payment() *payment {
	a.payments = append(a.payments, payment{})
	return &a.payments[len(a.payments)-1]
}

// release makes a ready for reuse. It holds on to no caller's strings.
func (l *Leases) release(a *ask) {
	clear(a.payments)
	clear(a.charges)
	clear(a.decisions)
	clear(a.blocks)
	a.payments, a.charges, a.extra = a.payments[:0], a.charges[:0], a.extra[:0]
	a.decisions, a.blocks, a.lends, a.needs = a.decisions[:0], a.blocks[:0], false, false
	l.asks.Put(a)
}

func (l *Leases) now() time.Duration { return time.Since(l.start) }

func (l *Leases) instances() int64 {
	if l.o.Instances == nil {
		return 1
	}
	return int64(max(1, l.o.Instances()))
}

func (l *Leases) failed(err error) {
	if l.o.Hooks.Failed != nil {
		l.o.Hooks.Failed(err)
	}
}

func (l *Leases) stranded(units int64) {
	if units > 0 && l.o.Hooks.Stranded != nil {
		l.o.Hooks.Stranded(units)
	}
}

func (l *Leases) blocks(change int) {
	if change != 0 && l.o.Hooks.Blocks != nil {
		l.o.Hooks.Blocks(change)
	}
}
