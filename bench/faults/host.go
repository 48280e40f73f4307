package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
)

// A host stands in for a test: internal/redistest starts its servers for a
// [testing.TB] and ends them with it, and this program is none. What ends a test
// ends the function that [host.run] was given.
//
// It embeds a nil TB for the methods that nobody here calls.
type host struct {
	testing.TB
	ctx      context.Context
	cleanups []func()
	err      error
}

// errEnded unwinds the goroutine of a host to its run.
var errEnded = errors.New("ended")

// run calls f, and then everything that f wanted cleaned up, also when f panics.
// It returns the error that f ended with.
func (h *host) run(f func()) error {
	defer h.cleanUp()
	func() {
		defer func() {
			if v := recover(); v != nil {
				if v != any(errEnded) {
					h.cleanUp()
					panic(v)
				}
			}
		}()
		f()
	}()
	return h.err
}

func (h *host) cleanUp() {
	for len(h.cleanups) > 0 {
		last := len(h.cleanups) - 1
		f := h.cleanups[last]
		h.cleanups = h.cleanups[:last]
		f()
	}
}

// must ends the function if err is not nil.
func (h *host) must(err error, doing string) {
	if err != nil {
		h.Fatalf("%s: %v", doing, err)
	}
}

// Helper implements [testing.TB].
func (h *host) Helper() {}

// Name implements [testing.TB].
func (h *host) Name() string { return "faults" }

// Context implements [testing.TB].
func (h *host) Context() context.Context { return h.ctx }

// Cleanup implements [testing.TB].
func (h *host) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }

// Failed implements [testing.TB].
func (h *host) Failed() bool { return h.err != nil && h.ctx.Err() == nil }

// Log implements [testing.TB].
func (h *host) Log(args ...any) { fmt.Fprintln(os.Stderr, args...) }

// Logf implements [testing.TB].
func (h *host) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Fatal implements [testing.TB].
func (h *host) Fatal(args ...any) { h.fail(errors.New(fmt.Sprint(args...))) }

// Fatalf implements [testing.TB].
func (h *host) Fatalf(format string, args ...any) { h.fail(fmt.Errorf(format, args...)) }

// Errorf implements [testing.TB].
func (h *host) Errorf(format string, args ...any) { h.Fatalf(format, args...) }

// Error implements [testing.TB].
func (h *host) Error(args ...any) { h.Fatal(args...) }

// Skip implements [testing.TB]: nothing is skipped here, a run is whole or it has
// failed.
func (h *host) Skip(args ...any) { h.Fatal(args...) }

// Skipf implements [testing.TB]; see Skip.
func (h *host) Skipf(format string, args ...any) { h.Fatalf(format, args...) }

// TempDir implements [testing.TB].
func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "bouncer-faults-")
	h.must(err, "make a directory")
	h.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (h *host) fail(err error) {
	if cause := context.Cause(h.ctx); cause != nil {
		err = cause // what failed then is the interruption
	}
	h.err = err
	panic(errEnded)
}

// quantile returns the p-th part of sorted, 0 for none: the smallest value that
// at least p of all do not exceed.
func quantile[T any](sorted []T, p float64) (v T) {
	if len(sorted) == 0 {
		return v
	}
	i := int(p * float64(len(sorted)))
	return sorted[min(i, len(sorted)-1)]
}
