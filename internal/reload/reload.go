// Package reload finds out when files have changed: a policy, a certificate, a token.
package reload

import (
	"context"
	"crypto/sha256"
	"os"
	"slices"
	"time"
)

// Files are files as they were last read. They are read, rather than watched: so a change is found on
// every file system, also when a link is exchanged, as Kubernetes does it. They are meant to be small.
// The methods are not safe for concurrent use.
type Files struct {
	paths []string
	last  [][sha256.Size]byte // as they were read last; zero: it could not be read
	seen  [][sha256.Size]byte // as they were when Changed reported them, or in New
}

// New reads the files. The caller reads them after that, so that a change in between is found.
func New(paths ...string) *Files {
	f := &Files{paths: paths}
	f.last = f.read()
	f.seen = f.last
	return f
}

func (f *Files) read() [][sha256.Size]byte {
	all := make([][sha256.Size]byte, len(f.paths))
	for i, path := range f.paths {
		if text, err := os.ReadFile(path); err == nil { //nolint:gosec // a path of the configuration
			all[i] = sha256.Sum256(text)
		}
	}
	return all
}

// Changed reports whether any of the files has changed since it reported that, or since New, and is the same as in the
// last call: a file that is being written has every state in between. A file that can no longer be read has changed.
func (f *Files) Changed() bool {
	now := f.read()
	steady := slices.Equal(now, f.last)
	f.last = now
	if !steady || slices.Equal(now, f.seen) {
		return false
	}
	f.seen = now
	return true
}

// Keep calls read, and calls it again after each change of the files (see Changed), until the function that it
// returns is called. It tells told the result of each call after the first one.
//
// Errors: that of the first call of read.
func Keep(every time.Duration, read func() error, told func(error), paths ...string) (func(), error) {
	files := New(paths...)
	if err := read(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		files.Run(ctx, every, func() { told(read()) })
	}()
	return func() { stop(); <-ended }, nil
}

// Run calls changed after each change, until ctx ends. It reads the files as often as every says.
func (f *Files) Run(ctx context.Context, every time.Duration, changed func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if f.Changed() {
				changed()
			}
		}
	}
}
