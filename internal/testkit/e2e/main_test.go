package e2e_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// What all tests share: one server of each kind. A test has locks, databases or accounts of its own there. A server that is
// stopped, killed or set up in its own way belongs to one test.
var (
	sharedRedis   = testserver.Shared(func(tb testing.TB) *testserver.RedisServer { tb.Helper(); return testserver.Redis(tb) })
	sharedRedlock = testserver.Shared(func(tb testing.TB) []*testserver.RedisServer {
		tb.Helper()
		return testserver.RedisNodes(tb, redlock.MinNodes)
	})
	sharedEtcd = testserver.Shared(func(tb testing.TB) *testserver.Etcd {
		tb.Helper()
		return testserver.StartEtcd(tb, testserver.EtcdOptions{NoFsync: true})[0]
	})
	sharedZooKeeper = testserver.Shared(func(tb testing.TB) *testserver.ZooKeeperServer {
		tb.Helper()
		return testserver.StartZooKeeper(tb, 1)[0]
	})
	sharedConsul = testserver.Shared(func(tb testing.TB) *testserver.ConsulServer {
		tb.Helper()
		return testserver.StartConsul(tb, 1)[0]
	})
	sharedMariaDB = testserver.Shared(func(tb testing.TB) *testserver.MariaDBServer {
		tb.Helper()
		return testserver.MariaDB(tb, "max_connections=500")
	})
	sharedPostgres = testserver.Shared(func(tb testing.TB) *testserver.PostgresServer {
		tb.Helper()
		return testserver.Postgres(tb, "fsync=off", "max_connections=500")
	})
	sharedKubernetes = testserver.Shared(func(tb testing.TB) *testserver.KubernetesServer {
		tb.Helper()
		return testserver.Kubernetes(tb)
	})
)

// sideBySide runs a test on each store, a few of them together whatever -parallel is: such a test waits for the ends of
// leases, most of the time. More at once would be servers that start side by side, and time-outs on a busy machine.
func sideBySide[S any](t *testing.T, stores map[string]S, test func(t *testing.T, store string, start S)) {
	t.Helper()
	var all sync.WaitGroup
	turn := make(chan struct{}, 4)
	for name, start := range stores {
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			t.Run(name, func(t *testing.T) { test(t, name, start) })
		})
	}
	all.Wait()
}

// databases counts the databases of tests on the shared servers.
var databases atomic.Int64

// postgresDatabase returns the URL of a new database.
func postgresDatabase(t *testing.T) string {
	t.Helper()
	return sharedPostgres().Database(t, fmt.Sprint("test", databases.Add(1))).URL()
}

// mariaDatabase returns the data source name of a new database.
func mariaDatabase() string {
	s, name := sharedMariaDB(), fmt.Sprint("test", databases.Add(1))
	s.Exec("CREATE DATABASE " + name)
	return s.DSNOf("root", s.Addr(), name)
}
