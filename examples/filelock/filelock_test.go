//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package filelock_test

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/examples/filelock"
)

// TestConformance runs the suite with many backend values on one directory: they share nothing but the
// files.
func TestConformance(t *testing.T) {
	t.Parallel()
	dir := create(t)
	backendtest.Run(t, backendtest.Harness{
		Open:      func(t backendtest.T) backend.Backend { return open(t, dir) },
		NoRestart: "there is no server; processes that are killed have their own tests",
	})
}

// create makes a store.
func create(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "locks")
	if err := filelock.Create(dir); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// open opens a store.
func open(t backendtest.T, dir string) *filelock.Backend {
	t.Helper()
	b, err := filelock.Open(dir)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return b
}
