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

// appendDecisions turns the reply into one decision per charge. Anything that
// the script cannot have said is an error: a wrong answer must not pass as a
// verdict.
func appendDecisions(dst []ratelimit.Decision, charges []ratelimit.Charge, reply []int64) ([]ratelimit.Decision, error) {
	if len(reply) != perCharge*len(charges) {
		return dst, fmt.Errorf("%w: %d numbers for %d charges", errReply, len(reply), len(charges))
	}
	for i := range charges {
		allowed, remaining, reset, retryAfter := reply[4*i], reply[4*i+1], reply[4*i+2], reply[4*i+3]
		p := charges[i].Policy
		capacity := p.Quota
		if p.Algorithm == ratelimit.TokenBucket {
			capacity = p.Burst
		}
		var sound bool
		switch allowed {
		case 0:
			sound = retryAfter >= -1
		case 1:
			sound = retryAfter == 0
		}
		if !sound || remaining < 0 || remaining > capacity || reset < 0 {
			return dst, fmt.Errorf("%w: charge %d was answered %d", errReply, i+1, reply[4*i:4*i+4])
		}
		d := ratelimit.Decision{
			Policy:     p,
			Allowed:    allowed == 1,
			Remaining:  remaining,
			Reset:      micros(reset),
			RetryAfter: micros(retryAfter),
			Source:     ratelimit.SourceRedis,
		}
		if retryAfter == -1 {
			d.RetryAfter = ratelimit.Never
		}
		dst = append(dst, d)
	}
	return dst, nil
}

// micros converts microseconds to a Duration. Beyond the 292 years that a
// Duration holds it answers the longest one.
func micros(us int64) time.Duration {
	if us > math.MaxInt64/int64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}
