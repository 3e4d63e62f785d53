//go:build unix

package testserver

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// ZooKeeperTick is the tickTime of the servers of this package.
const ZooKeeperTick = launch.ZooKeeperTick

// ZooKeeperMaxSession is the longest session that they grant.
const ZooKeeperMaxSession = launch.ZooKeeperMaxSession

// ZooKeeperServer is a ZooKeeper server of its own: alone, or one of an ensemble. The
// methods fail the test when they fail; they belong to the test's goroutine.
type ZooKeeperServer struct{ timed }

// AsInstalled makes ZooKeeper collect empty containers as rarely as by default, once a minute:
// for measurements.
const AsInstalled = "-Dznode.container.checkIntervalMs=60000"

// StartZooKeeper starts an ensemble of n servers; 1 is one that stands alone. They end with the
// test. Session time-outs are two ticks or more. flags are additional ones for java.
func StartZooKeeper(t testing.TB, n int, flags ...string) []*ZooKeeperServer {
	t.Helper()
	o := options(t, append([]string{
		// Empty containers are removed soon, and many at a time.
		"-Dznode.container.checkIntervalMs=200", "-Dznode.container.maxPerMinute=1000000",
	}, flags...)...) // of two for the same setting the last one counts
	o.Members = n
	all, err := launch.ZooKeeper(o)
	out := make([]*ZooKeeperServer, n)
	for i, s := range launched(t, all, err) {
		out[i] = &ZooKeeperServer{timed{s}}
	}
	return out
}

// SetMaxSession sets the longest session that the server grants after its next start.
func (s *ZooKeeperServer) SetMaxSession(d time.Duration) {
	s.t.Helper()
	config := s.Path("zoo.cfg")
	text, err := os.ReadFile(config) //nolint:gosec // of this test
	check(s.t, err)
	text = regexp.MustCompile(`maxSessionTimeout=\d+`).ReplaceAll(text, fmt.Appendf(nil, "maxSessionTimeout=%d", d.Milliseconds()))
	check(s.t, os.WriteFile(config, text, 0o600)) //nolint:gosec // of this test
}

// Leads reports whether the server is the leader of its ensemble.
func (s *ZooKeeperServer) Leads() bool {
	s.t.Helper()
	return strings.Contains(s.Ask("srvr"), "Mode: leader")
}

// Ask sends a command of four letters: srvr, mntr, conf, cons.
func (s *ZooKeeperServer) Ask(word string) string {
	s.t.Helper()
	ctx, cancel := s.patience()
	defer cancel()
	text, err := launch.ZooKeeperAsk(ctx, s.Addr(), word)
	if err != nil {
		s.t.Fatalf("testserver: zookeeper: %s: %v", word, err)
	}
	return text
}

// Count is a number that mntr reports, such as zk_watch_count.
func (s *ZooKeeperServer) Count(name string) int {
	s.t.Helper()
	for line := range strings.Lines(s.Ask("mntr")) {
		if value, ok := strings.CutPrefix(line, name+"\t"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				s.t.Fatalf("testserver: zookeeper: %s: %v", name, err)
			}
			return n
		}
	}
	s.t.Fatalf("testserver: zookeeper: mntr does not tell %s", name)
	return 0
}
