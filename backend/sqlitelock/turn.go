//go:build linux || darwin || freebsd

package sqlitelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// turnstile is where the processes queue up for the file: an flock on a file beside it. It is
// only for order and for sleeping instead of polling; SQLite's own lock is what excludes. The
// kernel wakes one process after the other, first come first served, and a process that dies
// leaves the queue by itself.
//
// It is never an flock on the database: closing any descriptor of that file would drop SQLite's
// own locks on it, of the whole process.
type turnstile struct {
	f *os.File
	// stuck is set when a wait was given up: a goroutine is still asleep in the kernel, and owns
	// the file now.
	stuck bool
}

func openTurnstile(path string, rights os.FileMode) (*turnstile, error) {
	err := error(nil)
	if rights != ownerOnly {
		err = makeTurnstile(path, rights)
	}
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, rights) //nolint:gosec // the path is the caller's, with a suffix
	}
	if err != nil {
		return nil, fmt.Errorf("turnstile: %w", err)
	}
	return &turnstile{f: f}, nil
}

// makeTurnstile makes sure that the file exists. It has its rights, whatever the umask, when it gets its
// name: another user may open it in the next moment.
func makeTurnstile(path string, rights os.FileMode) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err //nolint:wrapcheck // openTurnstile does
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-*")
	if err != nil {
		return err //nolint:wrapcheck // openTurnstile does
	}
	err = errors.Join(f.Chmod(rights), f.Close())
	if err == nil {
		if err = os.Link(f.Name(), path); errors.Is(err, os.ErrExist) {
			err = nil // another process was faster
		}
	}
	return errors.Join(err, os.Remove(f.Name()))
}

var errStuck = errors.New("a process is stopped in the middle of a transaction")

// lock waits for the turn. Only one goroutine may call it, and not before unlock. When ctx ends
// first it returns ctx's cause. The turnstile cannot be used any more then, since a thread that
// waits in the kernel cannot be called back.
func (t *turnstile) lock(ctx context.Context) error {
	if t.stuck {
		return errStuck
	}
	err := flock(t.f, unix.LOCK_EX|unix.LOCK_NB)
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	had := make(chan error)
	go func() {
		err := flock(t.f, unix.LOCK_EX)
		select {
		case had <- err:
		case <-ctx.Done():
			_ = t.f.Close() // no caller wants the turn any more
		}
	}()
	select {
	case err := <-had:
		return err
	case <-ctx.Done():
		t.stuck = true
		return context.Cause(ctx)
	}
}

// unlock passes the turn to the next process in the queue.
func (t *turnstile) unlock() {
	_ = flock(t.f, unix.LOCK_UN) // the file is open, and unlocking needs no more
}

func (t *turnstile) close() error {
	if t.stuck {
		return nil
	}
	if err := t.f.Close(); err != nil {
		return fmt.Errorf("turnstile: %w", err)
	}
	return nil
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			if err != nil {
				return fmt.Errorf("turnstile: %w", err)
			}
			return nil
		}
	}
}
