package mysqllock_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// C1, C12: the primary is made read-only, as for a switchover, and connections to it stay.
// Nothing is granted or renewed there any more, also for a user who may write there. The next
// primary under the same address is found, however busy the connections are.
func TestDemoted(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	old, primary := testserver.MariaDB(t), testserver.MariaDB(t)
	for _, s := range []*testserver.MariaDBServer{old, primary} {
		s.Exec("CREATE USER app@'127.0.0.1'", "GRANT ALL ON test.* TO app@'127.0.0.1'")
		if err := open(t, s.URL()).Migrate(leasetest.Within(t)); err != nil {
			t.Fatal(err)
		}
	}
	for _, user := range []string{"app", "root"} {
		demoted(t, user, old, primary)
	}
}

// C1, C10: the same for user locks, which are the server's own and not written down. A session
// ends where it would be renewed, and gives its locks up; none is opened.
func TestUserLocksDemoted(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	s.Exec("CREATE USER app@'127.0.0.1'", "GRANT ALL ON test.* TO app@'127.0.0.1'")
	for _, user := range []string{"app", "root"} {
		b := openUserLocks(t, getlockURL(s, user, s.Addr()))
		lost := make(chan backend.Loss, 1)
		id := leasetest.Session(t, b, time.Hour, func(x backend.Loss) { lost <- x })
		leasetest.Take(t, b, leasetest.Ask(user, id))
		s.Exec("SET GLOBAL read_only = 1")
		ctx := leasetest.Within(t)
		if _, err := b.Acquire(ctx, leasetest.Ask(user+" more", id)); err == nil {
			t.Errorf("%s: granted by a read-only server", user)
		}
		if res, err := b.Renew(ctx, backend.RenewRequest{Session: id}); err == nil && !res.SessionLost {
			t.Errorf("%s: renewed by a read-only server", user)
		}
		select {
		case <-lost:
		case <-ctx.Done():
			t.Errorf("%s: the holder was not told", user)
		}
		if err := b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Hour}); !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("%s: a session on a read-only server: %v", user, err)
		}
		s.Exec("SET GLOBAL read_only = 0")
		leasetest.Take(t, b, leasetest.Ask(user, leasetest.Session(t, b, time.Hour, nil)))
	}
}

// MariaDB 12 has a word where others have a number.
func TestReadOnlyInWords(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	for said, want := range map[string]int64{"0": 0, "1": 1, "'OFF'": 0, "'ON'": 1, "'NO_LOCK'": 1, "'NO_LOCK_NO_ADMIN'": 1} {
		if got := s.Int("SELECT " + strings.ReplaceAll(mysqllock.IsReadOnly, "@@global.read_only", said)); got != want {
			t.Errorf("%s: %d", said, got)
		}
	}
}

func demoted(t *testing.T, user string, old, primary *testserver.MariaDBServer) {
	t.Helper()
	old.Exec("SET GLOBAL read_only = 0")
	var addr atomic.Value
	addr.Store(old.Addr())
	conf, err := mysql.ParseDSN(old.DSNOf(user, old.Addr(), "test"))
	if err != nil {
		t.Fatal(err)
	}
	conf.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr.Load().(string)) //nolint:forcetypeassert // see above
	}
	b, err := mysqllock.New(mysqllock.Config{Conn: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	id := leasetest.Session(t, b, time.Hour, nil)
	kept, given := leasetest.Ask(user+" keeps", id), leasetest.Ask(user+" gives", id)
	timed := func() backend.AcquireRequest {
		return backend.AcquireRequest{Name: string(backend.NewLeaseID()), Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}
	}
	once := timed()
	for _, req := range []backend.AcquireRequest{kept, given, once} {
		leasetest.Take(t, b, req)
	}
	old.Exec("SET GLOBAL read_only = 1")
	ctx := leasetest.Within(t)
	renewals := []backend.TimedRenewal{{Name: once.Name, Lease: once.Lease, TTL: time.Minute}}
	for what, call := range map[string]func() error{
		"acquire":       func() error { _, err := b.Acquire(ctx, timed()); return err },
		"acquire again": func() error { _, err := b.Acquire(ctx, kept); return err },
		"open a session": func() error {
			return b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Hour})
		},
		"renew a session": func() error { _, err := b.Renew(ctx, backend.RenewRequest{Session: id}); return err },
		"renew a lease":   func() error { _, err := b.Renew(ctx, backend.RenewRequest{Leases: renewals}); return err },
		"release": func() error {
			return b.Release(ctx, backend.ReleaseRequest{Name: given.Name, Lease: given.Lease, Session: id})
		},
	} {
		if err := call(); !errors.Is(err, mysqllock.ErrReadOnly) || !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("%s: %s on a read-only server: %v", user, what, err)
		}
	}
	addr.Store(primary.Addr())
	const thin = "SELECT COUNT(*) FROM holdfast_locks WHERE lease <> '' AND fat = 0"
	before := primary.Int(thin)
	if _, err := leasetest.Insist(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, timed()) }); err != nil {
		t.Fatal(err)
	}
	if n := primary.Int(thin); n != before+1 {
		t.Errorf("%s: %d leases on the new primary, and %d before", user, n, before)
	}
}
