// Package redisstore keeps the state of every bucket in Redis, shared by all
// instances that use the same server and key prefix.
//
// A decision is one script call, however many limits it has: the script reads
// the clock of the server, decides all charges, and writes all or none, each
// value together with its expiry. Time, order and atomicity are the server's; a
// caller's clock decides nothing.
//
// It is not a cache, it does not retry, and it does not decide by itself when
// Redis does not answer: it returns an error within [Options.Timeout], and
// gateway/fallback decides then. It is no ledger either: what Redis loses in a
// restart or a failover is forgotten.
//
// # When things fail
//
// An error means that nothing is known: the charge may have happened and its
// reply been lost. So nothing is asked twice, with one exception: a server that
// answers NOSCRIPT has run nothing, and is sent the script itself. [Kind] says
// in one word what went wrong. A value that this package never wrote under its
// keys is an error of kind "corrupt" and stays as it is; a well-formed one without
// an expiry gets one with its next charge.
//
// # Keys
//
//	rl:v1:{user:priya123}:plan/per-minute:tb/60    "spent:den:at"
//	rl:v1:{user:priya123}:plan/per-day:fw/86400    "used:end"
//
// The head of each lua/*.lua file states what the values mean.
//
// # Use
//
//	client, err := redisstore.NewClient(redisstore.ClientOptions{Address: "127.0.0.1:6379"})
//	store, err := redisstore.New(client, redisstore.Options{})
//	decisions, err := store.Take(ctx, charges, nil)
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
)

// DefaultTimeout is how long a decision may take if nothing else is said.
const DefaultTimeout = 50 * time.Millisecond

// DefaultKeyPrefix begins every key if nothing else is said.
const DefaultKeyPrefix = "rl"

// Options tune a [Store]. The zero value is good.
type Options struct {
	// KeyPrefix begins every key: letters, digits and _ - . only. Stores with
	// the same prefix on the same server share their counts. Default "rl".
	KeyPrefix string
	// Timeout bounds one decision as a whole: waiting for a connection, making
	// one, asking and being answered. 1ms or more; default 50ms.
	Timeout time.Duration
}

// A Store is a [ratelimit.Store] in Redis. It starts no goroutine and is safe
// for concurrent use. Make it with [New].
type Store struct {
	client  redis.UniversalClient
	prefix  string // "rl:v1:"
	timeout time.Duration
	script  script
	probe   []ratelimit.Charge
	// clock, if set, gives the µs that a test's prelude takes as now.
	clock func() int64
}

var _ ratelimit.Store = (*Store)(nil)

// New returns a store that asks client. It sends nothing: a server that is away
// when the program starts is no error. Use [NewClient] for a client whose
// settings keep the promise of Options.Timeout; with another, the promise is as
// good as that client keeps deadlines. Closing the store closes the client.
func New(client redis.UniversalClient, o Options) (*Store, error) {
	return newStore(client, o, productionPrelude, nil)
}

func newStore(client redis.UniversalClient, o Options, prelude string, clock func() int64) (*Store, error) {
	if client == nil {
		return nil, errors.New("redis store: want a client, got nil")
	}
	if o.KeyPrefix == "" {
		o.KeyPrefix = DefaultKeyPrefix
	}
	// A brace would begin a hash tag, and so tear the keys of one caller apart.
	if i := strings.IndexFunc(o.KeyPrefix, notPrefix); i >= 0 {
		return nil, fmt.Errorf("redis store: key prefix: want letters, digits, _, - and . only, got %q", o.KeyPrefix)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Timeout < time.Millisecond {
		return nil, fmt.Errorf("redis store: timeout: want 1ms or more, got %s", o.Timeout)
	}
	// The probe is charged one unit of a million that come back every second, so
	// that it is always admitted, and always writes.
	probe, err := ratelimit.NewPolicy(ratelimit.Policy{
		Name: "probe", Scope: "probe", Algorithm: ratelimit.TokenBucket,
		Quota: 1_000_000, Window: time.Second,
	})
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	return &Store{
		client:  client,
		prefix:  o.KeyPrefix + ":v1:",
		timeout: o.Timeout,
		script:  newScript(prelude),
		probe:   []ratelimit.Charge{{Policy: probe, Partition: "{probe}", Caller: "{probe}", Cost: 1}},
		clock:   clock,
	}, nil
}

func notPrefix(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' && r != '.'
}

// Take decides charges in one script call; see [ratelimit.Store].
//
// It ends within Options.Timeout. It does not end when ctx is cancelled: a
// client that hangs up is no failure of the store, and a call that is broken
// off half way would cost a connection and leave a charge nobody knows of. The
// values of ctx are passed on.
func (s *Store) Take(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	return s.take(ctx, charges, dst)
}

func (s *Store) take(ctx context.Context, charges []ratelimit.Charge, dst []ratelimit.Decision) ([]ratelimit.Decision, error) {
	dst = dst[:0]
	if len(charges) == 0 {
		return dst, nil
	}
	c := calls.Get().(*call)
	if err := c.build(s, charges); err != nil {
		return dst, fmt.Errorf("take from redis: %w", err)
	}
	reply, err := s.run(ctx, c)
	if err != nil {
		// c is left to the garbage collector: what went wrong may still hold it.
		return dst, s.explain(err, charges)
	}
	dst, err = appendDecisions(dst, charges, reply)
	if err != nil {
		return dst[:0], fmt.Errorf("take from redis: %w", err)
	}
	c.free()
	return dst, nil
}

// Probe does what a decision does, the same script and a write with an expiry,
// on a key of its own, so that what it says of the store holds for decisions.
// It ends within Options.Timeout, or when ctx does.
func (s *Store) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var dst [1]ratelimit.Decision
	_, err := s.take(ctx, s.probe, dst[:])
	return err
}

// Close closes the client. Decisions under way fail with kind "closed" or
// finish.
func (s *Store) Close() error {
	if err := s.client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("close the redis client: %w", err)
	}
	return nil
}
