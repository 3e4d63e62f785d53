package k8slock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// kubernetes is the API server of all tests that need none for themselves.
var kubernetes = testserver.Shared(func(tb testing.TB) *testserver.KubernetesServer {
	tb.Helper()
	return testserver.Kubernetes(tb)
})

func TestMain(m *testing.M) { testserver.Main(m) }

// open returns a backend on the server, as another process would have one.
func open(t backendtest.T, kubeconfig string) *k8slock.Backend {
	t.Helper()
	b, err := k8slock.Open(t.Context(), "kubernetes://default?kubeconfig="+kubeconfig, k8slock.Config{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	etcd, disk := testserver.WithSlowDisk(t, testserver.StartEtcd(t, testserver.EtcdOptions{Newest: true})[0])
	server := testserver.KubernetesOn(t, etcd, fairless()...)
	leastAccount(t, server)
	kubeconfig, restart := server.KubeconfigAs(leastName), server.Restart
	backendtest.Run(t, backendtest.Harness{
		Open:    func(t backendtest.T) backend.Backend { return open(t, kubeconfig) },
		Restart: func(backendtest.T) { restart() },
		// Everything that the API server reports, even from its watch cache, is in this etcd, which
		// is killed then; the API server keeps reporting it.
		SlowDisk: func(backendtest.T) func() { restart = etcd.Restart; disk.Slow(testserver.SlowSync); return disk.Fast },
		Holders:  leasetest.Holders(64), // all are in one object, which each acquire writes
	})
}
