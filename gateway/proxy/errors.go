package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"bouncer/gateway/httperr"
)

// The reasons of the errors that Forward returns, for logs and metrics.
const (
	ReasonUnreachable = "upstream_unreachable" // no connection: 502
	ReasonTimeout     = "upstream_timeout"     // no connection or no head in time: 504
	ReasonBroken      = "upstream_broken"      // reset, malformed, too large a head: 502
	ReasonClientLeft  = "client_left"          // 499, nothing is to be written
	ReasonClientBody  = "client_body"          // 400 or 408; 504 when a route's time is over
	ReasonTooLarge    = "body_too_large"       // 413
)

// ReasonShutdown is what Forward puts into scope.Request.DeniedBy for a WebSocket that
// ended because the gateway does.
const ReasonShutdown = "shutting_down"

// errStalled is the cause when an upstream took no more of the request.
var errStalled = errors.New("the upstream stopped taking in the request")

// clientError is err, marked as the client's doing.
type clientError struct {
	doing string
	err   error
}

func (e *clientError) Error() string        { return e.doing + ": " + e.err.Error() }
func (e *clientError) Unwrap() error        { return e.err }
func (e *clientError) Is(target error) bool { return target == ErrClient }

// explain turns the reason why there was no answer into the gateway's answer.
// bodyErr is what reading the client's body gave, stalled whether the upstream
// stopped reading it. What is wrong with the body comes first: over HTTP/1 net/http
// ends the request's context for it.
func (u *Upstream) explain(r *http.Request, err error, stalled bool, bodyErr error) *httperr.Error {
	switch {
	case bodyErr != nil && !stalled:
		return clientBody(r, bodyErr)
	case r.Context().Err() == context.Canceled:
		return clientLeft(err)
	case stalled:
		return u.timeout(fmt.Errorf("%w within %v: %w", errStalled, u.stall, err))
	case isTimeout(err):
		return u.timeout(err)
	case isDialError(err), isHandshakeError(err):
		return &httperr.Error{
			Status: http.StatusBadGateway,
			Detail: fmt.Sprintf("The upstream %q cannot be reached at the moment. Try again later.", u.name),
			Reason: ReasonUnreachable,
			Err:    err,
		}
	}
	return &httperr.Error{
		Status: http.StatusBadGateway,
		Detail: fmt.Sprintf("The upstream %q gave no usable answer.", u.name),
		Reason: ReasonBroken,
		Err:    err,
	}
}

func (u *Upstream) timeout(err error) *httperr.Error {
	detail := "The upstream %q did not answer in time. The request may have been carried out."
	if isDialError(err) {
		detail = "The upstream %q cannot be reached at the moment. Try again later."
	}
	return &httperr.Error{
		Status: http.StatusGatewayTimeout,
		Detail: fmt.Sprintf(detail, u.name),
		Reason: ReasonTimeout,
		Err:    err,
	}
}

func clientLeft(err error) *httperr.Error {
	return &httperr.Error{
		Status: httperr.StatusClientClosedRequest,
		Detail: "The client left before the answer.",
		Reason: ReasonClientLeft,
		Close:  true,
		Err:    &clientError{"wait for the upstream", err},
	}
}

// clientBody explains why the client's body could not be read to its end.
func clientBody(r *http.Request, err error) *httperr.Error {
	if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge(big)
	}
	e := &httperr.Error{Close: true, Reason: ReasonClientBody, Err: &clientError{"read the request body", err}}
	_, onWire := errors.AsType[*net.OpError](err)
	switch {
	case isTimeout(err):
		e.Status, e.Detail = http.StatusRequestTimeout, "The request body did not arrive in time."
	case onWire, errors.Is(err, io.ErrUnexpectedEOF), r.ProtoMajor >= 2 && streamEnds(r):
		left := clientLeft(err)
		left.Err = e.Err
		return left
	default:
		e.Status, e.Detail = http.StatusBadRequest, "The request body is malformed."
	}
	return e
}

// streamEnds reports whether a body of HTTP/2 broke off because its stream has ended.
// net/http says that a moment after the body; otherwise the body is not as long as the
// Content-Length says.
func streamEnds(r *http.Request) bool {
	moment := time.NewTimer(streamMoment)
	defer moment.Stop()
	select {
	case <-r.Context().Done():
		return true
	case <-moment.C:
		return false
	}
}

const streamMoment = 10 * time.Millisecond

// slowClient is the answer when the route's time is over and the client has not sent
// its body yet.
func slowClient(timeout time.Duration) *httperr.Error {
	return &httperr.Error{
		Status: http.StatusGatewayTimeout,
		Detail: "The request body did not arrive within the time that this route has for a request.",
		Close:  true,
		Reason: ReasonClientBody,
		Err:    &clientError{"read the request body", fmt.Errorf("it was not here when the route's timeout, %v, was over", timeout)},
	}
}

// tooLarge is the answer to a body of more bytes than a route takes.
func tooLarge(err *http.MaxBytesError) *httperr.Error {
	return &httperr.Error{
		Status: http.StatusRequestEntityTooLarge,
		Detail: fmt.Sprintf("The request body is too large: this route takes %d bytes at most.", err.Limit),
		Close:  true,
		Reason: ReasonTooLarge,
		Err:    &clientError{"read the request body", err},
	}
}

// isHandshakeError reports whether TLS with the upstream failed.
func isHandshakeError(err error) bool {
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	return certificate || record || alert
}

func isTimeout(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}
