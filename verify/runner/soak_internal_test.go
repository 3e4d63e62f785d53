package runner

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// store is what a soak runs on, with a function that reads its sizes.
type store struct {
	url     string
	disturb func(context.Context, *run) // of servers that have faults
	look    func(t *testing.T, s sizes)
}

// start starts a store by the name in BACKEND: servers that the soak keeps, and injects faults
// into, for all its rounds, or a store that has no server of its own.
func start(t *testing.T, name string) store {
	t.Helper()
	nothing := func(*testing.T, sizes) {}
	switch name {
	case "sqlite":
		return onSQLite(t)
	case "memory":
		return store{url: "memory://", look: nothing}
	}
	if !slices.Contains(clusters(), name) {
		t.Fatalf("BACKEND is %q", name)
	}
	c := startCluster(t, name)
	return store{url: c.url, disturb: c.disturb, look: func(t *testing.T, s sizes) {
		t.Helper()
		for _, pid := range c.pids() {
			s.process("server", pid)
		}
		look(t, name, c.url, s)
	}}
}

func onSQLite(t *testing.T) store {
	t.Helper()
	path := filepath.Join(testserver.Dir(t), "locks.db")
	return store{url: "sqlite://" + path, look: func(t *testing.T, s sizes) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		s["file memory"] = info.Size()
	}}
}

// TestSoak runs for the time in SOAK on the backend that BACKEND names, with another seed each
// minute, beginning with SEED, in the profile PROFILE, with leases of TTL, or the default TTL: see
// make soak. The servers are the same for all rounds, and have faults too: see start. It ends at the
// first violation, and fails when sizes grew that must not. Without these settings it is a short
// gentle run in this process.
func TestSoak(t *testing.T) { //nolint:tparallel // one minute after the other
	leasetest.Slow(t)
	t.Parallel()
	long, err := time.ParseDuration(cmp.Or(os.Getenv("SOAK"), "2s"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	where := start(t, cmp.Or(os.Getenv("BACKEND"), "memory"))
	profile := Profile(cmp.Or(os.Getenv("PROFILE"), "gentle"))
	ttl, err := time.ParseDuration(cmp.Or(os.Getenv("TTL"), "0s"))
	if err != nil {
		t.Fatal(err)
	}
	piece := time.Minute
	if profile == Jepsen {
		piece = 2 * time.Minute // as Jepsen's
	}
	var after []sizes // each round
	for end := time.Now().Add(long); time.Now().Before(end) && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			runAndJudge(t, Config{
				URL: where.url, disturb: where.disturb, Worker: workers(), Seed: seed, Profile: profile,
				For: min(piece, max(2*time.Second, time.Until(end))), TTL: ttl,
			})
			now := make(sizes)
			now.own()
			where.look(t, now)
			after = append(after, now)
			for _, name := range namesOf([]sizes{now}) {
				t.Logf("%s: %d", name, now[name])
			}
		})
	}
	for _, text := range grown(after) {
		t.Error(text)
	}
}
