package memlock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestConformance runs the suite in real time, all cases on one store.
func TestConformance(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	backendtest.Run(t, backendtest.Harness{
		Open: func(backendtest.T) backend.Backend { return store.Open() },
		TTL:  300 * time.Millisecond,
	})
}

// TestConformanceSimulated runs every case in a bubble of its own, where time is
// exact: nothing is late, and long leases cost nothing.
func TestConformanceSimulated(t *testing.T) {
	t.Parallel()
	simulate.Suite(t, time.Hour, time.Nanosecond, func() func() backend.Backend {
		store := memlock.NewStore()
		return func() backend.Backend { return store.Open() }
	})
}
