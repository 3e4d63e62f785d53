//go:build unix

package testserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// RedisCluster are the masters of a Redis Cluster, which share the slots.
type RedisCluster struct {
	t       testing.TB
	masters []*RedisServer
}

const (
	slots = 16384
	// missed is after how many milliseconds the servers of a group give up one that does not
	// answer. On a busy machine one that works is quiet for seconds.
	missed = "600000"
)

// StartRedisCluster starts a cluster of n masters without replicas, and waits until all of them
// report that it is up. args are as for Redis.
func StartRedisCluster(t testing.TB, n int, args ...string) *RedisCluster {
	t.Helper()
	c := &RedisCluster{t: t}
	for range n {
		bus := strconv.Itoa(FreePort(t))
		c.masters = append(c.masters, Redis(t, append([]string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", missed, "--cluster-port", bus,
		}, args...)...))
	}
	for i, s := range c.masters {
		s.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/n), strconv.Itoa((i+1)*slots/n-1))
		s.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
	}
	for _, s := range c.masters[1:] {
		bus, _ := s.Do("CONFIG", "GET", "cluster-port").([]any)
		c.masters[0].Do("CLUSTER", "MEET", "127.0.0.1", launch.Port(s.Addr()), fmt.Sprint(bus[1]))
	}
	c.await()
	return c
}

func (c *RedisCluster) await() {
	c.t.Helper()
	for _, s := range c.masters {
		s.proc.Await(startTimeout, func(ctx context.Context) error { return clusterUp(ctx, s, len(c.masters)) })
	}
}

func clusterUp(ctx context.Context, s *RedisServer, n int) error {
	info, err := s.DoContext(ctx, "CLUSTER", "INFO")
	if err != nil {
		return err
	}
	text, _ := info.(string)
	for _, want := range []string{"cluster_state:ok\r", fmt.Sprintf("cluster_known_nodes:%d\r", n)} {
		if !strings.Contains(text, want) {
			return fmt.Errorf("no %q", want)
		}
	}
	return nil
}

// Masters are the servers.
func (c *RedisCluster) Masters() []*RedisServer { return c.masters }

// Slot is the slot of a key.
func (c *RedisCluster) Slot(key string) string {
	c.t.Helper()
	slot, _ := c.masters[0].Do("CLUSTER", "KEYSLOT", key).(int64)
	return strconv.FormatInt(slot, 10)
}

// Owner is the server that has the slot of the key, as the server itself reports.
func (c *RedisCluster) Owner(key string) *RedisServer {
	c.t.Helper()
	slot := c.Slot(key)
	for _, s := range c.masters {
		_, err := s.DoContext(context.WithoutCancel(c.t.Context()), "CLUSTER", "COUNTKEYSINSLOT", slot)
		if err != nil {
			c.t.Fatalf("testserver: %v", err)
		}
		// The key of another server is answered with MOVED.
		if _, err = s.DoContext(context.WithoutCancel(c.t.Context()), "EXISTS", key); err == nil {
			return s
		}
	}
	c.t.Fatalf("testserver: no server has slot %s", slot)
	return nil
}

// BeginMove starts to move the slot from one server to the other: no key has moved.
func (c *RedisCluster) BeginMove(slot string, from, to *RedisServer) {
	c.t.Helper()
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", from.id())
	from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id())
}

// MoveKeys moves keys of a slot that is being moved.
func (c *RedisCluster) MoveKeys(from, to *RedisServer, keys ...string) {
	c.t.Helper()
	if len(keys) > 0 {
		from.Do(append([]string{"MIGRATE", "127.0.0.1", launch.Port(to.Addr()), "", "0", "10000", "KEYS"}, keys...)...)
	}
}

// Keys are the keys of a slot that a server has.
func (c *RedisCluster) Keys(s *RedisServer, slot string) []string {
	c.t.Helper()
	const most = "100000"
	list, _ := s.Do("CLUSTER", "GETKEYSINSLOT", slot, most).([]any)
	keys := make([]string, len(list))
	for i, k := range list {
		keys[i], _ = k.(string)
	}
	return keys
}

