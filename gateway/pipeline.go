package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"time"

	"bouncer/gateway/auth"
	"bouncer/gateway/config"
	"bouncer/gateway/denials"
	"bouncer/gateway/door"
	"bouncer/gateway/httperr"
	"bouncer/gateway/proxy"
	"bouncer/gateway/ratelimit"
	"bouncer/gateway/scope"
	"bouncer/gateway/telemetry"
	"bouncer/gateway/tracing"
)

// An exchange is one request and its answer on their way through the gateway.
type exchange struct {
	scope.Request
	response response
	deciding decisionContext // what the store is called with

	route      *route          // nil if none matched
	to         *url.URL        // what the upstream is asked for; nil for what the client asked for
	preflight  bool            // it only asks whether a page may use the route (CORS)
	plan       *plan           // nil if the caller has none
	place      proxy.Place     // in flight to the upstream
	socket     held[string]    // one of the caller's WebSockets
	onlyFor    []string        // the names of the routes that the caller's key is for; nil: any
	planFrom   planSource      // who says so
	authorized bool            // it was looked at what the caller may use, whatever came of it
	scopes     []string        // what the credential grants, of what routes ask for
	claims     []auth.Claim    // the same of a token's claims
	unasked    bool            // a browser adds the credential by itself
	limited    bool            // a limit denied it
	denial     *denials.Denial // what is kept of that; nil: nothing is
	assumed    *Caller         // who it is, in a rehearsal that is told so; else nil
	flight     telemetry.Flight
	trace      *tracing.Request // nil: none is made

	// Room for the usual number of limits, so that a decision allocates nothing.
	chargeRoom   [4]ratelimit.Charge
	decisionRoom [4]ratelimit.Decision
}

// ServeHTTP hands the request to the configuration in force. The request keeps
// it to its end, whatever is loaded meanwhile.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.current.Load().serve(w, r)
}

// serve is one request, start to end: walk it through the stages, answer if one
// of them refused it, and account for it whatever happened.
func (s *snapshot) serve(w http.ResponseWriter, r *http.Request) {
	x := s.begin(w, r)
	defer func() {
		s.end(x, r, recover())
		// A stream of which nobody knows how much is to come may be a call that its other
		// side has ended: its trailers must not wait.
		// Nor is there time when the gateway is being stopped.
		if (x.response.own || r.ContentLength > 0) && !wasCut(r) {
			x.response.body.Linger()
		}
	}()
	if refused := s.walk(x, r); refused != nil { //nolint:contextcheck // the request's context goes with it, in x.deciding
		s.answer(x, r, refused)
	}
}

// walk is the order of a request, and what each stage may refuse with. Cheap
// stages come first; a stage that refuses ends the walk.
func (s *snapshot) walk(x *exchange, r *http.Request) *httperr.Error {
	// may it come in, and what does it cost: all that a rehearsal does too
	if refused := s.decide(x, r); refused != nil {
		return refused
	}
	if x.preflight {
		x.response.WriteHeader(http.StatusNoContent)
		return nil
	}
	if x.route.usage {
		return s.answerUsage(x, r)
	}
	if x.route.challenge != "" {
		answerChallenge(&x.response, x.route.challenge)
		return nil
	}
	// 503 when the gateway stops while a request waits in a queue
	if refused := s.waitTurn(x, r); refused != nil {
		return refused
	}
	// 502, 504
	how := x.route.forward
	how.To, how.Place, how.Leaving, how.WebSocket.Until = x.to, &x.place, s.gw.leaving, x.Expires
	if x.trace != nil {
		x.trace.Method(r.Method)
		how.Trace = x.trace
	}
	if by := x.route.hashBy; by != nil {
		how.Key = part(*by, r, &x.Request).Value
	}
	return x.route.upstream.Forward(&x.response, r, &x.Request, how)
}

