//go:build unix

package testserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// EtcdOptions say how an etcd is started.
type EtcdOptions struct {
	// Members of the cluster. Default: 1.
	Members int
	// NoFsync starts them without syncing the disk, for tests and measurements that the disk must not
	// delay. Optional.
	NoFsync bool
	// Tick is the heartbeat, in milliseconds; an election takes ten, and leases live
	// 15 or more, rounded up to seconds. Default: 50.
	Tick int
	// Quota is how many bytes it stores at most, before it raises an alarm. Default: etcd's
	// own. Optional.
	Quota int
	// Newest runs the etcd that scripts/tool builds, of the version of the client, instead of the
	// etcd 3.4 of Debian's package. Only `make check` has it. Optional.
	Newest bool
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

	admin *launch.EtcdAdmin // of the cluster
}

// StartEtcd starts an etcd of one member or more, and waits until it answers.
func StartEtcd(tb testing.TB, o EtcdOptions) []*Etcd {
	tb.Helper()
	l := launch.EtcdOptions{Options: options(tb), Tick: cmp.Or(o.Tick, 50), Admin: new(launch.EtcdAdmin), Reach: o.Reach}
	l.Members = o.Members
	if o.Newest {
		l.Programs = tool(tb, "etcd")
	}
	if c := o.Certificates; c != nil {
		l.Admin.TLS = c.Client(tb)
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
		members[i] = &Etcd{s, l.Admin}
	}
	return members
}

// Do sends a call of etcd's API, such as "auth/user/add", as the administrator of the cluster.
func (e *Etcd) Do(call string, request map[string]any) {
	e.t.Helper()
	ctx, cancel := e.patience()
	defer cancel()
	check(e.t, e.admin.Do(ctx, e.Addr(), call, request, nil))
}

// Leads reports whether the member answers, and says that it leads.
func (e *Etcd) Leads() bool {
	ctx, cancel := context.WithTimeout(e.t.Context(), 2*time.Second)
	defer cancel()
	status, err := e.admin.Status(ctx, e.Addr())
	return err == nil && status.Header.Member == status.Leader
}

// Authenticate turns authentication on. It is called on one member of the cluster. It adds one
// user besides root, with permission to read and write below the prefix, and nothing else.
func (e *Etcd) Authenticate(user, password, prefix string) {
	e.t.Helper()
	const role = "locker"
	end := []byte(prefix)
	end[len(end)-1]++ // the first key behind the prefix
	e.Do("auth/user/add", map[string]any{"name": user, "password": password})
	e.Do("auth/role/add", map[string]any{"name": role})
	e.Do("auth/role/grant", map[string]any{"name": role, "perm": map[string]any{"permType": "READWRITE", "key": []byte(prefix), "range_end": end}})
	e.Do("auth/user/grant", map[string]any{"user": user, "role": role})
	e.EnableAuth()
}

// EnableAuth turns authentication on, and adds the user root. It is called on one member of the cluster.
func (e *Etcd) EnableAuth() {
	e.t.Helper()
	rootPassword := rand.Text()
	e.Do("auth/user/add", map[string]any{"name": "root", "password": rootPassword})
	e.Do("auth/user/grant", map[string]any{"user": "root", "role": "root"})
	e.Do("auth/enable", nil)
	e.admin.User, e.admin.Password = "root", rootPassword
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
