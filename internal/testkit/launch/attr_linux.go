package launch

import "syscall"

// Attributes returns those of a child that dies with this process, even if it is stopped then, and
// that gets no signals from the terminal: an interrupt ends this process first. account is whose
// process it is; nil: as this one.
func Attributes(account *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: account}
}

// killGroup kills the processes that a process left behind when it ended.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
