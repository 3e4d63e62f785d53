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

// A server that does not wait for its disk is made to, for grants and for renewals: after a crash no session ends before its holder
// believes. So is one whose settings change while we are connected, and one behind a pooler, where nothing can be set for a
// connection.
func TestAnswersAreDurable(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const off = `ALTER SYSTEM SET synchronous_commit = off`
	for name, x := range map[string]struct {
		listen        string
		before, later []string
	}{
		"from the start": {"true", []string{off}, nil}, "while connected": {"true", nil, []string{off}}, "behind a pooler": {"false", []string{off}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Postgres(t, "wal_writer_delay=10s", "autovacuum=off")
			set := func(statements []string) {
				if len(statements) > 0 {
					s.Exec(append(statements, `SELECT pg_reload_conf()`)...)
					leasetest.Eventually(t, "the setting holds", func() bool {
						return s.Int(`SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'off'`) == 1
					})
				}
			}
			set(x.before)
			b := open(t, s.URL()+"&listen="+x.listen)
			b.KeepFromSweeping()
			id := leasetest.Session(t, b, time.Hour, nil)
			set(x.later)
			survives := func(what, query string) {
				t.Helper()
				before := s.Int(query)
				s.Restart()
				if after := s.Int(query); after != before {
					t.Errorf("%s: after a crash there is %d, and not %d", what, after, before)
				}
			}
			leasetest.Take(t, b, leasetest.Ask("n", id))
			survives("acquire", `SELECT max(token) FROM (SELECT token FROM holdfast.locks WHERE lease <> '' UNION ALL SELECT token FROM holdfast.leases) x`)
			const ends = `SELECT (1000000 * extract(epoch FROM max(ends)))::bigint FROM holdfast.sessions`
			res, err := leasetest.Insist(t, func(ctx context.Context) (backend.RenewResult, error) {
				return b.Renew(ctx, backend.RenewRequest{Session: id})
			})
			if err != nil || res.SessionLost {
				t.Fatalf("renew: %+v, %v", res, err)
			}
			survives("renew", ends)
			if err := leasetest.InsistOn(t, func(ctx context.Context) error {
				return b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: 2 * time.Hour})
			}); err != nil {
				t.Fatal(err)
			}
			survives("open", ends)
		})
	}
}
