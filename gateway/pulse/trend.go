package pulse

import (
	"math"
	"time"
)

const (
	// trendStep is how long one value of a trend is taken over, trendSteps how many
	// are kept.
	trendStep  = 10 * time.Second
	trendSteps = 30
	// Trended is how many entries of a list are looked at: more than are shown, so
	// that one which climbs brings its trend along.
	Trended = 60
)

// An Entry is one key of a list of the heaviest, as its counts stand: they fade.
type Entry struct {
	Key          string
	Count, Error float64
}

// Trends follows what the keys of a list gain, whose counts fade. It is not safe
// for concurrent use.
type Trends struct {
	halfLife time.Duration
	slot     time.Duration // when the last value was taken
	keys     map[string]*trend
}

type trend struct {
	base   float64 // its count at from
	from   time.Duration
	gained float64 // since from
	for_   time.Duration
	values []Value // oldest first
	round  int
}

// NewTrends follows a list whose counts fade to half in halfLife, > 0.
func NewTrends(halfLife time.Duration) *Trends {
	return &Trends{halfLife: halfLife, slot: -trendStep, keys: map[string]*trend{}}
}

// Add takes the list as it stands at since, a clock that never steps; Trended
// entries of it. Keys that are not in it any more are forgotten.
func (t *Trends) Add(since time.Duration, list []Entry) {
	ends := since-t.slot >= trendStep
	round := 0
	for _, k := range t.keys {
		round = k.round + 1
		break
	}
	for _, e := range list[:min(len(list), Trended)] {
		k := t.keys[e.Key]
		if k == nil {
			k = &trend{base: e.Count, from: since}
			t.keys[e.Key] = k
		}
		k.round = round
		k.for_ = since - k.from
		// What was there has faded meanwhile; the rest is new.
		k.gained = max(e.Count-k.base*math.Exp2(-float64(k.for_)/float64(t.halfLife)), 0)
		if !ends {
			continue
		}
		v := Unknown()
		if k.for_ >= trendStep/2 && k.for_ < 2*trendStep {
			v = Value(k.gained / k.for_.Minutes())
		}
		if k.for_ > 0 || len(k.values) > 0 {
			k.values = append(k.values, v)
			k.values = k.values[max(0, len(k.values)-trendSteps):]
		}
		k.base, k.from = e.Count, since
		k.gained, k.for_ = 0, 0
	}
	for key, k := range t.keys {
		if k.round != round {
			delete(t.keys, key)
		}
	}
	if ends {
		t.slot = since
	}
}

// PerMinute is what a key gains a minute, over the last minute or as long as it is
// known; Recent is over the last 10 to 20 seconds. Neither is known at once.
func (t *Trends) PerMinute(key string) Value { return t.over(key, 5) }

// Recent see PerMinute.
func (t *Trends) Recent(key string) Value { return t.over(key, 1) }

func (t *Trends) over(key string, steps int) Value {
	k := t.keys[key]
	if k == nil {
		return Unknown()
	}
	gained, elapsed := k.gained, k.for_
	for i := len(k.values) - 1; i >= max(0, len(k.values)-steps); i-- {
		if math.IsNaN(float64(k.values[i])) {
			break
		}
		gained += float64(k.values[i]) * trendStep.Minutes()
		elapsed += trendStep
	}
	if elapsed < time.Second-100*time.Millisecond {
		return Unknown()
	}
	return Value(gained / elapsed.Minutes())
}

// Trend is what a key gained a minute, one value for every ten seconds of the last
// five minutes, oldest first.
func (t *Trends) Trend(key string) []Value {
	list := make([]Value, trendSteps)
	for i := range list {
		list[i] = Unknown()
	}
	if k := t.keys[key]; k != nil {
		copy(list[trendSteps-len(k.values):], k.values)
	}
	return list
}
