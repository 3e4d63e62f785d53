package embedded_test

import (
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/server/embedded"
)

// What etcd serves to its peers obeys every client: for a single node it is a socket in a
// folder that no other user may enter, and never one without a folder.
func TestNobodyReachesTheNode(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{
		"short": testserver.Dir(t), "too long for a socket": filepath.Join(testserver.Dir(t), strings.Repeat("long/", 30)),
	} {
		start(t, embedded.Config{DataDir: dir})
		listening, err := os.ReadFile("/proc/net/unix")
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for socket := range socketsOf(t, listening) {
			if !filepath.IsAbs(socket) {
				t.Errorf("%s: %s listens, and every local user can reach it", name, socket)
				continue
			}
			found++
			info, err := os.Stat(filepath.Dir(socket))
			if errors.Is(err, fs.ErrNotExist) {
				continue // of another test, and closed by now
			}
			if err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: the folder of %s: %v, %v, want mode 0700", name, socket, info, err)
			}
		}
		if found == 0 {
			t.Errorf("%s: there is no socket", name)
		}
	}
}

// socketsOf yields the Unix sockets on which this process listens, from /proc/net/unix.
func socketsOf(t *testing.T, all []byte) iter.Seq[string] {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	ours := make(map[string]bool)
	for _, f := range files {
		to, _ := os.Readlink("/proc/self/fd/" + f.Name())
		ours[to] = true
	}
	return func(yield func(string) bool) {
		for line := range strings.Lines(string(all)) {
			const flags, inode, path, listens = 3, 6, 7, "00010000"
			f := strings.Fields(line)
			if len(f) > path && f[flags] == listens && ours["socket:["+f[inode]+"]"] && !yield(f[path]) {
				return
			}
		}
	}
}
