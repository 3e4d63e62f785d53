package runner_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/verify/history"
	"github.com/holdfast-io/holdfast/verify/runner"
)

// programs returns the commands of the servers that a cluster of the kind needs and that are
// not in $PATH, or not in the version that we use.
func programs(t *testing.T, kind string) map[string][]string {
	t.Helper()
	out := make(map[string][]string)
	switch kind {
	case "etcd":
		out["etcd"] = []string{testserver.EtcdBinary(t)}
	case "kubernetes":
		out["etcd"] = []string{testserver.EtcdBinary(t)}
		out["kube-apiserver"] = []string{testserver.Tool(t, "kube-apiserver")}
	case "consul":
		out["consul"] = []string{testserver.Tool(t, "consul")}
	case "holdfast":
		out["holdfast"] = []string{testserver.Holdfast(t)}
	}
	return out
}

// tortured returns the stores that TestTorture runs on: every store that there is, with servers
// of its own if it has any.
func tortured() []string { return append(runner.Clusters(), "memory", "sqlite") }

// torture derives the run on a store from a seed: the seed decides which faults there are,
// when, for whom and for how long.
func torture(t *testing.T, name string, cfg runner.Config) runner.Config {
	t.Helper()
	cfg.Worker = workers()
	switch name {
	case "memory":
		cfg.URL = "memory://"
	case "sqlite":
		cfg.URL = "sqlite://" + filepath.Join(testserver.Dir(t), "locks.db")
	default:
		cfg.Cluster, cfg.Programs = name, programs(t, name)
	}
	return cfg
}

// TestTorture runs on every store: workers are stopped and killed; their network is delayed,
// held, cut one way and both, reset and refused, its replies lost; the servers are stopped and
// crash, and if there are several they are stopped in turn. F1 to F9, F15 and F17 of
// docs/faults.md. By default it is a short part of that, always the same. CHAOS is how long
// there are faults for each store, one after the other in an order that SEED decides like
// everything else; BACKEND restricts it to one store, and PROFILE selects another profile: see
// make chaos.
func TestTorture(t *testing.T) { //nolint:tparallel // one store after the other, where that is asked for
	t.Parallel()
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	long, err := time.ParseDuration(cmp.Or(os.Getenv("CHAOS"), "8s"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := runner.Config{For: long, Seed: seed, Profile: runner.Profile(cmp.Or(os.Getenv("PROFILE"), string(runner.Torture)))}
	all := tortured()
	rand.New(rand.NewPCG(seed, 0x0de4)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	atOnce := 2 // one cluster uses all of a small machine
	if os.Getenv("CHAOS") != "" {
		atOnce = 1
		t.Logf("seed %d, %s for each of %s", seed, long, strings.Join(all, ", "))
		t.Logf("again: make chaos SEED=%d FOR=%s PROFILE=%s", seed, long, cfg.Profile)
	}
	if only := os.Getenv("BACKEND"); only != "" {
		if !slices.Contains(all, only) {
			t.Fatalf("BACKEND is %q, and not one of %q", only, all)
		}
		all = []string{only}
	}
	gate := make(chan struct{}, atOnce)
	for _, name := range all {
		if cfg.Profile == runner.Jepsen && name == "memory" {
			continue // one process, which nothing can stop
		}
		t.Run(name, func(t *testing.T) {
			if atOnce > 1 {
				t.Parallel()
			}
			gate <- struct{}{}
			defer func() { <-gate }()
			defer func() {
				if t.Failed() {
					t.Logf("again: make chaos SEED=%d FOR=%s PROFILE=%s BACKEND=%s", seed, long, cfg.Profile, name)
				}
			}()
			injectsEnough(t, name, torture(t, name, cfg))
		})
	}
}

// injectsEnough requires a pass with enough faults: on a busy machine many of the targets are not
// up when their turn comes, and the run is then repeated for longer.
func injectsEnough(t *testing.T, name string, cfg runner.Config) {
	t.Helper()
	for longest := 4 * cfg.For; ; cfg.For *= 2 {
		little := injectedTooFew(t, name, cfg)
		switch {
		case little == "" || t.Failed():
			return
		case cfg.For >= longest:
			t.Fatal(little)
		}
		t.Log(little)
	}
}

// injectedTooFew makes one run, and returns which faults were too few.
func injectedTooFew(t *testing.T, name string, cfg runner.Config) string {
	t.Helper()
	r := runAndJudge(t, cfg)
	if cfg.Profile != runner.Torture {
		return ""
	}
	kinds := make(map[string]bool)
	for _, e := range r.faults {
		kind, _, _ := strings.Cut(e.Text, ", ")
		kinds[kind] = kinds[kind] || e.Worker == ""
	}
	servers := 0
	for kind, ofServers := range kinds {
		if ofServers {
			servers++
			t.Logf("the servers had: %s", kind)
		}
	}
	withShims(t, cfg, r.Header)
	// No relay can carry what a kubeconfig names: it has TLS. A file has no network, and
	// nothing can stop a worker that is a goroutine.
	inside := name == "memory"
	switch {
	case r.Counts.Grants == 0, r.Counts.Kills == 0, r.Counts.Freezes == 0 && !inside,
		len(kinds) == servers && name != "kubernetes" && name != "sqlite", cfg.Cluster != "" && servers == 0:
		return fmt.Sprintf("in %s too few faults were injected: %+v, %v", cfg.For, r.Counts, slices.Sorted(maps.Keys(kinds)))
	}
	return ""
}

// withShims requires that every server had its logs on the disk of the run, and followed its
// clock unless it is written in Go. Our server reads back what it has not synced, which that disk cannot hold back.
func withShims(t *testing.T, cfg runner.Config, h history.Header) {
	t.Helper()
	if cfg.Cluster == "" || cfg.Cluster == "holdfast" {
		return
	}
	inGo := slices.Contains([]string{"etcd", "consul", "kubernetes"}, cfg.Cluster)
	for _, text := range h.NotTested {
		if strings.HasPrefix(text, "slow disks") || strings.HasPrefix(text, "clocks that jump: ") != inGo && strings.HasPrefix(text, "clocks") {
			t.Errorf("not tested: %s", text)
		}
	}
}
