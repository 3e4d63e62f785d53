package k8slock_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/internal/chaos"
)

// TestSilentConnection: a load balancer silently forgets the connection that all requests use.
// Renewals use another one well before a lease of the default TTL, half a minute, ends.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	const most = 22 * time.Second
	server := kubernetes()
	proxy := chaos.Start(t, server.Addr())
	b, err := k8slock.Open(t.Context(), "kubernetes://default?kubeconfig="+server.Kubeconfig(proxy.Addr()), k8slock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	id := backend.NewSessionID()
	if err := b.OpenSession(t.Context(), backend.SessionRequest{ID: id, TTL: 10 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	proxy.DropServerHalf()
	silent := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		res, err := b.Renew(ctx, backend.RenewRequest{Session: id})
		cancel()
		if err == nil && !res.SessionLost {
			break
		}
		if time.Since(silent) > most || res.SessionLost {
			t.Fatalf("not renewed after %s: %+v, %v", time.Since(silent), res, err)
		}
	}
	t.Logf("renewed after %s", time.Since(silent))
}
