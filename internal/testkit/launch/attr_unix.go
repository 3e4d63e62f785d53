//go:build unix && !linux

package launch

import "syscall"

// Attributes returns those of a child in the group of this process: there is no death signal here,
// so an interrupt from the terminal must reach it. account is whose process it is; nil: as this one.
func Attributes(account *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: account}
}

// killGroup does nothing: the process was in the group of this one.
func killGroup(int) {}
