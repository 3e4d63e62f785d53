package remotelock_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/remotelock"
)

// TestCloseUnderWay closes the backend, twice, while the server answers nothing: to the question of which protocol it
// speaks, whether it is ready, or to calls that wait. All calls end with ErrClosed, and so do those that follow.
func TestCloseUnderWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ silent, hosts string }{
		"protocol": {"/healthz", "HOST"}, "ready": {"/readyz", "HOST,127.0.0.1:1"}, "ready, second": {"/readyz", "127.0.0.1:1,HOST"}, "calls": {"/v1/", "HOST"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reached, once := make(chan struct{}), sync.Once{}
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, c.silent) {
					once.Do(func() { close(reached) })
					<-r.Context().Done()
				}
			}))
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetHTTP1(true)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
			defer s.Close()
			b, err := remotelock.New("holdfast://"+strings.Replace(c.hosts, "HOST", s.Listener.Addr().String(), 1), remotelock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			calls := []func() error{
				func() error {
					_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour, Wait: true})
					return err
				},
				func() error {
					_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "m", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour})
					return err
				},
				func() error {
					return b.Release(t.Context(), backend.ReleaseRequest{Name: "n", Lease: backend.NewLeaseID()})
				},
				func() error {
					return b.Watch(t.Context(), backend.WatchRequest{}, func(backend.Event) {})
				},
			}
			const each = 10
			for range each {
				for _, call := range calls {
					go func() { ended <- call() }()
				}
			}
			<-reached
			begun := time.Now()
			var closing sync.WaitGroup
			for range 2 {
				closing.Go(func() {
					if err := b.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
			}
			closing.Wait()
			for range each * len(calls) {
				if err := <-ended; !errors.Is(err, backend.ErrClosed) {
					t.Errorf("a call under way: %v", err)
				}
			}
			for _, call := range calls {
				if err := call(); !errors.Is(err, backend.ErrClosed) {
					t.Errorf("a call after Close: %v", err)
				}
			}
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("Close and the calls took %s", took)
			}
		})
	}
}
