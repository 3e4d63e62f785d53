package zklock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// open returns a backend on the servers, as another process would have one.
func open(t backendtest.T, servers ...*testserver.ZooKeeperServer) *zklock.Backend {
	t.Helper()
	cfg := zklock.Config{Tick: testserver.ZooKeeperTick, MaxSession: testserver.ZooKeeperMaxSession}
	for _, s := range servers {
		cfg.Servers = append(cfg.Servers, s.Addr())
	}
	b, err := zklock.New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	server, disk := testserver.WithSlowDisk(t, testserver.StartZooKeeper(t, 1)[0])
	backendtest.Run(t, backendtest.Harness{
		Open:     func(t backendtest.T) backend.Backend { return open(t, server) },
		Restart:  func(backendtest.T) { server.Restart() },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
		Holders:  leasetest.Holders(500), // each acquire lists the queue
	})
}
