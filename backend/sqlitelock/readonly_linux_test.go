package sqlitelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
)

// TestReadOnlyFile opens a file that the user may not write.
func TestReadOnlyFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	b, err := sqlitelock.Open(t.Context(), path, sqlitelock.Config{})
	if err == nil {
		err = b.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, files := range [][]string{{path}, {path, path + "-turn"}} {
		for _, f := range files {
			if err := os.Chmod(f, 0o444); err != nil {
				t.Fatal(err)
			}
		}
		for _, dir := range []string{filepath.Dir(path), filepath.Dir(filepath.Dir(path))} {
			if err := os.Chmod(dir, 0o755); err != nil { // another user needs access
				t.Fatal(err)
			}
		}
		asSomebodyElse(t, func() {
			b, err = sqlitelock.Open(t.Context(), path, sqlitelock.Config{})
		})
		if err == nil {
			t.Fatalf("it was opened: %v", b.Close())
		}
		if !errors.Is(err, sqlitelock.ErrReadOnly) || !errors.Is(err, backend.ErrRefused) || !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("Open: %v; it has to be ErrReadOnly", err)
		}
	}
}

// asSomebodyElse runs f on a thread that is not root, as which the test runs.
func asSomebodyElse(t *testing.T, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, 65534, 0, 0); errno != 0 {
			t.Errorf("setfsuid: %v", errno)
		}
		f()
	}()
	<-done
}
