//go:build unix

package play

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Clusters lists what Config.Cluster may be.
func Clusters() []string { return []string{"etcd", "redis"} }

// cluster is servers that this run started, and may hurt: they stop and crash. They keep
// what they wrote to the disk, in a folder that goes with them.
type cluster struct {
	url     string
	dir     string
	members []*member
}

// member is one server.
type member struct {
	argv []string
	addr string
	mu   sync.Mutex
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process is
	said *tail
}

// startCluster starts the servers of a kind with the programs of this machine.
func startCluster(ctx context.Context, kind string) (*cluster, error) {
	dir, err := os.MkdirTemp("", "holdfast-verify-cluster-")
	if err != nil {
		return nil, fmt.Errorf("verify: a folder for the servers: %w", err)
	}
	c := &cluster{dir: dir}
	switch kind {
	case "redis":
		err = c.redis()
	case "etcd":
		err = c.etcd(3)
	default:
		err = &backend.InvalidError{Field: "local-cluster", Value: fmt.Sprintf("%.20q", kind), Bound: "one of " + strings.Join(Clusters(), ", ")}
	}
	for _, m := range c.members {
		if err == nil {
			err = m.start()
		}
	}
	for _, m := range c.members {
		if err == nil {
			err = m.ready(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.end())
	}
	return c, nil
}

// redis is one server that has on disk what it answered. A Redis that is new does not
// grant for as long as the longest lease that may be out; here that is known.
func (c *cluster) redis() error {
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	addr := "127.0.0.1:" + ports[0]
	c.members = []*member{{addr: addr, argv: []string{
		"redis-server", "--bind", "127.0.0.1", "--port", ports[0], "--dir", c.dir, "--save", "", "--appendonly", "yes", "--appendfsync", "always",
	}}}
	c.url = "redis://" + addr + "?quarantine=5s"
	return nil
}

// etcd is n members.
func (c *cluster) etcd(n int) error {
	ports, err := freePorts(2 * n)
	if err != nil {
		return err
	}
	var all, hosts []string
	for i := range n {
		all = append(all, fmt.Sprintf("m%d=http://127.0.0.1:%s", i, ports[n+i]))
		hosts = append(hosts, "127.0.0.1:"+ports[i])
	}
	for i := range n {
		client, peer := "http://"+hosts[i], "http://127.0.0.1:"+ports[n+i]
		c.members = append(c.members, &member{addr: hosts[i], argv: []string{
			"etcd", "--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(c.dir, fmt.Sprintf("m%d", i)),
			"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
			"--initial-advertise-peer-urls", peer, "--initial-cluster", strings.Join(all, ","), "--log-level", "error",
		}})
	}
	c.url = "etcd://" + strings.Join(hosts, ",")
	return nil
}

// freePorts finds ports of the loopback that nobody listens on at the moment.
func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("verify: find a free port: %w", err)
		}
		defer l.Close() //nolint:errcheck // until all are found
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, fmt.Errorf("verify: find a free port: %w", err)
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// start starts the server, the first time or after its crash.
func (m *member) start() error {
	path, err := exec.LookPath(m.argv[0])
	if err != nil {
		return fmt.Errorf("verify: %s is not installed: %w", m.argv[0], err)
	}
	cmd := exec.Command(path, m.argv[1:]...) //nolint:gosec,noctx // a server of this run; it ends with it
	said := &tail{}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = said, said, sysProcAttr()
	gone := make(chan struct{})
	started := make(chan error, 1)
	go func() {
		// The death signal comes when the thread ends that started the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed; and where it ended by itself, ready or the run says so
			close(gone)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("verify: start %s: %w", m.argv[0], err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cmd, m.gone, m.said = cmd, gone, said
	return nil
}

// ready waits until the server listens, and lives.
func (m *member) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	m.mu.Lock()
	gone, said := m.gone, m.said
	m.mu.Unlock()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.addr)
		if err == nil {
			_ = conn.Close()
			return nil
		}
		select {
		case <-gone:
			return fmt.Errorf("verify: %s ended: %s", m.argv[0], said.text())
		default:
		}
		if !pause(ctx, 20*time.Millisecond) {
			return fmt.Errorf("verify: %s does not answer: %w: %s", m.argv[0], err, said.text())
		}
	}
}

func (m *member) signal(s os.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		_ = m.cmd.Process.Signal(s) // one that is gone needs none
	}
}

// crash kills the server and waits until it is gone.
func (m *member) crash() {
	m.signal(syscall.SIGKILL)
	m.mu.Lock()
	gone := m.gone
	m.mu.Unlock()
	if gone != nil {
		<-gone
	}
}

// end ends the servers and removes what they kept.
func (c *cluster) end() error {
	for _, m := range slices.Backward(c.members) {
		m.crash()
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("verify: remove the folder of the servers: %w", err)
	}
	return nil
}
