package play_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/verify/play"
)

// stores are real servers, by the names that BACKEND takes.
func stores() map[string]func(t *testing.T) string {
	return map[string]func(t *testing.T) string{
		"sqlite": func(t *testing.T) string {
			t.Helper()
			return "sqlite://" + filepath.Join(testserver.Dir(t), "locks.db")
		},
		"redis": func(t *testing.T) string {
			t.Helper()
			return "redis://" + testserver.Redis(t).Addr() + "?quarantine=off"
		},
		"redlock": func(t *testing.T) string {
			t.Helper()
			const nodes = 5
			return "redlock://" + testserver.RedisAddrs(testserver.RedisNodes(t, nodes)) + "?quarantine=off"
		},
		"etcd": func(t *testing.T) string {
			t.Helper()
			return "etcd://" + strings.Join(testserver.Endpoints(testserver.StartEtcd(t, testserver.EtcdOptions{})), ",")
		},
		"zookeeper": func(t *testing.T) string {
			t.Helper()
			return "zookeeper://" + testserver.StartZooKeeper(t, 1)[0].Addr()
		},
		"consul": func(t *testing.T) string {
			t.Helper()
			return "consul://" + testserver.StartConsul(t, 1)[0].Addr() + "?min_ttl=" + testserver.ConsulMinTTL.String()
		},
		"kubernetes": func(t *testing.T) string {
			t.Helper()
			s := testserver.Kubernetes(t)
			return "kubernetes://default?kubeconfig=" + s.Kubeconfig(s.Addr())
		},
		"postgres": func(t *testing.T) string { t.Helper(); return testserver.Postgres(t).URL() },
		"holdfast": overHTTP,
		"memory":   func(*testing.T) string { return "memory://" },
		"embedded": func(t *testing.T) string { t.Helper(); return "embedded://" + testserver.Dir(t) },
	}
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
// seed each minute, beginning with SEED, in the profile PROFILE: see make chaos and make
// soak. By itself it is a short gentle run in this process.
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
	start, ok := stores()[cmp.Or(os.Getenv("BACKEND"), "memory")]
	if !ok {
		t.Fatalf("BACKEND is %q", os.Getenv("BACKEND"))
	}
	url := start(t)
	profile, piece := play.Profile(cmp.Or(os.Getenv("PROFILE"), "gentle")), time.Minute
	if profile == play.Jepsen {
		piece = 2 * time.Minute // as Jepsen's
	}
	for end := time.Now().Add(long); time.Now().Before(end) && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			passes(t, play.Config{
				URL: url, Worker: workers(), Seed: seed, Profile: profile,
				For: min(piece, max(2*time.Second, time.Until(end))),
			})
		})
	}
}
