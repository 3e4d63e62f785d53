package redislock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance(t)
}

// TestConformanceOfTheScript is the same with a server that takes no functions.
func TestConformanceOfTheScript(t *testing.T) {
	t.Parallel()
	conformance(t, scriptsOnly()...)
}

func conformance(t *testing.T, args ...string) {
	t.Helper()
	s, disk := testserver.WithSlowDisk(t, testserver.Redis(t, args...))
	// With the quarantine on, and ended: a server that was just started may have lost data.
	cfg := redislock.Config{Quarantine: time.Second, RequestTimeout: leasetest.Patience / 2}
	settled(t, open(t, s, cfg))
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := redislock.Open(t.Context(), "redis://"+s.Addr(), cfg)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:  func(backendtest.T) { s.Restart() },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
	})
}
