package play_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/verify/play"
)

// store is a real server, with a look at its sizes.
type store struct {
	url  string
	look func(t *testing.T, s sizes) // may be nil
}

// stores start servers, by the names that BACKEND takes.
func stores() map[string]func(t *testing.T) store {
	return map[string]func(t *testing.T) store{
		"sqlite": func(t *testing.T) store {
			t.Helper()
			path := filepath.Join(testserver.Dir(t), "locks.db")
			return store{"sqlite://" + path, func(t *testing.T, s sizes) {
				t.Helper()
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				s["file memory"] = info.Size()
			}}
		},
		"redis":             onRedis,
		"etcd":              onEtcd,
		"zookeeper":         onZooKeeper,
		"consul":            onConsul,
		"postgres":          onPostgres,
		"mysql":             onMariaDB,
		"postgres+advisory": onAdvisory,
		"mysql+getlock":     onUserLocks,
		"redlock": func(t *testing.T) store {
			t.Helper()
			const nodes = 5
			return store{url: "redlock://" + testserver.RedisAddrs(testserver.RedisNodes(t, nodes)) + "?quarantine=off"}
		},
		"kubernetes": func(t *testing.T) store {
			t.Helper()
			s := testserver.Kubernetes(t)
			return store{url: "kubernetes://default?kubeconfig=" + s.Kubeconfig(s.Addr())}
		},
		"holdfast": func(t *testing.T) store { t.Helper(); return store{url: overHTTP(t)} }, // in this process
		"memory":   func(*testing.T) store { return store{url: "memory://"} },
		"embedded": func(t *testing.T) store { t.Helper(); return store{url: "embedded://" + testserver.Dir(t)} },
	}
}

func onRedis(t *testing.T) store {
	t.Helper()
	one := testserver.Redis(t)
	return store{"redis://" + one.Addr() + "?quarantine=off", func(t *testing.T, s sizes) {
		t.Helper()
		keys, _ := one.Do("DBSIZE").(int64)
		s["keys"] = keys
		s.process("server", one.Process().Pid())
	}}
}

