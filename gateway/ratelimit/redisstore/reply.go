package redisstore

import (
	"errors"
	"fmt"
	"math"
	"time"

	"bouncer/gateway/ratelimit"
)

// errReply is a reply that our script does not give.
var errReply = errors.New("the reply is not one of the limiter's script; is this server a Redis?")

// appendDecisions turns the reply, four numbers for each charge, into decisions.
// Anything that the script cannot have said is an error: a wrong answer must not
// pass as a verdict.
func appendDecisions(dst []ratelimit.Decision, charges []ratelimit.Charge, reply []int64) ([]ratelimit.Decision, error) {
	base := len(dst)
	for i := range charges {
		p := charges[i].Policy
		allowed, remaining, reset := reply[perCharge*i], reply[perCharge*i+1], reply[perCharge*i+2]
		if allowed < 0 || allowed > 1 || remaining < 0 || remaining > p.Capacity() || reset < 0 {
			return dst, answered(i, reply)
		}
		dst = append(dst, ratelimit.Decision{
			Policy:    p,
			Allowed:   allowed == 1,
			Remaining: remaining,
			Reset:     micros(reset),
			Source:    ratelimit.SourceRedis,
		})
	}
	admitted := ratelimit.Admitted(dst[base:])
	for i := range charges {
		d, wait := &dst[base+i], reply[perCharge*i+3]
		p := d.Policy
		switch {
		case d.Allowed && admitted:
			if wait < 0 || wait > 0 && p.Algorithm != ratelimit.LeakyBucket {
				return dst, answered(i, reply)
			}
			d.Delay = micros(wait)
		case wait < -1, d.Allowed && wait != 0 && !p.CountRejected:
			return dst, answered(i, reply)
		case wait == -1:
			d.RetryAfter = ratelimit.Never
		default:
			d.RetryAfter = micros(wait)
		}
	}
	return dst, nil
}

func answered(i int, reply []int64) error {
	return fmt.Errorf("%w: charge %d was answered %d", errReply, i+1, reply[perCharge*i:perCharge*(i+1)])
}

// micros converts microseconds to a Duration. Beyond the 292 years that a
// Duration holds it answers the longest one.
func micros(us int64) time.Duration {
	if us > math.MaxInt64/int64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}
