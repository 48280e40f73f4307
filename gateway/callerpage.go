package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bouncer/gateway/admin"
	"bouncer/gateway/auth"
	"bouncer/gateway/auth/keyuse"
	"bouncer/gateway/callers"
	"bouncer/gateway/config"
	"bouncer/gateway/denials"
	"bouncer/gateway/httperr"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/scope"
)

// This file is what the operator is told of one caller: who it is, how each of its
// limits stands, and what was denied.

// Bounds of an answer.
const (
	maxFound         = 20
	maxCallerDenials = 50
)

// callerPage is what the admin listener asks about callers.
func (g *Gateway) callerPage() *admin.Callers {
	return &admin.Callers{
		Search: g.searchCallers, Caller: g.caller, Reset: g.resetLimit, Denials: g.denials, Credential: g.isCredential,
	}
}

// isCredential reports whether a text is a whole key or token, or looks like one, or has
// one in it: whoever pastes one pastes "Bearer" and a blank with it.
func (g *Gateway) isCredential(text string) bool {
	s := g.current.Load()
	is := func(text string) bool {
		return s.auth != nil && s.auth.HasKey(text) || isSecret(text, s.cfg.Admin.Token)
	}
	if auth.LooksSecret(text) || is(text) {
		return true
	}
	for word := range auth.Words(text) {
		if is(word) {
			return true
		}
	}
	return false
}

// isSecret reports whether a text is the secret, which may be empty for none, in a time
// that does not tell how nearly.
func isSecret(text string, secret []byte) bool {
	a, b := sha256.Sum256([]byte(text)), sha256.Sum256(secret)
	return len(secret) > 0 && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// searchCallers finds callers seen of late, and keys of the key file.
func (g *Gateway) searchCallers(q string) (list []admin.FoundCaller, more bool) {
	s, now := g.current.Load(), time.Now()
	found, more := g.callers.Find(q, maxFound, now)
	seen := map[string]bool{}
	for _, c := range found {
		list = append(list, foundCaller(c))
		seen[c.Kind.String()+" "+c.Name] = true
	}
	lower := strings.ToLower(q)
	if keys := s.cfg.Auth.APIKeys; keys != nil {
		for _, k := range keys.Keys {
			if callers.Rank(k.ID, lower) == 0 || seen["key "+k.ID] {
				continue
			}
			f := admin.FoundCaller{Kind: "key", Name: k.ID, Plan: k.Plan, Tenant: k.Tenant}
			if c, ok := g.callers.Get(callers.Key, k.ID, now); ok {
				f = foundCaller(c) // which were more than were asked for
			}
			list = append(list, f)
		}
	}
	if name, ok := s.bucketOf(q); ok && !seen["ip "+name] {
		// Nobody came from there; its limits can be looked at all the same.
		f := admin.FoundCaller{Kind: "ip", Name: name}
		if c, ok := g.callers.Get(callers.IP, name, now); ok {
			f = foundCaller(c) // it was asked for by one address of a network
		}
		list = append(list, f)
	}
	slices.SortStableFunc(list, func(a, b admin.FoundCaller) int {
		return cmp.Compare(foundRank(a, lower), foundRank(b, lower))
	})
	if len(list) > maxFound {
		list, more = list[:maxFound], true
	}
	return list, more
}

// foundRank is that of a caller that a search has found; an address stands for the network
// that it is in.
func foundRank(f admin.FoundCaller, q string) int {
	if n := callers.Rank(f.Name, q); n > 0 {
		return n
	}
	return 1
}

func foundCaller(c callers.Caller) admin.FoundCaller {
	f := admin.FoundCaller{Kind: c.Kind.String(), Name: c.Name, Plan: c.Identity.Plan, Tenant: c.Identity.Tenant, LastSeen: &c.LastSeen}
	f.Requests, f.Denied = c.Sum()
	return f
}

// bucketOf is the address, as limits count it, that a text names.
func (s *snapshot) bucketOf(text string) (bucket string, ok bool) {
	if text == scope.NoAddress {
		return text, true
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return "", false
		}
		// Only a network that is a bucket is one caller.
		a = p.Addr()
		bucket = s.clientIP.Bucket(a)
		return bucket, bucket == text || bucket == p.Masked().String()
	}
	return s.clientIP.Bucket(a), true
}

// lookedAt is who is looked at, as its next request would be.
type lookedAt struct {
	kind callers.Kind
	name string
	seen callers.Caller // the zero Caller if it was not seen of late
	scope.Request
	known    bool
	key      *config.Key // of the key file; nil: none
	plan     *plan
	planFrom string
}

