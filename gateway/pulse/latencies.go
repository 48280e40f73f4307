package pulse

import (
	"math"
	"time"
)

// Bins is how many bins [Latencies] have: eight to a doubling, from 8 µs to 64 s,
// and one for what is beyond at either end. So a quantile is right to 9 %.
const Bins = 186

const (
	perDoubling = 8
	// lowest is the bin whose upper end is one second, which the bins are counted from.
	lowest = 17 * perDoubling
)

// Latencies counts durations in bins that grow by 9 %: those that the native
// histograms of Prometheus have at schema 3. A count may run over: the difference of
// two is right all the same. It is not safe for concurrent use.
type Latencies [Bins]uint32

// Bin is the bin of the bucket of schema 3 with that index, which reaches from
// 2^((index-1)/8) to 2^(index/8) seconds.
func Bin(index int) int { return min(max(index+lowest, 0), Bins-1) }

// BinOf is the bin of a duration.
func BinOf(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return Bin(int(math.Ceil(math.Log2(d.Seconds()) * perDoubling)))
}

// upper is the upper end of a bin, in seconds.
func upper(bin int) float64 { return math.Exp2(float64(bin-lowest) / perDoubling) }

// Add adds what another has counted.
func (l *Latencies) Add(other *Latencies) {
	for i, n := range other {
		l[i] += n
	}
}

// Less is what was counted since base, an earlier state.
func (l *Latencies) Less(base *Latencies) (d Latencies) {
	for i := range l {
		d[i] = l[i] - base[i]
	}
	return d
}

// Count is how many durations were counted.
func (l *Latencies) Count() (n uint64) {
	for _, c := range l {
		n += uint64(c)
	}
	return n
}

// Quantile is the duration in seconds that a part q of all, from 0 to 1, does not
// exceed; NaN if there is none.
func (l *Latencies) Quantile(q float64) float64 {
	n := l.Count()
	if n == 0 {
		return math.NaN()
	}
	rank := q * float64(n)
	before := 0.0
	for i, c := range l {
		if c == 0 {
			continue
		}
		if before+float64(c) >= rank {
			// As if those of one bin were spread evenly over its logarithm.
			part := min(max((rank-before)/float64(c), 0), 1)
			return math.Exp2((float64(i-lowest) - 1 + part) / perDoubling)
		}
		before += float64(c)
	}
	return upper(Bins - 1)
}

// A sparse is Latencies with few bins in use.
type sparse []struct {
	bin uint8
	n   uint32
}

func (l *Latencies) sparse() (s sparse) {
	for i, n := range l {
		if n > 0 {
			s = append(s, struct {
				bin uint8
				n   uint32
			}{uint8(i), n})
		}
	}
	return s
}

func (l *Latencies) add(s sparse) {
	for _, b := range s {
		l[b.bin] += b.n
	}
}

func (l *Latencies) remove(s sparse) {
	for _, b := range s {
		l[b.bin] -= b.n
	}
}
