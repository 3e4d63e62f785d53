package mysqllock_test

import (
	"bytes"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// getlockURL returns the URL for user locks, for another user or address.
func getlockURL(s *testserver.MariaDBServer, user, addr string) string {
	return "mysql+getlock" + s.URLOf(user, addr)[len("mysql"):]
}

// openUserLocks opens a backend that the test closes.
func openUserLocks(t *testing.T, url string) *mysqllock.UserLocks {
	t.Helper()
	b, err := mysqllock.OpenUserLocks(t.Context(), url, mysqllock.UserLocksConfig{})
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
	s, disk := testserver.WithSlowDisk(t, testserver.MariaDB(t))
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := mysqllock.OpenUserLocks(t.Context(), getlockURL(s, "root", s.Addr()), mysqllock.UserLocksConfig{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:  func(backendtest.T) { s.Kill(); disk.Without(s.Start) },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
	})
}

// The server refuses to write a row.
func TestUserLocksNotWrittenDown(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	url := getlockURL(s, "root", s.Addr())
	leasetest.NotWrittenDown(t, openUserLocks(t, url), openUserLocks(t, url), func(note string) {
		s.Exec(`ALTER TABLE holdfast_getlock_leases ADD CHECK (note <> '` + note + `')`)
	})
}

// victim is a separate user, so that a test can identify the connections.
func victim(s *testserver.MariaDBServer) {
	s.Exec("CREATE USER victim@'127.0.0.1'", "GRANT ALL ON test.* TO victim@'127.0.0.1'")
}

// having selects the connections of the victim that have locks.
const having = `FROM information_schema.PROCESSLIST p JOIN holdfast_getlock_sessions s ON s.id = p.ID WHERE p.USER = 'victim' AND IS_USED_LOCK(s.conn) = p.ID`

func killOne(t *testing.T, s *testserver.MariaDBServer) {
	t.Helper()
	if id := s.Int("SELECT COALESCE(MIN(p.ID), 0) " + having); id != 0 {
		s.Exec("BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR 1094 BEGIN END; KILL " + strconv.FormatInt(id, 10) + "; END")
	}
}

// C10, F22: the server ends the connection. The holder is notified immediately, without a request
// or a renewal. The driver of the other client is told to count also the rows that a statement
// leaves as they are.
func TestUserLocksConnectionKilled(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	victim(s)
	b := openUserLocks(t, getlockURL(s, "victim", s.Addr()))
	conf, err := mysql.ParseDSN(s.DSNOf("root", s.Addr(), "test"))
	if err != nil {
		t.Fatal(err)
	}
	conf.ClientFoundRows = true
	other, err := mysqllock.NewUserLocks(mysqllock.UserLocksConfig{Conn: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	leasetest.ConnectionEnded(t, b, other, func() { killOne(t, s) })
}

// C10: the same holds where there is nothing to look after.
func TestUserLocksIdleConnectionKilled(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	victim(s)
	b := openUserLocks(t, getlockURL(s, "victim", s.Addr()))
	lost := make(chan backend.Loss, 1)
	leasetest.Session(t, b, time.Hour, func(x backend.Loss) { lost <- x })
	killOne(t, s)
	select {
	case <-lost:
	case <-time.After(leasetest.Patience):
		t.Error("the loss was not told")
	}
}

// One connection has all the locks of a session, and its waiters delay neither other requests nor
// a renewal.
func TestUserLocksManyOnOneConnection(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	victim(s)
	b := openUserLocks(t, getlockURL(s, "victim", s.Addr()))
	leasetest.ManyOnOneConnection(t, b, openUserLocks(t, getlockURL(s, "root", s.Addr())), func() int64 { return s.Int("SELECT COUNT(*) " + having) })
}

// F3, F1: nothing arrives from the holder any more, and the server is not notified of its end. It
// ends the connection by itself, not before the TTL.
func TestUserLocksHolderCutOff(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	b := openUserLocks(t, getlockURL(s, "root", proxy.Addr()))
	leasetest.HolderCutOff(t, b, openUserLocks(t, getlockURL(s, "root", s.Addr())), proxy)
}

// The server counts a whole TTL from each renewal.
func TestUserLocksCutOffAfterARenewal(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	b := openUserLocks(t, getlockURL(s, "root", proxy.Addr()))
	leasetest.CutOffAfterARenewal(t, b, openUserLocks(t, getlockURL(s, "root", s.Addr())), proxy)
}

// C10: a holder that does not release what it was asked for loses its connection.
func TestUserLocksBreakOfADeafHolder(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	b := openUserLocks(t, getlockURL(s, "root", proxy.Addr()))
	leasetest.BreakOfADeafHolder(t, b, openUserLocks(t, getlockURL(s, "root", s.Addr())), proxy)
}

// C10: two breaks meet the same holder, which does not hear of them. One of them names it.
func TestUserLocksTwoBreaks(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	b := openUserLocks(t, getlockURL(s, "root", proxy.Addr()))
	others := []backend.Backend{openUserLocks(t, getlockURL(s, "root", s.Addr())), openUserLocks(t, getlockURL(s, "root", s.Addr()))}
	leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, time.Hour, nil)))
	proxy.Hold(chaos.Both)
	var breaks sync.WaitGroup
	var named atomic.Int64
	for _, o := range others {
		breaks.Go(func() {
			res, err := o.Break(leasetest.Within(t), backend.BreakRequest{Name: "n", Actor: "test"})
			if err != nil {
				t.Error(err)
			}
			named.Add(int64(len(res.Broken)))
		})
	}
	breaks.Wait()
	proxy.Heal()
	if named.Load() != 1 {
		t.Errorf("two breaks named %d victims, and there was one holder", named.Load())
	}
}

