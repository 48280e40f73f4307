package limittest

import (
	"slices"
	"time"

	"bouncer/gateway/ratelimit"
)

// roleMutants change what a role is for.
var roleMutants = []mutant{
	{name: "shadow: denies", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		cs := slices.Clone(charges)
		for i, c := range charges {
			if c.Policy.Role == ratelimit.Shadow {
				q := *c.Policy
				q.Role = ratelimit.Enforce
				cs[i].Policy = &q
			}
		}
		ds := s.model.take(now, cs)
		for i := range ds {
			ds[i].Policy = charges[i].Policy
		}
		return ds
	}},
	{name: "shadow: is not charged", pays: func(ds []ratelimit.Decision, i int) bool {
		return ds[i].Policy.Role != ratelimit.Shadow && pays(ds, i)
	}},
	{name: "shadow: is charged what it denies", pays: func(ds []ratelimit.Decision, i int) bool {
		return pays(ds, i) || ds[i].Policy.Role == ratelimit.Shadow && admitted(ds)
	}, limit: func(_ *ratelimit.Policy, right limit) limit {
		return override{limit: right, onSpend: func(s state, now, cost int64) state { return right.spend(s, now, min(cost, 1000)) }}
	}, tables: true},
	{name: "shadow: is charged for a denied request", pays: func(ds []ratelimit.Decision, i int) bool {
		return pays(ds, i) || ds[i].Policy.Role == ratelimit.Shadow && ds[i].Allowed
	}, history: "History/Lists"},
	{name: "candidate: denies", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		cs := slices.Clone(charges)
		for i, c := range charges {
			if c.Policy.Role == ratelimit.Candidate {
				q := *c.Policy
				q.Role, q.Scope = ratelimit.Enforce, q.Scope+" candidate"
				cs[i].Policy = &q
			}
		}
		ds := s.model.take(now, cs)
		for i := range ds {
			ds[i].Policy = charges[i].Policy
		}
		return ds
	}},
	{name: "candidate: is charged with its twin's verdict", pays: func(ds []ratelimit.Decision, i int) bool {
		if ds[i].Policy.Role == ratelimit.Candidate {
			return admitted(ds) && ds[i].Allowed
		}
		return pays(ds, i)
	}},
	{name: "candidate: is charged whoever denies", pays: func(ds []ratelimit.Decision, i int) bool {
		return pays(ds, i) || ds[i].Policy.Role == ratelimit.Candidate && ds[i].Allowed
	}, history: "History/Lists"},
	{name: "candidate: shares its twin's count", key: func(c ratelimit.Charge) string {
		q := *c.Policy
		q.Role = ratelimit.Enforce
		c.Policy = &q
		return key(c)
	}},
	{name: "rejected: is not charged", paysRejected: func([]ratelimit.Decision, int) bool { return false }},
	{name: "rejected: is charged beyond the limit", limit: func(_ *ratelimit.Policy, right limit) limit {
		return override{limit: right, onFill: func(s state, now, cost int64) state { return right.spend(s, now, min(cost, 1000)) }}
	}},
	{name: "rejected: only those that deny are charged", paysRejected: func(ds []ratelimit.Decision, i int) bool {
		return paysRejected(ds, i) && !ds[i].Allowed
	}, history: "History/Lists"},
	{name: "rejected: is charged for the candidate", paysRejected: func(ds []ratelimit.Decision, i int) bool {
		return paysRejected(ds, i) || !admitted(ds) && ds[i].Policy.Role == ratelimit.Candidate && ds[i].Policy.Quota > 0
	}},
	{name: "rejected: is charged of an admitted request", paysRejected: func(ds []ratelimit.Decision, i int) bool {
		return paysRejected(ds, i) || !ds[i].Allowed && ds[i].Policy.CountRejected && ds[i].Policy.Quota > 0
	}},
	{name: "rejected: retry after is of before it was charged", take: func(s *mutantStore, now int64, charges []ratelimit.Charge) []ratelimit.Decision {
		var waits []time.Duration
		for _, c := range charges {
			waits = append(waits, alone(s.model, now, c))
		}
		ds := s.model.take(now, charges)
		for i := range ds {
			if len(ds) == 1 && ds[i].RetryAfter > 0 {
				ds[i].RetryAfter = waits[i]
			}
		}
		return ds
	}},
}
