package pglock_test

import (
	"context"
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
	conforms(t, "")
}

// TestConformanceDeaf runs the suite as behind a pooler: without notifications.
func TestConformanceDeaf(t *testing.T) {
	t.Parallel()
	conforms(t, "&listen=false&schema=deaf")
}

// conforms runs the suite with more parameters of the URL.
func conforms(t *testing.T, more string) {
	t.Helper()
	s, disk := testserver.WithSlowDisk(t, testserver.Postgres(t))
	h := leasetest.Harness(s, disk, testserver.SlowSync, func(ctx context.Context) (backend.Backend, error) {
		return pglock.Open(ctx, s.URL()+more, pglock.Config{})
	})
	h.Holders = leasetest.Holders(500) // each transaction reads all of them
	backendtest.Run(t, h)
}
