package e2e_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// A server that ends connections, while they are made or later, may be restarting. It is waited for, with TLS
// and without: it must not be taken for one that refuses the client. See TestMistakes for those.
func TestServersThatEndConnectionsAreWaitedFor(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	certs := testserver.NewCertificates(t)
	trust := "?ca=" + url.QueryEscape(certs.CA)
	for store, start := range map[string]func(t *testing.T, through func(string) string) string{ // the URL
		"redis": func(t *testing.T, through func(string) string) string {
			t.Helper()
			return "redis://" + through(sharedRedis().Addr()) + "?quarantine=off"
		},
		"redis, TLS": func(t *testing.T, through func(string) string) string {
			t.Helper()
			return "rediss://" + through(redisTLS(t, certs)) + trust + "&quarantine=off"
		},
		"redlock, TLS": func(t *testing.T, through func(string) string) string {
			t.Helper()
			var nodes []string
			for range 3 {
				nodes = append(nodes, through(redisTLS(t, certs)))
			}
			return "redlocks://" + strings.Join(nodes, ",") + trust + "&quarantine=off"
		},
		"etcd": func(t *testing.T, through func(string) string) string {
			t.Helper()
			return "etcd://" + through(sharedEtcd().Addr())
		},
		"etcd, TLS": func(t *testing.T, through func(string) string) string {
			t.Helper()
			s := testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true, Certificates: certs})[0]
			return "etcds://" + through(s.Addr()) + trust + "&cert=" + url.QueryEscape(certs.ClientCert) + "&key=" + url.QueryEscape(certs.ClientKey)
		},
		"zookeeper": func(t *testing.T, through func(string) string) string {
			t.Helper()
			return "zookeeper://" + through(sharedZooKeeper().Addr())
		},
		"zookeeper, TLS": func(t *testing.T, through func(string) string) string {
			t.Helper()
			return "zookeeper://" + through(certs.Terminate(t, sharedZooKeeper().Addr())) + trust
		},
		"consul, TLS": func(t *testing.T, through func(string) string) string {
			t.Helper()
			return "consuls://" + through(certs.Terminate(t, sharedConsul().Addr())) + trust
		},
		"postgres, TLS": func(t *testing.T, through func(string) string) string {
			t.Helper()
			own := testserver.NewCertificates(t)
			own.For(t, "postgres")
			s := testserver.Postgres(t, "ssl=on", "ssl_cert_file="+own.ServerCert, "ssl_key_file="+own.ServerKey)
			return strings.Replace(s.URLOf("postgres", through(s.Addr())), "disable", "verify-full&sslrootcert="+url.QueryEscape(own.CA), 1)
		},
		"mysql, TLS": func(t *testing.T, through func(string) string) string {
			t.Helper()
			own := testserver.NewCertificates(t)
			own.For(t, "mysql")
			s := testserver.MariaDB(t, "ssl-ca="+own.CA, "ssl-cert="+own.ServerCert, "ssl-key="+own.ServerKey)
			return s.URLOf("root", through(s.Addr())) + "?tls=true&ca=" + url.QueryEscape(own.CA)
		},
		"kubernetes": func(t *testing.T, through func(string) string) string {
			t.Helper()
			s := sharedKubernetes()
			return "kubernetes://default?kubeconfig=" + s.Kubeconfig(through(s.Addr()))
		},
		"holdfast, TLS": func(t *testing.T, through func(string) string) string {
			t.Helper()
			return "holdfasts://" + through(certs.Terminate(t, overHTTP(t, memlock.New()))) + trust
		},
	} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			var proxies []*chaos.Proxy
			at := start(t, func(addr string) string {
				p := chaos.Start(t, addr)
				proxies = append(proxies, p)
				return p.Addr()
			})
			c := connected(t.Context(), t, at)
			for fault, apply := range map[string]func(*chaos.Proxy){
				"reset before the server has anything": func(p *chaos.Proxy) { p.ResetSenders(chaos.Requests) },
				"reset before the client has anything": func(p *chaos.Proxy) { p.ResetSenders(chaos.Replies) },
				"the first one is reset":               func(p *chaos.Proxy) { p.CloseAfterRequest(nil) },
			} {
				waitedFor(t, c, proxies, fault, apply)
			}
		})
	}
}

// connected returns a client that has had a lock.
func connected(ctx context.Context, t *testing.T, at string) *holdfast.Client {
	t.Helper()
	b, err := open.URL(ctx, at, open.Options{})
	c := client(t, opened(t, b, err), holdfast.Config{})
	lock, err := c.Acquire(ctx, t.Name())
	if err == nil {
		err = lock.Release(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// waitedFor acquires a lock during a fault, and after it if the fault does not end by itself.
func waitedFor(t *testing.T, c *holdfast.Client, proxies []*chaos.Proxy, fault string, apply func(*chaos.Proxy)) {
	t.Helper()
	before := make([]int, len(proxies))
	for i, p := range proxies {
		before[i] = p.Stats().Accepted
		apply(p)
		p.Reset()
	}
	got := make(chan error, 1)
	go func() {
		lock, err := c.Acquire(t.Context(), t.Name())
		if err == nil {
			err = lock.Release(t.Context())
		}
		got <- err
	}()
	const attempts = 3
	tried, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		defer stop()
		for i, p := range proxies {
			_ = p.Wait(tried, func(s chaos.Stats) bool { return s.Accepted >= before[i]+attempts })
		}
	}()
	var err error
	select {
	case err = <-got:
	case <-tried.Done():
		for _, p := range proxies {
			p.Heal()
		}
		select {
		case err = <-got:
		case <-time.After(time.Minute):
			t.Fatalf("%s: no lock, a minute later", fault)
		}
	}
	if err != nil {
		t.Errorf("%s: %v", fault, err)
	}
	for _, p := range proxies {
		p.Heal()
	}
}
