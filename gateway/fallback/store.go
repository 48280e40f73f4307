package fallback

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"bouncer/gateway/ratelimit"
)

// Mode is what a route does while the store is away, as the configuration
// names it.
type Mode string

// The modes.
const (
	// LocalCap decides by a cap kept on this instance; the default.
	LocalCap Mode = "local_cap"
	// Deny refuses with [ratelimit.UnavailableError].
	Deny Mode = "deny"
	// Allow admits without limiting: no decisions and no error.
	Allow Mode = "allow"
)

// store is a Fallback in one mode.
type store struct {
	f    *Fallback
	mode Mode
}

var _ ratelimit.Store = (*store)(nil)

// Take asks the primary, or, while the breaker is open or if the primary fails,
// decides by the mode. See [ratelimit.Store] for the contract and the package
// comment for what is added to it.
func (s *store) Take(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	f := s.f
	if len(charges) == 0 {
		return dst[:0], nil
	}
	if err := ctx.Err(); err != nil {
		return dst[:0], err // the caller has left, or is out of time, before anybody was asked
	}
	var few [4]began
	nodes := f.begin(charges, few[:0])
	if c := away(nodes); c != nil {
		if f.o.Held != nil {
			if ds, ok := f.o.Held(charges, dst); ok {
				return ds, nil
			}
		}
		return s.without(ctx, charges, dst, nodes, c.shown, false)
	}
	ds, err := f.primary.Take(ctx, charges, dst)
	if err == nil && len(ds) != len(charges) {
		// No decisions would mean "admitted"; that must never come of a muddle.
		err = errWrongAnswers
	}
	if err == nil {
		f.succeeded(nodes, charges, ds)
		return ds, nil
	}
	left := errors.Is(ctx.Err(), context.Canceled)
	switch {
	case left && errors.Is(err, context.Canceled):
		// The caller's leaving is the error.
	case f.o.KeyFault != nil && f.o.KeyFault(err):
		f.storeFailed(err)
	default:
		// Also if the caller has left meanwhile: a store that was given its time
		// and did not answer is away. Were that not counted, clients with less
		// patience than the store's timeout would keep the breaker closed, and
		// nobody would ever be served.
		f.failed(nodes, err)
	}
	if left {
		return dst[:0], fmt.Errorf("the caller left before the store answered: %w", ctx.Err())
	}
	return s.without(ctx, charges, dst, nodes, err, f.ambiguous(err))
}

// without decides charges without the primary, which did not answer because of
// cause. nodes are those that the request needs. ambiguous says that the primary
// may have charged it all the same.
func (s *store) without(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision, nodes []began, cause error, ambiguous bool) ([]ratelimit.Decision, error) {
	f := s.f
	if f.o.Hooks.Degraded != nil {
		f.o.Hooks.Degraded(ctx, s.mode, cause)
	}
	switch s.mode {
	case Allow:
		f.admitted.Add(1)
		f.account(nodes, charges, ambiguous)
		return dst[:0], nil
	case Deny:
		f.denied.Add(1)
		return dst[:0], &ratelimit.UnavailableError{RetryAfter: f.retryAfter(nodes), Err: cause}
	}
	ds, err := f.localCap(ctx, charges, dst, cause)
	switch {
	case err != nil && ctx.Err() != nil:
		return dst[:0], err
	case err != nil:
		f.denied.Add(1)
		return dst[:0], &ratelimit.UnavailableError{RetryAfter: f.retryAfter(nodes), Err: fmt.Errorf("%w; the local cap: %w", cause, err)}
	case ratelimit.Admitted(ds):
		f.admitted.Add(1)
		f.account(nodes, charges, ambiguous)
	default:
		f.denied.Add(1)
	}
	return ds, nil
}

// scratch is what one local decision needs besides its answer.
type scratch struct {
	charges   []ratelimit.Charge // what the local store is asked
	at        []int              // at[i] is which of them stands in for charge i
	decisions []ratelimit.Decision
}

// localCap decides charges in the local store. A policy without a cap of its
// own is replaced by its share: quota / live instances. A cap replaces what it
// stands on, and is charged once, however many policies of the request share
// it.
func (f *Fallback) localCap(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision, cause error) ([]ratelimit.Decision, error) {
	s := f.scratch.Get().(*scratch)
	defer f.release(s)

	instances := 0
	for i := range charges {
		c := charges[i]
		at := -1
		if c.Policy.LocalCap == nil {
			if instances == 0 {
				instances = f.instances()
			}
			c.Policy = c.Policy.Share(instances)
		} else {
			c.Policy = c.Policy.LocalCap
			if perCaller(c.Policy) {
				c.Partition = c.Caller
			}
			at = find(s.charges, c)
		}
		if at < 0 {
			at = len(s.charges)
			s.charges = append(s.charges, c)
		} else {
			s.charges[at].Cost = max(s.charges[at].Cost, c.Cost)
		}
		s.at = append(s.at, at)
	}

	var err error
	s.decisions, err = f.local.Take(ctx, s.charges, s.decisions)
	if err != nil {
		return dst[:0], err
	}
	if len(s.decisions) != len(s.charges) {
		return dst[:0], errWrongAnswers
	}
	dst = dst[:0]
	for i, at := range s.at {
		d := s.decisions[at]
		d.Policy = charges[i].Policy // q and w are the plan's own numbers
		if d.Policy.LocalCap != nil {
			d.Policy = d.Policy.LocalCap
		}
		d.Source = ratelimit.SourceLocalCap
		d.Err = cause
		dst = append(dst, d)
	}
	return dst, nil
}

func (f *Fallback) instances() int {
	if f.o.Instances == nil {
		return 1
	}
	return max(1, f.o.Instances())
}

// perCaller reports whether a cap is counted by who is asking, whatever the
// policies are partitioned by that it stands in for. That is so for a plan's
// own cap, which replaces all the plan's limits at once: its Scope is
// "local-cap" or begins with "plan/". The cap of a named limit is counted as
// the limit is, by the charge's own partition.
func perCaller(p *ratelimit.Policy) bool {
	return p.Scope == "local-cap" || strings.HasPrefix(p.Scope, "plan/")
}

// find returns where charges asks for the bucket of c already, or -1.
func find(charges []ratelimit.Charge, c ratelimit.Charge) int {
	for i := range charges {
		if charges[i].Policy == c.Policy && charges[i].Partition == c.Partition {
			return i
		}
	}
	return -1
}

// release makes s ready for reuse. It holds on to no caller's strings.
func (f *Fallback) release(s *scratch) {
	clear(s.charges)
	clear(s.decisions)
	s.charges, s.at, s.decisions = s.charges[:0], s.at[:0], s.decisions[:0]
	f.scratch.Put(s)
}
