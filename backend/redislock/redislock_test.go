package redislock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	// With the quarantine on, and over: a server that was just started may have lost data.
	cfg := redislock.Config{Quarantine: time.Second}
	settled(t, open(t, s, cfg))
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := redislock.Open(t.Context(), "redis://"+s.Addr(), cfg)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart: func(backendtest.T) { s.Restart() },
	})
}
