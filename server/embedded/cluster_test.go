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

	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/server/embedded"
)

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
