//go:build unix

package testserver_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// F28: on a slow disk a write is durable, and answered, after its delay, and a server that is
// killed during the delay comes back. A clock can be put into the same server.
func TestSlowDisk(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const delay = 300 * time.Millisecond
	for _, x := range []struct {
		name  string
		start func(t *testing.T) (disk *testserver.SlowDisk, write, restart func())
	}{
		{"mariadb", func(t *testing.T) (*testserver.SlowDisk, func(), func()) {
			s, disk := testserver.WithSlowDisk(t, testserver.MariaDB(t))
			testserver.WithClock(t, s)
			s.Exec("CREATE TABLE a (n INT) ENGINE=InnoDB")
			return disk, func() { s.Exec("INSERT INTO a VALUES (7)") }, s.Restart
		}},
		{"postgres", func(t *testing.T) (*testserver.SlowDisk, func(), func()) {
			s, disk := testserver.WithSlowDisk(t, testserver.Postgres(t))
			s.Exec("CREATE TABLE a (n INT)")
			return disk, func() { s.Exec("INSERT INTO a VALUES (7)") }, s.Restart
		}},
		{"redis", func(t *testing.T) (*testserver.SlowDisk, func(), func()) {
			s, disk := testserver.WithSlowDisk(t, testserver.Redis(t))
			return disk, func() { s.Do("SET", "a", "7") }, s.Restart
		}},
		{"etcd", func(t *testing.T) (*testserver.SlowDisk, func(), func()) {
			s, disk := testserver.WithSlowDisk(t, testserver.StartEtcd(t, testserver.EtcdOptions{})[0])
			return disk, func() { s.Do("kv/put", map[string]any{"key": []byte("a"), "value": []byte("7")}) }, s.Restart
		}},
		{"consul", func(t *testing.T) (*testserver.SlowDisk, func(), func()) {
			s, disk := testserver.WithSlowDisk(t, testserver.StartConsul(t, 1)[0])
			return disk, func() { put(t, "http://"+s.Addr()+"/v1/kv/a") }, s.Restart
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			disk, write, restart := x.start(t)
			write()
			disk.Slow(delay)
			from := time.Now()
			write()
			if took := time.Since(from); took < delay {
				t.Errorf("a write took %s; each sync waits for %s", took, delay)
			}
			disk.Slow(time.Millisecond)
			restart()
			disk.Fast()
			write()
		})
	}
}

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

func put(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader("7"))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "true" {
		t.Fatalf("put: %s, %v", text, err)
	}
}
