package e2e_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// A server that accepts connections and is silent, like a process that is stopped, does not keep a client from the
// other servers of the URL.
func TestSilentServers(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for store, start := range map[string]func(t *testing.T, silent string) string{ // the URL
		"redis+sentinel": func(t *testing.T, silent string) string {
			t.Helper()
			return "redis+sentinel://" + silent + "," + testserver.StartRedisSentinels(t).Addrs() + "/" + testserver.SentinelMaster + "?quarantine=off"
		},
		"redis+cluster": func(t *testing.T, silent string) string {
			t.Helper()
			return "redis+cluster://" + silent + "," + testserver.RedisAddrs(testserver.StartRedisCluster(t, 3).Masters()) + "?quarantine=off"
		},
		"redlock": func(t *testing.T, silent string) string {
			t.Helper()
			return "redlock://" + silent + "," + testserver.RedisAddrs(sharedRedlock()[:2]) + "?quarantine=off"
		},
		"etcd": func(t *testing.T, silent string) string {
			t.Helper()
			return "etcd://" + silent + "," + sharedEtcd().Addr()
		},
		"etcd, TLS": func(t *testing.T, silent string) string {
			t.Helper()
			certs := testserver.NewCertificates(t)
			s := testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true, Certificates: certs})[0]
			return "etcds://" + silent + "," + s.Addr() + "?ca=" + url.QueryEscape(certs.CA) + "&cert=" + url.QueryEscape(certs.ClientCert) + "&key=" + url.QueryEscape(certs.ClientKey)
		},
		"zookeeper": func(t *testing.T, silent string) string {
			t.Helper()
			return "zookeeper://" + silent + "," + sharedZooKeeper().Addr()
		},
		"holdfast": func(t *testing.T, silent string) string {
			t.Helper()
			return "holdfast://" + silent + "," + overHTTP(t, memlock.New())
		},
	} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			rawURL := start(t, silent(t))
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // the command has 10 s, on a machine that is not busy
			defer cancel()
			connected(ctx, t, rawURL)
		})
	}
}
