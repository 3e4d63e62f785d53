package certs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-io/holdfast/internal/certs"
)

// Certificates of a folder are for one end of a connection only, except those of nodes, and those
// that are added later are of the same authority.
func TestFolder(t *testing.T) {
	t.Parallel()
	dir := certs.Folder(filepath.Join(t.TempDir(), "new", "certs"))
	hosts := []string{"localhost"}
	err := dir.Create("test", map[string][]byte{"other": []byte("text")},
		certs.Wanted{File: "s", Use: certs.Server, Hosts: hosts}, certs.Wanted{File: "c", Use: certs.Client, Hosts: hosts})
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Issue(certs.Wanted{File: "n", Use: certs.Node, Hosts: hosts}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		server, client string
		good           bool
	}{{"s", "c", true}, {"n", "n", true}, {"s", "n", true}, {"c", "c", false}, {"s", "s", false}} {
		err := handshake(t, config(t, dir.Cert(c.server), dir.Key(c.server), dir.CA()), config(t, dir.Cert(c.client), dir.Key(c.client), dir.CA()))
		if (err == nil) != c.good {
			t.Errorf("%s and %s: %v", c.server, c.client, err)
		}
	}
	// Clients trust another authority, too, whose certificate is in the same file.
	other := certs.Folder(t.TempDir())
	if err := other.Create("other", nil); err != nil {
		t.Fatal(err)
	}
	ours, err := os.ReadFile(dir.CA())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(other.CA())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.CA(), append(theirs, ours...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dir.Issue(certs.Wanted{File: "later", Use: certs.Node, Hosts: hosts}); err != nil {
		t.Fatal(err)
	}
	if err := handshake(t, config(t, dir.Cert("later"), dir.Key("later"), dir.CA()), config(t, dir.Cert("n"), dir.Key("n"), dir.CA())); err != nil {
		t.Errorf("with two authorities: %v", err)
	}
	before, err := os.ReadDir(string(dir))
	if err != nil || len(before) != 11 {
		t.Errorf("%v, %v", before, err)
	}
	if err := dir.Issue(certs.Wanted{File: "new", Use: certs.Client}, certs.Wanted{File: "s", Use: certs.Client}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file that exists: %v", err)
	}
	if after, err := os.ReadDir(string(dir)); err != nil || len(after) != len(before) {
		t.Errorf("a refusal has written: %v, %v", after, err)
	}
}

// No text makes Parse panic, and an authority that it accepts signs.
func FuzzParse(f *testing.F) {
	dir := certs.Folder(f.TempDir())
	if err := dir.Create("test", nil); err != nil {
		f.Fatal(err)
	}
	cert, err := os.ReadFile(dir.CA())
	key, err2 := os.ReadFile(dir.Key("ca"))
	if err := errors.Join(err, err2); err != nil {
		f.Fatal(err)
	}
	f.Add(append(cert, key...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := certs.Parse(text, certs.Life)
		if err != nil {
			return
		}
		if _, err := a.Issue(certs.Client, "x", "x"); err != nil {
			t.Error(err)
		}
	})
}
