package e2e_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// wrongPassword is in URLs of the test, and in no error.
const wrongPassword = "canary-9e1f"

// A mistake that no retry mends is returned: Acquire does not wait for the end of its context, which has
// none. The error is ErrRefused, and has the remedy. (TLS that a plain Redis never answers, and what etcd's
// client reports as a time-out only, cannot be told from a server that hangs.)
func TestMistakes(t *testing.T) {
	t.Parallel()
	for store, start := range map[string]func(t *testing.T) map[string]string{ // URLs by mistake
		"redis": func(t *testing.T) map[string]string {
			t.Helper()
			s, closed := testserver.Redis(t), testserver.Redis(t, "--requirepass", "right", "--masterauth", "right")
			s.Do("ACL", "SETUSER", "locker", "on", ">right", "~other:*", "+@all")
			return map[string]string{
				"password": "redis://locker:" + wrongPassword + "@" + s.Addr(), "no password": "redis://" + closed.Addr(),
				"database": "redis://" + s.Addr() + "/999", "rights": "redis://locker:right@" + s.Addr(),
			}
		},
		"redlock": func(t *testing.T) map[string]string {
			t.Helper()
			nodes := testserver.RedisAddrs(testserver.RedisNodes(t, 3))
			return map[string]string{
				"password": "redlock://locker:" + wrongPassword + "@" + nodes, "database": "redlock://" + nodes + "/999",
			}
		},
		"etcd": func(t *testing.T) map[string]string {
			t.Helper()
			s := testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true})[0]
			s.Authenticate("locker", "right", "holdfast/")
			return map[string]string{
				"password": "etcd://locker:" + wrongPassword + "@" + s.Addr(), "no user": "etcd://" + s.Addr(),
				"rights": "etcd://locker:right@" + s.Addr() + "?prefix=other",
			}
		},
		"zookeeper": func(t *testing.T) map[string]string {
			t.Helper()
			s := testserver.StartZooKeeper(t, 1)[0]
			owner := "zookeeper://owner:right@" + s.Addr() + "/locks"
			if err := attempt(t, owner); err != nil { // it creates the nodes, for itself
				t.Fatal(err)
			}
			return map[string]string{"password": strings.Replace(owner, "right", wrongPassword, 1)}
		},
		"consul": func(t *testing.T) map[string]string {
			t.Helper()
			s := testserver.StartConsulACL(t, "5b5bd0a1-3f4c-4b4e-9a0e-4bd4d3a2f001")
			return map[string]string{
				"token": "consul://:5b5bd0a1-3f4c-4b4e-9a0e-" + strings.Repeat("0", 12) + "@" + s.Addr(), "no token": "consul://" + s.Addr(),
				"scheme": "consuls://" + s.Addr(),
			}
		},
		"postgres": func(t *testing.T) map[string]string {
			t.Helper()
			s := testserver.Postgres(t)
			return map[string]string{
				"role": s.URLOf("nobody", s.Addr()), "database": strings.Replace(s.URL(), "/postgres?", "/nowhere?", 1),
				"scheme": strings.Replace(s.URL(), "disable", "require", 1),
			}
		},
		"postgres+advisory": func(t *testing.T) map[string]string {
			t.Helper()
			s := testserver.Postgres(t)
			return map[string]string{
				"role": advisory(s.URLOf("nobody", s.Addr())), "database": advisory(strings.Replace(s.URL(), "/postgres?", "/nowhere?", 1)),
			}
		},
		"mysql": func(t *testing.T) map[string]string {
			t.Helper()
			s := testserver.MariaDB(t)
			s.Exec("CREATE USER locker@'%' IDENTIFIED BY 'right'")
			login := s.URLOf("locker:"+wrongPassword, s.Addr())
			return map[string]string{
				"password": login, "getlock: password": strings.Replace(login, "mysql:", "mysql+getlock:", 1),
				"database": strings.Replace(s.URL(), "/test", "/nowhere", 1), "scheme": s.URL() + "?tls=true",
			}
		},
		"kubernetes": func(t *testing.T) map[string]string {
			t.Helper()
			s := testserver.Kubernetes(t)
			path := s.Kubeconfig(s.Addr())
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			wrong := filepath.Join(testserver.Dir(t), "kubeconfig")
			if err := os.WriteFile(wrong, []byte(strings.ReplaceAll(string(text), s.Token(), wrongPassword)), 0o600); err != nil {
				t.Fatal(err)
			}
			return map[string]string{"token": "kubernetes://default?kubeconfig=" + wrong}
		},
		"holdfast": func(t *testing.T) map[string]string {
			t.Helper()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
			t.Cleanup(s.Close)
			addr := strings.TrimPrefix(s.URL, "http://")
			return map[string]string{"scheme": "holdfasts://" + addr, "token": "holdfast://" + addr}
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
			for mistake, url := range start(t) {
				t.Run(mistake, func(t *testing.T) {
					t.Parallel()
					err := attempt(t, url)
					refused, ok := errors.AsType[*holdfast.RefusedError](err)
					if !ok || !errors.Is(err, holdfast.ErrRefused) || errors.Is(err, holdfast.ErrHeld) {
						t.Fatalf("%v; want ErrRefused", err)
					}
					if refused.Remedy == "" || !strings.Contains(err.Error(), refused.Remedy) || strings.Contains(err.Error(), wrongPassword) {
						t.Errorf("it says %q", err)
					}
				})
			}
		})
	}
}

func advisory(url string) string { return strings.Replace(url, "postgres:", "postgres+advisory:", 1) }

// attempt acquires and releases a lock, in a context without an end, and returns the error. It fails the
// test if that takes longer than a mistake may take on a busy machine.
func attempt(t *testing.T, url string) error {
	t.Helper()
	const most = 30 * time.Second
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- once(ctx, url) }()
	select {
	case err := <-done:
		return err
	case <-time.After(most):
		cancel()
		t.Fatalf("it is still being tried after %s; at the end: %v", most, <-done)
		return nil
	}
}

func once(ctx context.Context, url string) error {
	b, err := open.URL(ctx, url, open.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	c, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		return err
	}
	defer func() { // of a client that could do nothing there is nothing to wait for
		within, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		_ = c.Close(within)
	}()
	lock, err := c.Acquire(ctx, "order:7")
	if err != nil {
		return err
	}
	return lock.Release(ctx)
}
