package pulse

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// A fading is one key of a list whose counts fade.
type fading struct{ count float64 }

const halfLife = 10 * time.Minute

func (f *fading) pass(d time.Duration, gain float64) {
	f.count = f.count*math.Exp2(-float64(d)/float64(halfLife)) + gain
}

func TestATrendIsWhatWasGainedThoughCountsFade(t *testing.T) {
	t.Parallel()
	tr := NewTrends(halfLife)
	var f fading
	f.count = 5000 // of before
	at := time.Duration(0)
	tr.Add(at, []Entry{{"l {user:a}", f.count, 0}}, false)
	for range 65 {
		at += time.Second
		f.pass(time.Second, 2)
		tr.Add(at, []Entry{{"l {user:a}", f.count, 0}}, true)
	}
	if got := float64(tr.PerMinute("l {user:a}")); math.Abs(got-120) > .5 {
		t.Errorf("%v a minute, want 120", got)
	}
	if got := float64(tr.Recent("l {user:a}")); math.Abs(got-2) > .01 {
		t.Errorf("%v a second, want 2", got)
	}
	values := tr.Trend("l {user:a}")
	if len(values) != 30 {
		t.Fatalf("%d values, want 30", len(values))
	}
	for i, v := range values {
		switch {
		case i < 24 && !math.IsNaN(float64(v)):
			t.Errorf("value %d is %v, before it was looked at all the time", i, v)
		case i > 24 && math.Abs(float64(v)-120) > .5:
			t.Errorf("value %d is %v, want 120", i, v)
		}
	}
	for range 20 { // it stops
		at += time.Second
		f.pass(time.Second, 0)
		tr.Add(at, []Entry{{"l {user:a}", f.count, 0}}, true)
	}
	if got := float64(tr.Recent("l {user:a}")); got > 1e-6 {
		t.Errorf("%v a second after it stopped", got)
	}
}

// A key that was not in a list with room has gained all it has, but for what it took
// over from another.
func TestANewKeyHasGainedWhatItHas(t *testing.T) {
	t.Parallel()
	tr := NewTrends(halfLife)
	tr.Add(0, nil, false)
	tr.Add(time.Second, nil, true)
	tr.Add(2*time.Second, []Entry{{"new", 30, 10}}, true)
	if got := float64(tr.Recent("new")); math.Abs(got-10) > .1 {
		t.Errorf("%v a second, want 20 in two seconds", got)
	}
	if got := float64(tr.PerMinute("new")); math.Abs(got-600) > 5 {
		t.Errorf("%v a minute, want 600", got)
	}
	if got := tr.Recent("nobody"); !math.IsNaN(float64(got)) {
		t.Errorf("somebody who is not in the list gains %v", got)
	}
}

func TestAGapInATrendIsNothingKnown(t *testing.T) {
	t.Parallel()
	tr := NewTrends(halfLife)
	at := time.Duration(0)
	var f fading
	look := func(step time.Duration, gain float64, continuous bool) {
		at += step
		f.pass(step, gain)
		tr.Add(at, []Entry{{"k", f.count, 0}}, continuous)
	}
	look(0, 0, false)
	for range 30 {
		look(time.Second, 1, true)
	}
	look(time.Hour, 5000, false)
	for range 15 {
		look(time.Second, 1, true)
	}
	for i, v := range tr.Trend("k") {
		if float64(v) > 100 {
			t.Errorf("value %d is %v", i, v)
		}
	}
	if got := float64(tr.Recent("k")); math.Abs(got-1) > .1 {
		t.Errorf("%v a second, want 1", got)
	}
}

func TestTrendsAreBounded(t *testing.T) {
	t.Parallel()
	tr := NewTrends(halfLife)
	for i := range 500 {
		list := make([]Entry, 1000)
		for j := range list {
			list[j] = Entry{fmt.Sprint(i*7, " ", j), float64(1000 - j), 0}
		}
		tr.Add(time.Duration(i)*time.Second, list, true)
	}
	if len(tr.keys) > Trended || len(tr.spans) > 11 {
		t.Errorf("%d keys and %d looks are remembered", len(tr.keys), len(tr.spans))
	}
}
