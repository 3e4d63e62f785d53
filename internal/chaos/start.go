package chaos

import "context"

// TB is the part of testing.TB that Start needs, so that a program that imports this package
// does not import package testing.
type TB interface {
	Helper()
	Context() context.Context
	Cleanup(f func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Start is NewProxy for a test: it fails the test where NewProxy returns an error, and closes
// the relay after the clean-ups that the test registers later.
func Start(tb TB, upstream string) *Proxy {
	tb.Helper()
	// The context of a test ends before its clean-ups run, and those still communicate.
	p, err := NewProxy(context.WithoutCancel(tb.Context()), upstream)
	if err != nil {
		tb.Fatalf("chaos: %v", err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Errorf("chaos: %v", err)
		}
	})
	return p
}
