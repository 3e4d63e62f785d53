package sqlitelock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"modernc.org/sqlite"

	"github.com/holdfast-io/holdfast/backend"
)

//go:embed schema.sql
var schema string

const (
	applicationID = 0x486f6c64 // "Hold": marks the file as ours
	schemaVersion = 3
)

// store is the one connection to the file.
type store struct {
	path  string
	id    string // of the file: see backend.Identified
	db    *sql.DB
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	wal   *os.File               // SQLite's log, only to sync it: no locks are on that file
	files map[string]os.FileInfo // the file, and once they exist the log and its index, by path

	// blocked is what the writer waits for; nil: for nothing that other processes have.
	blocked atomic.Pointer[error]

	reserve int64 // how far ahead of a token the next ones are reserved

	// For tests that lose the power.
	aroundSync func() (func(), error)
	through    func(io.WriterAt) io.WriterAt // what is written to the log once more
}

// openStore connects to the file, and creates it where there is none. The caller has the turn.
func openStore(ctx context.Context, path string, rights os.FileMode, o options) (*store, error) {
	made, err := makeFile(path, rights)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector(dataSource(path)))
	db.SetMaxOpenConns(1)
	s := &store{path: path, db: db, stmts: make(map[string]*sql.Stmt), files: map[string]os.FileInfo{path: made}, reserve: o.reserve, aroundSync: o.aroundSync, through: o.through}
	err = untilFree(ctx, func() error {
		if s.conn == nil {
			conn, err := db.Conn(context.WithoutCancel(ctx))
			if err != nil {
				return fmt.Errorf("open %s: %w", path, err)
			}
			s.conn = conn
		}
		return s.configure(ctx, o.pages)
	})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// connector opens connections with a driver of its own. What the program has registered for SQLite in this
// process does not apply to them: functions that replace built-in ones, hooks that set pragmas.
type connector string

func (c connector) Connect(context.Context) (driver.Conn, error) {
	return c.Driver().Open(string(c)) //nolint:wrapcheck // openStore does
}

func (connector) Driver() driver.Driver { return new(sqlite.Driver) }

// makeFile makes sure that the file exists. SQLite gives its rights and its group to the log. It never opens
// an existing one: closing it would drop SQLite's locks on it, of the whole process.
func makeFile(path string, rights os.FileMode) (os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, rights) //nolint:gosec // the caller names the file
	if err == nil {
		err = errors.Join(f.Chmod(rights), f.Close()) // whatever the umask
	} else if errors.Is(err, os.ErrExist) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("lock file: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file: %w", path, ErrForeign)
	case linked(info):
		return nil, fmt.Errorf("%s: %w", path, errLinks)
	}
	return info, nil
}

// configure sets up the connection. It does not change a file that is not ours.
func (s *store) configure(ctx context.Context, pages int) error {
	pragmas := []string{
		"busy_timeout = 0", // SQLite's wait does not respect contexts: see untilFree
		"trusted_schema = OFF",
		"cell_size_check = ON", // find damage before the data is used
		"temp_store = MEMORY",
		// The log is synced by the syncer, after the transaction, where an answer must survive a
		// power failure. What SQLite must sync to keep the file sound it does sync.
		"synchronous = NORMAL",
	}
	if pages > 0 {
		pragmas = append(pragmas, fmt.Sprintf("max_page_count = %d", pages))
	}
	for _, p := range pragmas {
		if err := s.exec(ctx, "PRAGMA "+p); err != nil {
			return err
		}
	}
	if err := s.refuseForeign(ctx); err != nil {
		return err
	}
	var mode string
	if err := s.read(ctx, "PRAGMA journal_mode = WAL", &mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the file system allows no write-ahead log, only %q: %w", mode, backend.ErrUnsupported)
	}
	return nil
}

// refuseForeign examines the file at one moment, and refuses one that is not ours.
func (s *store) refuseForeign(ctx context.Context) error {
	if err := s.exec(ctx, "BEGIN"); err != nil {
		return err
	}
	_, err := s.identify(ctx)
	s.rollback(context.WithoutCancel(ctx))
	return err
}

