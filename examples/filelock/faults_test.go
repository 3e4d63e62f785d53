//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package filelock_test

import (
	"context"
	"errors"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/examples/filelock"
)

// held is a lease that take acquired.
type held struct {
	b     *filelock.Backend
	req   backend.AcquireRequest
	token uint64
}

// take acquires a lock that must be free.
func take(t *testing.T, b *filelock.Backend, name string, ttl time.Duration) held {
	t.Helper()
	r := request(name, backend.NewLeaseID(), ttl)
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return held{b, r, uint64(g.Token)}
}

// give releases the lease and returns its token.
func (h held) give(t *testing.T) uint64 {
	t.Helper()
	if err := h.b.Release(t.Context(), backend.ReleaseRequest{Name: h.req.Name, Lease: h.req.Lease}); err != nil {
		t.Error(err)
	}
	return h.token
}

// TestDamagedRecord damages the record of a held lock. Each call fails, and none grants the lock.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	dir := create(t)
	b := open(t, dir)
	defer b.Close()
	h := take(t, b, "a", time.Minute)
	other := take(t, b, "b", time.Minute)
	file := filepath.Join(dir, filelock.RecordOf("a"))
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(filepath.Join(dir, filelock.RecordOf("b")))
	if err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string][]byte{
		"empty": nil, "cut": good[:len(good)-1], "of another name": foreign, "longer": append(slices.Clone(good), '\n'),
		"one bit": []byte(strings.Replace(string(good), `"end":`, `"End":`, 1)),
		"zeros":   make([]byte, len(good)), "of a later version": []byte(strings.Replace(string(good), " 1 ", " 2 ", 1)),
	} {
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		check := func(call string, err error) {
			if !errors.Is(err, filelock.ErrCorrupt) || !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("%s with a record that is %s: %v", call, what, err)
			}
		}
		for _, lease := range []backend.LeaseID{h.req.Lease, backend.NewLeaseID()} {
			r := request("a", lease, time.Minute)
			_, err := b.Acquire(t.Context(), r)
			check("Acquire", err)
			r.Wait = true
			_, err = b.Acquire(t.Context(), r)
			check("Acquire with Wait", err)
		}
		check("Release", b.Release(t.Context(), backend.ReleaseRequest{Name: "a", Lease: h.req.Lease}))
		check("Abandon", b.Release(t.Context(), backend.ReleaseRequest{Name: "a", Lease: h.req.Lease, Abandon: true}))
		res, err := b.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{
			{Name: "a", Lease: h.req.Lease, TTL: time.Minute}, {Name: "b", Lease: other.req.Lease, TTL: time.Minute},
		}})
		if err != nil || res.Leases[1].Err != nil {
			t.Fatalf("Renew returned %+v, %v", res, err)
		}
		check("Renew", res.Leases[0].Err)
		_, err = b.Break(t.Context(), backend.BreakRequest{Name: "a"})
		check("Break", err)
		_, err = b.Inspect(t.Context(), "a")
		check("Inspect", err)
		_, err = b.List(t.Context(), backend.ListRequest{})
		check("List", err)
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	h.give(t)
}

// TestWriteFails: a record that cannot be written changes nothing.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	dir := create(t)
	b := open(t, dir)
	defer b.Close()
	h := take(t, b, "a", time.Minute)
	obstacle := filepath.Join(dir, filelock.RecordOf("a")+".new")
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	var u *backend.UnavailableError
	if err := b.Release(t.Context(), backend.ReleaseRequest{Name: "a", Lease: h.req.Lease}); !errors.As(err, &u) || u.MayHold {
		t.Errorf("Release returned %v", err)
	}
	if _, err := b.Acquire(t.Context(), request("a", backend.NewLeaseID(), time.Minute)); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("Acquire returned %v; the lock is held", err)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	h.give(t)
}

