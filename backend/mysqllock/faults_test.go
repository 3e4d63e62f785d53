package mysqllock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// open opens a backend that the test closes.
func open(t *testing.T, url string) *mysqllock.Backend {
	t.Helper()
	b, err := mysqllock.Open(t.Context(), url, mysqllock.Config{})
	return leasetest.Opened(t, b, err)
}

// F10: an operator kills all our connections, again and again. A waiter gets its lock. Errors
// occur only where the reply to a commit was in transit.
func TestConnectionsKilled(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	s.Exec("CREATE USER victim@'127.0.0.1'", "GRANT ALL ON test.* TO victim@'127.0.0.1'")
	holder, b := open(t, s.URL()), open(t, s.URLOf("victim", s.Addr()))
	mine, theirs := leasetest.Session(t, holder, time.Hour, nil), leasetest.Session(t, b, time.Hour, nil)
	held := leasetest.Ask("n", mine)
	leasetest.Take(t, holder, held)
	for range 3 {
		waits := leasetest.Ask("n", theirs)
		got := make(chan error, 1)
		go func() {
			_, err := leasetest.Insist(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, waits) })
			got <- err
		}()
		leasetest.InQueue(t, holder, "n", 1)
		s.Exec("KILL USER victim")
		leasetest.Give(t, holder, held)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		held = leasetest.Ask("n", mine)
		next := leasetest.Start(t, holder, held)
		leasetest.InQueue(t, holder, "n", 1)
		s.Exec("KILL USER victim")
		err := leasetest.InsistOn(t, func(ctx context.Context) error {
			return b.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: waits.Lease, Session: theirs})
		})
		if err != nil && !errors.Is(err, backend.ErrLost) { // it may have been released by a call whose reply was lost
			t.Fatal(err)
		}
		if g := <-next; g.Err != nil {
			t.Fatal(g.Err)
		}
	}
}
