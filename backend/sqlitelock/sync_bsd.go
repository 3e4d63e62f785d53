//go:build darwin || freebsd

package sqlitelock

import "os"

// syncData waits until what was written to the file is on the disk.
func syncData(f *os.File) error { return f.Sync() }
