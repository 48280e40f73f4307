package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it; nothing is protected.
	_ "embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"bouncer/gateway/ratelimit"
)

//go:embed lua/prelude.lua
var productionPrelude string

//go:embed lua/token_bucket.lua
var luaTokenBucket string

//go:embed lua/fixed_window.lua
var luaFixedWindow string

//go:embed lua/take.lua
var luaTake string

// A script is the text of the one script and the name Redis knows it by, both
// strings, put into interfaces once rather than for each call.
type script struct {
	source, sha any
}

// newScript joins the files. The prelude is the one part that tests replace.
func newScript(prelude string) script {
	source := strings.Join([]string{prelude, luaTokenBucket, luaFixedWindow, luaTake}, "\n")
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see above
	return script{source: source, sha: hex.EncodeToString(sum[:])}
}

const (
	headArgs  = 3 // EVALSHA, the digest, the number of keys
	numbers   = 6 // ARGV of one charge, see lua/take.lua
	perCharge = 4 // integers of the reply for one charge
)

// A call is one EVALSHA with all that it refers to. Its numbers are passed as
// pointers into one slice, since an interface around a pointer allocates
// nothing and one around an int64 does.
type call struct {
	args    []any
	numbers []int64
}

var calls = sync.Pool{New: func() any { return new(call) }}

// build fills c with the call that decides charges. An error is a mistake of
// the program.
func (c *call) build(s *Store, charges []ratelimit.Charge) error {
	n := len(charges)
	for i := range charges {
		switch {
		case charges[i].Policy == nil || charges[i].Policy.Key() == "":
			return fmt.Errorf("charge %d: want a policy that NewPolicy made", i+1)
		case charges[i].Cost < 0:
			return fmt.Errorf("charge %d: cost: want 0 or more, got %d", i+1, charges[i].Cost)
		}
	}
	c.args = append(c.args[:0], "evalsha", s.script.sha, count(n))
	for i := range charges {
		// A plain string: a cluster client finds the slot in the first key.
		c.args = append(c.args, s.key(&charges[i]))
	}
	c.numbers = c.numbers[:0]
	for i := range charges {
		ch := &charges[i]
		p := ch.Policy
		switch p.Algorithm {
		case ratelimit.TokenBucket:
			c.numbers = append(c.numbers, 1, ch.Cost, p.Quota, p.Burst, p.Num(), p.Den())
		case ratelimit.FixedWindow:
			c.numbers = append(c.numbers, 2, ch.Cost, p.Quota, p.Window.Microseconds(), 0, 0)
		default:
			return fmt.Errorf("charge %d: the redis store does not know the algorithm %s", i+1, p.Algorithm)
		}
	}
	if s.clock != nil {
		c.numbers = append(c.numbers, s.clock())
	}
	// Only now, since growing the slice moves what is pointed to.
	for i := range c.numbers {
		c.args = append(c.args, &c.numbers[i])
	}
	return nil
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
// once with its text. Nothing has been charged in that case, so this is the only
// repetition that is safe.
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
		c.args[0], c.args[1] = "eval", s.script.source
		reply, err = s.process(ctx, c)
	}
	return reply, err
}

func (s *Store) process(ctx context.Context, c *call) ([]int64, error) {
	cmd := redis.NewIntSliceCmd(ctx, c.args...)
	// Process returns the error that the command holds.
	if err := s.client.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}
