// Package httperr is the one place where an error becomes an answer. A stage
// returns an *Error; the pipeline hands it to Write, which renders it as
// application/problem+json (RFC 9457). Nothing else answers with a status of
// 400 or above in the gateway's own name.
//
// It is not for an upstream's errors, which pass through untouched, and not
// for logging: Err travels with the error for the access log and is never
// shown to a client.
package httperr

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// The problem types of draft-ietf-httpapi-ratelimit-headers, registered in
// IANA's HTTP Problem Types registry.
const (
	TypeBlank           = "about:blank"
	TypeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	TypeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	TypeAbnormalUsage   = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
)

// StatusClientClosedRequest is what logs and metrics call a request whose
// client left before the answer. It is never sent.
const StatusClientClosedRequest = 499

// Error is an answer in the gateway's own name.
type Error struct {
	// Status is the HTTP status, >= 400.
	Status int
	// Type is the problem type, a URI; empty means about:blank.
	Type string
	// Detail is for the client: what was wrong and what to do. No Go error text.
	Detail string
	// RetryAfter becomes the Retry-After field, in whole seconds, rounded up
	// and at least 1; zero or less sends none.
	RetryAfter time.Duration
	// Violated lists the policies that denied (violated-policies).
	Violated []string
	// Errors lists several things that were wrong, one text each (the errors
	// member); only the admin listener uses it.
	Errors []string
	// Header is added to the answer; it may be nil.
	Header http.Header
	// Close ends the connection after the answer, unless others share it, as in
	// HTTP/2.
	Close bool
	// Reason is a short word for logs and metrics: what refused.
	Reason string
	// Err is the cause, for the log only.
	Err error
}

// Error implements error. It is for the log, never for a client.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Reason + ": " + e.Err.Error()
	}
	if e.Reason != "" {
		return e.Reason
	}
	return http.StatusText(e.Status)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// linger is how long a client that still sends a body is listened to after an
// answer that ends the connection: closed at once, the connection could take the
// answer back (RFC 9112 section 9.6).
const linger = 500 * time.Millisecond

type problem struct {
	Type      string   `json:"type"`
	Title     string   `json:"title"`
	Status    int      `json:"status"`
	Detail    string   `json:"detail"`
	RequestID string   `json:"request_id"`
	Violated  []string `json:"violated-policies,omitempty"`
	Errors    []string `json:"errors,omitempty"`
}

// Seconds is d as delay-seconds (RFC 9110 section 10.2.3): whole seconds,
// rounded up, at least 1, because an earlier return would be refused again.
func Seconds(d time.Duration) int64 {
	s := int64((d + time.Second - 1) / time.Second)
	return max(s, 1)
}

// Write answers with e. A HEAD request gets the fields without the body. The
// answer is never cacheable: it is about this caller and this moment.
func Write(w http.ResponseWriter, r *http.Request, requestID string, e *Error) {
	p := problem{
		Type: e.Type, Title: http.StatusText(e.Status), Status: e.Status,
		Detail: e.Detail, RequestID: requestID, Violated: e.Violated,
		Errors: e.Errors,
	}
	if p.Type == "" {
		p.Type = TypeBlank
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic("bug: problem does not marshal: " + err.Error())
	}
	body = append(body, '\n')
	h := w.Header()
	for name, values := range e.Header {
		h[name] = append(h[name], values...)
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(Seconds(e.RetryAfter), 10))
	}
	if e.Close && r.ProtoMajor < 2 {
		h.Set("Connection", "close")
	}
	if r.ContentLength != 0 && r.ProtoMajor < 2 && (e.Close || r.Header.Get("Expect") != "") {
		// The connection ends, and net/http would first wait for the body, which a
		// client that reads this does not send.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(linger))
	}
	w.WriteHeader(e.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a client that left is noticed by the server, not here
	}
}
