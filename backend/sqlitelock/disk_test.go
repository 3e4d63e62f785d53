//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// TestAnswersRestOnTheDisk asks about a timed lease that was taken away by a transaction that is not
// on the disk yet. What the caller is told must survive a power failure: a lease that was reported
// as lost does not come back.
func TestAnswersRestOnTheDisk(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		first, then func(context.Context, *sqlitelock.Backend, backend.AcquireRequest) error
		want        error
	}{
		"release, release": {releaseOf(false), releaseOf(false), backend.ErrLost},
		"break, renew":     {breakOf, renewOf, backend.ErrLost},
		"break, break":     {breakOf, breakOf, nil},
		"abandon, acquire": {releaseOf(true), acquireOf, backend.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &disk{path: filepath.Join(t.TempDir(), "locks.db")}
			var stopped atomic.Bool
			spin := make(chan struct{})
			start := machine{boot: "first", since: time.Hour, wall: time.Now()}
			b := mustOpen(t, d.path, sqlitelock.WithHost(start.host()), sqlitelock.AroundSync(func() func() {
				done := d.aroundSync()
				if stopped.Load() {
					<-spin
				}
				return done
			}))
			req := lasting("x")
			leasetest.Take(t, b, req)
			stopped.Store(true)
			firstly, then := make(chan error, 1), make(chan error, 1)
			go func() { firstly <- x.first(t.Context(), b, req) }()
			leasetest.Eventually(t, "the first change", func() bool {
				info, err := b.Inspect(t.Context(), req.Name)
				return err == nil && len(info.Holders) == 0
			})
			go func() { then <- x.then(t.Context(), b, req) }()
			var err error
			select {
			case err = <-then:
			case <-time.After(200 * time.Millisecond):
				close(spin)
				err = <-then
			}
			after := afterwards(t, d.lose(t))
			if !errors.Is(err, x.want) {
				t.Errorf("%v; it has to be %v", err, x.want)
			}
			isFree(t, after, req.Name, "after the power failure, of a lease that had ended,")
			select {
			case <-spin:
			default:
				close(spin)
			}
			if err := <-firstly; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSyncAfterAFailure has a timed lease granted while a sync runs that then fails. The next sync
// succeeds, as Linux makes it do after it has reported a failure once. Earlier writes
// may be lost all the same, so the grant is not confirmed.
func TestSyncAfterAFailure(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	running, fail := make(chan struct{}), make(chan error)
	var syncs atomic.Int64
	b := mustOpen(t, path, sqlitelock.FailSync(func() error {
		if syncs.Add(1) > 1 {
			return nil
		}
		close(running)
		return <-fail
	}))
	answers := make(chan error, 2)
	acquire := func(name string) {
		answers <- acquireOf(t.Context(), b, lasting(name))
	}
	go acquire("x")
	<-running
	go acquire("y")
	leasetest.Eventually(t, "a second grant", func() bool {
		info, err := b.Inspect(t.Context(), "y")
		return err == nil && len(info.Holders) == 1
	})
	fail <- errors.New("the disk has failed")
	for range 2 {
		if err := <-answers; !errors.Is(err, sqlitelock.ErrSync) {
			t.Errorf("%v; it has to be ErrSync", err)
		}
	}
}

// brokenDisk loses what was appended to the log when a sync fails, for good: the system reports the failure
// once, and reads from memory what the disk does not have. Data that is written once more is not lost.
type brokenDisk struct {
	path string

	mu   sync.Mutex
	safe int64 // the size of the log in the newest sync that succeeded
	lost map[int64]bool
	fail bool
}

// aroundSync is called before a sync.
func (d *brokenDisk) aroundSync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	info, err := os.Stat(d.path + "-wal")
	if err != nil {
		return err
	}
	if !d.fail {
		d.safe = info.Size()
		return nil
	}
	d.fail = false
	d.lost = make(map[int64]bool)
	for at := d.safe; at < info.Size(); at++ {
		d.lost[at] = true
	}
	return errors.New("the disk has failed")
}

// through is where a value writes the log once more.
func (d *brokenDisk) through(w io.WriterAt) io.WriterAt {
	return writerAt(func(p []byte, off int64) (int, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for i := range p {
			delete(d.lost, off+int64(i))
		}
		return w.WriteAt(p, off)
	})
}

type writerAt func([]byte, int64) (int, error)

func (f writerAt) WriteAt(p []byte, off int64) (int, error) { return f(p, off) }

// lose returns the path of a copy of what is left after a power failure.
func (d *brokenDisk) lose(t *testing.T) string {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	files := (&disk{path: d.path}).read()
	for at := range d.lost {
		files["-wal"][at] = 0
	}
	return (&disk{safe: files}).lose(t)
}

// TestOpenAfterAFailedSync opens the file after a sync of another value has failed, and loses the power after
// a grant: the grant was confirmed, so it is there.
func TestOpenAfterAFailedSync(t *testing.T) {
	t.Parallel()
	d := &brokenDisk{path: filepath.Join(t.TempDir(), "locks.db")}
	start := machine{boot: "first", since: time.Hour, wall: time.Now()}
	opts := []sqlitelock.Option{sqlitelock.WithHost(start.host()), sqlitelock.FailSync(d.aroundSync), sqlitelock.ThroughLog(d.through)}
	first := mustOpen(t, d.path, opts...)
	leasetest.Take(t, first, lasting("x"))
	d.mu.Lock()
	d.fail = true
	d.mu.Unlock()
	if err := acquireOf(t.Context(), first, lasting("y")); !errors.Is(err, sqlitelock.ErrSync) {
		t.Fatalf("Acquire: %v; it has to be ErrSync", err)
	}
	second := mustOpen(t, d.path, opts...) // while the first is open, so the log stays
	req := lasting("z")
	leasetest.Take(t, second, req)
	info, err := afterwards(t, d.lose(t)).Inspect(t.Context(), "z")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != req.Lease {
		t.Errorf("after the power failure there is %+v, %v; the lease was granted", info, err)
	}
}

// TestWaiterAfterAFailure has a lease join the queue after a sync has failed, with a request that was made
// before that. Nothing is handed over any more, so the call must not wait for it.
func TestWaiterAfterAFailure(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	running, fail := make(chan struct{}), make(chan error)
	var failing atomic.Bool
	b := mustOpen(t, path, sqlitelock.FailSync(func() error {
		if !failing.CompareAndSwap(true, false) {
			return nil
		}
		close(running)
		return <-fail
	}))
	sess := leasetest.Session(t, b, time.Hour, nil)
	leasetest.Take(t, b, leasetest.Ask("x", sess))
	failing.Store(true)
	timed, waiting := make(chan error, 1), make(chan error, 1)
	go func() {
		timed <- acquireOf(t.Context(), b, lasting("y"))
	}()
	<-running
	db := other(t, path)
	conn, err := db.Conn(t.Context())
	if err == nil {
		_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE") // the writer waits
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		waiting <- acquireOf(t.Context(), b, leasetest.Ask("x", sess))
	}()
	leasetest.Eventually(t, "a request", func() bool { return b.Queued() > 0 })
	fail <- errors.New("the disk has failed")
	if err := <-timed; !errors.Is(err, sqlitelock.ErrSync) {
		t.Errorf("the timed lease: %v; it has to be ErrSync", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil { // rolls back
		t.Error(err)
	}
	select {
	case err := <-waiting:
		if !errors.Is(err, sqlitelock.ErrSync) {
			t.Errorf("the waiter: %v; it has to be ErrSync", err)
		}
	case <-time.After(slack):
		t.Error("the waiter still waits")
	}
}

func releaseOf(abandon bool) func(context.Context, *sqlitelock.Backend, backend.AcquireRequest) error {
	return func(ctx context.Context, b *sqlitelock.Backend, req backend.AcquireRequest) error {
		return b.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Abandon: abandon})
	}
}

func breakOf(ctx context.Context, b *sqlitelock.Backend, req backend.AcquireRequest) error {
	_, err := b.Break(ctx, backend.BreakRequest{Name: req.Name})
	return err
}

func renewOf(ctx context.Context, b *sqlitelock.Backend, req backend.AcquireRequest) error {
	res, err := b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: req.Name, Lease: req.Lease, TTL: req.TTL}}})
	if err != nil {
		return err
	}
	return res.Leases[0].Err
}

func acquireOf(ctx context.Context, b *sqlitelock.Backend, req backend.AcquireRequest) error {
	_, err := b.Acquire(ctx, req)
	return err
}
