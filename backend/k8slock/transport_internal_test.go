package k8slock

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestLoginsAreBounded: while a login program hangs, each renewal leaves a goroutine that waits for
// it. Their number is bounded, and the requests beyond it end with their contexts, too.
func TestLoginsAreBounded(t *testing.T) {
	t.Parallel()
	l, err := newLink(&rest.Config{Host: "https://127.0.0.1:1", ExecProvider: &api.ExecConfig{
		Command: "true", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode,
	}})
	if err != nil {
		t.Fatal(err)
	}
	var entered, most atomic.Int32
	goes := make(chan struct{})
	l.next = roundTripper(func(req *http.Request) (*http.Response, error) {
		most.Store(max(most.Load(), entered.Add(1)))
		defer entered.Add(-1)
		<-goes
		return nil, req.Context().Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var asked sync.WaitGroup
	for range 1000 {
		asked.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1:1", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			if res, err := l.RoundTrip(req); err == nil {
				_ = res.Body.Close()
				t.Error("a request was answered while the login program hangs")
			}
		})
	}
	asked.Wait()
	const bound = 256
	if n := most.Load(); n < 1 || n > bound {
		t.Errorf("%d requests waited for the login program", n)
	}
	close(goes)
}
