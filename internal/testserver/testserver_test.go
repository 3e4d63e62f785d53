//go:build unix

package testserver_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-io/holdfast/internal/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestProcess(t *testing.T) {
	t.Parallel()
	p := testserver.Start(t, testserver.Command{Path: "sh", Args: []string{"-c", "echo hello; sleep 600 & wait"}})
	p.Stop()
	p.Cont()
	p.Kill()
	var exit *exec.ExitError
	if err := p.Wait(time.Second); !errors.As(err, &exit) {
		t.Errorf("a process that was killed ended with %v", err)
	}
	q := testserver.Start(t, testserver.Command{Path: "sh", Args: []string{"-c", "trap 'echo bye; exit 3' TERM; echo hello; sleep 600 & wait"}})
	q.Await(time.Minute, func(context.Context) error {
		if !strings.Contains(q.Log(), "hello") {
			return errors.New("not yet")
		}
		return nil
	})
	q.Terminate()
	if log := q.Log(); log != "hello\nbye\n" {
		t.Errorf("the log is %q", log)
	}
}

func TestFreePort(t *testing.T) {
	t.Parallel()
	seen := make(map[int]bool)
	for range 20 {
		port := testserver.FreePort(t)
		if seen[port] {
			t.Errorf("port %d was given twice", port)
		}
		seen[port] = true
	}
}

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
