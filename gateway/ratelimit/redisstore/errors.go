package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
)

// The kinds of error, as [Kind] names them and metrics label them.
const (
	KindRefused     = "refused"     // no connection could be made: nobody listens, no such host or socket
	KindTimeout     = "timeout"     // no answer in time; the charge may have happened
	KindLost        = "lost"        // the connection broke off before the answer; the charge may have happened
	KindPool        = "pool"        // all connections were busy for too long
	KindMaxClients  = "maxclients"  // the server has as many clients as it takes; through TLS seen as "lost"
	KindReadOnly    = "readonly"    // the server is a replica
	KindOOM         = "oom"         // the server has reached maxmemory and evicts nothing
	KindLoading     = "loading"     // the server is reading its data set
	KindMoved       = "moved"       // another node of a cluster has the key
	KindClusterDown = "clusterdown" // the cluster, or the primary of this replica, is down
	KindAuth        = "auth"        // wrong or missing credentials, protected mode, or the password file cannot be read
	KindNoPerm      = "noperm"      // the user may not run the script or touch the keys
	KindBusy        = "busy"        // another script has been running for too long
	KindMisconf     = "misconf"     // the server cannot persist and so takes no writes
	KindNoScript    = "noscript"    // the server forgets the script at once
	KindCorrupt     = "corrupt"     // a value or a reply that this package did not write
	KindClosed      = "closed"      // the store was closed
	KindCanceled    = "canceled"    // the context given to Probe ended
	KindClock       = "clock"       // the server's clock and this host's calendar are windows apart
	KindOther       = "other"       // anything else; the error says
)

// Kinds returns every kind, in a fixed order, so that a metric can start each of
// them at zero.
func Kinds() []string {
	return []string{
		KindRefused, KindTimeout, KindLost, KindPool, KindMaxClients, KindReadOnly, KindOOM, KindLoading, KindMoved,
		KindClusterDown, KindAuth, KindNoPerm, KindBusy, KindMisconf, KindNoScript, KindCorrupt,
		KindClosed, KindCanceled, KindClock, KindOther,
	}
}

// errValue is a key of ours that holds something else.
var errValue = errors.New("the key holds what the limiter did not write")

// KeyFault reports whether err says that one key holds what this package did
// not write. The server answered as it should, and other keys are not affected.
// A reply that is no reply of our script is not that: it casts doubt on the
// server. Both are of kind "corrupt".
func KeyFault(err error) bool { return errors.Is(err, errValue) }

// refusals are the kinds of the errors that a server answers before it runs
// anything, and of those that our scripts answer before they write anything.
var refusals = map[string]bool{
	KindReadOnly: true, KindOOM: true, KindLoading: true, KindMoved: true, KindClusterDown: true,
	KindMaxClients: true, KindAuth: true, KindNoPerm: true, KindBusy: true, KindMisconf: true, KindNoScript: true, KindCorrupt: true,
}

// Ambiguous reports whether a call that ended with err, an error of [Store], may
// have charged all the same: its answer did not come in time, the connection
// broke off, or something happened that this package does not know. It is false
// where nothing can have been charged: no connection was made or free, the
// password cannot be read, or the server or the script said that it refuses.
func Ambiguous(err error) bool {
	if err == nil {
		return false
	}
	switch {
	case errors.Is(err, errPart), errors.Is(err, errReply):
		return true
	case errors.Is(err, errValue), errors.Is(err, errCredentials), errors.Is(err, errAsk), isClock(err),
		errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return false
	}
	if e, ok := errors.AsType[*turnedAway](err); ok {
		return !refusals[replyKind(e.reply)]
	}
	if e, ok := errors.AsType[redis.Error](err); ok {
		return !refusals[replyKind(e.Error())] // among them redis.Nil, which our scripts never answer
	}
	// What is being dialled has been sent nothing, also where the dial timed out.
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return false
	}
	return Kind(err) != KindRefused
}

// errCredentials is a password file that cannot be read.
var errCredentials = errors.New("no credentials")

// replies are the kinds of the errors that a server answers, by their first
// word.
var replies = map[string]string{
	"READONLY":    KindReadOnly,
	"OOM":         KindOOM,
	"LOADING":     KindLoading,
	"MOVED":       KindMoved,
	"ASK":         KindMoved,
	"TRYAGAIN":    KindMoved,
	"CROSSSLOT":   KindMoved,
	"CLUSTERDOWN": KindClusterDown,
	"MASTERDOWN":  KindClusterDown,
	"NOAUTH":      KindAuth,
	"DENIED":      KindAuth, // protected mode: no password is set, and this is another machine
	"WRONGPASS":   KindAuth,
	"NOPERM":      KindNoPerm,
	"BUSY":        KindBusy,
	"MISCONF":     KindMisconf,
	"NOSCRIPT":    KindNoScript,
	"WRONGTYPE":   KindCorrupt,
	"CORRUPT":     KindCorrupt, // of our script
}

