package engines_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
	"github.com/holdfast-io/holdfast/internal/launch"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// Every kind of scenario runs on memory, and no lock is held twice.
func TestSmoke(t *testing.T) {
	t.Parallel()
	e := engines.Memory()
	r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{
		Rounds: 1, Budget: 5 * time.Millisecond,
		Only: []string{"own/8", "one/8", "one/8/1ms", "hand/2", "shared/64", "permits/64"},
	})
	if err := errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	good(t, r, 6)
}

// What stands still is measured too: locks that are kept, and waiters.
//
//nolint:paralleltest // it counts the goroutines and the memory of the process
func TestStanding(t *testing.T) {
	e := engines.Memory()
	r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{
		Rounds: 1, Budget: time.Second, Only: []string{"renew/10000", "idle/1000"}, // the TTL is six times that
	})
	if err := errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	good(t, r, 2)
	f := r.Find("memory", "renew/10000", "holdfast").Figures
	if f[bench.BytesEach] < 100 || f[bench.BytesEach] > 100_000 || f[bench.Goroutines] > 20 {
		t.Errorf("10,000 locks: %v", f)
	}
	f = r.Find("memory", "idle/1000", "holdfast").Figures
	if f[bench.BytesEach] < 100 || f[bench.BytesEach] > 100_000 || f[bench.GoroutinesEach] > 2 {
		t.Errorf("1,000 waiters: %v", f)
	}
}

// good fails the test unless the given number of scenarios succeeded.
func good(t *testing.T, r *bench.Report, want int) {
	t.Helper()
	if len(r.Results) != want {
		t.Errorf("%d results, want %d", len(r.Results), want)
	}
	for _, x := range r.Results {
		if x.Failed != "" || x.Figures[bench.Grants] == 0 || x.Figures[bench.DoubleHolds]+x.Figures[bench.TokenFaults] != 0 {
			t.Errorf("%s %s: %q %v", x.Scenario, x.Contender, x.Failed, x.Figures)
		}
	}
	if r.Doubles() != 0 {
		t.Errorf("%g double holds or token faults", r.Doubles())
	}
}

func closed(t *testing.T, e *bench.Engine) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// measured runs scenarios for longer and longer until the figures are not wrong: on a busy machine a short run has few
// pairs, on which a request that belongs to none of them weighs much. It fails the test if they stay wrong.
func measured(t *testing.T, e *bench.Engine, results int, wrong func(*bench.Report) string) {
	t.Helper()
	for budget := 100 * time.Millisecond; ; budget *= 2 {
		r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{Rounds: 1, Budget: budget, Only: []string{"own/8", "one/8"}})
		if err != nil {
			t.Fatal(err)
		}
		good(t, r, results)
		said := wrong(r)
		switch {
		case said == "" || t.Failed():
			return
		case budget > 3*time.Second:
			t.Error(said)
			return
		}
		t.Logf("in %s: %s", budget, said)
	}
}

// Our client and the bare commands run on Redis, and the server's own count of the requests of the
// bare commands is correct: two for each pair.
func TestRedis(t *testing.T) {
	t.Parallel()
	e, err := engines.Open(t.Context(), "redis://"+testserver.Redis(t, "--appendonly", "no").Addr()+"?quarantine=off")
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, e)
	if !strings.HasPrefix(e.Version, "7.") && !strings.HasPrefix(e.Version, "8.") {
		t.Errorf("version %q", e.Version)
	}
	measured(t, e, 4, func(r *bench.Report) string { // the bare commands cannot wait
		raw := r.Find("redis", "own/8", "raw").Figures
		for _, m := range []bench.Metric{bench.RequestsPerPair, bench.CommandsPerPair} {
			if n := raw[m]; n < 2 || n > 2.1 { // rueidis may ping once
				return fmt.Sprintf("the bare commands: %s is %g, want 2", m, n)
			}
		}
		if f := r.Find("redis", "one/8", "holdfast").Figures; f[bench.HandOverP50] <= 0 || f[bench.HandOverPings] <= 0 || f[bench.Fairness] < 0.5 {
			return fmt.Sprintf("one lock: %v", f)
		}
		return ""
	})
}

