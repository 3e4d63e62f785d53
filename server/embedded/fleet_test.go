package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/server/embedded"
)

// fleet has nodes of one host that a test starts and stops.
type fleet struct {
	t    *testing.T
	dir  string
	list []embedded.Peer

	mu    sync.Mutex
	nodes map[string]*embedded.Etcd
}

func newFleet(t *testing.T, names ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: testserver.Dir(t), nodes: make(map[string]*embedded.Etcd)}
	for _, name := range names {
		f.list = append(f.list, embedded.Peer{Name: name, URL: fmt.Sprintf("http://127.0.0.1:%d", testserver.FreePort(t))})
	}
	t.Cleanup(func() { f.close(names...) })
	return f
}

func (f *fleet) folder(name string) string { return filepath.Join(f.dir, name) }

func (f *fleet) config(name string) embedded.Config {
	return embedded.Config{DataDir: f.folder(name), Name: name, Cluster: f.list, LocalCA: filepath.Join(f.dir, "peers.pem")}
}

// open starts a node, which may fail to join a cluster.
func (f *fleet) open(name string) *embedded.Etcd {
	f.t.Helper()
	e, err := embedded.Open(f.config(name))
	if err != nil {
		f.t.Errorf("%s: %v", name, err)
		f.t.FailNow()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name] = e
	return e
}

// openAll starts nodes at the same moment.
func (f *fleet) openAll(names ...string) {
	f.t.Helper()
	var starting sync.WaitGroup
	for _, name := range names {
		starting.Go(func() { f.open(name) })
	}
	starting.Wait()
}

func (f *fleet) node(name string) *embedded.Etcd {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[name]
}

func (f *fleet) close(names ...string) {
	f.t.Helper()
	for _, name := range names {
		e := f.node(name)
		if e == nil {
			continue
		}
		if err := e.Close(); err != nil {
			f.t.Errorf("close %s: %v", name, err)
		}
		f.mu.Lock()
		delete(f.nodes, name)
		f.mu.Unlock()
	}
}

// ready waits until nodes serve.
func (f *fleet) ready(names ...string) {
	f.t.Helper()
	for _, name := range names {
		e := f.node(name)
		select {
		case <-e.Ready():
		case err := <-e.Err():
			f.t.Fatalf("%s ended: %v", name, err)
		case <-time.After(patience):
			f.t.Fatalf("%s: %s", name, e.Waiting())
		}
	}
}

// formed returns a cluster of all the nodes.
func formed(t *testing.T, names ...string) *fleet {
	t.Helper()
	f := newFleet(t, names...)
	f.openAll(names...)
	f.init(names[0])
	f.ready(names...)
	return f
}

func (f *fleet) init(name string) {
	f.t.Helper()
	f.insist("form a cluster", func(ctx context.Context) error { return f.node(name).Init(ctx) })
}

// insist repeats a call that may fail for a while.
func (f *fleet) insist(what string, do func(context.Context) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	for {
		err := do(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			f.t.Fatalf("%s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// says waits until a node reports what it waits for.
func (f *fleet) says(name, what string) {
	f.t.Helper()
	f.insist(name, func(context.Context) error {
		if got := f.node(name).Waiting(); !strings.Contains(got, what) {
			return fmt.Errorf("it waits for %q, and not for %q", got, what)
		}
		return nil
	})
}

// refused waits until a node has ended with the expected reason.
func (f *fleet) refused(name, what string) {
	f.t.Helper()
	select {
	case err := <-f.node(name).Err():
		if !errors.Is(err, embedded.ErrRefused) || !strings.Contains(err.Error(), what) {
			f.t.Errorf("%s ended: %v; want %q", name, err, what)
		}
	case <-time.After(patience):
		f.t.Errorf("%s was not refused; it waits for %q", name, f.node(name).Waiting())
	}
	f.close(name)
}

func (f *fleet) wipe(name string) {
	f.t.Helper()
	if err := os.RemoveAll(f.folder(name)); err != nil {
		f.t.Fatal(err)
	}
}

// acquire takes a lock for an hour at a node, and returns its token, or 0 if it is held.
func (f *fleet) acquire(node, name string) uint64 {
	f.t.Helper()
	b, err := etcdlock.New(f.node(node).Client(), etcdlock.Config{MinTTL: embedded.MinTTL})
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	var g backend.Grant
	lease := backend.NewLeaseID()
	f.insist("acquire "+name+" at "+node, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		g, err = b.Acquire(ctx, backend.AcquireRequest{Name: name, Lease: lease, Timed: true, TTL: time.Hour})
		if errors.Is(err, backend.ErrHeld) {
			return nil
		}
		return err
	})
	return uint64(g.Token)
}
