package gateway

import "testing"

func TestTheGarbageBesideTheLiveHeapIsBounded(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 400, 1 << 20: 400, 16 << 20: 400, 32 << 20: 200, 64 << 20: 100, 256 << 20: 25, 4 << 30: 25,
	} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d MiB live: GOGC %d, want %d", live>>20, got, want)
		}
	}
}
