package redlock_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const nodes = 5

// cluster is a number of servers that are independent of each other.
type cluster []*testserver.RedisServer

// start starts them. Their markers are from long ago: they vote immediately.
func start(t testing.TB, args ...string) cluster {
	t.Helper()
	c := testserver.RedisNodes(t, nodes, args...)
	for _, s := range c {
		vouch(s, "hfr")
	}
	return c
}

// vouch writes a marker from long ago.
func vouch(s *testserver.RedisServer, prefix string) {
	run, _, _ := strings.Cut(after(s.Info("server"), "run_id:"), "\r")
	s.Do("SET", prefix+":m", "hfr2 1 1 "+run+" 1")
}

func after(s, sep string) string {
	_, rest, _ := strings.Cut(s, sep)
	return rest
}

// url returns the URL of the nodes, with a max_ttl of minutes, as leases of tests need it.
func (c cluster) url(params string) string {
	if !strings.Contains(params, "max_ttl=") {
		params += "&max_ttl=5m"
	}
	return fmt.Sprintf("redlock://%s?%s", testserver.RedisAddrs(c), params)
}

// The whole suite, as the user that the page gives to paste.
func TestConformance(t *testing.T) {
	t.Parallel()
	user, words := leasetest.RedisUser(t, "redlock.md")
	c, disk := start(t, append([]string{"--user", user}, words...)...), testserver.NewSlowDisk(t)
	for _, s := range c {
		testserver.UseDisk(s, disk)
	}
	h := c.harness(c.urlOf(user))
	h.SlowDisk = func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast }
	backendtest.Run(t, h)
}

// What the way to the program changes, with nodes that take no functions.
func TestConformanceOfTheScript(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := start(t, scriptsOnly()...)
	h := c.harness(c.url("timeout=30s"))
	h.Only = leasetest.Transport()
	h.NoSlowDisk = "TestConformance has the same nodes on one"
	backendtest.Run(t, h)
}

// scriptsOnly returns arguments of a node that takes no functions.
func scriptsOnly() []string {
	return []string{"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-fcall", "-function"}
}

func (c cluster) harness(url string) backendtest.Harness {
	return backendtest.Harness{
		Holders: leasetest.Holders(200), // each vote of five names all holders
		Open: func(t backendtest.T) backend.Backend {
			b, err := redlock.Open(t.Context(), url, redlock.Config{})
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return b
		},
		Restart: func(backendtest.T) {
			// All at the same time: no node reports what another forgot.
			for _, s := range c {
				s.Kill()
			}
			for _, s := range c {
				s.Start()
			}
		},
	}
}
