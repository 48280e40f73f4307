package fallback

import (
	"time"

	"github.com/sony/gobreaker/v2"
)

// readyToTrip decides whether the failure just counted opens the breaker. It
// is called with mu held. The failures in a row are counted beside the window,
// since on a quiet route five of them may take minutes.
func (f *Fallback) readyToTrip(c gobreaker.Counts) bool {
	if f.tripping || f.consecutive >= f.o.ConsecutiveFailures {
		return true
	}
	total := float64(c.TotalSuccesses) + float64(c.TotalFailures)
	return total >= float64(f.o.MinRequests) && float64(c.TotalFailures) >= f.o.FailureRatio*total
}

func answered() (struct{}, error) { return struct{}{}, nil }

// succeeded counts an answer to a request that began under c.
func (f *Fallback) succeeded(c *condition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cond.Load() != c {
		return
	}
	f.consecutive = 0
	_, _ = f.breaker.Execute(answered) // only counts; the call was made already
}

// failed counts a failure of a request that began under c, and opens the
// breaker if it was one too many.
func (f *Fallback) failed(c *condition, err error) {
	f.mu.Lock()
	f.lastErr, f.lastErrAt = err, time.Now()
	if f.cond.Load() == c {
		f.failLocked(err)
	}
	f.mu.Unlock()
	f.storeFailed(err)
}

// failLocked counts a failure while the breaker is closed.
func (f *Fallback) failLocked(err error) {
	f.consecutive++
	_, _ = f.breaker.Execute(func() (struct{}, error) { return struct{}{}, err })
	if f.breaker.State() == gobreaker.StateClosed {
		return
	}
	f.nextProbe.Store(int64(time.Since(f.start) + f.o.ProbeInterval)) // the prober makes it exact
	f.cond.Store(opened(time.Now(), err))
	f.prober.notify()
}

// trip opens the breaker at once, unless it is open already.
func (f *Fallback) trip(err error) {
	f.mu.Lock()
	f.lastErr, f.lastErrAt = err, time.Now()
	if !f.cond.Load().open {
		f.tripping = true
		f.failLocked(err)
		f.tripping = false
	}
	f.mu.Unlock()
	f.storeFailed(err)
}

// stillOpen notes a probe's error: the latest one tells most about why the
// store is away.
func (f *Fallback) stillOpen(err error) {
	f.mu.Lock()
	f.lastErr, f.lastErrAt = err, time.Now()
	f.cond.Store(opened(f.cond.Load().since, err))
	f.mu.Unlock()
	f.storeFailed(err)
}

// closed lets requests use the primary again, and returns the condition that
// says so.
func (f *Fallback) closed() *condition {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.consecutive = 0
	c := &condition{since: time.Now()}
	f.cond.Store(c)
	f.settler.notify()
	return c
}

func (f *Fallback) storeFailed(err error) {
	if f.o.Hooks.StoreFailed != nil {
		f.o.Hooks.StoreFailed(f.o.Kind(err), err)
	}
}
