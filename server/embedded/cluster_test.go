package embedded_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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

// Nodes with empty folders and a list of each other form nothing, and wait. Init is called on
// one, and the others join it.
func TestFormation(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b", "c")
	f.open("b")
	f.says("b", "no answer from a, c")
	if err := f.node("b").Init(t.Context()); !errors.Is(err, embedded.ErrRefused) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("a cluster is formed while other nodes may have one: %v", err)
	}
	f.openAll("a", "c")
	f.says("a", "b, c wait as well; to form a new cluster")
	f.says("b", "a, c wait as well")
	f.says("c", "a, b wait as well")
	f.init("a")
	f.ready("a", "b", "c")
	if err := f.node("b").Init(t.Context()); !errors.Is(err, embedded.ErrRefused) {
		t.Errorf("a second cluster: %v", err)
	}
	s := f.node("c").Status(t.Context())
	if !s.Ready || s.Majority != 2 || s.Leader == "" || len(s.Members) != 3 || slices.ContainsFunc(s.Members, func(m embedded.MemberStatus) bool { return m.Learner || m.State != "running" }) {
		t.Errorf("Status: %+v", s)
	}
	if token := f.acquire("a", "pay"); token == 0 || f.acquire("c", "pay") != 0 {
		t.Errorf("pay: token %d at a, and c grants it as well", token)
	}
}

// Init is called on two nodes at the same time: never do both form a cluster.
func TestFormedByTwo(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b")
	f.openAll("a", "b")
	f.says("a", "b wait as well")
	f.says("b", "a wait as well")
	formed := 0
	f.insist("form a cluster", func(ctx context.Context) error {
		var both sync.WaitGroup
		var errs [2]error
		for i, name := range []string{"a", "b"} {
			both.Go(func() { errs[i] = f.node(name).Init(ctx) })
		}
		both.Wait()
		for _, err := range errs {
			if err == nil {
				formed++
			} else if !errors.Is(err, embedded.ErrRefused) {
				t.Error(err)
			}
		}
		if formed == 0 {
			return errors.Join(errs[:]...)
		}
		return nil
	})
	if formed != 1 {
		t.Errorf("%d clusters were formed", formed)
	}
	f.ready("a", "b")
	if a, b := f.node("a").Status(t.Context()), f.node("b").Status(t.Context()); a.Cluster != b.Cluster || len(a.Members) != 2 {
		t.Errorf("two clusters: %+v, %+v", a, b)
	}
}

// A node that lost its data is refused by the others. In no order of starts can it form a
// majority with a node that does not remember a grant. That is how a lock was granted twice.
func TestWipedNode(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*fleet){
		"beside the others": func(f *fleet) { f.open("b"); f.open("a"); f.ready("a", "b"); f.open("c") },
		"the old one first": func(f *fleet) { f.open("a"); f.says("a", "1 of 3"); f.open("c") },
		"the wiped first":   func(f *fleet) { f.open("c"); f.says("c", "no answer from a, b"); f.open("a") },
		"at the same time":  func(f *fleet) { f.openAll("a", "c") },
		"all together":      func(f *fleet) { f.openAll("a", "b", "c") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := formed(t, "a", "b", "c")
			f.close("a")
			first := f.acquire("b", "pay") // by b and c; a does not have it
			f.close("b", "c")
			f.wipe("c")
			start(f)
			if f.node("b") == nil {
				f.says("c", "a, which knows c as a member that had data")
				f.says("a", "waiting for a majority: 1 of 3 nodes are running")
				if err := f.node("c").Init(t.Context()); !errors.Is(err, embedded.ErrRefused) {
					t.Errorf("c forms a cluster: %v", err)
				}
				f.open("b")
			}
			f.refused("c", `c has lost its data: "holdfast cluster remove c", then start it again`)
			f.ready("a", "b")
			if token := f.acquire("a", "pay"); token != 0 {
				t.Errorf("granted twice: tokens %d and %d", first, token)
			}
			f.insist("remove c", func(ctx context.Context) error { return f.node("a").Remove(ctx, "c") })
			f.open("c")
			f.ready("c")
			if token := f.acquire("c", "pay"); token != 0 {
				t.Errorf("granted twice: tokens %d and %d", first, token)
			}
		})
	}
}

