// Package ownfile checks that files belong to the user of this process, and creates files that only
// this user can read.
package ownfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Check refuses a symbolic link, because anyone who can write its folder can point it elsewhere. It
// refuses a file or folder of another user, who could change it while this process uses it.
//
// Errors: those of the file system; otherwise the error names the path and the reason.
func Check(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	if info.Mode()&os.ModeSymlink != 0 {
		return fmt.Errorf("%s: is a symbolic link; name the folder itself", path)
	}
	return checkOwner(path, info)
}

// ReadPrivate reads a file that Check accepts and that only its owner can use.
//
// Errors: those of Check and of the file system.
func ReadPrivate(path string) ([]byte, error) {
	if err := Check(path); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || isOpen(info.Mode()) {
		return nil, fmt.Errorf("%s: must be a file that only its owner can read (mode 0600)", path)
	}
	return os.ReadFile(path) //nolint:gosec,wrapcheck // the operator names the file, and the error does
}

// Create writes a new file that only its owner can read, and syncs it and its folder. The file
// appears with all of its contents, or not at all.
//
// Errors: fs.ErrExist if there is a file or a symbolic link of that name; those of the file system.
func Create(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	if err := os.Link(f.Name(), path); err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: errors.Unwrap(err)}
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names of the files in a folder survive a crash.
//
// Errors: those of the file system.
func syncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // the operator names the folder
	if err != nil {
		return err //nolint:wrapcheck // it names the folder
	}
	return errors.Join(d.Sync(), d.Close())
}