// lookedAt finds out who is meant.
func (g *Gateway) lookedAt(s *snapshot, kindName, name string) (*lookedAt, *httperr.Error) {
	kind, ok := callers.KindOf(kindName)
	if !ok {
		return nil, unknownCaller("kind is user, key or ip")
	}
	if kind == callers.IP {
		if name, ok = s.bucketOf(name); !ok {
			return nil, unknownCaller("name is no address; want one such as 203.0.113.7 or 2001:db8::1, or a network as limits count it, such as 2001:db8::/64")
		}
	}
	who := &lookedAt{kind: kind, name: name}
	now := time.Now()
	who.seen, who.known = g.callers.Get(kind, name, now)
	id := who.seen.Identity
	who.Request = scope.Request{
		Arrived: now, User: id.User, Tenant: id.Tenant, KeyID: id.KeyID, AuthMethod: id.Method, TokenPlan: id.TokenPlan,
	}
	seen := who.known
	switch kind {
	case callers.User:
		who.User = name
		who.key = keyOf(s.cfg, func(k *config.Key) bool {
			return k.ID == who.KeyID || !seen && cmp.Or(k.User, "key:"+k.ID) == name
		})
	case callers.Key:
		who.KeyID = name
		who.key = keyOf(s.cfg, func(k *config.Key) bool { return k.ID == name })
	case callers.IP:
		who.Request = scope.Request{Arrived: now, IPBucket: name}
	}
	if k := who.key; k != nil && !seen {
		who.known, who.AuthMethod = true, string(auth.MethodAPIKey)
		who.User, who.Tenant, who.KeyID, who.TokenPlan = cmp.Or(k.User, "key:"+k.ID), k.Tenant, k.ID, k.Plan
	}
	if len(who.seen.Addresses) > 0 && kind != callers.IP {
		who.ClientIP = who.seen.Addresses[0]
		who.IPBucket = s.clientIP.Bucket(who.ClientIP)
	}
	who.choosePlan(s)
	return who, nil
}

func keyOf(cfg *config.Config, is func(*config.Key) bool) *config.Key {
	if cfg.Auth.APIKeys == nil {
		return nil
	}
	keys := cfg.Auth.APIKeys.Keys
	if i := slices.IndexFunc(keys, func(k config.Key) bool { return is(&k) }); i >= 0 {
		return &keys[i]
	}
	return nil
}

// choosePlan finds the plan that a request would have now.
func (who *lookedAt) choosePlan(s *snapshot) {
	as := who.Request
	notSeen := who.kind != callers.IP && as.AuthMethod == ""
	if notSeen {
		as.AuthMethod = "unknown"
	}
	p, from := s.plans.choose(&as)
	who.plan, who.planFrom = p, string(from)
	switch {
	case from == planCredential:
		who.planFrom = map[string]string{
			string(auth.MethodAPIKey): "the key", string(auth.MethodClientCert): "the certificate",
		}[as.AuthMethod]
		who.planFrom = cmp.Or(who.planFrom, "the token")
	case notSeen && from == planDefault:
		who.planFrom = "default_plan, since it was not seen of late what the credential says"
	}
	if notSeen {
		who.AuthMethod = ""
	}
	if p != nil {
		who.Plan = p.name
	}
}

func unknownCaller(detail string) *httperr.Error {
	return &httperr.Error{Status: http.StatusBadRequest, Reason: "caller", Detail: detail}
}

// limits lists all limits that the caller's requests are charged to, those of the
// edge last; at most most of them. Those whose bucket cannot be known from here are not
// among them.
func (who *lookedAt) limits(s *snapshot, most int) (shared, edge []ownLimit, more int, unlisted []string) {
	r := &http.Request{Header: http.Header{}}
	want := func(l *limit, as *scope.Request) bool {
		for _, d := range l.per {
			if d.Kind == config.PerHeader {
				if !slices.Contains(unlisted, l.policy.Name) {
					unlisted = append(unlisted, l.policy.Name)
				}
				return false
			}
			if as.IPBucket == "" && part(d, r, as).Dimension == string(config.PerIP) {
				return false // the address would stand in, and none is known
			}
		}
		return true
	}
	shared, more = s.limitsOf(&who.Request, who.plan, r, want, most)
	edge, moreEdge := s.edgeLimitsOf(&who.Request, r, want, most-len(shared))
	return shared, edge, more + moreEdge, unlisted
}

