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
	// leastShare is what a target begins with that comes back, or is new, since one that
	// has just started is slow, and one that may go again should take few with it.
	leastShare = 0.1
)

// trouble is why a target does not get its whole share. It is not modified.
type trouble struct {
	rest  time.Duration // how long it is, or was, left out
	until time.Duration // left out: when one request may try it
	trial bool          // that one is under way
	sick  bool          // it fails its health checks: no request tries it
	out   time.Duration // left out: since when
	since time.Duration // coming back: since when; 0: it is left out
}

// condition is what is known of how a target is. The zero condition is well.
type condition struct {
	trouble atomic.Pointer[trouble] // nil: none
	failed  atomic.Int32            // connections in a row that could not be made
	// Of health checks, protected by the ward: whether there was one, and how many in a
	// row passed, or failed.
	checked        bool
	passed, sickly int
}

// leftOut reports whether it gets no requests while another may, but for one that
// tries it now and then.
func (c *condition) leftOut() bool { return c.trouble.Load().leftOut() }

func (p *trouble) leftOut() bool { return p != nil && p.since == 0 }

// ward knows how all targets of an upstream are. It is safe for concurrent use.
type ward struct {
	began    time.Time
	mu       sync.Mutex   // of all changes
	troubled atomic.Int32 // how many have a trouble: mostly none, and nobody need look
	patience time.Duration
	slow     time.Duration                       // how long one that comes back takes to its whole share
	health   *Health                             // nil: there are no checks
	told     func(t *target, up bool, err error) // must not block
}

func (w *ward) now() time.Duration { return time.Since(w.began) }

// setLocked changes what is known of a target, and tells of one that is left out from
// now on, or no longer.
func (w *ward) setLocked(t *target, now *trouble, why error) {
	was := t.trouble.Swap(now)
	switch {
	case was == nil && now != nil:
		w.troubled.Add(1)
	case was != nil && now == nil:
		w.troubled.Add(-1)
	}
	if was.leftOut() != now.leftOut() {
		w.told(t, !now.leftOut(), why)
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
		if was.leftOut() && !was.sick {
			w.comeBackLocked(t)
		}
		return
	}
	n := t.failed.Add(1)
	switch {
	case was == nil && n < mayFail || was != nil && was.sick:
	case was == nil || was.since > 0 || was.trial:
		w.leaveOutLocked(t, err)
	}
}

// leaveOutLocked leaves a target out that cannot be connected to: for twice as long as
// the last time, if it was not well since.
func (w *ward) leaveOutLocked(t *target, err error) {
	now := w.now()
	next := trouble{rest: restFirst, out: now}
	if was := t.trouble.Load(); was != nil {
		next.rest = min(max(restFirst, 2*was.rest), restMost)
		if was.leftOut() {
			next.out = was.out
		}
	}
	next.until = now + next.rest
	w.setLocked(t, &next, err)
}

// comeBackLocked begins to send requests to a target again. How long it was away is
// kept: one that goes again at once stays away longer.
func (w *ward) comeBackLocked(t *target) {
	next := trouble{since: max(w.now(), 1)}
	if was := t.trouble.Load(); was != nil {
		next.rest = was.rest
	}
	t.failed.Store(0)
	w.setLocked(t, &next, nil)
}

// share returns which part of its requests a target gets, from 0 to 1.
func (w *ward) share(t *target, now time.Duration) float64 {
	p := t.trouble.Load()
	switch {
	case p == nil:
		return 1
	case p.since > 0:
		if back := now - p.since; back < w.slow {
			return max(leastShare, float64(back)/float64(w.slow))
		}
		w.mu.Lock()
		if t.trouble.Load() == p {
			w.setLocked(t, nil, nil)
		}
		w.mu.Unlock()
		return 1
	case p.sick, now < p.until:
		return 0
	}
	return 1 // one may try
}

// try reports whether a request may go to a target that has a share. Of those that
// would go to one that was left out one may; if nothing is heard of it, another one.
func (w *ward) try(t *target, now time.Duration) bool {
	p := t.trouble.Load()
	if !p.leftOut() {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.trouble.Load() != p || p.sick || now < p.until {
		return false
	}
	w.setLocked(t, &trouble{rest: p.rest, until: now + w.patience, trial: true, out: p.out}, nil)
	return true
}

// moved takes note that a target is at other addresses now: where it could not be
// connected to at the old ones, one request may try at once.
func (w *ward) moved(t *target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.failed.Store(0)
	if p := t.trouble.Load(); p.leftOut() && !p.sick {
		w.setLocked(t, &trouble{rest: p.rest, until: w.now(), out: p.out}, nil)
	}
}

// checkEnded takes note of what came of a health check. The first one decides by
// itself; then it takes as many in a row as Health says. A target that could not be
// connected to is well again when its time is over and a check passes, as when a request
// comes through.
func (w *ward) checkEnded(t *target, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !t.checked
	t.checked = true
	was := t.trouble.Load()
	if err != nil {
		t.passed, t.sickly = 0, t.sickly+1
		if (first || t.sickly >= w.health.Unhealthy) && (was == nil || !was.sick) {
			next := trouble{sick: true, out: w.now()}
			if was != nil {
				next.rest = was.rest
				if was.leftOut() {
					next.out = was.out
				}
			}
			w.setLocked(t, &next, err)
		}
		return
	}
	t.passed, t.sickly = t.passed+1, 0
	if was.leftOut() && (was.sick && t.passed >= w.health.Healthy || !was.sick && w.now() >= was.until) {
		w.comeBackLocked(t)
	}
}

// succeed takes over what is known of targets that were there before. Those that are new
// begin as one that comes back does. The other's mutex is taken, and none of this one's
// targets is in use yet.
func (w *ward) succeed(before *ward, old, targets []*target) {
	before.mu.Lock()
	defer before.mu.Unlock()
	w.began = before.began
	known := make(map[string]*target, len(old))
	for _, t := range old {
		known[t.url] = t
	}
	alone, some := len(targets) == 1, false
	for _, t := range targets {
		some = some || known[t.url] != nil
	}
	for _, t := range targets {
		b := known[t.url]
		var now *trouble
		switch {
		case b != nil:
			if now = b.trouble.Load(); now != nil && now.sick && w.health == nil {
				now = &trouble{since: max(w.now(), 1), rest: now.rest} // nobody would say that it is well
			}
			if w.health != nil {
				t.checked, t.passed, t.sickly = b.checked, b.passed, b.sickly
			}
			t.failed.Store(b.failed.Load())
		case some: // or there is nobody who would take the rest
			now = &trouble{since: max(w.now(), 1)}
		}
		if alone && now != nil && !now.sick {
			now = nil // it gets everything
		}
		if now != nil {
			t.trouble.Store(now)
			w.troubled.Add(1)
		}
	}
}
