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

// F28: InnoDB shows a commit to other clients before it is on the disk, which is slow. A waiter that reads its grant is told
// only when that is on the disk: after a crash it is still there.
func TestWhatIsToldSurvives(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, disk := testserver.WithSlowDisk(t, testserver.MariaDB(t))
	holder, b := open(t, s.URL()), open(t, s.URL())
	holder.KeepFromSweeping()
	b.KeepFromSweeping()
	held, waits := leasetest.Ask("n", leasetest.Session(t, holder, time.Hour, nil)), leasetest.Ask("n", leasetest.Session(t, b, time.Hour, nil))
	leasetest.Take(t, holder, held)
	got := leasetest.Start(t, b, waits)
	leasetest.InQueue(t, holder, "n", 1)
	const delay = 2 * time.Second // b reads more often
	disk.Slow(delay)
	ctx, from := leasetest.Within(t), time.Now()
	go func() {
		_ = holder.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: held.Session}) // there may be no answer
	}()
	g := <-got
	took := time.Since(from)
	s.Kill()
	disk.Fast()
	s.Start()
	info, err := leasetest.Insist(t, func(ctx context.Context) (backend.LockInfo, error) { return b.Inspect(ctx, "n") })
	if g.Err != nil || took < delay || err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != waits.Lease {
		t.Errorf("told %+v after %s, and the disk needs %s; after the crash there is %+v, %v", g, took, delay, info, err)
	}
}
