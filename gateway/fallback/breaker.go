package fallback

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// condition is one state of a breaker. It is immutable.
type condition struct {
	open  bool
	since time.Time
	err   error // why it is open: the node's latest error; nil if closed
	shown error // err, as a decision made meanwhile shows it
}

// openError says on a decision that nobody asked the primary, and why not.
type openError struct {
	text string
	err  error
}

func (e *openError) Error() string { return e.text }
func (e *openError) Unwrap() error { return e.err }

// opened returns the condition of a breaker that is open since since because
// of err.
func opened(since time.Time, err error) *condition {
	return &condition{open: true, since: since, err: err, shown: &openError{text: "breaker open: " + err.Error(), err: err}}
}

// A node is a part of the primary that fails by itself, and its breaker. A
// primary that is one has one node, without a name.
type node struct {
	f    *Fallback
	name string

	// cond is the breaker as requests see it: one atomic read. The pointer also
	// is the generation. An outcome counts only while the condition is still
	// the one that the request began with, so that what straggles in after a
	// change is no evidence about the time after it.
	cond atomic.Pointer[condition]

	// mu protects following fields. While cond is closed, breaker is used only
	// with mu held; while it is open, only by the prober. No request can
	// therefore take, and then never give back, its place in the half-open state.
	mu          sync.Mutex
	breaker     *gobreaker.CircuitBreaker[struct{}]
	consecutive int    // failures since the last success
	tripping    bool   // the next failure opens, whatever the counts
	witness     string // a partition that failed; probes ask for it
	gone        bool   // not in the table any more: nothing counts

	announced *condition // the last state reported; the prober's own
}

func (f *Fallback) makeNode(name string, since time.Time) *node {
	n := &node{f: f, name: name}
	n.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Interval:     f.o.Window,
		BucketPeriod: f.o.Window / 10,
		// The prober paces the probes; the breaker is to be ready for each.
		Timeout:     1,
		ReadyToTrip: n.readyToTrip,
	})
	n.announced = &condition{since: since}
	n.cond.Store(n.announced)
	return n
}

// readyToTrip decides whether the failure just counted opens the breaker. It
// is called with mu held. The failures in a row are counted beside the window,
// since on a quiet route five of them may take minutes.
func (n *node) readyToTrip(c gobreaker.Counts) bool {
	o := &n.f.o
	if n.tripping || n.consecutive >= o.ConsecutiveFailures {
		return true
	}
	total := float64(c.TotalSuccesses) + float64(c.TotalFailures)
	return total >= float64(o.MinRequests) && float64(c.TotalFailures) >= o.FailureRatio*total
}

func answered() (struct{}, error) { return struct{}{}, nil }

// succeeded counts an answer to a request that began under c.
func (n *node) succeeded(c *condition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cond.Load() != c {
		return
	}
	n.consecutive = 0
	_, _ = n.breaker.Execute(answered) // only counts; the call was made already
}

// failed counts a failure of a request for partition that began under c, and
// opens the breaker if it was one too many.
func (n *node) failed(c *condition, partition string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cond.Load() == c && !n.gone {
		n.failLocked(partition, err)
	}
}

// failLocked counts a failure while the breaker is closed.
func (n *node) failLocked(partition string, err error) {
	n.consecutive++
	_, _ = n.breaker.Execute(func() (struct{}, error) { return struct{}{}, err })
	if n.breaker.State() == gobreaker.StateClosed {
		return
	}
	f, c := n.f, opened(time.Now(), err)
	n.witness = strings.Clone(partition)
	f.mu.Lock()
	if f.away++; f.away == 1 {
		f.since = c.since
		f.nextProbe.Store(int64(time.Since(f.start) + f.o.ProbeInterval)) // the prober makes it exact
	}
	f.mu.Unlock()
	n.cond.Store(c)
	f.prober.notify()
}

// trip opens the breaker at once, unless it is open already.
func (n *node) trip(partition string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.cond.Load().open && !n.gone {
		n.tripping = true
		n.failLocked(partition, err)
		n.tripping = false
	}
}

// stillOpen notes a probe's error: the latest one tells most about why the
// node is away.
func (n *node) stillOpen(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cond.Store(opened(n.cond.Load().since, err))
}

// closed lets requests use the node again, and returns the condition that says
// so.
func (n *node) closed() *condition {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.consecutive = 0
	f, c := n.f, &condition{since: time.Now()}
	f.mu.Lock()
	if f.away--; f.away == 0 {
		f.since = c.since
	}
	f.mu.Unlock()
	n.cond.Store(c)
	f.settler.notify()
	return c
}

// failure reports an error of the primary.
func (f *Fallback) failure(err error) {
	f.mu.Lock()
	f.lastErr, f.lastErrAt = err, time.Now()
	f.mu.Unlock()
	f.storeFailed(err)
}

func (f *Fallback) storeFailed(err error) {
	if f.o.Hooks.StoreFailed != nil {
		f.o.Hooks.StoreFailed(f.o.Kind(err), err)
	}
}
