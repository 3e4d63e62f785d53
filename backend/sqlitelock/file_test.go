//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// other opens the file as a program that is not ours.
func other(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// fixture is a file with a defect.
type fixture struct {
	t    *testing.T
	path string
}

// made creates a lock file.
func (f fixture) made() fixture {
	f.t.Helper()
	closed(f.t, mustOpen(f.t, f.path))
	return f
}

// script runs SQL on the file.
func (f fixture) script(script string) {
	f.t.Helper()
	db := other(f.t, f.path)
	if _, err := db.ExecContext(f.t.Context(), script); err != nil {
		f.t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		f.t.Fatal(err)
	}
}

// spoil overwrites a part of the file.
func (f fixture) spoil(at int64, with string) {
	f.t.Helper()
	file, err := os.OpenFile(f.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		_, err = file.WriteAt([]byte(with), at)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		make func(f fixture)
		want error
	}{
		{"text", func(f fixture) { f.spoil(0, strings.Repeat("no database ", 1000)) }, sqlitelock.ErrForeign},
		{"short text", func(f fixture) { f.spoil(0, "no database") }, sqlitelock.ErrForeign},
		{"another program's database", func(f fixture) { f.script("CREATE TABLE mine (x)") }, sqlitelock.ErrForeign},
		{"another program's application_id", func(f fixture) { f.script("PRAGMA application_id = 7") }, sqlitelock.ErrForeign},
		{"a directory", func(f fixture) { _ = os.Mkdir(f.path, 0o700) }, sqlitelock.ErrForeign},
		{"another encoding", func(f fixture) { f.script("PRAGMA encoding = 'UTF-16le'; CREATE TABLE x (y); DROP TABLE x") }, sqlitelock.ErrForeign},
		{"a trigger", func(f fixture) {
			f.made().script("CREATE TRIGGER mine AFTER INSERT ON leases BEGIN DELETE FROM leases; END")
		}, sqlitelock.ErrForeign},
		{"an older version", func(f fixture) { f.made().script("PRAGMA user_version = 2") }, sqlitelock.ErrForeign}, // of the main branch
		{"a later version", func(f fixture) { f.made().script("PRAGMA user_version = 4") }, sqlitelock.ErrNewer},
		{"a spoilt header", func(f fixture) { f.made().spoil(0, "xxxxxxxxxxxx") }, sqlitelock.ErrForeign},
		{"a spoilt page", func(f fixture) { f.made().spoil(4096, strings.Repeat("x", 4096)) }, sqlitelock.ErrCorrupt},
		{"a spoilt schema", func(f fixture) { f.made().spoil(100, strings.Repeat("\xff", 900)) }, sqlitelock.ErrCorrupt},
		{"no row of meta", func(f fixture) { f.made().script("DELETE FROM meta") }, sqlitelock.ErrCorrupt},
		{"a bad value", func(f fixture) {
			f.made().script("PRAGMA ignore_check_constraints = ON; UPDATE meta SET token = reserved + 1")
		}, sqlitelock.ErrCorrupt},
		{"no directory", func(f fixture) { _ = os.Remove(filepath.Dir(f.path)) }, os.ErrNotExist},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "dir", "locks.db")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			c.make(fixture{t, path})
			before, _ := os.ReadFile(path)
			b, err := sqlitelock.Open(t.Context(), path, sqlitelock.Config{})
			if err == nil {
				t.Fatalf("it was opened: %v", b.Close())
			}
			if !errors.Is(err, c.want) {
				t.Errorf("Open: %v; it has to be: %v", err, c.want)
			}
			if c.name == "an older version" && (!strings.Contains(err.Error(), "version 2") || !strings.Contains(err.Error(), "delete the file")) {
				t.Errorf("Open: %v; it has to tell what to do", err)
			}
			if errors.Is(c.want, sqlitelock.ErrNewer) {
				if !errors.Is(err, backend.ErrUnsupported) {
					t.Errorf("Open: %v; it has to be ErrUnsupported", err)
				}
			} else if u := (*backend.UnavailableError)(nil); !errors.As(err, &u) || u.MayHold || !errors.Is(err, backend.ErrRefused) {
				t.Errorf("Open: %v; it has to be an UnavailableError that is ErrRefused", err)
			}
			if after, _ := os.ReadFile(path); string(after) != string(before) && errors.Is(c.want, sqlitelock.ErrForeign) {
				t.Errorf("a file that is not ours was changed")
			}
		})
	}
}

func TestOpenRefusesHardLinks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	mustOpen(t, path)
	if err := os.Link(path, path+".2"); err != nil {
		t.Fatal(err)
	}
	if b, err := sqlitelock.Open(t.Context(), path+".2", sqlitelock.Config{}); err == nil {
		t.Errorf("a second name was opened: %v", b.Close())
	}
}

