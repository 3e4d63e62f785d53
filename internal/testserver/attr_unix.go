//go:build unix && !linux

package testserver

import "syscall"

// sysProcAttr leaves the process in the group of the test: there is no death
// signal here, so an interrupt from the terminal must reach it.
func sysProcAttr(c Command) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{}
	if c.User != 0 || c.Group != 0 {
		attr.Credential = &syscall.Credential{Uid: c.User, Gid: c.Group}
	}
	return attr
}

// killGroup does nothing: the process was in the group of the test.
func killGroup(int) {}
