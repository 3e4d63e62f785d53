package pglock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/leaktest"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	s, disk := testserver.WithSlowDisk(t, testserver.Postgres(t))
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := pglock.Open(t.Context(), s.URL(), pglock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:  func(backendtest.T) { s.Kill(); disk.Without(s.Start) },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
		Holders:  leasetest.Holders(500), // each transaction reads all of them
	})
}

// TestConformanceDeaf runs the suite as behind a pooler: without notifications.
func TestConformanceDeaf(t *testing.T) {
	t.Parallel()
	s, disk := testserver.WithSlowDisk(t, testserver.Postgres(t))
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := pglock.Open(t.Context(), s.URL()+"&listen=false&schema=deaf", pglock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:  func(backendtest.T) { s.Kill(); disk.Without(s.Start) },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
		Holders:  leasetest.Holders(500), // each transaction reads all of them
	})
}
