//go:build unix

package testserver_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestRedis(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	s.Do("SET", "a", "1")
	s.Restart()
	if got := s.Do("GET", "a"); got != "1" {
		t.Errorf("after a restart with its data a is %v", got)
	}
	s.ResetStats()
	s.Do("GET", "a")
	if n := s.CommandStats()["get"]; n != 1 {
		t.Errorf("GET was called %d times", n)
	}
	s.RestartEmpty()
	if got := s.Do("GET", "a"); got != nil {
		t.Errorf("after a restart without its data a is %v", got)
	}
	s.Do("SET", "a", "2")
	s.FlushAll()
	if got := s.Do("DBSIZE"); got != int64(0) {
		t.Errorf("after FLUSHALL there are %v keys", got)
	}
}

func TestMariaDB(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t, "wait_timeout=1234")
	s.Exec("CREATE TABLE a (n INT) ENGINE=InnoDB", "INSERT INTO a VALUES (7)")
	s.Restart()
	s.Shutdown()
	s.Start()
	if n := s.Int("SELECT n FROM a WHERE n > ?", 1); n != 7 {
		t.Errorf("after a crash and a restart n is %d", n)
	}
	if n := s.Int("SELECT @@wait_timeout"); n != 1234 {
		t.Errorf("the setting is %d", n)
	}
}

func TestKubernetes(t *testing.T) {
	t.Parallel()
	s := testserver.Kubernetes(t)
	s.Namespace("one")
	s.Restart()
}
