package etcdlock_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
)

// Callers that wait for one etcd lease, and do not get it because etcd does not answer, are told so at the same time.
func TestSilentWhileAPoolIsMade(t *testing.T) {
	t.Parallel()
	proxy := chaos.Start(t, etcd(t)[0].Addr())
	b := through(t, proxy, "&timeout=1s")
	first := timed("first", time.Minute)
	if _, err := b.Acquire(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	proxy.BlackHole()
	began := time.Now()
	const callers = 12
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() {
			if _, err := b.Acquire(t.Context(), timed(fmt.Sprintf("lock%d", n), 30*time.Second)); !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("etcd is silent: %v", err)
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took > callers/2*time.Second {
		t.Errorf("the last of %d callers heard after %s that etcd is silent, with a bound of 1 s for a request", callers, took)
	}
}
