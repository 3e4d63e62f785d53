//go:build unix

package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// ZooKeeperTick is the tickTime of the servers of this package.
const ZooKeeperTick = 500 * time.Millisecond

// ZooKeeperMaxSession is the longest session that they grant.
const ZooKeeperMaxSession = 15 * time.Minute

// ZooKeeperServer is a ZooKeeper server of its own: alone, or one of an ensemble. The
// methods fail the test when they fail; they belong to the test's goroutine.
type ZooKeeperServer struct {
	ownTime
	ownDisk

	t     testing.TB
	dir   string
	port  int
	proc  *Process
	total int      // of the ensemble
	flags []string // more of them for java

	id         int    // in the ensemble
	members    string // as its servers know them
	maxSession time.Duration
}

// AsInstalled makes ZooKeeper collect empty containers as rarely as by default, once a minute:
// for measurements.
const AsInstalled = "-Dznode.container.checkIntervalMs=60000"

// StartZooKeeper starts an ensemble of n servers; 1 is one that stands alone. They end with the
// test. Session time-outs are two ticks or more. flags are additional ones for java.
func StartZooKeeper(t testing.TB, n int, flags ...string) []*ZooKeeperServer {
	t.Helper()
	servers := make([]*ZooKeeperServer, n)
	var members strings.Builder
	for i := range n {
		servers[i] = &ZooKeeperServer{t: t, dir: Dir(t), port: FreePort(t), total: n, flags: flags, id: i + 1, maxSession: ZooKeeperMaxSession}
		if n > 1 {
			fmt.Fprintf(&members, "server.%d=127.0.0.1:%d:%d\n", i+1, FreePort(t), FreePort(t))
		}
	}
	for _, s := range servers {
		s.members = members.String()
		s.configure()
		s.launch()
	}
	for _, s := range servers {
		s.proc.Await(startTimeout, s.ours)
	}
	return servers
}

// SetMaxSession sets the longest session that the server grants after its next start.
func (s *ZooKeeperServer) SetMaxSession(d time.Duration) {
	s.t.Helper()
	s.maxSession = d
	s.configure()
}

func (s *ZooKeeperServer) configure() {
	s.t.Helper()
	config := fmt.Sprintf(`tickTime=%d
initLimit=20
syncLimit=10
maxSessionTimeout=%d
dataDir=%s
clientPort=%d
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=srvr,mntr,conf,cons
maxClientCnxns=0
clientPortListenBacklog=1000
%s`, ZooKeeperTick.Milliseconds(), s.maxSession.Milliseconds(), filepath.Join(s.dir, "data"), s.port, s.members)
	err := errors.Join(
		os.MkdirAll(filepath.Join(s.dir, "data"), 0o700),
		os.WriteFile(filepath.Join(s.dir, "data", "myid"), []byte(strconv.Itoa(s.id)), 0o600),
		os.WriteFile(filepath.Join(s.dir, "zoo.cfg"), []byte(config), 0o600),
	)
	if err != nil {
		s.t.Fatalf("testserver: zookeeper: %v", err)
	}
}

func (s *ZooKeeperServer) launch() {
	s.t.Helper()
	args := []string{
		"-Xmx192m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		// Empty containers are removed soon, and many at a time.
		"-Dznode.container.checkIntervalMs=200", "-Dznode.container.maxPerMinute=1000000",
	}
	args = append(args, s.flags...) // of two for the same setting the last one counts
	s.proc = Start(s.t, Command{
		Path: "java", Dir: s.dir, Env: s.clock.env(), Disk: s.disk,
		Args: append(args,
			"-cp", "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar",
			"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(s.dir, "zoo.cfg")),
	})
}

// Addr is the address for clients, "127.0.0.1:port".
func (s *ZooKeeperServer) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Process is the current run, to be killed, stopped and continued.
func (s *ZooKeeperServer) Process() *Process { return s.proc }

// Kill kills the server with SIGKILL. Start starts it again.
func (s *ZooKeeperServer) Kill() {
	s.t.Helper()
	s.proc.Kill()
}

// Start starts a server that was killed again, with its data.
func (s *ZooKeeperServer) Start() {
	s.t.Helper()
	s.launch()
	s.proc.Await(startTimeout, s.ours)
}

// Restart kills the server with SIGKILL and starts it again, with its data.
func (s *ZooKeeperServer) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// Leads reports whether the server is the leader of its ensemble.
func (s *ZooKeeperServer) Leads() bool {
	s.t.Helper()
	return strings.Contains(s.Ask("srvr"), "Mode: leader")
}

// Ask sends a command of four letters: srvr, mntr, conf, cons.
func (s *ZooKeeperServer) Ask(word string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), startTimeout)
	defer cancel()
	text, err := s.ask(ctx, word)
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

func (s *ZooKeeperServer) ask(ctx context.Context, word string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := conn.Write([]byte(word)); err != nil {
		return "", fmt.Errorf("ask: %w", err)
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	return string(text), nil
}

// ours reports whether the server that was started serves.
func (s *ZooKeeperServer) ours(ctx context.Context) error {
	config, err := s.ask(ctx, "conf")
	if err != nil {
		return err
	}
	if !strings.Contains(config, s.dir) {
		return errors.New("another server answers")
	}
	text, err := s.ask(ctx, "srvr")
	if err != nil {
		return err
	}
	if !strings.Contains(text, "Mode: ") {
		return fmt.Errorf("it does not serve yet: %s", text)
	}
	return nil
}

func (s *ZooKeeperServer) again() { s.Restart() }
