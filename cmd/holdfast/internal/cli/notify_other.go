//go:build !linux

package cli

// sdNotify does nothing: only Linux has systemd, and the package of its protocol does not compile for NetBSD.
func sdNotify(string) error { return nil }
