package e2e_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/access"
)

// wrongPassword is in URLs of the test, and in no error.
const wrongPassword = "canary-9e1f"

// A mistake that no retry mends is returned: Acquire does not wait for the end of its context, which has
// none. The error is ErrRefused, comes within a second, and has the remedy. Each store that knows TLS has "ca", an authority that
// did not sign the server's certificate; and where the client library reports it, "scheme", TLS to a server
// without it, and "scheme plain", plain text to a server with TLS. What ends connections like a server that restarts is waited for: see
// TestServersThatEndConnectionsAreWaitedFor.
func TestMistakes(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	certs, others := testserver.NewCertificates(t), testserver.NewCertificates(t)
	trust, trustOther := "?ca="+url.QueryEscape(certs.CA), "?ca="+url.QueryEscape(others.CA)
	for store, start := range map[string]func(t *testing.T) map[string]string{ // URLs by mistake
		"redis": func(t *testing.T) map[string]string {
			t.Helper()
			s, closed := testserver.Redis(t), testserver.Redis(t, "--requirepass", "right", "--masterauth", "right")
			secured := redisTLS(t, certs)
			s.Do("ACL", "SETUSER", "locker", "on", ">right", "~other:*", "+@all")
			return map[string]string{
				"password": "redis://locker:" + wrongPassword + "@" + s.Addr(), "no password": "redis://" + closed.Addr(),
				"database": "redis://" + s.Addr() + "/999", "rights": "redis://locker:right@" + s.Addr(),
				"ca": "rediss://" + secured + trustOther,
			}
		},
		"redis+cluster": func(t *testing.T) map[string]string {
			t.Helper()
			nodes := testserver.StartRedisCluster(t, 3).Masters()
			for _, s := range nodes {
				s.Do("ACL", "SETUSER", "locker", "on", ">right", "~*", "&*", "+@all")
			}
			return map[string]string{"password": "redis+cluster://locker:" + wrongPassword + "@" + testserver.RedisAddrs(nodes)}
		},
		"redis+sentinel": func(t *testing.T) map[string]string {
			t.Helper()
			g := testserver.StartRedisSentinels(t)
			g.Master.Do("ACL", "SETUSER", "locker", "on", ">right", "~*", "&*", "+@all")
			return map[string]string{"password": "redis+sentinel://locker:" + wrongPassword + "@" + g.Addrs() + "/" + testserver.SentinelMaster}
		},
		"redlock": func(t *testing.T) map[string]string {
			t.Helper()
			nodes := testserver.RedisAddrs(sharedRedlock())
			secured := redisTLS(t, certs) + "," + redisTLS(t, certs) + "," + redisTLS(t, certs)
			var closed []*testserver.RedisServer
			for range 3 {
				closed = append(closed, testserver.Redis(t, "--requirepass", "right", "--masterauth", "right"))
			}
			return map[string]string{
				"password": "redlock://locker:" + wrongPassword + "@" + nodes, "no password": "redlock://" + testserver.RedisAddrs(closed), "database": "redlock://" + nodes + "/999",
				"ca": "redlocks://" + secured + trustOther,
			}
		},
		"etcd": func(t *testing.T) map[string]string {
			t.Helper()
			s := testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true})[0]
			s.Authenticate("locker", "right", "holdfast/")
			secured := testserver.StartEtcd(t, testserver.EtcdOptions{Certificates: certs, NoFsync: true})[0].Addr()
			return map[string]string{
				"password": "etcd://locker:" + wrongPassword + "@" + s.Addr(), "no user": "etcd://" + s.Addr(),
				"rights": "etcd://locker:right@" + s.Addr() + "?prefix=other",
				"ca":     "etcds://" + secured + trustOther, "ca with user": "etcds://locker:right@" + secured + trustOther,
				"name":        "etcds://" + secured + trust + "&server_name=db.example.org",
				"certificate": "etcds://" + secured + trust,
			}
		},
		"zookeeper": func(t *testing.T) map[string]string {
			t.Helper()
			s := testserver.StartZooKeeper(t, 1)[0]
			owner := "zookeeper://owner:right@" + s.Addr() + "/locks"
			if _, err := attempt(t, owner); err != nil { // it creates the nodes, for itself
				t.Fatal(err)
			}
			secured := certs.Terminate(t, s.Addr())
			return map[string]string{
				"password": strings.Replace(owner, "right", wrongPassword, 1),
				"ca":       "zookeeper://" + secured + trustOther,
			}
		},
		"consul": func(t *testing.T) map[string]string {
			t.Helper()
			port := testserver.FreePort(t)
			s := testserver.StartConsulACL(t, "5b5bd0a1-3f4c-4b4e-9a0e-4bd4d3a2f001", "-hcl",
				fmt.Sprintf("ports { https = %d } tls { defaults { cert_file = %q key_file = %q } }", port, certs.ServerCert, certs.ServerKey))
			secured := "127.0.0.1:" + strconv.Itoa(port)
			return map[string]string{
				"token": "consul://:5b5bd0a1-3f4c-4b4e-9a0e-" + strings.Repeat("0", 12) + "@" + s.Addr(), "no token": "consul://" + s.Addr(),
				"scheme": "consuls://" + s.Addr(), "scheme plain": "consul://" + secured, "ca": "consuls://" + secured + trustOther,
			}
		},
		"postgres": func(t *testing.T) map[string]string {
			t.Helper()
			return postgresMistakes()
		},
		"postgres+advisory": func(t *testing.T) map[string]string {
			t.Helper()
			return asStore("postgres+advisory", postgresMistakes())
		},
		"mysql": func(t *testing.T) map[string]string {
			t.Helper()
			return mysqlMistakes()
		},
		"mysql+getlock": func(t *testing.T) map[string]string {
			t.Helper()
			return asStore("mysql+getlock", mysqlMistakes())
		},
		"kubernetes": func(t *testing.T) map[string]string {
			t.Helper()
			s := sharedKubernetes()
			path := s.Kubeconfig(s.Addr())
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			plain := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(plain.Close)
			urls := make(map[string]string)
			for mistake, changed := range map[string][2]string{
				"token": {s.Token(), wrongPassword}, "ca": {s.CA(), certs.CA},
				"scheme": {"https://" + s.Addr(), "https://" + strings.TrimPrefix(plain.URL, "http://")}, "scheme plain": {"https://", "http://"},
			} {
				wrong := filepath.Join(testserver.Dir(t), "kubeconfig")
				if err := os.WriteFile(wrong, []byte(strings.ReplaceAll(string(text), changed[0], changed[1])), 0o600); err != nil {
					t.Fatal(err)
				}
				urls[mistake] = "kubernetes://default?kubeconfig=" + wrong
			}
			return urls
		},
		"holdfast": func(t *testing.T) map[string]string {
			t.Helper()
			s := serverWithPolicy(t)
			plain, secured := httptest.NewServer(s), httptest.NewTLSServer(s)
			t.Cleanup(plain.Close)
			t.Cleanup(secured.Close)
			addr, securedAddr := strings.TrimPrefix(plain.URL, "http://"), strings.TrimPrefix(secured.URL, "https://")
			return map[string]string{
				"token": "holdfast://:" + wrongPassword + "@" + addr, "no token": "holdfast://" + addr, "rights": "holdfast://:right@" + addr,
				"scheme": "holdfasts://" + addr, "scheme plain": "holdfast://" + securedAddr, "ca": "holdfasts://" + securedAddr + trustOther,
			}
		},
		"sqlite": func(t *testing.T) map[string]string {
			t.Helper()
			file := filepath.Join(t.TempDir(), "notes.txt")
			if err := os.WriteFile(file, []byte(strings.Repeat("not a database\n", 100)), 0o600); err != nil {
				t.Fatal(err)
			}
			return map[string]string{"file": "sqlite://" + file}
		},
	} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			for mistake, at := range start(t) {
				t.Run(mistake, func(t *testing.T) {
					t.Parallel()
					var err error
					leasetest.Promptly(t, time.Second, func() time.Duration {
						var took time.Duration
						if took, err = attempt(t, at); !errors.Is(err, holdfast.ErrRefused) {
							t.Fatalf("%v; want ErrRefused", err)
						}
						t.Logf("%s: %v", took, err)
						return took
					})
					refused, ok := errors.AsType[*holdfast.RefusedError](err)
					if !ok || errors.Is(err, holdfast.ErrHeld) {
						t.Fatalf("%v; want ErrRefused", err)
					}
					if refused.Remedy == "" || !strings.Contains(err.Error(), refused.Remedy) || strings.Contains(err.Error(), wrongPassword) {
						t.Errorf("it says %q", err)
					}
					if away, ok := errors.AsType[*holdfast.UnavailableError](err); ok && away.MayHold {
						t.Errorf("it says that it may have worked: %v", err)
					}
				})
			}
		})
	}
}

