//go:build unix

package testserver

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// shim is a piece of C that is built for one test and put between servers and their system,
// with a number in a file that both have in their memory: the test sets it while they run.
type shim struct {
	t        testing.TB
	dir      string
	file     string // of the number
	variable string // that tells a server where the file is
}

// newShim makes the folder of a shim, whose number is 0.
func newShim(t testing.TB, variable string) *shim {
	t.Helper()
	dir := Dir(t)
	s := &shim{t: t, dir: dir, file: filepath.Join(dir, "number"), variable: variable}
	s.set(0)
	s.readable(dir, s.file)
	return s
}

// build compiles a source and returns the path of the result. flags are more of those of
// the compiler: "-shared" for a library.
func (s *shim) build(name string, source []byte, flags ...string) string {
	s.t.Helper()
	path, built := filepath.Join(s.dir, name+".c"), filepath.Join(s.dir, name)
	if err := os.WriteFile(path, source, 0o600); err != nil {
		s.t.Fatalf("testserver: %v", err)
	}
	args := append([]string{"-O2", "-Wall", "-Werror", "-o", built, path}, flags...)
	build := Start(s.t, Command{Path: "gcc", Dir: s.dir, Args: args})
	build.wanted.Store(true)
	if err := build.Wait(startTimeout); err != nil {
		s.t.Fatalf("testserver: gcc: %v\n%s", err, build.Log())
	}
	s.readable(built)
	return built
}

// readable lets a server read the files that runs as another user.
func (s *shim) readable(paths ...string) {
	s.t.Helper()
	for _, path := range paths {
		mode := os.FileMode(0o755)
		if path == s.file {
			mode = 0o644
		}
		if err := os.Chmod(path, mode); err != nil {
			s.t.Fatalf("testserver: %v", err)
		}
	}
}

// set changes the number.
func (s *shim) set(n int64) {
	s.t.Helper()
	var text [8]byte
	binary.NativeEndian.PutUint64(text[:], uint64(n)) //nolint:gosec // all bits count
	// The servers have the file in their memory: it stays the same one.
	f, err := os.OpenFile(s.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteAt(text[:], 0)
		_ = f.Close() // what was written is seen
	}
	if err != nil {
		s.t.Fatalf("testserver: %s: %v", s.variable, err)
	}
}
