//go:build unix

package engines

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testserver"
)

// stage is what the servers of package testserver belong to instead of a test: they are
// started, watched and ended by the same code as in the tests.
type stage struct {
	testing.TB // for the method that only package testing has; none of its others is called

	ctx context.Context //nolint:containedctx // it is what a test has

	mu       sync.Mutex
	cleanups []func()
	errs     []error
}

func newStage(ctx context.Context) *stage { return &stage{ctx: ctx} }

func (s *stage) Helper()                  {}
func (s *stage) Logf(string, ...any)      {}
func (s *stage) Context() context.Context { return s.ctx }

func (s *stage) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.errs) > 0
}

func (s *stage) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, fmt.Errorf(format, args...)) //nolint:err113 // it is what a test would print
}

func (s *stage) Fatalf(format string, args ...any) {
	s.Errorf(format, args...)
	runtime.Goexit()
}

// play runs f as a test would be, in a goroutine that a failure ends.
func (s *stage) play(f func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.errs...)
}

// close ends the servers, the last one first.
func (s *stage) close() error {
	return s.play(func() {
		s.mu.Lock()
		cleanups := s.cleanups
		s.cleanups = nil
		s.mu.Unlock()
		for _, f := range slices.Backward(cleanups) {
			f()
		}
	})
}

// start starts a server and gives its URL, and what ends it.
func (l local) start(ctx context.Context) (string, func() error, error) {
	s := newStage(ctx)
	url := ""
	if err := s.play(func() { url = l.launch(s) }); err != nil {
		return "", nil, errors.Join(err, s.close())
	}
	return url, s.close, nil
}

// local is a server that can be started here.
type local struct {
	engine  string
	program string                     // that it needs
	launch  func(tb testing.TB) string // gives its URL
}

// locals are the servers that can be started here.
func locals() []local {
	return []local{
		{engine: "redis", program: "redis-server", launch: func(tb testing.TB) string {
			tb.Helper()
			// Nothing is written to the disk: the protocol is measured, not the disk.
			// It is new, so nothing was granted before it started.
			return "redis://" + testserver.Redis(tb, "--appendonly", "no").Addr() + "?quarantine=off"
		}},
	}
}
