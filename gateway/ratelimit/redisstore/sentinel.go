package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// askInterval is how long after one look at the sentinels the next begins. A
	// master that is replaced while it is well, or alive and cut off, goes on
	// taking charges until then, or until it is told.
	askInterval = 500 * time.Millisecond
	// askSoon is the shortest time between two looks, however many calls fail.
	askSoon = 50 * time.Millisecond
	// sentinelTimeout bounds each step of asking one sentinel.
	sentinelTimeout = 500 * time.Millisecond
	// straggle is how long the others are waited for when one has answered.
	straggle = 100 * time.Millisecond
	// believeOlder is for how long nothing but older news must come before it is
	// taken for the newest: sentinels that were all set up anew count from zero.
	believeOlder = 10 * time.Second
)

// errNoMaster is what sentinels say of a name that they do not watch.
var errNoMaster = errors.New("the sentinels watch no master of this name")

// errAsk is what was being done where no master is known: no call was sent yet.
var errAsk = errors.New("ask the sentinels for the master")

// SentinelOptions say who knows which server is the master. Master and Addresses
// are required.
type SentinelOptions struct {
	// Master is the name under which the sentinels watch it.
	Master string
	// Addresses are host:port of the sentinels. Name all of them: others are not
	// looked for.
	Addresses []string
	// Username, Password and PasswordFile log in to the sentinels, like those of
	// ClientOptions do to the servers. They often need none.
	Username, Password, PasswordFile string
}

// A SentinelClient sends commands to the one server of several that sentinels
// name as the master. It is safe for concurrent use. Make it with
// [NewSentinelClient].
type SentinelClient struct {
	options   ClientOptions // of the master, but for its address
	name      string        // of the master
	sentinels []*redis.SentinelClient
	addresses []string // of the sentinels

	master atomic.Pointer[master] // nil until one is known

	mu      sync.Mutex
	closed  bool
	round   *round      // the look that is under way, or the last one; nil before the first
	ended   time.Time   // when it ended; zero while it is under way
	next    *time.Timer // begins the next; nil before the first has ended
	heard   time.Time   // when the last news came that was not older than the master's
	leaving map[*redis.Client]*time.Timer
}

// A master is the client of a server and what named it.
type master struct {
	*redis.Client
	address string
	epoch   int64
}

// A round is one look at all sentinels.
type round struct {
	done chan struct{} // closed when it has ended
	err  error         // why no master was named; to be read then
}

// NewSentinelClient returns a client for the master that sentinels watch over,
// which keeps the promises of [NewClient]. Network and Address of o stay empty;
// TLS of o is for the sentinels as well. It connects to nothing until it is first
// used.
//
// From then on it asks all sentinels every half second who the master is, on
// connections of their own, and once more when a call fails for a reason that a
// failover may have. No call waits for that, but the very first ones, within
// their deadline. The answer with the highest configuration epoch counts, so that
// a sentinel that was cut off does not lead back to the old master; one that does
// not answer holds up the others by a tenth of a second. When none answers, the
// master stays who it was.
//
// A new master gets a pool of connections of its own. The old one's is closed
// when its calls have ended, whether it is dead, frozen, or alive: what it takes
// until then is lost with the rest of what it had not told its replicas.
//
// go-redis' own failover client keeps asking one sentinel that is frozen, all
// dials then waiting for each other; believes any one of them; and follows a
// change only by a subscription to that one.
func NewSentinelClient(s SentinelOptions, o ClientOptions) (*SentinelClient, error) {
	if err := s.check(&o); err != nil {
		return nil, fmt.Errorf("redis sentinel client: %w", err)
	}
	c := &SentinelClient{options: o, name: s.Master, leaving: map[*redis.Client]*time.Timer{}}
	for _, address := range s.Addresses {
		one := ClientOptions{
			Network: "tcp", Address: address, TLS: o.TLS, Timeout: sentinelTimeout, PoolSize: 2,
			Username: s.Username, Password: s.Password, PasswordFile: s.PasswordFile,
		}
		c.sentinels = append(c.sentinels, redis.NewSentinelClient(one.redis()))
		c.addresses = append(c.addresses, address)
	}
	return c, nil
}

// check validates s and o, and fills in the defaults of o.
func (s *SentinelOptions) check(o *ClientOptions) error {
	if s.Master == "" {
		return errors.New("master: want the name under which the sentinels watch it")
	}
	if err := o.checkAddresses(s.Addresses, "sentinels"); err != nil {
		return err
	}
	o.Network = "tcp"
	login := ClientOptions{Username: s.Username, Password: s.Password, PasswordFile: s.PasswordFile}
	if err := login.checkRest(); err != nil {
		return fmt.Errorf("of the sentinels: %w", err)
	}
	return nil
}

// PoolStats are those of the connections to the master, nothing before one is
// known.
func (c *SentinelClient) PoolStats() *redis.PoolStats {
	if m := c.master.Load(); m != nil {
		return m.PoolStats()
	}
	return &redis.PoolStats{}
}

// Process sends cmd to the master, once.
func (c *SentinelClient) Process(ctx context.Context, cmd redis.Cmder) error {
	m := c.master.Load()
	if m == nil {
		var err error
		if m, err = c.first(ctx); err != nil {
			cmd.SetErr(err)
			return err
		}
	}
	err := m.Process(ctx, cmd)
	if err != nil {
		switch Kind(err) {
		case KindRefused, KindTimeout, KindLost, KindReadOnly, KindLoading, KindClusterDown:
			c.ask() //nolint:contextcheck // as in first
		}
	}
	return err
}

