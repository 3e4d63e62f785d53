package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
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
	flag.Parse()
	const parallel = "3" // many tests wait for the end of a lease, and need no processor
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	leaktest.Main(lasting{m})
}

// What all tests share: one server of each kind, started on first use. A test has locks, databases or accounts of its
// own there. A server that is stopped, killed or set up in its own way belongs to one test.
var (
	sharedRedis   = sharing(func() *testserver.RedisServer { return testserver.Redis(&everyTest) })
	sharedRedlock = sharing(func() []*testserver.RedisServer { return testserver.RedisNodes(&everyTest, redlock.MinNodes) })
	sharedEtcd    = sharing(func() *testserver.Etcd {
		return testserver.StartEtcd(&everyTest, testserver.EtcdOptions{NoFsync: true})[0]
	})
	sharedZooKeeper = sharing(func() *testserver.ZooKeeperServer { return testserver.StartZooKeeper(&everyTest, 1)[0] })
	sharedConsul    = sharing(func() *testserver.ConsulServer { return testserver.StartConsul(&everyTest, 1)[0] })
	sharedMariaDB   = sharing(func() *testserver.MariaDBServer { return testserver.MariaDB(&everyTest, "max_connections=500") })
	sharedPostgres  = sharing(func() *testserver.PostgresServer {
		return testserver.Postgres(&everyTest, "fsync=off", "max_connections=500")
	})
	sharedKubernetes = sharing(func() *testserver.KubernetesServer { return testserver.Kubernetes(&everyTest) })
)

// sharing returns a function that starts something for all tests, on its first call.
func sharing[T any](start func() T) func() T {
	return sync.OnceValue(func() T {
		starting.Lock()
		defer starting.Unlock()
		return start()
	})
}

// starting is held while servers start. Some need the processors for a quarter of a minute: side by side, they would
// keep the renewals of other tests from being in time.
var starting sync.Mutex

// inTurn starts servers of one test.
func inTurn(start func()) {
	starting.Lock()
	defer starting.Unlock()
	start()
}

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

// everyTest stands for all tests: what lasts as long as they do belongs to it.
var everyTest suite

type suite struct {
	testing.TB // nil: not all of it is needed

	mu     sync.Mutex
	ends   []func()
	failed bool
}

func (*suite) Helper()                         {}
func (*suite) Context() context.Context        { return context.Background() }
func (*suite) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (*suite) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

func (s *suite) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = true
	s.Logf(format, args...)
}

func (s *suite) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *suite) Cleanup(end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, end)
}

// lasting runs the tests, and ends what belongs to all of them.
type lasting struct{ *testing.M }

func (l lasting) Run() int {
	status := l.M.Run()
	for _, end := range slices.Backward(everyTest.ends) {
		end()
	}
	if everyTest.Failed() {
		return 1
	}
	return status
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
