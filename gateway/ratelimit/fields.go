package ratelimit

import (
	"slices"
	"strconv"
	"time"
)

// AppendPolicyField appends the value of a RateLimit-Policy field
// (draft-ietf-httpapi-ratelimit-headers-11, in the syntax of RFC 9651): a list
// with one item per decision that is enforced,
//
//	"per-minute";q=100;w=60, "per-day";q=100;w=86400
//
// q is the policy's quota and w its window in seconds. A policy that appears
// in several decisions, as a local cap that answered for several limits does,
// is listed once. Nothing is appended if there is no item; the field is then left
// out. It allocates only if dst is too small.
func AppendPolicyField(dst []byte, ds []Decision) []byte {
	start := len(dst)
	for i := range ds {
		if !ds[i].enforced() || repeated(ds, i) {
			continue
		}
		if len(dst) > start {
			dst = append(dst, ", "...)
		}
		dst = append(dst, ds[i].Policy.policyItem...)
	}
	return dst
}

// A Dialect is the text in whose words a RateLimit field is written. The draft
// is still moving; its -11 and what the working group wrote after it mean the
// same by other names. RateLimit-Policy is alike in both.
type Dialect uint8

const (
	// Draft11 is draft-ietf-httpapi-ratelimit-headers-11: r is what remains, t
	// the seconds until that grows.
	Draft11 Dialect = iota
	// Draft12 is the text after it, of August 2026 (sections 3.1.1, 3.1.2 and
	// 3.1.4): a is the available quota, w the effective window (the seconds
	// within which no more than a can be used) and c the cost of the request
	// that is answered.
	Draft12
	// BothDrafts has the parameters of both beside each other in each item,
	// since a policy may be listed only once and recipients of either ignore
	// parameters that they do not know.
	BothDrafts
)

// AppendLimitField appends the value of a RateLimit field, as r and t, or in
// the newer text as a, w and c:
//
//	"per-minute";r=19;t=1, "per-day";r=81;t=40211
//	"per-minute";a=19;w=1;c=1, "per-day";a=81;w=40211;c=1
//
// r and a are Remaining, t and w Reset in whole seconds, rounded up, and left
// out when Reset is 0. c is cost, in units, of the request that these decisions
// were about. It has the same items in the same order as [AppendPolicyField];
// of a policy that repeats, the first decision speaks.
func AppendLimitField(dst []byte, ds []Decision, in Dialect, cost int64) []byte {
	start := len(dst)
	for i := range ds {
		if !ds[i].enforced() || repeated(ds, i) {
			continue
		}
		if len(dst) > start {
			dst = append(dst, ", "...)
		}
		d := &ds[i]
		dst = append(dst, d.Policy.limitItem...)
		if in != Draft12 {
			dst = appendParameter(dst, ";r=", d.Remaining)
			if d.Reset > 0 {
				dst = appendParameter(dst, ";t=", Seconds(d.Reset))
			}
		}
		if in != Draft11 {
			dst = appendParameter(dst, ";a=", d.Remaining)
			if d.Reset > 0 {
				dst = appendParameter(dst, ";w=", Seconds(d.Reset))
			}
			dst = appendParameter(dst, ";c=", cost)
		}
	}
	return dst
}

func appendParameter(dst []byte, name string, value int64) []byte {
	return strconv.AppendInt(append(dst, name...), value, 10)
}

// Legacy returns what X-RateLimit-Limit, -Remaining and -Reset say, for clients
// that know one limit only; ok is false if none is enforced. reset is in seconds
// from now, rounded up.
//
// If a decision is denied it is the denying one that waits longest, and reset
// is its RetryAfter. [Never] is the longest wait; reset is then the decision's
// Reset, since that is at least when something becomes available. Otherwise it
// is the decision with the smallest Remaining, of several the one with the
// larger Reset. What is still equal is decided by order: the first one.
func Legacy(ds []Decision) (limit, remaining, reset int64, ok bool) {
	var d *Decision
	for i := range ds {
		if e := &ds[i]; e.enforced() && (d == nil || binds(e, d)) {
			d = e
		}
	}
	if d == nil {
		return 0, 0, 0, false
	}
	wait := d.Reset
	if !d.Allowed && d.RetryAfter != Never {
		wait = d.RetryAfter
	}
	return d.Policy.Quota, d.Remaining, Seconds(wait), true
}

// binds reports whether e binds the caller more than d does.
func binds(e, d *Decision) bool {
	switch {
	case e.Allowed != d.Allowed:
		return !e.Allowed
	case !e.Allowed:
		return waitsLonger(e.RetryAfter, d.RetryAfter)
	case e.Remaining != d.Remaining:
		return e.Remaining < d.Remaining
	default:
		return e.Reset > d.Reset
	}
}

func waitsLonger(a, b time.Duration) bool {
	return b != Never && (a == Never || a > b)
}

// RetryAfter returns how long it is until the request would be admitted: the
// longest RetryAfter of the decisions that are enforced, and [Never] if one of
// them is that. denied is false, and d 0, if none denies.
func RetryAfter(ds []Decision) (d time.Duration, denied bool) {
	if Admitted(ds) {
		return 0, false
	}
	for i := range ds {
		// One that allowed has to be waited for as well, if it counts rejected
		// attempts and so was used up by this one.
		if ds[i].enforced() && waitsLonger(ds[i].RetryAfter, d) {
			d = ds[i].RetryAfter
		}
	}
	return d, true
}

// Violated returns the names of the policies that are enforced and deny, each
// once, in order; nil if none does.
func Violated(ds []Decision) []string {
	var names []string
	for i := range ds {
		if ds[i].Allowed || !ds[i].enforced() || slices.Contains(names, ds[i].Policy.Name) {
			continue
		}
		names = append(names, ds[i].Policy.Name)
	}
	return names
}

// Seconds returns d in whole seconds, rounded up, as the fields of HTTP count;
// 0 if d is not positive. A client that waits so long has waited at least d.
func Seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return ceilDiv(int64(d), int64(time.Second))
}

// repeated reports whether the policy of ds[i] stands in an earlier decision.
// Lists are a handful long, so looking back is cheaper than remembering.
func repeated(ds []Decision, i int) bool {
	for j := range i {
		if ds[j].Policy == ds[i].Policy {
			return true
		}
	}
	return false
}
