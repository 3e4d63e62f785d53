package zklock

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
)

// TestEndOfTheLink: the end of a ZooKeeper session is the loss of a session only for an operation of
// that session. For a release the outcome is unknown.
func TestEndOfTheLink(t *testing.T) {
	t.Parallel()
	b, err := New(Config{Servers: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	for op, want := range map[string]error{
		opAcquire: backend.ErrSessionLost, opRenew: backend.ErrSessionLost, opOpen: backend.ErrSessionLost,
		"release": backend.ErrUnavailable, "inspect": backend.ErrUnavailable, "list": backend.ErrUnavailable, "break": backend.ErrUnavailable,
	} {
		for _, cause := range []error{zk.ErrSessionExpired, zk.ErrSessionMoved} {
			err := b.fail(t.Context(), op, cause, true)
			if !errors.Is(err, want) {
				t.Errorf("%s: %v is %v; want %v", op, cause, err, want)
			}
			if away, ok := errors.AsType[*backend.UnavailableError](err); ok && !away.MayHold {
				t.Errorf("%s: %v with MayHold false", op, cause)
			}
		}
	}
}

// TestLinkEndsUnawaited: the session of a link ends while a caller waits for the link, and the backend is open: the caller
// may try again.
func TestLinkEndsUnawaited(t *testing.T) {
	t.Parallel()
	b, err := New(Config{Servers: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l := &link{ready: make(chan struct{})}
	l.life, l.end = context.WithCancel(t.Context())
	l.end()
	if err := b.fail(t.Context(), "inspect", l.await(t.Context()), false); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("%v; want ErrUnavailable", err)
	}
}
