package fallback

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bouncer/gateway/ratelimit"
)

const (
	// settleDelay is the most that settling waits after the store's return, at
	// random, so that many instances do not begin together.
	settleDelay = 500 * time.Millisecond
	// settleBatch is how many buckets are settled before a pause: the store has
	// requests to decide as well. 64 in 20 ms are 3,200 a second and instance.
	settleBatch = 64
	settlePause = 20 * time.Millisecond
	// settleRetry is how long a store that is in use and refuses to be settled is
	// left alone.
	settleRetry = time.Second
)

// An Outcome says what became of units that were admitted without the primary.
type Outcome string

// The outcomes.
const (
	// Settled: they were charged to the primary.
	Settled Outcome = "settled"
	// Lapsed: they counted no more when they could be charged, or the bucket was
	// full without them.
	Lapsed Outcome = "lapsed"
	// Ambiguous: the request's own attempt at the primary may have charged them
	// already, so they are left out.
	Ambiguous Outcome = "ambiguous"
	// Full: there was no room to note them.
	Full Outcome = "full"
	// Failed: nobody knows whether they were settled, so it is not tried again.
	Failed Outcome = "failed"
	// Dropped: the Fallback was closed before they could be settled.
	Dropped Outcome = "dropped"
)

// Outcomes returns every outcome, in a fixed order, so that a metric can start
// each of them at zero.
func Outcomes() []Outcome { return []Outcome{Settled, Lapsed, Ambiguous, Full, Failed, Dropped} }

// A Settlement is what came of the admissions of an outage.
type Settlement struct {
	// Buckets are those that were charged something, Units what they were charged.
	Buckets, Units int64
	// Lapsed are the units that counted no more.
	Lapsed int64
	// LeftOut are the units that were not charged though they may have counted:
	// those that are ambiguous, found no room, failed, or were dropped.
	LeftOut int64
}

// settler charges the primary with what was noted, in a goroutine of its own.
type settler struct {
	wake chan struct{} // 1 slot: there is something to settle
	done chan struct{} // closed when the goroutine has ended

	leftOut atomic.Int64 // units since the last Settlement

	// mu protects following fields; whoever settles holds it.
	mu    sync.Mutex
	kept  []ratelimit.Debt // were taken, and are to be tried first
	sofar Settlement
}

func (s *settler) init() {
	s.wake = make(chan struct{}, 1)
	s.done = make(chan struct{})
}

// notify wakes the settler. It never blocks.
func (s *settler) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// micros is the clock that debts are kept by: monotonic, from the Unix time at
// which the Fallback was made.
func (f *Fallback) micros() int64 {
	return f.start.UnixMicro() + time.Since(f.start).Microseconds()
}

// account notes a request that was admitted without the primary. One that the
// primary may have charged all the same is left out.
func (f *Fallback) account(nodes []began, charges []ratelimit.Charge, ambiguous bool) {
	if f.o.Settle == nil {
		return
	}
	now := f.micros()
	if f.debts.full() {
		f.settled(Lapsed, f.debts.sweep(now))
	}
	var noted bool
	var left int64
	why := Full
	if ambiguous {
		why = Ambiguous
	}
	for i := range charges {
		c := &charges[i]
		switch {
		case c.Cost == 0 || c.Policy.Quota == 0:
			// nothing is ever charged
		case !ambiguous && f.debts.note(c, now):
			noted = true
		default:
			left += c.Cost
		}
	}
	f.settled(why, left)
	// A single failure leaves the breaker closed, and no return follows it; nor
	// does one of a node that was there when another one was not.
	if noted && slices.ContainsFunc(nodes, func(b began) bool { return !b.node.cond.Load().open }) {
		f.settler.notify()
	}
}

// Forget drops what the buckets of charges owe to the primary, since they were emptied
// there. What is being charged at this moment is not known here, and may be charged
// yet.
func (f *Fallback) Forget(charges []ratelimit.Charge) {
	for i := range charges {
		f.settled(Lapsed, f.debts.forget(charges[i].Partition, charges[i].Policy))
	}
	s := &f.settler
	if !s.mu.TryLock() {
		return // it is settling, which may take as long as the primary is away
	}
	defer s.mu.Unlock()
	s.kept = slices.DeleteFunc(s.kept, func(d ratelimit.Debt) bool {
		of := func(c ratelimit.Charge) bool { return c.Partition == d.Partition && c.Policy.Key() == d.Policy.Key() }
		if !slices.ContainsFunc(charges, of) {
			return false
		}
		f.settled(Lapsed, d.Units)
		f.debts.done([]ratelimit.Debt{d})
		return true
	})
}

// settled counts units by what became of them.
func (f *Fallback) settled(o Outcome, units int64) {
	if units == 0 {
		return
	}
	if o != Settled && o != Lapsed {
		f.settler.leftOut.Add(units)
	}
	if f.o.Hooks.Accounted != nil {
		f.o.Hooks.Accounted(o, units)
	}
}

