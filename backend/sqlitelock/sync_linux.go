package sqlitelock

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// syncData waits until what was written to the file is on the disk.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			if err != nil {
				return fmt.Errorf("fdatasync %s: %w", f.Name(), err)
			}
			return nil
		}
	}
}
