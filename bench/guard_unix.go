//go:build unix

package bench

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// guard is a file that the holder of a lock locks too, so that the kernel detects two holders at
// the same time, in whatever processes they are. It belongs to one goroutine.
type guard struct{ file *os.File }

func openGuard(path string) (*guard, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // in a folder of the bench
	if err != nil {
		return nil, fmt.Errorf("file of the referee: %w", err)
	}
	return &guard{f}, nil
}

// enter reports whether there is no other holder.
func (g *guard) enter() bool {
	for {
		err := syscall.Flock(int(g.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err == nil
		}
	}
}

// leave admits the next holder.
func (g *guard) leave() {
	for errors.Is(syscall.Flock(int(g.file.Fd()), syscall.LOCK_UN), syscall.EINTR) {
		continue
	}
}

func (g *guard) close() { _ = g.file.Close() }
