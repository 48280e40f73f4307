//go:build !linux

package redistest

import (
	"syscall"
	"time"
)

// dieWithParent: only Linux can tie the child to us; elsewhere a test binary
// that is killed leaves its servers behind.
func dieWithParent() *syscall.SysProcAttr { return nil }

// awaitStopped gives the signal a moment to arrive; there is no portable way
// to ask.
func (p *process) awaitStopped(time.Duration) error {
	time.Sleep(20 * time.Millisecond)
	return nil
}
