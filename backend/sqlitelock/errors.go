package sqlitelock

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// What can be wrong with the file. Each is wrapped in a *backend.UnavailableError, except
// ErrNewer, which is backend.ErrUnsupported. Test with errors.Is.
var (
	// ErrForeign: the file is not a lock file of Holdfast. It was not changed.
	ErrForeign = errors.New("not a lock file of holdfast")
	// ErrNewer: a later version of Holdfast created the file. It was not changed.
	ErrNewer = errors.New("the lock file is of a later version")
	// ErrCorrupt: the file is damaged. Nothing is granted from it.
	ErrCorrupt = errors.New("the lock file is damaged")
	// ErrReadOnly: the file, or its directory, is not writable. It is backend.ErrRefused too.
	ErrReadOnly = errors.New("the lock file cannot be written")
	// ErrFull: the disk, or the quota, is full.
	ErrFull = errors.New("no space for the lock file")
	// ErrReplaced: the file, its log or the log's index was deleted, replaced or taken over by
	// another machine while it was open. The backend value grants nothing any more.
	ErrReplaced = errors.New("the lock file was replaced")
	// ErrOtherBoot: processes of another boot have the file open: those of another container that
	// sees a boot ID of its own, or of another machine. It was not changed.
	ErrOtherBoot = errors.New("the lock file is in use by another boot or machine")
	// ErrSync: the disk did not confirm a write, so a power failure may lose it.
	// The backend value grants nothing any more.
	ErrSync = errors.New("the disk did not confirm a write")
)

// errOlder: a program of the main branch created the file, before the first release.
var errOlder = fmt.Errorf("%w of this version", ErrForeign)

var errLinks = errors.New("the lock file has more than one name (hard links)")

// FileSystemError means that the file is on a file system that is shared between machines, or may
// be: neither its locks nor the clock can be trusted there. It is backend.ErrUnsupported.
type FileSystemError struct {
	// Path of the lock file.
	Path string
	// Type of the file system: "nfs".
	Type string
}

// Error returns a message with the path and the type.
func (e *FileSystemError) Error() string {
	return fmt.Sprintf("%s: %s: lock file %q is on a file system of type %s; it must be on a local disk", backendName, backend.ErrUnsupported, e.Path, e.Type)
}

// Unwrap returns backend.ErrUnsupported.
func (e *FileSystemError) Unwrap() error { return backend.ErrUnsupported }

// unavailable maps the errors of SQLite and the operating system. mayHold: the request may have
// been executed all the same.
func unavailable(op string, mayHold bool, err error) error {
	if errors.Is(err, backend.ErrClosed) || errors.Is(err, backend.ErrUnsupported) || errors.Is(err, backend.ErrInvalid) {
		return err
	}
	if cause := causeOf(err); cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if errors.Is(err, ErrReadOnly) {
		err = &backend.RefusedError{Backend: backendName, Reason: "this user may not write", Remedy: "let it write the file and its folder", Err: err}
	}
	return &backend.UnavailableError{Backend: backendName, Op: op, MayHold: mayHold, Err: connect.Refused(backendName, err, remedy(err))}
}

// remedy returns what to change where the file is refused until somebody does, or "".
func remedy(err error) string {
	switch {
	case errors.Is(err, errOlder):
		return "delete the file when no program uses it"
	case errors.Is(err, ErrForeign):
		return "name another file: this one is not a database"
	case errors.Is(err, ErrCorrupt):
		return "delete the file when no program uses it"
	case errors.Is(err, fs.ErrPermission):
		return "allow this user to read and write the file and its folder"
	case errors.Is(err, fs.ErrNotExist):
		return "create the folder of the file"
	case !passes(resultCode(err)):
		return connect.Unknown
	}
	return ""
}

// passes reports whether a retry may succeed after a result of SQLite although nobody has changed anything.
func passes(code int) bool {
	switch code {
	case 0, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_INTERRUPT,
		sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN:
		return true
	}
	return false
}

// causeOf returns which of our errors it is, or nil.
func causeOf(err error) error {
	switch resultCode(err) {
	case sqlite3.SQLITE_FULL:
		return ErrFull
	case sqlite3.SQLITE_CORRUPT:
		return ErrCorrupt
	case sqlite3.SQLITE_NOTADB:
		return ErrForeign
	case sqlite3.SQLITE_READONLY:
		return ErrReadOnly
	}
	switch {
	case errors.Is(err, sql.ErrNoRows): // there is a row of meta in every file of ours
		return ErrCorrupt
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return ErrReadOnly
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ErrFull
	}
	return nil
}

// resultCode returns SQLite's primary result code, and 0 for any other error.
func resultCode(err error) int {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code() & 0xff
}

// busy reports whether another connection has the file locked.
func busy(err error) bool {
	code := resultCode(err)
	return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_LOCKED
}