// A single node grows to three, with nodes with empty folders, which join it.
func TestGrowAndShrink(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b", "c")
	alone := f.config("a")
	alone.Name, alone.Cluster = "", nil
	e, err := embedded.Start(t.Context(), alone)
	if err != nil {
		t.Fatal(err)
	}
	f.nodes["a"] = e
	first := f.acquire("a", "pay")
	f.close("a")
	f.openAll("b", "c", "a")
	f.ready("a", "b", "c")
	if a, b := f.node("a").Status(t.Context()), f.node("b").Status(t.Context()); a.Cluster != b.Cluster || a.Majority != 2 || len(a.Members) != 3 {
		t.Errorf("two clusters: %+v, %+v", a, b)
	}
	if token := f.acquire("c", "pay"); token != 0 {
		t.Errorf("granted twice: tokens %d and %d", first, token)
	}
	for _, name := range []string{"c", "b"} {
		f.insist("remove "+name, func(ctx context.Context) error { return f.node("a").Remove(ctx, name) })
		f.refused(name, name+" was removed from the cluster")
		f.open(name)
		f.refused(name, name+" was removed from the cluster")
	}
	if token := f.acquire("a", "pay"); token != 0 {
		t.Errorf("granted twice: tokens %d and %d", first, token)
	}
	f.insist("a knows that it is alone", func(context.Context) error {
		if n := len(f.node("a").Status(t.Context()).Members); n != 1 {
			return fmt.Errorf("%d members", n)
		}
		data, err := os.ReadFile(filepath.Join(f.folder("a"), "node.json"))
		if err == nil && strings.Contains(string(data), f.list[1].URL[len("http"):]) {
			err = errors.New("its record has b")
		}
		return err
	})
	f.close("a")
	alone.Name = "a"
	if e, err = embedded.Start(t.Context(), alone); err != nil {
		t.Fatal(err)
	}
	f.nodes["a"] = e
	if token := f.acquire("a", "pay"); token != 0 {
		t.Errorf("granted twice: tokens %d and %d", first, token)
	}
}

// A folder that does not match the flags is refused, and so is one that was copied or restored.
func TestOtherFolder(t *testing.T) {
	t.Parallel()
	f := formed(t, "a", "b")
	f.close("a", "b")
	change := func(name string, change func(*embedded.Config)) error {
		cfg := f.config(name)
		change(&cfg)
		e, err := embedded.Open(cfg)
		if err == nil {
			_ = e.Close()
		}
		return err
	}
	elsewhere := slices.Clone(f.list)
	elsewhere[1].URL = fmt.Sprintf("http://127.0.0.1:%d", testserver.FreePort(t))
	for _, c := range []struct {
		what   string
		change func(*embedded.Config)
		says   string
	}{
		{"renamed", func(c *embedded.Config) { c.DataDir = f.folder("b") }, "is the folder of b, and not of a"},
		{"without the list", func(c *embedded.Config) { c.Cluster = nil }, "in a cluster with b: start it with --cluster"},
		{"b is elsewhere", func(c *embedded.Config) { c.Cluster = elsewhere }, "and the cluster has b=https://127.0.0.1"},
		{"copied", func(c *embedded.Config) {
			if err := os.CopyFS(f.folder("copy"), os.DirFS(c.DataDir)); err != nil {
				t.Error(err)
			}
			c.DataDir = f.folder("copy")
		}, "is a copy of the data of a"},
		{"put back", func(c *embedded.Config) {
			wal := filepath.Join(f.folder("b"), "etcd", "member", "wal")
			if err := errors.Join(os.CopyFS(f.folder("wal"), os.DirFS(wal)), os.RemoveAll(wal), os.CopyFS(wal, os.DirFS(f.folder("wal")))); err != nil {
				t.Error(err)
			}
			c.Name, c.DataDir = "b", f.folder("b")
		}, "or was restored from one"},
	} {
		if err := change("a", c.change); !errors.Is(err, embedded.ErrRefused) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", c.what, err, c.says)
		}
	}
	if err := os.RemoveAll(filepath.Join(f.folder("a"), "etcd")); err != nil {
		t.Fatal(err)
	}
	if err := change("a", func(*embedded.Config) {}); !errors.Is(err, embedded.ErrRefused) || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("without its data: %v", err)
	}
}

// The peer port of nodes on the loopback refuses clients without one of their certificates: for
// the members, for raft, for the calls of etcd's clients, and for what nodes ask each other.
func TestStrangersAtThePeerPort(t *testing.T) {
	t.Parallel()
	f := formed(t, "a", "b")
	addr := strings.TrimPrefix(f.list[0].URL, "http://")
	stranger := &tls.Config{InsecureSkipVerify: true}
	for _, scheme := range []string{"http", "https"} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: stranger, DisableKeepAlives: true}}
		for _, path := range []string{"/members", "/version", "/raft", "/raft/probing", "/leases", "/holdfast/node", "/holdfast/join"} {
			res, err := client.Get(scheme + "://" + addr + path) //nolint:noctx // it has no time-out to wait for
			if err != nil {
				continue
			}
			body, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if res.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "HTTP request to an HTTPS server") {
				t.Errorf("%s %s: %d %s", scheme, path, res.StatusCode, body)
			}
		}
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{scheme + "://" + addr}, TLS: stranger})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if _, err := c.Get(ctx, "k"); err == nil {
			t.Errorf("%s: the peer port answers clients of etcd", scheme)
		}
		cancel()
		_ = c.Close()
	}
}

