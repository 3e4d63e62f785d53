//go:build unix

package engines

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
)

// stage owns the servers of package testserver in place of a test, so that the same code starts,
// watches and ends them as in the tests.
type stage struct {
	testing.TB // for the method that only package testing has; no other method of it is called

	ctx context.Context //nolint:containedctx // a test has one too

	mu       sync.Mutex
	cleanups []func()
	errs     []error
}

func newStage(ctx context.Context) *stage { return &stage{ctx: ctx} }

func (s *stage) Helper()                  {}
func (s *stage) Logf(string, ...any)      {}
func (s *stage) Context() context.Context { return s.ctx }

func (s *stage) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.errs) > 0
}

func (s *stage) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, fmt.Errorf(format, args...)) //nolint:err113 // the text that a test would print
}

func (s *stage) Fatalf(format string, args ...any) {
	s.Errorf(format, args...)
	runtime.Goexit()
}

// play runs f as a test would, in a goroutine that a failure ends.
func (s *stage) play(f func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.errs...)
}

// close ends the servers in reverse order.
func (s *stage) close() error {
	return s.play(func() {
		s.mu.Lock()
		cleanups := s.cleanups
		s.cleanups = nil
		s.mu.Unlock()
		for _, f := range slices.Backward(cleanups) {
			f()
		}
	})
}

// start starts a server and returns its URL, and the function that ends it.
func (l local) start(ctx context.Context) (started, func() error, error) {
	s := newStage(ctx)
	var at started
	if err := s.play(func() { at = l.launch(s) }); err != nil {
		return at, nil, errors.Join(err, s.close())
	}
	return at, s.close, nil
}

// local is a server that can be started here.
type local struct {
	engine  string
	program string // the program that it needs; empty: none
	launch  func(tb testing.TB) started
}

// locals returns the servers that can be started here. self is the command holdfast, or empty.
func locals(self string) []local {
	all := []local{
		{engine: "sqlite", launch: func(tb testing.TB) started {
			tb.Helper()
			return started{url: "sqlite://" + filepath.Join(testserver.Dir(tb), "locks.db")}
		}},
		{engine: "redis", program: "redis-server", launch: launchRedis},
		{engine: "redlock", program: "redis-server", launch: func(tb testing.TB) started {
			tb.Helper()
			return launchRedlock(tb, 0)
		}},
		{engine: "redlock-hung", program: "redis-server", launch: func(tb testing.TB) started {
			tb.Helper()
			return launchRedlock(tb, 1)
		}},
		{engine: "etcd", program: "etcd", launch: func(tb testing.TB) started {
			tb.Helper()
			return started{url: "etcd://" + launchEtcd(tb)}
		}},
		{engine: "zookeeper", program: "java", launch: func(tb testing.TB) started {
			tb.Helper()
			return started{url: "zookeeper://" + testserver.StartZooKeeper(tb, 1, testserver.AsInstalled)[0].Addr()}
		}},
		{engine: "postgres", program: postgresProgram(), launch: func(tb testing.TB) started {
			tb.Helper()
			return started{url: testserver.Postgres(tb).URL()}
		}},
		{engine: "postgres+advisory", program: postgresProgram(), launch: func(tb testing.TB) started {
			tb.Helper()
			return started{url: "postgres+advisory" + strings.TrimPrefix(testserver.Postgres(tb).URL(), "postgres")}
		}},
		{engine: "mysql+getlock", program: "mariadb-install-db", launch: func(tb testing.TB) started {
			tb.Helper()
			return started{url: "mysql+getlock" + strings.TrimPrefix(testserver.MariaDB(tb).URL(), "mysql")}
		}},
		{engine: "mysql", program: "mariadb-install-db", launch: func(tb testing.TB) started {
			tb.Helper()
			return started{url: testserver.MariaDB(tb).URL()}
		}},
	}
	all = append(all, local{engine: "consul", program: builder(), launch: func(tb testing.TB) started {
		tb.Helper()
		return started{url: "consul://" + testserver.StartConsul(tb, 1)[0].Addr()}
	}}, local{engine: "kubernetes", program: builder(), launch: func(tb testing.TB) started {
		tb.Helper()
		s := testserver.Kubernetes(tb)
		return started{url: "kubernetes://default?kubeconfig=" + s.Kubeconfig(s.Addr())}
	}})
	if self != "" {
		all = append(all, local{engine: "holdfast", program: self, launch: func(tb testing.TB) started {
			tb.Helper()
			return started{url: "holdfast://" + launchHoldfast(tb, self), beside: "etcd://" + launchEtcd(tb)}
		}})
	}
	return all
}

// postgresProgram returns the program that creates a cluster, which Debian does not put in $PATH.
func postgresProgram() string {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		return slices.Max(found)
	}
	return "initdb"
}

// builder returns the script of this repository that builds Consul and the API server of
// Kubernetes, or nothing if the sources of this program are not there.
func builder() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "scripts", "tool")
}

// launchRedlock starts servers for redlock, some of which hang: they accept connections but do not
// answer.
func launchRedlock(tb testing.TB, hung int) started {
	tb.Helper()
	nodes := testserver.RedisNodes(tb, redlockNodes, "--appendonly", "no")
	for _, s := range nodes[redlockNodes-hung:] {
		s.Process().Stop()
	}
	return started{url: "redlock://" + testserver.RedisAddrs(nodes) + "?quarantine=off"}
}

// launchRedis starts a server that writes nothing to the disk: the protocol is measured, not the
// disk. The server is new, so nothing can have been granted before it started.
func launchRedis(tb testing.TB) started {
	tb.Helper()
	return started{url: "redis://" + testserver.Redis(tb, "--appendonly", "no").Addr() + "?quarantine=off"}
}

// launchEtcd starts the etcd of this module if its sources are there, and otherwise the installed
// one. It syncs its writes, as etcd does by default.
func launchEtcd(tb testing.TB) string {
	tb.Helper()
	list := exec.CommandContext(tb.Context(), "go", "list", "-m")
	module, err := list.Output()
	ours := err == nil && strings.HasPrefix(string(module), "github.com/holdfast-io/holdfast\n")
	return testserver.StartEtcd(tb, testserver.EtcdOptions{Debian: !ours, Tick: 100})[0].Addr()
}

// launchHoldfast starts "holdfast serve" on an etcd in its process.
func launchHoldfast(tb testing.TB, self string) string {
	tb.Helper()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(testserver.FreePort(tb)))
	dir := testserver.Dir(tb)
	p := testserver.Start(tb, testserver.Command{
		Path: self, Args: []string{"serve", "--listen", address, "--data-dir", filepath.Join(dir, "data")},
		Env: []string{"HOLDFAST_BACKEND="}, Interrupt: syscall.SIGTERM,
	})
	p.Await(time.Minute, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("dial: %w", err)
		}
		return conn.Close()
	})
	return address
}
