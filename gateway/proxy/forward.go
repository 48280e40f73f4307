package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"bouncer/gateway/httperr"
	"bouncer/gateway/rewrite"
	"bouncer/gateway/scope"
)

// Forward says how one request is carried.
type Forward struct {
	// Strip removes credentials from the outgoing header, and from the
	// trailers if there are any. It runs before the gateway's own fields are
	// set. nil leaves the credentials in.
	Strip func(http.Header)
	// ClientField is the field that trusted proxies name the client's address
	// in, such as CF-Connecting-IP. From anybody else it is removed, since an
	// upstream may believe it too. Empty: none but the well-known ones.
	ClientField string
	// Fields are changes to the outgoing header. They are made after Strip and
	// before the gateway's own fields are set. nil for none.
	Fields *rewrite.Fields
	// To is the URL whose path and query a target gets; nil for the request's own.
	To *url.URL
	// MaxBody is the largest request body, in bytes; nil for any. A larger one is
	// refused with 413: before anything is sent, if its length was announced.
	MaxBody *int64
	// Timeout bounds the time until the head of the answer is here, with all that
	// is before it: connecting, other targets, and the client's sending of its
	// body. 0 for none but those of the upstream.
	Timeout time.Duration
	// WebSocket bounds what becomes of the request if it is a handshake. Timeout does
	// not: it is over when the answer has begun.
	WebSocket WebSocket
	// Leaving ends when the gateway begins to stop: a WebSocket is told to go elsewhere
	// then, and the rest has more time, until the request's own context ends. nil: never.
	Leaving context.Context
	// Key is what Hash goes by: requests with the same one go to the same target.
	Key string
	// NoWebSocket says that no target can be asked for one: a handshake is refused
	// with 501 (RFC 9110 section 15.6.2).
	NoWebSocket bool
	// Trace is told of the attempts; nil: nobody is.
	Trace Trace
	// Place is where [Upstream.Enter] let the request in, which is told whether there
	// was an answer; nil for none.
	Place *Place

	host string // the Host that Fields set; empty: the target's
}

// A Trace follows the attempts at targets, of which there is one at a time. It is called on
// the request's goroutine.
type Trace interface {
	// Attempt is called before each attempt. What it sets of s.SpanID is what that
	// target is told.
	Attempt(s *scope.Request)
	// Attempted is called when an attempt has ended, with what Hooks.Done gets.
	Attempted(s *scope.Request, status int, err error)
}

// noLog is for what httputil.ReverseProxy would print: all of it is in
// scope.Request.UpstreamErr and Hooks.Done already.
var noLog = log.New(io.Discard, "", 0)

// Forward carries the request to a target and the answer back. It returns nil
// when an answer has been started, and an error, for the caller to write, when
// nothing has been written; with status httperr.StatusClientClosedRequest
// nothing is to be written either. It panics with http.ErrAbortHandler if the
// answer breaks off half-way; see the package documentation.
//
// It fills in s.Target, s.UpstreamStatus, s.UpstreamDuration, s.UpstreamErr and s.Stream,
// also when it panics, and sends on what s says of the client: ID, Forwarded,
// ClientIP, User, Tenant, Plan, KeyID. For a WebSocket that the gateway's own end
// ended it sets s.DeniedBy to ReasonShutdown.
//
// w may be wrapped: flushing, hijacking and full duplex are reached through
// Unwrap, as http.ResponseController does. The header fields that w holds
// already are kept and the answer's added to them. After a WebSocket w is
// hijacked, and its 101 did not pass through WriteHeader; s.UpstreamStatus
// says 101.
func (u *Upstream) Forward(w http.ResponseWriter, r *http.Request, s *scope.Request, o Forward) *httperr.Error {
	webSocket, refused := o.refuse(r)
	if refused != nil {
		return refused
	}
	if o.host = o.Fields.Host(r, s); o.host != "" && !rewrite.ValidHost(o.host) {
		return &httperr.Error{ // net/http would send an empty one
			Status: http.StatusBadRequest, Reason: "bad_host", Close: true,
			Detail: "The request makes no host name for the server behind this path. Send one with a usual Host field.",
		}
	}
	x := u.exchanges.Get().(*exchange)
	x.begin(w, r, s, o, webSocket)
	defer x.end()
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		// Otherwise net/http reads the rest of the body before it sends the
		// head of an answer that came early. An error means that w cannot do
		// it, and then the answer is as late as without.
		_ = http.NewResponseController(w).EnableFullDuplex()
	}
	x.proxy.ServeHTTP(x, &x.bare)

	x.finished = true
	if !x.started {
		return x.failure()
	}
	if x.brokenBy() != nil {
		// ReverseProxy does this itself under a server that it recognises.
		x.finished = false
		panic(http.ErrAbortHandler)
	}
	return nil
}

