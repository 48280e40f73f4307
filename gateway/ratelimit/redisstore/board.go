package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	randv2 "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Defaults and bounds of a [Board].
const (
	// DefaultBoardInterval is short enough for a word to be everywhere within a
	// second: at worst it waits for one call of the sender and one of the
	// receiver, each 20 % late, and both take the whole of DefaultTimeout.
	DefaultBoardInterval = 350 * time.Millisecond
	// DefaultBoardTTL survives a few calls that fail in a row.
	DefaultBoardTTL = 3 * time.Second

	// maxName bounds the name of an instance, maxAbout what one says of itself, in
	// bytes.
	maxName, maxAbout = 256, 512
	// maxFreed bounds the buckets that are kept to be sent, and those that Redis
	// keeps to be read; more are all. lua/board.lua knows it as most.
	maxFreed = 1000
	// keepBoard is how long the keys stay when nobody calls any more.
	keepBoard = time.Minute
)

// BoardOptions tune a [Board]. The zero value is good.
type BoardOptions struct {
	// Instance names this process among all; two must never have one name.
	// Default: 128 random bits.
	Instance string
	// About returns what the others are to know of this instance, for people. It
	// is asked for before every call; what is beyond 512 bytes is cut. It is
	// written down in Redis as it is: no secrets. nil: nothing.
	About func() string
	// Known is how many instances were last known, for a board that follows
	// another. Default 1.
	Known int
	// Interval is the time from the end of one call to the next, each time varied
	// by ±20 %, and twice as long after one that failed. 1ms or more; default 350ms.
	Interval time.Duration
	// TTL is how long an instance counts as alive after its last call; the same
	// for all. At least four intervals, which a call that fails lengthens to two;
	// default 3s.
	TTL time.Duration

	// OnFreed is told of the buckets, as [ratelimit.BucketHash] names them, that
	// other instances told of; all means of every bucket, without a list. One may
	// be told of twice.
	OnFreed func(buckets []uint64, all bool)
	// OnError is told of every call that failed.
	OnError func(error)
	// OnChange is told how many instances are alive whenever that is another
	// number than before.
	OnChange func(instances int)
}

// A Member is an instance as the board shows it.
type Member struct {
	// Instance is its name.
	Instance string
	// Since is when it came, by the clock of Redis.
	Since time.Time
	// About is what it says of itself. Whoever can write to Redis can write it.
	About string
}

// A Board tells the instances that share a Redis and a key prefix of each other:
// how many are alive, and which buckets were given something back. One script
// call at each interval does all of it. It holds no lock of Redis and elects
// nobody; what it says is a fraction of a second old.
//
// Of what it is told of buckets it is at least once, not exactly once: a call
// whose answer was lost is made again. Where an instance cannot tell what it
// missed (it was away for longer than TTL, too many buckets were told of at once,
// Redis has lost its data or may be another server than before), it is told of
// all buckets.
//
// While Redis is away the last known number of instances holds. So it does for
// one TTL after Redis has begun anew, unless more are there: those that are alive
// need that long to say so. No failure of the board is one of the store: it is
// told to OnError and goes nowhere else.
//
// Hooks are called from the goroutine of the board, one at a time, or from that
// of Start and Close. They must not block, nor call Close.
//
// # Keys
//
//	rl:v1:{gateway}:board       a hash: when it began, and two counters
//	rl:v1:{gateway}:instances   a sorted set: who is alive, and until when
//	rl:v1:{gateway}:about       a hash: what each says of itself
//	rl:v1:{gateway}:freed       a list: the last 1000 buckets told of, 8 bytes each
//
// They share one slot of a cluster, and each ends a minute after the last call.
type Board struct {
	store  *Store
	o      BoardOptions
	script *script
	keys   [4]string

	started atomic.Bool
	stop    chan struct{} // closed by Close
	done    chan struct{} // closed when the loop has ended
	closing sync.Once

	instances atomic.Int64
	members   atomic.Pointer[[]Member]

	// mu protects what is to be told.
	mu      sync.Mutex
	freed   map[uint64]struct{} // maxFreed at most
	freeAll bool
	closed  bool

	// What follows belongs to whoever makes the calls.
	sequence   int64     // up to which was read; -1 before the first answer
	generation int64     // of members
	answered   time.Time // when the last answer came; zero before the first
	failing    bool      // the last call failed
	// elsewhere: the next answer may come of another server than the last one, or
	// requests were served before the first.
	elsewhere bool
}

