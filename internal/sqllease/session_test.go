package sqllease_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// sessionStore is a store in which sessions can be opened, and all of them are lost when they are
// read.
type sessionStore struct {
	sqllease.Store

	open func(backend.SessionID) error
}

func (*sessionStore) Migrate(context.Context) error { return nil }

func (s *sessionStore) OpenSession(_ context.Context, id backend.SessionID, _ time.Duration, _ string) (bool, error) {
	err := s.open(id)
	return err == nil, err
}

func (*sessionStore) Read(context.Context, *sqllease.Scope) (*sqllease.View, error) {
	return &sqllease.View{Now: time.Now()}, nil // the sessions have no rows
}

func (*sessionStore) Fault(error) sqllease.Fault { return sqllease.Fault{} }

func (*sessionStore) Unavailable(op string, mayHold bool, err error) error {
	return &backend.UnavailableError{Backend: "test", Op: op, MayHold: mayHold, Err: err}
}

func openSessions(open func(backend.SessionID) error) *sqllease.Leases {
	b := sqllease.New(sqllease.Config{
		Store: &sessionStore{open: open}, Caps: sqllease.Capabilities("test", true), Addr: "addr", Conns: 3,
	})
	b.KeepStill()
	return b
}

var errAway = errors.New("the server is unavailable")

// endedStore is a store whose quick batches end so, and whose server is unavailable for what follows.
type endedStore struct {
	*sessionStore

	err   error
	begun *int // how often something followed
}

func (s endedStore) Quick(context.Context, *sqllease.Quick) error { return s.err }

func (s endedStore) Begin(context.Context, *sqllease.Scope) (sqllease.Tx, *sqllease.View, error) {
	*s.begun++
	return nil, nil, errAway
}

func (endedStore) Fault(err error) sqllease.Fault {
	return sqllease.Fault{Ended: errors.Is(err, errEnded), Unsent: errors.Is(err, errAway), Broken: errors.Is(err, errCut)}
}

func (endedStore) Reset() {}

var (
	errEnded = errors.New("the server ends the connection")
	errCut   = errors.New("the connection broke")
)

// F7: the outcome of a request is unknown if its quick batch may have been committed, even if it is
// certain that the retry was not. Only an acquisition is retried, and only if nothing is on its way.
func TestAcquireAfterAnEndedBatch(t *testing.T) {
	t.Parallel()
	for err, retries := range map[error]int{errEnded: 1, errCut: 0} {
		synctest.Test(t, func(t *testing.T) {
			begun := 0
			b := sqllease.New(sqllease.Config{
				Store: endedStore{&sessionStore{}, err, &begun}, Caps: sqllease.Capabilities("test", true), Conns: 3, Quick: 8,
			})
			b.KeepStill()
			defer b.Close()
			lease := backend.NewLeaseID()
			_, acquired := b.Acquire(t.Context(), backend.AcquireRequest{Name: "n", Lease: lease, Timed: true, TTL: time.Minute})
			released := b.Release(t.Context(), backend.ReleaseRequest{Name: "m", Lease: lease})
			for _, err := range []error{acquired, released} {
				if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
					t.Errorf("%v; want an unknown outcome", err)
				}
			}
			if begun != retries {
				t.Errorf("%v: %d retries, want %d", err, begun, retries)
			}
		})
	}
}