// exchange is one request and its answer. It stands between
// httputil.ReverseProxy and the client as the http.ResponseWriter, and between
// ReverseProxy and the transport as the http.RoundTripper. Each has a
// ReverseProxy of its own, which is only a handful of functions; so the
// functions know their request without a context value, and both are used
// again and again.
type exchange struct {
	u     *Upstream
	proxy httputil.ReverseProxy

	client    *http.Request
	scope     *scope.Request
	bare      http.Request // the client's without fields, for ReverseProxy
	forward   Forward
	webSocket bool
	target    int             // index of the target in use
	been      []bool          // which targets the request was at, this one among them, since the last pause
	tried     int             // how many that are
	rounds    int             // pauses so far, each before all targets may be tried again
	repeats   int             // attempts so far that the budget paid for
	there     bool            // the request is at the target in use
	via       *http.Transport // its connections, as long as the request is there
	start     time.Time
	upload    *upload // nil without a request body
	stop      func()  // releases the upload's context
	deadline  *deadline

	err      error // why there is no answer
	answered bool  // the head of the answer is here
	started  bool  // a final head was given to the client
	finished bool  // ServeHTTP returned and the answer is whole

	interim  http.Header // collects the fields of a 1xx answer
	switched http.Header // the fields of a 101, until it is sent
	tunnel   *tunnel     // what a 101 makes of the connections
	answer   answer
}

func newExchange(u *Upstream) *exchange {
	x := &exchange{u: u, been: make([]bool, len(u.targets))}
	x.proxy = httputil.ReverseProxy{
		Rewrite:        x.rewrite,
		Transport:      x,
		ModifyResponse: x.arrived,
		ErrorHandler:   x.failed,
		BufferPool:     copyBuffers,
		ErrorLog:       noLog,
		// Flushing is done by answer, in fewer writes.
		FlushInterval: 0,
	}
	x.answer.timer = time.AfterFunc(time.Hour, x.answer.late)
	x.answer.timer.Stop()
	x.answer.unread = time.AfterFunc(time.Hour, x.answer.unblock)
	x.answer.unread.Stop()
	x.answer.told = u.hooks.NotRead
	return x
}

func (x *exchange) begin(w http.ResponseWriter, r *http.Request, s *scope.Request, o Forward, webSocket bool) {
	x.client, x.scope, x.forward, x.webSocket = r, s, o, webSocket
	// ReverseProxy clones the fields before it asks for others. outgoing
	// builds the new ones in one pass, from the client's own.
	x.bare = *r
	x.bare.Header = nil
	if o.MaxBody != nil && r.Body != nil {
		x.bare.Body = http.MaxBytesReader(nil, r.Body, *o.MaxBody)
	}
	x.answer.w = w
	if r.ProtoMajor == 2 {
		x.answer.bound = x.u.unread
	}
	if x.u.retries != nil {
		x.u.retries.budget.earn()
	}
	x.take(x.u.balancer.pick(o.Key, nil))
}

// take counts the request towards target at, which is in use from now on.
func (x *exchange) take(at int) {
	t := x.u.targets[at]
	x.target, x.tried = at, x.tried+1
	t.inFlight.Add(1)
	x.start, x.there, x.been[x.target] = time.Now(), true, true
	x.scope.Target, x.scope.UpstreamStatus, x.scope.UpstreamErr = t.name, 0, nil
	x.scope.UpstreamAttempts++
	if x.forward.Trace != nil {
		x.forward.Trace.Attempt(x.scope)
	}
}

// leave counts the request out again and reports how it went.
func (x *exchange) leave(status int, err error) {
	t := x.u.targets[x.target]
	t.inFlight.Add(-1)
	x.there = false
	if x.via != nil && (x.via != t.transport.Load() || x.u.room.closed.Load()) {
		x.via.CloseIdleConnections() // it is nobody's any more
	}
	x.via = nil
	x.scope.UpstreamStatus, x.scope.UpstreamErr = status, err
	d := time.Since(x.start)
	x.scope.UpstreamDuration += d
	if x.forward.Trace != nil {
		x.forward.Trace.Attempted(x.scope, status, err)
	}
	if x.u.hooks.Done != nil {
		x.u.hooks.Done(x.u.name, t.name, status, d, x.scope.Stream, err)
	}
}

