package fallback

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bouncer/gateway/ratelimit"
)

// Defaults of [Options].
const (
	DefaultProbeInterval       = 500 * time.Millisecond
	DefaultProbeTimeout        = 250 * time.Millisecond
	DefaultConsecutiveFailures = 5
	DefaultFailureRatio        = 0.5
	DefaultMinRequests         = 20
	DefaultWindow              = 10 * time.Second
)

// Options tunes a [Fallback]. Only Probe is required; the zero value of
// anything else is its default.
type Options struct {
	// Probe asks the primary whether it can decide again. It should do what a
	// decision does (a write, not only a ping: a store that refuses writes
	// answers pings). It must return soon after its context ends; one that does
	// not is left behind and the next one is made all the same, until 64 hang.
	// Otherwise there is one at a time.
	Probe func(context.Context) error
	// ProbeInterval is the time between the end of one probe and the next, each
	// time varied by ±20 % so that instances do not march in step. 10 ms to
	// 1 minute, default 500 ms.
	ProbeInterval time.Duration
	// ProbeTimeout bounds one probe. 1 ms to 1 minute, default 250 ms.
	ProbeTimeout time.Duration
	// Nodes are the parts of the primary, where it has some that fail by
	// themselves. nil: it is one.
	Nodes Nodes

	// ConsecutiveFailures opens the breaker, however far apart they are;
	// default 5.
	ConsecutiveFailures int
	// FailureRatio of at least MinRequests within Window opens it too: > 0 and
	// <= 1, default 0.5, of 20, in 10 s. Window is counted in tenths; at least
	// 10 ms.
	FailureRatio float64
	MinRequests  int
	Window       time.Duration

	// Instances is how many instances share each limit while the primary is
	// away. It is called for each request that is decided by shares, so it is
	// to be cheap. Below 1 counts as 1; nil means 1.
	Instances func() int

	// Held decides charges from what was taken of the primary in advance, or
	// reports false and charges nothing. It is asked first while the primary is
	// away. nil: nothing is taken in advance.
	Held func(charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, bool)

	// Kind names an error for metrics, in few and fixed words. Default:
	// "timeout" for what wraps [context.DeadlineExceeded], else "other".
	Kind func(error) string

	// KeyFault reports that an error is the fault of what the primary holds
	// under the keys of one request, and that the primary works. The mode decides
	// that request and the error is reported, but it does not count towards the
	// breaker: whoever can spoil one key must not be able to take the store away
	// from everybody else. nil: no error is of this sort.
	KeyFault func(error) bool

	// Settle charges the primary with the first n of debts, n >= 1, that were
	// admitted while it was away; see the package comment. It sets their Charged,
	// bounds its own wait, and on an error that is not ambiguous has charged
	// none. nil: nothing is noted, and an outage is worth the local caps.
	Settle func(ctx context.Context, debts []ratelimit.Debt) (n int, err error)
	// Ambiguous reports that the primary may have charged a request, or been
	// settled, though it answered err. nil: that may be so after every error.
	Ambiguous func(error) bool

	// Hooks report what happens.
	Hooks Hooks
}

// Hooks are called when something happens; nil ones are skipped. They must not
// block, and must be safe for concurrent use.
type Hooks struct {
	// StoreFailed reports each failed attempt to use the primary, by a request
	// or by the prober, with [Options.Kind] of its error.
	StoreFailed func(kind string, err error)
	// StateChanged reports each opening and closing of a breaker, once each and
	// in order, from the prober's goroutine.
	StateChanged func(Change)
	// Degraded reports each request that is about to be decided without the
	// primary, from the request's own goroutine and with its context, and why.
	// A route that fails open returns no decisions that could carry the error;
	// this is where the request's log line gets it, in every mode alike.
	Degraded func(ctx context.Context, mode Mode, err error)
	// Accounted reports units of limits that were admitted without the primary,
	// when it is known what became of them.
	Accounted func(o Outcome, units int64)
	// Settled reports, once after each return of the primary and on Close, what
	// has been settled since the last report, if anything was.
	Settled func(Settlement)
}

// A Change is the opening or closing of a breaker.
type Change struct {
	// Node is whose breaker it is; "" if the primary is one, or nothing is known
	// of its nodes yet.
	Node string
	// By is who has the buckets of Node now: another one if that took over.
	By   string
	Open bool
	// ByAway is set where By is another one that is away itself: Node is away no
	// more, but its callers are no better off.
	ByAway bool
	// Err is the error that opened it, or on closing the last one before.
	Err error
	// Lasted is how long the state before had held.
	Lasted time.Duration
	// Away is how many nodes are away now, of Nodes that are known.
	Away, Nodes int
}

// A Fallback is two stores behind a breaker, or one breaker for each node of the
// primary. It is safe for concurrent use.
type Fallback struct {
	primary, local ratelimit.Store
	o              Options
	stores         map[Mode]*store
	scratch        sync.Pool // *scratch
	start          time.Time // what nextProbe counts from

	whole     *node                            // the primary as one
	nodes     atomic.Pointer[map[string]*node] // by name, whole among them; replaced with mu held
	nextProbe atomic.Int64                     // nanoseconds after start

	admitted, denied atomic.Uint64

	// mu protects following fields. It is taken last.
	mu        sync.Mutex
	away      int       // nodes whose breaker is open
	since     time.Time // when away became more than 0, or 0 again
	lastErr   error
	lastErrAt time.Time

	prober  prober
	debts   debts
	settler settler
}

