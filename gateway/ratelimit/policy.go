package ratelimit

import (
	"crypto/sha256"
	"encoding/binary"
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
	// MaxLogQuota is the largest Quota of a sliding window log, which keeps every
	// unit that counts.
	MaxLogQuota int64 = 100_000
	// MaxWindow is the longest Window, and the longest MaxDelay.
	MaxWindow = 366 * 24 * time.Hour

	// exactLimit bounds what a bucket counts in. The same numbers pass
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
	// Quota is how many units each Window grants, 0 to [MaxQuota], of a sliding
	// window log to [MaxLogQuota]; 0 denies every cost above 0.
	Quota int64
	// Window is a whole number of seconds, 1s to [MaxWindow]. With a Calendar it
	// is [CalendarUnit.Nominal], and 0 asks NewPolicy for that.
	Window time.Duration
	// Burst is the capacity of a token bucket, 1 to [MaxQuota]; 0 asks
	// NewPolicy for the default, which is Quota, at least 1. Elsewhere it is 0.
	Burst int64
	// Queue is how many units of a leaky bucket wait for their drip behind the
	// one that goes at once: 0 to MaxQuota-1. Elsewhere it is 0.
	Queue int64
	// MaxDelay is the longest wait in the queue of a leaky bucket, in whole
	// microseconds up to [MaxWindow]; 0 means that the queue alone bounds it.
	// Elsewhere it is 0.
	MaxDelay time.Duration
	// Calendar lays the windows of a fixed window along a calendar; nil means
	// that a window opens at the first charge. Elsewhere it is nil.
	Calendar *Calendar
	// CountRejected charges this policy for a request that is not admitted too,
	// up to what it grants and never beyond; see [Decide]. A candidate has none
	// of it.
	CountRejected bool
	// Role says whether the verdict counts. The zero value enforces it.
	Role Role
	// LocalCap stands in for this policy while the shared store is away, per
	// caller and instance. Policies of one plan may share one; nil means this
	// policy's own share, Quota / live instances.
	LocalCap *Policy
	// Lease lets instances take budget in advance. There is none with a leaky
	// bucket, with CountRejected and for a candidate.
	Lease Lease

	key                string // see Key
	keyHashA, keyHashB uint64 // see KeyHash
	// num/den is the refill of a bucket in units per microsecond, reduced; 0/1
	// where nothing refills.
	num, den int64
	exact    bool
	capacity int64 // see CapacityParts
	units    int64 // see Capacity

	policyItem string // the item of RateLimit-Policy: "per-minute";q=100;w=60
	limitItem  string // the head of the item of RateLimit: "per-minute"

	// share remembers the last answer of Share. A pointer, so that a Policy
	// can be passed to NewPolicy by value.
	share *atomic.Pointer[share]
}

type share struct {
	instances int
	policy    *Policy
}

// Key is the policy's part of a bucket's key: scope, algorithm and window, as
// in "plan/per-minute:tb/60". Quota, burst, queue and the plan's name are not
// part of it, so that changing a number, or moving between plans, keeps what was
// spent. A calendar is named in place of the window ("fc/day/Asia%2FKolkata",
// "fc/week/UTC/monday"), and the key of a candidate ends in ":candidate".
func (p *Policy) Key() string { return p.key }

// KeyHash is 128 bits of the SHA-256 of Key, computed once: two policies have one
// Key if and only if they have one KeyHash, as far as anybody can tell.
func (p *Policy) KeyHash() (a, b uint64) { return p.keyHashA, p.keyHashB }

// Num is the numerator of a bucket's refill, of a token bucket or a leaky one:
// it gains Num/Den units per microsecond. It is 0 where nothing refills: a quota
// of 0, and the other algorithms.
func (p *Policy) Num() int64 { return p.num }

// Den is the denominator of a bucket's refill, >= 1. What was spent is counted
// in 1/Den of a unit, and CapacityParts is below 2^53, so that the whole bucket
// is exact in a Redis script's numbers.
func (p *Policy) Den() int64 { return p.den }

// Capacity is the most that can be spent at once, in units: Burst of a token
// bucket, the places of a leaky one (the one that goes at once and those whose
// wait MaxDelay allows), Quota elsewhere. Remaining is never above it.
func (p *Policy) Capacity() int64 { return p.units }

// CapacityParts is what a bucket holds, in 1/Den of a unit, below 2^53. For a
// token bucket that is Burst*Den. For a leaky one it is (Queue+1)*Den or, if
// that is less, what drips within MaxDelay and one unit more. It is 0 elsewhere.
func (p *Policy) CapacityParts() int64 { return p.capacity }

