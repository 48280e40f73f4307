package telemetry

import (
	"context"
	"crypto/tls"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Flight is one request being served, or one WebSocket that is open.
type Flight struct{ gauge prometheus.Gauge }

// InFlight counts a request of route in; Done of the result counts it out. It
// stays right over a reload that removes the route.
func (t *Telemetry) InFlight(route string) Flight {
	g := t.route(route).inFlight
	g.Inc()
	return Flight{gauge: g}
}

// Done counts the request out. It is to be called exactly once, in a defer, so
// that a panic does not leave it flying for ever. The zero Flight never flew.
func (f Flight) Done() {
	if f.gauge != nil {
		f.gauge.Dec()
	}
}

// WebSocket counts a WebSocket of route in, as InFlight does a request.
func (t *Telemetry) WebSocket(route string) Flight {
	g := t.route(route).sockets
	g.Inc()
	return Flight{gauge: g}
}

// WebSocketRefused counts a handshake of a caller that has as many WebSockets open
// as it may.
func (t *Telemetry) WebSocketRefused() { t.noSocket.Inc() }

// ConnectionRefused counts a connection that was closed because its address has as
// many as it may.
func (t *Telemetry) ConnectionRefused() { t.noPlace.Inc() }

// NotRead counts an answer that was broken off because its client did not read it.
func (t *Telemetry) NotRead() { t.notRead.Inc() }

// ProxyHeaderRefused counts a connection of a trusted proxy that was closed for want of
// a good header of the PROXY protocol: missing, bad or slow. Any other reason is not
// counted.
func (t *Telemetry) ProxyHeaderRefused(reason string) {
	if c := t.proxyHeaders[reason]; c != nil {
		c.Inc()
	}
}

// TraceSpans counts spans of traces by what became of them: sent, dropped or failed.
// Any other outcome is not counted.
func (t *Telemetry) TraceSpans(outcome string, n int) {
	if c := t.traceSpans[outcome]; c != nil {
		c.Add(float64(n))
	}
}

// WebSocketEnded counts a WebSocket that the gateway ended: idle, lifetime,
// credential or shutdown. Any other reason is not counted.
func (t *Telemetry) WebSocketEnded(reason string) {
	if c := t.socketsEnded[reason]; c != nil {
		c.Inc()
	}
}

// Decided counts the verdict of one limit in its role: allowed or not, what
// remains, in units, and the capacity that it remains of, in units. plan is
// empty where the limit belongs to none. A capacity of 0 or less observes no
// ratio, nor does a candidate: the ratio is that of the numbers in force.
func (t *Telemetry) Decided(route, plan, limit, source string, role Role, allowed bool, remaining, capacity int64) {
	if route == "" {
		route = Unmatched
	}
	d := t.current.Load().decisions[Limit{Route: route, Plan: plan, Limit: limit}]
	if d == nil {
		d = t.otherDecisions
	}
	t.countDecision(d, outcomeIndex(role, allowed), sourceIndex(source))
	if d.ratio != nil && capacity > 0 && role != Candidate {
		d.ratio.Observe(float64(remaining) / float64(capacity))
	}
}

// Auth counts one attempt to authenticate. method is jwt, cookie, api_key, or
// empty where no credential was looked at; outcome is one of the Auth constants
// that is not AuthRefused.
func (t *Telemetry) Auth(method, outcome string) {
	if method == "" {
		method = authNone
	}
	c := t.auth[authLabels{method, outcome}]
	if c == nil {
		c = t.auth[authLabels{other, other}]
	}
	c.Inc()
}

// AuthRefused counts one credential that was refused, and the reason, one of
// Options.AuthReasons.
func (t *Telemetry) AuthRefused(method, reason string) {
	t.Auth(method, AuthRefused)
	c := t.refused[authLabels{method, reason}]
	if c == nil {
		c = t.refused[authLabels{other, other}]
	}
	c.Inc()
}

// Forbidden counts a request that its route refused with 403, and why. One that is
// not in [Labels.Forbidden] counts under "other".
func (t *Telemetry) Forbidden(route, reason string) {
	c := t.current.Load().forbidden[Forbidden{Route: route, Reason: reason}]
	if c == nil {
		c = t.forbidden.WithLabelValues(other, other)
	}
	c.Inc()
}

// UnknownPlan counts a caller whose credential names a plan that does not
// exist. Which plan goes to the log: it is not ours, so it is no label.
func (t *Telemetry) UnknownPlan() { t.unknown.Inc() }

// UntrustedForwarding counts a request whose peer says who its client is and is
// not believed. Many of them are a balancer that nobody has told the gateway of.
func (t *Telemetry) UntrustedForwarding() { t.untrusted.Inc() }

// StoreTook observes how long the limit store took to decide one request.
func (t *Telemetry) StoreTook(d time.Duration) { t.storeTook.Observe(d.Seconds()) }

// StoreFailed counts a call of the shared store that failed: a decision, a charge
// to be taken back, or what instances tell each other.
func (t *Telemetry) StoreFailed(kind string) {
	c := t.storeErrors[kind]
	if c == nil {
		c = t.storeErrors[other]
	}
	c.Inc()
}

// FallbackActive says whether the shared store is taken to be away. It holds
// for every mode that some route uses.
func (t *Telemetry) FallbackActive(active bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.away = active
	for mode := range t.modes {
		t.fallback.WithLabelValues(clean(mode)).Set(gaugeOf(active))
	}
}

// Overflow counts what was counted in a budget shared with others, because a table
// was full.
func (t *Telemetry) Overflow() { t.overflow.Inc() }

// LeaseBlocks says that so many blocks more, or less, are held.
func (t *Telemetry) LeaseBlocks(change int) { t.leased.Add(float64(change)) }

// LeaseStranded counts units that were taken in advance and are not known to be
// spent or back.
func (t *Telemetry) LeaseStranded(units int64) { t.stranded.Add(float64(units)) }

// LeaseOverflow counts a charge of a leased limit that was asked for by itself,
// because too many buckets have blocks.
func (t *Telemetry) LeaseOverflow() { t.leasesFull.Inc() }

// FallbackUnits counts units of limits that were admitted without the shared
// store, by what became of them: one of the outcomes that New was told of.
func (t *Telemetry) FallbackUnits(outcome string, units int64) {
	if c := t.fallbackUnits[outcome]; c != nil {
		c.Add(float64(units))
	}
}

// Instances says how many gateway instances are alive.
func (t *Telemetry) Instances(n int) { t.instances.Set(float64(n)) }

// UpstreamDone counts one attempt at a server of an upstream: the status that
// it answered, or 0 and the error that came instead. An error beside a status
// means that the answer broke off; the server was reached all the same. An
// error that wraps context.Canceled, the client's leaving, says nothing about
// the server.
func (t *Telemetry) UpstreamDone(upstream, address string, status int, err error) {
	tg := t.current.Load().targets[Target{Upstream: upstream, Target: address}]
	if tg == nil {
		tg = t.otherTarget
	}
	code, up := codes.of(status), 1.0
	switch {
	case status != 0:
	case errors.Is(err, context.Canceled):
		t.countAttempt(tg, codeCanceled)
		return
	default:
		code = codeError
		up = gaugeOf(!noConnection(err))
	}
	t.countAttempt(tg, code)
	if tg.up == nil {
		return
	}
	tg.up.Set(up)
	if tg.out.Load() {
		tg.up.Set(0) // after the other: what is said of it meanwhile comes last
	}
}

// UpstreamTarget says whether a server of an upstream is left out, whatever attempts
// at it say. One that is not in [Labels.Targets] is not counted.
func (t *Telemetry) UpstreamTarget(upstream, address string, out bool) {
	tg := t.current.Load().targets[Target{Upstream: upstream, Target: address}]
	if tg == nil {
		return
	}
	tg.out.Store(out)
	tg.up.Set(gaugeOf(!out))
}

// UpstreamRefused counts a request that was not sent to an upstream: it has no_room,
// or circuit_open. One that is not in [Labels.Upstreams] is not counted.
func (t *Telemetry) UpstreamRefused(upstream, reason string) {
	if t.current.Load().upstreams[upstream] == nil {
		return
	}
	t.noRoom.WithLabelValues(clean(upstream), reason).Inc()
}

// UpstreamRetry counts a further attempt at a request: it is done, or there is no
// budget for it. See UpstreamRefused.
func (t *Telemetry) UpstreamRetry(upstream, outcome string) {
	if t.current.Load().upstreams[upstream] == nil {
		return
	}
	t.retries.WithLabelValues(clean(upstream), outcome).Inc()
}

// UpstreamCircuit says whether an upstream is left alone; see UpstreamRefused.
func (t *Telemetry) UpstreamCircuit(upstream string, open bool) {
	if t.current.Load().upstreams[upstream] == nil {
		return
	}
	t.circuit.WithLabelValues(clean(upstream)).Set(gaugeOf(open))
}

// noConnection reports whether err means that no usable connection came about,
// as opposed to one that was lost or an answer that was late. An error says so itself
// by a method NotConnected; beside that, one of TLS does that the server told of late.
func noConnection(err error) bool {
	if e, ok := errors.AsType[interface {
		error
		NotConnected() bool
	}](err); ok && e.NotConnected() {
		return true
	}
	_, ok := errors.AsType[tls.AlertError](err)
	return ok
}

// Loaded tells of the first configuration, which is not counted as a reload.
func (t *Telemetry) Loaded(hash string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loadedLocked(hash, at)
}

// Reloaded tells of a reload that was applied (ok), or rejected, with the old
// configuration still in force; hash and at are not used then.
func (t *Telemetry) Reloaded(ok bool, hash string, at time.Time) {
	if !ok {
		t.rejected.Inc()
		t.lastOK.Set(0)
		return
	}
	t.applied.Inc()
	t.Loaded(hash, at)
}

func (t *Telemetry) loadedLocked(hash string, at time.Time) {
	t.lastOK.Set(1)
	t.lastOKTime.Set(float64(at.UnixMicro()) / 1e6)
	hash = clean(hash)
	t.configInfo.WithLabelValues(hash).Set(1)
	if t.configHash != "" && t.configHash != hash {
		t.configInfo.DeleteLabelValues(t.configHash)
	}
	t.configHash = hash
}

// Store says whether the configuration in force has limits counted in a store that
// instances share; whether that one answers is another matter.
func (t *Telemetry) Store(shared bool) {
	v := 0.0
	if shared {
		v = 1
	}
	t.shared.Set(v)
}

// Certificates says which certificates the gateway presents, by subject, and
// when each expires. A subject that is no longer among them loses its series,
// so that nobody is woken for a certificate that is not in use.
func (t *Telemetry) Certificates(notAfter map[string]time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := make(map[string]bool, len(notAfter))
	for subject, at := range notAfter {
		subject = clean(subject)
		next[subject] = true
		t.certExpiry.WithLabelValues(subject).Set(float64(at.Unix()))
	}
	for subject := range t.subjects {
		if !next[subject] {
			t.certExpiry.DeleteLabelValues(subject)
		}
	}
	t.subjects = next
}