// caller tells all about one.
func (g *Gateway) caller(ctx context.Context, kind, name string) (*admin.Caller, *httperr.Error) {
	s := g.current.Load()
	who, wrong := g.lookedAt(s, kind, name)
	if wrong != nil {
		return nil, wrong
	}
	out := &admin.Caller{
		Kind: kind, Name: who.name, Known: who.known, Limits: []admin.CallerLimit{}, Unlisted: []string{}, Denials: []*denials.Denial{},
		Identity: admin.Identity{
			User: who.User, Tenant: who.Tenant, KeyID: who.KeyID, AuthMethod: who.AuthMethod, Plan: who.Plan, PlanFrom: who.planFrom,
			ClientIPs: []string{},
		},
	}
	for _, a := range who.seen.Addresses {
		out.Identity.ClientIPs = append(out.Identity.ClientIPs, a.String())
	}
	if !who.seen.LastSeen.IsZero() {
		out.Identity.LastSeen = &who.seen.LastSeen
	}
	if who.key != nil {
		out.Identity.Key = g.keyInfo(ctx, who.key)
	}
	if c := who.seen.Crowd; c != nil {
		out.Crowd = &admin.Crowd{Users: c.Users, UserAgents: c.UserAgents, AtLeast: c.AtLeast}
	}
	own, edge, more, unlisted := who.limits(s, maxUsage)
	out.MoreLimits, out.Unlisted = more, append(out.Unlisted, unlisted...)
	for _, part := range []struct {
		own   []ownLimit
		store ratelimit.Store
	}{{own, s.looking}, {edge, s.edgeStore}} {
		ds, err := look(ctx, part.store, part.own)
		if err != nil {
			return nil, &httperr.Error{
				Status: http.StatusServiceUnavailable, Reason: "store", Err: err, RetryAfter: time.Second,
				Detail: "how the limits stand cannot be looked at at the moment; try again shortly",
			}
		}
		for i := range part.own {
			told := tellLimit(&part.own[i], ds[i], who.Plan)
			told.Resettable = part.own[i].resettable() && ds[i].Source != ratelimit.SourceLocalCap
			out.Limits = append(out.Limits, told)
			out.Reduced = out.Reduced || ds[i].Source == ratelimit.SourceLocalCap
		}
	}
	out.Minutes = minutes(&who.seen)
	f := denials.Filter{Bucket: who.name}
	switch who.kind {
	case callers.User:
		f = denials.Filter{User: who.name}
	case callers.Key:
		f = denials.Filter{KeyID: who.name}
	case callers.IP:
	}
	out.Denials = append(out.Denials, g.denials.List(f, maxCallerDenials)...)
	return out, nil
}

// keyInfo is what the key file says of a key, and when it was last used.
func (g *Gateway) keyInfo(ctx context.Context, k *config.Key) *admin.KeyInfo {
	info := &admin.KeyInfo{ID: k.ID, Routes: append([]string{}, k.Routes...)}
	if !k.Expires.IsZero() {
		at := k.Expires.UTC()
		info.Expires = &at
	}
	g.mu.Lock()
	sh := g.shared
	g.mu.Unlock()
	if sh.client != nil && !sh.away() {
		// Where it cannot be asked, it is not known.
		if used, err := keyuse.Read(ctx, sh.client, keyuse.Key(sh.cfg.KeyPrefix), sh.cfg.Timeout, []string{k.ID}); err == nil {
			if at, ok := used[k.ID]; ok {
				info.LastUsed = &at
			}
		}
	}
	if c, ok := g.callers.Get(callers.Key, k.ID, time.Now()); ok && (info.LastUsed == nil || info.LastUsed.Before(c.LastSeen)) {
		info.LastUsed = &c.LastSeen // here, and the others are told only now and then
	}
	return info
}

// tellLimit is how a limit stands, in the operator's terms.
func tellLimit(o *ownLimit, d ratelimit.Decision, plan string) admin.CallerLimit {
	p := o.limit.policy
	out := admin.CallerLimit{
		Name: p.Name, From: o.from, Per: names(o.limit.per), Partition: o.charge.Partition, Mode: p.Role.String(),
		Rule: o.limit.words, Source: string(d.Source),
	}
	var told usageLimit
	told.tell(p, d)
	out.Algorithm, out.Quota, out.WindowS, out.Capacity = told.Algorithm, told.Quota, told.Window, told.Capacity
	out.Used, out.Remaining, out.ResetS = told.Used, told.Remaining, told.Reset
	if out.Remaining == 0 && p.Quota > 0 {
		out.RetryAfter = secondsOrNil(d.Reset)
	}
	if o.from == fromPlan {
		out.Plan = plan
	}
	if o.route != nil {
		out.Route = o.route.name
	}
	return out
}

// minutes are the requests of the last hour.
func minutes(c *callers.Caller) admin.Minutes {
	m := admin.Minutes{
		Until:   time.Now().UTC().Truncate(time.Minute).Add(time.Minute),
		Allowed: make([]uint32, callers.Minutes), Denied: make([]uint32, callers.Minutes), Refused: make([]uint32, callers.Minutes),
	}
	for i, n := range c.Counts {
		m.Allowed[i], m.Denied[i], m.Refused[i] = n[callers.Allowed], n[callers.Denied], n[callers.Refused]
	}
	return m
}
