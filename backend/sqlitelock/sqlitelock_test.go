//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/internal/leaktest"
	"github.com/holdfast-io/holdfast/internal/leasetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childJob) != "" {
		os.Exit(child())
	}
	leaktest.Main(m)
}

// TestConformance runs the suite with many backend values on one file: they share nothing but the
// file.
func TestConformance(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := sqlitelock.Open(t.Context(), path, sqlitelock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		NoRestart: "there is no server; what survives a crash and a reboot has its own tests",
		TTL:       suiteTTL,
		Holders:   leasetest.Holders(1000), // each transaction reads all of them
	})
}
