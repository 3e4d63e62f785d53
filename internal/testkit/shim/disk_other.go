//go:build !linux

package shim

import (
	"net"
	"os/exec"
)

func (d *Disk) serve(*net.UnixListener) error { return ErrUnsupported }

func isolate(*exec.Cmd) {}
