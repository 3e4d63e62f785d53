package consullock_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// TestReleasedDuringTheCreate: the key that is made after the release is deleted.
func TestReleasedDuringTheCreate(t *testing.T) {
	t.Parallel()
	server := consul()
	b, x := tapped(t, server.Addr())
	leasetest.ReleasedDuringTheCreate(t, b, closing(t, server.Addr()), func(backend.SessionID) (func() bool, func()) {
		var delayed atomic.Bool
		passed := make(chan struct{})
		on := func(r *http.Request) *http.Response {
			if strings.HasSuffix(r.URL.Path, "/txn") && delayed.CompareAndSwap(false, true) {
				<-passed
			}
			return nil
		}
		x.on.Store(&on)
		return delayed.Load, sync.OnceFunc(func() { close(passed) })
	})
}
