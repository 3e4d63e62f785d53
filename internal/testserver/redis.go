//go:build unix

package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// RedisServer is a redis-server of its own: on a free loopback port and on a Unix socket, with
// everything on disk before it is answered. The methods that take no context fail the test when
// they fail; they belong to the test's goroutine.
type RedisServer struct {
	ownTime
	ownDisk

	t        testing.TB
	args     []string
	dir      string
	port     int
	password string
	proc     *Process
}

// Redis starts a server. args are added to its command line, as in
// Redis(t, "--maxmemory", "10mb"): they override what this function sets, which is
// appendonly yes and appendfsync always. It ends with the test.
func Redis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	s := &RedisServer{t: t, args: args, dir: Dir(t), port: FreePort(t)}
	for i, arg := range args {
		if arg == "--requirepass" && i+1 < len(args) {
			s.password = args[i+1]
		}
	}
	s.start()
	return s
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

// Addr is the address, "127.0.0.1:port".
func (s *RedisServer) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Socket is the path of the Unix socket.
func (s *RedisServer) Socket() string { return filepath.Join(s.dir, "redis.sock") }

// Process is the current run, to be killed, stopped and continued.
func (s *RedisServer) Process() *Process { return s.proc }

// Restart kills the server with SIGKILL and starts it again on the same address, with its data.
func (s *RedisServer) Restart() {
	s.t.Helper()
	s.Kill()
	s.start()
}

// RestartEmpty kills the server and starts it again without its data.
func (s *RedisServer) RestartEmpty() {
	s.t.Helper()
	s.Kill()
	for _, name := range []string{"appendonlydir", "appendonly.aof", "dump.rdb"} {
		if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
			s.t.Fatalf("testserver: %v", err)
		}
	}
	s.start()
}

// Kill kills the server with SIGKILL. Start starts it again.
func (s *RedisServer) Kill() {
	s.t.Helper()
	s.proc.Kill()
}

// Start starts a server that was killed again, with its data.
func (s *RedisServer) Start() {
	s.t.Helper()
	s.start()
}

// FlushAll deletes all data.
func (s *RedisServer) FlushAll() {
	s.t.Helper()
	s.Do("FLUSHALL")
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), startTimeout)
	defer cancel()
	answer, err := s.DoContext(ctx, args...)
	if err != nil {
		s.t.Fatalf("testserver: redis: %s: %v", args[0], err)
	}
	return answer
}

// DoContext is Do with a context, which returns the error. It is safe for concurrent use.
func (s *RedisServer) DoContext(ctx context.Context, args ...string) (any, error) {
	c, err := dialRESP(ctx, s.Addr())
	if err != nil {
		return nil, err
	}
	defer c.close()
	if s.password != "" {
		if _, err := c.do("AUTH", s.password); err != nil {
			return nil, err
		}
	}
	return c.do(args...)
}

func (s *RedisServer) start() {
	s.t.Helper()
	s.proc = Start(s.t, Command{
		Path: "redis-server", Dir: s.dir, Env: s.clock.env(), Disk: s.disk,
		Args: append([]string{
			"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--unixsocket", s.Socket(), "--dir", s.dir,
			"--save", "", "--appendonly", "yes", "--appendfsync", "always", "--loglevel", "notice",
		}, s.args...),
	})
	s.proc.Await(startTimeout, s.ours)
}

// ours reports whether the process that was started answers, with its data loaded.
func (s *RedisServer) ours(ctx context.Context) error {
	info, err := s.DoContext(ctx, "INFO", "server")
	if err != nil {
		return err
	}
	text, _ := info.(string)
	if !strings.Contains(text, fmt.Sprintf("process_id:%d\r\n", s.proc.Pid())) {
		return errors.New("another process answers")
	}
	_, err = s.DoContext(ctx, "DBSIZE") // refused while it loads
	return err
}

func (s *RedisServer) again() { s.Restart() }
