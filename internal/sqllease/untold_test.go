package sqllease_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sqllease"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// C8: a commit whose answer is lost may have granted the lock to a waiter of the same value, who is not notified. It is
// read, and not only when the first session can end; also where the commit arrives later.
func TestGrantOfALostCommit(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fate{
		"was done":       {err: errCut, done: true},
		"arrives later":  {err: errCut, late: true, delay: time.Millisecond},
		"did not arrive": {err: errCut},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newTables()
				s := &server{tables: d, commits: make(chan fate, 1)}
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
				if !f.done && !f.late {
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