// NewBoard returns a board on the server of s. It sends nothing before
// [Board.Start]. Close it before the store.
func NewBoard(s *Store, o BoardOptions) (*Board, error) {
	if o.Instance == "" {
		o.Instance = rand.Text()
	}
	if o.Interval == 0 {
		o.Interval = DefaultBoardInterval
	}
	if o.TTL == 0 {
		o.TTL = DefaultBoardTTL
	}
	switch {
	case len(o.Instance) > maxName:
		return nil, fmt.Errorf("board: instance: want a name of %d bytes or less, got %d", maxName, len(o.Instance))
	case o.Interval < time.Millisecond:
		return nil, fmt.Errorf("board: interval: want 1ms or more, got %s", o.Interval)
	case o.TTL < 4*o.Interval:
		return nil, fmt.Errorf("board: ttl: want at least four intervals of %s, got %s", o.Interval, o.TTL)
	}
	b := &Board{
		store: s, o: o,
		script: newScript(lua("prelude"), lua("board")),
		stop:   make(chan struct{}), done: make(chan struct{}),
		freed:    map[uint64]struct{}{},
		sequence: -1,
	}
	for i, name := range [...]string{"board", "instances", "about", "freed"} {
		b.keys[i] = s.prefix + "{gateway}:" + name
	}
	b.instances.Store(int64(max(1, o.Known)))
	b.members.Store(&[]Member{})
	return b, nil
}

// Start announces this instance, learns who else is there, and goes on doing so
// until [Board.Close]. It returns after the first call, so within Options.Timeout
// of the store, whether Redis has answered or not. A second Start does nothing,
// nor does one after Close.
func (b *Board) Start() {
	if !b.started.CompareAndSwap(false, true) {
		return
	}
	b.call(false)
	go b.run()
}

// Close tells the others what is still to be told and that this instance is gone,
// and ends the board. It takes twice Options.Timeout of the store at most. Where
// Redis is away the others notice by themselves, within TTL.
func (b *Board) Close() {
	b.closing.Do(func() {
		close(b.stop)
		if b.started.CompareAndSwap(false, true) {
			close(b.done) // it was never started, and nobody knows of it
			return
		}
		<-b.done
		b.mu.Lock()
		b.closed = true
		b.mu.Unlock()
		b.call(true)
	})
	<-b.done
}

// Instances returns how many instances are alive, as last known: 1 or more.
func (b *Board) Instances() int { return int(b.instances.Load()) }

// Members returns the instances that are alive, as last known, this one among
// them, and 256 at most. The slice is shared: it is not to be written to.
func (b *Board) Members() []Member { return *b.members.Load() }

// Free has the other instances told that something came back to a bucket, as
// [ratelimit.BucketHash] names it. It never blocks. More than 1000 different ones
// between two calls become all.
func (b *Board) Free(bucket uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.freeLocked(bucket)
}

func (b *Board) freeLocked(bucket uint64) {
	switch {
	case b.closed, b.freeAll:
	case len(b.freed) < maxFreed:
		b.freed[bucket] = struct{}{}
	default:
		if _, known := b.freed[bucket]; !known {
			b.freeAllLocked()
		}
	}
}

// FreeAll is Free for every bucket there is.
func (b *Board) FreeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.freeAllLocked()
	}
}

func (b *Board) freeAllLocked() {
	b.freeAll = true
	clear(b.freed)
}

// toTell takes what is to be told; told puts it back where that failed.
func (b *Board) toTell() (buckets []uint64, all bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	buckets, all = slices.Collect(maps.Keys(b.freed)), b.freeAll
	clear(b.freed)
	b.freeAll = false
	return buckets, all
}

func (b *Board) untold(buckets []uint64, all bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if all {
		b.freeAllLocked()
	}
	for _, bucket := range buckets {
		b.freeLocked(bucket)
	}
}

// run makes one call after the other.
func (b *Board) run() {
	defer close(b.done)
	for {
		wait := b.o.Interval
		if b.failing {
			wait *= 2
		}
		timer := time.NewTimer(jitter(wait))
		select {
		case <-timer.C:
		case <-b.stop:
			timer.Stop()
			return
		}
		b.call(false)
	}
}

// jitter varies d by ±20 %, so that instances do not march in step.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*randv2.Float64())) //nolint:gosec // nobody gains by guessing it
}

// call makes one call and spreads what it says.
func (b *Board) call(stops bool) {
	buckets, all := b.toTell()
	ctx, cancel := context.WithTimeout(context.Background(), b.store.timeout)
	reply, err := b.ask(ctx, buckets, all, stops)
	cancel()
	if err != nil {
		b.failing = true
		b.elsewhere = b.elsewhere || b.answered.IsZero() || mayBeElsewhere(err)
		b.untold(buckets, all)
		if b.o.OnError != nil {
			b.o.OnError(b.explain(err))
		}
		return
	}
	missed := reply.all || b.elsewhere || !b.answered.IsZero() && time.Since(b.answered) > b.o.TTL
	b.failing, b.elsewhere, b.answered = false, false, time.Now()
	b.sequence = reply.sequence
	if reply.generation != b.generation {
		b.generation = reply.generation
		b.members.Store(&reply.members)
	}
	if stops {
		return
	}
	b.count(reply)
	if b.o.OnFreed == nil {
		return
	}
	switch {
	case missed:
		b.o.OnFreed(nil, true)
	case len(reply.freed) > 0:
		b.o.OnFreed(reply.freed, false)
	}
}

