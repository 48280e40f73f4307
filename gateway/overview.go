package gateway

import (
	"context"
	"encoding/json"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"bouncer/gateway/admin"
	"bouncer/gateway/pulse"
	"bouncer/gateway/telemetry"
	"bouncer/gateway/topk"
)

const (
	// listHalfLife is how fast the lists of the heaviest forget.
	listHalfLife = 10 * time.Minute
	// sampleEvery is how often is looked, unless a look takes more than a hundredth
	// of that; never more seldom than sampleAtMost.
	sampleEvery  = time.Second
	sampleAtMost = 30 * time.Second
)

// An overview is what the dashboard shows: it looks once a second, whoever watches,
// keeps what it has seen, and says what is wrong. It outlives configurations.
type overview struct {
	gw      *Gateway
	sampler *telemetry.Sampler
	pulse   *pulse.Pulse
	feed    *admin.Feed
	began   time.Time
	// figures are what the other instances are told of this one; nil before the
	// first look.
	figures atomic.Pointer[figures]
	told    atomic.Pointer[figures] // what the others are told, now and then

	mu           sync.Mutex // protects the following fields
	seq          uint64
	every        time.Duration
	denied, near *pulse.Trends
	toldAt       time.Duration
	findings     *pulse.Findings
	found        []pulse.Finding
	machine      machine
	composed     uint64 // the number that line is of
	line         []byte
}

// newOverview returns one that has not looked yet. It is to be made before anything
// is counted.
func newOverview(g *Gateway) *overview {
	o := &overview{
		gw: g, sampler: g.telemetry.NewSampler(), pulse: pulse.New(), began: time.Now(), every: sampleEvery,
		denied: pulse.NewTrends(listHalfLife), near: pulse.NewTrends(listHalfLife), findings: pulse.NewFindings(),
	}
	o.feed = admin.NewFeed(o.state)
	return o
}

// run looks until ctx ends, and then ends the streams of those who watch.
func (o *overview) run(ctx context.Context) {
	defer o.feed.Close()
	for {
		o.look()
		o.feed.Publish()
		o.mu.Lock()
		every := o.every
		o.mu.Unlock()
		// Just after a whole second, where the steps of the history end.
		now := time.Now()
		wait := now.Add(every).Truncate(time.Second).Add(2 * time.Millisecond).Sub(now)
		if wait < every/2 {
			wait += time.Second
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// look takes a sample and judges it.
func (o *overview) look() {
	runtime.LockOSThread() // so that it is known what it took, however busy the machine is
	defer runtime.UnlockOSThread()
	spent := threadTime()
	began := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.sampler.Read()
	s.At, s.Since, s.Every = began, began.Sub(o.began), o.every
	s.InFlight = float64(o.gw.flights.Load())
	entries, _ := o.gw.deniedStats()
	s.DenyCacheEntries = float64(entries)
	s.StoreAway = o.gw.fallback().Active
	continuous := o.pulse.Add(s)
	o.denied.Add(s.Since, entriesOf(o.gw.topDenied.Top(pulse.Trended)), continuous)
	o.near.Add(s.Since, entriesOf(o.gw.topNear.Top(pulse.Trended)), continuous)
	o.machine.look(s.Since)
	rates := o.pulse.Rates()
	own := &figures{
		Requests: rates.Requests, Denied: rates.Denied, Failed: rates.Failed, P99: ms(rates.AddedP99), InFlight: s.InFlight, Away: s.StoreAway,
	}
	o.figures.Store(own)
	if o.told.Load() == nil || s.Since-o.toldAt >= tellFiguresEvery {
		o.told.Store(own.short())
		o.toldAt = s.Since
	}
	o.found = o.findings.Judge(s.Since, began, pulse.Conditions(o.circumstances(rates)))
	o.seq++
	// At most a hundredth of one CPU.
	o.every = min(max(sampleEvery, (100*(threadTime()-spent)).Round(time.Second)), sampleAtMost)
}

// topEntry is one of a list of the heaviest.
type topEntry = topk.Entry

func entriesOf(list []topEntry) []pulse.Entry {
	out := make([]pulse.Entry, len(list))
	for i, e := range list {
		out[i] = pulse.Entry{Key: e.Key, Count: e.Count, Error: e.Error}
	}
	return out
}

// state is the state as of the last look, as one line of JSON.
func (o *overview) state() (uint64, []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.line == nil || o.composed != o.seq {
		line, err := json.Marshal(o.composeLocked())
		if err != nil {
			// Only a clock beyond the year 9999 could do this.
			o.gw.log.Error("the live state does not marshal", "error", err)
			line = []byte("{}")
		}
		o.line, o.composed = line, o.seq
	}
	return o.seq, o.line
}

// history is one window of what is kept, as JSON.
func (o *overview) history(window string) ([]byte, bool) {
	w, ok := o.pulse.History(window)
	if !ok {
		return nil, false
	}
	body, err := json.Marshal(w)
	if err != nil {
		return nil, false
	}
	return body, true
}

// ms is a duration in seconds in milliseconds.
func ms(seconds float64) pulse.Value { return pulse.Value(seconds * 1000) }

// known reports whether a figure is one.
func known(v pulse.Value) bool { return !math.IsNaN(float64(v)) }
