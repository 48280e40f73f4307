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
	t.countRequest(rt, methodIndex(r.Method), codes.of(s.Status))
	// How long two parties talked over an upgraded connection says nothing about
	// latency, and hours of it would drown what does.
	if s.Status != http.StatusSwitchingProtocols {
		rt.observe(s, took)
	}
	line := lineBuffers.Get().(*[]byte)
	*line = appendRequest((*line)[:0], r, s, took, t.authReason(s.AuthError))
	_, _ = t.lines.Write(*line) // never fails; see lineWriter
	lineBuffers.Put(line)
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
