package telemetry

import (
	"net/http"
	"time"

	"bouncer/gateway/scope"
)

// Request counts one finished request and writes its access-log line. It is to
// be called once, by the goroutine that owns s, when the answer has been sent
// (or given up on, with status 499).
func (t *Telemetry) Request(r *http.Request, s *scope.Request) {
	took := max(time.Since(s.Arrived), 0)
	rt := t.route(s.Route)
	if s.Status >= http.StatusBadRequest {
		rt.tellApart(s)
	}
	t.countRequest(rt, methodIndex(r.Method), codes.of(s.Status))
	rt.observe(s, took)
	most, sampled := maxBuffered, ""
	if wentWell(s) {
		var write bool
		if sampled, write = t.share.Load().draw(); !write {
			return
		}
		most = maxServed
	}
	line := lineBuffers.Get().(*[]byte)
	*line = appendRequest((*line)[:0], r, s, took, t.authReason(s.AuthError), sampled)
	t.lines.offer(*line, most)
	lineBuffers.Put(line)
}

// tellApart counts an answer whose code does not say whose it is; see route.
func (r *route) tellApart(s *scope.Request) {
	switch own := s.UpstreamStatus != s.Status; {
	case s.Status == http.StatusServiceUnavailable && s.StoreErr != nil && s.UpstreamAttempts == 0:
		r.uncheckable.Add(1)
	case own || s.Status >= http.StatusInternalServerError:
	case s.Status == http.StatusTooManyRequests:
		r.passedDenials.Add(1)
	default:
		r.passedOn.Add(1)
	}
}

// authReason is the word for why a credential was refused.
func (t *Telemetry) authReason(err error) string {
	if err == nil || t.reason == nil {
		return AuthRefused
	}
	if word := t.reason(err); word != "" {
		return word
	}
	return AuthRefused
}
