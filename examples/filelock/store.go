//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	backendName = "file"
	markerFile  = "holdfast-filelock"
	recordFile  = "record"
	tempFile    = "record.new"

	shortPause, longPause = time.Millisecond, 16 * time.Millisecond // between attempts to get the flock
)

// What can be wrong with the directory. Each is wrapped in a *backend.UnavailableError.
var (
	// ErrNoStore means that the directory is not a store: see Create.
	ErrNoStore = errors.New("the directory is not a lock store")
	// ErrCorrupt means that a record is damaged. Nothing is granted from it.
	ErrCorrupt = errors.New("the lock record is damaged")
	// ErrReplaced means that the directory was removed or replaced while it was open.
	ErrReplaced = errors.New("the lock directory was replaced")
)

// Create makes a store in a directory that is empty or does not exist. Open never makes one: a store
// that was lost would come back without its leases, and grant locks that are held. So create a store
// again only when no process relies on a lease of the old one.
//
// Errors: *backend.InvalidError for the path; *backend.UnavailableError.
func Create(dir string) error {
	dir, err := absolute(dir)
	if err != nil {
		return err
	}
	return unavailable("create", false, create(dir))
}

func create(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err //nolint:wrapcheck // the caller wraps it
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err //nolint:wrapcheck // the caller wraps it
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s: %w: it is not empty", dir, fs.ErrExist)
	}
	if err := writeFile(filepath.Join(dir, markerFile), os.O_EXCL, []byte(header), os.OpenFile); err != nil {
		return err
	}
	return errors.Join(syncDir(dir, os.Open), syncDir(filepath.Dir(dir), os.Open))
}

// absolute checks a path and makes it independent of the working directory.
func absolute(dir string) (string, error) {
	if dir == "" || strings.ContainsRune(dir, 0) {
		return "", &backend.InvalidError{Field: "dir", Value: fmt.Sprintf("%.64q", dir), Bound: "the path of a directory"}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", unavailable("open", false, err)
	}
	return dir, nil
}

// visit locks the record of a name, lets decide read and change it, and writes it if it was changed.
// When visit returns nil, what decide saw and what it did are on the disk. Without create a name that
// was never used stays so: decide sees an empty record.
//
// Errors: *UnavailableError; ctx's cause, if nothing was done.
func (b *Backend) visit(ctx context.Context, op, name string, create bool, decide func(*record, instant)) error {
	folder := digest([]byte(name))
	dir, err := b.lock(ctx, folder, create)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return unavailable(op, false, err)
	case dir == nil:
		decide(&record{Name: name, fresh: true}, b.clock.now())
		return nil
	}
	defer unlock(dir)
	r, err := b.read(folder)
	if errors.Is(err, fs.ErrNotExist) {
		r, err = &record{Name: name, fresh: true}, nil
	}
	if err != nil {
		return unavailable(op, false, err)
	}
	now := b.clock.now() // after the flock: what has expired by now cannot change hands any more
	r.refresh(b.clock, now)
	decide(r, now)
	if r.changed {
		b.step("decided")
		if err := b.write(folder, r); err != nil {
			return unavailable(op, false, err)
		}
		b.step("written")
		if err := b.root.Rename(filepath.Join(folder, tempFile), filepath.Join(folder, recordFile)); err != nil {
			return unavailable(op, true, err)
		}
		b.step("renamed")
	}
	if r.waits && !r.changed {
		return nil
	}
	// Another process may have been killed between its rename and its sync.
	if err := dir.Sync(); err != nil {
		return unavailable(op, r.changed, err)
	}
	b.step("synced")
	return unavailable(op, r.changed, b.current(dir, folder)) // this process may have been stopped for long
}

// lock opens the folder and gets its flock. It returns nil if there is no folder and create is not set.
func (b *Backend) lock(ctx context.Context, folder string, create bool) (*os.File, error) {
	for pause := shortPause; ; pause = min(2*pause, longPause) {
		dir, err := b.root.Open(folder)
		if errors.Is(err, fs.ErrNotExist) {
			if err := b.present(); err != nil || !create {
				return nil, err
			}
			if err := b.root.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err //nolint:wrapcheck // visit wraps it
			}
			continue
		}
		if err != nil {
			return nil, err //nolint:wrapcheck // visit wraps it
		}
		// A blocking flock would not end with the context.
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			if err := b.current(dir, folder); err != nil {
				unlock(dir)
				return nil, err
			}
			b.step("locked")
			return dir, nil
		}
		_ = dir.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("flock: %w", err)
		}
		if err := rest(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// unlock releases the flock. Close alone would not while a child process that was just forked has a copy.
func unlock(dir *os.File) {
	_ = unix.Flock(int(dir.Fd()), unix.LOCK_UN)
	_ = dir.Close()
}

// current checks that the locked folder is the one that other processes find.
func (b *Backend) current(dir *os.File, folder string) error {
	locked, err := dir.Stat()
	if err != nil {
		return err //nolint:wrapcheck // visit wraps it
	}
	found, err := b.root.Stat(folder)
	if err != nil || !os.SameFile(locked, found) {
		return fmt.Errorf("%w: %s in %s", ErrReplaced, folder, b.dir)
	}
	return b.present()
}

// present checks that the path still names the directory that is open.
func (b *Backend) present() error {
	open, err := b.root.Stat(".")
	if err != nil {
		return err //nolint:wrapcheck // visit wraps it
	}
	found, err := os.Stat(b.dir)
	if err != nil || !os.SameFile(open, found) {
		return fmt.Errorf("%w: %s", ErrReplaced, b.dir)
	}
	return nil
}

// read reads a record. Without the flock the result is only a hint, and may not be on the disk.
func (b *Backend) read(folder string) (*record, error) {
	data, err := b.root.ReadFile(filepath.Join(folder, recordFile))
	if err != nil {
		return nil, err //nolint:wrapcheck // the callers wrap it
	}
	return decode(folder, data)
}

// write writes the next record beside the one that is in force.
func (b *Backend) write(folder string, r *record) error {
	data, err := r.encode()
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(folder, tempFile), os.O_TRUNC, data, b.root.OpenFile); err != nil {
		return err
	}
	if !r.fresh {
		return nil
	}
	// A record in a folder shows all processes that the folder itself is on the disk.
	return syncDir(".", b.root.Open)
}

// writeFile writes a new file and syncs it.
func writeFile(name string, flag int, data []byte, open func(string, int, os.FileMode) (*os.File, error)) error {
	f, err := open(name, os.O_WRONLY|os.O_CREATE|flag, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(name string, open func(string) (*os.File, error)) error {
	f, err := open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// rest waits for about d, or returns ctx's cause.
func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unavailable returns the error of an operation. mayHold says that it may have worked.
func unavailable(op string, mayHold bool, err error) error {
	if err == nil {
		return nil
	}
	return &backend.UnavailableError{Backend: backendName, Op: op, MayHold: mayHold, Err: err}
}
