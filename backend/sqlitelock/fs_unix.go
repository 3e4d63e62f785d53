//go:build linux || darwin || freebsd

package sqlitelock

import (
	"os"
	"syscall"
)

// linked reports whether the file has more than one name. SQLite puts its log beside the name
// that it was given: two names would be two logs of one file.
func linked(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink > 1
}
