package auth

import (
	"errors"
	"fmt"
)

// ErrNoCredentials says that the request presents no credential that this
// configuration knows.
var ErrNoCredentials = errors.New("no credentials")

// ErrNotKnown says that Check.OnlyKnown was set and the credential presented
// is not one that was verified recently. Nothing was verified, so it may be
// good or bad.
var ErrNotKnown = errors.New("credential not known yet: nothing is verified for this address now")

// Reason says in one word why a credential was refused. The words are few and
// fixed, fit for a metric's label.
type Reason string

// The reasons.
const (
	ReasonMalformed    Reason = "malformed"     // not of the form its place asks for
	ReasonSeveral      Reason = "several"       // presented more than once
	ReasonOversize     Reason = "oversize"      // longer than any token or key may be
	ReasonUnknownKey   Reason = "unknown_key"   // an API key that is not configured
	ReasonChecksum     Reason = "checksum"      // an API key of our own format with a typo in it
	ReasonWrongAddress Reason = "wrong_address" // a key that is not for the client's address
	ReasonExpired      Reason = "expired"       // a key or token whose time is over
	ReasonNotYetValid  Reason = "not_yet_valid" // nbf or iat in the future
	ReasonBadSignature Reason = "bad_signature" // no key of the issuer verifies it
	ReasonBadAlgorithm Reason = "bad_algorithm" // not on the issuer's allow-list
	ReasonBadHeader    Reason = "bad_header"    // an extension we do not know (crit, b64), a key of its own, a kid that is none, or another kind of token
	ReasonWrongIssuer  Reason = "wrong_issuer"  // iss is none of ours, or not one that may use this cookie
	ReasonWrongAud     Reason = "wrong_audience"
	ReasonMissingClaim Reason = "missing_claim" // exp, iss or the user claim; no user in a certificate
	ReasonUntrusted    Reason = "untrusted"     // a certificate for which no configured authority vouches
	ReasonWrongUsage   Reason = "wrong_usage"   // a certificate that is not for clients
	ReasonBadClaim     Reason = "bad_claim"     // a claim of the wrong type, out of range, or unfit for a field
	// ReasonUnknownKeyID is a token whose kid is none of its issuer's keys.
	ReasonUnknownKeyID Reason = "unknown_key_id"
	// ReasonKeysUnavailable is the only one that is not the caller's doing: the
	// issuer's keys were never fetched, are too old to be trusted, or may be others
	// by now and could not be asked for, so that nothing of the token was verified; or
	// a KeyTable could not look an API key up. It is no attempt at guessing.
	ReasonKeysUnavailable Reason = "keys_unavailable"
)

// Reasons lists every Reason, so that a metric can start at 0 for each.
func Reasons() []Reason {
	return []Reason{
		ReasonMalformed, ReasonSeveral, ReasonOversize, ReasonUnknownKey, ReasonChecksum,
		ReasonWrongAddress, ReasonExpired, ReasonNotYetValid, ReasonBadSignature, ReasonBadAlgorithm, ReasonBadHeader,
		ReasonWrongIssuer, ReasonWrongAud, ReasonMissingClaim, ReasonUntrusted, ReasonWrongUsage, ReasonBadClaim, ReasonUnknownKeyID, ReasonKeysUnavailable,
	}
}

// RefusedError says that a credential was presented and is bad. It is for logs
// and metrics: a client is never told what was wrong, since that helps whoever
// is guessing.
type RefusedError struct {
	Method Method // how the credential was presented
	Reason Reason // one fixed word
	// KeyID is the id of the key that was guessed at: a wrong API key of our own form
	// (see [NewKey]) whose public part is that of a configured one. Else empty, so that
	// there are as many of them as keys.
	KeyID string
	// Err says more. It names what was configured and what was found out about
	// the credential, but contains no byte of it.
	Err error
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s refused (%s): %v", e.Method, e.Reason, e.Err)
}

// Unwrap returns Err.
func (e *RefusedError) Unwrap() error { return e.Err }

// refusal is a RefusedError before it is known how the token was presented.
type refusal struct {
	reason Reason
	text   string
	keyID  string
}

// Error implements error.
func (r *refusal) Error() string { return r.text }

// notKnown refuses what was not verified before, under Check.OnlyKnown. It
// becomes ErrNotKnown and says nothing more, since nothing more was looked at.
var notKnown = &refusal{text: "not verified before"}

func refuse(reason Reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, text: fmt.Sprintf(format, args...)}
}

// as makes the refusal one of a credential presented by method m.
func (r *refusal) as(m Method) *RefusedError {
	return &RefusedError{Method: m, Reason: r.reason, KeyID: r.keyID, Err: r}
}
