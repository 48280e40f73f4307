package callers

import (
	"math"
	"math/bits"
)

const (
	// crowdMinutes is how long one bitmap is written to; two are told of.
	crowdMinutes = 10
	crowdWords   = 8
	crowdBits    = 64 * crowdWords
	// fewLeft is how many bits may be unset for the estimate to say "at least": there
	// the next one would change it by a tenth and more.
	fewLeft = 10
)

// A Crowd is who was behind one address in the last 10 to 20 minutes.
type Crowd struct {
	// Users are those that authenticated, UserAgents what clients called themselves.
	// Both are estimates.
	Users, UserAgents int
	// AtLeast says that there are too many of one to tell how many.
	AtLeast bool
}

// A crowd is what is remembered of an address for that.
type crowd struct {
	since         int64 // the span of crowdMinutes that is written to
	users, agents [2]bitmap
}

type bitmap [crowdWords]uint64

// note remembers hashes of a user and of a user agent; 0 is nobody.
func (c *crowd) note(minute int64, user, agent uint64) {
	c.advance(minute / crowdMinutes)
	if user != 0 {
		c.users[0].set(user)
	}
	if agent != 0 {
		c.agents[0].set(agent)
	}
}

// advance goes on to a span: what was written to becomes the one before.
func (c *crowd) advance(span int64) {
	switch {
	case span <= c.since:
		return
	case span == c.since+1:
		c.users[1], c.agents[1] = c.users[0], c.agents[0]
	default:
		c.users[1], c.agents[1] = bitmap{}, bitmap{}
	}
	c.users[0], c.agents[0] = bitmap{}, bitmap{}
	c.since = span
}

// tell says how many there are at a minute.
func (c *crowd) tell(minute int64) Crowd {
	now := *c
	now.advance(minute / crowdMinutes)
	users, many := estimate(&now.users)
	agents, more := estimate(&now.agents)
	return Crowd{Users: users, UserAgents: agents, AtLeast: many || more}
}

func (b *bitmap) set(hash uint64) { b[hash/64%crowdWords] |= 1 << (hash % 64) }

// estimate is how many have set the bits of both.
func estimate(both *[2]bitmap) (n int, atLeast bool) {
	unset := crowdBits
	for i := range both[0] {
		unset -= bits.OnesCount64(both[0][i] | both[1][i])
	}
	atLeast = unset <= fewLeft
	return int(math.Round(crowdBits * math.Log(crowdBits/float64(max(unset, fewLeft))))), atLeast
}
