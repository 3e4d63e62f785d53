//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
)

func TestTarget(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"sqlite:///var/lib/locks.db":   "/var/lib/locks.db",
		"sqlite:/var/lib/locks.db":     "/var/lib/locks.db",
		"sqlite:locks.db":              "locks.db",
		"sqlite:dir/locks.db":          "dir/locks.db",
		"SQLite:locks.db":              "locks.db",
		"sqlite:///a%20b%3Fc%23d%25e":  "/a b?c#d%e",
		"sqlite:///a?":                 "/a",
		"/var/lib/locks.db":            "/var/lib/locks.db",
		"locks.db":                     "locks.db",
		"with a ? and a # and 100%.db": "with a ? and a # and 100%.db",
		"file:locks.db":                "file:locks.db",
		"a:b":                          "a:b",
	} {
		if got, err := sqlitelock.ParseTarget(target); err != nil || got != want {
			t.Errorf("%q: %q, %v; it has to be %q", target, got, err, want)
		}
	}
	for _, target := range []string{
		"", "sqlite:", "sqlite://", "sqlite:///", "sqlite:///dir/", "dir/", "sqlite://host/path", "sqlite://user:secret@host/path",
		"sqlite:///a?mode=ro", "sqlite:///a?x", "sqlite:///a?secret=1&y", "sqlite:///a#b", "sqlite:///a%zz", "sqlite:///a%00b", "a\x00b",
		":memory:", "sqlite::memory:", "redis://:secret@host", "file:///a", "postgres://user:secret@host/db",
	} {
		_, err := sqlitelock.ParseTarget(target)
		if !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%q: %v; it has to be ErrInvalid", target, err)
		} else if strings.Contains(target, ":secret@") && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error shows the password: %v", target, err)
		}
		if _, err := sqlitelock.Open(t.Context(), target, sqlitelock.Config{}); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("Open(%q): %v; it has to be ErrInvalid", target, err)
		}
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"sqlite:///a", "sqlite:a?b=c", "sqlite://h/a", "a", "sqlite:///%41%2f", "x://y", ":memory:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		path, err := sqlitelock.ParseTarget(target)
		if err != nil {
			if !errors.Is(err, backend.ErrInvalid) {
				t.Errorf("%q: %v", target, err)
			}
			return
		}
		if path == "" || strings.ContainsRune(path, 0) {
			t.Errorf("%q gives the path %q", target, path)
		}
		dsn := sqlitelock.DataSource("/" + path)
		if rest, ok := strings.CutPrefix(dsn, "file:/"); !ok || strings.Count(dsn, "?") != 1 || strings.ContainsAny(rest, "# ") {
			t.Errorf("%q gives the data source %q", target, dsn)
		}
	})
}

// TestStrangeNames creates lock files whose names mean something in URLs and to SQLite.
func TestStrangeNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a b.db", "a?mode=memory", "a#b", "100%.db", "%41", "ä.db", "file:x", "it's \"it\".db", strings.Repeat("n", 200)} {
		path := filepath.Join(t.TempDir(), name)
		a, b := mustOpen(t, path), mustOpen(t, path)
		exclusive(t, a, b)
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// TestRelativePath opens a file of the working directory.
func TestRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	a, b := mustOpen(t, "locks.db"), mustOpen(t, "sqlite:./locks.db")
	exclusive(t, a, b)
}

func TestDefaultPath(t *testing.T) {
	t.Parallel()
	home := func() (string, error) { return "/home/u", nil }
	homeless := func() (string, error) { return "", os.ErrNotExist }
	for _, c := range []struct {
		uid   int
		state string
		home  func() (string, error)
		want  string
	}{
		{0, "/state", home, "/var/lib/holdfast/locks.db"},
		{1000, "/state", homeless, "/state/holdfast/locks.db"},
		{1000, "", home, "/home/u/.local/state/holdfast/locks.db"},
		{1000, "relative", home, "/home/u/.local/state/holdfast/locks.db"},
		{1000, "", homeless, ""},
	} {
		got, err := sqlitelock.DefaultPathFor(c.uid, c.state, c.home)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%d %q: %q, %v; it has to be %q", c.uid, c.state, got, err, c.want)
		}
	}
}

func TestFileSystems(t *testing.T) {
	t.Parallel()
	for number, want := range map[uint32]string{
		0x6969: "nfs", 0x517b: "smb", 0xff534d42: "cifs", 0xfe534d42: "smb2", 0x01021997: "9p", 0x5346414f: "afs", 0x00c36400: "ceph",
		0x0bd00bd0: "lustre", 0x65735546: "fuse", 0x01161970: "gfs2", 0x7461636f: "ocfs2", 0x786f4256: "vboxsf",
		0xef53: "", 0x58465342: "", 0x9123683e: "", 0x01021994: "", 0x794c7630: "", 0x2fc12fc1: "", 0xca451a4e: "", 0xf2f52010: "",
	} {
		if name, refused := sqlitelock.RefusedFileSystem(number); name != want || refused != (want != "") {
			t.Errorf("%#x: %q, %t; it has to be %q", number, name, refused, want)
		}
	}
	if err := sqlitelock.CheckFileSystem(t.TempDir(), "locks.db"); err != nil {
		t.Error(err)
	}
	if err := sqlitelock.CheckFileSystem("/no such directory", "locks.db"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	err := error(&sqlitelock.FileSystemError{Path: "/mnt/locks.db", Type: "nfs"})
	if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "nfs") {
		t.Error(err)
	}
}

// TestOpenDoesNotUnlock has one program open and close the file while another one of the same
// process has it locked: SQLite's locks must not be dropped.
func TestOpenDoesNotUnlock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	keep := mustOpen(t, path)
	for range 20 {
		closed(t, mustOpen(t, path))
	}
	// A database whose locks were dropped would look unused: the log would be removed at the last
	// close.
	if _, err := os.Stat(path + "-wal"); err != nil {
		t.Errorf("the log is gone while the file is in use: %v", err)
	}
	exclusive(t, keep, mustOpen(t, path))
	if _, err := other(t, path).ExecContext(t.Context(), "PRAGMA journal_mode = DELETE"); err == nil {
		t.Error("another connection could lock the file exclusively while it is in use")
	}
	// A connection of this process counts the locks that SQLite remembers. Those of the kernel may have been dropped.
	p := start(t, job{Do: "probe", Path: path})
	p.expect("locked")
	if err := p.end(); err != nil {
		t.Error(err)
	}
}
