package proxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
	"time"
)

const (
	// maxAttempts is the largest Retries.Attempts.
	maxAttempts = 10
	// firstPause is the longest pause before an attempt at a target that was tried
	// already. It doubles each time up to maxPause; the shortest is half of it, so that
	// requests that failed together do not come back together.
	firstPause = 50 * time.Millisecond
	maxPause   = 500 * time.Millisecond
	// An answer that nobody gets is read so far, in bytes, and so long, since its
	// connection can be used again then.
	discardSize = 4 << 10
	discardTime = 10 * time.Millisecond
)

// Retries say how a request may be attempted again that got no answer, or one of 502,
// 503 or 504 without Retry-After.
//
// Only a request that may happen twice is: GET, HEAD, OPTIONS, and others with an
// Idempotency-Key; without a body, or with one of announced length of at most 8 KiB.
// PUT and DELETE are idempotent too (RFC 9110 section 9.2.2), but a second one may be
// answered as if the first had not been (404, 412), or undo what came between them.
// A request of which nothing was sent, because there was no connection, may always be
// sent. A WebSocket is not attempted again, and nothing is that was too slow, since
// the upstream may be at work on it.
//
// All targets come first that the request was not at and that are not left out, and then,
// after a pause of up to half a second, those where it was.
type Retries struct {
	// Attempts is how many there may be after the first one, from 1 to 10. Going on
	// to another target because there is no connection is not one.
	Attempts int
	// Budget is the share of requests, above 0 and at most 1, that there may be more
	// than without retries, so that those do not make it worse for an upstream that
	// fails. What is left of it adds up to that of a thousand requests; three attempts
	// are there from the beginning.
	Budget float64
}

func (o *Retries) check() error {
	if o.Attempts < 1 || o.Attempts > maxAttempts || o.Budget <= 0 || o.Budget > 1 {
		return fmt.Errorf("retries %+v: want 1 to %d attempts and a budget above 0 and at most 1", *o, maxAttempts)
	}
	return nil
}

// What became of the wish for another attempt, in Hooks.Retry.
const (
	RetryDone   = "done"
	RetryBudget = "budget" // there was none left
)

// retries is what an upstream that has Retries knows of them. nil: it has none.
type retries struct {
	attempts int
	budget   budget
}

func newRetries(o *Retries) *retries {
	if o == nil {
		return nil
	}
	r := &retries{attempts: o.Attempts}
	r.budget.earned = max(1, int64(o.Budget*cost))
	r.budget.most = max(atFirst*cost, thousand*r.budget.earned)
	r.budget.left.Store(atFirst * cost)
	return r
}

// A budget is earned by requests and spent on attempts.
type budget struct {
	earned, most int64 // by one request, and at most in all, in parts of an attempt
	left         atomic.Int64
}

const (
	cost     = 1000 // of an attempt
	atFirst  = 3    // attempts that may be made before anything was earned
	thousand = 1000 // requests, whose budget may add up
)

// earn is called for each request.
func (b *budget) earn() {
	for {
		left := b.left.Load()
		if left >= b.most || b.left.CompareAndSwap(left, min(left+b.earned, b.most)) {
			return
		}
	}
}

// spend reports whether there may be another attempt.
func (b *budget) spend() bool {
	for {
		left := b.left.Load()
		if left < cost {
			return false
		}
		if b.left.CompareAndSwap(left, left-cost) {
			return true
		}
	}
}

// heard is what came of an attempt before it ended. It is told by the transport's
// goroutines.
type heard struct{ any, interim atomic.Bool }

// listen returns the request with ears. nil: there need not be any.
func (x *exchange) listen(r *http.Request) (*http.Request, *heard) {
	if x.u.retries == nil || !x.mayHappenTwice(r) {
		return r, nil
	}
	h := new(heard)
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotFirstResponseByte: func() { h.any.Store(true) },
		Got1xxResponse: func(status int, _ textproto.MIMEHeader) error {
			if status != http.StatusContinue {
				h.interim.Store(true)
			}
			return nil
		},
	})), h
}

// mayHappenTwice reports whether the outgoing request does no harm the second time, and
// can be sent again as it was.
func (x *exchange) mayHappenTwice(r *http.Request) bool {
	switch {
	case x.webSocket, len(r.Trailer) > 0, x.upload != nil && !x.upload.keep:
		return false
	case r.Method == http.MethodGet, r.Method == http.MethodHead, r.Method == http.MethodOptions:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// again returns the target for another attempt after one that came to res or err; -1
// if there is to be none. It has waited until then, and the request is at no target then.
// h is nil if the request must not happen twice.
func (x *exchange) again(ctx context.Context, h *heard, res *http.Response, err error) int {
	o := x.u.retries
	if o == nil || x.webSocket || x.repeats == o.attempts || ctx.Err() != nil {
		return -1
	}
	switch {
	case err == nil:
		if h == nil || h.interim.Load() || !away(res) {
			return -1
		}
	case isTimeout(err):
		return -1
	case !isDialError(err):
		if h == nil || h.any.Load() || isHandshakeError(err) {
			return -1
		}
	}
	if x.upload != nil && !x.upload.whole() {
		return -1
	}
	if !o.budget.spend() {
		x.retry(RetryBudget)
		return -1
	}
	x.repeats++
	if res != nil {
		discard(res)
		x.leave(res.StatusCode, nil)
	} else {
		x.leave(0, err)
	}
	if x.upload != nil {
		x.upload.rest()
	}
	next := x.u.balancer.another(x.forward.Key, x.been)
	if next < 0 {
		clear(x.been) // all of them may be tried again
		x.tried = 0
		x.rounds++
		began := time.Now()
		wait(ctx, pause(x.rounds))
		x.scope.UpstreamDuration += time.Since(began) // it is for the upstream's sake
		if next = x.u.balancer.another(x.forward.Key, x.been); next < 0 {
			next = x.u.balancer.pick(x.forward.Key, x.been)
		}
	}
	if ctx.Err() != nil {
		return -1
	}
	x.retry(RetryDone)
	return next
}

func (x *exchange) retry(outcome string) {
	if x.u.hooks.Retry != nil {
		x.u.hooks.Retry(x.u.name, outcome)
	}
}

// away reports whether the answer says that somebody was not there, without saying
// when he will be.
func away(res *http.Response) bool {
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return len(res.Header["Retry-After"]) == 0
	}
	return false
}

// discard ends an answer that nobody gets.
func discard(res *http.Response) {
	late := time.AfterFunc(discardTime, func() { _ = res.Body.Close() })
	_, _ = io.CopyN(io.Discard, res.Body, discardSize)
	late.Stop()
	_ = res.Body.Close()
}

// pause is how long to wait before the targets are tried once more.
func pause(rounds int) time.Duration {
	most := min(firstPause<<(rounds-1), maxPause)
	return most/2 + rand.N(most/2) //nolint:gosec // no secret
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
