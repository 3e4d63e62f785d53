package memlock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
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
	for _, c := range backendtest.Cases() {
		if c.Restarts {
			continue
		}
		t.Run(c.ID+"/"+c.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				r := c.Run(t.Context(), backendtest.Harness{
					Open:  func(backendtest.T) backend.Backend { return store.Open() },
					TTL:   time.Hour,
					Slack: time.Nanosecond,
				})
				for _, s := range r.Failures {
					t.Error(s)
				}
			})
		})
	}
}
