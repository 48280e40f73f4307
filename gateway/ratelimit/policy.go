package ratelimit

import (
	"fmt"
	"time"
)

// A Policy is one limit: so many units per window, by one algorithm. It is
// made by [NewPolicy], is immutable, and may be shared by any number of
// goroutines and snapshots.
type Policy struct {
	// Name is the limit's name as clients see it: [a-z0-9_-]+.
	Name string
	// Scope says where the name was given: "plan/per-minute" for a limit of a
	// plan, "limit/login-try" for a named one. It is the readable part of the key.
	Scope string
	// Algorithm is the rule.
	Algorithm Algorithm
	// Quota is how many units each Window grants; 0 denies every cost above 0.
	Quota int64
	// Window is a whole number of seconds, > 0.
	Window time.Duration
	// Burst is the capacity of a token bucket, >= 1; unused elsewhere.
	Burst int64
	// LocalCap stands in for this policy while the shared store is away, per
	// caller and instance. Policies of one plan may share one; nil means this
	// policy's own share, Quota / live instances.
	LocalCap *Policy

	key string // see Key
	// num/den is the refill in units per microsecond, reduced.
	num, den int64
}

// Key is the policy's part of a bucket's key: scope, algorithm and window.
// Quota, burst and the plan's name are not part of it, so that changing a
// number, or moving between plans, keeps what was spent.
func (p *Policy) Key() string { return p.key }

// NewPolicy checks spec and returns a policy ready for use. The error says
// which field is wrong and what is wanted.
func NewPolicy(spec Policy) (*Policy, error) {
	p := spec
	return &p, fmt.Errorf("not written yet")
}
