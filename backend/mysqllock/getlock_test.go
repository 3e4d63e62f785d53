package mysqllock_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// getlockURL returns the URL for user locks, for another user or address.
func getlockURL(s *testserver.MariaDBServer, user, addr string) string {
	return "mysql+getlock" + s.URLOf(user, addr)[len("mysql"):]
}

// openUserLocks opens a backend that the test closes.
func openUserLocks(t *testing.T, url string) *mysqllock.UserLocks {
	t.Helper()
	b, err := mysqllock.OpenUserLocks(t.Context(), url, mysqllock.UserLocksConfig{})
	return leasetest.Opened(t, b, err)
}

// victim is a separate user, so that a test can identify the connections.
func victim(s *testserver.MariaDBServer) {
	s.Exec("CREATE USER victim@'127.0.0.1'", "GRANT ALL ON test.* TO victim@'127.0.0.1'")
}

// userLocks starts a server, and returns it with the backends on it. The driver of the other clients is told to count also the
// rows that a statement leaves as they are.
func userLocks(t *testing.T) leasetest.Bound {
	t.Helper()
	s := testserver.MariaDB(t)
	victim(s)
	conf, err := mysql.ParseDSN(s.DSNOf("root", s.Addr(), "test"))
	if err != nil {
		t.Fatal(err)
	}
	conf.ClientFoundRows = true
	return leasetest.Bound{
		Open: func() backend.Backend {
			b, err := mysqllock.NewUserLocks(mysqllock.UserLocksConfig{Conn: conf.Clone()})
			return leasetest.Opened(t, b, err)
		},
		Victim: func() backend.Backend { return openUserLocks(t, getlockURL(s, "victim", s.Addr())) },
		Through: func() (backend.Backend, *chaos.Proxy) {
			proxy := chaos.Start(t, s.Addr())
			return openUserLocks(t, getlockURL(s, "root", proxy.Addr())), proxy
		},
		End: func() int64 {
			id := s.Int(`SELECT COALESCE(MIN(p.ID), 0) FROM information_schema.PROCESSLIST p JOIN holdfast_getlock_sessions s ON s.id = p.ID
				WHERE p.USER = 'victim' AND IS_USED_LOCK(s.conn) = p.ID`)
			s.Exec("BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR 1094 BEGIN END; KILL " + strconv.FormatInt(id, 10) + "; END")
			return id
		},
		Leases: func() int64 { return s.Int("SELECT COUNT(*) FROM holdfast_getlock_leases") },
		Age:    func() { s.Exec("UPDATE test.holdfast_getlock_sessions SET made = made - 3600000000") },
		Forbid: func(note string) {
			s.Exec(`ALTER TABLE holdfast_getlock_leases ADD CHECK (note <> '` + note + `')`)
		},
	}
}

// What every store of locks of a connection survives; package leasetest says what.
func TestUserLocksBounds(t *testing.T) {
	t.Parallel()
	leasetest.Bounds(t, userLocks)
}

func TestUserLocksConformance(t *testing.T) {
	t.Parallel()
	s, disk := testserver.WithSlowDisk(t, hostile(t))
	url := leastUser(t, s, "mysql+getlock", openLocks, unchecked)
	backendtest.Run(t, leasetest.Harness(s, disk, testserver.SlowSync, func(ctx context.Context) (backend.Backend, error) { return openLocks(ctx, url) }))
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
	s := testserver.MariaDB(t, "log-bin")
	refused(t, s, "test.holdfast_getlock_meta", func() backend.Backend { return openUserLocks(t, getlockURL(s, "root", s.Addr())) })
}
