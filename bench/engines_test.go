package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Every contender can do on a real server what it says that it can: another lock that is called in a wrong way
// would make ours look good. Where the server counts its work, the bare commands are two requests for each pair.
func TestStores(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		start      func(t *testing.T) string
		contenders int
		counted    bench.Metric
		most       float64 // requests of a pair of the bare commands: those of the client library and the server are counted too
	}{
		"redis": {func(t *testing.T) string {
			t.Helper()
			return "redis://" + testserver.Redis(t, "--appendonly", "no").Addr() + "?quarantine=off"
		}, 6, bench.RequestsPerPair, 2.1},
		"etcd": {func(t *testing.T) string {
			t.Helper()
			return "etcd://" + testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true})[0].Addr()
		}, 3, bench.RequestsPerPair, 2.5},
		"zookeeper": {func(t *testing.T) string {
			t.Helper()
			return "zookeeper://" + testserver.StartZooKeeper(t, 1)[0].Addr()
		}, 3, bench.RequestsPerPair, 2.5},
		"postgres": {func(t *testing.T) string { t.Helper(); return testserver.Postgres(t).URL() + "&max_conns=4" }, 3, "", 0},
		"postgres+advisory": {func(t *testing.T) string {
			t.Helper()
			return "postgres+advisory" + strings.TrimPrefix(testserver.Postgres(t).URL(), "postgres")
		}, 2, "", 0},
		"mysql": {func(t *testing.T) string { t.Helper(); return testserver.MariaDB(t).URL() + "?max_conns=4" }, 2, bench.RequestsPerPair, 3},
		"consul": {func(t *testing.T) string {
			t.Helper()
			return "consul://" + testserver.StartConsul(t, 1)[0].Addr()
		}, 3, "", 0},
		"kubernetes": {func(t *testing.T) string {
			t.Helper()
			s := testserver.Kubernetes(t)
			return "kubernetes://default?kubeconfig=" + s.Kubeconfig(s.Addr())
		}, 3, "", 0},
		"sqlite": {func(t *testing.T) string { t.Helper(); return "sqlite://" + filepath.Join(t.TempDir(), "locks.db") }, 2, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := openEngine(t.Context(), c.start(t))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := closeEngines([]*bench.Engine{e}); err != nil {
					t.Error(err)
				}
			}()
			if e.Name != name || len(e.Contenders) != c.contenders || e.Version == "" && name != "sqlite" {
				t.Errorf("%s %q, %d contenders", e.Name, e.Version, len(e.Contenders))
			}
			// Other people's locks may hang on a busy machine, and a short run has few pairs there.
			for budget := 100 * time.Millisecond; ; budget *= 2 {
				bad := measure(t, e, budget)
				if raw := bad.raw[c.counted]; bad.err == nil && c.counted != "" && (raw < 2 || raw > c.most) {
					bad.err = fmt.Errorf("the bare commands: %s is %g, want 2", c.counted, raw)
				}
				if bad.err == nil {
					return
				}
				if budget > time.Second {
					t.Fatal(bad.err)
				}
				t.Log(bad.err)
			}
		})
	}
}

type measured struct {
	raw bench.Figures
	err error
}

// measure runs every contender once, and says what went wrong.
func measure(t *testing.T, e *bench.Engine, budget time.Duration) measured {
	t.Helper()
	r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{Rounds: 1, Budget: budget, Only: []string{"own/8", "one/8/1ms", "renew/100"}})
	if err != nil {
		t.Fatal(err)
	}
	var m measured
	for _, x := range r.Results {
		if x.Failed != "" || x.Figures[bench.Grants] == 0 || x.Figures[bench.DoubleHolds]+x.Figures[bench.TokenFaults] != 0 {
			m.err = errors.Join(m.err, fmt.Errorf("%s %s: %q %v", x.Scenario, x.Contender, x.Failed, x.Figures))
		}
		if strings.HasPrefix(x.Contender, "raw") && x.Scenario == "own/8" {
			m.raw = x.Figures
		}
	}
	return m
}

// The program starts servers, of which one may hang, measures what the patterns name, and prints each round and
// what a pair costs both sides.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	args := []string{"-engine", "memory,redlock-hung", "-only", "own/8", "-contender", "holdfast,raw", "-rounds", "1", "-time", "200ms", "-benchfmt"}
	if err := run(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	r, err := bench.Read(&out)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 3 {
		t.Errorf("%+v", r.Results)
	}
	f := r.Find("redlock-hung", "own/8", "holdfast").Figures
	if _, ok := f[bench.ServerCPUPerPair]; !ok || f[bench.ClientCPUPerPair] <= 0 { // the server's is counted in hundredths of a second
		t.Errorf("CPU times of a pair: %v", f)
	}
}

// A named server whose program is not installed is an error.
func TestNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := run(t.Context(), []string{"-engine", "redis"}, io.Discard, io.Discard); !errors.Is(err, exec.ErrNotFound) {
		t.Error(err)
	}
	if err := run(t.Context(), []string{"-engine", "carrier-pigeon"}, io.Discard, io.Discard); !errors.Is(err, backend.ErrInvalid) {
		t.Error(err)
	}
}

func TestBadURL(t *testing.T) {
	t.Parallel()
	const secret = "canary-3f7a"
	for _, url := range []string{
		"", "nope://x", "redis://u:" + secret + "@h:port", "redis://u:" + secret + "@h/x%zz",
		"mysql://u:" + secret + "@h:port/db", "mysql://u:" + secret + "@h/db?tls=" + secret, "kubernetes://a/b",
	} {
		_, err := openEngine(t.Context(), url)
		if !errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", url, err)
		}
	}
}
