package embedded_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/server/embedded"
)

// A snapshot becomes a new cluster: the locks in it are held, tokens are above every earlier
// one, and the cluster that it is from does not run beside it.
func TestRestore(t *testing.T) {
	t.Parallel()
	f := formed(t, "a", "b")
	held := f.acquire("a", "held")
	file := filepath.Join(f.dir, "snapshot.db")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.node("b").Snapshot(t.Context(), out), out.Close()); err != nil {
		t.Fatal(err)
	}
	late := f.acquire("a", "late") // not in the snapshot
	if late <= held {
		t.Fatalf("token %d after %d", late, held)
	}
	f.close("a")
	if err := embedded.Restore(f.config("a"), file); !errors.Is(err, embedded.ErrRefused) {
		t.Errorf("restored over data: %v", err)
	}
	f.wipe("a")
	broken := filepath.Join(f.dir, "broken.db")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, data[:len(data)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := embedded.Restore(f.config("a"), broken); err == nil {
		t.Error("half a snapshot was restored")
	}
	if err := embedded.Restore(f.config("a"), file); err != nil {
		t.Fatal(err)
	}
	f.open("a")
	f.refused("a", "only one of them may run") // b is up, in the former cluster
	f.close("b")
	f.open("a")
	f.ready("a")
	if token := f.acquire("a", "held"); token != 0 {
		t.Errorf("held: granted again with token %d", token)
	}
	if token := f.acquire("a", "late"); token <= late {
		t.Errorf("late: token %d, was %d", token, late)
	}
	f.open("b")
	f.refused("b", "only one of them may run")
	f.wipe("b")
	f.open("b")
	f.ready("b")
	if token := f.acquire("b", "held"); token != 0 {
		t.Errorf("held: granted again at b with token %d", token)
	}
}

// Tokens rise also when one snapshot is restored twice.
func TestRestoreTwice(t *testing.T) {
	t.Parallel()
	f := formed(t, "a")
	file := filepath.Join(f.dir, "snapshot.db")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.node("a").Snapshot(t.Context(), out), out.Close()); err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for range 2 {
		f.close("a")
		f.wipe("a")
		if err := embedded.Restore(f.config("a"), file); err != nil {
			t.Fatal(err)
		}
		f.open("a")
		f.ready("a")
		for _, name := range []string{"x", "y", "z"} {
			token := f.acquire("a", name)
			if token <= last {
				t.Errorf("%s: token %d after %d", name, token, last)
			}
			last = token
		}
	}
}

// When the majority is lost for good, one node continues if all others are named.
func TestReclaim(t *testing.T) {
	t.Parallel()
	f := formed(t, "a", "b", "c")
	held := f.acquire("a", "held")
	f.insist("c has it", func(context.Context) error {
		if s := f.node("c").Status(t.Context()); s.Revision < int64(held) {
			return errors.New("not yet")
		}
		return nil
	})
	f.close("a", "b", "c")
	f.wipe("a")
	f.wipe("b")
	for _, lost := range [][]string{nil, {"a"}, {"a", "b", "c"}, {"a", "x"}} {
		if err := embedded.ReclaimAlone(t.Context(), f.config("c"), lost); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("given up %v: %v", lost, err)
		}
	}
	if err := embedded.ReclaimAlone(t.Context(), f.config("a"), []string{"b", "c"}); !errors.Is(err, embedded.ErrRefused) {
		t.Errorf("of nothing: %v", err)
	}
	if err := embedded.ReclaimAlone(t.Context(), f.config("c"), []string{"b", "a"}); err != nil {
		t.Fatal(err)
	}
	f.openAll("a", "b", "c")
	f.ready("a", "b", "c")
	if token := f.acquire("a", "held"); token != 0 {
		t.Errorf("held: granted again with token %d", token)
	}
	if token := f.acquire("b", "new"); token <= held+1000 {
		t.Errorf("new: token %d, and %d was granted before", token, held)
	}
	kept, err := os.ReadDir(f.folder("c"))
	if err != nil {
		t.Fatal(err)
	}
	var before int
	for _, e := range kept {
		if strings.HasPrefix(e.Name(), "etcd.before-") {
			before++
		}
	}
	if before != 1 {
		t.Errorf("what it had is not kept: %v", kept)
	}
}