// C2: the connections of clients that acquire and release the same few locks are ended again and
// again.
func TestUserLocksKilledUnderLoad(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	victim(s)
	leasetest.EndedUnderLoad(t, func() backend.Backend { return openUserLocks(t, getlockURL(s, "victim", s.Addr())) }, func() { killOne(t, s) })
}

// C6, C7: the lock was acquired, and the reply is lost. The lock ends with the connection.
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

// A node of a Galera cluster has user locks of its own, and may lose what it has committed: both
// backends refuse it, before anything is created.
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

// A user who may use the tables, but not create them, is enough once they exist. Before that the
// error names the reason.
func TestUserLocksUserThatMayOnlyUse(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	s.Exec("CREATE USER app@'127.0.0.1'", "GRANT SELECT, INSERT, UPDATE, DELETE ON test.* TO app@'127.0.0.1'")
	b := openUserLocks(t, getlockURL(s, "app", s.Addr()))
	err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	if !errors.Is(err, mysqllock.ErrNoSchema) || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("OpenSession without the tables: %v", err)
	}
	if err := openUserLocks(t, getlockURL(s, "root", s.Addr())).Migrate(leasetest.Within(t)); err != nil {
		t.Fatal(err)
	}
	leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, time.Minute, nil)))
	if res, err := b.Break(leasetest.Within(t), backend.BreakRequest{Name: "n"}); err != nil || len(res.Broken) != 1 {
		t.Errorf("Break: %+v, %v", res, err)
	}
}

// C13: the next session removes the rows of a client that died, and until then its leases are not
// reported.
func TestUserLocksDeadRows(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	victim(s)
	b, other := openUserLocks(t, getlockURL(s, "victim", s.Addr())), openUserLocks(t, getlockURL(s, "root", s.Addr()))
	leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, time.Hour, nil)))
	if info, err := other.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders) != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	killOne(t, s)
	leasetest.Eventually(t, "it is not told", func() bool {
		info, err := other.Inspect(leasetest.Within(t), "n")
		return err == nil && len(info.Holders) == 0
	})
	if n := s.Int("SELECT COUNT(*) FROM holdfast_getlock_leases"); n != 1 {
		t.Fatalf("%d rows; the server said nothing to the client, which could not tidy up", n)
	}
	s.Exec("UPDATE test.holdfast_getlock_sessions SET made = made - 3600000000")
	leasetest.Session(t, other, time.Hour, nil)
	if n := s.Int("SELECT COUNT(*) FROM holdfast_getlock_leases"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// C2: a client drops the tables. Tokens grow all the same.
func TestUserLocksTablesMadeAgain(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	take := func() fence.Token {
		b := openUserLocks(t, getlockURL(s, "root", s.Addr()))
		req := leasetest.Ask("n", leasetest.Session(t, b, time.Hour, nil))
		defer func() { leasetest.Give(t, b, req) }()
		return leasetest.Take(t, b, req)
	}
	before := take()
	s.Exec("DROP TABLE test.holdfast_getlock_sessions, test.holdfast_getlock_leases, test.holdfast_getlock_meta")
	if after := take(); after <= before {
		t.Errorf("token %d after %d", after, before)
	}
}

// The same servers are refused as with a table of leases.
func TestUserLocksRefusedServers(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	refused(t, s, "test.holdfast_getlock_meta", func() backend.Backend { return openUserLocks(t, getlockURL(s, "root", s.Addr())) })
}

// C9: a renewal that has not reached the server does not count.
func TestUserLocksRenewalIsHeard(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	leasetest.RenewalIsHeard(t, openUserLocks(t, getlockURL(s, "root", proxy.Addr())), proxy)
}

// C1: names that a server would fold are names of several locks.
func TestUserLocksNames(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b, other := openUserLocks(t, getlockURL(s, "root", s.Addr())), openUserLocks(t, getlockURL(s, "root", s.Addr()))
	mine, theirs := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, other, time.Hour, nil)
	for i, name := range []string{"name", "Name", "n\u00e4me", "na\u0308me", "name ", "name'", "name\\", "NAME"} {
		req, by := leasetest.Ask(name, mine), b
		if i%2 == 1 {
			req, by = leasetest.Ask(name, theirs), other
		}
		req.Wait = false
		if _, err := by.Acquire(leasetest.Within(t), req); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
