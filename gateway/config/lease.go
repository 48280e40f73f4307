package config

import (
	"slices"
	"time"
)

// Bounds of a lease.
const (
	minLeaseTTL, maxLeaseTTL = 100 * time.Millisecond, 10 * time.Second
	defaultLeaseTTL          = time.Second
	maxLeaseSize             = 1_000_000_000
)

const wantedLease = "{size: auto, ttl: 1s}"

// readLease reads lease from the fields of the limit, the others of which have
// been read; nil where it was wrong, or stands on a limit that cannot have one.
func (l *limitDecl) readLease(limit *object) *Lease {
	v, ok := limit.get("lease", wantedLease)
	if !ok {
		return nil
	}
	o, ok := v.object(wantedLease)
	if !ok {
		return nil
	}
	lease := &Lease{TTL: defaultLeaseTTL}
	good := true
	l.leaseSizeAt, l.leaseTTLAt = v, v
	if v, ok := o.get("size", wantedLeaseSize); ok {
		l.leaseSizeAt = v
		lease.Size, good = v.leaseSize()
	}
	if v, ok := o.get("ttl", "a duration such as 1s"); ok {
		l.leaseTTLAt = v
		var ok bool
		lease.TTL, ok = v.duration(minLeaseTTL, maxLeaseTTL)
		good = good && ok
	}
	o.done()
	switch {
	case l.Algorithm == LeakyBucket:
		v.keyErrorf("a leaky_bucket has none, since each request waits for a drip of its own; remove it")
		good = false
	case l.CountRejected:
		v.keyErrorf("not beside count_rejected, since denied attempts are charged where all are counted; remove one of the two")
		good = false
	case limit.has("candidate"):
		v.keyErrorf("not beside a candidate, which is decided together with its limit in the store; remove one of the two")
		good = false
	}
	if !good {
		return nil
	}
	l.leaseAt = v
	return lease
}

const wantedLeaseSize = "auto or a whole number"

// leaseSize reads how many units a block has; 0 is auto.
func (v value) leaseSize() (int64, bool) {
	s, _, ok := v.scalar(wantedLeaseSize)
	if !ok {
		return 0, false
	}
	switch {
	case s == "auto":
		return 0, true
	case v.n.Tag == "!!int" || decimal.MatchString(s):
		return v.integer(1, maxLeaseSize)
	}
	v.errorf("want %s, got %s%s", wantedLeaseSize, quote(s), suggest(s, []string{"auto"}))
	return 0, false
}

// checkLease reports a block that the limit, whose numbers are good, cannot have,
// or not without becoming loose.
func (l *limitDecl) checkLease() {
	lease := l.Lease
	if lease == nil || l.Rate.Quota == 0 {
		return
	}
	if most := l.capacity(); lease.Size > most {
		l.leaseSizeAt.errorf("a block of %d is more than the limit admits at once (%d); want auto, or far less than %d, "+
			"since each instance can hold a block", lease.Size, most, most)
	}
	if lease.TTL > l.Rate.Window {
		l.leaseTTLAt.warnf("longer than the window (%s), so that the limit is loose: over any time t it admits what it grants in t + %s; "+
			"want %s or less", formatDuration(l.Rate.Window), formatDuration(lease.TTL), formatDuration(l.Rate.Window))
	}
}

// warnLease warns of a lease that nothing is ever spent from. asked are the
// routes whose requests ask the limit.
func (l *limitDecl) warnLease(f *routesFile, asked []*routeDecl) {
	switch {
	case l.Lease == nil || !l.ok || len(asked) == 0:
	case f.store.Redis == nil && !f.redisGiven:
		l.leaseAt.keyWarnf("has no effect: all counts are in this process, which has nothing to take in advance from; remove it, or set store.redis")
	case l.Lease.Size > 0 && !slices.ContainsFunc(asked, func(r *routeDecl) bool { return r.Cost <= l.Lease.Size }):
		l.leaseSizeAt.warnf("a block of %d pays for no request: every route that asks the limit costs more; want auto, or several times the cost",
			l.Lease.Size)
	}
}
