package pglock_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	conforms(t, func(s *testserver.PostgresServer) string { return leastUser(t, s, "postgres", openLeases, unchecked) })
}

// TestConformanceDeaf runs the suite as behind a pooler: without notifications.
func TestConformanceDeaf(t *testing.T) {
	t.Parallel()
	conforms(t, func(s *testserver.PostgresServer) string { return s.URL() + "&listen=false&schema=deaf" })
}

// TestConformanceThin runs the suite without watchers, so that locks are thin: all, and some, where the others are
// inflated as soon as they were taken.
func TestConformanceThin(t *testing.T) {
	t.Parallel()
	for name, toss := range map[string]func() bool{
		"all": func() bool { return false }, "some": func() bool { return rand.IntN(2) == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Postgres(t)
			backendtest.Run(t, backendtest.Harness{
				Open: func(t backendtest.T) backend.Backend {
					b, err := pglock.Open(t.Context(), s.URL(), pglock.Config{})
					if err != nil {
						t.Fatalf("open: %v", err)
					}
					return leasetest.Unwatched{Backend: leasetest.Inflating{Backend: b, Toss: toss}}
				},
				Restart:    func(backendtest.T) { s.Restart() },
				Holders:    leasetest.Holders(500), // each transaction reads all of them
				NoSlowDisk: "TestConformance has the same server on one",
			})
		})
	}
}

// conforms runs the suite.
func conforms(t *testing.T, urlOf func(*testserver.PostgresServer) string) {
	t.Helper()
	s, disk := testserver.WithSlowDisk(t, testserver.Postgres(t))
	url := urlOf(s)
	h := leasetest.Harness(s, disk, testserver.SlowSync, func(ctx context.Context) (backend.Backend, error) { return openLeases(ctx, url) })
	h.Holders = leasetest.Holders(500) // each transaction reads all of them
	backendtest.Run(t, h)
}
