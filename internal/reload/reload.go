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
	seen  [][sha256.Size]byte // zero: it could not be read
}

// New reads the files. The caller reads them after that, so that a change in between is found.
func New(paths ...string) *Files {
	f := &Files{paths: paths}
	f.seen = f.read()
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

// Changed reports whether any of the files has changed since the last call, or since New. A file that
// can no longer be read has changed.
func (f *Files) Changed() bool {
	now := f.read()
	changed := !slices.Equal(now, f.seen)
	f.seen = now
	return changed
}

// Keep calls read, and calls it again after each change of the files, until the function that it
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