// identify reports whether the file is empty, and refuses one that is not ours. It is called in a
// transaction.
func (s *store) identify(ctx context.Context) (bool, error) {
	var app, version, tables int64
	var encoding, trigger string
	err := errors.Join(
		s.read(ctx, "PRAGMA application_id", &app),
		s.read(ctx, "PRAGMA user_version", &version),
		s.read(ctx, "PRAGMA encoding", &encoding),
		s.read(ctx, "SELECT count(*), coalesce(min(name) FILTER (WHERE type = 'trigger'), '') FROM sqlite_schema", &tables, &trigger))
	switch {
	case err != nil:
		return false, err
	case encoding != "UTF-8": // another program chose it, and names have another order there
		return false, fmt.Errorf("%s has the encoding %s: %w", s.path, encoding, ErrForeign)
	case trigger != "":
		return false, fmt.Errorf("%s has the trigger %q: %w", s.path, trigger, ErrForeign)
	case app == 0 && version == 0 && tables == 0:
		return true, nil
	case app != applicationID || version < 1:
		return false, fmt.Errorf("%s: %w", s.path, ErrForeign)
	case version < schemaVersion:
		return false, fmt.Errorf("%s has version %d, and this program supports version %d: %w", s.path, version, schemaVersion, errOlder)
	case version > schemaVersion:
		return false, fmt.Errorf("%s has version %d, and this program supports version %d: %w: %w", s.path, version, schemaVersion, ErrNewer, backend.ErrUnsupported)
	}
	return false, nil
}

// check checks the file for damage.
func (s *store) check(ctx context.Context) error {
	var found string
	err := untilFree(ctx, func() error {
		return s.read(ctx, "PRAGMA integrity_check(1)", &found)
	})
	if err != nil {
		return err
	}
	if found != "ok" {
		return fmt.Errorf("integrity check: %s: %w", found, ErrCorrupt)
	}
	return nil
}