// decide finds out who asks for what, and whether there is budget for it. There
// is no other place that decides: a running gateway and a [Rehearsal] both walk
// through here.
func (s *snapshot) decide(x *exchange, r *http.Request) *httperr.Error {
	s.findClient(x, r)
	noRoute := s.findRoute(x, r) // remembered until the edge was charged: scanning is not free

	// 429, per address, in this process's memory, before any cryptography
	if refused := s.chargeEdge(x, r); refused != nil {
		return refused
	}
	// 400, 404, 405, 413
	if noRoute != nil {
		return noRoute
	}
	if x.preflight {
		return nil // a browser asks for leave: free, and without credentials
	}
	// 403 for an address that the route is not for
	if refused := s.checkAddress(x); refused != nil {
		return refused
	}
	// 401; 429 for an address that guesses
	if refused := s.authenticate(x, r); refused != nil {
		return refused
	}
	x.stripQuery(r)
	s.choosePlan(x)
	// 403 when the caller does not have what the route wants
	if refused := s.authorize(x, r); refused != nil {
		return refused
	}
	// 429 when the caller has as many WebSockets as it may: it costs nothing either
	if refused := s.enterSocket(x, r); refused != nil {
		return refused
	}
	// 503 when the upstream takes no more: it costs the caller nothing
	if refused := x.enter(r); refused != nil {
		return refused
	}
	// 429; 503 when the store is away and the route is not served without it
	return s.chargeLimits(x, r)
}

func (s *snapshot) begin(w http.ResponseWriter, r *http.Request) *exchange {
	s.gw.flights.Add(1)
	x := &exchange{}
	x.Arrived = time.Now()
	x.deciding = decisionContext{Context: r.Context(), x: x}
	if r.ProtoMajor == 2 && r.TLS == nil {
		r.TLS = door.TLS(r)
	}
	x.response = response{
		ResponseWriter: w, request: r, body: door.Follow(w, r), scope: &x.Request, telemetry: s.gw.telemetry,
		fields: s.cfg.ClientHeaders, leaving: s.gw.draining.Load() && r.ProtoMajor == 1,
	}
	return x
}

// findClient decides whose address it is and what the request is called. A
// request id is taken from a trusted peer only: anyone else could make the logs
// of two requests one.
func (s *snapshot) findClient(x *exchange, r *http.Request) {
	res := s.clientIP.Resolve(r)
	if s.cfg.ClientIP.ProxyProtocol && door.Unnamed(r) {
		res = s.clientIP.Alone(r)
	}
	x.Peer, x.PeerTrusted = res.Peer, res.PeerTrusted
	x.ClientIP, x.IPBucket, x.Forwarded = res.Client, res.Bucket, res.Forwarded
	if x.PeerTrusted {
		x.ID = validRequestID(r.Header["X-Request-Id"])
	}
	if x.ID == "" {
		x.ID = newRequestID()
	}
	x.response.id = x.ID
	s.beginTrace(x, r)
	if res.Ignored {
		s.gw.telemetry.UntrustedForwarding()
		s.gw.warnUntrusted(x.Peer, s.cfg.ClientIP.Header)
	}
}

// findRoute sets the route, or returns the answer for a request that has none
// or that no upstream can be sent: it must not cost its caller anything.
func (s *snapshot) findRoute(x *exchange, r *http.Request) *httperr.Error {
	x.Request.Route, x.Cost = telemetry.Unmatched, 1
	refused := door.Refused(r)
	if refused == nil {
		if x.route = s.gw.challenge(r); x.route == nil {
			var m match
			m, refused = s.routes.match(r)
			x.route, x.preflight, x.response.browser = m.route, m.browser.asks, m.browser
		}
	} else if r.ProtoMajor == 1 {
		r.Host, r.URL.Path = "", "" // they are not the client's, so the log has none
	}
	if rt := x.route; rt != nil {
		x.response.route = rt
		x.Request.Route, x.Cost = rt.name, rt.cost
		x.Upstream = rt.upstreamName
		if x.preflight {
			x.Cost, x.Upstream = 0, ""
		}
		if refused = rt.forward.Refuse(r); refused == nil {
			refused = x.rewritePath(r)
		}
	}
	x.flight = s.gw.telemetry.InFlight(x.Request.Route)
	return refused
}

// rewritePath finds out what the upstream is asked for, where that is another path.
func (x *exchange) rewritePath(r *http.Request) *httperr.Error {
	if x.route.path == nil {
		return nil
	}
	to, ok := x.route.path.Of(r.URL)
	if !ok {
		return badPath()
	}
	if to != r.URL {
		x.to = to
	}
	return nil
}