// EndMove moves the rest of the keys, and assigns the slot to the other server.
func (c *RedisCluster) EndMove(slot string, from, to *RedisServer) {
	c.t.Helper()
	for keys := c.Keys(from, slot); len(keys) > 0; keys = c.Keys(from, slot) {
		c.MoveKeys(from, to, keys...)
	}
	for _, s := range append([]*RedisServer{to, from}, c.masters...) {
		s.Do("CLUSTER", "SETSLOT", slot, "NODE", to.id())
	}
}

// id is the name of the server in its cluster.
func (s *RedisServer) id() string {
	s.t.Helper()
	id, _ := s.Do("CLUSTER", "MYID").(string)
	return id
}

// RedisSentinels are a master, its replica, and three sentinels that watch over them.
type RedisSentinels struct {
	t         testing.TB
	Master    *RedisServer // at the start
	Replica   *RedisServer // at the start
	sentinels []*RedisServer
}

// SentinelMaster is the name of the group for the sentinels.
const SentinelMaster = "locks"

// StartRedisSentinels starts them, and waits until all of them know each other. They replace the
// master only when a test asks for it, with AwaitFailOver. args are of the master and
// the replica, as for Redis.
func StartRedisSentinels(t testing.TB, args ...string) *RedisSentinels {
	t.Helper()
	const sentinels = 3
	g := &RedisSentinels{t: t, Master: Redis(t, args...)}
	// A replica that learns of the master writes its data again, which takes time.
	quick := []string{"--repl-diskless-sync-delay", "0"}
	g.Replica = Redis(t, append(append(quick, "--replicaof", "127.0.0.1 "+launch.Port(g.Master.Addr())), args...)...)
	g.Master.Do("CONFIG", "SET", "repl-diskless-sync-delay", "0")
	g.Replica.proc.Await(startTimeout, func(ctx context.Context) error {
		return says(ctx, g.Replica, "INFO replication", "master_link_status:up")
	})
	for range sentinels {
		g.sentinels = append(g.sentinels, startSentinel(t, g.Master.Addr()))
	}
	for _, s := range g.sentinels {
		s.proc.Await(startTimeout, func(ctx context.Context) error {
			if err := says(ctx, s, "SENTINEL CKQUORUM "+SentinelMaster, "OK 3 usable"); err != nil {
				return err
			}
			// It learns of replicas from what the master reports every ten seconds.
			return says(ctx, s, "INFO sentinel", "slaves=1,sentinels=3")
		})
	}
	return g
}

func says(ctx context.Context, s *RedisServer, command, want string) error {
	got, err := s.DoContext(ctx, strings.Fields(command)...)
	if err != nil {
		return err
	}
	if text, _ := got.(string); !strings.Contains(text, want) {
		return fmt.Errorf("%s: no %q in %q", command, want, got)
	}
	return nil
}

func startSentinel(t testing.TB, master string) *RedisServer {
	t.Helper()
	s, err := launch.RedisSentinel(options(t),
		"sentinel monitor "+SentinelMaster+" 127.0.0.1 "+launch.Port(master)+" 2",
		"sentinel down-after-milliseconds "+SentinelMaster+" "+missed,
		"sentinel failover-timeout "+SentinelMaster+" 10000")
	return &RedisServer{timed{started(t, s, err)}}
}

// Addrs are the addresses of the sentinels, separated by commas.
func (g *RedisSentinels) Addrs() string { return RedisAddrs(g.sentinels) }

// AwaitFailOver has the sentinels notice that the master was killed, and waits until the replica
// is the master.
func (g *RedisSentinels) AwaitFailOver() {
	g.t.Helper()
	for _, s := range g.sentinels {
		s.Do("SENTINEL", "SET", SentinelMaster, "down-after-milliseconds", "3000")
	}
	g.awaitMaster(g.Replica)
}

// awaitMaster waits until all sentinels, and the server itself, report that the server is the
// master.
func (g *RedisSentinels) awaitMaster(server *RedisServer) {
	g.t.Helper()
	for _, s := range g.sentinels {
		s.proc.Await(startTimeout, func(ctx context.Context) error {
			got, err := s.DoContext(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelMaster)
			if err != nil {
				return err
			}
			addr, _ := got.([]any)
			if len(addr) != 2 || addr[1] != launch.Port(server.Addr()) {
				return errors.New("another is the master")
			}
			return says(ctx, server, "INFO replication", "role:master")
		})
	}
}
