package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
	"golang.org/x/sync/semaphore"

	"bouncer/gateway/httperr"
)

// maxWait is how long a request waits for a place in flight. It takes the edge off
// a burst; whoever would wait longer is better told so.
const maxWait = 100 * time.Millisecond

// The circuit of an upstream.
const (
	// minRequests is how many requests a window must have before their share of
	// failures says anything.
	minRequests = 20
	// trials is how many requests may pass at the same time while a circuit that was
	// open is tried.
	trials = 3
	// trialBody is how long the client of a trial has for its body. Somebody else tries
	// then: three that send nothing would keep a circuit from being closed again.
	trialBody = time.Second
	// periods is in how many parts the window moves on.
	periods = 10
)

// Circuit says when an upstream that fails is left alone, as a whole.
type Circuit struct {
	// Errors is the share of requests that fail, above 0 and at most 1, at which the
	// circuit opens. A request fails that gets no answer, or one of 500 and above;
	// one that its client gave up says nothing.
	Errors float64
	// Window is over how long the share is taken; at least twenty requests have to
	// be in it. Open is how long nothing is sent then; after that a few requests at a
	// time are let through, and decide.
	Window, Open time.Duration
}

// room bounds what one upstream is asked at the same time, and whether it is.
type room struct {
	name    string
	places  *semaphore.Weighted // nil: as many as come
	waiting *semaphore.Weighted // who may wait for one
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
	trying  atomic.Bool // requests are let through to find out whether it may close
	open    time.Duration
	hooks   *Hooks
	closed  atomic.Bool // nobody is interested any more
}

// A Place is a request's place in flight. The zero Place holds nothing.
type Place struct {
	places *semaphore.Weighted
	done   func(error)
	trial  *trial // in the place of done, while the circuit is tried
}

// A trial is a request that finds out whether a circuit may close. It is safe for
// concurrent use.
type trial struct {
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]

	mu   sync.Mutex // protects the following fields
	done func(error)
	back bool // it was given back, and the request goes on
}

var errNoTrial = &clientError{"read the request body", errors.New("it took too long for a trial of the circuit")}

// giveBack lets another request try. The request goes on; if there is room for it when
// it is answered, the answer counts as one of a request that came just then: the API
// may be one that takes nothing but slow uploads.
func (t *trial) giveBack() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done != nil {
		t.done(errNoTrial)
		t.done, t.back = nil, true
	}
}

func (t *trial) tell(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	done := t.done
	if t.back && !errors.Is(err, ErrClient) {
		done, _ = t.circuit.Allow() // nil: there is no room
	}
	t.done, t.back = nil, false
	if done != nil {
		done(err)
	}
}

var errServerError = errors.New("the upstream answered with an error of its own")

func newRoom(o *Options) *room {
	r := &room{name: o.Name, hooks: &o.Hooks}
	if o.MaxInFlight > 0 {
		r.places = semaphore.NewWeighted(int64(o.MaxInFlight))
		r.waiting = semaphore.NewWeighted(int64(o.MaxInFlight))
	}
	if c := o.Circuit; c != nil {
		r.open = c.Open
		r.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			Name: o.Name, MaxRequests: trials, Interval: c.Window, BucketPeriod: c.Window / periods, Timeout: c.Open,
			ReadyToTrip: func(n gobreaker.Counts) bool {
				answered := n.TotalSuccesses + n.TotalFailures // others are under way
				return answered >= minRequests && float64(n.TotalFailures) >= c.Errors*float64(answered)
			},
			IsExcluded:    func(err error) bool { return errors.Is(err, ErrClient) },
			OnStateChange: r.changed,
		})
	}
	return r
}

// changed tells of a circuit that opens or closes. From open to being tried is
// neither: it is not closed yet.
func (r *room) changed(_ string, from, to gobreaker.State) {
	r.trying.Store(to == gobreaker.StateHalfOpen)
	if from != gobreaker.StateClosed && to != gobreaker.StateClosed || r.hooks.Circuit == nil || r.closed.Load() {
		return
	}
	r.hooks.Circuit(r.name, to != gobreaker.StateClosed)
}

// Enter takes a place in flight, which the caller has to [Place.Leave], whatever
// comes of the request. It waits for one for a tenth of a second at most, and as many
// may wait as there are places. An error is the answer, 503 or 499, and nothing is to
// be left then.
//
// It comes before anything is charged for the request: what cannot be carried costs
// nobody anything.
func (u *Upstream) Enter(ctx context.Context) (Place, *httperr.Error) {
	r := u.room
	var p Place
	if r.circuit != nil {
		done, err := r.circuit.Allow()
		if err != nil {
			return p, r.full("circuit_open", fmt.Sprintf("The upstream %q fails, and is left alone for a moment. Wait before the next request.", r.name), r.open)
		}
		if r.trying.Load() {
			p.trial = &trial{circuit: r.circuit, done: done}
		} else {
			p.done = done
		}
	}
	if r.places == nil {
		return p, nil
	}
	if !r.places.TryAcquire(1) && !r.wait(ctx) {
		p.tell(&clientError{"wait for a place", context.Cause(ctx)}) // it was not asked
		if ctx.Err() != nil {
			return Place{}, clientLeft(ctx.Err())
		}
		return Place{}, r.full("no_room", fmt.Sprintf("The upstream %q is as busy as it may be. Wait before the next request.", r.name), time.Second)
	}
	p.places = r.places
	return p, nil
}

// wait reports whether a place became free in time.
func (r *room) wait(ctx context.Context) bool {
	if !r.waiting.TryAcquire(1) {
		return false
	}
	defer r.waiting.Release(1)
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	return r.places.Acquire(ctx, 1) == nil
}

func (r *room) full(reason, detail string, wait time.Duration) *httperr.Error {
	if r.hooks.NoRoom != nil {
		r.hooks.NoRoom(r.name, reason)
	}
	return &httperr.Error{Status: http.StatusServiceUnavailable, Detail: detail, RetryAfter: wait, Reason: reason}
}

// Leave gives the place back. It may be called twice.
func (p *Place) Leave() {
	p.tell(&clientError{"carry the request", context.Canceled}) // if nobody has said more
	if p.places != nil {
		p.places.Release(1)
		p.places = nil
	}
}

// tell says, once, whether the upstream did what it was asked.
func (p *Place) tell(err error) {
	if p == nil {
		return
	}
	if p.trial != nil {
		p.trial.tell(err)
		p.trial = nil
	}
	if p.done != nil {
		p.done(err)
		p.done = nil
	}
}

// onTrial gives a trial back unless its client's body is here in time.
func (p *Place) onTrial(b *upload) {
	if p == nil || p.trial == nil {
		return
	}
	t := p.trial
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trial = time.AfterFunc(trialBody, func() {
		b.mu.Lock()
		ended := b.ended
		b.mu.Unlock()
		if !ended {
			t.giveBack()
		}
	})
}

// outcome is what a status says to the circuit.
func outcome(status int) error {
	if status >= http.StatusInternalServerError {
		return errServerError
	}
	return nil
}
