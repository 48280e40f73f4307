// Package ratelimit holds what a limit means: policies, charges, decisions,
// the algorithms as pure functions of (state, now, cost), and the text of the
// RateLimit fields. It knows no HTTP server, no clock and no network.
//
// It is not a store. A [Store] keeps the state of every bucket and decides a
// list of charges in one atomic step; gateway/ratelimit/memory keeps it in
// this process, gateway/ratelimit/redisstore in Redis, and gateway/fallback is
// a store made of two. All of them are held to the same answers by
// gateway/ratelimit/limittest.
//
// A store that cannot answer returns an error and has promised nothing; it
// never answers "allowed" because it does not know.
//
// Policies are made once, when the configuration is read, and asked for per
// request:
//
//	perMinute, err := ratelimit.NewPolicy(ratelimit.Policy{
//		Name: "per-minute", Scope: "plan/per-minute",
//		Algorithm: ratelimit.TokenBucket, Quota: 100, Window: time.Minute, Burst: 20,
//	})
//	…
//	caller := ratelimit.Partition(ratelimit.Part{Dimension: "user", Value: "priya123"})
//	ds, err := store.Take(ctx, []ratelimit.Charge{
//		{Policy: perMinute, Partition: caller, Caller: caller, Cost: 1},
//	}, nil)
//	if err == nil && !ratelimit.Admitted(ds) {
//		wait, _ := ratelimit.RetryAfter(ds) // 429
//	}
package ratelimit

import (
	"context"
	"errors"
	"time"
)

// Algorithm is the rule by which a policy turns charges into a verdict.
type Algorithm uint8

// The algorithms. README.md walks one request through each.
const (
	// TokenBucket refills Quota/Window per second up to Burst.
	TokenBucket Algorithm = iota + 1
	// FixedWindow admits Quota per window; the window opens at the first charge,
	// or is one of a [Calendar].
	FixedWindow
	// SlidingWindowLog admits Quota in any span of a window, exactly; it keeps
	// every unit with its time.
	SlidingWindowLog
	// SlidingWindowCounter weighs the previous window's count against the
	// current one's, and so estimates what the log knows.
	SlidingWindowCounter
	// LeakyBucket is a queue that drips Quota/Window per second; an admitted
	// request waits for its drip, Decision.Delay.
	LeakyBucket
)

// String returns the name the configuration uses.
func (a Algorithm) String() string {
	switch a {
	case TokenBucket:
		return "token_bucket"
	case FixedWindow:
		return "fixed_window"
	case SlidingWindowLog:
		return "sliding_window_log"
	case SlidingWindowCounter:
		return "sliding_window_counter"
	case LeakyBucket:
		return "leaky_bucket"
	default:
		return "unknown"
	}
}

// Role says what a policy's verdict is for.
type Role uint8

// The roles. [Decide] says what each is charged for.
const (
	// Enforce denies what the policy denies.
	Enforce Role = iota
	// Shadow decides and counts, and denies nobody.
	Shadow
	// Candidate decides another number beside the limit in force, its live twin,
	// and denies nobody. Its charge follows the twin's directly in the list, with
	// the same Partition.
	Candidate
)

// String returns the name that the configuration and the metrics use.
func (r Role) String() string {
	switch r {
	case Enforce:
		return "enforce"
	case Shadow:
		return "shadow"
	case Candidate:
		return "candidate"
	default:
		return "unknown"
	}
}

// Charge asks for Cost units of one policy, in the bucket of one partition.
type Charge struct {
	// Policy is the limit that is charged. Never nil.
	Policy *Policy
	// Partition names the bucket: "{user:priya123}", escaped and wrapped in a
	// hash tag by [Partition]. Two charges with the same Partition and
	// the same Policy key share a count.
	Partition string
	// Caller is the partition of whoever is asking, whatever the policy is
	// partitioned by. It is what a plan's own local cap is counted by.
	Caller string
	// Cost is what is asked for, in units, >= 1. A request of cost 0 asks no
	// store; a store that is asked all the same allows it and charges nothing.
	// A negative cost is a programming error.
	Cost int64
	// Windows are [Calendar.Windows] by this instance's clock, for a policy with
	// a calendar: four consecutive boundaries, µs since the Unix epoch. A store
	// with a clock of its own takes the window that contains its now, and says
	// [ClockError] if none does. Elsewhere it is not looked at, nor by a store
	// that knows the calendar and its clock in one place.
	Windows [4]int64
}

// Source says who decided.
type Source string

