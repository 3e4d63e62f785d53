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
	etcdPackage  = "github.com/holdfast-io/holdfast/internal/testserver/etcdmain"
	buildTimeout = 10 * time.Minute
)

// EtcdOptions say how an etcd is started.
type EtcdOptions struct {
	// Members of the cluster. Default: 1.
	Members int
	// NoFsync starts them without writing to the disk, for measurements of what is not
	// the disk. Optional.
	NoFsync bool
	// Tick is the heartbeat, in milliseconds; an election takes ten, and leases live
	// 15 or more, rounded up to seconds. Default: 50.
	Tick int
}

// Etcd is one member: a process that can be killed, stopped and started again with
// its data.
type Etcd struct {
	*Process

	t      testing.TB
	bin    string
	args   []string
	name   string
	member string // folder of the data
	addr   string
}

// StartEtcd starts an etcd of one member or more, built from the module that the
// client comes from, and waits until it answers.
func StartEtcd(tb testing.TB, o EtcdOptions) []*Etcd {
	tb.Helper()
	bin := etcdBinary(tb)
	n := max(1, o.Members)
	if o.Tick == 0 {
		o.Tick = 50
	}
	id := strings.ToLower(rand.Text()[:8])
	members := make([]*Etcd, n)
	var cluster []string
	for i := range members {
		m := &Etcd{t: tb, bin: bin, name: fmt.Sprintf("%s-%d", id, i), member: Dir(tb)}
		peer := fmt.Sprintf("http://127.0.0.1:%d", FreePort(tb))
		m.addr = fmt.Sprintf("127.0.0.1:%d", FreePort(tb))
		cluster = append(cluster, m.name+"="+peer)
		m.args = []string{
			"-name", m.name, "-dir", filepath.Join(m.member, "data"), "-client", "http://" + m.addr, "-peer", peer,
			"-tick", strconv.Itoa(o.Tick), "-fsync=" + strconv.FormatBool(!o.NoFsync),
		}
		members[i] = m
	}
	for _, m := range members {
		m.args = append(m.args, "-cluster", strings.Join(cluster, ","))
		m.start()
	}
	for _, m := range members {
		m.awaitReady()
	}
	return members
}

// Addr is where the member answers: host:port.
func (e *Etcd) Addr() string { return e.addr }

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

func (e *Etcd) start() { e.Process = Start(e.t, Command{Path: e.bin, Args: e.args, Dir: e.member}) }

// awaitReady waits until the member answers a linearizable read, and proves that it is
// ours by its name, which is random.
func (e *Etcd) awaitReady() {
	e.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.addr}, Logger: zap.NewNop()})
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
		return errors.New("somebody else answers")
	})
}

// etcdBinary builds the server, outside of the race detector, and gives the path of
// the program in the build cache, where it stays: "go run" puts it there.
func etcdBinary(tb testing.TB) string {
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
