package mysqllock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/leaktest"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	s, disk := testserver.WithSlowDisk(t, testserver.MariaDB(t))
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := mysqllock.Open(t.Context(), s.URL(), mysqllock.Config{})
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
