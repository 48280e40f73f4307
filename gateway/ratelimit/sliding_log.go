package ratelimit

import (
	"math"
	"sort"
	"time"
)

// The sliding window log: at most Quota units in any span of a Window, exactly.
// Every unit is kept with the time it was charged at, and counts until it is a
// Window old.

// A Log holds the times of the units of one sliding window log, oldest first.
// It is never changed, so that states can share it. Its size is bounded by the
// units that count, and so by the quota: 16 bytes each if every unit was charged
// at a time of its own, and room for half as many.
//
// The runs of a Log are the head of an array that may go on behind them: what
// charges a log writes there, without copying what stands before, as append does.
// So of two charges to one Log the first is void. Stores keep one state per
// bucket, and so one Log.
type Log struct {
	runs []run // not empty
}

// A run is units that were charged together.
type run struct {
	at    int64 // when, µs
	total int64 // the units charged up to and with this run, ever
}

// total returns the number of the newest unit, counted from the first ever.
func (l *Log) total() int64 { return l.runs[len(l.runs)-1].total }

// find returns the index of the run that unit number n belongs to; n is not
// above total.
func (l *Log) find(n int64) int {
	return sort.Search(len(l.runs), func(i int) bool { return l.runs[i].total >= n })
}

// advanceLog returns s without the units that are a window old at now.
func (p *Policy) advanceLog(s *State, now int64) {
	if s.Log == nil {
		*s = State{}
		return
	}
	old := now - p.Window.Microseconds()
	runs := s.Log.runs
	if runs[0].at > old {
		return
	}
	gone := sort.Search(len(runs), func(i int) bool { return runs[i].at > old })
	if gone == len(runs) {
		*s = State{}
		return
	}
	// The units that count are the newest Spent of the log; there may be fewer
	// than the runs hold, see fillLog.
	s.Spent = min(s.Spent, s.Log.total()-runs[gone-1].total)
}

// chargeLog charges s with units more.
func chargeLog(s *State, now, units int64) {
	if s.Log == nil {
		*s = State{Spent: units, Time: now, Log: &Log{runs: []run{{now, units}}}}
		return
	}
	// If the clock went back, the order is kept, so that the oldest units are the
	// first to leave.
	s.Time = max(now, s.Time)
	total := s.Log.total()
	runs := s.Log.runs[s.Log.find(total-s.Spent+1):]
	if len(runs) == cap(runs) {
		grown := make([]run, len(runs), len(runs)+max(3, len(runs)/2))
		copy(grown, runs)
		runs = grown
	}
	s.Log = &Log{runs: append(runs, run{s.Time, total + units})}
	s.Spent += units
}

// fillLog charges s with cost more, of which the newest Quota units count, or as
// many as did before, if a larger quota has granted more: the oldest make room.
func (p *Policy) fillLog(s *State, now, cost int64) {
	cost = min(cost, p.Quota)
	s.Spent = min(s.Spent, max(p.Quota, s.Spent)-cost)
	chargeLog(s, now, cost)
}

func (p *Policy) describeLog(s *State, now int64) (remaining int64, reset time.Duration) {
	remaining = max(0, p.Quota-s.Spent)
	if s.Spent == 0 || p.Quota == 0 {
		return remaining, 0
	}
	return remaining, p.waitLog(s, now, remaining+1)
}

// waitLog returns how long from now it is until cost, at most Quota and more
// than there is, fits: until enough of the oldest units have left.
func (p *Policy) waitLog(s *State, now, cost int64) time.Duration {
	leave := s.Spent + cost - p.Quota
	last := s.Log.runs[s.Log.find(s.Log.total()-s.Spent+leave)]
	return micros(last.at + p.Window.Microseconds() - now)
}

func (p *Policy) runsOutLog(s *State) int64 {
	if s.Log == nil {
		return math.MinInt64
	}
	return s.Time + p.Window.Microseconds()
}
