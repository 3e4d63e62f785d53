package cli_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Without --backend the locks are in a folder that only this user can open. A folder of another user or program, and
// one that an earlier version left, is refused and stays as it is; so is a store whose leases end with their client.
func TestServeFolder(t *testing.T) {
	t.Parallel()
	at := func(parts ...string) string { return filepath.Join(parts...) }
	root := testserver.Dir(t)
	for _, name := range []string{"empty", "former/etcd", "foreign/src", "target"} {
		if err := os.MkdirAll(at(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("target", at(root, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says  string
		flags []string
	}{
		{"earlier version", []string{"--data-dir", at(root, "former")}},
		{"must be empty", []string{"--data-dir", at(root, "foreign")}},
		{"symbolic link", []string{"--data-dir", at(root, "link")}},
		{"use etcd://", []string{"--backend", "zookeeper://127.0.0.1:1?tls=false"}},
	} {
		r := run(t, command(t, "", append([]string{"serve", "--listen", "127.0.0.1:0"}, c.flags...)...))
		if r.status == 0 || !strings.Contains(r.stderr, c.says) || strings.Contains(r.stderr, "serving") {
			t.Errorf("%q: %+v", c.flags, r)
		}
	}
	for _, name := range []string{"former", "foreign", "target"} {
		info, err := os.Stat(at(root, name))
		if entries, _ := os.ReadDir(at(root, name)); err != nil || info.Mode().Perm() != 0o755 || len(entries) > 1 {
			t.Errorf("%s was changed: %v, %v, %v", name, info, entries, err)
		}
	}
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	p := testserver.Start(t, testserver.Command{Path: binary, Args: []string{"serve", "--listen", addr, "--data-dir", at(root, "empty")}})
	p.Await(time.Minute, func(ctx context.Context) error { return ready(ctx, addr) })
	if info, err := os.Stat(at(root, "empty")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder of the locks: %v, %v", info, err)
	}
	for _, says := range []string{"keeping locks in " + at(root, "empty"), "serving sqlite on http://" + addr, "the page is http://" + addr + "/"} {
		if !strings.Contains(p.Log(), says) {
			t.Errorf("it does not say %q: %s", says, p.Log())
		}
	}
}

// serveOn starts a server on a folder, and waits until it is ready.
func serveOn(t *testing.T, folder string) server {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	p := testserver.Start(t, testserver.Command{Path: binary, Args: []string{"serve", "--listen", addr, "--data-dir", folder}})
	p.Await(time.Minute, func(ctx context.Context) error { return ready(ctx, addr) })
	return server{p, addr}
}

// clientOf returns a client of a server.
func clientOf(t *testing.T, s server) *holdfast.Client {
	t.Helper()
	b, err := remotelock.Open(t.Context(), "holdfast://"+s.addr, remotelock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := holdfast.New(b, holdfast.Config{TTL: 5 * time.Minute, Timeout: time.Minute})
	if err != nil {
		t.Fatal(errors.Join(err, b.Close()))
	}
	t.Cleanup(func() { _ = errors.Join(c.Close(context.WithoutCancel(t.Context())), b.Close()) })
	return c
}

// Two servers on one folder are two servers on one store: what one has granted the other refuses, tokens grow over both, and
// a waiter at one is granted what a client of the other releases, also when that server is killed.
func TestTwoServersOnOneFolder(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	folder := filepath.Join(testserver.Dir(t), "data")
	servers := []server{serveOn(t, folder), serveOn(t, folder)}
	first, err := clientOf(t, servers[0]).Acquire(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	second := clientOf(t, servers[1])
	if _, err := second.TryAcquire(t.Context(), "n"); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("what the other server granted: %v", err)
	}
	granted := make(chan error, 1)
	go func() {
		lock, err := second.Acquire(t.Context(), "n")
		if err == nil && lock.Token() <= first.Token() {
			err = fmt.Errorf("token %d after %d", lock.Token(), first.Token())
		}
		granted <- err
	}()
	await(t, time.Minute, "the waiter is in the queue", func() bool {
		info, err := second.Inspect(t.Context(), "n")
		return err == nil && len(info.Waiters) == 1
	})
	if err := first.Release(t.Context()); err != nil {
		t.Error(err)
	}
	servers[0].Kill()
	if err := <-granted; err != nil {
		t.Error(err)
	}
}
