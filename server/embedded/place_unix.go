//go:build unix && !linux

package embedded

import (
	"fmt"
	"os"
	"syscall"
)

// place identifies a folder, to distinguish it from its copies, by its inode.
func place(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err //nolint:wrapcheck // it names the folder
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", nil
	}
	return fmt.Sprint(st.Ino), nil
}
