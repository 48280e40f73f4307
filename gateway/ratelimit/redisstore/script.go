package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it; nothing is protected.
	"embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// lua returns the text of lua/<name>.lua.
func lua(name string) string {
	b, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic("bug: a script is missing: " + err.Error())
	}
	return string(b)
}

// A script is the text of one script and the name Redis knows it by, both
// strings, put into interfaces once rather than for each call.
type script struct {
	source, sha any
}

func newScript(parts ...string) *script {
	source := strings.Join(parts, "\n")
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see above
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

// An algorithms is a set of algorithms, a bit for each.
type algorithms uint8

// scripts are the scripts of a store. To run one, Redis makes a function object
// of each function in it, whether it is called or not, so a script holds only
// the algorithms of its charges. There are few such sets in one configuration;
// each script is made when it is first needed.
type scripts struct {
	prelude string
	take    [1 << ratelimit.LeakyBucket]atomic.Pointer[script]
	refund  *script
	settle  *script
}

func newScripts(prelude string) *scripts {
	return &scripts{
		prelude: prelude,
		refund:  newScript(prelude, lua("pen"), lua("numbers"), lua("refund")),
		settle: newScript(prelude, lua("pen"), lua("numbers"), lua("token_bucket"), lua("fixed_window"),
			lua("sliding_window_log"), lua("sliding_window_counter"), lua("leaky_bucket"), lua("settle")),
	}
}

// taking returns the script that decides charges of the algorithms.
func (s *scripts) taking(set algorithms) *script {
	at := &s.take[set]
	if made := at.Load(); made != nil {
		return made
	}
	parts := []string{s.prelude}
	if set == bit(ratelimit.TokenBucket) {
		parts = append(parts, lua("plain"))
	}
	parts = append(parts, lua("pen"), lua("numbers"))
	has := func(as ...ratelimit.Algorithm) bool {
		for _, a := range as {
			if set&bit(a) != 0 {
				return true
			}
		}
		return false
	}
	// The leaky bucket stands on the token bucket.
	if has(ratelimit.TokenBucket, ratelimit.LeakyBucket) {
		parts = append(parts, lua("token_bucket"))
	}
	if has(ratelimit.FixedWindow) {
		parts = append(parts, lua("fixed_window"))
	}
	if has(ratelimit.SlidingWindowLog) {
		parts = append(parts, lua("sliding_window_log"))
	}
	if has(ratelimit.SlidingWindowCounter) {
		parts = append(parts, lua("sliding_window_counter"))
	}
	if has(ratelimit.LeakyBucket) {
		parts = append(parts, lua("leaky_bucket"))
	}
	made := newScript(append(parts, lua("take"))...)
	at.Store(made) // of two that are made at once, both are the same
	return made
}

func bit(a ratelimit.Algorithm) algorithms { return 1 << (a - 1) }

// Numbers of lua/take.lua.
const (
	numTokenBucket   = 1
	numFixedWindow   = 2
	numCalendar      = 3
	numWindowLog     = 4
	numWindowCounter = 5
	numLeakyBucket   = 6

	flagCountRejected = 1
	flagShadow        = 2
	flagCandidate     = 4
	flagTwin          = 8
	flagReceipt       = 16
	flagLend          = 32 // once for each unit in advance

	perCharge  = 4 // integers of the reply of take for one charge
	perReceipt = 2 // and those of its receipt
	perLoan    = 2 // and those of what it was charged in advance
)

// A call is one EVALSHA with all that it refers to. What is passed in interfaces
// are pointers, since an interface around a pointer allocates nothing.
type call struct {
	script  *script
	args    []any
	numbers blob
	clock   int64 // for the prelude of tests
}

// A blob is numbers as the scripts read them: doubles, least byte first.
type blob struct{ b []byte }

// MarshalBinary gives go-redis the bytes.
func (b *blob) MarshalBinary() ([]byte, error) { return b.b, nil }

func (b *blob) add(n int64) {
	// Beyond 2^53 it is rounded. Only a cost can be that large, and it is more
	// than any limit then as well.
	b.b = binary.LittleEndian.AppendUint64(b.b, math.Float64bits(float64(n)))
}

var calls = sync.Pool{New: func() any { return new(call) }}

// check says what is wrong with charges: a mistake of the program.
func check(charges []ratelimit.Charge) error {
	for i := range charges {
		p := charges[i].Policy
		switch {
		case p == nil || p.Key() == "":
			return fmt.Errorf("charge %d: want a policy that NewPolicy made", i+1)
		case charges[i].Cost < 0:
			return fmt.Errorf("charge %d: cost: want 0 or more, got %d", i+1, charges[i].Cost)
		case p.Algorithm < ratelimit.TokenBucket || p.Algorithm > ratelimit.LeakyBucket:
			return fmt.Errorf("charge %d: the redis store does not know the algorithm %s", i+1, p.Algorithm)
		}
	}
	return nil
}

// build fills c with the call that decides charges. now, if not 0, is the time
// by which the windows of calendars are laid, µs since the epoch, instead of
// those that the charges bring along. With receipts, the reply says what a
// refund has to know. extra, if not nil, is how many units of each charge are to
// be charged in advance.
func (c *call) build(s *Store, charges []ratelimit.Charge, extra []int64, now int64, receipts bool) error {
	c.args = append(c.args[:0], nil, nil, count(len(charges)))
	c.numbers.b = c.numbers.b[:0]
	var set algorithms
	for i := range charges {
		ch := &charges[i]
		p := ch.Policy
		set |= bit(p.Algorithm)
		flags := flagsOf(charges, i)
		if receipts {
			flags += flagReceipt
		}
		if extra != nil {
			flags += flagLend * extra[i]
		}
		earlier := sharing(charges, i)
		if earlier > 0 && !samePolicy(p, charges[earlier-1].Policy) {
			return fmt.Errorf("charges %d and %d: one bucket, %s, and two policies", earlier, i+1, s.key(ch))
		}
		// A plain string: a cluster client finds the slot in the first key.
		c.args = append(c.args, s.key(ch))
		c.policy(ch, flags, int64(earlier), now)
	}
	c.script = s.scripts.taking(set)
	c.finish(s)
	return nil
}

// finish fills in what stands around the keys.
func (c *call) finish(s *Store) {
	c.args[0], c.args[1] = "evalsha", c.script.sha
	c.args = append(c.args, &c.numbers)
	if s.clock != nil {
		c.clock = s.clock()
		c.args = append(c.args, &c.clock)
	}
}

// policy appends the nine numbers of a charge.
func (c *call) policy(ch *ratelimit.Charge, flags, earlier, now int64) {
	p := ch.Policy
	number, numbers := int64(0), [5]int64{p.Quota, p.Window.Microseconds()}
	switch p.Algorithm {
	case ratelimit.TokenBucket, ratelimit.LeakyBucket:
		number = numTokenBucket
		if p.Algorithm == ratelimit.LeakyBucket {
			number = numLeakyBucket
		}
		numbers = [5]int64{p.CapacityParts(), p.Num(), p.Den(), p.MaxDelay.Microseconds()}
		if p.Quota == 0 {
			numbers[0] = 0 // nothing drips, so nothing is held
		}
	case ratelimit.FixedWindow:
		number = numFixedWindow
		if p.Calendar != nil {
			number = numCalendar
			w := windows(ch, now)
			numbers = [5]int64{p.Quota, w[0], w[1], w[2], w[3]}
		}
	case ratelimit.SlidingWindowLog:
		number = numWindowLog
	case ratelimit.SlidingWindowCounter:
		number = numWindowCounter
	}
	for _, n := range [...]int64{number, flags, earlier, ch.Cost} {
		c.numbers.add(n)
	}
	for _, n := range numbers {
		c.numbers.add(n)
	}
}

// windows returns the boundaries that the script chooses from.
func windows(ch *ratelimit.Charge, now int64) [4]int64 {
	switch {
	case now != 0:
		return ch.Policy.Calendar.Windows(now)
	case ch.Windows == [4]int64{}: // a caller that leaves it to us
		return ch.Policy.Calendar.Windows(time.Now().UnixMicro())
	}
	return ch.Windows
}

// flagsOf returns the flags of charge i, except for that of a receipt.
func flagsOf(charges []ratelimit.Charge, i int) (flags int64) {
	p := charges[i].Policy
	if p.CountRejected && p.Quota > 0 {
		flags += flagCountRejected
	}
	switch p.Role {
	case ratelimit.Shadow:
		flags += flagShadow
	case ratelimit.Candidate:
		flags += flagCandidate
		if hasTwin(charges, i) {
			flags += flagTwin
		}
	}
	return flags
}

// hasTwin reports whether the charge before candidate i is its live twin.
func hasTwin(charges []ratelimit.Charge, i int) bool {
	return i > 0 && charges[i-1].Partition == charges[i].Partition
}

// sharing returns the number, from 1, of the last charge before i on the same
// bucket; 0 if there is none.
func sharing(charges []ratelimit.Charge, i int) int {
	for j := i - 1; j >= 0; j-- {
		if charges[j].Partition == charges[i].Partition && charges[j].Policy.Key() == charges[i].Policy.Key() {
			return j + 1
		}
	}
	return 0
}

// samePolicy reports whether two policies of one key decide alike.
func samePolicy(p, q *ratelimit.Policy) bool {
	return p == q || p.Quota == q.Quota && p.CapacityParts() == q.CapacityParts() &&
		p.Num() == q.Num() && p.Den() == q.Den() && p.MaxDelay == q.MaxDelay
}

// counts are the numbers of keys of almost all calls, already in interfaces.
var counts = [...]any{"0", "1", "2", "3", "4", "5", "6", "7", "8"}

func count(n int) any {
	if n < len(counts) {
		return counts[n]
	}
	return strconv.Itoa(n)
}

// free gives c back for the next decision. It must be out of every hand.
func (c *call) free() {
	clear(c.args) // so that keys of callers are not held
	calls.Put(c)
}

// key is the bucket's name in Redis.
func (s *Store) key(c *ratelimit.Charge) string {
	return s.prefix + c.Partition + ":" + c.Policy.Key()
}

// run asks once by the script's digest and, if the server does not know it,
// once with its text. Nothing has been charged in that case, so this repetition
// is safe.
func (s *Store) run(ctx context.Context, c *call) (reply []int64, err error) {
	// go-redis makes room for as many elements as the reply announces, whoever
	// answers there. An impossible number panics in make.
	defer func() {
		if r := recover(); r != nil {
			reply, err = nil, fmt.Errorf("%w: reading it ended in %v", errReply, r)
		}
	}()
	reply, err = s.process(ctx, c)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		c.args[0], c.args[1] = "eval", c.script.source
		reply, err = s.process(ctx, c)
	}
	return reply, err
}

