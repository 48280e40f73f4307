package lease

import (
	"context"
	"sync"
	"time"

	"bouncer/gateway/ratelimit"
)

const (
	// sweepEvery is how often ended blocks are looked for, while there are buckets.
	sweepEvery = 50 * time.Millisecond
	// returns is how many blocks are returned in one call.
	returns = 64
	// closeTimeout bounds the return of all blocks when the program ends.
	closeTimeout = 2 * time.Second
)

// A sweeper is the goroutine that returns what is left of blocks, and forgets
// buckets that have become cold.
type sweeper struct {
	once  sync.Once
	wake  chan struct{} // there is a bucket
	stop  chan struct{}
	ended sync.WaitGroup
}

func (s *sweeper) init() {
	s.wake, s.stop = make(chan struct{}, 1), make(chan struct{})
}

func (s *sweeper) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Start returns, from now on, what is left of blocks that end. It is to be called
// once; [Leases.Close] ends it.
func (l *Leases) Start() {
	l.sweeper.ended.Go(func() {
		tick := time.NewTicker(sweepEvery)
		defer tick.Stop()
		for {
			if l.buckets.Load() == 0 {
				tick.Stop()
				select {
				case <-l.sweeper.stop:
					return
				case <-l.sweeper.wake:
				}
				tick.Reset(sweepEvery)
			}
			select {
			case <-l.sweeper.stop:
				return
			case <-tick.C:
			}
			// Each call is bounded by the store's own timeout.
			l.giveBack(context.Background(), l.sweep(false))
		}
	})
}

// Close returns all blocks, within two seconds, and leases no more: charges are
// then asked for one by one. It does not close the store.
func (l *Leases) Close() {
	l.sweeper.once.Do(func() {
		l.closed.Store(true)
		close(l.sweeper.stop)
		l.sweeper.ended.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		l.giveBack(ctx, l.sweep(true))
	})
}

// sweep takes away the blocks that have ended, or all, and returns those of which
// something is left that can come back.
func (l *Leases) sweep(all bool) (left []ratelimit.Block) {
	for i := range l.shards {
		left = l.sweepShard(&l.shards[i], all, left)
	}
	return left
}

func (l *Leases) sweepShard(s *shard, all bool, left []ratelimit.Block) []ratelimit.Block {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, change := l.now(), 0
	for name, b := range s.buckets {
		held := b.blocks[:0]
		for _, k := range b.blocks {
			switch {
			case k.out > 0 && !all, now < k.ends && k.units > 0 && !all:
				held = append(held, k)
				continue
			case k.units == 0:
			case b.policy.Algorithm == ratelimit.FixedWindow && now >= k.window:
				// It was of a window that is over.
			default:
				left = append(left, ratelimit.Block{
					Policy: b.policy, Partition: b.partition, Units: k.units, Receipt: k.receipt,
				})
			}
			if k.out > 0 {
				// The program ends while a request is being decided: what it gives
				// back finds nobody.
				l.stranded(k.out)
			}
			change--
		}
		clear(b.blocks[len(held):])
		b.blocks = held
		if len(held) == 0 && !b.refilling && (all || now-b.used > 4*b.policy.Lease.TTL) {
			delete(s.buckets, name)
			l.buckets.Add(-1)
		}
	}
	l.blocks(change)
	return left
}

// giveBack returns blocks to the store, some at a time.
func (l *Leases) giveBack(ctx context.Context, blocks []ratelimit.Block) {
	for len(blocks) > 0 {
		n := min(len(blocks), returns)
		stranded, err := l.store.Return(ctx, blocks[:n])
		if err != nil {
			l.stranded(stranded)
			l.failed(err)
		}
		blocks = blocks[n:]
	}
}
