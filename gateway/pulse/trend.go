package pulse

import (
	"math"
	"slices"
	"time"
)

const (
	// trendStep is how long one value of a trend is taken over, trendSteps how many
	// are kept.
	trendStep  = 10 * time.Second
	trendSteps = 30
	// minuteSteps are the whole steps that what a key gains a minute is taken over,
	// beside the one that has not ended.
	minuteSteps = 5
	// Trended is how many entries of a list are looked at: more than are shown, so
	// that one which climbs brings its trend along.
	Trended = 60
)

// An Entry is one key of a list of the heaviest, as its counts stand: they fade.
type Entry struct {
	Key          string
	Count, Error float64
}

// Trends follows what the keys of a list gain, whose counts fade. It holds Trended
// keys at most, and is not safe for concurrent use.
type Trends struct {
	halfLife time.Duration
	keys     map[string]*trend
	began    bool
	whole    bool          // the list had all keys that there were, at the last look
	at       time.Duration // of it
	slot     time.Duration // when the step began that has not ended
	spans    []time.Duration
	span     time.Duration // of spans together
	rounds   int
}

type trend struct {
	count  float64   // at the last look
	gains  []float64 // one for each of spans, the last ones
	slot   float64   // gained since the step began
	known  bool      // it was looked at all the time since then
	values []Value   // oldest first
	round  int
}

// NewTrends follows a list whose counts fade to half in halfLife, > 0.
func NewTrends(halfLife time.Duration) *Trends {
	return &Trends{halfLife: halfLife, keys: map[string]*trend{}}
}

// Add takes the list as it stands at since, a clock that never steps: its first
// Trended entries. Keys that are not in it any more are forgotten. continuous says
// that the look before is one to compare with.
func (t *Trends) Add(since time.Duration, list []Entry, continuous bool) {
	list = list[:min(len(list), Trended)]
	elapsed := since - t.at
	if !t.began || !continuous {
		t.began, t.spans, t.span, t.slot, t.whole = true, nil, 0, since, false
		for _, k := range t.keys {
			k.gains, k.slot, k.known = nil, 0, false
		}
		elapsed = 0
	}
	t.at = since
	t.rounds++
	if elapsed > 0 {
		t.spans = append(t.spans, elapsed)
		t.span += elapsed
	}
	for len(t.spans) > 1 && t.span > windowSpan+windowSpan/20 {
		t.span -= t.spans[0]
		t.spans = slices.Delete(t.spans, 0, 1)
	}
	fade := math.Exp2(-float64(elapsed) / float64(t.halfLife))
	for _, e := range list {
		k := t.keys[e.Key]
		if k == nil {
			k = &trend{count: e.Count}
			if t.whole {
				// It was not there before, so all it has is new, but for what it has
				// taken over from the one whose place it got.
				k.count, k.known = e.Error/fade, true
			}
			t.keys[e.Key] = k
		}
		k.round = t.rounds
		if elapsed > 0 {
			// What was there has faded meanwhile; the rest is new.
			gained := max(e.Count-k.count*fade, 0)
			k.gains = append(k.gains, gained)
			k.slot += gained
		}
		k.gains = k.gains[max(0, len(k.gains)-len(t.spans)):]
		k.count = e.Count
	}
	for key, k := range t.keys {
		if k.round != t.rounds {
			delete(t.keys, key)
		}
	}
	if since-t.slot >= trendStep {
		t.endStep(since)
	}
	t.whole = len(list) < Trended
}

// endStep takes the value of the step that ends.
func (t *Trends) endStep(since time.Duration) {
	for _, k := range t.keys {
		v := Unknown()
		if k.known {
			v = Value(k.slot / (since - t.slot).Minutes())
		}
		k.values = append(k.values, v)
		k.values = slices.Delete(k.values, 0, max(0, len(k.values)-trendSteps))
		k.slot, k.known = 0, true
	}
	t.slot = since
}

// Recent is what a key gained per second in the last ten seconds, as the rates of
// [Pulse.Rates] are taken.
func (t *Trends) Recent(key string) Value {
	k := t.keys[key]
	if k == nil || len(t.spans) == 0 {
		return Unknown()
	}
	gained := 0.0
	for _, g := range k.gains {
		gained += g
	}
	return Value(gained / t.span.Seconds())
}

// PerMinute is what a key gained a minute, over the last minute or as long as it is
// known.
func (t *Trends) PerMinute(key string) Value {
	k := t.keys[key]
	if k == nil {
		return Unknown()
	}
	if !k.known {
		return t.Recent(key) * 60
	}
	gained, elapsed := k.slot, t.at-t.slot
	for i := len(k.values) - 1; i >= max(0, len(k.values)-minuteSteps); i-- {
		if math.IsNaN(float64(k.values[i])) {
			break
		}
		gained += float64(k.values[i]) * trendStep.Minutes()
		elapsed += trendStep
	}
	if elapsed < windowSpan && t.span > elapsed {
		return t.Recent(key) * 60 // a step has just begun, and none is known
	}
	if elapsed <= 0 {
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
