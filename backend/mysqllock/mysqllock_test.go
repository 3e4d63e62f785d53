package mysqllock_test

import (
	"context"
	"math/rand/v2"
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
	url := leastUser(t, s, "mysql", openLeases, unchecked)
	h := leasetest.Harness(s, disk, testserver.SlowSync, func(ctx context.Context) (backend.Backend, error) { return openLeases(ctx, url) })
	h.Holders = leasetest.Holders(500) // each transaction reads all of them
	backendtest.Run(t, h)
}

// TestConformanceInOtherWays runs the suite without the short way, and with locks that are inflated as
// soon as they were taken: all, and every other one.
func TestConformanceInOtherWays(t *testing.T) {
	t.Parallel()
	inflating := func(toss func() bool) func(*mysqllock.Backend) backend.Backend {
		return func(b *mysqllock.Backend) backend.Backend { return leasetest.Inflating{Backend: b, Toss: toss} }
	}
	for name, as := range map[string]func(*mysqllock.Backend) backend.Backend{
		"long":     func(b *mysqllock.Backend) backend.Backend { b.NeverQuick(); return b },
		"inflated": inflating(func() bool { return true }),
		"coin":     inflating(func() bool { return rand.IntN(2) == 0 }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.MariaDB(t)
			backendtest.Run(t, backendtest.Harness{
				Open: func(t backendtest.T) backend.Backend {
					b, err := mysqllock.Open(t.Context(), s.URL(), mysqllock.Config{})
					if err != nil {
						t.Fatalf("open: %v", err)
					}
					return as(b)
				},
				Restart:    func(backendtest.T) { s.Restart() },
				Holders:    leasetest.Holders(500),
				NoSlowDisk: "TestConformance has the same server on one",
			})
		})
	}
}
