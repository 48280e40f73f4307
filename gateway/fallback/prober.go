package fallback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// probeGrace is how long a probe may take to notice that its time is over.
	probeGrace = 50 * time.Millisecond
	// maxProbes bounds the probes that hang in spite of their context. When so
	// many do, no new one starts until one of them returns.
	maxProbes = 64
	// atOnce is how many nodes are probed at the same time.
	atOnce = 32
)

var (
	errProbeHangs   = fmt.Errorf("probe: did not return when its time was over: %w", context.DeadlineExceeded)
	errTooManyHang  = fmt.Errorf("probe: too many earlier ones have not returned: %w", context.DeadlineExceeded)
	errProbeExited  = errors.New("probe: its goroutine exited")
	errWrongAnswers = errors.New("store: the number of decisions is not that of the charges")
)

// prober is the goroutine that asks the primary while a breaker is open.
type prober struct {
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	wake    chan struct{} // 1 slot: a breaker has opened
	settled chan struct{} // closed when the first probe has settled
	done    chan struct{} // closed when the goroutine has ended
	started atomic.Bool
	running atomic.Int32 // probes that have not returned
}

func (p *prober) init() {
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wake = make(chan struct{}, 1)
	p.settled = make(chan struct{})
	p.done = make(chan struct{})
}

// notify tells the prober that a breaker has opened. It never blocks.
func (p *prober) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Start starts the prober, and returns when its first probe has settled: within
// [Options.ProbeTimeout] or a little more. An instance that starts while the
// store is away thus knows it before its first request, and makes none wait.
// A second Start does nothing, nor does one after Close.
func (f *Fallback) Start() {
	p := &f.prober
	if !p.started.CompareAndSwap(false, true) {
		return
	}
	go f.run()
	go f.runSettler()
	<-p.settled
}

// Close ends the prober and the settler, waits for them, and drops what is not
// settled; see [Fallback.Settle]. The stores can be used on: the
// breaker still opens, but nothing closes it any more. It is safe to call
// twice, and without Start. A probe that does not return when its context ends
// is not waited for.
func (f *Fallback) Close() {
	p := &f.prober
	p.cancel()
	if p.started.CompareAndSwap(false, true) {
		close(p.done) // never started, and now never will be
		close(f.settler.done)
	}
	<-p.done
	<-f.settler.done
	f.drop()
}

// run is the prober. It alone closes breakers and it alone reports changes, so
// that they are reported in order and none is missed: an opening wakes it, and
// until it has seen the opening there is no closing.
func (f *Fallback) run() {
	p := &f.prober
	defer close(p.done)
	f.first()
	close(p.settled)
	var due <-chan time.Time // nil: nobody is to be probed
	for {
		switch open := f.look(); {
		case len(open) == 0:
			due = nil
		case due == nil:
			pause := jitter(f.o.ProbeInterval)
			f.nextProbe.Store(int64(time.Since(f.start) + pause))
			due = time.After(pause)
		}
		select {
		case <-due:
			due = nil
			f.probe(f.look())
		case <-p.wake:
		case <-p.ctx.Done():
			return
		}
	}
}

// look reports what has changed, and returns the nodes that are away.
func (f *Fallback) look() (open []*node) {
	for _, n := range *f.nodes.Load() {
		c := n.cond.Load()
		f.announce(n, c, n.name)
		if c.open {
			open = append(open, n)
		}
	}
	return open
}

// first is the probe at the start. What fails is away without waiting for
// requests to fail.
func (f *Fallback) first() {
	if open := f.look(); len(open) > 0 {
		f.probe(open)
		return
	}
	err := f.ask(f.o.Probe)()
	if f.prober.ctx.Err() != nil || f.survey() {
		return
	}
	if err != nil {
		f.whole.trip("", err)
		f.failure(err)
	}
	f.look()
}

// survey asks each node once, and opens the breakers of those that fail. It is
// false if no nodes are known.
func (f *Fallback) survey() bool {
	if f.o.Nodes == nil {
		return false
	}
	partitions := f.o.Nodes.Spread()
	f.askAll(partitions, func(i int, name string, err error) {
		if err != nil {
			f.node(name).trip(partitions[i], err)
			f.failure(err)
		}
	})
	f.look()
	return len(partitions) > 0
}

