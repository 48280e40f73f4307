//go:build unix && !linux

package main

import "syscall"

// attributes puts the child in a process group of its own, so that Ctrl-C
// reaches only this program, which then ends its children in order.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
