package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// A child is a program from bin/ that runs until it is stopped. Its output
// goes to a log file beside it.
type child struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{} // closed when it has ended; then err is set
	err       error
}

// start runs bin/name with env added to this program's environment.
func start(name string, env []string, args ...string) (*child, error) {
	c := &child{name: name, log: filepath.Join("bin", name+".log"), ended: make(chan struct{})}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own handle
	c.cmd = exec.Command(filepath.Join("bin", name), args...)
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = attributes()
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

// stop asks the child to end, and insists if it takes longer than its own
// grace period.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // an error means it has ended
	select {
	case <-c.ended:
	case <-time.After(35 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
}

// failure says why a child that should be running has ended. Call it only
// after ended is closed.
func (c *child) failure() error {
	why := "exit status 0"
	if c.err != nil {
		why = c.err.Error()
	}
	return fmt.Errorf("%s has ended: %s; the end of %s:\n%s", c.name, why, c.log, bytes.TrimRight([]byte(tail(c.log)), "\n"))
}

// tail returns the last lines of a log, enough to see why a program ended.
func tail(path string) string {
	const lines = 10
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
