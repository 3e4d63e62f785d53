package sqlitelock

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// checkFileSystem refuses a directory that is on a shared file system.
func checkFileSystem(dir, path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("the file system of %s: %w", dir, err)
	}
	if name, refused := refusedFileSystem(uint32(st.Type)); refused { //nolint:gosec // the numbers have 32 bits
		return &FileSystemError{Path: path, Type: name}
	}
	return nil
}
