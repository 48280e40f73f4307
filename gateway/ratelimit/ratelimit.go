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
	// FixedWindow admits Quota per window; the window opens at the first charge.
	FixedWindow
)

// String returns the name the configuration uses.
func (a Algorithm) String() string {
	switch a {
	case TokenBucket:
		return "token_bucket"
	case FixedWindow:
		return "fixed_window"
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
}

// Source says who decided.
type Source string

// The sources of a decision, as metrics and logs name them.
const (
	SourceRedis    Source = "redis"
	SourceMemory   Source = "memory"
	SourceLocalCap Source = "local_cap"
	SourceNone     Source = "none"
)

// Never is the RetryAfter of a denial that no wait would lift.
const Never time.Duration = -1

// Decision is the verdict of one policy on one charge, in the client's terms.
type Decision struct {
	// Policy is the policy that decided. It is the charge's own, unless a local
	// cap stood in for it.
	Policy *Policy
	// Allowed is this policy's own verdict. A request is admitted, and charged,
	// only if every decision is allowed.
	Allowed bool
	// Remaining is what could be spent right now, in units, never negative. On
	// an admitted request it is what is left after the charge; when any policy
	// denied, nothing was charged and it says so.
	Remaining int64
	// Reset is how long until Remaining grows by at least one unit; zero when
	// nothing is spent. Exact to the microsecond of the store's clock.
	Reset time.Duration
	// RetryAfter is how long until this cost would be admitted by this policy;
	// zero when it allowed, [Never] when no wait would help.
	RetryAfter time.Duration
	// Source says who decided.
	Source Source
	// Err says why the shared store did not answer, on a decision that
	// something else made in its place; nil otherwise. It is for the log.
	Err error
}

// A Store takes quota.
//
// Take decides all charges in one atomic step: if one is denied, none is
// charged. It appends one decision per charge to dst[:0], in the order of the
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

// Admitted reports whether every decision is allowed.
func Admitted(ds []Decision) bool {
	for i := range ds {
		if !ds[i].Allowed {
			return false
		}
	}
	return true
}
