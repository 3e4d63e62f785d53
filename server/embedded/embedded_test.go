package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/internal/leaktest"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/server/embedded"
)

const (
	envDir     = "HOLDFAST_TEST_EMBEDDED_DIR"
	envName    = "HOLDFAST_TEST_EMBEDDED_NAME"
	envCluster = "HOLDFAST_TEST_EMBEDDED_CLUSTER"
	envClients = "HOLDFAST_TEST_EMBEDDED_CLIENTS"
	envCA      = "HOLDFAST_TEST_EMBEDDED_CA"
	patience   = 60 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(envDir) != "" {
		if err := node(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	leaktest.Main(m)
}

// node is the main function of the process that a test kills.
func node() error {
	cfg := embedded.Config{
		DataDir: os.Getenv(envDir), Name: os.Getenv(envName), ListenClients: []string{os.Getenv(envClients)},
		LocalCA: os.Getenv(envCA), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	for part := range strings.SplitSeq(os.Getenv(envCluster), ",") {
		if name, url, ok := strings.Cut(part, "="); ok {
			cfg.Cluster = append(cfg.Cluster, embedded.Peer{Name: name, URL: url})
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	e, err := embedded.Open(cfg)
	if err != nil {
		return err
	}
	if len(cfg.Cluster) > 0 && cfg.Cluster[0].Name == cfg.Name {
		for e.Init(ctx) != nil && ctx.Err() == nil { // the first on the list forms the cluster, when the others are up
			time.Sleep(50 * time.Millisecond)
		}
	}
	select {
	case <-ctx.Done():
	case err = <-e.Err():
	}
	return errors.Join(err, e.Close())
}

// process is a node in a process of its own.
type process struct {
	*testserver.Process
	t    *testing.T
	cmd  testserver.Command
	addr string
}

func startProcess(t *testing.T, name, cluster, ca string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := testserver.Dir(t)
	p := &process{t: t, addr: fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))}
	p.cmd = testserver.Command{Path: exe, Dir: dir, Env: []string{
		envDir + "=" + filepath.Join(dir, "data"), envName + "=" + name, envCluster + "=" + cluster, envClients + "=http://" + p.addr, envCA + "=" + ca,
	}}
	p.start()
	return p
}

func (p *process) start() { p.Process = testserver.Start(p.t, p.cmd) }

func (p *process) ready() {
	p.t.Helper()
	b, err := etcdlock.Open(p.t.Context(), "etcd://"+p.addr, etcdlock.Config{})
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	p.Await(patience, func(ctx context.Context) error {
		_, err := b.Inspect(ctx, "ready")
		return err
	})
}

func start(t *testing.T, cfg embedded.Config) *embedded.Etcd {
	t.Helper()
	e, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestConformance(t *testing.T) {
	t.Parallel()
	e := start(t, embedded.Config{DataDir: testserver.Dir(t)})
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			t.Helper()
			b, err := etcdlock.New(e.Client(), etcdlock.Config{MinTTL: embedded.MinTTL})
			if err != nil {
				t.Fatalf("New: %v", err)
			}
			return b
		},
		NoRestart: "the store is in this process; TestKill restarts one in another",
		TTL:       embedded.MinTTL,
	})
}

func TestStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(testserver.Dir(t), strings.Repeat("long/", 30)) // too long for a socket
	began := time.Now()
	e, err := embedded.Start(t.Context(), embedded.Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(began))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data folder: %v, %v", info.Mode(), err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := embedded.Start(t.Context(), embedded.Config{DataDir: dir})
		second <- err
	}()
	select {
	case err := <-second:
		if err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a second one on the same folder: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("a second one on the same folder waits for the first")
	}
	if err := put(t, e, "key", "value"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Close(), e.Close()); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	again := start(t, embedded.Config{DataDir: dir})
	t.Logf("ready again after %s", time.Since(began))
	resp, err := again.Client().Get(t.Context(), "key")
	if err != nil || len(resp.Kvs) != 1 {
		t.Errorf("after a restart: %v, %v", resp, err)
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// Settings that the check lets pass would be refused because of the folder, and open no
	// port.
	if err := os.WriteFile(filepath.Join(dir, "theirs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]embedded.Config{
		"no folder":  {},
		"name":       {DataDir: dir, Name: "a,b"},
		"not in it":  {DataDir: dir, Name: "a", Cluster: []embedded.Peer{{Name: "b", URL: "http://127.0.0.1:1"}}},
		"url":        {DataDir: dir, Name: "a", Cluster: []embedded.Peer{{Name: "a", URL: "127.0.0.1:1"}}},
		"twice":      {DataDir: dir, Name: "a", Cluster: []embedded.Peer{{Name: "a", URL: "http://127.0.0.1:1"}, {Name: "a", URL: "http://127.0.0.1:2"}}},
		"no tls":     {DataDir: dir, Name: "a", Cluster: []embedded.Peer{{Name: "a", URL: "https://127.0.0.1:1"}}},
		"half tls":   {DataDir: dir, Name: "a", Cluster: []embedded.Peer{{Name: "a", URL: "https://127.0.0.1:1"}}, PeerTLS: &embedded.TLS{Cert: "c", Key: "k"}},
		"tls, http":  {DataDir: dir, Name: "a", Cluster: []embedded.Peer{{Name: "a", URL: "http://127.0.0.1:1"}}, PeerTLS: &embedded.TLS{Cert: "c", Key: "k", CA: "a"}},
		"tls, alone": {DataDir: dir, PeerTLS: &embedded.TLS{Cert: "c", Key: "k", CA: "a"}},
		"not a host": {DataDir: dir, Name: "a", ListenPeers: "x", Cluster: []embedded.Peer{{Name: "a", URL: "http://127.0.0.1:1"}}},
		"no peers":   {DataDir: dir, Name: "a", ListenPeers: "127.0.0.1:1"},
		"no ca":      {DataDir: dir, Name: "a", Cluster: []embedded.Peer{{Name: "a", URL: "http://127.0.0.1:1"}}},
		"plain http": {DataDir: dir, Name: "a", LocalCA: "x", Cluster: []embedded.Peer{{Name: "a", URL: "http://10.0.0.1:1"}}},
		"one beyond": {DataDir: dir, Name: "a", LocalCA: "x", Cluster: []embedded.Peer{{Name: "a", URL: "http://127.0.0.1:1"}, {Name: "b", URL: "http://10.0.0.1:1"}}},
		"all hosts":  {DataDir: dir, Name: "a", LocalCA: "x", ListenPeers: "0.0.0.0:1", Cluster: []embedded.Peer{{Name: "a", URL: "http://127.0.0.1:1"}}},
		"quota":      {DataDir: dir, Quota: -1},
		"password":   {DataDir: dir, Name: "a", Cluster: []embedded.Peer{{Name: "a", URL: "http://u:sesame@127.0.0.1:1"}}},
	} {
		e, err := embedded.Start(t.Context(), cfg)
		if err == nil {
			_ = e.Close()
		}
		if bad, ok := errors.AsType[*backend.InvalidError](err); !ok || bad.Field == "" || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 1 {
		t.Errorf("made, and then refused: %v, %v", left, err)
	}
}

// client returns a backend on processes.
func client(t *testing.T, ps ...*process) *etcdlock.Backend {
	t.Helper()
	addrs := make([]string, len(ps))
	for i, p := range ps {
		addrs[i] = p.addr
	}
	b, err := etcdlock.Open(t.Context(), "etcd://"+strings.Join(addrs, ",")+"?min_ttl=1s&timeout=5s", etcdlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func open(t *testing.T, b backend.Backend) backend.SessionID {
	t.Helper()
	id := backend.NewSessionID()
	eventually(t, func(ctx context.Context) error {
		return b.OpenSession(ctx, backend.SessionRequest{ID: id, TTL: 10 * time.Minute})
	})
	return id
}

// eventually repeats a call while the store is unavailable.
func eventually(t *testing.T, f func(context.Context) error) {
	t.Helper()
	if err := leasetest.InsistOn(t, f); err != nil {
		t.Fatal(err)
	}
}

// answered repeats a call that etcd gives up because the disk takes too long.
func answered[T any](t *testing.T, call func(context.Context) (T, error)) (T, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		if v, err := call(ctx); !errors.Is(err, rpctypes.ErrTimeout) || ctx.Err() != nil {
			return v, err
		}
	}
}

func put(t *testing.T, e *embedded.Etcd, key, value string) error {
	t.Helper()
	_, err := answered(t, func(ctx context.Context) (*clientv3.PutResponse, error) { return e.Client().Put(ctx, key, value) })
	return err
}

func compact(t *testing.T, e *embedded.Etcd) error {
	t.Helper()
	_, err := answered(t, func(ctx context.Context) (struct{}, error) { return struct{}{}, e.Compact(ctx) })
	return err
}

func acquire(t *testing.T, b backend.Backend, req backend.AcquireRequest) backend.Grant {
	t.Helper()
	var g backend.Grant
	eventually(t, func(ctx context.Context) error {
		var err error
		g, err = b.Acquire(ctx, req)
		return err
	})
	return g
}

func TestKill(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "one", "", "")
	p.ready()
	b := client(t, p)
	s := open(t, b)
	session := backend.AcquireRequest{Name: "session", Lease: backend.NewLeaseID(), Session: s}
	timed := backend.AcquireRequest{Name: "timed", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}
	first, second := acquire(t, b, session), acquire(t, b, timed)
	waiter := make(chan error, 1)
	go func() {
		_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "session", Lease: backend.NewLeaseID(), Session: s, Wait: true})
		waiter <- err
	}()
	eventually(t, func(ctx context.Context) error {
		info, err := b.Inspect(ctx, "session")
		if err == nil && len(info.Waiters) == 0 {
			err = &backend.UnavailableError{}
		}
		return err
	})
	for range 3 {
		p.Kill()
		p.start()
		p.ready()
		if g := acquire(t, b, session); g.Token != first.Token {
			t.Errorf("token %d after kill -9, was %d", g.Token, first.Token)
		}
		if g := acquire(t, b, timed); g.Token != second.Token || g.Left <= 0 || g.Left > time.Hour {
			t.Errorf("%+v after kill -9, token was %d", g, second.Token)
		}
	}
	eventually(t, func(ctx context.Context) error {
		return b.Release(ctx, backend.ReleaseRequest{Name: "session", Lease: session.Lease, Session: s})
	})
	select {
	case err := <-waiter:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the waiter was forgotten")
	}
	p.Terminate()
}

