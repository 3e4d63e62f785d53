package embedded

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// place identifies a folder, to distinguish it from its copies, by its inode and, if the file
// system has one, its time of creation, which no program can set. The device is not part of it:
// its number can change with a reboot.
func place(path string) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", &os.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Mask&unix.STATX_BTIME == 0 {
		return strconv.FormatUint(st.Ino, 10), nil
	}
	return fmt.Sprintf("%d %d.%09d", st.Ino, st.Btime.Sec, st.Btime.Nsec), nil
}
