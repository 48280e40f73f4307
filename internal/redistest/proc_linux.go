package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// dieWithParent has the kernel end the server when the test binary dies
// without running its cleanups: a panic, a timeout, a SIGKILL.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// awaitStopped waits until the kernel reports the process as stopped; a signal
// is only noted when it is sent.
func (p *process) awaitStopped(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return err
		}
		// The state follows the command's name, which stands in parentheses and
		// may itself contain some.
		if i := bytes.LastIndexByte(b, ')'); i >= 0 && i+2 < len(b) && b[i+2] == 'T' {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("the process does not stop")
		}
		time.Sleep(time.Millisecond)
	}
}