// A copy that no file system can distinguish, such as that of a whole disk: the others know of
// a later start of the member than the copy does, and refuse it, and the copy gets the reason.
func TestOldDisk(t *testing.T) {
	t.Parallel()
	f := formed(t, "a", "b", "c")
	f.acquire("a", "x")
	f.close("c")
	disk := filepath.Join(f.dir, "disk")
	if err := os.CopyFS(disk, os.DirFS(f.folder("c"))); err != nil {
		t.Fatal(err)
	}
	f.open("c")
	f.ready("c")
	f.insist("the others know of the start", func(context.Context) error {
		own := bootOf(t, f.folder("c"), "c")
		for _, name := range []string{"a", "b"} {
			if got := bootOf(t, f.folder(name), "c"); got != own || own == "" {
				return fmt.Errorf("%s knows %q of c, which says %q", name, got, own)
			}
		}
		return nil
	})
	f.close("c")
	f.wipe("c")
	if err := errors.Join(os.CopyFS(f.folder("c"), os.DirFS(disk)), forgetPlaces(f.folder("c"))); err != nil {
		t.Fatal(err)
	}
	f.open("c")
	f.refused("c", "this one is older, or a clone")
	// Also when the others have just been started themselves, and have no majority yet.
	f.close("a", "b")
	f.open("a")
	f.open("c")
	f.refused("c", "this one is older, or a clone")
}

// record is the part of node.json that a test reads.
type record struct {
	Members []struct{ ID, Name string } `json:"members"`
	Boots   map[string]struct {
		Number int
		Mark   string
	} `json:"boots"`
}

// bootOf returns the last start of a member that a folder knows of.
func bootOf(t *testing.T, folder, member string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder, "node.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	for _, m := range r.Members {
		if b, ok := r.Boots[m.ID]; ok && m.Name == member {
			return fmt.Sprint(b)
		}
	}
	return ""
}

// forgetPlaces changes a folder so that it is not recognised as a copy.
func forgetPlaces(folder string) error {
	path := filepath.Join(folder, "node.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var all map[string]any
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	delete(all, "places")
	if data, err = json.Marshal(all); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// The others change a peer URL before the node starts.
func TestMoved(t *testing.T) {
	t.Parallel()
	f := formed(t, "a", "b", "c")
	f.close("c")
	moved := fmt.Sprintf("http://127.0.0.1:%d", testserver.FreePort(t))
	f.list = slices.Clone(f.list)
	f.list[2].URL = moved
	f.open("c")
	f.ready("c")
	f.insist("a knows where c is", func(context.Context) error {
		for _, m := range f.node("a").Status(t.Context()).Members {
			if m.Name == "c" && m.State == "running" && strings.HasSuffix(m.URL, strings.TrimPrefix(moved, "http")) {
				return nil
			}
		}
		return errors.New("it does not")
	})
	f.acquire("c", "x")
}

// A data folder that is a link, or belongs to another user, is refused.
func TestFolderOfOthers(t *testing.T) {
	t.Parallel()
	dir := testserver.Dir(t)
	folder, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	e, err := embedded.Start(t.Context(), embedded.Config{DataDir: folder})
	if err := errors.Join(err, e.Close(), os.Symlink(folder, link)); err != nil {
		t.Fatal(err)
	}
	refused := func(what, dir, says string) {
		t.Helper()
		e, err := embedded.Open(embedded.Config{DataDir: dir})
		if err == nil {
			_ = e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a link", link, "is a symbolic link")
	wal := filepath.Join(folder, "etcd", "member", "wal")
	if err := errors.Join(os.Rename(wal, filepath.Join(dir, "wal")), os.Symlink(filepath.Join(dir, "wal"), wal)); err != nil {
		t.Fatal(err)
	}
	refused("a link within", folder, "is a symbolic link")
	if os.Getuid() != 0 {
		return // only root can create a folder of another user
	}
	other := filepath.Join(dir, "other")
	if err := errors.Join(os.Mkdir(other, 0o700), os.Chown(other, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	refused("of another user", other, "belongs to the user with the ID 65534")
}
