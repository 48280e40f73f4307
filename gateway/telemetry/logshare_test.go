package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"bouncer/gateway/scope"
)

// Of what went well a share is written, which says so; of all else everything is.
func TestOnlyLinesOfWhatWentWellAreSampled(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*scope.Request)
		always bool
	}{
		"served":              {func(*scope.Request) {}, false},
		"moved":               {func(s *scope.Request) { s.Status = 304 }, false},
		"switched":            {func(s *scope.Request) { s.Status = 101 }, false},
		"denied":              {func(s *scope.Request) { s.Status, s.DeniedBy = 429, "per-minute" }, true},
		"refused":             {func(s *scope.Request) { s.Status, s.DeniedBy = 401, "unauthorized" }, true},
		"not found":           {func(s *scope.Request) { s.Status = 404 }, true},
		"client left":         {func(s *scope.Request) { s.Status = 499 }, true},
		"failed":              {func(s *scope.Request) { s.Status = 502 }, true},
		"no answer":           {func(s *scope.Request) { s.Status = 0 }, true},
		"cut":                 {func(s *scope.Request) { s.DeniedBy = "shutting_down" }, true},
		"optional credential": {func(s *scope.Request) { s.AuthError = errors.New("x") }, true},
		"without the store":   {func(s *scope.Request) { s.StoreErr = errors.New("x") }, true},
		"broke off":           {func(s *scope.Request) { s.UpstreamErr = errors.New("x") }, true},
	} {
		var out bytes.Buffer
		tm := New(Options{Out: &out})
		tm.Configure(Labels{Routes: []string{"weather"}})
		r, s := sample()
		tc.change(s)
		for _, share := range []int{million, 0, million / 2} {
			tm.SampleAllowed(share)
			for range 400 { // all of which find room, however slowly they are read
				tm.Request(r, s)
			}
		}
		shut(t, tm)
		plain, half, none := 0, 0, 0
		for line := range strings.Lines(out.String()) {
			var fields map[string]any
			if err := json.Unmarshal([]byte(line), &fields); err != nil {
				t.Fatal(err)
			}
			switch share, ok := fields["sampled"]; {
			case !ok:
				plain++
			case share == 0.5:
				half++
			default:
				none++
			}
		}
		switch {
		case tc.always && (plain != 1200 || half != 0 || none != 0):
			t.Errorf("%s: %d lines in full, %d and %d sampled, want all 1200 in full", name, plain, half, none)
		case !tc.always && (plain != 400 || none != 0 || half < 120 || half > 280):
			t.Errorf("%s: %d lines in full, %d of 0, %d of a half; want 400, 0 and about 200", name, plain, none, half)
		}
		if got := tm.lines.dropped.Load(); got != 0 {
			t.Errorf("%s: %d lines count as dropped", name, got)
		}
	}
}

func TestSamplingCostsNothing(t *testing.T) {
	tm := discarding(t)
	tm.SampleAllowed(million / 2)
	r, s := sample()
	s.TraceID = [16]byte{1}
	tm.Request(r, s)
	if got := testing.AllocsPerRun(5000, func() { tm.Request(r, s) }); got > 0 {
		t.Errorf("a sampled line allocates %v times, want 0", got)
	}
}

// While whoever reads the log stands still, the last quarter of what can wait is for
// denials and errors.
func TestDenialsHaveRoomWhereServedRequestsHaveNone(t *testing.T) {
	out := newGate()
	tm := New(Options{Out: out})
	tm.Configure(Labels{Routes: []string{"weather"}})
	r, s := sample()
	tm.Request(r, s)
	<-out.entered // from now on nothing is read
	for tm.lines.dropped.Load() == 0 {
		tm.Request(r, s)
	}
	before := tm.lines.dropped.Load()
	s.Status, s.DeniedBy = 429, "per-minute"
	for i := range 100 {
		s.ID = fmt.Sprint("denied-", i)
		tm.Request(r, s)
	}
	tm.Logger().Error("something is wrong")
	if got := tm.lines.dropped.Load(); got != before {
		t.Errorf("%d lines of denials and errors were dropped", got-before)
	}
	close(out.opened)
	shut(t, tm)
	if got := strings.Count(out.all(), `"request_id":"denied-`); got != 100 || !strings.Contains(out.all(), "something is wrong") {
		t.Errorf("%d denials are in the log, want 100, and the error", got)
	}
}

func TestTheLevelChangesAtRunTime(t *testing.T) {
	var out bytes.Buffer
	tm := New(Options{Out: &out})
	log := tm.Logger().With("part", "a") // made before
	for _, l := range []slog.Level{slog.LevelInfo, slog.LevelDebug, slog.LevelError} {
		tm.SetLevel(l)
		log.Debug("debug", "at", l)
		log.Info("info", "at", l)
		log.Error("error", "at", l)
	}
	r, s := sample()
	tm.Request(r, s) // whatever the level
	shut(t, tm)
	var got []string
	for line := range strings.Lines(out.String()) {
		var fields struct{ Msg, At string }
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		got = append(got, fields.Msg+" "+fields.At)
	}
	want := "info INFO, error INFO, debug DEBUG, info DEBUG, error DEBUG, error ERROR, request "
	if strings.Join(got, ", ") != want {
		t.Errorf("logged %q, want %q", strings.Join(got, ", "), want)
	}
}
