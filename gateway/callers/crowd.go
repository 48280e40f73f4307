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
	users, agents several
}

// several are the different hashes of one kind of this span and of the one before. Most
// addresses have one person behind them, so the bitmaps are made for the second.
type several struct {
	one  uint64 // the only one; 0: none
	span int64  // of one
	bits *[2]bitmap
}

type bitmap [crowdWords]uint64

// note remembers hashes of a user and of a user agent; 0 is nobody.
func (c *crowd) note(minute int64, user, agent uint64) {
	span := max(minute/crowdMinutes, c.since)
	if span != c.since {
		c.users.advance(c.since, span)
		c.agents.advance(c.since, span)
		c.since = span
	}
	c.users.note(span, user)
	c.agents.note(span, agent)
}

// tell says how many there are at a minute.
func (c *crowd) tell(minute int64) Crowd {
	span := max(minute/crowdMinutes, c.since)
	users, many := c.users.tell(c.since, span)
	agents, more := c.agents.tell(c.since, span)
	return Crowd{Users: users, UserAgents: agents, AtLeast: many || more}
}

func (s *several) note(span int64, hash uint64) {
	switch {
	case hash == 0:
		return
	case s.bits != nil:
		s.bits[0].set(hash)
		return
	case s.one != 0 && s.one != hash && s.span >= span-1:
		s.bits = &[2]bitmap{}
		s.bits[span-s.span].set(s.one)
		s.bits[0].set(hash)
		return
	}
	s.one, s.span = hash, span
}

// advance goes on from a span to a later one: what was written to becomes the one
// before. Bitmaps that nobody set a bit of are let go.
func (s *several) advance(from, to int64) {
	switch {
	case s.bits == nil:
	case to == from+1 && s.bits[0] != bitmap{}:
		s.bits[1], s.bits[0] = s.bits[0], bitmap{}
	default:
		*s = several{}
	}
}

// tell is how many there are in a span and the one before; from is the one that is
// written to.
func (s *several) tell(from, span int64) (n int, atLeast bool) {
	if s.bits == nil {
		if s.one != 0 && s.span >= span-1 {
			return 1, false
		}
		return 0, false
	}
	now := *s.bits
	later := several{bits: &now}
	if span > from {
		if later.advance(from, span); later.bits == nil {
			return 0, false
		}
	}
	return estimate(later.bits)
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
