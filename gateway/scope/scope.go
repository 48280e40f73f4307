// Package scope is what is known of one request so far. The pipeline makes one
// Request, each stage fills in what it found out, and the access log, metrics
// and the proxy read it.
//
// It is not a bag for anything: a field stands here because two stages need
// it. It is owned by the request's goroutine and is not safe for concurrent use.
package scope

import (
	"net/netip"
	"time"
)

// Request is what is known of one request so far. The zero value of a field
// means "not known (yet)".
type Request struct {
	ID      string    // request id: the client's own from a trusted peer, else made here
	Arrived time.Time // when the request's head had been read

	// Set by the client-IP stage.
	Peer        netip.Addr // who is on the wire; zero on a unix socket
	PeerTrusted bool       // the peer is a trusted proxy: its forwarding fields count
	ClientIP    netip.Addr // whose address it is, whole, as decided
	IPBucket    string     // the client's address as limits count it: "203.0.113.7", "2001:db8::/64" or NoAddress
	Forwarded   string     // the believed chain and the peer, the upstream's X-Forwarded-For

	// Set once it is known whether the peer is trusted: the trace that the request is part
	// of (W3C Trace Context, level 1). Of a peer that is not trusted no trace is taken over
	// while this gateway makes traces.
	TraceID      [16]byte // zero: none, or none that counts
	SpanID       [8]byte  // the span that the upstream is to have as its parent; zero: what the client sent goes on
	TraceSampled bool     // somebody keeps the trace: it can be looked up by TraceID

	// Set by the route stage.
	Route    string // the route's name; "unmatched" if none
	Upstream string
	Cost     int64

	// Set by authentication.
	AuthMethod string // jwt, cookie, api_key, or empty
	User       string
	Tenant     string
	KeyID      string
	TokenPlan  string    // what the credential says; the plan stage decides
	Expires    time.Time // when the credential ends; zero: never, or there is none
	AuthError  error     // why a credential was refused; for the log only

	// Set by the plan stage.
	Plan string

	// Set by the limit stages.
	DeniedBy string // the limit that denied, or the stage that refused
	Source   string // who decided: redis, memory, local_cap, none
	StoreErr error  // why the shared store did not answer

	// Set by the proxy.
	Target           string        // the upstream's address that was used
	UpstreamAttempts int           // how often a target was tried
	UpstreamStatus   int           // of the last attempt; 0 if no answer came
	UpstreamDuration time.Duration // of all attempts: from sending the request to the end of the answer
	UpstreamErr      error         // why there was no answer, or it broke off
	Stream           bool          // the answer is a stream of events, or an upgraded connection: it lasts as long as its two sides want

	// Set when the answer is known.
	Status int   // 499 when the client left before an answer
	Bytes  int64 // body bytes sent to the client
}
