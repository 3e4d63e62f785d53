package k8slock_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open gives a backend on the server, as another process would have one.
func open(t backendtest.T, kubeconfig string) *k8slock.Backend {
	t.Helper()
	b, err := k8slock.Open(t.Context(), "kubernetes://default?kubeconfig="+kubeconfig, nil)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	server := testserver.Kubernetes(t)
	kubeconfig := server.Kubeconfig(server.Addr())
	backendtest.Run(t, backendtest.Harness{
		Open:    func(t backendtest.T) backend.Backend { return open(t, kubeconfig) },
		Restart: func(backendtest.T) { server.Restart() },
		Holders: leasetest.Holders(16), // all are in one object, which each who comes writes
	})
}
