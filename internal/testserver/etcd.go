//go:build unix

package testserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	debianEtcd   = "etcd"
	etcdPackage  = "github.com/holdfast-io/holdfast/internal/testserver/etcdmain"
	buildTimeout = 10 * time.Minute
)

// EtcdOptions say how an etcd is started.
type EtcdOptions struct {
	// Members of the cluster. Default: 1.
	Members int
	// NoFsync starts them without writing to the disk, for measurements that exclude the disk.
	// Optional.
	NoFsync bool
	// Tick is the heartbeat, in milliseconds; an election takes ten, and leases live
	// 15 or more, rounded up to seconds. Default: 50.
	Tick int
	// Quota is how many bytes it stores at most, before it raises an alarm. Default: etcd's
	// own. Optional.
	Quota int
	// Debian runs the etcd of Debian's package instead of the newest. Optional.
	Debian bool
	// Certificates makes it speak TLS only, with clients that show one of its own.
	// Optional.
	Certificates *Certificates
	// Reach returns the address by which the other members reach the member that listens at an
	// address: that of a proxy in between. Optional.
	Reach func(listens string) string
}

// Etcd is one member: a process that can be killed, stopped and started again with
// its data.
type Etcd struct {
	ownDisk

	*Process

	t      testing.TB
	bin    string
	args   []string
	name   string
	member string // folder of the data
	addr   string
	admin  clientv3.Config // how the tests connect to it
}