// runSettler is the settler's goroutine.
func (f *Fallback) runSettler() {
	s, ctx := &f.settler, f.prober.ctx
	defer close(s.done)
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		wait := time.Duration(rand.Int64N(int64(settleDelay))) //nolint:gosec // it only spreads instances
		for sleep(ctx, wait) && f.settle(ctx, settlePause) {
			wait = settleRetry
		}
	}
}

// Settle charges the primary with what is noted, without pauses, and returns when
// nothing is left, ctx has ended, or the primary does not take it. It is for the
// end of a process, before [Fallback.Close] drops the rest; while the process
// runs, the same happens by itself.
func (f *Fallback) Settle(ctx context.Context) {
	if f.o.Settle != nil {
		f.settle(ctx, 0)
	}
}

// settle settles until nothing is left but what belongs to nodes that are away, or
// do not take it, or until ctx ends. What is left is kept, and of a node that is
// away it does not keep that of others waiting. It reports whether some node that
// is in use is to be asked again.
func (f *Fallback) settle(ctx context.Context, pause time.Duration) (again bool) {
	s := &f.settler
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := make(map[*node]bool)
	ready := func(partition string) bool {
		n := f.nodeOf(partition)
		return !n.cond.Load().open && !refused[n]
	}
	for worked := false; ctx.Err() == nil; {
		f.lapse()
		n := first(s.kept, ready)
		if n == 0 {
			if worked && pause > 0 && !sleep(ctx, jitter(pause)) {
				break
			}
			worked = false
			list := f.debts.take(settleBatch, ready)
			if len(list) == 0 {
				break
			}
			s.kept = append(list, s.kept...)
			continue
		}
		worked = true
		n, err := f.o.Settle(ctx, s.kept[:n])
		if err != nil {
			f.storeFailed(err)
			if !f.ambiguous(err) {
				refused[f.nodeOf(s.kept[0].Partition)] = true
				continue
			}
		}
		f.forgive(n, err)
	}
	if f.debts.buckets.Load() == 0 {
		f.report()
	}
	return len(refused) > 0
}

// first puts those of debts first that are ready, and returns how many they are.
func first(list []ratelimit.Debt, ready func(partition string) bool) (n int) {
	for i := range list {
		if ready(list[i].Partition) {
			list[i], list[n] = list[n], list[i]
			n++
		}
	}
	return n
}

// lapse brings what is kept to the present and forgets what counts no more.
func (f *Fallback) lapse() {
	s, now := &f.settler, f.micros()
	kept := s.kept[:0]
	for _, d := range s.kept {
		before := d.Runs()
		d.Advance(now)
		if d.Counts() {
			f.debts.runs.Add(int64(d.Runs() - before))
			kept = append(kept, d)
			continue
		}
		f.debts.runs.Add(int64(-before))
		f.debts.buckets.Add(-1)
		s.sofar.Lapsed += d.Units
		f.settled(Lapsed, d.Units)
	}
	s.kept = kept
}

// forgive takes the first n off what is kept: they were settled, or err leaves open
// whether they were.
func (f *Fallback) forgive(n int, err error) {
	s := &f.settler
	list := s.kept[:n]
	if s.kept = s.kept[n:]; len(s.kept) == 0 {
		s.kept = nil
	}
	for i := range list {
		d := &list[i]
		if err != nil {
			f.settled(Failed, d.Units)
			continue
		}
		charged := min(d.Charged, d.Units)
		if charged > 0 {
			s.sofar.Buckets++
		}
		s.sofar.Units += charged
		s.sofar.Lapsed += d.Units - charged
		f.settled(Settled, charged)
		f.settled(Lapsed, d.Units-charged)
	}
	f.debts.done(list)
}

// report tells what has come of the admissions since the last report.
func (f *Fallback) report() {
	s := &f.settler
	s.sofar.LeftOut = s.leftOut.Swap(0)
	if s.sofar != (Settlement{}) && f.o.Hooks.Settled != nil {
		f.o.Hooks.Settled(s.sofar)
	}
	s.sofar = Settlement{}
}

// drop gives up what is left, when the Fallback is closed.
func (f *Fallback) drop() {
	s := &f.settler
	s.mu.Lock()
	defer s.mu.Unlock()
	all := func(string) bool { return true }
	for list := append(s.kept, f.debts.take(settleBatch, all)...); len(list) > 0; list = f.debts.take(settleBatch, all) {
		for i := range list {
			f.settled(Dropped, list[i].Units)
		}
		f.debts.done(list)
	}
	s.kept = nil
	f.report()
}

// ambiguous reports whether the primary may have charged in spite of err.
func (f *Fallback) ambiguous(err error) bool {
	return f.o.Ambiguous == nil || f.o.Ambiguous(err)
}

// sleep waits for d; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