// New checks o and returns a closed breaker around the two stores. It starts
// nothing, asks neither store, and closes neither: they stay the caller's.
func New(primary, local ratelimit.Store, o Options) (*Fallback, error) {
	if primary == nil || local == nil {
		return nil, errors.New("fallback: want a primary and a local store, got nil")
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("fallback: %w", err)
	}
	f := &Fallback{primary: primary, local: local, o: o, start: time.Now()}
	f.since = f.start
	f.whole = f.makeNode("", f.start)
	f.nodes.Store(&map[string]*node{"": f.whole})
	f.scratch.New = func() any { return new(scratch) }
	f.stores = make(map[Mode]*store)
	for _, m := range []Mode{LocalCap, Deny, Allow} {
		f.stores[m] = &store{f: f, mode: m}
	}
	f.prober.init()
	f.settler.init()
	f.debts.seed = maphash.MakeSeed()
	return f, nil
}

// check validates o and fills in the defaults.
func (o *Options) check() error {
	if o.Probe == nil {
		return errors.New("no probe: without one the primary would never be used again after a failure")
	}
	setDefault(&o.ProbeInterval, DefaultProbeInterval)
	setDefault(&o.ProbeTimeout, DefaultProbeTimeout)
	setDefault(&o.ConsecutiveFailures, DefaultConsecutiveFailures)
	setDefault(&o.FailureRatio, DefaultFailureRatio)
	setDefault(&o.MinRequests, DefaultMinRequests)
	setDefault(&o.Window, DefaultWindow)
	switch {
	case o.ProbeInterval < 10*time.Millisecond || o.ProbeInterval > time.Minute:
		return fmt.Errorf("probe interval %v: want 10ms to 1m", o.ProbeInterval)
	case o.ProbeTimeout < time.Millisecond || o.ProbeTimeout > time.Minute:
		return fmt.Errorf("probe timeout %v: want 1ms to 1m", o.ProbeTimeout)
	case o.ConsecutiveFailures < 0:
		return fmt.Errorf("consecutive failures %d: want at least 1", o.ConsecutiveFailures)
	case !(o.FailureRatio > 0 && o.FailureRatio <= 1): // also refuses NaN
		return fmt.Errorf("failure ratio %v: want above 0, at most 1", o.FailureRatio)
	case o.MinRequests < 0:
		return fmt.Errorf("min requests %d: want at least 1", o.MinRequests)
	case o.Window < 10*time.Millisecond:
		return fmt.Errorf("window %v: want at least 10ms", o.Window)
	}
	if o.Kind == nil {
		o.Kind = defaultKind
	}
	return nil
}

func setDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

func defaultKind(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "timeout"
	}
	return "other"
}

// Store returns the store for routes of mode m. The stores of one Fallback
// share its breaker and its local store. An unknown mode, like the empty one,
// is [LocalCap], the default of a route.
func (f *Fallback) Store(m Mode) ratelimit.Store {
	if s, ok := f.stores[m]; ok {
		return s
	}
	return f.stores[LocalCap]
}

// State is what a dashboard or a readiness check wants to know.
type State struct {
	// Open reports that requests are decided without the primary, or without a
	// node of it.
	Open bool
	// Away are the names of the nodes that are away, in order; empty if the
	// primary is one.
	Away []string
	// Since is when that began, or when the store came back (at first, when the
	// Fallback was made).
	Since time.Time
	// LastErr is the primary's latest error and LastErrAt when it was seen, also
	// when the primary is back; nil and the zero time if there was none.
	LastErr   error
	LastErrAt time.Time
	// NextProbe is how long until the primary is asked again; 0 while it is in
	// use or being asked.
	NextProbe time.Duration
	// Admitted and Denied count the requests that were decided without the
	// primary, since the Fallback was made.
	Admitted, Denied uint64
	// Owed is how many buckets were spent of without the primary, and are yet to
	// be charged there.
	Owed int64
}

// State returns the present state.
func (f *Fallback) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := State{
		Open: f.away > 0, Since: f.since,
		LastErr: f.lastErr, LastErrAt: f.lastErrAt,
		Admitted: f.admitted.Load(), Denied: f.denied.Load(),
		Owed: f.debts.buckets.Load(),
	}
	if !s.Open {
		return s
	}
	s.NextProbe = max(0, f.untilProbe())
	for name, n := range *f.nodes.Load() {
		if n != f.whole && n.cond.Load().open {
			s.Away = append(s.Away, name)
		}
	}
	slices.Sort(s.Away)
	return s
}

// untilProbe is how long until the next probe begins; negative while one runs.
func (f *Fallback) untilProbe() time.Duration {
	return time.Duration(f.nextProbe.Load()) - time.Since(f.start)
}

// retryAfter is how long a refused caller is to wait who needs these nodes: until
// the primary is probed next.
func (f *Fallback) retryAfter(list []began) time.Duration {
	if slices.ContainsFunc(list, func(b began) bool { return b.node.cond.Load().open }) {
		if d := f.untilProbe(); d > 0 {
			return d
		}
	}
	// A probe is running, or this was a single failure and the next request
	// finds the primary in use.
	return f.o.ProbeInterval
}
