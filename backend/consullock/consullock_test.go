package consullock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// open returns a backend on the server, as another process would have one.
func open(t backendtest.T, addr string) *consullock.Backend {
	t.Helper()
	b, err := consullock.Open(t.Context(), "consul://"+addr+"?min_ttl="+testserver.ConsulMinTTL.String(), consullock.Config{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	server, disk := testserver.WithSlowDisk(t, testserver.StartConsul(t, 1)[0])
	backendtest.Run(t, backendtest.Harness{
		Open:     func(t backendtest.T) backend.Backend { return open(t, server.Addr()) },
		Restart:  func(backendtest.T) { server.Restart() },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
		Holders:  leasetest.Holders(200), // each acquire reads the queue
	})
}
