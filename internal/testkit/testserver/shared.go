package testserver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
)

// Shared returns what starts a server at its first call, for the tests of a package that share it, each in a place of its
// own: a path, a prefix, a namespace. It also returns what ends the server, for TestMain.
func Shared[S any](start func(testing.TB) S) (func() S, func()) {
	all := &tests{}
	return sync.OnceValue(func() S { return start(all) }), all.end
}

// tests stand for all tests of a package: nothing fails but the process.
type tests struct {
	testing.TB

	cleanups []func()
}

func (a *tests) end() {
	for _, f := range slices.Backward(a.cleanups) {
		f()
	}
}

func (*tests) Helper() {}

func (a *tests) Cleanup(f func()) { a.cleanups = append(a.cleanups, f) }

func (*tests) Context() context.Context { return context.Background() }

func (*tests) Failed() bool { return false }

func (*tests) Logf(string, ...any) {}

func (*tests) Errorf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...)) //nolint:forbidigo // there is no test that could fail
}

func (*tests) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...)) //nolint:forbidigo // there is no test that could fail
}