// Our server with TLS, identity, limits and audit is measured beside one without, in turns.
func TestGuarded(t *testing.T) {
	t.Parallel()
	self, err := launch.Built(t.Context(), "holdfast")
	if err != nil {
		t.Fatal(err)
	}
	all, missing, err := engines.Local(t.Context(), []string{"holdfast-guarded"}, self)
	if err != nil || len(all) != 1 {
		t.Fatal(missing, err)
	}
	if !strings.HasPrefix(all[0].URL, "holdfasts:") || !strings.HasPrefix(all[0].Beside, "holdfast:") {
		t.Errorf("%s beside %s", all[0].URL, all[0].Beside)
	}
	r, err := bench.Run(t.Context(), all, bench.Options{Rounds: 1, Budget: 200 * time.Millisecond, Only: []string{"own/8"}})
	if err := errors.Join(err, engines.Close(all)); err != nil {
		t.Fatal(err)
	}
	good(t, r, 2)
}

// Clients that join another have a session each, and the bench tells what a pair costs both sides.
// The server whose clients use TLS does as much.
func TestRedisTLS(t *testing.T) {
	t.Parallel()
	all, missing, err := engines.Local(t.Context(), []string{"redis-tls"}, "")
	if err != nil || len(all) != 1 {
		t.Fatal(missing, err)
	}
	r, err := bench.Run(t.Context(), all, bench.Options{Rounds: 1, Budget: 200 * time.Millisecond, Only: []string{"own/8", "sessions/10"}})
	if err := errors.Join(err, engines.Close(all)); err != nil {
		t.Fatal(err)
	}
	good(t, r, 4)
	for _, scenario := range []string{"own/8", "sessions/10"} {
		f := r.Find("redis-tls", scenario, "holdfast").Figures
		// The server's is counted in hundredths of a second, so it may be 0.
		if _, ok := f[bench.ServerCPUPerPair]; !ok || f[bench.ClientCPUPerPair] <= 0 {
			t.Errorf("%s: CPU times of a pair: %v", scenario, f)
		}
	}
	if f := r.Find("redis-tls", "sessions/10", "holdfast").Figures; f[bench.Fairness] < 0.5 {
		t.Errorf("one lock: %v", f)
	}
}

// Our client, the bare commands and the file locks run on SQLite, in one process and in several.
func TestSQLite(t *testing.T) {
	t.Parallel()
	e, err := engines.Open(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "locks.db"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{Rounds: 1, Budget: 20 * time.Millisecond, Only: []string{"own/8", "one/8"}})
	if err := errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	good(t, r, 5) // the bare commands cannot wait
}

