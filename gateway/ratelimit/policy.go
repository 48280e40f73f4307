package ratelimit

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"sync/atomic"
	"time"
)

// Bounds of a policy's numbers.
const (
	// MaxQuota is the largest Quota and Burst: the largest integer that a
	// structured field can carry (RFC 9651 section 3.3.1).
	MaxQuota int64 = 999_999_999_999_999
	// MaxWindow is the longest Window.
	MaxWindow = 366 * 24 * time.Hour

	// exactLimit bounds what a token bucket counts in. The same numbers pass
	// through Redis scripts, whose numbers are exact only below 2^53.
	exactLimit int64 = 1 << 53
)

// A Policy is one limit: so many units per window, by one algorithm. It is
// made by [NewPolicy], is immutable, and may be shared by any number of
// goroutines and snapshots. Stores keep a pointer to the policy that charged a
// bucket last, so policies are made once per configuration, not per request.
type Policy struct {
	// Name is the limit's name as clients see it: [a-z0-9_-]+.
	Name string
	// Scope says where the name was given: "plan/per-minute" for a limit of a
	// plan, "limit/login-try" for a named one. It is the readable part of the
	// key: parts of [a-z0-9_-]+, separated by slashes.
	Scope string
	// Algorithm is the rule.
	Algorithm Algorithm
	// Quota is how many units each Window grants, 0 to [MaxQuota]; 0 denies
	// every cost above 0.
	Quota int64
	// Window is a whole number of seconds, 1s to [MaxWindow].
	Window time.Duration
	// Burst is the capacity of a token bucket, 1 to [MaxQuota]; 0 asks
	// NewPolicy for the default, which is Quota, at least 1. Elsewhere it is 0.
	Burst int64
	// LocalCap stands in for this policy while the shared store is away, per
	// caller and instance. Policies of one plan may share one; nil means this
	// policy's own share, Quota / live instances.
	LocalCap *Policy

	key string // see Key
	// num/den is the refill of a token bucket in units per microsecond,
	// reduced; 0/1 where nothing refills.
	num, den int64
	exact    bool

	policyItem string // the item of RateLimit-Policy: "per-minute";q=100;w=60
	limitItem  string // the head of the item of RateLimit: "per-minute";r=

	// share remembers the last answer of Share. A pointer, so that a Policy
	// can be passed to NewPolicy by value.
	share *atomic.Pointer[share]
}

type share struct {
	instances int
	policy    *Policy
}

// Key is the policy's part of a bucket's key: scope, algorithm and window, as
// in "plan/per-minute:tb/60". Quota, burst and the plan's name are not part of
// it, so that changing a number, or moving between plans, keeps what was spent.
func (p *Policy) Key() string { return p.key }

// Num is the numerator of a token bucket's refill: the bucket gains Num/Den
// units per microsecond. It is 0 where nothing refills: a quota of 0, and the
// other algorithms.
func (p *Policy) Num() int64 { return p.num }

// Den is the denominator of a token bucket's refill, >= 1. What was spent is
// counted in 1/Den of a unit, and Burst*Den is below 2^53, so that the whole
// bucket is exact in a Redis script's numbers.
func (p *Policy) Den() int64 { return p.den }

// Exact reports whether the policy refills at exactly Quota per Window. It is
// false for a token bucket whose numbers are too large to be counted exactly;
// its units then take up to 1 µs longer to refill than configured, never less.
func (p *Policy) Exact() bool { return p.exact }

// NewPolicy checks spec and returns a policy ready for use. The error says
// which field is wrong and what is wanted. The unexported fields of spec are
// ignored, so a copy of a policy with another number is a valid spec.
func NewPolicy(spec Policy) (*Policy, error) {
	p := &Policy{
		Name: spec.Name, Scope: spec.Scope, Algorithm: spec.Algorithm,
		Quota: spec.Quota, Window: spec.Window, Burst: spec.Burst, LocalCap: spec.LocalCap,
		den: 1, exact: true,
		share: new(atomic.Pointer[share]),
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("make policy %q: %w", spec.Name, err)
	}

	seconds := strconv.FormatInt(int64(p.Window/time.Second), 10)
	switch p.Algorithm {
	case TokenBucket:
		if p.Burst == 0 {
			p.Burst = max(1, p.Quota)
		}
		if err := p.setRefill(); err != nil {
			return nil, fmt.Errorf("make policy %q: %w", spec.Name, err)
		}
		p.key = p.Scope + ":tb/" + seconds
	case FixedWindow:
		p.key = p.Scope + ":fw/" + seconds
	}

	// Names are [a-z0-9_-]+, so they need no escaping as an sf-string.
	p.policyItem = `"` + p.Name + `";q=` + strconv.FormatInt(p.Quota, 10) + `;w=` + seconds
	p.limitItem = `"` + p.Name + `";r=`
	return p, nil
}