// prepare creates the tables if there are none, and ends the sessions that a reboot ended. Its
// writes are on the disk when it returns. The caller has the turn.
func (s *store) prepare(ctx context.Context, h host, log *slog.Logger) error {
	steady := context.WithoutCancel(ctx)
	if err := s.unused(ctx, h); err != nil {
		return err
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	changed, err := s.bring(steady, h, log)
	if err == nil {
		err = errors.Join(s.read(steady, "SELECT file FROM meta", &s.id), s.openLog())
	}
	if err == nil {
		err = s.rewriteLog() // in the transaction: no one else writes
	}
	if err == nil {
		err = s.commit(steady)
	}
	if err != nil {
		s.rollback(steady)
		return err
	}
	if !changed {
		return nil
	}
	if err := errors.Join(syncData(s.wal), syncDir(filepath.Dir(s.path))); err != nil {
		return err
	}
	return untilFree(ctx, func() error { return s.exec(steady, "UPDATE meta SET durable = reserved") })
}

// unused refuses a file of another boot that a process has open: what lives with processes of
// that boot has not ended. A container may see a boot ID of its own, and a machine may share the
// file after all. The caller has the turn.
func (s *store) unused(ctx context.Context, h host) error {
	var made int
	boot := h.boot
	err := untilFree(ctx, func() error {
		err := s.read(ctx, "SELECT count(*) FROM sqlite_schema WHERE name = 'meta'", &made)
		if err == nil && made > 0 {
			err = s.read(ctx, "SELECT boot FROM meta", &boot)
		}
		return err
	})
	if err != nil || boot == h.boot {
		return err
	}
	// SQLite removes the log only where no other process has the file open.
	var mode string
	err = s.read(ctx, "PRAGMA journal_mode = DELETE", &mode)
	if busy(err) || err == nil && mode != "delete" {
		return fmt.Errorf("%s: %w", s.path, ErrOtherBoot)
	}
	if err != nil {
		return err
	}
	return s.read(ctx, "PRAGMA journal_mode = WAL", &mode)
}

// rewriteLog writes what the log has once more, and syncs it. Memory may have pages of the log that the disk
// does not have, and that the system takes for written: it reports a failed write once, to those who had the
// log open. They do nothing any more, but what others append to such a log, and sync, is lost with those pages
// when the power fails.
func (s *store) rewriteLog() error {
	size, err := s.wal.Seek(0, io.SeekEnd)
	if err == nil && size > 0 {
		_, err = io.Copy(io.NewOffsetWriter(s.through(s.wal), 0), io.NewSectionReader(s.wal, 0, size))
		if err == nil {
			err = s.syncLog()
		}
	}
	return err
}

// openLog opens SQLite's log, which exists since the first transaction began, and its index.
func (s *store) openLog() error {
	var err error
	if s.wal, err = os.OpenFile(s.path+"-wal", os.O_RDWR, 0); err != nil {
		return fmt.Errorf("write-ahead log: %w", err)
	}
	for _, path := range []string{s.path + "-wal", s.path + "-shm"} {
		if s.files[path], err = os.Stat(path); err != nil {
			return fmt.Errorf("write-ahead log: %w", err)
		}
	}
	return nil
}

// bring creates the tables, or takes them over from another boot.
func (s *store) bring(ctx context.Context, h host, log *slog.Logger) (bool, error) {
	fresh, err := s.identify(ctx) // again: now that no other process can create them
	if err != nil {
		return false, err
	}
	if fresh {
		return true, s.create(ctx, h)
	}
	var boot string
	if err := s.read(ctx, "SELECT boot FROM meta", &boot); err != nil {
		return false, err
	}
	if boot == h.boot {
		return false, nil
	}
	log.InfoContext(ctx, "the host was rebooted since the lock file was last used: all sessions have ended, timed leases continue", slog.String("path", s.path))
	return true, s.reboot(ctx, h)
}

// create creates the tables.
func (s *store) create(ctx context.Context, h host) error {
	for _, q := range []string{
		schema,
		fmt.Sprintf("PRAGMA application_id = %d", applicationID),
		fmt.Sprintf("PRAGMA user_version = %d", schemaVersion),
	} {
		if err := s.exec(ctx, q); err != nil {
			return err
		}
	}
	wall := h.wall()
	return s.exec(ctx, `INSERT INTO meta VALUES (1, lower(hex(randomblob(16))), ?, 0, ?, 0, 0, 0, ?, 0, ?, ?)`,
		h.boot, wall.UnixMicro()+s.reserve, int64(never), int64(h.now()), wall.UnixNano())
}

// reboot ends what lived with processes of another boot. Timed leases continue, for as long as
// they had left by the wall clock; never for longer than they had left when the file was last
// written.
func (s *store) reboot(ctx context.Context, h host) error {
	now, wall := int64(h.now()), h.wall()
	for _, q := range []string{
		"DELETE FROM sessions", "DELETE FROM losses", "DELETE FROM watchers", "DELETE FROM events",
		"DELETE FROM leases WHERE NOT (timed AND held)",
		"DELETE FROM tombs WHERE name = ''",
	} {
		if err := s.exec(ctx, q); err != nil {
			return err
		}
	}
	var seenBoot, seenWall int64
	if err := s.read(ctx, "SELECT seen_boot, seen_wall FROM meta", &seenBoot, &seenWall); err != nil {
		return err
	}
	down := max(0, wall.UnixNano()-seenWall)
	if err := s.exec(ctx,
		"UPDATE leases SET session = '', addr = '', ends = ?1 + max(1, min(ttl, ends - ?2) - ?3)", now, seenBoot, down); err != nil {
		return err
	}
	if err := s.exec(ctx, "UPDATE tombs SET until = ?", now+int64(remembered)); err != nil {
		return err
	}
	return s.exec(ctx, `UPDATE meta SET boot = ?1, token = reserved, reserved = max(reserved, ?2) + ?3,
		due = ?4, watched = 0, seen_boot = ?4, seen_wall = ?5`,
		h.boot, wall.UnixMicro(), s.reserve, now, wall.UnixNano())
}

// replaced returns an error when the path does not name the file any more, or when the log was
// removed, or its index, which has SQLite's locks: a process that opens the file then has other
// locks.
func (s *store) replaced() error {
	for path, opened := range s.files {
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(info, opened) {
			return fmt.Errorf("%s: %w", path, ErrReplaced)
		}
		if err != nil {
			return fmt.Errorf("lock file: %w", err)
		}
	}
	return nil
}

// sync waits until the log is on the disk, with all that was committed before.
func (s *store) sync() error {
	if err := s.replaced(); err != nil {
		return err
	}
	return s.syncLog()
}

func (s *store) syncLog() error {
	done, err := s.aroundSync()
	if err != nil {
		return err
	}
	if err := syncData(s.wal); err != nil {
		return err
	}
	done()
	return nil
}

func (s *store) close() error {
	var errs []error
	for _, stmt := range s.stmts {
		errs = append(errs, stmt.Close())
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	errs = append(errs, s.db.Close())
	if s.wal != nil {
		errs = append(errs, s.wal.Close())
	}
	return errors.Join(errs...)
}

// syncDir makes the names in a directory survive a power failure.
func syncDir(dir string) error {
	f, err := os.Open(dir) //nolint:gosec // it is the directory of the caller's file
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return errors.Join(f.Sync(), f.Close())
}
