package e2e_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// Settings that weaken a store are reported by the backends that can read them, and correct
// settings are not.
func TestExamine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		start func(t *testing.T) string
		says  []string // nothing else
	}{
		"a Redis alone": {func(t *testing.T) string {
			t.Helper()
			return "redis://" + testserver.Redis(t).Addr() + "?quarantine=off"
		}, nil},
		"a Redis with a replica": {func(t *testing.T) string {
			t.Helper()
			s := testserver.Redis(t)
			host, port, _ := strings.Cut(s.Addr(), ":")
			testserver.Redis(t, "--replicaof", host+" "+port)
			s.Do("SET", "somebody", "else")
			s.Do("WAIT", "1", "20000")
			return "redis://" + s.Addr() + "?quarantine=off"
		}, []string{"1 replicas follow asynchronously"}},
		"an etcd alone": {func(t *testing.T) string {
			t.Helper()
			return "etcd://" + testserver.StartEtcd(t, testserver.EtcdOptions{})[0].Addr()
		}, []string{"1 members"}},
		"a ZooKeeper alone": {func(t *testing.T) string {
			t.Helper()
			return "zookeeper://" + testserver.StartZooKeeper(t, 1)[0].Addr()
		}, []string{"runs standalone"}},
		"a Consul alone": {func(t *testing.T) string {
			t.Helper()
			return "consul://" + testserver.StartConsul(t, 1)[0].Addr() + "?min_ttl=1ms"
		}, []string{"1 servers", "session_ttl_min"}},
		"a PostgreSQL": {func(t *testing.T) string { t.Helper(); return testserver.Postgres(t).URL() }, nil},
		"a PostgreSQL that does not sync": {func(t *testing.T) string {
			t.Helper()
			return testserver.Postgres(t, "fsync=off").URL()
		}, []string{"fsync is off"}},
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
				t.Fatalf("it found %q, %v; want %q", found, err, c.says)
			}
			for i, want := range c.says {
				if !strings.Contains(found[i], want) {
					t.Errorf("it found %q, not %q", found[i], want)
				}
			}
		})
	}
}
