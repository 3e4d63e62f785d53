package sqllease_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sqllease"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// C8: a commit whose answer is lost may have granted the lock to a waiter of the same value, who is not notified. It is
// read, and not only when the first session can end; also where the commit arrives later.
func TestGrantOfALostCommit(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]simulate.Fate{
		"was done":       {Err: simulate.ErrCut, Done: true},
		"arrives later":  {Err: simulate.ErrCut, Late: true, Delay: time.Millisecond},
		"did not arrive": {Err: simulate.ErrCut},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newTables()
				s := &server{tables: d, net: simulate.NewNetwork(nil), commits: make(chan simulate.Fate, 1)}
				b := value{sqllease.New(sqllease.Config{Store: s, Caps: capabilities(true), Addr: "b", Conns: 4}), true}
				defer b.Leases.Close()
				d.values["b"] = b.Leases
				b.Hearing(true)
				id := leasetest.Session(t, b, time.Hour, nil)
				held, next := leasetest.Ask("n", id), leasetest.Ask("n", id)
				leasetest.Take(t, b, held)
				got := leasetest.Start(t, b, next)
				synctest.Wait()
				s.commits <- f
				from := time.Now()
				err := b.Release(t.Context(), backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: id})
				if err == nil {
					t.Fatal("the answer was not lost")
				}
				if !f.Done && !f.Late {
					leasetest.Give(t, b, held)
				}
				if g := <-got; g.Err != nil {
					t.Errorf("the waiter: %v", g.Err)
				}
				if took := time.Since(from); took > 3*time.Second {
					t.Errorf("the waiter was told after %s", took)
				}
			})
		})
	}
}

// counted counts the reads and the transactions of a server.
type counted struct {
	*server

	n atomic.Int64
}

func (s *counted) Begin(ctx context.Context, scope *sqllease.Scope) (sqllease.Tx, *sqllease.View, error) {
	s.n.Add(1)
	return s.server.Begin(ctx, scope)
}

func (s *counted) Read(ctx context.Context, scope *sqllease.Scope) (*sqllease.View, error) {
	s.n.Add(1)
	return s.server.Read(ctx, scope)
}

// A session that has ended is not mended when the server's clock is set back: so a timed lease that was acquired under
// it needs no attention before its own end.
func TestEndedSessionAfterAClockSetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTables()
		s := &counted{server: &server{tables: d, net: simulate.NewNetwork(nil)}}
		b := value{sqllease.New(sqllease.Config{Store: s, Caps: capabilities(true), Addr: "b", Conns: 4}), true}
		defer b.Leases.Close()
		b.KeepStill()
		d.values["b"] = b.Leases
		b.Hearing(true)
		held := leasetest.Ask("n", leasetest.Session(t, b, time.Hour, nil))
		held.Timed, held.TTL = true, time.Hour
		leasetest.Take(t, b, held)
		if err := b.EndSession(t.Context(), held.Session); err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		ended := d.sessions[held.Session]
		ended.Ends = time.Now().Add(2 * time.Hour)
		d.sessions[held.Session] = ended
		d.mu.Unlock()
		leasetest.Start(t, b, leasetest.Ask("n", leasetest.Session(t, b, 3*time.Hour, nil)))
		synctest.Wait()
		before := s.n.Load()
		time.Sleep(30 * time.Second)
		if n := s.n.Load() - before; n > 5 {
			t.Errorf("%d requests in half a minute at rest", n)
		}
	})
}