func TestClusterWithoutOneNode(t *testing.T) {
	t.Parallel()
	var cluster []string
	for i := range 3 {
		cluster = append(cluster, fmt.Sprintf("n%d=http://127.0.0.1:%d", i, testserver.FreePort(t)))
	}
	nodes := make([]*process, 3)
	ca := filepath.Join(testserver.Dir(t), "peers.pem")
	for i := range nodes {
		nodes[i] = startProcess(t, fmt.Sprintf("n%d", i), strings.Join(cluster, ","), ca)
	}
	for _, n := range nodes {
		n.ready()
	}
	b := client(t, nodes...)
	s := open(t, b)
	held := backend.AcquireRequest{Name: "held", Lease: backend.NewLeaseID(), Session: s}
	before := acquire(t, b, held)
	for i, n := range nodes {
		n.Kill()
		if g := acquire(t, b, held); g.Token != before.Token {
			t.Errorf("token %d without node %d, was %d", g.Token, i, before.Token)
		}
		if g := acquire(t, b, backend.AcquireRequest{Name: fmt.Sprint("new", i), Lease: backend.NewLeaseID(), Session: s}); g.Token <= before.Token {
			t.Errorf("token %d without node %d, after %d", g.Token, i, before.Token)
		}
		n.start()
		n.ready()
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	e := start(t, embedded.Config{DataDir: testserver.Dir(t), Quota: 16 << 20})
	b, err := etcdlock.New(e.Client(), etcdlock.Config{MinTTL: embedded.MinTTL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	s := open(t, b)
	held := backend.AcquireRequest{Name: "held", Lease: backend.NewLeaseID(), Session: s}
	acquire(t, b, held)
	blob := strings.Repeat("x", 1<<20)
	for err = nil; !errors.Is(err, rpctypes.ErrNoSpace); {
		_, err = e.Client().Put(t.Context(), "blob", blob)
	}
	// Where the disk takes too long, the outcome of a request is unknown, and it is repeated.
	leasetest.Succeeds(t, func() error {
		_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "new", Lease: backend.NewLeaseID(), Session: s})
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || away.MayHold {
			return fmt.Errorf("Acquire over the quota: %w; it has to say that it did not work", err)
		}
		return nil
	})
	var renewed backend.RenewResult
	eventually(t, func(ctx context.Context) error {
		var err error
		renewed, err = b.Renew(ctx, backend.RenewRequest{Session: s})
		return err
	})
	if renewed.SessionLost || len(renewed.Lost) > 0 {
		t.Errorf("Renew over the quota: %+v", renewed)
	}
	if s := e.Status(t.Context()); len(s.Alarms) != 1 || s.Alarms[0] != (embedded.Alarm{Node: embedded.DefaultName, Kind: embedded.AlarmNoSpace}) || s.Size < s.Quota-2*int64(len(blob)) {
		t.Errorf("over the quota: %+v", s)
	}
	if err := compact(t, e); err != nil {
		t.Fatal(err)
	}
	if s := e.Status(t.Context()); len(s.Alarms) != 0 || s.Size > s.Quota/2 || s.InUse > s.Size {
		t.Errorf("with room again: %+v", s)
	}
	acquire(t, b, backend.AcquireRequest{Name: "new", Lease: backend.NewLeaseID(), Session: s})
	_, err = answered(t, func(ctx context.Context) (*clientv3.DeleteResponse, error) {
		return e.Client().Delete(ctx, "blob", clientv3.WithPrefix())
	})
	if err != nil {
		t.Error(err)
	}
	asked := false
	eventually(t, func(ctx context.Context) error {
		err := b.Release(ctx, backend.ReleaseRequest{Name: held.Name, Lease: held.Lease, Session: s})
		if asked && errors.Is(err, backend.ErrLost) { // an earlier request worked
			err = nil
		}
		asked = true
		return err
	})
}

// A node whose data reached its quota restarts. Data that is in use is not compacted away: the alarm stays, and
// the refusal says why. A greater quota makes room.
func TestCompactRefuses(t *testing.T) {
	t.Parallel()
	dir := testserver.Dir(t)
	e := start(t, embedded.Config{DataDir: dir})
	blob := strings.Repeat("x", 1<<20)
	for i := range 20 {
		if err := put(t, e, fmt.Sprint("blob", i), blob); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = start(t, embedded.Config{DataDir: dir, Quota: 16 << 20})
	if err := put(t, e, "blob", blob); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatalf("Put over the quota: %v", err)
	}
	if err := compact(t, e); !errors.Is(err, embedded.ErrRefused) {
		t.Errorf("Compact: %v", err)
	}
	if s := e.Status(t.Context()); len(s.Alarms) != 1 {
		t.Errorf("%+v", s)
	}
	if err := e.Close(); err != nil { // with the alarm
		t.Fatal(err)
	}
	e = start(t, embedded.Config{DataDir: dir, Quota: 64 << 20})
	if err := compact(t, e); err != nil {
		t.Error(err)
	}
	if s := e.Status(t.Context()); len(s.Alarms) != 0 {
		t.Errorf("%+v", s)
	}
}

// A node that is restarted repeatedly keeps a bounded part of its history, and the latest changes.
func TestStartForgets(t *testing.T) {
	t.Parallel()
	const changes, kept = 10_500, 10_000
	dir := testserver.Dir(t)
	e := start(t, embedded.Config{DataDir: dir})
	var writers sync.WaitGroup
	for range 50 {
		writers.Go(func() {
			for range changes / 50 {
				if err := put(t, e, "k", "v"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	got, err := answered(t, func(ctx context.Context) (*clientv3.GetResponse, error) { return e.Client().Get(ctx, "k") })
	if err := errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	last := got.Header.Revision
	e = start(t, embedded.Config{DataDir: dir})
	for _, c := range []struct {
		revision int64
		there    bool
	}{{2, false}, {last - kept - 1, false}, {last - kept + 100, true}} {
		_, err := answered(t, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return e.Client().Get(ctx, "k", clientv3.WithRev(c.revision))
		})
		if c.there && err != nil || !c.there && !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("revision %d of %d: %v", c.revision, last, err)
		}
	}
}

// A folder that belongs to another program is left unchanged.
func TestForeignFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "of-another-program"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := embedded.Start(t.Context(), embedded.Config{DataDir: dir})
	if err == nil {
		t.Error("it was taken as the data folder", e.Close())
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("there is %v, %v", entries, err)
	}
}