// A server that is installed but does not start is an error, and the servers that were started are
// ended.
func TestLocal(t *testing.T) {
	t.Parallel()
	all, missing, err := engines.Local(t.Context(), []string{"redis"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || len(missing) != 0 || !all[0].Local || all[0].Name != "redis" {
		t.Fatalf("%d engines, missing %v", len(all), missing)
	}
	if err := all[0].Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := engines.Close(all); err != nil {
		t.Error(err)
	}
}

// A program that is not installed is reported.
func TestLocalMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	all, missing, err := engines.Local(t.Context(), []string{"memory", "sqlite", "redis", "etcd"}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := engines.Close(all); err != nil {
			t.Error(err)
		}
	}()
	if len(all) != 2 || all[0].Name != "memory" || all[1].Name != "sqlite" || len(missing) != 2 || !strings.Contains(missing[0], "redis-server is not there") {
		t.Errorf("%d engines, missing %v", len(all), missing)
	}
}

func TestBadURL(t *testing.T) {
	t.Parallel()
	const secret = "canary-3f7a"
	for _, url := range []string{
		"", "nope://x", "redis://u:" + secret + "@h:port", "redis://u:" + secret + "@h/x%zz",
		"mysql://u:" + secret + "@h:port/db", "mysql://u:" + secret + "@h/db?tls=" + secret, "kubernetes://a/b",
	} {
		e, err := engines.Open(t.Context(), url)
		if e != nil {
			_ = e.Close()
		}
		if !errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// The same on etcd, by its own metrics: the bare commands are two requests and two proposals for
// each pair.
func TestEtcd(t *testing.T) {
	t.Parallel()
	e, err := engines.Open(t.Context(), "etcd://"+testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true})[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, e)
	measured(t, e, 3, func(r *bench.Report) string {
		raw := r.Find("etcd", "own/8", "raw").Figures
		for _, m := range []bench.Metric{bench.RequestsPerPair, bench.CommandsPerPair} {
			if n := raw[m]; n < 2 || n > 2.5 { // etcd has a few proposals of its own
				return fmt.Sprintf("the bare commands: %s is %g, want 2", m, n)
			}
		}
		return ""
	})
	if e.Version == "" {
		t.Error("no version")
	}
}

// The same on ZooKeeper.
func TestZooKeeper(t *testing.T) {
	t.Parallel()
	e, err := engines.Open(t.Context(), "zookeeper://"+testserver.StartZooKeeper(t, 1)[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, e)
	measured(t, e, 3, func(r *bench.Report) string {
		if n := r.Find("zookeeper", "own/8", "raw").Figures[bench.RequestsPerPair]; n < 2 || n > 2.5 { // and pings
			return fmt.Sprintf("the bare commands: %g requests a pair, want 2", n)
		}
		return ""
	})
	if !strings.HasPrefix(e.Version, "3.") {
		t.Errorf("version %q", e.Version)
	}
}

// The same on PostgreSQL, which does not report a count either.
func TestPostgres(t *testing.T) {
	t.Parallel()
	e, err := engines.Open(t.Context(), testserver.Postgres(t).URL()+"&max_conns=4")
	if err != nil {
		t.Fatal(err)
	}
	r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{Rounds: 1, Budget: 100 * time.Millisecond, Only: []string{"own/8", "one/8"}})
	if err := errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	good(t, r, 3)
	if e.Version == "" {
		t.Error("no version")
	}
}

// Locks that belong to a connection: those of PostgreSQL beside the bare statements, and ours alone
// on those of MariaDB.
func TestConnectionLocks(t *testing.T) {
	t.Parallel()
	for url, results := range map[string]int{
		"postgres+advisory" + strings.TrimPrefix(testserver.Postgres(t).URL(), "postgres"): 3,
		"mysql+getlock" + strings.TrimPrefix(testserver.MariaDB(t).URL(), "mysql"):         2,
	} {
		e, err := engines.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{Rounds: 1, Budget: 100 * time.Millisecond, Only: []string{"own/8", "one/8"}})
		if err := errors.Join(err, e.Close()); err != nil {
			t.Fatal(err)
		}
		good(t, r, results)
	}
}

// The same on MariaDB, by its own count of statements: the bare ones are two for each pair.
func TestMySQL(t *testing.T) {
	t.Parallel()
	e, err := engines.Open(t.Context(), testserver.MariaDB(t).URL()+"?max_conns=4")
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, e)
	measured(t, e, 3, func(r *bench.Report) string {
		if n := r.Find("mysql", "own/8", "raw").Figures[bench.CommandsPerPair]; n < 2 || n > 3 { // and the settings of connections
			return fmt.Sprintf("the bare statements: %g a pair, want 2", n)
		}
		return ""
	})
	if e.Version == "" || strings.ContainsAny(e.Version, "-+") {
		t.Errorf("version %q", e.Version)
	}
}

// The same on Kubernetes, which does not report a count.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	server := testserver.Kubernetes(t)
	e, err := engines.Open(t.Context(), "kubernetes://default?kubeconfig="+server.Kubeconfig(server.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{Rounds: 1, Budget: 100 * time.Millisecond, Only: []string{"own/8", "one/8"}})
	if err := errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	good(t, r, 3)
	if e.Version == "" || strings.Contains(e.Version, "+") {
		t.Errorf("version %q", e.Version)
	}
}

// The same on Consul, which does not report how many requests it received.
func TestConsul(t *testing.T) {
	t.Parallel()
	e, err := engines.Open(t.Context(), "consul://"+testserver.StartConsul(t, 1)[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{Rounds: 1, Budget: 100 * time.Millisecond, Only: []string{"own/8", "one/8"}})
	if err := errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	good(t, r, 3)
	if e.Version == "" {
		t.Error("no version")
	}
}
