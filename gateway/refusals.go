package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"bouncer/gateway/httperr"
	"bouncer/gateway/proxy"
	"bouncer/gateway/ratelimit"
)

// What the gateway answers in its own name, by the stage that refuses. What a
// router or the proxy refuses with stands beside them.

// answer sends what a stage refused with, in the gateway's own name.
func (s *snapshot) answer(x *exchange, r *http.Request, e *httperr.Error) {
	if e.Err != nil && e.Status >= 500 && e.Reason != "store_unavailable" && x.UpstreamErr == nil {
		x.UpstreamErr = e.Err
	}
	if e.Status == httperr.StatusClientClosedRequest && wasCut(r) {
		e = cutShort()
		if s.gw.closed.Load() {
			x.Status, x.DeniedBy = e.Status, e.Reason // its connection has gone: end breaks it off
			return
		}
	}
	if x.DeniedBy == "" {
		x.DeniedBy = e.Reason
	}
	if e.Status == httperr.StatusClientClosedRequest {
		x.Status = e.Status // nobody is there to read an answer: end breaks it off
		return
	}
	x.response.own = true
	httperr.Write(&x.response, r, x.ID, e)
}

// unauthorized is the same answer whatever was wrong with a credential.
func (s *snapshot) unauthorized() *httperr.Error {
	return &httperr.Error{
		Status: http.StatusUnauthorized, Reason: "unauthorized",
		Detail: "This path needs valid credentials; the WWW-Authenticate field says of which kind.",
		Header: http.Header{"Www-Authenticate": s.auth.Challenges()},
	}
}

// tooManyFailures is the answer to an address that has failed too often.
func tooManyFailures(wait time.Duration) *httperr.Error {
	return &httperr.Error{
		Status: http.StatusTooManyRequests, Reason: "failure_limit",
		Type:       httperr.TypeAbnormalUsage,
		Detail:     "Too many failed attempts to authenticate came from this address. Wait, and check the credentials.",
		RetryAfter: wait,
	}
}

// tooManyGuesses is the answer to a wrong key when too many wrong ones of its id came,
// from wherever. The right one is never answered so.
func tooManyGuesses(wait time.Duration) *httperr.Error {
	return &httperr.Error{
		Status: http.StatusTooManyRequests, Reason: "key_failure_limit",
		Type:       httperr.TypeAbnormalUsage,
		Detail:     "Too many wrong keys of this kind came. Wait, and check the key.",
		RetryAfter: wait,
	}
}

// tooManySockets is the answer to a handshake of one that has as many WebSockets
// open as it may. When one of them ends is not known here; clients that connect anew
// by themselves are not to do it at once.
func tooManySockets(may int) *httperr.Error {
	return &httperr.Error{
		Status: http.StatusTooManyRequests, Reason: "websocket_connections",
		Detail:     fmt.Sprintf("As many WebSockets are open as may be at the same time, %d. Close one first.", may),
		RetryAfter: socketPause,
	}
}

// socketPause is when to ask again whether a WebSocket may be opened.
const socketPause = 5 * time.Second

// denied is the answer to a request that a limit denied (RFC 6585 section 4).
func denied(x *exchange, ds []ratelimit.Decision) *httperr.Error {
	violated := ratelimit.Violated(ds)
	x.DeniedBy = violated[0]
	wait, _ := ratelimit.RetryAfter(ds)
	e := &httperr.Error{
		Status: http.StatusTooManyRequests, Reason: "quota_exceeded",
		Type: httperr.TypeQuotaExceeded, Violated: violated, RetryAfter: wait,
	}
	if ds[0].Source == ratelimit.SourceLocalCap {
		e.Type = httperr.TypeReducedCapacity
	}
	names := `"` + strings.Join(violated, `", "`) + `"`
	switch {
	case wait == ratelimit.Never && e.Type == httperr.TypeReducedCapacity:
		e.Detail = fmt.Sprintf("This request costs %d, which is more than %s admits on this instance while the shared count is away. It may be admitted again once that is back.", x.Cost, names)
	case wait == ratelimit.Never:
		e.Detail = fmt.Sprintf("This request costs %d, which is more than %s ever admits. Waiting does not help.", x.Cost, names)
	default:
		e.Detail = fmt.Sprintf("The quota of %s is used up. Wait %d s before the next request.", names, httperr.Seconds(wait))
	}
	return e
}

// storeFailed is the answer when nobody could decide and the route is not to be
// served without a decision, or when the client left before there was one.
func storeFailed(err error) *httperr.Error {
	away, isAway := errors.AsType[*ratelimit.UnavailableError](err)
	if !isAway && errors.Is(err, context.Canceled) {
		return &httperr.Error{Status: httperr.StatusClientClosedRequest, Reason: "client_left", Err: err}
	}
	e := &httperr.Error{
		Status: http.StatusServiceUnavailable, Reason: "store_unavailable",
		Type:       httperr.TypeReducedCapacity,
		Detail:     "Limits cannot be checked at the moment, and this path is not served without them. Try again shortly.",
		RetryAfter: time.Second, Err: err,
	}
	if isAway {
		e.RetryAfter = away.RetryAfter
	}
	return e
}

// shuttingDown is the answer to a request that still waits for its turn.
func shuttingDown() *httperr.Error {
	return &httperr.Error{
		Status: http.StatusServiceUnavailable, Reason: shutdown, Close: true,
		Detail:     "This instance is being stopped. Send the request again; another one will take it.",
		RetryAfter: time.Second,
	}
}

// cutShort is the answer to a request that shutdown_timeout did not suffice for.
func cutShort() *httperr.Error {
	return &httperr.Error{
		Status: http.StatusServiceUnavailable, Reason: shutdown, Close: true,
		Detail: "This instance was stopped before the API answered. The request may have been carried out.",
	}
}

// shutdown is the reason of what ends because the gateway does.
const shutdown = proxy.ReasonShutdown

// wasCut reports whether a request ended because the gateway does, and not its client.
func wasCut(r *http.Request) bool { return context.Cause(r.Context()) == errCut } //nolint:errorlint // as it was given
