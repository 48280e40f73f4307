package gateway

import (
	"context"
	"net/http"

	"bouncer/gateway/config"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/scope"
)

// This file is which limits somebody has, and how each stands: for the caller itself
// (usage.go) and for the operator (callerpage.go).

// Where a limit comes from.
const (
	fromPlan  = "plan"
	fromRoute = "route"
	fromEdge  = "edge"
)

// An ownLimit is a limit of somebody, and the charge that looks at it.
type ownLimit struct {
	limit  *limit
	route  *route // that is counted by itself, or that names the limit; nil: none
	from   string
	charge ratelimit.Charge
}

// limitsOf lists the limits that requests of who are charged to: those of the plan,
// and of each route that costs something its own. r is what is asked of fields; want
// says which limits are wanted, of who as a route sees who asks. At most most are
// listed; more is how many there are besides.
func (s *snapshot) limitsOf(
	who *scope.Request, p *plan, r *http.Request, want func(*limit, *scope.Request) bool, most int,
) (list []ownLimit, more int) {
	add := func(rt *route, l *limit, from string) {
		as := *who
		if rt != nil {
			as.Route = rt.name
			if rt.auth == config.AuthNone { // nobody is known there
				as.User, as.Tenant, as.KeyID = "", "", ""
			}
		}
		if !want(l, &as) {
			return
		}
		if len(list) >= most {
			more++
			return
		}
		name := caller(&as)
		list = append(list, ownLimit{l, rt, from, l.charge(&as, ratelimit.Charge{Partition: l.partition(name, r, &as), Caller: name})})
	}
	if p != nil {
		for _, l := range p.limits {
			if !perRoute(l) {
				add(nil, l, fromPlan)
				continue
			}
			for _, rt := range s.limited {
				if rt.auth != config.AuthNone || who.AuthMethod == "" {
					add(rt, l, fromPlan)
				}
			}
		}
	}
	for _, rt := range s.limited {
		for _, l := range rt.limits {
			add(rt, l, fromRoute)
		}
	}
	return list, more
}

// edgeLimitsOf lists the limits of the edge for an address in the same way.
func (s *snapshot) edgeLimitsOf(who *scope.Request, r *http.Request, want func(*limit, *scope.Request) bool, most int) (list []ownLimit, more int) {
	// Nobody is known there yet.
	as := scope.Request{Arrived: who.Arrived, ClientIP: who.ClientIP, IPBucket: who.IPBucket}
	add := func(rt *route, l *limit) {
		as := as
		if rt != nil {
			as.Route = rt.name
		}
		if !want(l, &as) {
			return
		}
		if len(list) >= most {
			more++
			return
		}
		partition := partition(l.per, r, &as)
		list = append(list, ownLimit{l, rt, fromEdge, l.charge(&as, ratelimit.Charge{Partition: partition, Caller: partition})})
	}
	for _, l := range s.edge {
		if !perRoute(l) {
			add(nil, l)
			continue
		}
		for _, rt := range s.limited {
			add(rt, l)
		}
	}
	return list, more
}

// look asks a store for the state of all buckets, at most maxLook in one call so that
// a large plan does not hold the store up for others. Nothing is charged.
func look(ctx context.Context, store ratelimit.Store, own []ownLimit) ([]ratelimit.Decision, error) {
	const maxLook = 32
	var all []ratelimit.Decision
	for len(own) > 0 {
		n := min(len(own), maxLook)
		cs := make([]ratelimit.Charge, n)
		for i := range cs {
			cs[i] = own[i].charge
		}
		ds, err := store.Take(ctx, cs, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, ds...)
		own = own[n:]
	}
	return all, nil
}

func perRoute(l *limit) bool {
	for _, d := range l.per {
		if d.Kind == config.PerRoute {
			return true
		}
	}
	return false
}