// serverWithPolicy returns a Holdfast server that lets the token "right" acquire other locks than those of the test.
func serverWithPolicy(t *testing.T) *server.Server {
	t.Helper()
	sum := sha256.Sum256([]byte("right"))
	policy, err := access.Parse([]byte("principals: {locker: {tokens: [" + hex.EncodeToString(sum[:]) + "]}}\n" +
		"grants: [{to: [locker], locks: [other], verbs: [acquire, read]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	b := memlock.New()
	t.Cleanup(func() { _ = b.Close() })
	s, err := server.New(b, server.Config{
		Identify: policy.Identify, Authorize: policy.Authorize,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) })
	return s
}

// redisTLS starts a Redis, and returns the address at which it speaks TLS.
func redisTLS(t *testing.T, certs *testserver.Certificates) string {
	t.Helper()
	port := strconv.Itoa(testserver.FreePort(t))
	testserver.Redis(t, "--tls-port", port, "--tls-cert-file", certs.ServerCert, "--tls-key-file", certs.ServerKey, "--tls-ca-cert-file", certs.CA, "--tls-auth-clients", "no")
	return "127.0.0.1:" + port
}

// postgresMistakes returns URLs by mistake.
var postgresMistakes = testserver.Shared(func(tb testing.TB) map[string]string {
	tb.Helper()
	certs, others := testserver.NewCertificates(tb), testserver.NewCertificates(tb)
	certs.For(tb, "postgres")
	plain := testserver.Postgres(tb)
	plain.WantPassword("locker", "right")
	secured := testserver.Postgres(tb, "ssl=on", "ssl_cert_file="+certs.ServerCert, "ssl_key_file="+certs.ServerKey)
	secured.RefusePlain("encrypted")
	return map[string]string{
		"password":     plain.URLOf("locker:"+wrongPassword, plain.Addr()),
		"role":         plain.URLOf("nobody", plain.Addr()),
		"database":     strings.Replace(plain.URL(), "/postgres?", "/nowhere?", 1),
		"scheme":       strings.Replace(plain.URL(), "disable", "require", 1),
		"scheme plain": secured.URLOf("encrypted", secured.Addr()),
		"ca":           strings.Replace(secured.URL(), "disable", "verify-full&sslrootcert="+url.QueryEscape(others.CA), 1),
	}
})

// mysqlMistakes returns URLs by mistake.
var mysqlMistakes = testserver.Shared(func(tb testing.TB) map[string]string {
	tb.Helper()
	certs, others := testserver.NewCertificates(tb), testserver.NewCertificates(tb)
	certs.For(tb, "mysql")
	plain := testserver.MariaDB(tb)
	plain.Exec("CREATE USER locker@'%' IDENTIFIED BY 'right'")
	secured := testserver.MariaDB(tb, "ssl-ca="+certs.CA, "ssl-cert="+certs.ServerCert, "ssl-key="+certs.ServerKey)
	secured.Exec("CREATE USER app@'127.0.0.1' REQUIRE SSL", "GRANT ALL ON test.* TO app@'127.0.0.1'", "SET GLOBAL require_secure_transport = ON")
	return map[string]string{
		"password":          plain.URLOf("locker:"+wrongPassword, plain.Addr()),
		"database":          strings.Replace(plain.URL(), "/test", "/nowhere", 1),
		"scheme":            plain.URL() + "?tls=true",
		"scheme plain":      secured.URL() + "?tls=false",
		"scheme plain user": secured.URLOf("app", secured.Addr()) + "?tls=false",
		"ca":                secured.URL() + "?tls=true&ca=" + url.QueryEscape(others.CA),
	}
})

// asStore returns the URLs with another scheme.
func asStore(scheme string, urls map[string]string) map[string]string {
	all := make(map[string]string)
	for mistake, u := range urls {
		_, rest, _ := strings.Cut(u, ":")
		all[mistake] = scheme + ":" + rest
	}
	return all
}

// attempt acquires and releases a lock, in a context without an end. It returns when the error came, and the error. It
// fails the test if that takes longer than a mistake may take on a busy machine.
func attempt(t *testing.T, store string) (time.Duration, error) {
	t.Helper()
	const most = leasetest.Patience
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	defer cancel()
	var took time.Duration
	done := make(chan error, 1)
	go func() {
		var err error
		took, err = once(ctx, store)
		done <- err
	}()
	select {
	case err := <-done:
		return took, err
	case <-time.After(most):
		cancel()
		t.Fatalf("it is still being tried after %s; at the end: %v", most, <-done)
		return 0, nil
	}
}

func once(ctx context.Context, store string) (time.Duration, error) {
	from := time.Now()
	b, err := open.URL(ctx, store, open.Options{})
	if err != nil {
		return time.Since(from), err
	}
	defer func() { _ = b.Close() }()
	c, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		return time.Since(from), err
	}
	defer func() { // of a client that could do nothing there is nothing to wait for
		within, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		_ = c.Close(within)
	}()
	lock, err := c.Acquire(ctx, "order:7")
	if err != nil {
		return time.Since(from), err
	}
	return time.Since(from), lock.Release(ctx)
}
