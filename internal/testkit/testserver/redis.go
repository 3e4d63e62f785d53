//go:build unix

package testserver

import (
	"context"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// RedisServer is a redis-server of its own: on a free loopback port and on a Unix socket, with
// everything on disk before it is answered. The methods that take no context fail the test when
// they fail; they belong to the test's goroutine.
type RedisServer struct{ timed }

// Redis starts a server. args are added to its command line, as in
// Redis(t, "--maxmemory", "10mb"): they override what this function sets, which is
// appendonly yes and appendfsync always. It ends with the test.
func Redis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	s, err := launch.Redis(options(t, args...))
	return &RedisServer{timed{started(t, s, err)}}
}

// RedisNodes starts n servers that know nothing of each other: see Redis.
func RedisNodes(t testing.TB, n int, args ...string) []*RedisServer {
	t.Helper()
	nodes := make([]*RedisServer, n)
	for i := range nodes {
		nodes[i] = Redis(t, args...)
	}
	return nodes
}

// RedisAddrs are the addresses of servers, separated by commas.
func RedisAddrs(nodes []*RedisServer) string {
	addrs := make([]string, len(nodes))
	for i, s := range nodes {
		addrs[i] = s.Addr()
	}
	return strings.Join(addrs, ",")
}

// Socket is the path of the Unix socket.
func (s *RedisServer) Socket() string { return s.Path("redis.sock") }

// RestartEmpty kills the server and starts it again without its data.
func (s *RedisServer) RestartEmpty() {
	s.t.Helper()
	s.Kill()
	for _, name := range []string{"appendonlydir", "appendonly.aof", "dump.rdb"} {
		if err := os.RemoveAll(s.Path(name)); err != nil {
			s.t.Fatalf("testserver: %v", err)
		}
	}
	s.Start()
}

// FlushAll deletes all data.
func (s *RedisServer) FlushAll() {
	s.t.Helper()
	s.Do("FLUSHALL")
}

// Crowd makes the server accept no more connections from now on.
func (s *RedisServer) Crowd() {
	s.t.Helper()
	conn, err := new(net.Dialer).DialContext(s.t.Context(), "tcp", s.Addr())
	if err != nil {
		s.t.Fatalf("testserver: redis: %v", err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	s.Do("CONFIG", "SET", "maxclients", "1")
}

// CommandStats returns how often each command was called since ResetStats, by name, in lower
// case, as INFO commandstats reports it. Commands in scripts are counted too.
func (s *RedisServer) CommandStats() map[string]int64 {
	s.t.Helper()
	stats := make(map[string]int64)
	for _, m := range regexp.MustCompile(`cmdstat_(\S+):calls=(\d+)`).FindAllStringSubmatch(s.Info("commandstats"), -1) {
		n, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil {
			s.t.Fatalf("testserver: commandstats: %v", err)
		}
		stats[m[1]] = n
	}
	return stats
}

// ResetStats sets the counts of CommandStats to zero.
func (s *RedisServer) ResetStats() {
	s.t.Helper()
	s.Do("CONFIG", "RESETSTAT")
}

// CPU is the processor time that the current run has used.
func (s *RedisServer) CPU() time.Duration {
	s.t.Helper()
	var total time.Duration
	for _, m := range regexp.MustCompile(`used_cpu_(?:user|sys):([\d.]+)`).FindAllStringSubmatch(s.Info("cpu"), -1) {
		d, err := time.ParseDuration(m[1] + "s")
		if err != nil {
			s.t.Fatalf("testserver: INFO cpu: %v", err)
		}
		total += d
	}
	return total
}

// Info is what the server reports about itself.
func (s *RedisServer) Info(section string) string {
	s.t.Helper()
	text, ok := s.Do("INFO", section).(string)
	if !ok {
		s.t.Fatalf("testserver: INFO %s: no text", section)
	}
	return text
}

// Do runs a command over a connection of its own. The answer is nil, an int64, a
// string, or an []any of these.
func (s *RedisServer) Do(args ...string) any {
	s.t.Helper()
	ctx, cancel := s.patience()
	defer cancel()
	answer, err := s.DoContext(ctx, args...)
	if err != nil {
		s.t.Fatalf("testserver: redis: %s: %v", args[0], err)
	}
	return answer
}

// DoContext is Do with a context, which returns the error. It is safe for concurrent use.
func (s *RedisServer) DoContext(ctx context.Context, args ...string) (any, error) {
	return launch.RedisDo(ctx, s.Server, args...)
}
