package reload_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/reload"
)

// A change of the contents is found, once, when the files have stayed the same between two calls, also when a link is exchanged and when the file vanishes.
func TestChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to string) {
		if err := os.Symlink(at(to), at("next")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at("next"), at("link")); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "1")
	put("b", "2")
	link("a")
	f := reload.New(at("a"), at("link"))
	steps := []struct {
		what string
		do   func()
		want bool
	}{
		{"nothing", func() {}, false},
		{"written with the same text", func() { put("a", "1") }, false},
		{"written with another text of the same length", func() { put("a", "3") }, true},
		{"nothing after a change", func() {}, false},
		{"the link leads elsewhere", func() { link("b") }, true},
		{"the file vanishes", func() { _ = os.Remove(at("a")) }, true},
		{"it is still gone", func() {}, false},
		{"it comes back", func() { put("a", "3") }, true},
		{"it was empty for a moment", func() { put("a", ""); f.Changed(); put("a", "3"); f.Changed() }, false},
	}
	for _, s := range steps {
		s.do()
		if f.Changed() {
			t.Errorf("%s: found while it may still be written", s.what)
		}
		if got := f.Changed(); got != s.want {
			t.Errorf("%s: %v, want %v", s.what, got, s.want)
		}
	}
}

// Run reports each change, and ends with its context.
func TestRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	f := reload.New(path)
	changed, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(t.Context(), time.Millisecond, func() { changed <- struct{}{} })
	}()
	for _, text := range []string{"1", "2"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		<-changed
		select {
		case <-changed: // the file was empty for a moment
		case <-time.After(20 * time.Millisecond):
		}
	}
	t.Cleanup(func() { <-ended })
}
