//go:build unix && !linux

package embedded

import (
	"fmt"
	"os"
	"syscall"
)

// place tells a folder apart from its copies: its inode.
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
