//go:build unix

package launch

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// EtcdOptions say how an etcd is started.
type EtcdOptions struct {
	Options

	// Tick is the heartbeat in milliseconds; an election takes ten of them, and leases live for 15 or
	// more, rounded up to seconds. Default: etcd's own.
	Tick int
	// Client is how to connect to it, but for the address: with TLS if its Args make it speak TLS
	// only, and as a user. It may change between two starts. Optional.
	Client *clientv3.Config
	// Reach returns the address by which the other members reach the member that listens at an
	// address: that of a proxy in between. Optional.
	Reach func(listens string) string
}

// Etcd returns the members of a cluster. They have to be launched together: one does not serve
// alone.
func Etcd(o EtcdOptions) ([]*Server, error) {
	n := max(1, o.Members)
	cluster := strings.ToLower(rand.Text()[:8]) // so that no member is taken for another one's
	members, urls, peers := make([]*Server, n), make([]string, n), make([]string, n)
	for i := range members {
		var err error
		if members[i], err = o.server("etcd", fmt.Sprintf("m%d", i+1), ""); err != nil {
			return nil, err
		}
		peer, err := FreeAddr()
		if err != nil {
			return nil, err
		}
		reached := peer
		if o.Reach != nil {
			reached = o.Reach(peer)
		}
		urls[i] = "http://" + peer
		peers[i] = fmt.Sprintf("%s-%d=http://%s", cluster, i, reached)
	}
	for i, s := range members {
		o.member(s, urls[i], peers, i)
	}
	return members, nil
}

// member completes a member of a cluster.
func (o EtcdOptions) member(s *Server, listens string, peers []string, i int) {
	name, advertised, _ := strings.Cut(peers[i], "=")
	scheme := "http://"
	if o.Client != nil && o.Client.TLS != nil {
		scheme = "https://"
	}
	args := []string{
		"--name", name, "--data-dir", s.Path("data"), "--listen-client-urls", scheme + s.addr, "--advertise-client-urls", scheme + s.addr,
		"--listen-peer-urls", listens, "--initial-advertise-peer-urls", advertised, "--initial-cluster", strings.Join(peers, ","),
		"--bcrypt-cost", "4", // the least: a client opens many connections
		"--logger", "zap", "--log-level", "fatal", "--log-outputs", "stderr",
	}
	if o.Tick > 0 {
		args = append(args, "--heartbeat-interval", strconv.Itoa(o.Tick), "--election-timeout", strconv.Itoa(10*o.Tick))
	}
	s.command.Argv, s.URL = slices.Concat(s.command.Argv, args, o.Args), "etcd://"+s.addr
	s.ready = func(ctx context.Context, _ *Process) error {
		var conf clientv3.Config
		if o.Client != nil {
			conf = *o.Client
		}
		conf.Endpoints, conf.Logger = []string{s.addr}, zap.NewNop()
		return etcdServes(ctx, conf, name)
	}
}

// etcdServes returns nil if the one endpoint answers a linearizable read, and is the member with the
// name, which is random.
func etcdServes(ctx context.Context, conf clientv3.Config, name string) error {
	c, err := clientv3.New(conf)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	defer func() { _ = c.Close() }()
	status, err := c.Status(ctx, conf.Endpoints[0])
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	list, err := c.MemberList(ctx)
	if err != nil {
		return fmt.Errorf("members: %w", err)
	}
	for _, m := range list.Members {
		if m.ID == status.Header.MemberId && m.Name == name {
			if _, err := c.Get(ctx, "ready"); err != nil {
				return fmt.Errorf("read: %w", err)
			}
			return nil
		}
	}
	return errOther
}
