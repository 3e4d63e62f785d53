package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// open opens a backend that the test closes.
func open(t *testing.T, url string) *mysqllock.Backend {
	t.Helper()
	b, err := mysqllock.Open(t.Context(), url, mysqllock.Config{})
	return leasetest.Opened(t, b, err)
}

// B: the reply to the commit is lost.
func TestLostCommitReply(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	leasetest.LostCommitReply(t, open(t, s.URLOf("root", proxy.Addr())), open(t, s.URL()), proxy)
}

// B: the reply to a renewal is lost.
func TestLostRenewalReply(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	leasetest.LostRenewalReply(t, open(t, s.URLOf("root", proxy.Addr())), proxy)
}

// C12: the server is gone.
func TestServerGone(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	leasetest.ServerGone(t, open(t, s.URLOf("root", proxy.Addr())), proxy)
}

// F28: InnoDB shows a commit to other clients before it is on the disk, which is slow. A caller
// that learns of a grant, or of the end of a lease, by a read gets no answer before it is on the
// disk. Then the server is killed, and everything is as the answers said.
func TestWhatIsToldSurvives(t *testing.T) { //nolint:tparallel // one server, which each of them kills
	leasetest.Slow(t)
	t.Parallel()
	s, disk := testserver.WithSlowDisk(t, testserver.MariaDB(t))
	const waiter = "the grant of a waiter"
	type ask func(b *mysqllock.Backend, held, mine backend.AcquireRequest) error
	for what, learn := range map[string]ask{ //nolint:paralleltest // as above
		waiter: func(b *mysqllock.Backend, _, mine backend.AcquireRequest) error {
			return (<-leasetest.Start(t, b, mine)).Err
		},
		"the end of a lease, by a release": func(b *mysqllock.Backend, held, _ backend.AcquireRequest) error {
			return b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: held.Name, Lease: held.Lease})
		},
		"the end of a lease, by a renewal": func(b *mysqllock.Backend, held, _ backend.AcquireRequest) error {
			res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: held.Name, Lease: held.Lease, TTL: time.Hour}}})
			if err == nil {
				err = res.Leases[0].Err
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			holder, b := open(t, s.URL()), open(t, s.URL())
			holder.KeepFromSweeping()
			b.KeepFromSweeping()
			held := backend.AcquireRequest{Name: what, Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}
			leasetest.Take(t, holder, held)
			mine := leasetest.Ask(what, leasetest.Session(t, b, time.Hour, nil))
			told := make(chan error, 1)
			if what == waiter {
				go func() { told <- learn(b, held, mine) }()
				leasetest.InQueue(t, holder, what, 1)
			}
			const delay = 300 * time.Millisecond
			disk.Slow(delay)
			ctx := leasetest.Within(t)
			from := time.Now()
			go func() { _ = holder.Release(ctx, backend.ReleaseRequest{Name: what, Lease: held.Lease}) }()
			if what != waiter {
				leasetest.Eventually(t, "others see the release", func() bool {
					info, err := b.Inspect(ctx, what)
					return err == nil && len(info.Holders) == 0
				})
				go func() { told <- learn(b, held, mine) }()
			}
			answer := <-told
			took := time.Since(from)
			s.Kill()
			disk.Fast()
			s.Start()
			if took < delay {
				t.Errorf("told %v after %s; the disk needs %s", answer, took, delay)
			}
			info, err := leasetest.Insist(t, func(ctx context.Context) (backend.LockInfo, error) { return b.Inspect(ctx, what) })
			if err != nil {
				t.Fatal(err)
			}
			switch n := len(info.Holders); {
			case answer == nil && (n != 1 || info.Holders[0].Lease != mine.Lease):
				t.Errorf("told of a grant; after the crash there is %+v", info)
			case answer != nil && !errors.Is(answer, backend.ErrLost):
				t.Errorf("told %v", answer)
			case answer != nil && n != 0:
				t.Errorf("told %v; after the crash there is %+v", answer, info)
			}
		})
	}
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