// Kind returns in one word what went wrong: one of [Kinds], or "" for nil. It
// knows the errors of [Store] and, wrapped or not, those of go-redis.
func Kind(err error) string {
	if err == nil {
		return ""
	}
	switch {
	case errors.Is(err, errReply), errors.Is(err, errValue):
		return KindCorrupt
	case isClock(err):
		return KindClock
	case errors.Is(err, errCredentials):
		return KindAuth
	case errors.Is(err, redis.ErrClosed):
		return KindClosed
	case errors.Is(err, errUnassigned), errors.Is(err, errNoSlots):
		return KindClusterDown
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return KindPool
	case errors.Is(err, redis.Nil):
		return KindCorrupt // the script never answers nil
	}
	if e, ok := errors.AsType[*turnedAway](err); ok {
		return replyKind(e.reply)
	}
	if e, ok := errors.AsType[redis.Error](err); ok {
		return replyKind(e.Error())
	}

	// Before the timeouts: a dial that timed out is one, but a dial that was
	// refused, or found no such host or socket, is not.
	netErr, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, context.Canceled):
		return KindCanceled
	case errors.Is(err, context.DeadlineExceeded), isNet && netErr.Timeout():
		return KindTimeout
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return KindRefused
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return KindRefused
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return KindLost
	case isProtocol(err):
		return KindCorrupt
	}
	return KindOther
}

// replyKind returns the kind of an error that the server answered.
func replyKind(msg string) string {
	// Some servers write ERR or a dash in front of the code.
	msg = strings.TrimPrefix(strings.TrimPrefix(msg, "ERR "), "-")
	code, _, _ := strings.Cut(msg, " ")
	if kind, ok := replies[code]; ok {
		return kind
	}
	switch {
	case strings.HasPrefix(msg, "Protocol error: unauthenticated"):
		// Before a login a server reads at most ten arguments, and a decision has
		// more: this is how it says that it wants a password.
		return KindAuth
	case strings.HasPrefix(msg, "The user executing the script"):
		return KindNoPerm // may run scripts, but not what ours does
	case strings.HasPrefix(msg, "max number of clients"):
		return KindMaxClients
	}
	return KindOther
}

// isProtocol recognizes what go-redis says of a reply that it cannot read. It
// has no type for that: the text begins with its name, or a number in it did
// not parse.
func isProtocol(err error) bool {
	if errors.Is(err, strconv.ErrSyntax) || errors.Is(err, strconv.ErrRange) {
		return true
	}
	msg := err.Error()
	return strings.Contains(msg, "redis: can't parse") || strings.Contains(msg, "redis: invalid reply")
}

// isClock reports whether err is a [ratelimit.ClockError].
func isClock(err error) bool {
	_, ok := errors.AsType[*ratelimit.ClockError](err)
	return ok
}

// clockError returns what the script says when the windows of a calendar that it
// was sent lie elsewhere, nil for any other error.
func clockError(err error) *ratelimit.ClockError {
	e, ok := errors.AsType[redis.Error](err)
	if !ok {
		return nil
	}
	digits, ok := strings.CutPrefix(e.Error(), "CLOCK ")
	if !ok {
		return nil
	}
	now, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return nil
	}
	return &ratelimit.ClockError{Now: now}
}

// explain says what was being done when err happened, and for a key that holds
// what we did not write, which one it is.
func (s *Store) explain(err error, charges []ratelimit.Charge) error {
	if e, ok := errors.AsType[redis.Error](err); ok {
		if at, found := strings.CutPrefix(e.Error(), "CORRUPT "); found {
			if i, convErr := strconv.Atoi(at); convErr == nil && i >= 1 && i <= len(charges) {
				return fmt.Errorf("take from redis: read %q: %w; delete it to begin anew", s.key(&charges[i-1]), errValue)
			}
		}
	}
	switch Kind(err) {
	case KindTimeout:
		return fmt.Errorf("take from redis: no answer within %s: %w", s.timeout, err)
	case KindLost:
		return fmt.Errorf("take from redis: the connection broke off before the answer: %w", err)
	}
	return fmt.Errorf("take from redis: %w", err)
}