// TestSymbolicLink has one process use the file by a symbolic link to it, and one by
// a link to its directory: it is one file, with one log.
func TestSymbolicLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "locks.db")
	b := mustOpen(t, path)
	for _, link := range [][2]string{{path, "link.db"}, {dir, "linked"}} {
		if err := os.Symlink(link[0], filepath.Join(dir, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"link.db", "linked/locks.db"} {
		same := mustOpen(t, filepath.Join(dir, link))
		exclusive(t, b, same)
		if id, others := b.StoreID(), mustOpen(t, path+".other").StoreID(); id != same.StoreID() || id == others || len(id) < 32 {
			t.Errorf("%s: the IDs are %q and %q, and that of another file %q", link, id, same.StoreID(), others)
		}
	}
}

// exclusive checks that the locks of one value are refused to the other.
func exclusive(t *testing.T, a, b *sqlitelock.Backend) {
	t.Helper()
	name := string(backend.NewLeaseID())
	req := lasting(name)
	leasetest.Take(t, a, req)
	req.Lease = backend.NewLeaseID()
	if _, err := b.Acquire(t.Context(), req); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("both have it: %v", err)
	}
}

// TestFilesArePrivate checks the modes of the files that are created.
func TestFilesArePrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	b := mustOpen(t, path)
	leasetest.Session(t, b, time.Minute, nil)
	for suffix, want := range map[string]os.FileMode{"": 0o600, "-wal": 0o600, "-shm": 0o600, "-turn": 0o600, "-wake": os.ModeDir | 0o700} {
		info, err := os.Stat(path + suffix)
		if err != nil || info.Mode() != want {
			t.Errorf("%s%s: %v, %v; it has to be %v", path, suffix, info.Mode(), err, want)
		}
	}
}

// TestReplacedFile removes the file while it is in use: nothing is granted any more, and the
// waiters get an error.
func TestReplacedFile(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("replaced=", again), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "locks.db")
			b := mustOpen(t, path)
			sess := leasetest.Session(t, b, time.Minute, nil)
			leasetest.Take(t, b, leasetest.Ask("x", sess))
			waited := make(chan error, 1)
			go func() {
				_, err := b.Acquire(t.Context(), leasetest.Ask("x", sess))
				waited <- err
			}()
			leasetest.InQueue(t, b, "x", 1)
			if err := os.Rename(path, path+".old"); err != nil {
				t.Fatal(err)
			}
			if again {
				fixture{t, path}.spoil(0, "")
			}
			_, err := b.Acquire(t.Context(), leasetest.Ask("y", sess))
			if !errors.Is(err, sqlitelock.ErrReplaced) || !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("Acquire: %v; it has to be ErrReplaced", err)
			}
			if err := <-waited; !errors.Is(err, sqlitelock.ErrReplaced) {
				t.Errorf("the waiter got %v; it has to be ErrReplaced", err)
			}
			if again {
				_ = os.Remove(path)
			}
			_ = os.Rename(path+".old", path)
			if err := b.OpenSession(t.Context(), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Second}); !errors.Is(err, sqlitelock.ErrReplaced) {
				t.Errorf("OpenSession: %v; it has to be ErrReplaced", err)
			}
		})
	}
}

// TestReplacedLog removes the files beside the file while it is in use, as a user does who
// restores a copy of the file, or cleans up. A process that opens it then has a log and locks of
// its own, so those that had it open grant nothing any more.
func TestReplacedLog(t *testing.T) {
	t.Parallel()
	for _, suffixes := range [][]string{{"-wal"}, {"-shm"}, {"-wal", "-shm"}} {
		t.Run(fmt.Sprint(suffixes), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "locks.db")
			b := mustOpen(t, path)
			sess := leasetest.Session(t, b, time.Minute, nil)
			for _, suffix := range suffixes {
				if err := os.Remove(path + suffix); err != nil {
					t.Fatal(err)
				}
			}
			_, err := b.Acquire(t.Context(), leasetest.Ask("x", sess))
			if !errors.Is(err, sqlitelock.ErrReplaced) || !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("Acquire: %v; it has to be ErrReplaced", err)
			}
		})
	}
}

