package testserver

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

// Shared returns what starts a server at its first call, for the tests of a package that share it, each in a place of its
// own: a database, a path, a prefix, a namespace. Such a package calls Main. One server starts at a time: some need the
// processors for a quarter of a minute, and side by side would keep the renewals of other tests from being in time.
func Shared[S any](start func(testing.TB) S) func() S {
	return sync.OnceValue(func() S {
		var s S
		InTurn(func() { s = start(&all) })
		return s
	})
}

var starting sync.Mutex //nolint:gochecknoglobals // the servers of a test binary have one machine

// InTurn starts servers of one test while no others start in this way or in that of Shared.
func InTurn(start func()) {
	starting.Lock()
	defer starting.Unlock()
	start()
}

// Main runs the tests of a package, ends the servers that they shared, and then does what leaktest.Main does.
func Main(m *testing.M) { leaktest.Main(sharing{m}) }

type sharing struct{ *testing.M }

func (s sharing) Run() int {
	status := s.M.Run()
	for _, end := range slices.Backward(all.ends) {
		end()
	}
	if all.Failed() {
		return 1
	}
	return status
}

// all stands for all tests of the package: a shared server belongs to it.
var all tests //nolint:gochecknoglobals // a test binary has the tests of one package

type tests struct {
	testing.TB // nil: not all of it is needed

	mu     sync.Mutex
	ends   []func()
	failed bool
}

func (*tests) Helper()                         {}
func (*tests) Context() context.Context        { return context.Background() }
func (*tests) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (*tests) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...)) //nolint:forbidigo // a test that needs the server cannot go on
}

func (a *tests) Errorf(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = true
	a.Logf(format, args...)
}

func (a *tests) Failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

func (a *tests) Cleanup(end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ends = append(a.ends, end)
}
