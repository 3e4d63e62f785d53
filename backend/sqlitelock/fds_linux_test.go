package sqlitelock_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestNothingIsInherited checks the open descriptors: a child process that inherited the
// turnstile would keep the turn.
func TestNothingIsInherited(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	mustOpen(t, path)
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err != nil || !strings.HasPrefix(target, path) {
			continue
		}
		seen++
		info, err := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
		if err != nil {
			t.Fatal(err)
		}
		_, flags, _ := strings.Cut(string(info), "flags:\t")
		flags, _, _ = strings.Cut(flags, "\n")
		n, err := strconv.ParseInt(flags, 8, 64)
		if err != nil || n&syscall.O_CLOEXEC == 0 {
			t.Errorf("%s is inherited by children (%s, %v)", target, flags, err)
		}
	}
	if seen < 5 {
		t.Errorf("only %d descriptors were found", seen)
	}
}
