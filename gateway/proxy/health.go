package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// When a target that cannot be connected to is left out.
const (
	// mayFail is how many connections in a row cannot be made before a target is left
	// out. One that fails now and then is not worth losing.
	mayFail = 3
	// A target is left out for restFirst, and each time that it could not be connected
	// to then for twice as long, up to restMost.
	restFirst, restMost = time.Second, 30 * time.Second
	// slowReturn is how long a target takes to come back to its whole share, since one
	// that has just started is slow, and one that may go again should take few with it.
	// It begins at leastShare.
	slowReturn = 10 * time.Second
	leastShare = 0.1
)

// trouble is why a target does not get its whole share. It is not modified.
type trouble struct {
	rest  time.Duration // how long it is, or was, left out
	until time.Duration // left out: when one request may try it
	trial bool          // that one is under way
	since time.Duration // coming back: since when; 0: it is left out
}

// condition is what is known of how a target is. The zero condition is well.
type condition struct {
	trouble atomic.Pointer[trouble] // nil: none
	failed  atomic.Int32            // connections in a row that could not be made
}

// leftOut reports whether it gets no requests while another may, but for one that
// tries it now and then.
func (c *condition) leftOut() bool {
	p := c.trouble.Load()
	return p != nil && p.since == 0
}

// ward knows how all targets of an upstream are. It is safe for concurrent use.
type ward struct {
	began    time.Time
	mu       sync.Mutex   // of all changes
	troubled atomic.Int32 // how many have a trouble: mostly none, and nobody need look
	patience time.Duration
	told     func(t *target, up bool, err error) // must not block
}

func (w *ward) now() time.Duration { return time.Since(w.began) }

// setLocked changes what is known of a target.
func (w *ward) setLocked(t *target, now *trouble) {
	was := t.trouble.Swap(now)
	switch {
	case was == nil && now != nil:
		w.troubled.Add(1)
	case was != nil && now == nil:
		w.troubled.Add(-1)
	}
}

// connected takes note of a connection that was made ready, or was not. net/http tries
// on when the request that wanted it has been given up, so that requests with little
// patience count as well; ctx ends when the whole upstream is closed, and that says nothing.
func (w *ward) connected(ctx context.Context, t *target, err error) {
	if err == nil && t.failed.Load() == 0 && t.trouble.Load() == nil || err != nil && ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	was := t.trouble.Load()
	if err == nil {
		t.failed.Store(0)
		if was != nil && was.since == 0 {
			// How long it was away is kept: one that goes again at once stays away longer.
			w.setLocked(t, &trouble{rest: was.rest, since: max(w.now(), 1)})
			w.told(t, true, nil)
		}
		return
	}
	n := t.failed.Add(1)
	switch {
	case was == nil && n < mayFail:
	case was == nil:
		w.leaveOutLocked(t, restFirst)
		w.told(t, false, err)
	case was.since > 0:
		w.leaveOutLocked(t, 2*was.rest)
		w.told(t, false, err)
	case was.trial:
		w.leaveOutLocked(t, 2*was.rest)
	}
}

func (w *ward) leaveOutLocked(t *target, rest time.Duration) {
	rest = min(rest, restMost)
	w.setLocked(t, &trouble{rest: rest, until: w.now() + rest})
}

// share returns which part of its requests a target gets, from 0 to 1.
func (w *ward) share(t *target, now time.Duration) float64 {
	p := t.trouble.Load()
	switch {
	case p == nil:
		return 1
	case p.since > 0:
		if back := now - p.since; back < slowReturn {
			return max(leastShare, float64(back)/float64(slowReturn))
		}
		w.mu.Lock()
		if t.trouble.Load() == p {
			w.setLocked(t, nil)
		}
		w.mu.Unlock()
		return 1
	case now < p.until:
		return 0
	}
	return 1 // one may try
}

// try reports whether a request may go to a target that has a share. Of those that
// would go to one that was left out one may; if nothing is heard of it, another one.
func (w *ward) try(t *target, now time.Duration) bool {
	p := t.trouble.Load()
	if p == nil || p.since > 0 {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.trouble.Load() != p || now < p.until {
		return false
	}
	w.setLocked(t, &trouble{rest: p.rest, until: now + w.patience, trial: true})
	return true
}
