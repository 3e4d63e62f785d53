package pglock_test

import (
	"context"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// advisoryURL returns the URL for advisory locks, for another user or address.
func advisoryURL(s *testserver.PostgresServer, user, addr string) string {
	return "postgres+advisory" + s.URLOf(user, addr)[len("postgres"):]
}

// openAdvisory opens a backend that the test closes.
func openAdvisory(t *testing.T, url string) *pglock.Advisory {
	t.Helper()
	b, err := pglock.OpenAdvisory(t.Context(), url, pglock.AdvisoryConfig{})
	return leasetest.Opened(t, b, err)
}

// advisory starts a server, and returns it with the backends on it.
func advisory(t *testing.T) leasetest.Bound {
	t.Helper()
	s := testserver.Postgres(t)
	url := advisoryURL(s, "postgres", s.Addr())
	return leasetest.Bound{
		Open:   func() backend.Backend { return openAdvisory(t, url) },
		Victim: func() backend.Backend { return openAdvisory(t, url+"&application_name=victim") },
		Through: func() (backend.Backend, *chaos.Proxy) {
			proxy := chaos.Start(t, s.Addr())
			return openAdvisory(t, advisoryURL(s, "postgres", proxy.Addr())), proxy
		},
		End: func() int64 {
			return s.Int(`SELECT count(pg_terminate_backend(pid)) FROM (SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
				WHERE l.locktype = 'advisory' AND a.application_name = 'victim' LIMIT 1) x`)
		},
		Leases: func() int64 { return s.Int(`SELECT count(*) FROM holdfast_advisory.leases`) },
		Age:    func() { s.Exec(`UPDATE holdfast_advisory.sessions SET made = made - interval '1 hour'`) },
		Forbid: func(note string) {
			s.Exec(`ALTER TABLE holdfast_advisory.leases ADD CHECK (note <> '` + note + `')`)
		},
	}
}

// What every store of locks of a connection survives; package leasetest says what.
func TestAdvisoryBounds(t *testing.T) {
	t.Parallel()
	leasetest.Bounds(t, advisory)
}

func TestAdvisoryConformance(t *testing.T) {
	t.Parallel()
	s, disk := testserver.WithSlowDisk(t, testserver.Postgres(t))
	url := leastUser(t, s, "postgres+advisory", openLocks, unchecked)
	h := leasetest.Harness(s, disk, testserver.SlowSync, func(ctx context.Context) (backend.Backend, error) { return openLocks(ctx, url) })
	h.Holders = leasetest.Holders(1000) // each has a connection's row in what the server lists to a user
	backendtest.Run(t, h)
}
