package play_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
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
			return "consul://" + testserver.StartConsul(t, 1)[0].Addr()
		},
		"postgres": func(t *testing.T) string { t.Helper(); return testserver.Postgres(t).URL() },
		"mysql":    func(t *testing.T) string { t.Helper(); return testserver.MariaDB(t).URL() },
		"memory":   func(*testing.T) string { return "memory://" },
		"embedded": func(t *testing.T) string { t.Helper(); return "embedded://" + testserver.Dir(t) },
	}
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
	for end := time.Now().Add(long); time.Now().Before(end) && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			passes(t, play.Config{
				URL: url, Worker: workers(), Seed: seed, Profile: play.Profile(cmp.Or(os.Getenv("PROFILE"), "gentle")),
				For: min(time.Minute, max(2*time.Second, time.Until(end))),
			})
		})
	}
}
