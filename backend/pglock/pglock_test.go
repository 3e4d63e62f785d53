package pglock_test

import (
	"context"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestConformance runs the suite with a user who has the least rights, on a database with hostile settings.
func TestConformance(t *testing.T) {
	t.Parallel()
	s, disk := testserver.WithSlowDisk(t, testserver.Postgres(t))
	url := leastUser(t, s, "postgres", openLeases, unchecked)
	h := leasetest.Harness(s, disk, testserver.SlowSync, func(ctx context.Context) (backend.Backend, error) { return openLeases(ctx, url) })
	h.Holders = leasetest.Holders(500) // each transaction reads all of them
	backendtest.Run(t, h)
}

// TestConformanceThin runs the suite without watchers, so that locks are thin, on one server with values that never take the
// short way, and that inflate locks as soon as they were taken.
func TestConformanceThin(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t)
	as := leasetest.Drawn(t,
		func(b *pglock.Backend) backend.Backend { return leasetest.Unwatched{Backend: b} },
		func(b *pglock.Backend) backend.Backend { b.NeverQuick(); return leasetest.Unwatched{Backend: b} },
		func(b *pglock.Backend) backend.Backend {
			return leasetest.Unwatched{Backend: leasetest.Inflating{Backend: b}}
		},
	)
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := pglock.Open(t.Context(), s.URL(), pglock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return as(b)
		},
		Restart:    func(backendtest.T) { s.Restart() },
		Holders:    leasetest.Holders(500), // each transaction reads all of them
		NoSlowDisk: "TestConformance has the same server on one",
	})
}
