package mysqllock_test

import (
	"bytes"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// getlockURL is where another user connects to for user locks, or by another way.
func getlockURL(s *testserver.MariaDBServer, user, addr string) string {
	return "mysql+getlock" + s.URLOf(user, addr)[len("mysql"):]
}

// openUserLocks opens a backend that the test closes.
func openUserLocks(t *testing.T, url string) *mysqllock.UserLocks {
	t.Helper()
	b, err := mysqllock.OpenUserLocks(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func TestUserLocksConformance(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := mysqllock.OpenUserLocks(t.Context(), getlockURL(s, "root", s.Addr()), nil)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart: func(backendtest.T) { s.Restart() },
	})
}

// victim is a user of their own, so that a test can tell their connections.
func victim(s *testserver.MariaDBServer) {
	s.Exec("CREATE USER victim@'127.0.0.1'", "GRANT ALL ON test.* TO victim@'127.0.0.1'")
}

// having is the connections of the victim that have locks.
const having = `FROM information_schema.PROCESSLIST p JOIN holdfast_getlock_sessions s ON s.id = p.ID WHERE p.USER = 'victim' AND IS_USED_LOCK(s.conn) = p.ID`

func killOne(t *testing.T, s *testserver.MariaDBServer) {
	t.Helper()
	if id := s.Int("SELECT COALESCE(MIN(p.ID), 0) " + having); id != 0 {
		s.Exec("BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR 1094 BEGIN END; KILL " + strconv.FormatInt(id, 10) + "; END")
	}
}

// C10, F22: the server ends the connection. The holder is told at once, though nobody asks
// or renews.
func TestUserLocksConnectionKilled(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	victim(s)
	b := openUserLocks(t, getlockURL(s, "victim", s.Addr()))
	leasetest.ConnectionEnded(t, b, openUserLocks(t, getlockURL(s, "root", s.Addr())), func() { killOne(t, s) })
}

// One connection has all the locks of a session, and those who wait in it do not keep the
// others, or a renewal, from it.
func TestUserLocksManyOnOneConnection(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	victim(s)
	b := openUserLocks(t, getlockURL(s, "victim", s.Addr()))
	leasetest.ManyOnOneConnection(t, b, openUserLocks(t, getlockURL(s, "root", s.Addr())), func() int64 { return s.Int("SELECT COUNT(*) " + having) })
}

// F3, F1: nothing comes from the holder any more, and the server is not told of its end. It
// ends the connection by itself, not before the TTL.
func TestUserLocksHolderCutOff(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	b := openUserLocks(t, getlockURL(s, "root", proxy.Addr()))
	leasetest.HolderCutOff(t, b, openUserLocks(t, getlockURL(s, "root", s.Addr())), proxy)
}

// C10: a holder that does not give back what it was asked for loses its connection.
func TestUserLocksBreakOfADeafHolder(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	b := openUserLocks(t, getlockURL(s, "root", proxy.Addr()))
	leasetest.BreakOfADeafHolder(t, b, openUserLocks(t, getlockURL(s, "root", s.Addr())), proxy)
}

// C2: the connections of those who take and give back the same few locks are ended again and
// again.
func TestUserLocksKilledUnderLoad(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	victim(s)
	leasetest.EndedUnderLoad(t, func() backend.Backend { return openUserLocks(t, getlockURL(s, "victim", s.Addr())) }, func() { killOne(t, s) })
}

// C6, C7: the lock was had, and the answer is lost. The connection takes it along.
func TestUserLocksLostReply(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	b, other := openUserLocks(t, getlockURL(s, "root", proxy.Addr())), openUserLocks(t, getlockURL(s, "root", s.Addr()))
	id := leasetest.Session(t, b, time.Hour, nil)
	lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte("INSERT INTO holdfast_getlock_leases")) })
	req := leasetest.Ask("n", id)
	got := leasetest.Start(t, b, req)
	<-lost
	leasetest.Eventually(t, "it is had", func() bool {
		info, err := other.Inspect(leasetest.Within(t), "n")
		return err == nil && len(info.Holders) == 1 && info.Holders[0].Lease == req.Lease
	})
	theirs := leasetest.Start(t, other, leasetest.Ask("n", leasetest.Session(t, other, time.Hour, nil)))
	proxy.Reset()
	if g := <-got; !errors.Is(g.Err, backend.ErrSessionLost) {
		t.Errorf("the acquire: %+v", g)
	}
	if g := <-theirs; g.Err != nil {
		t.Error(g.Err)
	}
}

// A node of a Galera cluster has user locks of its own, and may lose what it has committed:
// both backends refuse it, before anything is made.
func TestGaleraIsRefused(t *testing.T) {
	t.Parallel()
	s := testserver.Galera(t)
	req := backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute}
	for name, b := range map[string]backend.Backend{
		"leases": open(t, s.URL()), "user locks": openUserLocks(t, getlockURL(s, "root", s.Addr())),
	} {
		if err := b.OpenSession(leasetest.Within(t), req); !errors.Is(err, mysqllock.ErrGalera) || !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := b.Inspect(leasetest.Within(t), "n"); !errors.Is(err, mysqllock.ErrGalera) {
			t.Errorf("%s: Inspect: %v", name, err)
		}
	}
	if n := s.Int("SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'test'"); n != 0 {
		t.Errorf("%d tables were made", n)
	}
}

// A user who may use the tables, and not make them, is enough once somebody made them; before
// that they are told.
func TestUserLocksUserThatMayOnlyUse(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	s.Exec("CREATE USER app@'127.0.0.1'", "GRANT SELECT, INSERT, UPDATE, DELETE ON test.* TO app@'127.0.0.1'")
	b := openUserLocks(t, getlockURL(s, "app", s.Addr()))
	err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	if !errors.Is(err, mysqllock.ErrNoSchema) || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("nobody made the tables: %v", err)
	}
	if err := openUserLocks(t, getlockURL(s, "root", s.Addr())).Migrate(leasetest.Within(t)); err != nil {
		t.Fatal(err)
	}
	leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, time.Minute, nil)))
	if res, err := b.Break(leasetest.Within(t), backend.BreakRequest{Name: "n"}); err != nil || len(res.Broken) != 1 {
		t.Errorf("Break: %+v, %v", res, err)
	}
}
