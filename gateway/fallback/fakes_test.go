package fallback_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bouncer/gateway/fallback"
	"bouncer/gateway/ratelimit"
)

var errDown = errors.New("connection refused")

// takeFunc is how the fake primary behaves at the moment.
type takeFunc func(context.Context, []ratelimit.Charge, []ratelimit.Decision) ([]ratelimit.Decision, error)

// remote stands in for the shared store. Its behaviour can be changed at any
// time; its probe does what a decision does.
type remote struct {
	behave atomic.Pointer[takeFunc]
	calls  atomic.Int64 // decisions asked for
	probes atomic.Int64
}

func newRemote(f takeFunc) *remote {
	r := new(remote)
	r.set(f)
	return r
}

func (r *remote) set(f takeFunc) { r.behave.Store(&f) }

func (r *remote) Take(ctx context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	r.calls.Add(1)
	return (*r.behave.Load())(ctx, cs, dst)
}

func (r *remote) Probe(ctx context.Context) error {
	r.probes.Add(1)
	_, err := (*r.behave.Load())(ctx, nil, nil)
	return err
}

func up(_ context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	dst = dst[:0]
	for _, c := range cs {
		dst = append(dst, ratelimit.Decision{Policy: c.Policy, Allowed: true, Remaining: 77, Source: ratelimit.SourceRedis})
	}
	return dst, nil
}

func down(_ context.Context, _ []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	return dst[:0], errDown
}

// frozen answers nothing and gives up after a decision's time, as a store
// whose sockets are open but whose process is stopped.
func frozen(ctx context.Context, _ []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	<-ctx.Done()
	return dst[:0], ctx.Err()
}

// stand is a plain local store: the real algorithms over a map, with one lock.
type stand struct {
	mu    sync.Mutex
	state map[string]ratelimit.State
	start time.Time
	asked [][]ratelimit.Charge
	err   error
}

func newStand() *stand { return &stand{state: map[string]ratelimit.State{}, start: time.Now()} }

func (s *stand) Take(_ context.Context, cs []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, append([]ratelimit.Charge(nil), cs...))
	if s.err != nil {
		return dst[:0], s.err
	}
	now := time.Since(s.start).Microseconds() + 1
	before, after := make([]ratelimit.State, len(cs)), make([]ratelimit.State, len(cs))
	allowed, all := make([]bool, len(cs)), true
	for i, c := range cs {
		before[i] = c.Policy.Advance(s.state[c.Partition+c.Policy.Key()], now)
		after[i], allowed[i] = c.Policy.Admit(before[i], now, c.Cost)
		all = all && allowed[i]
	}
	dst = dst[:0]
	for i, c := range cs {
		d := ratelimit.Decision{Policy: c.Policy, Allowed: allowed[i], Source: ratelimit.SourceMemory}
		st := before[i]
		if all {
			st = after[i]
			s.state[c.Partition+c.Policy.Key()] = st
		}
		d.Remaining, d.Reset = c.Policy.Describe(st, now)
		if !allowed[i] {
			d.RetryAfter = c.Policy.RetryAfter(before[i], now, c.Cost)
		}
		dst = append(dst, d)
	}
	return dst, nil
}

// log records what the hooks report.
type log struct {
	mu       sync.Mutex
	failures map[string]int
	changes  []change
	degraded []error
}

type change struct {
	open   bool
	err    error
	lasted time.Duration
}

func (l *log) hooks() fallback.Hooks {
	return fallback.Hooks{
		StoreFailed: func(kind string, _ error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.failures == nil {
				l.failures = map[string]int{}
			}
			l.failures[kind]++
		},
		StateChanged: func(c fallback.Change) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changes = append(l.changes, change{c.Open, c.Err, c.Lasted})
		},
		Degraded: func(_ context.Context, _ fallback.Mode, err error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.degraded = append(l.degraded, err)
		},
	}
}

func (l *log) failed(kind string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures[kind]
}

func (l *log) seen() []change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]change(nil), l.changes...)
}

func policy(t testing.TB, spec ratelimit.Policy) *ratelimit.Policy {
	t.Helper()
	p, err := ratelimit.NewPolicy(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// perMinute is 100 a minute with bursts of 20.
func perMinute(t testing.TB) *ratelimit.Policy {
	return policy(t, ratelimit.Policy{
		Name: "per-minute", Scope: "plan/per-minute", Algorithm: ratelimit.TokenBucket,
		Quota: 100, Window: time.Minute, Burst: 20,
	})
}

const priya = "{user:priya123}"

func one(t testing.TB) []ratelimit.Charge {
	return []ratelimit.Charge{{Policy: perMinute(t), Partition: priya, Caller: priya, Cost: 1}}
}

// start makes a Fallback and starts it; it is closed when the test ends.
func start(t *testing.T, primary *remote, local ratelimit.Store, o fallback.Options) *fallback.Fallback {
	t.Helper()
	if o.Probe == nil {
		o.Probe = primary.Probe
	}
	f, err := fallback.New(primary, local, o)
	if err != nil {
		t.Fatal(err)
	}
	f.Start()
	t.Cleanup(f.Close)
	return f
}

// take asks once and wants to be admitted.
func take(t *testing.T, s ratelimit.Store, cs []ratelimit.Charge) []ratelimit.Decision {
	t.Helper()
	ds, err := s.Take(t.Context(), cs, nil)
	if err != nil {
		t.Fatalf("Take: %v", err)
	}
	if !ratelimit.Admitted(ds) {
		t.Fatalf("Take: denied: %+v", ds)
	}
	return ds
}