// end is run when ServeHTTP has returned or is being unwound by a panic.
func (x *exchange) end() {
	switch {
	case !x.there: // given up between two attempts
	case x.started:
		x.leave(x.scope.UpstreamStatus, x.brokenBy())
	default:
		x.leave(x.scope.UpstreamStatus, x.scope.UpstreamErr)
	}
	if x.tunnel != nil && x.tunnel.why.Load() == endShutdown {
		x.scope.DeniedBy = ReasonShutdown
	}
	if x.upload != nil {
		x.upload.leave()
	}
	if x.stop != nil {
		x.stop()
	}
	if x.deadline != nil {
		x.deadline.meet()
		x.deadline.cancel()
	}
	// After a panic or a late timer somebody may still hold it.
	if x.finished && !x.answer.ran {
		u, timer := x.u, x.answer.timer
		x.reset()
		x.answer.timer = timer
		u.exchanges.Put(x)
	}
}

// reset forgets the request.
func (x *exchange) reset() {
	x.client, x.scope, x.forward, x.webSocket = nil, nil, Forward{}, false
	x.bare = http.Request{}
	clear(x.been)
	x.tried, x.rounds, x.repeats = 0, 0, 0
	x.upload, x.stop, x.deadline = nil, nil, nil
	x.err, x.answered, x.started, x.finished = nil, false, false, false
	x.interim, x.switched, x.tunnel = nil, nil, nil
	x.answer.w, x.answer.body, x.answer.stop, x.answer.from = nil, nil, nil, nil
	x.answer.bound = 0
	x.answer.pending, x.answer.drained, x.answer.waiting = false, false, false
	x.answer.readErr, x.answer.held, x.answer.writeErr = nil, nil, nil
}

// rewrite makes the outgoing request.
func (x *exchange) rewrite(p *httputil.ProxyRequest) {
	out := p.Out
	t := x.u.targets[x.target]
	t.point(out.URL, x.url())
	x.webSocket = x.webSocket && !t.onlyHTTP2
	out.Host = x.forward.host // empty: the URL's
	out.Header = outgoing(x.client, x.scope, x.forward, x.webSocket)
	for name := range out.Trailer {
		if forbiddenTrailer(name) || x.forward.replaces(name, x.scope) {
			delete(out.Trailer, name)
		}
	}
	if len(out.Trailer) > 0 && x.forward.Strip != nil {
		x.forward.Strip(out.Trailer)
	}
}

// url is what a target is asked for.
func (x *exchange) url() *url.URL {
	if x.forward.To != nil {
		return x.forward.To
	}
	return x.client.URL
}

// RoundTrip implements http.RoundTripper for the exchange's own ReverseProxy:
// it sends the request to the chosen target or, while no connection can be
// had, to the others in turn; and once more where [Retries] allow it.
func (x *exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	if x.forward.Timeout > 0 {
		r = x.attachDeadline(r)
	}
	if r.Body != nil {
		r = x.attachUpload(r)
		x.deadline.watch(x.upload)
	}
	ctx := r.Context()
	if x.webSocket {
		ctx = context.WithValue(ctx, onlyHTTP1{}, true)
		r = r.WithContext(ctx)
	}
	for {
		out, heard := x.listen(r)
		x.via = x.u.targets[x.target].transport.Load()
		res, err := x.via.RoundTrip(out)
		next := -1
		if isDialError(err) && ctx.Err() == nil {
			next = x.passOver(err)
		}
		if next < 0 {
			next = x.again(ctx, heard, res, err)
		}
		switch {
		case next >= 0:
		case x.there:
			return res, err
		default: // given up between two attempts
			return nil, ctx.Err()
		}
		x.take(next)
		r = r.WithContext(ctx) // a copy: the old one may still be in use
		to := *r.URL
		x.u.targets[x.target].point(&to, x.url())
		r.URL = &to
		if x.forward.Trace != nil {
			r.Header = maps.Clone(r.Header)
			r.Header["Traceparent"] = []string{scope.Traceparent(x.scope.TraceID, x.scope.SpanID, x.scope.TraceSampled)}
		}
		if x.upload != nil {
			if r.Body, err = x.upload.again(); err != nil {
				return nil, err
			}
		}
	}
}

