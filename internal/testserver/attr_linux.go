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

// killGroup ends what a process that has ended left behind.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
