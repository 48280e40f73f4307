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
)

var (
	errProbeHangs   = fmt.Errorf("probe: did not return when its time was over: %w", context.DeadlineExceeded)
	errTooManyHang  = fmt.Errorf("probe: too many earlier ones have not returned: %w", context.DeadlineExceeded)
	errProbeExited  = errors.New("probe: its goroutine exited")
	errWrongAnswers = errors.New("store: the number of decisions is not that of the charges")
)

// prober is the goroutine that asks the primary while the breaker is open.
type prober struct {
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	wake    chan struct{} // 1 slot: the breaker has opened
	settled chan struct{} // closed when the first probe has settled
	done    chan struct{} // closed when the goroutine has ended
	started atomic.Bool
	running atomic.Int32 // probes that have not returned

	announced *condition // the last state reported; the goroutine's own
}

func (p *prober) init() {
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wake = make(chan struct{}, 1)
	p.settled = make(chan struct{})
	p.done = make(chan struct{})
}

// notify tells the prober that the breaker has opened. It never blocks.
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

// run is the prober. It alone closes the breaker and it alone reports changes,
// so that they are reported in order and none is missed: an opening wakes it,
// and until it has seen the opening there is no closing.
func (f *Fallback) run() {
	p := &f.prober
	defer close(p.done)
	f.first()
	close(p.settled)
	for {
		c := f.cond.Load()
		f.announce(c)
		if !c.open {
			select {
			case <-p.wake:
			case <-p.ctx.Done():
				return
			}
			continue
		}
		wait := jitter(f.o.ProbeInterval)
		f.nextProbe.Store(int64(time.Since(f.start) + wait))
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-p.ctx.Done():
			timer.Stop()
			return
		}
		f.probe()
	}
}

// first is the probe at the start. If it fails the breaker opens without
// waiting for requests to fail.
func (f *Fallback) first() {
	p := &f.prober
	p.announced = &condition{since: f.start}
	if f.cond.Load().open {
		f.announce(f.cond.Load())
		f.probe()
		return
	}
	if err := f.ask(); err != nil && p.ctx.Err() == nil {
		f.trip(err)
		f.announce(f.cond.Load())
	}
}

// probe asks the primary once, through the breaker's half-open state, and
// closes the breaker if it answers.
func (f *Fallback) probe() {
	var err error
	_, refused := f.breaker.Execute(func() (struct{}, error) {
		err = f.ask()
		return struct{}{}, err
	})
	switch {
	case f.prober.ctx.Err() != nil: // Close ended it; that says nothing
	case err != nil:
		f.stillOpen(err)
	case refused == nil:
		// Reported from here: by the time run looks, failures may have opened
		// it again, and both changes would go unseen.
		f.announce(f.closed())
	}
}

// announce reports c if it differs from what was reported last.
func (f *Fallback) announce(c *condition) {
	last := f.prober.announced
	if c.open == last.open {
		if c.open {
			f.prober.announced = c // for its error, should it be the last one
		}
		return
	}
	f.prober.announced = c
	if f.o.Hooks.StateChanged == nil {
		return
	}
	err := c.err
	if !c.open {
		err = last.err
	}
	f.o.Hooks.StateChanged(c.open, err, c.since.Sub(last.since))
}

// ask calls the probe and bounds it, whatever it does: its panic is an error,
// and if it hangs in spite of its context it is left behind.
func (f *Fallback) ask() error {
	p := &f.prober
	if p.running.Load() >= maxProbes {
		return errTooManyHang
	}
	ctx, cancel := context.WithTimeout(p.ctx, f.o.ProbeTimeout)
	defer cancel()
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
		err = f.o.Probe(ctx)
	}()
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