// Exact reports whether the policy refills at exactly Quota per Window. It is
// false for a bucket whose numbers are too large to be counted exactly; its
// units then take up to 1 µs longer to refill than configured, never less.
func (p *Policy) Exact() bool { return p.exact }

// isBucket reports whether what was spent comes back bit by bit.
func (p *Policy) isBucket() bool {
	return p.Algorithm == TokenBucket || p.Algorithm == LeakyBucket
}

// NewPolicy checks spec and returns a policy ready for use. The error says
// which field is wrong and what is wanted. The unexported fields of spec are
// ignored, so a copy of a policy with another number is a valid spec.
func NewPolicy(spec Policy) (*Policy, error) {
	p := &Policy{
		Name: spec.Name, Scope: spec.Scope, Algorithm: spec.Algorithm,
		Quota: spec.Quota, Window: spec.Window, Burst: spec.Burst,
		Queue: spec.Queue, MaxDelay: spec.MaxDelay, Calendar: spec.Calendar,
		CountRejected: spec.CountRejected, Role: spec.Role, LocalCap: spec.LocalCap, Lease: spec.Lease,
		den: 1, exact: true,
		share: new(atomic.Pointer[share]),
	}
	if p.Calendar != nil && p.Window == 0 {
		p.Window = p.Calendar.Unit.Nominal()
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("make policy %q: %w", spec.Name, err)
	}
	if p.Algorithm == TokenBucket && p.Burst == 0 {
		p.Burst = max(1, p.Quota)
	}
	if err := p.setRefill(); err != nil {
		return nil, fmt.Errorf("make policy %q: %w", spec.Name, err)
	}
	if err := p.Lease.check(p); err != nil {
		return nil, fmt.Errorf("make policy %q: lease: %w", spec.Name, err)
	}

	seconds := strconv.FormatInt(int64(p.Window/time.Second), 10)
	p.key = p.Scope + ":" + p.tag(seconds)
	if p.Role == Candidate {
		p.key += ":candidate"
	}
	sum := sha256.Sum256([]byte(p.key))
	p.keyHashA, p.keyHashB = binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])
	// Names are [a-z0-9_-]+, so they need no escaping as an sf-string.
	p.policyItem = `"` + p.Name + `";q=` + strconv.FormatInt(p.Quota, 10) + `;w=` + seconds
	p.limitItem = `"` + p.Name + `"`
	return p, nil
}

// tag names the algorithm and the window in a key.
func (p *Policy) tag(seconds string) string {
	switch p.Algorithm {
	case TokenBucket:
		return "tb/" + seconds
	case SlidingWindowLog:
		return "sl/" + seconds
	case SlidingWindowCounter:
		return "sc/" + seconds
	case LeakyBucket:
		return "lb/" + seconds
	}
	if p.Calendar != nil {
		return p.Calendar.tag()
	}
	return "fw/" + seconds
}

