package proxy

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// errLate is why a request was given up whose answer did not begin in time.
var errLate = errors.New("the answer did not begin in time")

// A deadline gives a request up whose answer has not begun in time. nil is none.
//
// Its timer may still be running down when the request has ended, so it is made
// for each request and refers to nothing that is used again.
type deadline struct {
	timer  *time.Timer
	cancel context.CancelFunc

	mu            sync.Mutex // protects the following fields
	upload        *upload    // nil without a request body
	begun, passed bool
	waited        bool // for the client's body, when the time was over
}

// attachDeadline gives the outgoing request a context that ends when the route's
// time is over.
func (x *exchange) attachDeadline(r *http.Request) *http.Request {
	ctx, cancel := context.WithCancel(r.Context())
	x.deadline = &deadline{cancel: cancel}
	x.deadline.timer = time.AfterFunc(x.forward.Timeout, x.deadline.pass)
	return r.WithContext(ctx)
}

func (d *deadline) pass() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun {
		return
	}
	d.passed = true
	d.cancel()
	if d.upload != nil {
		d.waited = d.upload.abandon()
	}
}

// watch tells of the body that the transport waits for.
func (d *deadline) watch(b *upload) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.upload = b; d.passed {
		d.waited = b.abandon()
	}
}

// waits reports whether it was the client's body that was waited for.
func (d *deadline) waits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waited
}

// meet is called when an answer has begun, or none will come. It reports whether
// there was time left; from then on there is.
func (d *deadline) meet() bool {
	if d == nil {
		return true
	}
	d.timer.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun = true
	return !d.passed
}
