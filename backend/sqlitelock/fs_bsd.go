//go:build darwin || freebsd

package sqlitelock

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// checkFileSystem refuses a directory that is not on a local file system.
func checkFileSystem(dir, path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("the file system of %s: %w", dir, err)
	}
	if uint64(st.Flags)&unix.MNT_LOCAL == 0 {
		return &FileSystemError{Path: path, Type: unix.ByteSliceToString(st.Fstypename[:])}
	}
	return nil
}