// No listener remains of sessions that could not be opened: the client tries a new ID each time,
// for as long as the server is unavailable. A later attempt with the same ID registers a listener again.
func TestListenersOfFailedOpenings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := true
		b := openSessions(func(backend.SessionID) error {
			if away {
				return errAway
			}
			return nil
		})
		defer b.Close()
		losses := make(chan backend.Loss, 1)
		var req backend.SessionRequest
		for range 100 {
			req = backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute, Lost: func(l backend.Loss) { losses <- l }}
			if err := b.OpenSession(t.Context(), req); !errors.Is(err, backend.ErrUnavailable) {
				t.Fatalf("OpenSession while the server is unavailable: %v", err)
			}
		}
		if n := b.Listeners(); n != 0 {
			t.Errorf("%d listeners of sessions that were not opened", n)
		}
		away = false
		if err := b.OpenSession(t.Context(), req); err != nil || b.Listeners() != 1 {
			t.Fatalf("OpenSession again: %v, %d listeners", err, b.Listeners())
		}
		away = true
		if err := b.OpenSession(t.Context(), req); !errors.Is(err, backend.ErrUnavailable) || b.Listeners() != 1 {
			t.Fatalf("OpenSession of a session that is open, while the server is unavailable: %v, %d listeners", err, b.Listeners())
		}
		b.Read("s" + string(req.ID))
		if l := <-losses; l.Session != req.ID {
			t.Errorf("the loss of %q is reported; want %q", l.Session, req.ID)
		}
	})
}

// Of two concurrent calls that open a session, the one that fails does not remove the listener that
// the other needs, whichever ends first.
func TestListenerOfConcurrentOpenings(t *testing.T) {
	t.Parallel()
	for name, failsFirst := range map[string]bool{"the failure is first": true, "the success is first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				answers := make(chan error)
				b := openSessions(func(backend.SessionID) error { return <-answers })
				defer b.Close()
				req := backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute, Lost: func(backend.Loss) {}}
				for range 2 {
					go func() { _ = b.OpenSession(t.Context(), req) }()
				}
				order := []error{nil, errAway}
				if failsFirst {
					order = []error{errAway, nil}
				}
				for _, err := range order {
					synctest.Wait()
					answers <- err
				}
				synctest.Wait()
				if n := b.Listeners(); n != 1 {
					t.Errorf("%d listeners of a session that is open", n)
				}
			})
		})
	}
}

// crowdedStore has rows of locks that are no longer used, and deletes as many as one sweep may.
type crowdedStore struct {
	*sessionStore

	left atomic.Int64
}

func (*crowdedStore) Dead(context.Context, time.Duration) ([]string, error) { return nil, nil }

func (s *crowdedStore) Sweep(context.Context, string, time.Duration) (*sqllease.Swept, error) {
	if s.left.Add(-sqllease.SweepAtOnce) > 0 {
		return &sqllease.Swept{Names: slices.Repeat([]string{"next"}, sqllease.SweepAtOnce), Deleted: sqllease.SweepAtOnce}, nil
	}
	return new(sqllease.Swept), nil
}

// C13: the rows of many names are deleted as fast as they come: a client may use thousands of new ones a second.
func TestSweepKeepsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &crowdedStore{sessionStore: &sessionStore{}}
		b := sqllease.New(sqllease.Config{
			Store: store, Caps: sqllease.Capabilities("test", true), Conns: 3,
		})
		defer b.Close()
		store.left.Store(100_000)
		b.InUse()
		time.Sleep(time.Minute)
		if n := store.left.Load(); n > 0 {
			t.Errorf("%d rows are left after a minute", n)
		}
	})
}

// sweptStore is a store that counts its sweeps.
type sweptStore struct {
	*sessionStore

	sweeps atomic.Int64
}

func (*sweptStore) Dead(context.Context, time.Duration) ([]string, error) { return nil, nil }

func (s *sweptStore) Sweep(context.Context, string, time.Duration) (*sqllease.Swept, error) {
	s.sweeps.Add(1)
	return new(sqllease.Swept), nil
}

// B: what has expired is deleted also while there are watchers, for however long.
func TestSweepWhileWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sweptStore{sessionStore: &sessionStore{}}
		b := sqllease.New(sqllease.Config{
			Store: s, Caps: sqllease.Capabilities("test", true), Addr: "addr", Conns: 3,
		})
		defer b.Close()
		b.Watching(1)
		time.Sleep(time.Hour)
		if n := s.sweeps.Load(); n < 60 || n > 600 {
			t.Errorf("%d sweeps in an hour", n)
		}
	})
}