// count takes over how many are alive.
func (b *Board) count(reply *boardReply) {
	last := b.instances.Load()
	if reply.young && reply.alive < last || reply.alive == last {
		return
	}
	b.instances.Store(reply.alive)
	if b.o.OnChange != nil {
		b.o.OnChange(int(reply.alive))
	}
}

// mayBeElsewhere reports whether, after err, the next answer may come from a
// server that has not seen all that this one had: one that was started anew, or
// has taken over. One that was merely slow is what it was.
func mayBeElsewhere(err error) bool {
	switch Kind(err) {
	case KindTimeout, KindPool, KindBusy, KindNoPerm, KindOOM, KindMisconf:
		return false
	}
	return true
}

// A boardReply is what lua/board.lua replies.
type boardReply struct {
	alive      int64
	young      bool
	sequence   int64
	all        bool
	freed      []uint64
	generation int64
	members    []Member
}

// ask makes one call.
func (b *Board) ask(ctx context.Context, buckets []uint64, all, stops bool) (reply *boardReply, err error) {
	// As in Store.run: a reply that announces an impossible length panics in make.
	defer func() {
		if r := recover(); r != nil {
			reply, err = nil, fmt.Errorf("%w: reading it ended in %v", errReply, r)
		}
	}()
	about := ""
	if b.o.About != nil {
		about = b.o.About()
		about = about[:min(len(about), maxAbout)]
	}
	told := make([]byte, 0, 8*len(buckets))
	for _, bucket := range buckets {
		told = binary.BigEndian.AppendUint64(told, bucket)
	}
	args := []any{
		"evalsha", b.script.sha, count(len(b.keys)), b.keys[0], b.keys[1], b.keys[2], b.keys[3],
		b.o.Instance, about, b.o.TTL.Milliseconds(), keepBoard.Milliseconds(),
		b.sequence, b.generation, stops, told, all,
	}
	raw, err := b.store.processAny(ctx, args)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		args[0], args[1] = "eval", b.script.source // it has run nothing
		raw, err = b.store.processAny(ctx, args)
	}
	if err != nil {
		return nil, err
	}
	return decodeBoard(raw)
}

// processAny is process for a reply of several types.
func (s *Store) processAny(ctx context.Context, args []any) (any, error) {
	cmd := onceAny{redis.NewCmd(ctx, args...)}
	if err := s.client.Process(ctx, cmd); err != nil {
		if s.cluster != nil {
			s.relearn(ctx, err)
		}
		return nil, err
	}
	return cmd.Val(), nil
}

// onceAny is a command that is sent once; see once.
type onceAny struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (onceAny) NoRetry() bool { return true }

// decodeBoard reads a reply. Anything that the script cannot have said is an
// error.
func decodeBoard(reply any) (*boardReply, error) {
	raw, _ := reply.([]any)
	bad := len(raw) != 7
	number := func(i int) int64 {
		if bad {
			return 0
		}
		v, ok := raw[i].(int64)
		bad = bad || !ok || v < 0
		return v
	}
	r := &boardReply{alive: number(0), young: number(1) != 0, sequence: number(2), all: number(3) != 0, generation: number(5)}
	if bad {
		return nil, fmt.Errorf("%w: the board's is %d values", errReply, len(raw))
	}
	freed, isString := raw[4].(string)
	members, isList := raw[6].([]any)
	if !isString || !isList || len(freed)%8 != 0 || len(freed) > 8*maxFreed || len(members)%2 != 0 {
		return nil, fmt.Errorf("%w: %d bytes of buckets, %d values of instances", errReply, len(freed), len(members))
	}
	for b := []byte(freed); len(b) > 0; b = b[8:] {
		r.freed = append(r.freed, binary.BigEndian.Uint64(b))
	}
	for i := 0; i < len(members); i += 2 {
		name, _ := members[i].(string)
		text, _ := members[i+1].(string)
		since, about, _ := strings.Cut(text, " ")
		ms, _ := strconv.ParseInt(since, 10, 64) // the epoch where somebody else wrote it
		r.members = append(r.members, Member{Instance: name, Since: time.UnixMilli(ms), About: about})
	}
	return r, nil
}

// explain says what was being done when err happened.
func (b *Board) explain(err error) error {
	if e, ok := errors.AsType[redis.Error](err); ok {
		if at, found := strings.CutPrefix(e.Error(), "CORRUPT "); found {
			if i, convErr := strconv.Atoi(at); convErr == nil && i >= 1 && i <= len(b.keys) {
				return fmt.Errorf("tell the other instances: read %q: %w; delete it to begin anew", b.keys[i-1], errValue)
			}
		}
	}
	return fmt.Errorf("tell the other instances: %w", err)
}
