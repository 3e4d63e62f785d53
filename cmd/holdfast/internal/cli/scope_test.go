//go:build linux

package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The default file is one for each user, and for each value of $XDG_STATE_HOME: two users run the same name at
// the same time. On a terminal run and ls say so; elsewhere they print nothing more. Without a home
// directory there is no default.
func TestScopeOfTheDefaultFile(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Fatal("a process of another user takes root")
	}
	const users, first = 2, 61011
	dir := testserver.Dir(t)
	command, err := os.ReadFile(binary)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "holdfast"), command, 0o700)
	}
	for _, name := range []string{dir, filepath.Join(dir, "holdfast")} {
		if err == nil {
			err = os.Chmod(name, 0o755)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	file := "/.local/state/holdfast/locks.db"
	var homes []string
	for uid := first; uid < first+users; uid++ {
		home := filepath.Join(dir, strconv.Itoa(uid))
		err := os.Mkdir(home, 0o700)
		if err == nil {
			err = os.Chown(home, uid, uid)
		}
		if err != nil {
			t.Fatal(err)
		}
		homes = append(homes, home)
		x := openTerminal(t, "")
		x.types(fmt.Sprintf("cd /; exec setpriv --reuid=%d --regid=%d --clear-groups env HOME=%s bash --norc --noprofile -i\n", uid, uid, home))
		x.types(fmt.Sprintf("PATH=%s:$PATH; holdfast run n -- sh -c 'echo in\"\"side; holdfast ls; read x'\n", dir))
		scope := fmt.Sprintf("holdfast: locks of user %d on this host, %s%s", uid, home, file)
		x.sees(scope)
		x.sees("inside") // all of them are
		x.sees(scope)
		x.sees("exclusive")
		t.Cleanup(func() { x.types("\n") })
	}
	as := func(env string, args ...string) (string, string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "holdfast"), args...)
		cmd.Dir, cmd.Env = "/", []string{env}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: first, Gid: first}}
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		return stdout.String(), stderr.String()
	}
	if out, errs := as("HOME="+homes[0], "ls"); !strings.Contains(out, "n ") || errs != "" {
		t.Errorf("ls of the first user: %q, %q", out, errs)
	}
	if out, errs := as("XDG_STATE_HOME="+homes[0], "ls"); out != "" || !strings.Contains(errs, "no lock is held") {
		t.Errorf("ls with another XDG_STATE_HOME: %q, %q", out, errs)
	}
	if _, errs := as("X=", "ls"); !strings.Contains(errs, "--backend") {
		t.Errorf("ls without a home directory: %q", errs)
	}
}
