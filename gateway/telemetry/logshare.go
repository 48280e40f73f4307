package telemetry

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"

	"bouncer/gateway/scope"
)

// million is of what shares are counted.
const million = 1_000_000

// A sampling is which lines of requests that went well are written. nil: all.
type sampling struct {
	millionths uint64 // of the requests, below a million
	field      string // what such a line says of it
}

// SampleAllowed sets the share of the lines that is written of requests that were let in
// and went well, in millionths, from 0 to 1,000,000. Those that are written say so in the
// field "sampled", as a number from 0 to 1, so that whoever counts can weigh them. All others
// have their line: denials, refusals, errors, and clients that left. It is in force for the
// next request. Which requests have a line is left to chance and not to who asks, so
// that no caller is always or never seen.
func (t *Telemetry) SampleAllowed(millionths int) {
	if millionths >= million {
		t.share.Store(nil)
		return
	}
	n := uint64(max(millionths, 0))
	t.share.Store(&sampling{n, `,"sampled":` + strconv.FormatFloat(float64(n)/million, 'f', -1, 64)})
}

// SetLevel sets the least level of the process log that is written.
func (t *Telemetry) SetLevel(l slog.Level) { t.level.Set(l) }

// Level is the least level of the process log that is written.
func (t *Telemetry) Level() slog.Level { return t.level.Level() }

// wentWell reports whether there is nothing to tell of a request but that it was served.
func wentWell(s *scope.Request) bool {
	return s.Status > 0 && s.Status < http.StatusBadRequest && s.DeniedBy == "" &&
		s.AuthError == nil && s.StoreErr == nil && s.UpstreamErr == nil
}

// draw returns what the line of a request says of the sampling; write is false if there is to
// be none. nil is all of them.
func (o *sampling) draw() (field string, write bool) {
	if o == nil {
		return "", true
	}
	return o.field, rand.Uint64N(million) < o.millionths //nolint:gosec // no secret
}
