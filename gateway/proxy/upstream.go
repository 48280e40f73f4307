package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// The defaults of Options.
const (
	DefaultConnectTimeout        = time.Second
	DefaultResponseHeaderTimeout = 10 * time.Second
	DefaultIdleTimeout           = 90 * time.Second
	DefaultSlowStart             = 10 * time.Second
)

// Target is one server of an Upstream.
type Target struct {
	// URL is http, https (HTTP/2 where the server offers it) or h2c (HTTP/2 in the
	// clear), with an optional path that is put in front of every request's path; or
	// unix:///path, a socket, which is asked for Host localhost. No user, query or
	// fragment. It is not modified and must not be.
	URL *url.URL
	// Weight is its share of the requests, beside the weights of the others, up to
	// MaxWeight. Zero means 1.
	Weight int
}

// Options describe an Upstream.
type Options struct {
	// Name is what clients and logs may know the upstream by. Required.
	Name string
	// Targets are its servers. At least one.
	Targets []Target
	// TLS is for https targets: whom to trust, which certificate to show, which
	// name the server's must have. nil: the system's certificates and the target's
	// host. It is not modified and must not be.
	TLS *tls.Config
	// Balance is LeastRequests (the default, also when empty), RoundRobin or Hash.
	Balance string
	// ConnectTimeout bounds name lookup and TCP connection together, and then
	// once more the TLS handshake. Zero means DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// ResponseHeaderTimeout bounds the wait for the head of the answer once
	// the request has been sent, and any single standstill of the upstream
	// while it is being sent; time spent waiting for the client's own body
	// does not count. Zero means DefaultResponseHeaderTimeout.
	ResponseHeaderTimeout time.Duration
	// IdleTimeout is how long an unused connection is kept. It should be
	// shorter than the upstream's own keep-alive time. Zero means
	// DefaultIdleTimeout.
	IdleTimeout time.Duration
	// ClientTimeout bounds the wait for a client of HTTP/2 to take more of an answer. One
	// of HTTP/1 is bounded by its connection. Zero means none.
	ClientTimeout time.Duration
	// MaxInFlight is how many requests may be in flight at the same time, WebSockets
	// and streams among them. 0: any number.
	MaxInFlight int
	// Circuit, if not nil, leaves the upstream alone while it fails.
	Circuit *Circuit
	// Retries, if not nil, attempt again what failed, where that does no harm.
	Retries *Retries
	// Health, if not nil, says how targets are asked whether they are well.
	Health *Health
	// SlowStart is how long a target that comes back, or that Previous did not have, takes
	// from a tenth of its share to the whole. Zero means DefaultSlowStart.
	SlowStart time.Duration
	// Previous is the Upstream whose place this one takes, if it takes one's: what is
	// known of targets with the same URL is known to this one as well. It may be in use.
	Previous *Upstream
	// Hooks report what happened.
	Hooks Hooks

	// dial connects in place of a net.Dialer; nil but in tests.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// resolve says which addresses a name has, in place of net.DefaultResolver; nil but in tests.
	resolve func(ctx context.Context, host string) ([]string, error)
}

// Hooks report what happened; nil functions are skipped. They are called on
// the request's goroutine, several at once, and must not block.
type Hooks struct {
	// Done is called once for each attempt at a target: upstream is
	// Options.Name, target the host of the configured URL, status the
	// target's answer or 0, d the time from choosing the target to the end of
	// the answer. err is nil for a complete answer; if errors.Is(err,
	// ErrClient), the upstream was not at fault. stream says that d is how long a
	// stream of events or an upgraded connection lasted, and nothing about the
	// upstream's speed.
	Done func(upstream, target string, status int, d time.Duration, stream bool, err error)
	// NoRoom is called for each request that is refused by [Upstream.Enter], with
	// the reason: no_room or circuit_open.
	NoRoom func(upstream, reason string)
	// Target is called when a target is left out because it cannot be connected to, or
	// fails its health checks ([ErrUnhealthy]), and why, and when it comes back. One that
	// is alone gets its requests all the same, and it is told of its health only.
	Target func(upstream, target string, up bool, err error)
	// Moved is called when the name of a target has come to mean other addresses.
	Moved func(upstream, target string)
	// Circuit is called when the circuit of an upstream opens, and when it is closed
	// again. No request can enter meanwhile.
	Circuit func(upstream string, open bool)
	// Retry is called for each further attempt that [Retries] make, with RetryDone, and
	// for each that they would have made, but for the budget, with RetryBudget.
	Retry func(upstream, outcome string)
	// WebSocketEnded is called when the gateway ends a WebSocket, with the reason:
	// idle, lifetime, credential or shutdown.
	WebSocketEnded func(upstream, reason string)
	// NotRead is called for each answer that is broken off because of
	// Options.ClientTimeout.
	NotRead func()
}

// ErrClient marks errors that are the client's doing: it left, or its body
// broke off, was malformed or too large. Errors in scope.Request.UpstreamErr
// and Hooks.Done wrap it.
var ErrClient = errors.New("the client's side failed")

// Upstream is a set of equal servers, each with a pool of connections. It is safe
// for concurrent use.
type Upstream struct {
	name      string
	targets   []*target
	balancer  *balancer
	ward      *ward
	stall     time.Duration
	unread    time.Duration
	room      *room
	retries   *retries
	hooks     Hooks
	resolve   func(ctx context.Context, host string) ([]string, error) // nil: as the system does
	exchanges sync.Pool                                                // of *exchange

	start   sync.Once
	running sync.WaitGroup // what Start has started
	stop    context.CancelFunc
	stopped context.Context // ends with Close
}

