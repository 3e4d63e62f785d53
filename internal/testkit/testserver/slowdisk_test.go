//go:build unix

package testserver_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// F28: what a server has not synced is lost when it is killed, and what it has synced is not.
func TestUnsyncedIsLost(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		policy string
		keeps  bool
	}{{"no", false}, {"always", true}} {
		s, _ := testserver.WithSlowDisk(t, testserver.Redis(t, "--appendfsync", "always"))
		s.Do("SET", "b", "7") // the disk knows a log from its first sync on
		s.Do("CONFIG", "SET", "appendfsync", x.policy)
		s.Do("SET", "a", "7")
		s.Restart()
		if got := s.Do("GET", "a"); (got == "7") != x.keeps {
			t.Errorf("appendfsync %s: after the server was killed there is %v", x.policy, got)
		}
	}
}
