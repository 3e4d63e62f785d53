package e2e_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestMain runs the tests, or one of the programs that tests start in processes of their own.
func TestMain(m *testing.M) {
	if url := os.Getenv(candidateURL); url != "" {
		if err := candidateMain(url, os.Getenv(candidateElection), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "candidate:", err)
			os.Exit(1)
		}
		return
	}
	if isClaimWorker() {
		claimWorker()
		return
	}
	testserver.Main(m)
}

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

// sharedStores are the stores of the shared servers, and some that need none, by URL.
func sharedStores() map[string]func(t *testing.T) string {
	return map[string]func(t *testing.T) string{
		"sqlite": func(t *testing.T) string { t.Helper(); return "sqlite://" + t.TempDir() + "/locks.db" },
		"redis":  func(*testing.T) string { return "redis://" + sharedRedis().Addr() + "?quarantine=off" },
		"redlock": func(*testing.T) string {
			return "redlock://" + testserver.RedisAddrs(sharedRedlock()) + "?quarantine=off&max_ttl=5m"
		},
		"etcd": func(*testing.T) string { return "etcd://" + sharedEtcd().Addr() },
		"zookeeper": func(*testing.T) string {
			return "zookeeper://" + sharedZooKeeper().Addr() + "?tick=" + testserver.ZooKeeperTick.String() + "&max_session=" + testserver.ZooKeeperMaxSession.String()
		},
		"consul": func(*testing.T) string {
			return "consul://" + sharedConsul().Addr() + "?min_ttl=" + testserver.ConsulMinTTL.String()
		},
		"postgres": func(*testing.T) string { return sharedPostgres().URL() },
		"postgres+advisory": func(*testing.T) string {
			return "postgres+advisory" + strings.TrimPrefix(sharedPostgres().URL(), "postgres")
		},
		"mysql":         func(*testing.T) string { return sharedMariaDB().URL() },
		"mysql+getlock": func(*testing.T) string { return "mysql+getlock" + strings.TrimPrefix(sharedMariaDB().URL(), "mysql") },
		"kubernetes": func(*testing.T) string {
			s := sharedKubernetes()
			return "kubernetes://default?kubeconfig=" + s.Kubeconfig(s.Addr())
		},
		"holdfast": func(t *testing.T) string {
			t.Helper()
			addr, _ := overHTTP(t)
			return "holdfast://" + addr
		},
	}
}

// slowStore leaves a test on a store to make check if that store's server does not come with Debian, or starts slowly.
func slowStore(t *testing.T, store string) {
	t.Helper()
	if slices.Contains([]string{"consul", "kubernetes", "zookeeper"}, store) {
		leasetest.Slow(t)
	}
}