func onEtcd(t *testing.T) store {
	t.Helper()
	servers := testserver.StartEtcd(t, testserver.EtcdOptions{})
	admin := servers[0].Admin()
	return store{"etcd://" + strings.Join(testserver.Endpoints(servers), ","), func(t *testing.T, s sizes) {
		t.Helper()
		keys, err := admin.Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		leases, err := admin.Leases(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s["keys"], s["leases"] = keys.Count, int64(len(leases.Leases))
		s.process("server", servers[0].Pid())
	}}
}

func onZooKeeper(t *testing.T) store {
	t.Helper()
	one := testserver.StartZooKeeper(t, 1)[0]
	return store{"zookeeper://" + one.Addr(), func(t *testing.T, s sizes) {
		t.Helper()
		s["keys"], s["server sessions"] = int64(one.Count("zk_znode_count")), int64(one.Count("zk_ephemerals_count"))
		s.process("server", one.Process().Pid())
	}}
}

func onConsul(t *testing.T) store {
	t.Helper()
	one := testserver.StartConsul(t, 1)[0]
	return store{"consul://" + one.Addr() + "?min_ttl=" + testserver.ConsulMinTTL.String(), func(t *testing.T, s sizes) {
		t.Helper()
		pool := new(http.Transport)
		defer pool.CloseIdleConnections()
		c, err := consul.NewClient(&consul.Config{Address: one.Addr(), HttpClient: &http.Client{Transport: pool}})
		if err != nil {
			t.Fatal(err)
		}
		keys, _, err := c.KV().Keys("", "", nil)
		sessions, _, err2 := c.Session().List(nil)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		s["keys"], s["consul sessions"] = int64(len(keys)), int64(len(sessions))
		s.process("server", one.Process().Pid())
	}}
}

func onPostgres(t *testing.T) store {
	t.Helper()
	one := testserver.Postgres(t)
	return store{one.URL(), func(t *testing.T, s sizes) {
		t.Helper()
		for _, table := range []string{"locks", "leases", "sessions", "tombs", "losses"} {
			s[table+" rows"] = one.Int("SELECT count(*) FROM holdfast." + table)
		}
		s["server connections"] = one.Int("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
		s.process("server", one.Process().Pid())
	}}
}

func onMariaDB(t *testing.T) store {
	t.Helper()
	one := testserver.MariaDB(t)
	return store{one.URL(), func(t *testing.T, s sizes) {
		t.Helper()
		for _, table := range []string{"locks", "leases", "sessions", "tombs", "losses"} {
			s[table+" rows"] = one.Int("SELECT count(*) FROM holdfast_" + table)
		}
		s["server connections"] = one.Int("SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER = 'root'")
		s.process("server", one.Process().Pid())
	}}
}

// onAdvisory and onUserLocks are the same servers with the locks of their own.
func onAdvisory(t *testing.T) store {
	t.Helper()
	one := testserver.Postgres(t)
	return store{"postgres+advisory" + strings.TrimPrefix(one.URL(), "postgres"), func(t *testing.T, s sizes) {
		t.Helper()
		for _, table := range []string{"leases", "sessions", "waiters"} {
			s[table+" rows"] = one.Int("SELECT count(*) FROM holdfast_advisory." + table)
		}
		s["server connections"] = one.Int("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
		s.process("server", one.Process().Pid())
	}}
}

func onUserLocks(t *testing.T) store {
	t.Helper()
	one := testserver.MariaDB(t)
	return store{"mysql+getlock" + strings.TrimPrefix(one.URL(), "mysql"), func(t *testing.T, s sizes) {
		t.Helper()
		for _, table := range []string{"leases", "sessions"} {
			s[table+" rows"] = one.Int("SELECT count(*) FROM holdfast_getlock_" + table)
		}
		s["server connections"] = one.Int("SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER = 'root'")
		s.process("server", one.Process().Pid())
	}}
}

// overHTTP is our own server, on the etcd that it brings, over HTTP.
func overHTTP(t *testing.T) string {
	t.Helper()
	store, err := open.URL(t.Context(), "embedded://"+testserver.Dir(t), open.Options{})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(store, server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-served, store.Close()); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return "holdfast://" + ln.Addr().String()
}

// TestSoak plays for as long as SOAK says on the backend that BACKEND names, with another
// seed each minute, or as ROUND says, beginning with SEED, in the profile PROFILE: see
// make soak. It ends at the first violation, and when sizes grew that must not. SOAK_REPORT is
// a file to which what became of it is added. By itself it is a short gentle run in this
// process.
func TestSoak(t *testing.T) { //nolint:tparallel // one minute after the other
	t.Parallel()
	long, err := time.ParseDuration(cmp.Or(os.Getenv("SOAK"), "2s"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	name := cmp.Or(os.Getenv("BACKEND"), "memory")
	start, ok := stores()[name]
	if !ok {
		t.Fatalf("BACKEND is %q", name)
	}
	where := start(t)
	profile := play.Profile(cmp.Or(os.Getenv("PROFILE"), "gentle"))
	piece, err := time.ParseDuration(cmp.Or(os.Getenv("ROUND"), "1m"))
	if err != nil {
		t.Fatal(err)
	}
	if profile == play.Jepsen {
		piece = 2 * time.Minute // as Jepsen's
	}
	sum := soaked{Backend: name, Profile: string(profile), Seed: seed, Begun: time.Now()}
	for end := time.Now().Add(long); time.Now().Before(end) && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			r := passes(t, play.Config{
				URL: where.url, Worker: workers(), Seed: seed, Profile: profile,
				For: min(piece, max(2*time.Second, time.Until(end))),
			})
			sum.add(r)
			now := make(sizes)
			now.own()
			if where.look != nil {
				where.look(t, now)
			}
			sum.Sizes = append(sum.Sizes, now)
			for _, name := range namesOf([]sizes{now}) {
				t.Logf("%s: %d", name, now[name])
			}
		})
	}
	sum.Grown = grown(sum.Sizes)
	for _, text := range sum.Grown {
		t.Error(text)
	}
	sum.Failed = t.Failed()
	sum.report(t)
}
