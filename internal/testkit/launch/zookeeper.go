//go:build unix

package launch

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ZooKeeperMaxSession is the longest session that the servers grant.
const ZooKeeperMaxSession = 15 * time.Minute

// ZooKeeperTick is the tickTime of the servers. Sessions of a few seconds need a short one.
const ZooKeeperTick = 500 * time.Millisecond

// Where Debian's package zookeeper has its classes.
const (
	zooKeeperJar = "/usr/share/java/zookeeper.jar"
	loggingJar   = "/usr/share/java/slf4j-simple.jar"
)

// ZooKeeper returns the servers of an ensemble, which have to be launched together. Args are for
// java.
func ZooKeeper(o Options) ([]*Server, error) {
	if _, err := os.Stat(zooKeeperJar); err != nil {
		return nil, fmt.Errorf("ZooKeeper is not installed, as by Debian's package zookeeper: %w", err)
	}
	n := max(1, o.Members)
	servers := make([]*Server, n)
	var members strings.Builder
	for i := range servers {
		s, err := o.server("java", fmt.Sprintf("m%d", i+1), "")
		if err != nil {
			return nil, err
		}
		if n > 1 {
			peer, err := FreeAddr()
			if err != nil {
				return nil, err
			}
			votes, err := FreeAddr()
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&members, "server.%d=%s:%s\n", i+1, peer, Port(votes))
		}
		servers[i] = s
	}
	for i, s := range servers {
		s.Name, s.URL = "zookeeper", "zookeeper://"+s.addr
		err := s.write(map[string]string{"data/myid": strconv.Itoa(i + 1), "zoo.cfg": fmt.Sprintf(`tickTime=%d
initLimit=40
syncLimit=10
maxSessionTimeout=%d
dataDir=%s
clientPort=%s
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=srvr,mntr,conf,cons
maxClientCnxns=0
clientPortListenBacklog=1000
%s`, ZooKeeperTick.Milliseconds(), ZooKeeperMaxSession.Milliseconds(), s.Path("data"), Port(s.addr), &members)})
		if err != nil {
			return nil, err
		}
		s.command.Argv = slices.Concat(s.command.Argv, []string{"-Xmx192m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}, o.Args,
			[]string{"-cp", zooKeeperJar + ":" + loggingJar, "org.apache.zookeeper.server.quorum.QuorumPeerMain", s.Path("zoo.cfg")})
		s.ready = func(ctx context.Context, _ *Process) error { return zooKeeperServes(ctx, s) }
	}
	return servers, nil
}

// ZooKeeperAsk sends a command of four letters: srvr, mntr, conf, cons.
func ZooKeeperAsk(ctx context.Context, addr, word string) (string, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return "", err
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

// zooKeeperServes returns nil if the server is the one that was started, and a leader serves. A server that is just
// starting may never answer who came too early, so it is asked again soon.
func zooKeeperServes(ctx context.Context, s *Server) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	config, err := ZooKeeperAsk(ctx, s.addr, "conf")
	if err != nil {
		return err
	}
	if !strings.Contains(config, s.Dir()) {
		return errOther
	}
	text, err := ZooKeeperAsk(ctx, s.addr, "srvr")
	if err == nil && !strings.Contains(text, "Mode: ") {
		err = fmt.Errorf("it does not serve yet: %s", text) //nolint:err113 // for people
	}
	return err
}
