package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestTheGarbageBesideTheLiveHeapIsBounded(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 400, 1 << 20: 400, 16 << 20: 400, 32 << 20: 200, 64 << 20: 100, 256 << 20: 25, 4 << 30: 25,
	} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d MiB live: GOGC %d, want %d", live>>20, got, want)
		}
	}
}

// FIELD-REPORTS I13: a container's limit on memory is the runtime's too, before the
// kernel enforces it; where there is none, or somebody has said otherwise, nothing is
// changed.
func TestTheMemoryOfAContainerIsASoftLimit(t *testing.T) {
	none := debug.SetMemoryLimit(-1)
	for _, c := range []struct {
		name  string
		bytes uint64
		err   error
		set   string // GOMEMLIMIT
		want  int64
		says  string
	}{
		{name: "a limit", bytes: 1000 << 20, want: 900 << 20, says: "soft_limit_bytes=943718400"},
		{name: "none", err: memlimit.ErrNoLimit, want: none},
		{name: "no cgroup", err: fmt.Errorf("read it: %w", memlimit.ErrNoCgroup), want: none},
		{name: "none, as version 1 says it", bytes: math.MaxInt64 &^ 4095, want: none},
		{name: "unreadable", err: errors.New("no permission"), want: none, says: "set GOMEMLIMIT"},
		{name: "said otherwise", bytes: 1000 << 20, set: "100GiB", want: none},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("GOMEMLIMIT", c.set)
			var said strings.Builder
			restore := boundMemory(slog.New(slog.NewTextHandler(&said, nil)), func() (uint64, error) { return c.bytes, c.err })
			if got := debug.SetMemoryLimit(-1); got != c.want {
				t.Errorf("the soft limit is %d, want %d", got, c.want)
			}
			if !strings.Contains(said.String(), c.says) || c.says == "" && said.Len() > 0 {
				t.Errorf("said %q, want %q in it", said.String(), c.says)
			}
			restore()
			if got := debug.SetMemoryLimit(-1); got != none {
				t.Errorf("afterwards the soft limit is %d, want %d as before", got, none)
			}
		})
	}
}
