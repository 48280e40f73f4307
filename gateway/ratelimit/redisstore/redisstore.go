// Package redisstore keeps the state of every bucket in Redis, shared by all
// instances that use the same server and key prefix.
//
// A decision on one Redis is one script call, however many limits it has: the script reads
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
// reply been lost. So nothing is asked twice, with these exceptions, before all
// of which the server has run nothing or charged nothing: it answers NOSCRIPT
// and is sent the script itself; a node of a cluster says who has the slot; and
// the windows of a calendar that were sent lie elsewhere by the server's clock,
// and are laid anew by the time that it said, once. While a slot is moved, keys of
// one caller may be on two nodes, neither of which decides then (TRYAGAIN); they
// are asked again until they are together or the time is up.
//
// What was admitted elsewhere while the server was away is charged by
// [Store.Settle], once; [Ambiguous] says which errors leave open whether anything
// was charged.
//
// [Kind] says in one word what went wrong. A value that this package never wrote
// under its keys is an error of kind "corrupt" and stays as it is; a well-formed
// one without an expiry gets one when it is next set: of a bucket when it outlives
// the time it was given, of a window with its first charge.
//
// # Keys
//
//	rl:v1:{user:priya123}:plan/per-minute:tb/60      spent, den, num, at, lives
//	rl:v1:{user:priya123}:plan/per-minute:lb/60      the same
//	rl:v1:{user:priya123}:plan/per-day:fw/86400      used, end
//	rl:v1:{user:priya123}:plan/per-day:fc/day/UTC    the same
//	rl:v1:{user:priya123}:plan/per-minute:sc/60      used, previous, begins
//	rl:v1:{user:priya123}:plan/per-minute:sl/60      a list of one time per unit
//
// With a name of ten letters a key takes some 110 to 140 bytes of Redis in all,
// and that of a log 200 and 10 more for each unit; a quota of 100 units that are
// all spent takes 1,200. A bucket that a smaller plan was charged for while a larger
// one had spent more than that holds takes about 60 more, until both have drained.
//
// Those of a [Board], which counts nothing, stand with it.
//
// Numbers are doubles of 8 bytes. The head of each lua/*.lua file states what they
// mean and when the key ends.
//
// # Cluster
//
// With a [redis.ClusterClient], the limits of a request are asked by hash slot:
// one script call for each, sent at the same time. Those of one caller share a
// slot, so a request that is limited by its caller alone is one step as ever. A
// request with limits of several subjects (user, tenant, global) is admitted if
// all slots admit it. If one denies or fails, what the others charged is given
// back, in one further call each; the client waits for that no longer than
// Options.Timeout. What this costs, against one step:
//
//   - Between the charge and its refund others may be denied what is then given
//     back.
//   - A refund that fails is not repeated; its callers have so much less quota
//     until it drains. Options.OnRefundLost tells. Nor is anything given back
//     where nobody knows whether it was charged, which is a slot whose answer was
//     lost.
//   - What has drained or ended meanwhile is not given back, and drips of a leaky
//     bucket never are.
//   - A policy that counts rejected attempts, a shadow and a candidate follow the
//     verdict of the whole request, the latter two by a refund. Of those that
//     count rejected attempts, the RetryAfter of an allowed charge is a lower
//     bound where its cost is above 1, and a shadow that itself denies is only
//     filled up where its own slot denies the request.
//   - What is given back leaves its bucket refilled by the numbers of the plan that
//     was asked, as an admitted charge does.
//
// In every case it is the caller who has less. No limit ever admits more than it
// grants, whatever fails in between.
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
	"sync"
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
	// one, asking and being answered. 1ms or more; default 50ms. A decision takes
	// one round trip, and with a new connection three, or four with a database
	// other than 0. Those that have no time for these are lost, but each has a
	// connection made ready for later ones.
	Timeout time.Duration
	// OnRefundLost, if set, is told of each refund on a cluster that failed or
	// was not tried: the callers of that request have so much less quota. It may
	// be called from any goroutine.
	OnRefundLost func(error)
	// OnFreed, if set, is told of each bucket, as [ratelimit.BucketHash] names it,
	// that a refund gave something back to, or may have: its answer was lost. It
	// may be called from any goroutine.
	OnFreed func(bucket uint64)
}

// A Store is a [ratelimit.Store] in Redis. It is safe for concurrent use. After a
// call that was out of time it makes a connection ready in the background, four at
// the same time at most; Close waits for them. Make it with [New].
type Store struct {
	client  Client
	cluster *redis.ClusterClient // client, if it is one
	nodes   *Nodes               // of cluster, if it is one
	prefix  string               // "rl:v1:"
	timeout time.Duration
	scripts *scripts
	probes  *ratelimit.Policy // what a probe is charged by
	// refunds holds a token for each request whose charges are being given back.
	refunds chan struct{}
	// warming holds a token for each connection that is made ready.
	warming      chan struct{}
	closing      sync.Once
	cooling      sync.Once
	onRefundLost func(error)
	onFreed      func(uint64)
	// clock, if set, gives the µs that a test's prelude takes as now.
	clock func() int64
}

var _ ratelimit.Store = (*Store)(nil)

// New returns a store that asks client. It sends nothing: a server that is away
// when the program starts is no error. Use [NewClient] for a client whose
// settings keep the promise of Options.Timeout; with another, the promise is as
// good as that client keeps deadlines. Closing the store closes the client.
func New(client Client, o Options) (*Store, error) {
	return newStore(client, o, lua("prelude"), nil)
}

