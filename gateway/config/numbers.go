package config

import (
	"math"
	"math/bits"
	"time"
)

// Bounds of what a limit may be, and where it becomes worth a warning.
const (
	// A sliding_window_log keeps an entry for every unit of every caller.
	warnLog, maxLog = 10_000, 100_000
	// Few clients wait longer for an answer to begin; maxWait bounds max_delay.
	warnWait, maxWait = time.Minute, time.Hour
)

// exact is where whole numbers end that the store's arithmetic tells apart.
const exact = 1 << 53

// checkNumbers reports numbers of a limit that cannot be counted, or only at a
// price. limitAt is where the quota stands, shapeAt where the number does that
// is counted up to: the burst, the queue, or the quota again.
func (l *Limit) checkNumbers(limitAt, shapeAt value) bool {
	switch l.Algorithm {
	case TokenBucket:
		return checkArithmetic(shapeAt, l.Rate, l.Burst, true)
	case LeakyBucket:
		return checkArithmetic(shapeAt, l.Rate, l.Queue+1, true)
	case SlidingWindowLog:
		switch {
		case l.Rate.Quota > maxLog:
			limitAt.errorf("a log keeps an entry for every unit, and %d are too many; want at most %d, or a sliding_window_counter",
				l.Rate.Quota, maxLog)
			return false
		case l.Rate.Quota > warnLog:
			limitAt.warnf("a log keeps an entry for every unit, up to %d for one caller; "+
				"a sliding_window_counter keeps a few numbers and decides nearly alike", l.Rate.Quota)
		}
	}
	return checkArithmetic(limitAt, l.Rate, l.Rate.Quota, false)
}

// warnWait warns where a request may be held for longer than clients wait.
func (l *Limit) warnWait(at value) {
	if l.Algorithm != LeakyBucket || l.Rate.Quota == 0 {
		return
	}
	num, den := refill(l.Rate, l.Queue+1)
	wait := maxDuration
	if d := mulDiv(l.Queue, den, num); d < int64(wait/time.Microsecond) {
		wait = time.Duration(d) * time.Microsecond
	}
	if l.MaxDelay > 0 {
		wait = min(wait, l.MaxDelay)
	}
	if wait > warnWait {
		at.warnf("the last of the queue is held for %s, longer than most clients wait; want a shorter queue, or a max_delay of %s or less",
			formatDuration(wait.Round(time.Second)), formatDuration(warnWait))
	}
}

// warnNoWait warns of a queue in which nobody finds a place who comes together
// with another: only whoever comes less than the wait before its turn does.
func (l *Limit) warnNoWait(at value) {
	if l.Algorithm != LeakyBucket || l.Rate.Quota == 0 || l.Queue == 0 || l.MaxDelay == 0 || l.capacity() > 1 {
		return
	}
	num, den := refill(l.Rate, l.Queue+1)
	drip := time.Duration((den+num-1)/num) * time.Microsecond
	at.warnf("is less than one drip (%s), so that of requests that come at once one goes and all others are denied, whatever the queue holds; "+
		"want %[1]s or more, or no queue", formatDuration(drip))
}

const maxDuration = time.Duration(math.MaxInt64)

// capacity is what the limit can admit at most at once.
func (l *Limit) capacity() int64 {
	switch {
	case l.Rate.Quota == 0:
		return 0
	case l.Algorithm == TokenBucket:
		return l.Burst
	case l.Algorithm == LeakyBucket:
		places := l.Queue + 1
		if l.MaxDelay > 0 {
			// One drip goes at once; the others as long as the wait allows.
			num, den := refill(l.Rate, places)
			places = min(places, 1+min(mulDiv(l.MaxDelay.Microseconds(), num, den), maxQuota))
		}
		return places
	}
	return l.Rate.Quota
}

// refill returns what a bucket of the rate gains: num/den units a microsecond,
// den of them whole where so many units could not be counted otherwise.
func refill(r Rate, most int64) (num, den int64) {
	window := r.Window.Microseconds()
	g := gcd(window, r.Quota)
	if product(most, window/g) < exact {
		return r.Quota / g, window / g
	}
	return 1, (window + r.Quota - 1) / r.Quota
}

// checkArithmetic reports a rate whose spent units, at most so many, cannot be
// counted to the microsecond (a warning), or not at all (an error, and false).
//
// A bucket refills num/den units a microsecond and its state is spent × den.
// While that stays within 2^53 it is exact; beyond, each unit is rounded to
// whole microseconds, and most × ceil(window / quota) must stay below.
func checkArithmetic(v value, r Rate, most int64, bucket bool) bool {
	if r.Quota == 0 {
		return true // denies everything, counts nothing
	}
	window := r.Window.Microseconds()
	perUnit := (window + r.Quota - 1) / r.Quota
	if r.Quota >= exact || product(most, perUnit) >= exact {
		v.errorf("too large to be counted: so many units of %d µs each pass 2^53; want smaller numbers", perUnit)
		return false
	}
	den := window / gcd(window, r.Quota)
	if bucket && product(most, den) >= exact {
		v.warnf("more than the exact arithmetic holds: the refill of %s is rounded against the caller, by at most 1 µs a unit; "+
			"a number that divides the window better is exact", r)
	}
	return true
}

// product multiplies two numbers >= 0; too large a product is the largest number.
func product(a, b int64) int64 {
	if a != 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}

// mulDiv returns a × b / c, rounded down, for a, b >= 0 and c > 0; too large a
// result is the largest number.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b)) //nolint:gosec // none is negative
	if hi >= uint64(c) {                       //nolint:gosec // not negative
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c)) //nolint:gosec // not negative
	return int64(min(q, math.MaxInt64))
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