// chargeEdge turns crowds away before anything costs: no cryptography, no
// network. It counts requests, whatever they cost their caller later: what they
// are worth is the plan's business. A route that is free is free here too. The
// client learns of an edge limit only when it denies.
func (s *snapshot) chargeEdge(x *exchange, r *http.Request) *httperr.Error {
	free := x.Cost == 0 && !x.route.usage // what is answered here costs us, if not the caller
	if len(s.edge) == 0 || free {
		return nil
	}
	cs := x.chargeRoom[:0]
	for _, l := range s.edge {
		p := partition(l.per, r, &x.Request)
		cs = appendCharge(cs, &x.Request, l, ratelimit.Charge{Partition: p, Caller: p, Cost: 1})
	}
	ds, err := s.edgeStore.Take(r.Context(), cs, x.decisionRoom[:0])
	if err != nil {
		return storeFailed(err)
	}
	s.report(x, "", ds)
	if ratelimit.Admitted(ds) {
		s.countNear(cs, ds)
		return nil
	}
	s.countDenied(x, cs, ds)
	denying := ds[:0]
	for _, d := range ds {
		if denies(d) {
			denying = append(denying, d)
		}
	}
	x.response.decisions, x.response.cost = denying, 1
	return denied(x, denying)
}

// choosePlan decides what the caller may use.
func (s *snapshot) choosePlan(x *exchange) {
	p, from := s.plans.choose(&x.Request)
	if from == planUnknown {
		s.gw.telemetry.UnknownPlan()
	}
	x.planFrom = from
	if p != nil {
		x.plan, x.Plan = p, p.name
	}
}

// enterSocket counts the handshake of a WebSocket to those that the caller has on
// the route; end counts it out, whatever comes of it.
func (s *snapshot) enterSocket(x *exchange, r *http.Request) *httperr.Error {
	may := x.route.sockets
	if may == 0 || !proxy.AsksForWebSocket(r) {
		return nil
	}
	var ok bool
	if x.socket, ok = s.gw.sockets.enter(x.Request.Route+" "+partition(perUser, r, &x.Request), may); ok {
		return nil
	}
	s.gw.telemetry.WebSocketRefused()
	return tooManySockets(may)
}

// perUser is who a caller is: the user, else the address.
var perUser = []config.Dimension{{Kind: config.PerUser}}

// enter takes a place at the upstream; end gives it back, whatever comes of it.
func (x *exchange) enter(r *http.Request) (refused *httperr.Error) {
	if x.route.upstream != nil {
		x.place, refused = x.route.upstream.Enter(r.Context())
	}
	return refused
}

// chargeLimits asks the store, once, whether the caller may spend the route's
// cost on the plan's limits and the route's own: all of them or none.
func (s *snapshot) chargeLimits(x *exchange, r *http.Request) *httperr.Error {
	if x.Cost == 0 {
		return nil
	}
	cs := charges(x.chargeRoom[:0], r, &x.Request, x.plan, x.route)
	if len(cs) == 0 {
		return nil
	}
	x.trace.Deciding(len(cs))
	ds, err := x.route.store.Take(&x.deciding, cs, x.decisionRoom[:0])
	x.decided(ds, err)
	if err != nil {
		e := storeFailed(err)
		if e.Status != httperr.StatusClientClosedRequest {
			x.StoreErr = err
		}
		return e
	}
	s.report(x, x.Plan, ds)
	x.response.decisions, x.response.cost = ds, x.Cost
	if ratelimit.Admitted(ds) {
		s.countNear(cs, ds)
		return nil
	}
	s.countDenied(x, cs, ds)
	return denied(x, ds)
}

// countDenied counts the buckets that denied for the list of the most denied, and
// has what was decided kept.
func (s *snapshot) countDenied(x *exchange, cs []ratelimit.Charge, ds []ratelimit.Decision) {
	s.keepDenial(x, cs, ds)
	for i, d := range ds {
		if denies(d) {
			s.gw.deniedKey(cs[i].Partition, d.Policy.Name)
		}
	}
}

// countNear counts the buckets of an admitted request that have a tenth or less left,
// for the list of those near their limits. A rehearsal has none.
func (s *snapshot) countNear(cs []ratelimit.Charge, ds []ratelimit.Decision) {
	if s.gw.topNear == nil {
		return
	}
	for i := range ds {
		d := &ds[i]
		if d.Policy.Role == ratelimit.Enforce && 10*d.Remaining <= d.Policy.Capacity() && i < len(cs) {
			s.gw.topNear.AddPair(d.Policy.Name, cs[i].Partition, 1)
		}
	}
}