// New returns an Upstream. It opens no connection and starts no goroutine, which
// [Upstream.Start] does; an error says which option is wrong.
func New(o Options) (*Upstream, error) {
	if o.Name == "" {
		return nil, errors.New("upstream: want a name")
	}
	u := &Upstream{name: o.Name, hooks: o.Hooks, resolve: o.resolve}
	if len(o.Targets) == 0 {
		return nil, fmt.Errorf("upstream %q: want at least one target", o.Name)
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		unset time.Duration
	}{
		{"connect timeout", &o.ConnectTimeout, DefaultConnectTimeout},
		{"response header timeout", &o.ResponseHeaderTimeout, DefaultResponseHeaderTimeout},
		{"idle timeout", &o.IdleTimeout, DefaultIdleTimeout},
		{"slow start", &o.SlowStart, DefaultSlowStart},
	} {
		if *d.value < 0 {
			return nil, fmt.Errorf("upstream %q: %s: want a positive duration, got %v", o.Name, d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.unset
		}
	}
	switch {
	case o.MaxInFlight < 0:
		return nil, fmt.Errorf("upstream %q: max in flight %d: want 0 or more", o.Name, o.MaxInFlight)
	case o.Circuit != nil && (o.Circuit.Errors <= 0 || o.Circuit.Errors > 1 || o.Circuit.Window < periods || o.Circuit.Open <= 0):
		return nil, fmt.Errorf("upstream %q: circuit %+v: want a share of errors above 0 and at most 1, and times", o.Name, *o.Circuit)
	}
	if o.Retries != nil {
		if err := o.Retries.check(); err != nil {
			return nil, fmt.Errorf("upstream %q: %w", o.Name, err)
		}
	}
	if o.Health != nil {
		var err error
		if o.Health, err = o.Health.filled(); err != nil {
			return nil, fmt.Errorf("upstream %q: %w", o.Name, err)
		}
	}
	u.room, u.retries = newRoom(&o), newRetries(o.Retries)
	u.stall, u.unread = o.ResponseHeaderTimeout, o.ClientTimeout
	u.ward = &ward{began: time.Now(), patience: o.ConnectTimeout + time.Second, slow: o.SlowStart, health: o.Health, told: u.targetChanged}
	u.stopped, u.stop = context.WithCancel(context.Background())
	for i, t := range o.Targets {
		made, err := newTarget(t, &o)
		if err != nil {
			return nil, fmt.Errorf("upstream %q: target %d: %w", o.Name, i+1, err)
		}
		u.targets = append(u.targets, made)
	}
	if len(u.targets) > 1 { // one that is alone cannot be left out
		for _, t := range u.targets {
			t.dialer.watch = func(ctx context.Context, err error) { u.ward.connected(ctx, t, err) }
		}
	}
	if p := o.Previous; p != nil {
		u.ward.succeed(p.ward, p.targets, u.targets)
		o.Previous = nil // the targets hold o, and would hold all that ever were
	}
	var err error
	if u.balancer, err = newBalancer(o.Balance, u.targets, u.ward); err != nil {
		return nil, fmt.Errorf("upstream %q: %w", o.Name, err)
	}
	u.exchanges.New = func() any { return newExchange(u) }
	return u, nil
}

// targetChanged tells of a target that is left out, or comes back.
func (u *Upstream) targetChanged(t *target, up bool, err error) {
	if u.hooks.Target != nil && !u.room.closed.Load() {
		u.hooks.Target(u.name, t.name, up, err)
	}
}

// LeftOut is a target that gets no requests while another may.
type LeftOut struct {
	Target string
	Since  time.Time
	// Unhealthy: it fails its health checks, rather than that it cannot be connected to.
	Unhealthy bool
}

// LeftOut returns the targets that are left out, in the order of Options.Targets.
func (u *Upstream) LeftOut() (out []LeftOut) {
	for _, t := range u.targets {
		if p := t.trouble.Load(); p.leftOut() {
			out = append(out, LeftOut{Target: t.name, Since: u.ward.began.Add(p.out), Unhealthy: p.sick})
		}
	}
	return out
}

// InFlight is how many requests are at the targets, WebSockets among them.
func (u *Upstream) InFlight() (n int64) {
	for _, t := range u.targets {
		n += t.inFlight.Load()
	}
	return n
}

// CircuitOpen reports whether the upstream is left alone because it fails, or is only
// tried.
func (u *Upstream) CircuitOpen() bool {
	return u.room.circuit != nil && u.room.circuit.State() != gobreaker.StateClosed
}

// Start begins to check the health of targets, if that is wanted, and to look now and
// then where their names point, if they have any. It may be called again, but not after
// [Upstream.Close].
func (u *Upstream) Start() {
	u.start.Do(func() {
		for _, t := range u.targets {
			if t.checker != nil {
				u.running.Go(func() { u.watchOver(u.stopped, t) })
			}
			if t.movable != "" {
				u.running.Go(func() { u.follow(u.stopped, t) })
			}
		}
	})
}

// Close ends what Start has started, and closes the idle connections; those in use
// close when their requests end (of HTTP/2, when no other is on them). Of the circuit and the targets nothing is told any
// more. Requests that still come are carried, over new connections.
func (u *Upstream) Close() {
	u.room.closed.Store(true)
	u.stop()
	u.running.Wait()
	for _, t := range u.targets {
		t.transport.Load().CloseIdleConnections()
	}
}