// StartEtcd starts an etcd of one member or more, built from the module that the
// client comes from, and waits until it answers.
func StartEtcd(tb testing.TB, o EtcdOptions) []*Etcd {
	tb.Helper()
	bin := debianEtcd
	if !o.Debian {
		bin = EtcdBinary(tb)
	}
	n := max(1, o.Members)
	id := strings.ToLower(rand.Text()[:8])
	members := make([]*Etcd, n)
	var cluster []string
	for i := range members {
		m := newEtcd(tb, fmt.Sprintf("%s-%d", id, i), o)
		m.bin = bin
		peer := fmt.Sprintf("127.0.0.1:%d", FreePort(tb))
		reached := peer
		if o.Reach != nil {
			reached = o.Reach(peer)
		}
		m.args = append(m.args, "--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+reached)
		cluster = append(cluster, m.name+"=http://"+reached)
		members[i] = m
	}
	for _, m := range members {
		m.args = append(m.args, "--initial-cluster", strings.Join(cluster, ","))
		m.start()
	}
	for _, m := range members {
		m.awaitReady()
	}
	return members
}

// newEtcd is a member that has no peers yet.
func newEtcd(tb testing.TB, name string, o EtcdOptions) *Etcd {
	tb.Helper()
	m := &Etcd{t: tb, name: name, member: Dir(tb), addr: fmt.Sprintf("127.0.0.1:%d", FreePort(tb))}
	m.admin = clientv3.Config{Endpoints: []string{m.addr}, Logger: zap.NewNop()}
	tick := o.Tick
	if tick == 0 {
		tick = 50
	}
	scheme := "http://"
	if c := o.Certificates; c != nil {
		scheme = "https://"
		m.admin.TLS = c.Client(tb)
		m.args = append(m.args, "--cert-file", c.ServerCert, "--key-file", c.ServerKey,
			"--trusted-ca-file", c.CA, "--client-cert-auth")
	}
	m.args = append(m.args, "--name", m.name, "--data-dir", filepath.Join(m.member, "data"),
		"--listen-client-urls", scheme+m.addr, "--advertise-client-urls", scheme+m.addr,
		"--heartbeat-interval", strconv.Itoa(tick), "--election-timeout", strconv.Itoa(10*tick),
		"--bcrypt-cost", "4", // the least: a test opens many connections
		"--logger", "zap", "--log-level", "fatal", "--log-outputs", "stderr")
	if o.Quota > 0 {
		m.args = append(m.args, "--quota-backend-bytes", strconv.Itoa(o.Quota))
	}
	if o.NoFsync {
		m.args = append(m.args, "--unsafe-no-fsync")
	}
	return m
}

// Addr is the address of the member: host:port.
func (e *Etcd) Addr() string { return e.addr }

// Admin returns a client that may do everything. It is closed at the end of the test.
func (e *Etcd) Admin() *clientv3.Client {
	e.t.Helper()
	c, err := clientv3.New(e.admin)
	if err != nil {
		e.t.Fatalf("testserver: client of etcd: %v", err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Authenticate turns authentication on. It is called on one member of the cluster. From then on
// only that member can be restarted. It adds one user besides root, with permission to read and
// write below the prefix, and nothing else.
func (e *Etcd) Authenticate(user, password, prefix string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), startTimeout)
	defer cancel()
	c := e.Admin()
	const role = "locker"
	rootPassword := rand.Text()
	_, err := c.UserAdd(ctx, "root", rootPassword)
	e.must("add root", err)
	_, err = c.UserGrantRole(ctx, "root", "root")
	e.must("make root", err)
	_, err = c.UserAdd(ctx, user, password)
	e.must("add user", err)
	_, err = c.RoleAdd(ctx, role)
	e.must("add role", err)
	_, err = c.RoleGrantPermission(ctx, role, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	e.must("allow the prefix", err)
	_, err = c.UserGrantRole(ctx, user, role)
	e.must("grant role", err)
	_, err = c.AuthEnable(ctx)
	e.must("enable", err)
	e.admin.Username, e.admin.Password = "root", rootPassword
}

func (e *Etcd) must(what string, err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatalf("testserver: etcd: %s: %v", what, err)
	}
}

// Endpoints are the addresses of members.
func Endpoints(members []*Etcd) []string {
	addrs := make([]string, len(members))
	for i, m := range members {
		addrs[i] = m.addr
	}
	return addrs
}

// Restart starts the member again after Kill and waits until it answers.
func (e *Etcd) Restart() {
	e.t.Helper()
	e.Kill()
	e.start()
	e.awaitReady()
}

// Again starts the member after Kill without waiting for it.
func (e *Etcd) Again() {
	e.t.Helper()
	e.Kill()
	e.start()
}

func (e *Etcd) start() {
	e.t.Helper()
	e.Process = Start(e.t, Command{Path: e.bin, Args: e.args, Dir: e.member, Disk: e.disk})
}

// awaitReady waits until the member answers a linearizable read, and proves that it is the one
// that was started by its name, which is random.
func (e *Etcd) awaitReady() {
	e.t.Helper()
	c, err := clientv3.New(e.admin)
	if err != nil {
		e.t.Fatalf("testserver: client of etcd: %v", err)
	}
	defer func() { _ = c.Close() }()
	e.Await(startTimeout, func(ctx context.Context) error {
		status, err := c.Status(ctx, e.addr)
		if err != nil {
			return fmt.Errorf("status: %w", err)
		}
		list, err := c.MemberList(ctx)
		if err != nil {
			return fmt.Errorf("members: %w", err)
		}
		for _, m := range list.Members {
			if m.ID == status.Header.MemberId && m.Name == e.name {
				if _, err := c.Get(ctx, "ready"); err != nil {
					return fmt.Errorf("read: %w", err)
				}
				return nil
			}
		}
		return errors.New("another server answers")
	})
}

// EtcdBinary builds the server, without the race detector, and returns the path of the program
// in the build cache, where it stays: "go run" puts it there.
func EtcdBinary(tb testing.TB) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), buildTimeout)
	defer cancel()
	out := ""
	for range 3 { // the first run after a change shows a temporary path
		cmd := exec.CommandContext(ctx, "go", "run", "-exec", "/bin/echo", etcdPackage)
		cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GOFLAGS=") })
		b, err := cmd.CombinedOutput()
		out = strings.TrimSpace(string(b))
		if err != nil {
			tb.Fatalf("testserver: build etcd: %v\n%s", err, out)
		}
		if _, err := os.Stat(out); err == nil {
			return out
		}
	}
	tb.Fatalf("testserver: etcd was built, but is not there: %s", out)
	return ""
}

func (e *Etcd) again() { e.Restart() }
