package runner

import "syscall"

// sysProcAttr makes a worker die with this process, even if the worker is stopped then, and
// keeps the terminal's signals from it.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