func newStore(client Client, o Options, prelude string, clock func() int64) (*Store, error) {
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
	cluster, _ := client.(*redis.ClusterClient)
	s := &Store{
		client:       client,
		cluster:      cluster,
		prefix:       o.KeyPrefix + ":v1:",
		timeout:      o.Timeout,
		scripts:      newScripts(prelude),
		probes:       probe,
		refunds:      make(chan struct{}, maxRefunds),
		warming:      make(chan struct{}, maxWarming),
		onRefundLost: o.OnRefundLost,
		onFreed:      o.OnFreed,
		clock:        clock,
	}
	if cluster != nil {
		s.nodes = nodesOf(s)
	}
	return s, nil
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
	dst, _, err := s.take(ctx, charges, nil, dst, nil)
	return dst, err
}

// take is Take, and [Store.Lend] where extra is not nil.
func (s *Store) take(ctx context.Context, charges []ratelimit.Charge, extra []int64, dst []ratelimit.Decision, blocks []ratelimit.Block) ([]ratelimit.Decision, []ratelimit.Block, error) {
	dst = dst[:0]
	if len(charges) == 0 {
		return dst, blocks, nil
	}
	if err := check(charges); err != nil {
		return dst, blocks, fmt.Errorf("take from redis: %w", err)
	}
	if s.cluster != nil && !s.oneSlot(charges) {
		return s.takeSlots(ctx, charges, extra, dst, blocks)
	}
	dst, receipts, err := s.ask(ctx, charges, extra, dst, extra != nil)
	if err == nil && extra != nil {
		blocks = appendBlocks(blocks, charges, receipts)
	}
	return dst, blocks, err
}

// ask decides charges in one script call. With receipts it also returns what a
// refund has to know of each, two numbers a charge; with extra, the units that
// are to be charged in advance, behind those what came of that, two numbers a
// charge.
func (s *Store) ask(ctx context.Context, charges []ratelimit.Charge, extra []int64, dst []ratelimit.Decision, receipts bool) ([]ratelimit.Decision, []int64, error) {
	reply, err := s.call(ctx, charges, extra, 0, receipts)
	if clock := clockError(err); clock != nil {
		// Nothing was charged. The server has told its time, so this is all there
		// is to know to lay the windows around it.
		reply, err = s.call(ctx, charges, extra, clock.Now, receipts)
		if again := clockError(err); again != nil {
			err = again
		}
	}
	if err != nil {
		return dst, nil, s.explain(err, charges)
	}
	n := perCharge * len(charges)
	if want := n + receiptsOf(charges, receipts) + loansOf(extra); len(reply) != want {
		return dst, nil, fmt.Errorf("take from redis: %w: %d numbers for %d charges", errReply, len(reply), len(charges))
	}
	base := len(dst)
	dst, err = appendDecisions(dst, charges, reply[:n])
	if err == nil {
		err = checkLoans(extra, reply[n:])
	}
	if err != nil {
		return dst[:base], nil, fmt.Errorf("take from redis: %w", err)
	}
	return dst, reply[n:], nil
}

func receiptsOf(charges []ratelimit.Charge, receipts bool) int {
	if !receipts {
		return 0
	}
	return perReceipt * len(charges)
}

// call sends one script call and returns its reply.
func (s *Store) call(ctx context.Context, charges []ratelimit.Charge, extra []int64, now int64, receipts bool) ([]int64, error) {
	c := calls.Get().(*call)
	if err := c.build(s, charges, extra, now, receipts); err != nil {
		return nil, err
	}
	reply, err := s.run(ctx, c)
	if err != nil {
		// c is left to the garbage collector: what went wrong may still hold it.
		return nil, err
	}
	c.free()
	return reply, nil
}

// probePartition is what is asked for where it does not matter which node has it.
const probePartition = "{probe}"

// Probe does what a decision does, the same script and a write with an expiry,
// on a key of its own, so that what it says of the store holds for decisions.
// It ends within Options.Timeout, or when ctx does.
//
// Unlike a decision it goes on to the next connection when one that was idle has
// broken off. A server that was restarted has closed them all, which is seen
// beforehand, but not through TLS: there each one costs whoever is first to use
// it an error. A connection that was made for the probe is the last one: a server
// that hangs up on everybody is not to be called again and again.
//
// Of a cluster it asks one node; see [Nodes].
func (s *Store) Probe(ctx context.Context) error { return s.probe(ctx, probePartition) }

func (s *Store) probe(ctx context.Context, partition string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if s.nodes != nil {
		if err := s.nodes.learn(ctx); err != nil {
			if Kind(err) == KindTimeout {
				// Nobody else may ask as long as the cluster is not known.
				s.warm(probePartition, s.scripts.taking(bit(s.probes.Algorithm))) //nolint:contextcheck // it outlives the call
			}
			return fmt.Errorf("reach the cluster: %w", err)
		}
	}
	charges := []ratelimit.Charge{{Policy: s.probes, Partition: partition, Caller: partition, Cost: 1}}
	var dst [1]ratelimit.Decision
	var err error
	for range s.idle() + 1 {
		if _, _, err = s.take(ctx, charges, nil, dst[:], nil); Kind(err) != KindLost {
			break
		}
	}
	return err
}

// idle is how many connections wait for something to do.
func (s *Store) idle() int {
	p, ok := s.client.(interface{ PoolStats() *redis.PoolStats })
	if !ok {
		return 0
	}
	return int(p.PoolStats().IdleConns)
}

// Close waits for refunds under way, at most Options.Timeout, and closes the
// client. Decisions under way fail with kind "closed" or finish.
func (s *Store) Close() error {
	s.closing.Do(func() {
		for range cap(s.refunds) {
			s.refunds <- struct{}{} // and let none begin
		}
	})
	err := s.client.Close()
	s.cooling.Do(s.cool) // it ends with the client
	if err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("close the redis client: %w", err)
	}
	return nil
}
