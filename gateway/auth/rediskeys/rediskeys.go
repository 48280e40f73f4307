package rediskeys

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"bouncer/gateway/auth"
)

// How long answers are good.
const (
	// Again is when a key that is in use is asked for again, in the background.
	Again = time.Second
	// Fresh is how old an answer may be that a request relies on while Redis is there.
	Fresh = 2 * time.Second
	// Hold is how old it may be while Redis is away.
	Hold = 10 * time.Minute
	// Unknown is how long a digest that is not there is not asked for again.
	Unknown = time.Second
)

const (
	// DefaultSize is how many keys are remembered if Options do not say, and as many
	// digests that are none.
	DefaultSize = 10_000

	pause         = time.Second // nobody waits for Redis so long after it failed
	stale         = time.Minute // a failure so long ago says nothing of Redis now
	maxValue      = 16 << 10    // bytes of a value
	maxBackground = 64          // questions in the background at the same time
)

// A Client sends commands to Redis. Calls must end within their context.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// A Reader makes a key of the value of a field. Its errors are logged, so they repeat
// no value that may be secret.
type Reader func(digest [32]byte, value []byte) (auth.Key, error)

// Options say where keys are.
type Options struct {
	// Hash is the key of the hash in Redis.
	Hash string
	// Read reads values; see [Table.SetReader].
	Read Reader
	// Timeout bounds one question; default 50ms.
	Timeout time.Duration
	// Size is how many keys are remembered; 0 means DefaultSize.
	Size int
	// Now is a clock that does not go back; default time.Now.
	Now func() time.Time
	// Refused is told of a value that is no key, once for each: the first digits of
	// its digest, and why. It may be called from any goroutine.
	Refused func(digest string, err error)
	// Failed is told of every question that Redis did not answer.
	Failed func(error)
	// Away is told when questions go unanswered, the second in a row and so at least a
	// second apart, and with nil when one is answered again. It is called one at a time.
	Away func(error)
}

// A Table finds keys. It is safe for concurrent use, starts nothing that outlives
// Options.Timeout, and needs no Close.
type Table struct {
	client  Client
	o       Options
	read    atomic.Pointer[Reader]
	known   *lru.Cache[[32]byte, *item]
	unknown *lru.Cache[[32]byte, time.Time] // until when
	flights singleflight.Group
	slots   chan struct{}
	away    atomic.Int64 // until when nobody waits, in nanoseconds since epoch
	epoch   time.Time

	mu     sync.Mutex // over what follows, and calls of Away
	since  time.Time  // when the first of the questions in a row that went unanswered was asked; zero: the last one was answered
	latest time.Time  // when the last of them was asked
	told   bool       // Away was told of them
}

// An item is what a field of the hash was when it was last asked for.
type item struct {
	value     string
	entry     *auth.Entry  // nil: the value is no key
	read      *Reader      // by whom
	confirmed atomic.Int64 // when it was last asked for, in nanoseconds since epoch
	asking    atomic.Bool
}

// New returns a table of the hash of o. It connects to nothing.
func New(client Client, o Options) (*Table, error) {
	if o.Hash == "" || o.Read == nil || o.Timeout < 0 || o.Size < 0 {
		return nil, errors.New("keys in redis: want the name of a hash, a reader, and no negative timeout or size")
	}
	if o.Timeout == 0 {
		o.Timeout = 50 * time.Millisecond
	}
	if o.Size == 0 {
		o.Size = DefaultSize
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	t := &Table{client: client, o: o, slots: make(chan struct{}, maxBackground), epoch: o.Now()}
	t.read.Store(&o.Read)
	var err1, err2 error
	t.known, err1 = lru.New[[32]byte, *item](o.Size)
	t.unknown, err2 = lru.New[[32]byte, time.Time](o.Size)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("keys in redis: %w", err)
	}
	return t, nil
}

// SetReader replaces the reader, because what a key may say has changed. Values are
// read anew when their keys are used next.
func (t *Table) SetReader(r Reader) { t.read.Store(&r) }

// Lookup implements [auth.KeyTable].
func (t *Table) Lookup(ctx context.Context, digest [32]byte, onlyKnown bool) (*auth.Entry, error) {
	now := t.o.Now()
	it, ok := t.known.Get(digest)
	if ok && it.read != t.read.Load() {
		it = t.reread(digest, it)
	}
	if !ok {
		if onlyKnown {
			return nil, nil //nolint:nilnil // there is none
		}
		if until, ok := t.unknown.Get(digest); ok && now.Before(until) {
			return nil, nil //nolint:nilnil // there is none
		}
	} else {
		age := now.Sub(t.epoch) - time.Duration(it.confirmed.Load())
		if age >= Again && age < Fresh {
			t.background(digest, it) //nolint:contextcheck // nobody waits for it
		}
		if age < Fresh || age < Hold && t.paused(now) {
			return it.entry, nil
		}
	}
	if t.paused(now) {
		return nil, auth.ErrKeysUnavailable
	}
	err := t.ask(ctx, digest)
	if found, again := t.known.Get(digest); err == nil {
		if !again {
			return nil, nil //nolint:nilnil // there is none
		}
		return found.entry, nil
	}
	if ok && t.o.Now().Sub(t.epoch)-time.Duration(it.confirmed.Load()) < Hold {
		return it.entry, nil
	}
	return nil, fmt.Errorf("%w: %w", auth.ErrKeysUnavailable, err)
}

