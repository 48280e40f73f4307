// Package rig is what the benchmark programs stand on: child processes whose
// CPU time and memory can be read, a lean load generator, and the table in
// docs/BENCHMARKS.md.
//
// It is not a load-testing tool. It drives addresses on this machine only, for
// a bounded time, and it stops at the first answer that it did not expect,
// because a benchmark that counts errors as work measures nothing. It reads
// /proc, so it needs Linux.
//
//	p, err := rig.Start("gateway", dir, nil, "bin/gateway", "run", "-routes", …)
//	defer p.Stop()
//	before, _ := p.CPU()
//	result, err := rig.Run(ctx, rig.Load{Address: addr, Requests: requests, Connections: 64, Duration: 3 * time.Second})
//	after, _ := p.CPU()
package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Process is a program that was started for a measurement.
type Process struct {
	name  string
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when it has ended
}

// Start runs a program with env added to this program's environment. Its
// standard output goes nowhere: what a gateway logs is part of its work, but
// the disk is not what is measured. Its standard error goes to a file in dir.
func Start(name, dir string, env []string, program string, args ...string) (*Process, error) {
	p := &Process{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own handle
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = log
	// A group of its own, so that Ctrl-C reaches this program, which ends it. If
	// this program is killed, the kernel does.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel ends the child with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended does not matter; its log says why
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends the process a signal.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send %s to %s: %w", sig, p.name, err)
	}
	return nil
}

// Stop ends the process and waits for it.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means it has ended
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// Ready waits until the address accepts connections; with a path, until that
// path answers 200.
func (p *Process) Ready(ctx context.Context, address, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		err := probe(ctx, address, path)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			text, _ := os.ReadFile(p.log)
			return fmt.Errorf("%s has ended: %s", p.name, bytes.TrimSpace(text))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", p.name, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func probe(ctx context.Context, address, path string) error {
	if path == "" {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
	resp, err := Get(ctx, address, path)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// CPU is the time that all threads of the process have computed so far, in
// user and in kernel mode, to 10 ms.
func (p *Process) CPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of %s: %w", p.name, err)
	}
	// The program's name stands in parentheses and may hold anything; utime and
	// stime are the 12th and 13th field after it, in hundredths of a second.
	_, rest, ok := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("read the CPU time of %s: %q is not what Linux writes", p.name, text)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// Memory is how much of the process is in memory, and the most that ever was,
// in bytes.
func (p *Process) Memory() (resident, peak int64, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory of %s: %w", p.name, err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		switch {
		case scan(line, "VmRSS:", &kib):
			resident = kib << 10
		case scan(line, "VmHWM:", &kib):
			peak = kib << 10
		}
	}
	if resident == 0 {
		return 0, 0, fmt.Errorf("read the memory of %s: no VmRSS", p.name)
	}
	return resident, peak, nil
}

func scan(line, name string, kib *int64) bool {
	rest, ok := strings.CutPrefix(line, name)
	if !ok {
		return false
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
	*kib = n
	return err == nil
}

// FreeAddress is a loopback address that nothing listens on at the moment.
func FreeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// StartRedis starts a redis-server that keeps nothing on disk.
func StartRedis(ctx context.Context, dir string) (p *Process, address string, err error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, "", fmt.Errorf("%w; type: sudo apt-get install -y redis-server", err)
	}
	address, err = FreeAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, "", err
	}
	p, err = Start("redis", dir, nil, program, "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--appendonly", "no")
	if err != nil {
		return nil, "", err
	}
	if err := p.Ready(ctx, address, ""); err != nil {
		p.Stop()
		return nil, "", err
	}
	return p, address, nil
}
