package connlease_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/connlease"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// database has one lock, and sends no wake-ups.
type database struct {
	mu    sync.Mutex
	taken bool // by another connection
	token fence.Token
	asked int                // tries that were answered
	freed []backend.LeaseID  // what was released
	work  chan chan struct{} // not nil: each piece of work sends here the channel that it waits for
}

func (d *database) Setup(context.Context) error { return nil }

func (d *database) Connect(context.Context, backend.SessionID, time.Duration, func(connlease.Note)) (connlease.Conn, error) {
	return connection{d}, nil
}

// Look names a holder, whichever it is.
func (d *database) Look(_ context.Context, names []string) (map[string]backend.LockInfo, error) {
	all := make(map[string]backend.LockInfo)
	for _, n := range names {
		all[n] = backend.LockInfo{Name: n, Holders: []backend.Holder{{Lease: "holder", Permits: 1}}}
	}
	return all, nil
}

func (d *database) Names(context.Context, backend.ListRequest, int) ([]string, error) {
	return nil, nil
}

func (d *database) Mark(context.Context, connlease.Mark) (fence.Token, []connlease.Marked, error) {
	return 0, nil, nil
}

func (d *database) Terminate(context.Context, []string) error { return nil }

func (d *database) Unavailable(op string, mayHold bool, err error) error {
	return &backend.UnavailableError{Backend: "database", Op: op, MayHold: mayHold, Err: err}
}

func (d *database) set(taken bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken = taken
}

func (d *database) questions() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

// gate makes each piece of work wait from now on. It returns the channel on which they announce
// themselves, each with a channel to close so that it continues.
func (d *database) gate() <-chan chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.work = make(chan chan struct{})
	return d.work
}

// open lets all work continue that has not announced itself.
func (d *database) open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.work = nil
}

type connection struct{ d *database }

func (c connection) Do(ctx context.Context, w *connlease.Work) error {
	c.d.mu.Lock()
	work := c.d.work
	c.d.mu.Unlock()
	if work != nil && !w.End {
		open := make(chan struct{})
		select {
		case work <- open:
			<-open
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	for _, f := range w.Free {
		c.d.freed = append(c.d.freed, f.Lease)
	}
	for _, t := range w.Try {
		c.d.asked++
		if t.Granted = !c.d.taken; t.Granted {
			c.d.token++
			t.Token, t.Since = c.d.token, time.Now()
		}
	}
	return nil
}

func (connection) Wait(ctx context.Context) error { <-ctx.Done(); return nil }

func (connection) Close() {}

// open returns leases on the database with a session, whose waiters poll only after an hour.
func open(t *testing.T, d connlease.Store) (*connlease.Leases, backend.SessionID) {
	t.Helper()
	b := connlease.New(connlease.Config{
		Store: d, Rest: retry.Rest{Least: time.Hour, Longest: time.Hour},
		Caps: backend.Capabilities{Name: "database", Sessions: true, MinTTL: time.Second, MaxTTL: 24 * time.Hour},
	})
	t.Cleanup(b.Close)
	id := backend.NewSessionID()
	if err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: id, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	return b, id
}

// start starts an Acquire, and returns a channel with its error.
func start(t *testing.T, b *connlease.Leases, req backend.AcquireRequest) <-chan error {
	t.Helper()
	ctx := leasetest.Within(t)
	got := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, req)
		got <- err
	}()
	return got
}

// C1: a request that does not wait is refused because another client holds the lock, and not
// because a request of the same session waits that does not know yet that the lock is free.
func TestRefusalIsTrue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &database{taken: true}
		b, id := open(t, d)
		waiter := start(t, b, leasetest.Ask("n", id))
		synctest.Wait()
		d.set(false)
		req := leasetest.Ask("n", id)
		req.Wait = false
		if err := <-start(t, b, req); !errors.Is(err, backend.ErrHeld) {
			t.Errorf("behind a waiter: %v", err)
		}
		if d.questions() != 2 {
			t.Error("the acquire was refused while the lock was free")
		}
		if err := <-waiter; err != nil {
			t.Errorf("the waiter: %v", err)
		}
		if err := <-start(t, b, req); !errors.Is(err, backend.ErrHeld) || d.questions() != 2 {
			t.Errorf("what the session has itself: %v, after %d questions", err, d.questions())
		}
	})
}

// A request that does not wait gets its own answer when those before it in the queue have gone.
func TestThoseBeforeAreGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &database{taken: true}
		b, id := open(t, d)
		before := leasetest.Ask("n", id)
		waiter := start(t, b, before)
		synctest.Wait()
		work := d.gate()
		renewed := make(chan error, 1)
		go func() {
			_, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id})
			renewed <- err
		}()
		forTheRenewal := <-work
		req := leasetest.Ask("n", id)
		req.Wait = false
		got, gone := start(t, b, req), giveUp(t, b, before)
		synctest.Wait()
		close(forTheRenewal)
		forItself := <-work
		d.set(false)
		close(forItself)
		d.open()
		if err := errors.Join(<-gone, <-got, <-renewed); err != nil {
			t.Errorf("alone in the queue for what is free: %v", err)
		}
		if err := <-waiter; !errors.Is(err, backend.ErrLost) {
			t.Errorf("the one that went: %v", err)
		}
	})
}

// C7: a request is given up while the database is asked for the lock, and grants it: the lock is released there.
func TestGivenUpWhileAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := new(database)
		b, id := open(t, d)
		work := d.gate()
		req := leasetest.Ask("n", id)
		got := start(t, b, req)
		asked := <-work
		gone := giveUp(t, b, req)
		synctest.Wait()
		d.open()
		close(asked)
		if err := <-gone; err != nil {
			t.Errorf("the release: %v", err)
		}
		if len(d.freed) != 1 || d.freed[0] != req.Lease {
			t.Errorf("released in the database: %v", d.freed)
		}
		if err := <-got; err != nil {
			t.Errorf("the request, which was granted before that: %v", err)
		}
		if err := <-start(t, b, req); !errors.Is(err, backend.ErrLost) {
			t.Errorf("the request once more: %v", err)
		}
	})
}

// giveUp starts to abandon a request, and returns a channel with the error.
func giveUp(t *testing.T, b *connlease.Leases, req backend.AcquireRequest) <-chan error {
	t.Helper()
	ctx := leasetest.Within(t)
	gone := make(chan error, 1)
	go func() {
		gone <- b.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session, Abandon: true})
	}()
	return gone
}
