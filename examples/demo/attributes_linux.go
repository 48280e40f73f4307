package main

import "syscall"

// attributes puts the child in a process group of its own, so that Ctrl-C
// reaches only this program, which then ends its children in order; and has the
// child ended even when this program is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