// TestSocketSweptAtClose opens the file while another value closes it: it finds a socket without
// a listener, and removes it.
func TestSocketSweptAtClose(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	b := mustOpen(t, path)
	leasetest.Session(t, b, time.Hour, nil)
	sockets, err := filepath.Glob(path + "-wake/*")
	if err != nil || len(sockets) != 1 {
		t.Fatalf("%q, %v; there has to be one socket", sockets, err)
	}
	if err := os.Remove(sockets[0]); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// full returns a backend whose file is full, of locks under a session.
func full(t *testing.T) (*sqlitelock.Backend, []backend.AcquireRequest) {
	t.Helper()
	b := mustOpen(t, filepath.Join(t.TempDir(), "locks.db"), sqlitelock.WithPages(40))
	sess := leasetest.Session(t, b, time.Hour, nil)
	var held []backend.AcquireRequest
	for i := range 10000 {
		req := large(fmt.Sprintf("lock-%d", i), sess)
		_, err := b.Acquire(t.Context(), req)
		if err == nil {
			held = append(held, req)
			continue
		}
		if u := (*backend.UnavailableError)(nil); !errors.Is(err, sqlitelock.ErrFull) || !errors.As(err, &u) || u.MayHold {
			t.Fatalf("Acquire: %v; it has to be ErrFull, and not held", err)
		}
		info, err := b.Inspect(t.Context(), req.Name)
		if err != nil || len(info.Holders)+len(info.Waiters) > 0 {
			t.Errorf("after ErrFull the lock is %+v, %v", info, err)
		}
		break
	}
	if len(held) == 0 || len(held) == 10000 {
		t.Fatalf("%d locks fit", len(held))
	}
	return b, held
}

// large returns a request for a lock that needs much space.
func large(name string, sess backend.SessionID) backend.AcquireRequest {
	req := leasetest.Ask(name, sess)
	req.Note = strings.Repeat("n", backend.MaxNoteLen)
	return req
}

// renews checks that a session lives, and needs no space.
func renews(t *testing.T, b *sqlitelock.Backend, sess backend.SessionID) {
	t.Helper()
	if res, err := b.Renew(t.Context(), backend.RenewRequest{Session: sess}); err != nil || res.SessionLost {
		t.Errorf("Renew: %+v, %v", res, err)
	}
}

// TestFullDisk fills the file up: what does not fit is refused, and has not happened; what needs
// no space still works.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	b, held := full(t)
	renews(t, b, held[0].Session)
	for _, req := range held {
		leasetest.Give(t, b, req)
	}
	if _, err := b.Acquire(t.Context(), held[0]); err != nil {
		t.Errorf("Acquire: %v; there is space again", err)
	}
}

// TestFullDiskSparesTheOthers has requests of one transaction of which one does not fit: the
// others succeed.
func TestFullDiskSparesTheOthers(t *testing.T) {
	t.Parallel()
	b, held := full(t)
	sess := held[0].Session
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if _, err := b.Acquire(t.Context(), large(fmt.Sprintf("more-%d", i), sess)); err != nil && !errors.Is(err, sqlitelock.ErrFull) {
				t.Errorf("Acquire: %v", err)
			}
		})
		wg.Go(func() { renews(t, b, sess) })
	}
	wg.Wait()
}

// TestLockedByOthers has another program lock the file: calls end with their contexts and report
// that nothing happened; afterwards everything continues.
func TestLockedByOthers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	b := mustOpen(t, path)
	sess := leasetest.Session(t, b, time.Hour, nil)
	conn, err := other(t, path).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	req := leasetest.Ask("x", sess)
	leasetest.Eventually(t, "the reason", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := b.Acquire(ctx, req)
		u := (*backend.UnavailableError)(nil)
		if !errors.As(err, &u) || u.MayHold || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire: %v; it has to be an UnavailableError that says that nothing is held", err)
		}
		var locked *sqlite.Error // a busy machine may not have asked the file in time
		return errors.As(err, &locked) && locked.Code() == sqlite3.SQLITE_BUSY
	})
	had := make(chan error, 1)
	go func() {
		_, err := b.Acquire(t.Context(), req)
		had <- err
	}()
	if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := <-had; err != nil {
		t.Error(err)
	}
}

// taken takes the turn, as a process does that stops then.
func taken(t *testing.T, path string) *os.File {
	t.Helper()
	turn, err := os.OpenFile(path+"-turn", os.O_RDWR, 0)
	if err == nil {
		err = syscall.Flock(int(turn.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

// TestStoppedInATransaction has another process of ours stop in its turn: calls end with their
// contexts, and Close does not wait for it.
func TestStoppedInATransaction(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	b := mustOpen(t, path)
	sess := leasetest.Session(t, b, time.Hour, nil)
	turn := taken(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := b.Acquire(ctx, leasetest.Ask("x", sess))
	if u := (*backend.UnavailableError)(nil); !errors.As(err, &u) || u.MayHold {
		t.Errorf("Acquire: %v; it has to be an UnavailableError that says that nothing is held", err)
	}
	if _, err := sqlitelock.Open(ctx, path, sqlitelock.Config{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open: %v; it has to end with its context", err)
	}
	from := time.Now()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(from); took > slack {
		t.Errorf("Close took %s", took)
	}
	if err := turn.Close(); err != nil { // now those that are asleep in the kernel wake up
		t.Fatal(err)
	}
	exclusive(t, mustOpen(t, path), mustOpen(t, path))
}