// check validates the fields that the caller sets.
func (p *Policy) check() error {
	switch {
	case !isName(p.Name):
		return errors.New("name: want one or more of a-z, 0-9, _ and -")
	case !isScope(p.Scope):
		return fmt.Errorf("scope: want names of a-z, 0-9, _ and - separated by /, got %q", p.Scope)
	case p.Algorithm < TokenBucket || p.Algorithm > LeakyBucket:
		return fmt.Errorf("algorithm: want token_bucket, fixed_window, sliding_window_log, sliding_window_counter or leaky_bucket, got %d", p.Algorithm)
	case p.Role > Candidate:
		return fmt.Errorf("role: want enforce, shadow or candidate, got %d", p.Role)
	case p.CountRejected && p.Role == Candidate:
		return errors.New("count_rejected: want false, since a candidate rejects nobody")
	case p.Quota < 0 || p.Quota > MaxQuota:
		return fmt.Errorf("quota: want 0 to %d, got %d", MaxQuota, p.Quota)
	case p.Algorithm == SlidingWindowLog && p.Quota > MaxLogQuota:
		return fmt.Errorf("quota: want 0 to %d, since a %s keeps every unit, got %d", MaxLogQuota, p.Algorithm, p.Quota)
	case p.Algorithm == TokenBucket && (p.Burst < 0 || p.Burst > MaxQuota):
		return fmt.Errorf("burst: want 1 to %d, or 0 for the default, got %d", MaxQuota, p.Burst)
	case p.Algorithm != TokenBucket && p.Burst != 0:
		return fmt.Errorf("burst: want 0, since %s has none, got %d", p.Algorithm, p.Burst)
	case p.Algorithm == LeakyBucket && (p.Queue < 0 || p.Queue >= MaxQuota):
		return fmt.Errorf("queue: want 0 to %d, got %d", MaxQuota-1, p.Queue)
	case p.Algorithm != LeakyBucket && p.Queue != 0:
		return fmt.Errorf("queue: want 0, since %s has none, got %d", p.Algorithm, p.Queue)
	case p.Algorithm == LeakyBucket && (p.MaxDelay < 0 || p.MaxDelay > MaxWindow || p.MaxDelay%time.Microsecond != 0):
		return fmt.Errorf("max_delay: want whole microseconds up to %s, or 0 for none, got %s", MaxWindow, p.MaxDelay)
	case p.Algorithm != LeakyBucket && p.MaxDelay != 0:
		return fmt.Errorf("max_delay: want 0, since %s has none, got %s", p.Algorithm, p.MaxDelay)
	case p.Algorithm != FixedWindow && p.Calendar != nil:
		return fmt.Errorf("calendar: want nil, since %s has none", p.Algorithm)
	}
	if p.Calendar != nil {
		if err := p.Calendar.check(); err != nil {
			return fmt.Errorf("calendar: %w", err)
		}
		if n := p.Calendar.Unit.Nominal(); p.Window != n {
			return fmt.Errorf("window: want %s, the nominal %s of the calendar, got %s", n, p.Calendar.Unit, p.Window)
		}
	}
	if p.Window < time.Second || p.Window > MaxWindow || p.Window%time.Second != 0 {
		return fmt.Errorf("window: want whole seconds from 1s to %s, got %s", MaxWindow, p.Window)
	}
	return nil
}

// setRefill finds num, den and capacity for a bucket.
func (p *Policy) setRefill() error {
	if !p.isBucket() {
		p.units = p.Quota
		return nil
	}
	units, what := p.Burst, "burst"
	if p.Algorithm == LeakyBucket {
		units, what = p.Queue+1, "queue"
	}
	if p.Quota > 0 {
		window := p.Window.Microseconds()
		g := gcd(p.Quota, window)
		p.num, p.den = p.Quota/g, window/g
		if !countable(units, p.den) {
			// Too fine to be counted. One whole unit per so many whole
			// microseconds is the coarsest scale that errs by no more than 1 µs a
			// unit; rounding the time up errs against the caller, so the quota is
			// never exceeded.
			p.num, p.den = 1, ceilDiv(window, p.Quota)
			p.exact = p.den*p.Quota == window // no overflow: the product is below window + Quota
		}
	}
	if !countable(units, p.den) {
		return fmt.Errorf("%s: %d units take %s each to refill, and more than 285 years together; want a smaller %s or a larger quota",
			what, units, micros(p.den), what)
	}
	p.capacity = units * p.den
	if p.MaxDelay > 0 {
		// Whoever waits MaxDelay goes when all before it has dripped.
		if parts, ok := product(p.MaxDelay.Microseconds(), p.num); ok {
			p.capacity = min(p.capacity, parts+p.den)
		}
	}
	p.units = p.capacity / p.den
	return nil
}

// Share returns this policy's share for one of so many instances, which stands
// in for it while the shared store is away: Quota, Burst and Queue divided by
// instances and rounded up, so at least 1 unless they are 0; everything else is
// the same, and so is the key. Fewer than two instances have all of it.
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
		Quota: ceilDiv(p.Quota, n), Burst: ceilDiv(p.Burst, n), Queue: ceilDiv(p.Queue, n),
		MaxDelay: p.MaxDelay, Calendar: p.Calendar,
		CountRejected: p.CountRejected, Role: p.Role,
	}
	s, err := NewPolicy(spec)
	if err != nil {
		// Rounding up carried a bucket of almost 285 years over the edge of
		// what can be counted. One unit of it always fits.
		spec.Burst, spec.Queue = min(spec.Burst, 1), 0
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
	_, ok := product(units, den)
	return ok
}

// product returns a*b, and whether that stays below 2^53. Neither is negative.
func product(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b)) //nolint:gosec // neither is negative
	if hi != 0 || lo >= uint64(exactLimit) {
		return 0, false
	}
	return int64(lo), true
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