// check validates the fields that the caller sets.
func (p *Policy) check() error {
	switch {
	case !isName(p.Name):
		return errors.New("name: want one or more of a-z, 0-9, _ and -")
	case !isScope(p.Scope):
		return fmt.Errorf("scope: want names of a-z, 0-9, _ and - separated by /, got %q", p.Scope)
	case p.Algorithm != TokenBucket && p.Algorithm != FixedWindow:
		return fmt.Errorf("algorithm: want token_bucket or fixed_window, got %d", p.Algorithm)
	case p.Window < time.Second || p.Window > MaxWindow || p.Window%time.Second != 0:
		return fmt.Errorf("window: want whole seconds from 1s to %s, got %s", MaxWindow, p.Window)
	case p.Quota < 0 || p.Quota > MaxQuota:
		return fmt.Errorf("quota: want 0 to %d, got %d", MaxQuota, p.Quota)
	case p.Algorithm == TokenBucket && (p.Burst < 0 || p.Burst > MaxQuota):
		return fmt.Errorf("burst: want 1 to %d, or 0 for the default, got %d", MaxQuota, p.Burst)
	case p.Algorithm != TokenBucket && p.Burst != 0:
		return fmt.Errorf("burst: want 0, since %s has none, got %d", p.Algorithm, p.Burst)
	}
	return nil
}

// setRefill finds num and den for a token bucket.
func (p *Policy) setRefill() error {
	if p.Quota == 0 {
		p.num, p.den = 0, 1
		return nil
	}
	window := p.Window.Microseconds()
	g := gcd(p.Quota, window)
	p.num, p.den = p.Quota/g, window/g
	if countable(p.Burst, p.den) {
		return nil
	}
	// Too fine to be counted. One whole unit per so many whole microseconds is
	// the coarsest scale that errs by no more than 1 µs a unit; rounding the
	// time up errs against the caller, so the quota is never exceeded.
	p.num, p.den = 1, ceilDiv(window, p.Quota)
	p.exact = p.den*p.Quota == window // no overflow: the product is below window + Quota
	if !countable(p.Burst, p.den) {
		return fmt.Errorf("burst: %d units take %s each to refill, and more than 285 years together; want a smaller burst or a larger quota",
			p.Burst, micros(p.den))
	}
	return nil
}

// Share returns this policy's share for one of so many instances, which stands
// in for it while the shared store is away: Quota and Burst divided by
// instances and rounded up, so at least 1 unless the quota is 0; the same name,
// scope, algorithm and window, and so the same key. Fewer than two instances
// have all of it.
//
// The last answer is remembered, so that asking again for the same number of
// instances costs one atomic load and returns the same pointer.
func (p *Policy) Share(instances int) *Policy {
	if instances < 2 {
		return p
	}
	last := p.share.Load()
	if last != nil && last.instances == instances {
		return last.policy
	}
	n := int64(instances)
	spec := Policy{
		Name: p.Name, Scope: p.Scope, Algorithm: p.Algorithm, Window: p.Window,
		Quota: ceilDiv(p.Quota, n),
	}
	if p.Algorithm == TokenBucket {
		spec.Burst = ceilDiv(p.Burst, n)
	}
	s, err := NewPolicy(spec)
	if err != nil {
		// Rounding up carried a bucket of almost 285 years over the edge of
		// what can be counted. One unit of it always fits.
		spec.Burst = 1
		if s, err = NewPolicy(spec); err != nil {
			panic("bug: the share of a valid policy is invalid: " + err.Error())
		}
	}
	// Of two goroutines that come here at once, both must get one pointer:
	// the fields show a policy once per pointer.
	if !p.share.CompareAndSwap(last, &share{instances: instances, policy: s}) {
		if now := p.share.Load(); now.instances == instances {
			return now.policy
		}
	}
	return s
}

func isName(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isNameByte(c) {
			return false
		}
	}
	return s != ""
}

// isScope reports whether s is one or more names separated by slashes.
func isScope(s string) bool {
	start := true // a name must begin here
	for i := range len(s) {
		switch c := s[i]; {
		case isNameByte(c):
			start = false
		case c == '/' && !start:
			start = true
		default:
			return false
		}
	}
	return !start
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// countable reports whether units*den stays below 2^53. Both are positive.
func countable(units, den int64) bool {
	hi, lo := bits.Mul64(uint64(units), uint64(den)) //nolint:gosec // both are positive
	return hi == 0 && lo < uint64(exactLimit)
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// ceilDiv returns a/b rounded up, for a >= 0 and b > 0. It cannot overflow.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}