func (s *Store) process(ctx context.Context, c *call) ([]int64, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, maxTryAgain) {
		cmd := once{redis.NewIntSliceCmd(ctx, c.args...)}
		err := s.client.Process(ctx, cmd)
		key, _ := c.args[3].(string)
		if err == nil {
			if s.nodes != nil && s.nodes.unassigned(key) {
				s.cluster.ReloadState(ctx) // somebody has the slot now
			}
			return cmd.Val(), nil
		}
		if key != "" && Kind(err) == KindTimeout {
			s.warm(key, c.script) //nolint:contextcheck // it outlives the call
		}
		if s.cluster == nil {
			return nil, err
		}
		if !redis.IsTryAgainError(err) {
			err = s.nodes.explain(err, key)
			s.relearn(ctx, err)
			return nil, err
		}
		// The keys are on their way to another node and not together; neither
		// has run anything.
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
		}
	}
}

// maxTryAgain is the longest wait before keys that are being moved are asked for
// again. Moving a key takes well below a millisecond, a slot of them some more.
const maxTryAgain = 8 * time.Millisecond

// once is a command that is sent once. A cluster client repeats others whose
// reply was lost, whatever its MaxRetries; it still follows a redirection, for
// which the server has run nothing.
type once struct{ *redis.IntSliceCmd }

// NoRetry implements [redis.Cmder].
func (once) NoRetry() bool { return true }