// askAll asks for each of partitions, many at the same time, and calls told for
// each, one after the other, with the node that had it when it was asked.
func (f *Fallback) askAll(partitions []string, told func(i int, name string, err error)) {
	names, errs := make([]string, len(partitions)), make([]error, len(partitions))
	for from := 0; from < len(partitions); from += atOnce {
		to := min(from+atOnce, len(partitions))
		var answers [atOnce]func() error
		for i, partition := range partitions[from:to] {
			probe := f.o.Probe
			if partition != "" {
				names[from+i] = f.o.Nodes.Node(partition)
				probe = func(ctx context.Context) error { return f.o.Nodes.Probe(ctx, partition) }
			}
			answers[i] = f.ask(probe)
		}
		for i := range to - from {
			errs[from+i] = answers[i]()
		}
	}
	if f.prober.ctx.Err() != nil {
		return // Close ended it; that says nothing
	}
	for i := range partitions {
		told(i, names[i], errs[i])
	}
}

// probe asks nodes that are away for what failed, once, and closes the breakers of
// those whose keys are answered for: by themselves, or by whoever has them now.
func (f *Fallback) probe(open []*node) {
	witnesses := make([]string, len(open))
	for i, n := range open {
		witnesses[i] = n.witness // it changes only while the breaker is closed
	}
	f.askAll(witnesses, func(i int, name string, err error) {
		n := open[i]
		if err != nil {
			f.failure(err)
		}
		switch {
		case n == f.whole && f.survey():
			// Now that the nodes are known it is about them.
			err = nil
		case err != nil && name != n.name:
			// Another one has the keys, and that one fails.
			f.node(name).trip(witnesses[i], err)
			f.look()
			err = nil
		}
		_, refused := n.breaker.Execute(func() (struct{}, error) { return struct{}{}, err })
		switch {
		case err != nil:
			n.stillOpen(err)
		case refused == nil:
			// Reported from here: by the time run looks, failures may have opened
			// it again, and both changes would go unseen.
			f.announce(n, n.closed(), name)
			if name != n.name {
				f.forget(n)
			}
		}
	})
}

// announce reports c, the condition of n, if it differs from what was reported
// last. by is who has the buckets of n now.
func (f *Fallback) announce(n *node, c *condition, by string) {
	last := n.announced
	if c.open == last.open {
		if c.open {
			n.announced = c // for its error, should it be the last one
		}
		return
	}
	n.announced = c
	if f.o.Hooks.StateChanged == nil {
		return
	}
	change := Change{Node: n.name, By: by, Open: c.open, Err: c.err, Lasted: c.since.Sub(last.since), Nodes: 1}
	if !c.open {
		change.Err = last.err
	}
	if heir := (*f.nodes.Load())[by]; heir != nil && heir != n && !c.open {
		change.ByAway = heir.cond.Load().open
	}
	if f.o.Nodes != nil {
		change.Nodes = len(f.o.Nodes.Spread())
	}
	f.mu.Lock()
	change.Away = f.away
	f.mu.Unlock()
	f.o.Hooks.StateChanged(change)
}

// ask begins a probe, and returns what waits for its answer. It is bounded,
// whatever the probe does: its panic is an error, and if it hangs in spite of its
// context it is left behind.
func (f *Fallback) ask(probe func(context.Context) error) (answer func() error) {
	p := &f.prober
	if p.running.Load() >= maxProbes {
		return func() error { return errTooManyHang }
	}
	ctx, cancel := context.WithTimeout(p.ctx, f.o.ProbeTimeout)
	result := make(chan error, 1)
	p.running.Add(1)
	go func() {
		err := errProbeExited
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("probe: panic: %v", v)
			}
			p.running.Add(-1)
			result <- err
		}()
		err = probe(ctx)
	}()
	return func() error {
		defer cancel()
		return wait(ctx, result)
	}
}

// wait returns the answer of a probe, or why there is none.
func wait(ctx context.Context, result <-chan error) error {
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(probeGrace)
	defer grace.Stop()
	select {
	case err := <-result:
		if err == nil {
			// An answer, but late. A store this slow is not one to wait for.
			err = fmt.Errorf("probe: answered late: %w", context.DeadlineExceeded)
		}
		return err
	case <-grace.C:
		return errProbeHangs
	}
}

// jitter varies d by ±20 %.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // it only spreads probes, nobody gains by guessing it
}