// passOver leaves a target that cannot be connected to, and returns the next one; -1 if
// there is none. Targets that are left out come last, and only for a request that has
// had no answer yet.
func (x *exchange) passOver(err error) int {
	if x.tried == len(x.u.targets) {
		return -1
	}
	next := x.u.balancer.another(x.forward.Key, x.been)
	if next < 0 && x.repeats == 0 {
		next = x.u.balancer.pick(x.forward.Key, x.been)
	}
	if next >= 0 {
		x.leave(0, err)
	}
	return next
}

// arrived looks at the head of the answer before ReverseProxy sends it on.
func (x *exchange) arrived(res *http.Response) error {
	x.scope.UpstreamStatus = res.StatusCode
	if !x.deadline.meet() {
		return errLate
	}
	x.answered = true
	x.forward.Place.tell(outcome(res.StatusCode))
	if x.upload != nil {
		_, _ = x.upload.settle() // an answer came: what went wrong before it does not matter
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		if !x.webSocket {
			return errors.New("the upstream switched protocols unasked")
		}
		upstream, ok := res.Body.(io.ReadWriteCloser)
		if !ok {
			return errors.New("the upstream's connection cannot be written to after the switch")
		}
		x.switched = res.Header
		x.tunnel = newTunnel(x.client.Context(), upstream, x.forward.WebSocket, x.socketEnded())
		x.tunnel.leaving = x.forward.Leaving
		res.Body = upstreamSide{x.tunnel}
		return nil
	}
	if res.StatusCode < 200 || res.StatusCode > 599 {
		return fmt.Errorf("the upstream answered with status %d", res.StatusCode)
	}
	if _, ok := res.Header["Content-Type"]; !ok {
		// Present without a value, or net/http would guess one.
		if h := x.answer.w.Header(); h["Content-Type"] == nil {
			h["Content-Type"] = nil
		}
	}
	if res.Body != http.NoBody {
		x.scope.Stream = isEventStream(res.Header)
		x.answer.body, x.answer.stop, x.answer.from = res.Body, x.stop, res
		res.Trailer = allowedTrailers(res.Trailer) // what is announced
		res.Body = &x.answer
		// ReverseProxy flushes an answer of unknown length after every write,
		// from a goroutine of its own; answer does it in fewer writes.
		res.ContentLength = 0
	}
	return nil
}

// socketEnded is whom a tunnel tells that the gateway ends it, and why.
func (x *exchange) socketEnded() func(why string) {
	told, upstream := x.u.hooks.WebSocketEnded, x.u.name
	if told == nil {
		return nil
	}
	return func(why string) { told(upstream, why) }
}

// failed is ReverseProxy's error handler. It writes nothing.
func (x *exchange) failed(_ http.ResponseWriter, _ *http.Request, err error) { x.err = err }

// failure explains why nothing was written.
func (x *exchange) failure() *httperr.Error {
	var stalled bool
	var bodyErr error
	if x.upload != nil {
		if context.Cause(x.client.Context()) == context.Canceled { //nolint:errorlint // as net/http ends it
			x.upload.finish()
		}
		stalled, bodyErr = x.upload.settle()
	}
	if x.err == nil {
		x.err = errors.New("no answer")
	}
	var e *httperr.Error
	if !x.deadline.meet() {
		if x.deadline.waits() {
			e = slowClient(x.forward.Timeout)
		} else {
			e = x.u.timeout(fmt.Errorf("%w (the route's timeout, %v): %w", errLate, x.forward.Timeout, x.err))
		}
	} else {
		e = x.u.explain(x.client, x.err, stalled, bodyErr)
	}
	e.Close = e.Close || x.bodyToCome()
	x.scope.UpstreamErr = e.Err
	x.forward.Place.tell(e.Err)
	return e
}

// brokenBy returns why the answer broke off, if it did.
func (x *exchange) brokenBy() error {
	a := &x.answer
	switch {
	case a.writeErr != nil:
		return &clientError{"send the answer", a.writeErr}
	case a.readErr != nil && x.client.Context().Err() != nil:
		return &clientError{"send the answer", a.readErr}
	case a.readErr != nil:
		return fmt.Errorf("read the answer: %w", a.readErr)
	case x.err != nil: // ReverseProxy reports it after hijacking
		return &clientError{"send the head of the answer", x.err}
	}
	return nil
}
