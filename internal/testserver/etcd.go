//go:build unix

package testserver

import (
	"cmp"
	"crypto/rand"
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-io/holdfast/internal/launch"
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
	server

	admin *clientv3.Config // how the tests connect to the cluster
}

// StartEtcd starts an etcd of one member or more, built from the module that the
// client comes from, and waits until it answers.
func StartEtcd(tb testing.TB, o EtcdOptions) []*Etcd {
	tb.Helper()
	l := launch.EtcdOptions{Options: options(tb), Tick: cmp.Or(o.Tick, 50), Client: new(clientv3.Config), Reach: o.Reach}
	l.Members = o.Members
	if !o.Debian {
		l.Programs = tool(tb, "etcd")
	}
	if c := o.Certificates; c != nil {
		l.Client.TLS = c.Client(tb)
		l.Args = append(l.Args, "--cert-file", c.ServerCert, "--key-file", c.ServerKey, "--trusted-ca-file", c.CA, "--client-cert-auth")
	}
	if o.Quota > 0 {
		l.Args = append(l.Args, "--quota-backend-bytes", strconv.Itoa(o.Quota))
	}
	if o.NoFsync {
		l.Args = append(l.Args, "--unsafe-no-fsync")
	}
	all, err := launch.Etcd(l)
	members := make([]*Etcd, len(all))
	for i, s := range launched(tb, all, err) {
		members[i] = &Etcd{s, l.Client}
	}
	return members
}

// Admin returns a client that may do everything. It is closed at the end of the test.
func (e *Etcd) Admin() *clientv3.Client {
	e.t.Helper()
	conf := *e.admin
	conf.Endpoints, conf.Logger = []string{e.Addr()}, zap.NewNop()
	c, err := clientv3.New(conf)
	check(e.t, err)
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Authenticate turns authentication on. It is called on one member of the cluster. It adds one
// user besides root, with permission to read and write below the prefix, and nothing else.
func (e *Etcd) Authenticate(user, password, prefix string) {
	e.t.Helper()
	ctx, cancel := e.patience()
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
		addrs[i] = m.Addr()
	}
	return addrs
}

// Again starts the member after Kill without waiting for it.
func (e *Etcd) Again() {
	e.t.Helper()
	e.Kill()
	e.launch()
}
