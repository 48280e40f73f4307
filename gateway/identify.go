package gateway

import (
	"errors"
	"net/http"

	"bouncer/gateway/auth"
	"bouncer/gateway/config"
	"bouncer/gateway/httperr"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/telemetry"
)

// Who is calling: the stage that asks package auth, and what it costs to guess.

// authenticate finds out who is calling. A credential that was verified before
// is recognised first, at the price of a look-up. Any other is looked at only
// while its address has failures left: otherwise every guess, good or bad, is
// answered alike, so that guessing is slow, and callers behind the same address
// that are already known keep working.
func (s *snapshot) authenticate(x *exchange, r *http.Request) *httperr.Error {
	if x.route.auth == config.AuthNone {
		return nil
	}
	if x.assumed != nil {
		return s.assume(x)
	}
	p, err := s.auth.Authenticate(r, auth.Check{OnlyKnown: true, ClientIP: x.ClientIP})
	if errors.Is(err, auth.ErrNotKnown) {
		if refused := s.failuresSpent(x, r, s.failures, ofAddress(x), 0); refused != nil {
			s.gw.telemetry.Auth("", telemetry.AuthNotLookedAt)
			x.AuthError = err
			return refused
		}
		p, err = s.auth.Authenticate(r, auth.Check{ClientIP: x.ClientIP})
	}
	if err == nil {
		x.AuthMethod, x.User, x.Tenant, x.KeyID, x.TokenPlan, x.Expires = string(p.Method), p.User, p.Tenant, p.KeyID, p.Plan, p.Expires
		x.onlyFor, x.scopes, x.claims, x.unasked = p.Routes, p.Scopes, p.Claims, p.SameOrigin
		s.gw.telemetry.Auth(x.AuthMethod, telemetry.AuthAccepted)
		return nil
	}
	x.AuthError = err
	if errors.Is(err, auth.ErrNoCredentials) {
		if x.route.auth == config.AuthOptional {
			x.AuthError = nil
			return nil
		}
		s.gw.telemetry.Auth("", telemetry.AuthMissing)
		return s.unauthorized()
	}
	method, guess, guessed := "", true, ""
	if refused, ok := errors.AsType[*auth.RefusedError](err); ok {
		method = string(refused.Method)
		// Else callers would be locked out because their issuer is away.
		guess, guessed = refused.Reason != auth.ReasonKeysUnavailable, refused.KeyID
	}
	s.gw.telemetry.AuthRefused(method, authReason(err))
	if !guess {
		return s.unauthorized()
	}
	if refused := s.failuresSpent(x, r, s.failures, ofAddress(x), 1); refused != nil {
		return refused
	}
	if guessed != "" {
		// Only now: an address that has none left is answered already.
		of := ratelimit.Part{Dimension: "api_key", Value: guessed}
		if refused := s.failuresSpent(x, r, s.guesses, of, 1); refused != nil {
			return refused
		}
	}
	return s.unauthorized()
}

// stripQuery takes an API key out of the query, so that nobody behind this sees it:
// no upstream, and no placeholder of a field that one is sent.
func (x *exchange) stripQuery(r *http.Request) {
	if x.route.stripQuery == nil || r.URL.RawQuery == "" {
		return
	}
	rest := x.route.stripQuery(r.URL.RawQuery)
	if len(rest) == len(r.URL.RawQuery) {
		return
	}
	u := *r.URL
	u.RawQuery = rest
	r.URL = &u
	if x.to == nil {
		x.to = &u
		return
	}
	x.to.RawQuery = rest // a copy of this request's
}

// ofAddress is whose budget of failed attempts the request is charged to first.
func ofAddress(x *exchange) ratelimit.Part { return ratelimit.Part{Dimension: "ip", Value: x.IPBucket} }

// failuresSpent charges cost to a budget of failed attempts (0 only looks), that of an
// address or of the key that was guessed at, and returns the answer if there is none
// left. p is nil where they are not limited.
func (s *snapshot) failuresSpent(x *exchange, r *http.Request, p *ratelimit.Policy, of ratelimit.Part, cost int64) *httperr.Error {
	if p == nil {
		return nil
	}
	x.chargeRoom[0] = ratelimit.Charge{Policy: p, Partition: ratelimit.Partition(of), Cost: cost}
	ds, err := s.edgeStore.Take(r.Context(), x.chargeRoom[:1], x.decisionRoom[:0])
	if err != nil {
		return storeFailed(err)
	}
	d := ds[0]
	if d.Allowed && (cost > 0 || d.Remaining > 0) {
		return nil
	}
	s.keepDenial(x, x.chargeRoom[:1], ds)
	wait := d.RetryAfter
	if d.Allowed {
		wait = d.Reset // a look denies nothing; the budget is back then
	}
	if p == s.guesses {
		return tooManyGuesses(wait)
	}
	return tooManyFailures(wait)
}
