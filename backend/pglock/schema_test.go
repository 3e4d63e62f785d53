package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// A role that may only use the tables: another role creates them.
func TestRoleThatMayOnlyUse(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	s.Exec(`CREATE ROLE app LOGIN`)
	app, admin := open(t, s.URLOf("app", s.Addr())), open(t, s.URL())
	err := app.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	if !errors.Is(err, pglock.ErrNoSchema) || !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("without tables: %v; it has to be ErrNoSchema", err)
	}
	for range 2 {
		if err := admin.Migrate(leasetest.Within(t)); err != nil {
			t.Fatal(err)
		}
	}
	err = app.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	if !errors.Is(err, backend.ErrRefused) || errors.Is(err, pglock.ErrNoSchema) {
		t.Fatalf("without rights: %v; it has to be ErrRefused", err)
	}
	s.Exec(`GRANT USAGE ON SCHEMA holdfast TO app`, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO app`)
	id, mine := leasetest.Session(t, app, leasetest.Long, nil), leasetest.Session(t, admin, time.Minute, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, app, req)
	got := leasetest.Start(t, admin, leasetest.Ask("n", mine))
	leasetest.InQueue(t, app, "n", 1)
	watching, stop := context.WithCancelCause(leasetest.Within(t))
	begun := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- app.Watch(watching, backend.WatchRequest{}, func(e backend.Event) {
			if e.Kind == backend.EventWatching {
				close(begun)
			}
		})
	}()
	select {
	case <-begun:
	case err := <-done:
		t.Fatalf("watch: %v", err)
	}
	leasetest.Give(t, app, req)
	if g := <-got; g.Err != nil {
		t.Error(g.Err)
	}
	app.Sweep(leasetest.Within(t), 0)
	enough := errors.New("enough")
	stop(enough)
	if err := <-done; !errors.Is(err, enough) {
		t.Errorf("watch: %v", err)
	}
}

// Many processes use an empty database concurrently.
func TestMadeAtOnce(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	leasetest.MadeAtOnce(t, func() backend.Backend { return open(t, s.URL()) })
}

// Tables of a later version, a database of another encoding and a standby are refused.
func TestRefusedDatabases(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	open := func(url string) error {
		b := open(t, url)
		return b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	}
	if err := open(s.URL()); err != nil {
		t.Fatal(err)
	}
	s.Exec(`CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0`)
	if err := open(strings.Replace(s.URL(), "/postgres?", "/latin?", 1)); !errors.Is(err, pglock.ErrEncoding) || !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("LATIN1: %v", err)
	}
	s.Exec(`UPDATE holdfast.meta SET version = version + 1`)
	if err := open(s.URL()); !errors.Is(err, pglock.ErrNewer) || !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("a later version: %v", err)
	}
	s.Exec(`UPDATE holdfast.meta SET version = version - 1`, `ALTER SYSTEM SET default_transaction_read_only = on`, `SELECT pg_reload_conf()`)
	if err := open(s.URL()); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("read-only: %v", err)
	}
}

// C2: the rows of unused locks are deleted, while clients use other locks.
func TestSweep(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t)
	sweeper := open(t, s.URL())
	leasetest.Sweep(t, func() backend.Backend { return open(t, s.URL()) }, func(ctx context.Context) { sweeper.Sweep(ctx, 0) }, func() int64 {
		return s.Int(`SELECT (SELECT count(*) FROM holdfast.locks) + (SELECT count(*) FROM holdfast.leases)`)
	})
	if n := s.Int(`SELECT count(*) FROM holdfast.sessions`); n != 1 { // the live one
		t.Errorf("%d sessions are left", n)
	}
}

// A server that does not wait for its disk is made to, in our transactions; also one whose
// settings change while we are connected.
func TestCommitsAreDurable(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	t.Run("from the start", func(t *testing.T) { t.Parallel(); commitsAreDurable(t, "synchronous_commit=off") })
	t.Run("while connected", func(t *testing.T) {
		t.Parallel()
		commitsAreDurable(t, "max_connections=200", `ALTER SYSTEM SET synchronous_commit = off`, `SELECT pg_reload_conf()`)
	})
}

func commitsAreDurable(t *testing.T, setting string, later ...string) {
	t.Helper()
	s := testserver.Postgres(t, setting, "wal_writer_delay=10s", "autovacuum=off")
	b := open(t, s.URL())
	id := leasetest.Session(t, b, time.Hour, nil)
	req := leasetest.Ask("n", id)
	s.Exec(later...)
	leasetest.Eventually(t, "the setting holds", func() bool {
		return s.Int(`SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'off'`) == 1
	})
	token := leasetest.Take(t, b, req)
	s.Restart()
	// Not by a repeated acquisition: what was lost would be granted once more, with the same
	// token.
	info, err := leasetest.Insist(t, func(ctx context.Context) (backend.LockInfo, error) { return b.Inspect(ctx, "n") })
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != req.Lease || info.Holders[0].Token != token {
		t.Errorf("after a crash: %+v, %v; the lease was granted with token %d", info, err, token)
	}
}

// A renewal is as durable as a grant: after a crash the session does not end before its holder
// believes. This holds also behind a pooler, where nothing can be set for a connection.
func TestRenewalsAreDurable(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for _, listen := range []string{"true", "false"} {
		t.Run("listen="+listen, func(t *testing.T) {
			t.Parallel()
			s := testserver.Postgres(t, "synchronous_commit=off", "wal_writer_delay=10s", "autovacuum=off")
			b := open(t, s.URL()+"&listen="+listen)
			b.KeepFromSweeping()
			const ends = `SELECT (1000000 * extract(epoch FROM ends))::bigint FROM holdfast.sessions`
			survives := func(what string) {
				t.Helper()
				before := s.Int(ends)
				s.Restart()
				if after := s.Int(ends); after != before {
					t.Errorf("%s: after a crash the session ends at %d, and not at %d", what, after, before)
				}
			}
			id := leasetest.Session(t, b, time.Hour, nil)
			survives("open")
			res, err := leasetest.Insist(t, func(ctx context.Context) (backend.RenewResult, error) {
				return b.Renew(ctx, backend.RenewRequest{Session: id})
			})
			if err != nil || res.SessionLost {
				t.Fatalf("renew: %+v, %v", res, err)
			}
			survives("renew")
		})
	}
}
