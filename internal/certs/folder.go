package certs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/internal/ownfile"
)

// Folder is the path of a folder with an authority in ca.pem and ca.key, and with a certificate and
// a key for each NAME in NAME.pem and NAME.key. Only the owner can read the files, and no file is
// ever replaced.
type Folder string

// Cert returns the path of a certificate. A name is a file name without its ending.
func (d Folder) Cert(name string) string { return filepath.Join(string(d), name+".pem") }

// Key returns the path of the key of a certificate.
func (d Folder) Key(name string) string { return filepath.Join(string(d), name+".key") }

// CA returns the path of the certificate of the authority.
func (d Folder) CA() string { return d.Cert(caName) }

const caName = "ca"

const (
	// Life is how long the certificates of a Folder are valid.
	Life = 365 * 24 * time.Hour
	// authorityLife is longer, so that certificates can be replaced without their authority.
	authorityLife = 10 * Life
)

// Wanted is a certificate to issue: what Authority.Issue gets, and the name of its files.
type Wanted struct {
	File  string
	Use   Use
	Hosts []string
}

// Create makes the folder, with a new authority, the certificates, and other files as they are. An
// existing folder must belong to this user, and no one else may be able to write to it.
//
// Errors: fs.ErrExist if one of the files exists: nothing is written then; a folder of another user
// or a symbolic link; those of the file system.
func (d Folder) Create(name string, others map[string][]byte, wanted ...Wanted) error {
	const dirMode = 0o700
	if err := os.MkdirAll(string(d), dirMode); err != nil {
		return err //nolint:wrapcheck // it names the folder
	}
	a, err := New(name, authorityLife)
	if err != nil {
		return err
	}
	key, err := a.keyPEM()
	if err != nil {
		return err
	}
	a.life = Life
	files := map[string][]byte{d.CA(): a.PEM(), d.Key(caName): key}
	for file, text := range others {
		files[filepath.Join(string(d), file)] = text
	}
	return d.issue(a, files, wanted)
}

// Issue adds certificates of the authority in the folder.
//
// Errors: those of Create, and of Parse.
func (d Folder) Issue(wanted ...Wanted) error {
	cert, err := os.ReadFile(d.CA())
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	key, err := ownfile.ReadPrivate(d.Key(caName))
	if err != nil {
		return err
	}
	a, err := Parse(append(cert, key...), Life)
	if err != nil {
		return fmt.Errorf("%s: %w", d, err)
	}
	return d.issue(a, map[string][]byte{}, wanted)
}

func (d Folder) issue(a *Authority, files map[string][]byte, wanted []Wanted) error {
	if err := d.check(); err != nil {
		return err
	}
	for _, w := range wanted {
		pair, err := a.Issue(w.Use, w.File, w.Hosts...)
		if err != nil {
			return err
		}
		files[d.Cert(w.File)], files[d.Key(w.File)] = pair.Cert, pair.Key
	}
	return write(files)
}

// check refuses a folder in which another user could replace the files.
func (d Folder) check() error {
	if err := ownfile.Check(string(d)); err != nil {
		return err
	}
	info, err := os.Lstat(string(d))
	switch {
	case err != nil:
		return err //nolint:wrapcheck // it names the file
	case !info.IsDir():
		return fmt.Errorf("%s: must be a folder", d)
	case ownfile.CanOthersWrite(info.Mode()):
		return fmt.Errorf("%s: other users can write to it; use chmod go-w, or another folder", d)
	}
	return nil
}

// write creates all of the files, or none.
func write(files map[string][]byte) error {
	for path := range files {
		switch _, err := os.Lstat(path); {
		case err == nil:
			return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
		case !errors.Is(err, fs.ErrNotExist):
			return err //nolint:wrapcheck // it names the folder
		}
	}
	var written []string
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := ownfile.Create(path, files[path]); err != nil {
			for _, path := range written {
				err = errors.Join(err, os.Remove(path))
			}
			return fmt.Errorf("certs: %w", err)
		}
		written = append(written, path)
	}
	return nil
}