// TestAnotherBoot: after a reboot a lease has its TTL from the first call on, however little was left, and
// an abandoned lease stays abandoned.
func TestAnotherBoot(t *testing.T) {
	t.Parallel()
	dir := create(t)
	before, after := open(t, dir), open(t, dir)
	defer before.Close()
	defer after.Close()
	const ttl = 20 * time.Second // longer than the disk takes
	h := take(t, before, "a", ttl)
	gone := request("a", backend.NewLeaseID(), ttl)
	if err := before.Release(t.Context(), backend.ReleaseRequest{Name: "a", Lease: gone.Lease, Abandon: true}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(ttl / 2)
	after.Reboot()
	if page, err := after.List(t.Context(), backend.ListRequest{}); err != nil || len(page.Locks) != 1 {
		t.Errorf("List returned %+v, %v", page, err)
	}
	from := time.Now()
	info, err := after.Inspect(t.Context(), "a")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != h.req.Lease || info.Holders[0].Left > ttl {
		t.Fatalf("Inspect returned %+v, %v", info, err)
	}
	r := request("a", backend.NewLeaseID(), ttl)
	r.Wait = true
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	g, err := after.Acquire(ctx, r)
	if took := time.Since(from); err != nil || uint64(g.Token) <= h.token || took < ttl/2 {
		t.Errorf("Acquire returned %+v, %v after %s; the TTL is %s", g, err, took, ttl)
	}
	if _, err := after.Acquire(ctx, gone); !errors.Is(err, backend.ErrLost) {
		t.Errorf("Acquire of an abandoned lease returned %v", err)
	}
}

// TestLostIsFinalAfterReboot: a lease whose loss was reported is not there after a reboot.
func TestLostIsFinalAfterReboot(t *testing.T) {
	t.Parallel()
	dir := create(t)
	before, after := open(t, dir), open(t, dir)
	defer before.Close()
	defer after.Close()
	const ttl = 15 * time.Second // longer than the disk takes
	h := take(t, before, "a", ttl)
	again := backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: "a", Lease: h.req.Lease, TTL: time.Minute}}}
	time.Sleep(ttl + time.Second)
	after.Reboot()
	for _, b := range []*filelock.Backend{before, after} {
		if res, err := b.Renew(t.Context(), again); err != nil || !errors.Is(res.Leases[0].Err, backend.ErrLost) {
			t.Errorf("Renew of an expired lease returned %+v, %v", res, err)
		}
	}
}

// TestReplacedDirectory replaces the directory, and a folder in it, under an open value.
func TestReplacedDirectory(t *testing.T) {
	t.Parallel()
	dir := create(t)
	b := open(t, dir)
	defer b.Close()
	last := take(t, b, "a", time.Minute).token
	refused := func(when string) {
		t.Helper()
		for _, name := range []string{"a", "new"} {
			if g, err := b.Acquire(t.Context(), request(name, backend.NewLeaseID(), time.Minute)); !errors.Is(err, filelock.ErrReplaced) {
				t.Errorf("Acquire of %q returned %+v, %v %s", name, g, err, when)
			}
		}
		if _, err := b.List(t.Context(), backend.ListRequest{}); !errors.Is(err, filelock.ErrReplaced) {
			t.Errorf("List returned %v %s", err, when)
		}
	}
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	refused("after the directory was moved")
	if _, err := filelock.Open(dir); !errors.Is(err, filelock.ErrNoStore) {
		t.Errorf("Open of a store that was lost returned %v", err)
	}
	if err := filelock.Create(dir); err != nil {
		t.Fatal(err)
	}
	refused("after another store was created there")
	other := open(t, dir)
	defer other.Close()
	if next := take(t, other, "a", time.Minute).token; next <= last {
		t.Errorf("the new store issued token %d after token %d", next, last)
	}
	// A folder that is replaced while a call has its flock: the call does not report success.
	for _, at := range []string{"locked", "decided", "written", "renamed", "synced"} {
		other.OnStep(func(step string) {
			if step != at {
				return
			}
			if err := os.RemoveAll(filepath.Dir(filepath.Join(dir, filelock.RecordOf("b")))); err != nil {
				t.Error(err)
			}
		})
		if g, err := other.Acquire(t.Context(), request("b", backend.NewLeaseID(), time.Minute)); !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("Acquire returned %+v, %v from a folder that was removed after the step %q", g, err, at)
		}
	}
}

// TestCreateAndOpen: bad paths and directories are typed errors.
func TestCreateAndOpen(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", "a\x00b"} {
		if err := filelock.Create(dir); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("Create(%q) returned %v", dir, err)
		}
		if _, err := filelock.Open(dir); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("Open(%q) returned %v", dir, err)
		}
	}
	dir := create(t)
	if err := filelock.Create(dir); !errors.Is(err, os.ErrExist) || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Create of a store that exists returned %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "holdfast-filelock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{dir, t.TempDir(), filepath.Join(dir, "none")} {
		if _, err := filelock.Open(bad); !errors.Is(err, filelock.ErrNoStore) {
			t.Errorf("Open(%q) returned %v", bad, err)
		}
	}
}

// TestNamesStayInside: every entry of the directory is the marker or a folder that is named by a digest.
func TestNamesStayInside(t *testing.T) {
	t.Parallel()
	dir := create(t)
	b := open(t, dir)
	defer b.Close()
	for _, name := range []string{"../a", "/etc/a", "a/../../b", "a\x00", strings.Repeat("x", 513)} {
		if _, err := b.Acquire(t.Context(), request(name, backend.NewLeaseID(), time.Minute)); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("Acquire of %q returned %v", name, err)
		}
	}
	for _, name := range []string{"a/b", "...", "a\\..\\b", "CON", strings.Repeat("é", 256)} {
		take(t, b, name, time.Minute)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 6 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for _, e := range entries {
		if e.IsDir() != (len(e.Name()) == 64) {
			t.Errorf("an entry %q", e.Name())
		}
	}
}

// TestImports: the module uses the public packages alone. The compiler would let it use the internal ones,
// because its path is below that of the module that has them.
func TestImports(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if strings.Contains(i.Path.Value, "/internal/") {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
	}
}
