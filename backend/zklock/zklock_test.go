package zklock_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// zookeeper is the server of all tests that need none for themselves, and installed one that collects empty containers as
// rarely as by default.
var (
	zookeeper = testserver.Shared(func(tb testing.TB) *testserver.ZooKeeperServer {
		tb.Helper()
		return testserver.StartZooKeeper(tb, 1)[0]
	})
	installed = testserver.Shared(func(tb testing.TB) *testserver.ZooKeeperServer {
		tb.Helper()
		return testserver.StartZooKeeper(tb, 1, testserver.AsInstalled)[0]
	})
)

func TestMain(m *testing.M) { testserver.Main(m) }

// pathOf is where a test has its nodes.
func pathOf(t *testing.T) string {
	t.Helper()
	return "/" + strings.ReplaceAll(t.Name(), "/", ":")
}

// config is that of a backend which a test has on the servers.
func config(t *testing.T, servers ...string) zklock.Config {
	t.Helper()
	return zklock.Config{Servers: servers, Tick: testserver.ZooKeeperTick, MaxSession: testserver.ZooKeeperMaxSession, Path: pathOf(t)}
}

// opened opens a backend, as another process would have one, and closes it at the end of the test.
func opened(t *testing.T, cfg zklock.Config) *zklock.Backend {
	t.Helper()
	b, err := zklock.New(cfg)
	return leasetest.Opened(t, b, err)
}

// closing opens a backend on the servers.
func closing(t *testing.T, servers ...*testserver.ZooKeeperServer) *zklock.Backend {
	t.Helper()
	cfg := config(t)
	for _, s := range servers {
		cfg.Servers = append(cfg.Servers, s.Addr())
	}
	return opened(t, cfg)
}

// TestConformance runs the suite as a user with the ACL that the page gives to paste.
func TestConformance(t *testing.T) {
	t.Parallel()
	server, disk := testserver.WithSlowDisk(t, testserver.StartZooKeeper(t, 1)[0])
	r := leastRights(t, server)
	r.allow(t, r.acl)
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := r.open(t.Context(), r.login)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart:  func(backendtest.T) { server.Restart() },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
		Holders:  leasetest.Holders(500), // each acquire lists the queue
	})
}
