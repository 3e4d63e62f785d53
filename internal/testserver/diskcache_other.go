//go:build unix && !linux

package testserver

import "net"

// serve is for Linux: see NewSlowDisk.
func (d *SlowDisk) serve(*net.UnixListener) error { return nil }
