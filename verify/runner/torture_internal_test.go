package runner

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

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// tortured returns the stores that TestTorture runs on: every store that there is, with servers
// of its own if it has any.
func tortured() []string { return append(clusters(), "memory", "sqlite") }

// torture derives the run on a store from a seed: the seed decides which faults there are,
// when, for whom and for how long.
func torture(t *testing.T, name string, cfg Config) Config {
	t.Helper()
	cfg.Worker = workers()
	switch name {
	case "memory":
		cfg.URL = "memory://"
	case "sqlite":
		cfg.URL = "sqlite://" + filepath.Join(testserver.Dir(t), "locks.db")
	default:
		c := startCluster(t, name)
		cfg.URL, cfg.disturb = c.url, c.disturb
	}
	return cfg
}

// TestTorture runs on every store: workers are stopped and killed; their network is delayed,
// held, cut one way and both, reset and refused, its replies lost; the servers are stopped and
// crash, and if there are several they are stopped in turn. F1 to F9, F15 and F17 of
// docs/faults.md. By default it is a short part of that on four stores, always the same. CHAOS is how long
// there are faults for each store, one after the other in an order that SEED decides like
// everything else; BACKEND restricts it to one store, and PROFILE selects another profile: see
// make chaos.
func TestTorture(t *testing.T) { //nolint:tparallel // one store after the other, where that is asked for
	leasetest.Slow(t)
	t.Parallel()
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	long, err := time.ParseDuration(cmp.Or(os.Getenv("CHAOS"), "6s"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{For: long, Seed: seed, Profile: Profile(cmp.Or(os.Getenv("PROFILE"), string(Torture)))}
	all := tortured()
	rand.New(rand.NewPCG(seed, 0x0de4)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	some, atOnce := []string{"memory", "sqlite", "redlock", "etcd"}, 2 // one cluster uses all of a small machine
	if os.Getenv("CHAOS") != "" {
		some, atOnce = all, 1
		t.Logf("seed %d, %s for each of %s", seed, long, strings.Join(all, ", "))
		t.Logf("again: make chaos SEED=%d FOR=%s PROFILE=%s", seed, long, cfg.Profile)
	}
	if only := os.Getenv("BACKEND"); only != "" {
		if !slices.Contains(all, only) {
			t.Fatalf("BACKEND is %q, and not one of %q", only, all)
		}
		some = []string{only}
	}
	gate := make(chan struct{}, atOnce)
	for _, name := range some {
		if cfg.Profile == Jepsen && name == "memory" {
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
func injectsEnough(t *testing.T, name string, cfg Config) {
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
func injectedTooFew(t *testing.T, name string, cfg Config) string {
	t.Helper()
	r := runAndJudge(t, cfg)
	if cfg.Profile != Torture {
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
	// No relay can carry what a kubeconfig names: it has TLS. A file has no network, and
	// nothing can stop a worker that is a goroutine.
	switch {
	case r.Counts.Grants == 0, r.Counts.Kills == 0, r.Counts.Freezes == 0 && name != "memory",
		len(kinds) == servers && name != "kubernetes" && name != "sqlite", cfg.disturb != nil && servers == 0:
		return fmt.Sprintf("in %s too few faults were injected: %+v, %v", cfg.For, r.Counts, slices.Sorted(maps.Keys(kinds)))
	}
	return ""
}
