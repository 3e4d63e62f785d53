package e2e_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	openurl "github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/server"
)

// reachable has the address of a real server that all tests share, and the URL of that server behind another address.
type reachable struct {
	addr string
	url  func(addr string) string
}

// open returns a backend value that reaches the server through an address.
func (n reachable) open(t *testing.T, addr string) backend.Backend {
	t.Helper()
	b, err := openurl.URL(t.Context(), n.url(addr), openurl.Options{})
	return opened(t, b, err)
}

// networks returns the stores that have a network in front of them.
func networks() map[string]func(t *testing.T) reachable {
	return map[string]func(t *testing.T) reachable{
		"redis": func(*testing.T) reachable {
			return reachable{sharedRedis().Addr(), func(addr string) string { return "redis://" + addr + "?quarantine=off" }}
		},
		"etcd": func(*testing.T) reachable {
			return reachable{sharedEtcd().Addr(), func(addr string) string { return "etcd://" + addr }}
		},
		"zookeeper": func(*testing.T) reachable {
			return reachable{sharedZooKeeper().Addr(), func(addr string) string {
				return "zookeeper://" + addr + "?tick=" + testserver.ZooKeeperTick.String() + "&max_session=" + testserver.ZooKeeperMaxSession.String()
			}}
		},
		"consul": func(*testing.T) reachable {
			return reachable{sharedConsul().Addr(), func(addr string) string { return "consul://" + addr + "?min_ttl=" + testserver.ConsulMinTTL.String() }}
		},
		"postgres": func(*testing.T) reachable {
			return reachable{sharedPostgres().Addr(), func(addr string) string { return sharedPostgres().URLOf("postgres", addr) }}
		},
		"mysql": func(*testing.T) reachable {
			return reachable{sharedMariaDB().Addr(), func(addr string) string { return sharedMariaDB().URLOf("root", addr) }}
		},
		"kubernetes": func(*testing.T) reachable {
			s := sharedKubernetes()
			return reachable{s.Addr(), func(addr string) string { return "kubernetes://default?kubeconfig=" + s.Kubeconfig(addr) }}
		},
		"holdfast": func(t *testing.T) reachable {
			t.Helper()
			return reachable{overHTTP(t, memlock.New()), func(addr string) string { return "holdfast://" + addr }}
		},
	}
}

// overHTTP serves the store, closes it in the end, and returns the address.
func overHTTP(t *testing.T, store backend.Backend) string {
	t.Helper()
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
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		_ = store.Close()
	})
	return ln.Addr().String()
}

// B8, F3, C9: the network drops everything. The holder's context ends at its deadline, and before the store grants the lock
// to another client.
func TestBlackHole(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	cutOff(t, (*chaos.Proxy).BlackHole)
}

// F4: the same where only the replies are dropped: the requests of the holder are executed, its renewals too.
func TestRepliesCut(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	cutOff(t, func(p *chaos.Proxy) { p.Cut(chaos.Replies) })
}

func cutOff(t *testing.T, cut func(*chaos.Proxy)) {
	t.Helper()
	const ttl = 15 * time.Second
	sideBySide(t, networks(), func(t *testing.T, _ string, start func(*testing.T) reachable) { //nolint:thelper // it is the test
		n := start(t)
		proxy := chaos.Start(t, n.addr)
		holder := client(t, n.open(t, proxy.Addr()), holdfast.Config{TTL: ttl, Timeout: ttl / 4, Owner: "holder"})
		next := client(t, n.open(t, n.addr), holdfast.Config{TTL: ttl, Owner: "next"})
		lock := outlived(t, holder, next, func() { cut(proxy) }, func() {})
		if lost, ok := errors.AsType[*holdfast.LostError](context.Cause(lock.Context())); !ok || lost.Cause != holdfast.CauseDeadline {
			t.Errorf("cause: %v", context.Cause(lock.Context()))
		}
	})
}

// F8: the store is stopped for longer than a lease, and resumes: the holder is told at its deadline, and the next has the
// lock when the store is back. For the stores in tables, see TestTables/sleeper and TestTorture; for Kubernetes, TestLeaderCutOff.
func TestStoreStopped(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const ttl = 15 * time.Second
	type pausable struct {
		url       string
		processes []*testserver.Process
	}
	one := func(url string, p *testserver.Process) pausable { return pausable{url, []*testserver.Process{p}} }
	sideBySide(t, map[string]func(*testing.T) pausable{
		"redis": func(t *testing.T) pausable {
			t.Helper()
			s := testserver.Redis(t)
			return one("redis://"+s.Addr()+"?quarantine=off", s.Process())
		},
		"redlock": func(t *testing.T) pausable {
			t.Helper()
			nodes := testserver.RedisNodes(t, redlock.MinNodes)
			p := pausable{url: "redlock://" + testserver.RedisAddrs(nodes) + "?quarantine=off"}
			for _, s := range nodes {
				p.processes = append(p.processes, s.Process())
			}
			return p
		},
		"etcd": func(t *testing.T) pausable {
			t.Helper()
			s := testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true})[0]
			return one("etcd://"+s.Addr(), s.Process())
		},
		"zookeeper": func(t *testing.T) pausable {
			t.Helper()
			s := testserver.StartZooKeeper(t, 1)[0]
			return one("zookeeper://"+s.Addr(), s.Process())
		},
		"consul": func(t *testing.T) pausable {
			t.Helper()
			s := testserver.StartConsul(t, 1)[0]
			return one("consul://"+s.Addr()+"?min_ttl="+testserver.ConsulMinTTL.String(), s.Process())
		},
		"holdfast": func(t *testing.T) pausable {
			t.Helper()
			s := testserver.StartHoldfast(t)
			return one(s.URL, s.Process())
		},
		"postgres+advisory": func(t *testing.T) pausable {
			t.Helper()
			s := testserver.Postgres(t)
			return one("postgres+advisory"+strings.TrimPrefix(s.URL(), "postgres"), s.Process())
		},
		"mysql+getlock": func(t *testing.T) pausable {
			t.Helper()
			s := testserver.MariaDB(t)
			return one("mysql+getlock"+strings.TrimPrefix(s.URL(), "mysql"), s.Process())
		},
	}, func(t *testing.T, _ string, start func(*testing.T) pausable) { //nolint:thelper // it is the test
		var s pausable
		testserver.InTurn(func() { s = start(t) })
		connect := func(owner string) *holdfast.Client {
			b, err := openurl.URL(t.Context(), s.url, openurl.Options{})
			return client(t, opened(t, b, err), holdfast.Config{TTL: ttl, Timeout: ttl, Owner: owner})
		}
		outlived(t, connect("a"), connect("b"), func() {
			for _, p := range s.processes {
				p.Stop()
			}
		}, func() {
			time.Sleep(ttl / 3) // the lease has ended, too, if the store counted while it was stopped
			for _, p := range s.processes {
				p.Cont()
			}
		})
	})
}
