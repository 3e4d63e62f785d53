//go:build unix

package ownfile

import (
	"fmt"
	"os"
	"syscall"
)

func checkOwner(path string, info os.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if uid := os.Geteuid(); int(st.Uid) != uid {
		return fmt.Errorf("%s: belongs to the user with the ID %d, and this process is the user with the ID %d", path, st.Uid, uid)
	}
	return nil
}

// isOpen reports whether users other than the owner may use the file.
func isOpen(m os.FileMode) bool { return m.Perm()&0o077 != 0 }

// CanOthersWrite reports whether users other than the owner may write to the file or folder.
func CanOthersWrite(m os.FileMode) bool { return m.Perm()&0o022 != 0 }