// denies reports whether a decision turns the request away: its own verdict,
// unless it is only on trial.
func denies(d ratelimit.Decision) bool {
	return !d.Allowed && d.Policy.Role == ratelimit.Enforce
}

// waitTurn holds an admitted request until its drip of a leaky bucket. A client
// that leaves ends the wait; its place lapses then and shifts nobody. A gateway
// that stops lets those finish whose turn comes in time, and answers the others.
func (s *snapshot) waitTurn(x *exchange, r *http.Request) *httperr.Error {
	delay := ratelimit.Delay(x.response.decisions)
	if delay <= 0 {
		return nil
	}
	due := time.Now().Add(delay)
	turn := time.NewTimer(delay)
	defer turn.Stop()
	leaving := s.gw.leaving.Done()
	for {
		select {
		case <-turn.C:
			return nil
		case <-r.Context().Done():
			return &httperr.Error{Status: httperr.StatusClientClosedRequest, Reason: "client_left", Err: r.Context().Err()}
		case <-leaving:
			if due.After(s.gw.leaveBy) {
				return shuttingDown()
			}
			leaving = nil
		}
	}
}

// report tells metrics and the access log what was decided, and by whom.
func (s *snapshot) report(x *exchange, plan string, ds []ratelimit.Decision) {
	if len(ds) == 0 {
		x.Source = string(ratelimit.SourceNone)
		return
	}
	x.Source = string(ds[0].Source)
	for i := range ds {
		d := &ds[i]
		if i > 0 && d.Policy == ds[i-1].Policy {
			continue // several limits answered by one local cap are one verdict
		}
		s.gw.telemetry.Decided(x.Request.Route, plan, d.Policy.Name, string(d.Source), trialRoles[d.Policy.Role],
			d.Allowed, d.Remaining, d.Policy.Capacity())
	}
}

// trialRoles are the roles of policies as telemetry calls them.
var trialRoles = [...]telemetry.Role{
	ratelimit.Enforce:   telemetry.Enforced,
	ratelimit.Shadow:    telemetry.Shadow,
	ratelimit.Candidate: telemetry.Candidate,
}

// end accounts for the request, also when a stage panicked. A panic is this
// request's 500 and never the process'; http.ErrAbortHandler, which breaks off
// a half-sent answer so that the client does not take it for a whole one, goes
// on to the server. A request without any answer ends with it too.
func (s *snapshot) end(x *exchange, r *http.Request, panicked any) {
	if panicked != nil && panicked != http.ErrAbortHandler { //nolint:errorlint // a panic's value, which net/http compares like this too
		s.gw.log.Error("panic while serving a request; please report it",
			"request_id", x.ID, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
		if x.response.status == 0 {
			s.answer(x, r, &httperr.Error{
				Status: http.StatusInternalServerError, Reason: "panic", Close: true,
				Detail: "The gateway failed on this request. The failure is logged under the request id.",
			})
			panicked = nil
		} else {
			panicked = http.ErrAbortHandler
		}
	}
	if panicked == nil && x.response.status == 0 {
		// A request that nobody waits for any more, as it seems. net/http would write a
		// 200 in our name; what is broken off cannot be taken for an answer.
		panicked = http.ErrAbortHandler
		if r.ContentLength != 0 && r.ProtoMajor == 1 {
			// net/http would wait for the rest of the body first.
			_ = http.NewResponseController(x.response.ResponseWriter).SetReadDeadline(time.Unix(1, 0))
		}
	}
	if x.Status == 0 {
		x.Status = x.response.status
	}
	switch {
	case panicked == nil || r.Context().Err() == nil:
	case wasCut(r):
		x.DeniedBy = shutdown // in the middle of its answer
	default:
		x.Status = httperr.StatusClientClosedRequest
	}
	x.Bytes = x.response.bytes
	x.place.Leave()
	x.socket.leave()
	x.response.socket.Done()
	x.flight.Done()
	x.endTrace(r)
	s.gw.telemetry.Request(r, &x.Request)
	s.gw.noteCaller(x, r)
	s.gw.flights.Add(-1)
	if panicked != nil {
		panic(panicked)
	}
}