// paused says whether Redis failed a moment ago.
func (t *Table) paused(now time.Time) bool {
	return now.Sub(t.epoch) < time.Duration(t.away.Load())
}

// background asks for a key that is in use, unless that is under way or too much is.
func (t *Table) background(digest [32]byte, it *item) {
	if !it.asking.CompareAndSwap(false, true) {
		return
	}
	if t.paused(t.o.Now()) {
		it.asking.Store(false)
		return
	}
	select {
	case t.slots <- struct{}{}:
		go func() {
			defer func() { <-t.slots; it.asking.Store(false) }()
			_ = t.ask(context.Background(), digest) // it is told, and the key holds meanwhile
		}()
	default:
		it.asking.Store(false)
	}
}

// ask has Redis say what the digest is now, once for all who ask at the same time. A
// caller that leaves takes the answer from none of the others.
func (t *Table) ask(ctx context.Context, digest [32]byte) error {
	done := t.flights.DoChan(string(digest[:]), func() (any, error) { //nolint:contextcheck // it is asked for all who wait, and outlives the first
		ctx, cancel := context.WithTimeout(context.Background(), t.o.Timeout)
		defer cancel()
		// An answer is as old as its question.
		asked := t.o.Now()
		cmd := redis.NewStringCmd(ctx, "hget", t.o.Hash, hex.EncodeToString(digest[:]))
		err := t.client.Process(ctx, cmd)
		switch {
		case errors.Is(err, redis.Nil):
			t.answered()
			t.known.Remove(digest)
			t.unknown.Add(digest, asked.Add(Unknown))
			return nil, nil //nolint:nilnil // what came of it is in the memories
		case err != nil:
			t.away.Store(int64(t.o.Now().Sub(t.epoch) + pause))
			if t.o.Failed != nil {
				t.o.Failed(err)
			}
			t.unanswered(asked, err)
			return nil, err
		}
		t.answered()
		t.keep(digest, cmd.Val(), asked)
		return nil, nil //nolint:nilnil // as above
	})
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unanswered notes that a question went unanswered. One alone is no news: the next is
// asked after a pause, and may find Redis well.
func (t *Table) unanswered(asked time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.since.IsZero():
		t.since = asked
	case !t.told && asked.Sub(t.since) >= pause:
		t.told = true
		if t.o.Away != nil {
			t.o.Away(err)
		}
	}
	t.latest = asked
}

func (t *Table) answered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told && t.o.Away != nil {
		t.o.Away(nil)
	}
	t.since, t.told = time.Time{}, false
}

// Since returns since when keys cannot be looked up; the zero time if they can, as far as
// is known: where nobody has shown a key for a minute, nothing is.
func (t *Table) Since() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.told || t.o.Now().Sub(t.latest) > stale {
		return time.Time{}
	}
	return t.since
}

// keep remembers a value. One that is as before stays what it is to those who used it.
func (t *Table) keep(digest [32]byte, value string, asked time.Time) {
	before, ok := t.known.Peek(digest)
	at := int64(asked.Sub(t.epoch))
	if ok && before.value == value && before.read == t.read.Load() {
		before.confirmed.Store(at)
		return
	}
	t.known.Add(digest, t.make(digest, value, at, before))
	t.unknown.Remove(digest)
}

// reread is the item by the reader of today.
func (t *Table) reread(digest [32]byte, it *item) *item {
	fresh := t.make(digest, it.value, it.confirmed.Load(), it)
	t.known.Add(digest, fresh)
	return fresh
}

func (t *Table) make(digest [32]byte, value string, confirmed int64, before *item) *item {
	it := &item{value: value, read: t.read.Load()}
	it.confirmed.Store(confirmed)
	var former *auth.Entry
	if before != nil {
		former = before.entry
	}
	var key auth.Key
	err := fmt.Errorf("it is %d bytes long; at most %d", len(value), maxValue)
	if len(value) <= maxValue {
		key, err = (*it.read)(digest, []byte(value))
	}
	if err == nil {
		key.SHA256 = digest
		it.entry, err = auth.NewEntry(key, former)
	}
	if err != nil && t.o.Refused != nil {
		t.o.Refused(hex.EncodeToString(digest[:4]), err)
	}
	return it
}