// first waits for the master to be known. It fails as soon as the sentinels have
// been asked in vain.
func (c *SentinelClient) first(ctx context.Context) (*master, error) {
	r := c.ask() //nolint:contextcheck // a look is for all calls and outlives this one
	if r == nil {
		return nil, redis.ErrClosed
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w %q: %w", errAsk, c.name, ctx.Err())
	}
	if m := c.master.Load(); m != nil {
		return m, nil
	}
	return nil, r.err
}

// ask begins a look at the sentinels and returns it; nil if c is closed. If one
// is under way, or has ended a moment ago, it returns that one; in the latter case
// the next one begins as soon as it may.
func (c *SentinelClient) ask() *round {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil
	case c.round == nil:
		c.begin()
	case !c.ended.IsZero():
		if wait := askSoon - time.Since(c.ended); wait > 0 {
			c.next.Reset(wait)
		} else {
			c.begin()
		}
	}
	return c.round
}

// again is the look that comes with time.
func (c *SentinelClient) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && !c.ended.IsZero() {
		c.begin()
	}
}

// begin begins a look. The caller holds mu.
func (c *SentinelClient) begin() {
	r := &round{done: make(chan struct{})}
	c.round, c.ended = r, time.Time{}
	go func() {
		best, err := c.look()
		c.mu.Lock()
		defer c.mu.Unlock()
		defer close(r.done)
		if c.closed {
			r.err = redis.ErrClosed
			return
		}
		if r.err = err; err == nil {
			c.follow(best)
		}
		c.ended = time.Now()
		if c.next == nil {
			c.next = time.AfterFunc(askInterval, c.again)
		} else {
			c.next.Reset(askInterval)
		}
	}()
}

// follow makes the server of an answer the master. The caller holds mu.
func (c *SentinelClient) follow(a answer) {
	old := c.master.Load()
	if old != nil && a.epoch < old.epoch && time.Since(c.heard) < believeOlder {
		return
	}
	c.heard = time.Now()
	if old != nil && a.address == old.address {
		if a.epoch != old.epoch {
			c.master.Store(&master{old.Client, old.address, a.epoch})
		}
		return
	}
	o := c.options
	o.Address = a.address
	c.master.Store(&master{redis.NewClient(o.redis()), a.address, a.epoch})
	if old == nil {
		return
	}
	// No call takes longer than this.
	c.leaving[old.Client] = time.AfterFunc(o.Timeout, func() {
		c.mu.Lock()
		delete(c.leaving, old.Client)
		c.mu.Unlock()
		_ = old.Close() // there is nobody to tell
	})
}

// An answer is what one sentinel says.
type answer struct {
	address string // of the master
	epoch   int64  // the configuration that this belongs to; the higher, the newer
	err     error
}

// look asks all sentinels and returns the newest answer. An error says why there
// is none.
func (c *SentinelClient) look() (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sentinelTimeout)
	defer cancel()
	answers := make(chan answer, len(c.sentinels))
	for i, sentinel := range c.sentinels {
		go func() {
			a := c.askOne(ctx, sentinel)
			if a.err != nil {
				a.err = fmt.Errorf("sentinel %s: %w", c.addresses[i], a.err)
			}
			answers <- a
		}()
	}
	best, failed := answer{epoch: -1}, error(nil)
	var late <-chan time.Time
	for waiting := len(c.sentinels); waiting > 0; waiting-- {
		select {
		case a := <-answers:
			if a.err != nil {
				if failed == nil {
					failed = a.err
				} else {
					failed = fmt.Errorf("%w; %w", failed, a.err)
				}
				continue
			}
			if a.epoch > best.epoch {
				best = a
			}
			if late == nil {
				late = time.After(straggle)
			}
		case <-late:
			waiting = 1 // nobody any more
		}
	}
	if best.epoch < 0 {
		return best, fmt.Errorf("%w %q: %w", errAsk, c.name, failed)
	}
	return best, nil
}

// askOne asks one sentinel. The epoch is asked for first: while a failover is
// being finished the address is ahead of it, and must not seem older than it is.
func (c *SentinelClient) askOne(ctx context.Context, sentinel *redis.SentinelClient) (a answer) {
	state, err := sentinel.Master(ctx, c.name).Result()
	switch {
	case redis.HasErrorPrefix(err, "No such master"):
		return answer{err: errNoMaster}
	case err != nil:
		return answer{err: err}
	}
	if a.epoch, err = strconv.ParseInt(state["config-epoch"], 10, 64); err != nil || a.epoch < 0 {
		return answer{err: fmt.Errorf("%w: the epoch of the configuration is %q", errReply, state["config-epoch"])}
	}
	at, err := sentinel.GetMasterAddrByName(ctx, c.name).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return answer{err: errNoMaster}
	case err != nil:
		return answer{err: err}
	case len(at) != 2:
		return answer{err: fmt.Errorf("%w: the address of the master is %q", errReply, at)}
	}
	a.address = net.JoinHostPort(at[0], at[1])
	return a
}

// Close ends all connections and the looks at the sentinels. Calls under way fail.
func (c *SentinelClient) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return redis.ErrClosed
	}
	c.closed = true
	var errs []error
	if c.next != nil {
		c.next.Stop()
	}
	for client, timer := range c.leaving {
		if timer.Stop() {
			errs = append(errs, client.Close())
		}
	}
	if m := c.master.Load(); m != nil {
		errs = append(errs, m.Close())
	}
	for _, sentinel := range c.sentinels {
		errs = append(errs, sentinel.Close())
	}
	return errors.Join(errs...)
}
