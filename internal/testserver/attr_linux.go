package testserver

import "syscall"

// sysProcAttr puts the process in a group of its own, so that an interrupt from
// the terminal ends the test first, and has the kernel kill it when the test dies.
func sysProcAttr(c Command) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.User != 0 || c.Group != 0 {
		attr.Credential = &syscall.Credential{Uid: c.User, Gid: c.Group}
	}
	return attr
}

// killGroup kills the processes that a process left behind when it ended.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