// The sources of a decision, as metrics and logs name them.
const (
	SourceRedis  Source = "redis"
	SourceMemory Source = "memory"
	// SourceLease is a budget that was taken from Redis in advance.
	SourceLease Source = "lease"
	// SourceDenyCache is a denial by Redis that still holds.
	SourceDenyCache Source = "deny_cache"
	SourceLocalCap  Source = "local_cap"
	SourceNone      Source = "none"
)

// Never is the RetryAfter of a denial that no wait would lift.
const Never time.Duration = -1

// Decision is the verdict of one policy on one charge, in the client's terms.
type Decision struct {
	// Policy is the policy that decided. It is the charge's own, unless a local
	// cap stood in for it.
	Policy *Policy
	// Allowed is this policy's own verdict, whatever its Role. A request is
	// admitted only if every decision that is enforced is allowed; see [Admitted].
	Allowed bool
	// Remaining is what could be spent right now, in units, never negative. If
	// this policy was charged it is what is left after that. On a request that
	// was not admitted it is as before, but for what is charged all the same
	// (CountRejected, a candidate).
	Remaining int64
	// Reset is how long until Remaining grows by at least one unit; zero when
	// nothing is spent. Exact to the microsecond of the store's clock.
	Reset time.Duration
	// RetryAfter is how long until this cost would be admitted by this policy;
	// zero when it allowed, [Never] when no wait would help. A policy with
	// CountRejected was charged for a request that was not admitted, and it is
	// how long it takes from there, also when the verdict before was allowed.
	RetryAfter time.Duration
	// Delay is how long an admitted request has to wait for its drip of a leaky
	// bucket before it may go on; zero elsewhere, when the policy or the request
	// was denied, and when it may go at once. See [Delay].
	Delay time.Duration
	// Source says who decided.
	Source Source
	// Err says why the shared store did not answer, on a decision that
	// something else made in its place; nil otherwise. It is for the log.
	Err error
}

// A Store takes quota.
//
// Take decides all charges in one atomic step, as [Decide] does: if one that is
// enforced is denied, none is charged, but for what CountRejected and candidates
// are charged all the same. It appends one decision per charge to dst[:0], in the order of the
// charges, and returns the extended slice, so that a caller can reuse it; a nil
// dst is fine. An empty list of decisions beside a nil error admits without
// having limited (a route that fails open while the store is away).
//
// Take bounds its own wait. On an error nothing is known about what was
// charged, and the caller must not ask again for the same request. An error
// that wraps [ErrUnavailable] says that the store is away. Implementations are
// safe for concurrent use.
type Store interface {
	Take(ctx context.Context, charges []Charge, dst []Decision) ([]Decision, error)
}

// ErrUnavailable is wrapped by every error that means "the store is away and
// this route is to be refused" (on_store_failure: deny).
var ErrUnavailable = errors.New("the limit store is unavailable")

// An UnavailableError is an [ErrUnavailable] that knows when to come back.
type UnavailableError struct {
	// RetryAfter is the time until the store is probed again, > 0.
	RetryAfter time.Duration
	// Err is the store's error, for the log. It may be nil.
	Err error
}

// Error implements error. It is for the log, never for a client.
func (e *UnavailableError) Error() string {
	if e.Err == nil {
		return ErrUnavailable.Error()
	}
	return ErrUnavailable.Error() + ": " + e.Err.Error()
}

// Unwrap lets errors.Is find both [ErrUnavailable] and the store's error.
func (e *UnavailableError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrUnavailable}
	}
	return []error{ErrUnavailable, e.Err}
}

// A ClockError says that the store's clock stands outside the calendar windows
// that a charge brought along. Nothing was charged.
type ClockError struct {
	// Now is the store's time, µs since the Unix epoch.
	Now int64
}

// Error implements error. It is for the log, never for a client.
func (e *ClockError) Error() string {
	return "the store's clock is outside the calendar windows it was sent: it says " +
		time.UnixMicro(e.Now).UTC().Format(time.RFC3339Nano) + "; check the clocks of this host and of the store"
}

// Admitted reports whether every decision that is enforced is allowed.
func Admitted(ds []Decision) bool {
	for i := range ds {
		if !ds[i].Allowed && ds[i].enforced() {
			return false
		}
	}
	return true
}

// enforced reports whether the request depends on d.
func (d *Decision) enforced() bool { return d.Policy == nil || d.Policy.Role == Enforce }

// Delay returns how long an admitted request has to wait: the longest Delay of
// the decisions that are enforced.
func Delay(ds []Decision) (d time.Duration) {
	for i := range ds {
		if ds[i].enforced() {
			d = max(d, ds[i].Delay)
		}
	}
	return d
}
