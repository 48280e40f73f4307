package auth

import (
	"sync/atomic"
	"time"
)

// MaxUses is how many keys a [UseLog] holds between two calls of Drain. What is beyond
// is not noted; a key that is still in use then is noted by a later use.
const MaxUses = 10_000

// A UseLog notes which API keys were used with success since it was last drained. It is
// made to cost a request nothing: no lock, no allocation, and at most one write a second
// for each key. It is safe for concurrent use, and goes from one Authenticator to
// the next.
type UseLog struct {
	used chan *use
}

// NewUseLog returns an empty log.
func NewUseLog() *UseLog { return &UseLog{used: make(chan *use, MaxUses)} }

// Drain returns when each key, by its id, was last used, and empties the log.
func (l *UseLog) Drain() map[string]time.Time {
	uses := map[string]time.Time{}
	for range cap(l.used) { // bounded, however busy the keys are
		select {
		case u := <-l.used:
			u.noted.Store(false) // before it is read: a later use is noted anew
			at := time.Unix(u.last.Load(), 0)
			if at.After(uses[u.id]) {
				uses[u.id] = at
			}
		default:
			return uses
		}
	}
	return uses
}

// A use is when a key was last used with success. It is shared with the same key's
// entry in the configurations before and after.
type use struct {
	id    string
	last  atomic.Int64 // Unix seconds, never less than 1; 0: it was not used yet
	noted atomic.Bool  // it is in the log
}

// seen says that the key was presented while it was valid.
func (u *use) seen() bool { return u.last.Load() != 0 }

// note is told of a use; l may be nil. A store by every request would move the line
// between cores.
func (u *use) note(now time.Time, l *UseLog) {
	second := max(now.Unix(), 1)
	if u.last.Load() >= second {
		return
	}
	u.last.Store(second)
	if l == nil || !u.noted.CompareAndSwap(false, true) {
		return
	}
	select {
	case l.used <- u:
	default:
		u.noted.Store(false)
	}
}
