package redisstore_test

import (
	"testing"
	"time"

	"bouncer/gateway/ratelimit"
	"bouncer/gateway/ratelimit/limittest"
	"bouncer/internal/redistest"
)

// generous is a timeout for tests that are not about time: the machine may be
// busy.
const generous = 10 * time.Second

func TestSuite(t *testing.T) {
	srv := redistest.Start(t)
	limittest.Run(t, func(t testing.TB, clock *limittest.Clock) ratelimit.Store { return virtual(t, srv, clock) })
}

// TestSuiteOnACluster is the same on three nodes, where what is of one partition
// is decided in one step.
func TestSuiteOnACluster(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	limittest.RunShared(t, func(t testing.TB, clock *limittest.Clock) ratelimit.Store { return virtualCluster(t, c, clock) })
}

func plain(r rune) rune {
	if r == '/' {
		return '.'
	}
	return r
}
