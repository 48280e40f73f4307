package gateway

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"bouncer/gateway/admin"
	"bouncer/gateway/httperr"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/redisstore"
)

// This file is how the bucket of one limit is emptied.

// reset empties the buckets of charges, which are of one partition, wherever this
// instance knows of them, and tells the others. What others have taken in advance is
// theirs to spend until its TTL; see docs/OPERATING.md.
func (sh *shared) reset(ctx context.Context, cs []ratelimit.Charge) error {
	if sh.redis == nil {
		return sh.memory.Reset(cs)
	}
	if err := sh.redis.Reset(ctx, cs); err != nil {
		return err
	}
	// In this order: what is forgotten first could come back from there.
	sh.leases.Forget(cs)
	sh.fallback.Forget(cs)
	for i := range cs {
		sh.freed(ratelimit.BucketHash(cs[i].Partition, cs[i].Policy))
	}
	return nil
}

// resetLimit empties the bucket of one limit of a caller, with that of its candidate.
func (g *Gateway) resetLimit(ctx context.Context, what admin.Reset) (admin.ResetDone, *httperr.Error) {
	s := g.current.Load()
	who, wrong := g.lookedAt(s, what.Kind, what.Name)
	if wrong != nil {
		return admin.ResetDone{}, wrong
	}
	if p := s.plans.byName[what.Plan]; p != nil && !who.known {
		who.plan, who.Plan = p, p.name // another instance may have seen it
	}
	own, wrong := who.limit(s, what)
	if wrong != nil {
		return admin.ResetDone{}, wrong
	}
	charges := appendCharge(nil, &who.Request, own.limit, own.charge)
	done := admin.ResetDone{Limit: what.Limit, Partition: own.charge.Partition}
	if own.from == fromEdge {
		if err := g.edgeStore.Reset(charges); err != nil {
			panic("bug: " + err.Error())
		}
		return done, nil
	}
	g.mu.Lock()
	sh := g.shared
	g.mu.Unlock()
	if err := sh.reset(ctx, charges); err != nil {
		g.telemetry.StoreFailed(redisstore.Kind(err))
		g.log.Error("a limit could not be reset", "kind", redisstore.Kind(err), "error", err, "hint", storeHint(redisstore.Kind(err)))
		return admin.ResetDone{}, &httperr.Error{
			Status: http.StatusServiceUnavailable, Reason: "store", Err: err, RetryAfter: time.Second,
			Detail: "the limit store did not say that it emptied the bucket, so it may be as it was; try again once it answers. The log says more",
		}
	}
	return done, nil
}

// resettable reports whether what is counted is this caller's to be given back: not
// what all have together.
func (o *ownLimit) resettable() bool { return !ownsNothing(o.limit.per) }

// limit finds the limit that is to be reset.
func (who *lookedAt) limit(s *snapshot, what admin.Reset) (*ownLimit, *httperr.Error) {
	const all = 1 << 20 // also those that are not listed
	shared, edge, _, unlisted := who.limits(s, all)
	var found *ownLimit
	for _, list := range [][]ownLimit{shared, edge} {
		for i := range list {
			o := &list[i]
			told := tellLimit(o, ratelimit.Decision{Policy: o.limit.policy}, who.Plan)
			if told.Name != what.Limit || told.Plan != what.Plan || told.Route != what.Route || what.From != "" && told.From != what.From {
				continue
			}
			if found != nil {
				return nil, &httperr.Error{
					Status: http.StatusUnprocessableEntity, Reason: "limit",
					Detail: `two limits have this name there; say which with "from": "route" or "from": "edge"`,
				}
			}
			found = o
		}
	}
	switch {
	case found != nil && found.resettable():
		return found, nil
	case found != nil:
		return nil, &httperr.Error{
			Status: http.StatusUnprocessableEntity, Reason: "shared",
			Detail: "this limit counts what all callers ask for together, so it is not this caller's to be reset",
		}
	}
	detail := "the caller has no such limit; /api/caller lists its limits, with the plan and the route of each, which are wanted here as they stand there"
	if len(unlisted) > 0 {
		detail += fmt.Sprintf(". Those that count by a field of the request (%d here) cannot be reset", len(unlisted))
	}
	return nil, &httperr.Error{Status: http.StatusNotFound, Reason: "limit", Detail: detail}
}