// F8: a process sleeps in the middle of a transaction, with the rows of its locks locked. The
// server ends its connection, and the other clients continue; those that want other locks
// continue before that.
func TestSleeperInTransaction(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const most, tries = 4 * time.Second, 3
	s := testserver.MariaDB(t)
	db, err := sql.Open("mysql", s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for n := 1; ; n++ { // a slow disk may delay one
		took := besideASleeper(t, s, db)
		if took <= most {
			break
		}
		if n == tries {
			t.Fatalf("acquiring another lock took %s", took)
		}
	}
}

// besideASleeper returns how long it takes to acquire another lock than the one whose row is locked.
func besideASleeper(t *testing.T, s *testserver.MariaDBServer, db *sql.DB) time.Duration {
	t.Helper()
	proxy := chaos.Start(t, s.Addr())
	sleeper, b := open(t, s.URLOf("root", proxy.Addr())), open(t, s.URL())
	leasetest.Session(t, sleeper, leasetest.Long, nil)
	awake := leasetest.Session(t, b, leasetest.Long, nil)
	first := leasetest.Ask("n", awake)
	leasetest.Take(t, b, first)
	leasetest.Give(t, b, first)

	lost := proxy.LoseReply(nil)
	got := make(chan error, 1)
	ctx := leasetest.Within(t)
	go func() {
		got <- sleeper.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: backend.NewLeaseID(), Abandon: true})
	}()
	<-lost
	leasetest.Eventually(t, "it sleeps with the row locked", func() bool { // it does so for some seconds
		time.Sleep(200 * time.Millisecond) // the list is updated only when it was not read for 100 ms
		var n int
		err := db.QueryRowContext(leasetest.Within(t), "SELECT count(*) FROM information_schema.INNODB_TRX WHERE trx_rows_locked > 0").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
	proxy.DropClientHalf() // the server gets no notice, whatever the sleeper does
	from := time.Now()
	another := leasetest.Ask("another", awake)
	leasetest.Take(t, b, another)
	took := time.Since(from)
	mine := leasetest.Ask("n", awake)
	leasetest.Take(t, b, mine)
	t.Logf("acquiring the lock took %s", time.Since(from))
	proxy.Heal()
	if err := <-got; err != nil && !errors.Is(err, backend.ErrUnavailable) {
		t.Error(err)
	}
	leasetest.Give(t, b, mine)
	leasetest.Give(t, b, another)
	return took
}

// F7: the server is stopped for a while, and continues. A request made during the stop may have
// been executed; the same request has the same answer.
func TestPausedServer(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.MariaDB(t)
	b := open(t, s.URL())
	id := leasetest.Session(t, b, leasetest.Long, nil)
	kept := leasetest.Ask("kept", id)
	token := leasetest.Take(t, b, kept)
	s.Process().Stop()
	req := leasetest.Ask("n", id)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // it is sent in this time
	defer cancel()
	_, err := b.Acquire(ctx, req)
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !away.MayHold {
		t.Errorf("Acquire: %v", err)
	}
	s.Process().Cont()
	again := leasetest.Take(t, b, req)
	if twice := leasetest.Take(t, b, req); twice != again {
		t.Errorf("token %d, then %d", again, twice)
	}
	if same := leasetest.Take(t, b, kept); same != token {
		t.Errorf("what was held has token %d, and had %d", same, token)
	}
	if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost {
		t.Errorf("Renew: %+v, %v", res, err)
	}
}

// transactions counts the transactions of the server. The server updates the list only when it
// was not read for 100 ms, and otherwise returns the earlier one.
func transactions(s *testserver.MariaDBServer, where string) int64 {
	s.Exec("DO SLEEP(0.2)")
	return s.Int("SELECT count(*) FROM information_schema.INNODB_TRX WHERE " + where)
}

func TestRenewalOnItsWay(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.MariaDB(t)
	leasetest.RenewalOnItsWay(t, open(t, s.URL()), func(id backend.SessionID) func() {
		tx := begin(t, s, `UPDATE holdfast_sessions SET ends = `+now+` + 3600000000, ttl = 3600000000 WHERE ends > `+now+` AND id = '`+string(id)+`'`)
		return func() {
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
