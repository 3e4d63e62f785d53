package holdfast_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// 100,000 leases cost one request per renewal, one goroutine, and under 1 KiB each on this side.
func TestManyLeasesOneRenewal(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 100_000} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, _ := newFaults(t)
				c := newClient(t, f, holdfast.Config{TTL: 30 * time.Second})
				locks := make([]*holdfast.Lock, n)
				for i := range locks {
					locks[i] = mustAcquire(t, c, fmt.Sprintf("lock-%d", i))
				}
				before := f.renewals.Load()
				time.Sleep(100 * time.Second)
				if got := f.renewals.Load() - before; got < 10 || got > 14 {
					t.Errorf("%d renewals in 100 s for %d leases, want 10 to 14", got, n)
				}
				for _, l := range locks {
					if l.Err() != nil {
						t.Fatal(l.Err())
					}
				}
			})
		})
	}
}

// Timed leases of one TTL share requests, in chunks if the backend bounds them.
func TestTimedLeasesAreRenewedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		f.caps = func(c *backend.Capabilities) { c.MaxRenew = 1000 }
		c := newClient(t, f, holdfast.Config{TTL: 30 * time.Second})
		var locks []*holdfast.Lock
		for i := range 5000 {
			locks = append(locks, mustAcquire(t, c, fmt.Sprintf("lock-%d", i), holdfast.TTL(12*time.Second)))
		}
		before := f.renewals.Load()
		time.Sleep(60 * time.Second)
		if got := f.renewals.Load() - before; got > 17*6+10 {
			t.Errorf("%d requests in 60 s for 5,000 timed leases", got)
		}
		for _, l := range locks {
			if l.Err() != nil {
				t.Fatal(l.Err())
			}
		}
	})
}
