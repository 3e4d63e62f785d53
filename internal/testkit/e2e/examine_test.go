package e2e_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// Settings that weaken a store are reported by the backends that can read them, and correct
// settings are not. What is usual is reported as that.
func TestExamine(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for name, c := range map[string]struct {
		start func(t *testing.T) string
		says  []string // nothing else
		usual int      // how many of them, the first ones, are usual
	}{
		"a Redis alone": {func(t *testing.T) string {
			t.Helper()
			return "redis://" + sharedRedis().Addr() + "?quarantine=off"
		}, nil, 0},
		"a Redis as it comes": {func(t *testing.T) string {
			t.Helper()
			return "redis://" + testserver.Redis(t, "--appendonly", "no").Addr()
		}, []string{"a restart ends all leases"}, 1},
		"a Redis with a replica": {func(t *testing.T) string {
			t.Helper()
			s := testserver.Redis(t)
			host, port, _ := strings.Cut(s.Addr(), ":")
			testserver.Redis(t, "--replicaof", host+" "+port)
			s.Do("SET", "somebody", "else")
			s.Do("WAIT", "1", "20000")
			return "redis://" + s.Addr() + "?quarantine=off"
		}, []string{"1 replicas follow, and a grant waits for 0"}, 0},
		"a Redis whose grants wait for the replica": {func(t *testing.T) string {
			t.Helper()
			s := testserver.Redis(t)
			host, port, _ := strings.Cut(s.Addr(), ":")
			testserver.Redis(t, "--replicaof", host+" "+port)
			s.Do("WAIT", "1", "20000")
			return "redis://" + s.Addr() + "?quarantine=off&replicas=1"
		}, nil, 0},
		"an etcd alone": {func(t *testing.T) string {
			t.Helper()
			return "etcd://" + sharedEtcd().Addr()
		}, []string{"1 members"}, 1},
		"a ZooKeeper alone": {func(t *testing.T) string {
			t.Helper()
			return "zookeeper://" + sharedZooKeeper().Addr()
		}, []string{"runs standalone"}, 1},
		"a Consul alone": {func(t *testing.T) string {
			t.Helper()
			return "consul://" + sharedConsul().Addr() + "?min_ttl=1ms"
		}, []string{"1 servers", "session_ttl_min"}, 1},
		"a PostgreSQL":                                    {func(t *testing.T) string { t.Helper(); return testserver.Postgres(t).URL() }, nil, 0},
		"a PostgreSQL with a standby":                     {func(t *testing.T) string { t.Helper(); return standby(t, "").URL() }, []string{"1 standbys follow, and a commit waits for none"}, 0},
		"a PostgreSQL whose commits wait for the standby": {func(t *testing.T) string { t.Helper(); return standby(t, "follower").URL() }, nil, 0},
		"a PostgreSQL that does not sync": {func(t *testing.T) string {
			t.Helper()
			return sharedPostgres().URL()
		}, []string{"fsync is off"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := open.URL(t.Context(), c.start(t), open.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = b.Close() }()
			e, ok := b.(backend.Examiner)
			if !ok {
				t.Fatalf("the %s backend does not look", b.Capabilities().Name)
			}
			found, err := e.Examine(t.Context())
			if err != nil || len(found) != len(c.says) {
				t.Fatalf("it found %v, %v; want %q", found, err, c.says)
			}
			for i, want := range c.says {
				if !strings.Contains(found[i].Text, want) || found[i].Usual != (i < c.usual) {
					t.Errorf("it found %q, not %q", found[i].Text, want)
				}
			}
		})
	}
}

// standby returns a PostgreSQL whose log a standby receives. Commits wait for the standbys of that name.
func standby(t *testing.T, waitsFor string) *testserver.PostgresServer {
	t.Helper()
	s := testserver.Postgres(t, "synchronous_standby_names="+waitsFor)
	host, port, _ := strings.Cut(s.Addr(), ":")
	dir := testserver.Dir(t)
	testserver.Start(t, testserver.Command{
		Path: "pg_receivewal", Args: []string{"--directory", dir, "--host", host, "--port", port, "--username", "postgres", "--synchronous"},
		Env: []string{"PGAPPNAME=follower"}, Dir: dir,
	})
	leasetest.Eventually(t, "the standby follows", func() bool { return s.Int("SELECT count(*) FROM pg_stat_replication") == 1 })
	return s
}
