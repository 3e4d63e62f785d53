//go:build linux

package sqlitelock_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// member is a user of the group that shares a lock file.
type member struct {
	uid   uint32
	umask int
}

const sharingGroup = 61000

// TestSeveralUsers has root and three users with different umasks share a file in a directory with the setgid
// bit, whoever made the file. They exclude each other, and a hand-over is pushed from one to another. A user
// of no such group is refused.
func TestSeveralUsers(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Fatal("a process of another user takes root")
	}
	dir := testserver.Dir(t)
	exe := runnable(t, dir)
	folder := filepath.Join(dir, "locks")
	err := os.Mkdir(folder, 0o700)
	if err == nil {
		err = os.Chown(folder, 0, sharingGroup)
	}
	if err == nil {
		err = os.Chmod(folder, 0o770|os.ModeSetgid)
	}
	if err != nil {
		t.Fatal(err)
	}
	as := func(m member, groups ...uint32) func(*exec.Cmd) {
		return func(cmd *exec.Cmd) {
			cmd.Path, cmd.Dir = exe, "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: m.uid, Gid: m.uid, Groups: groups}}
		}
	}
	members := []member{{0, 0o077}, {61001, 0o077}, {61002, 0o022}, {61003, 0o002}}
	for _, maker := range members {
		t.Run(strconv.FormatUint(uint64(maker.uid), 10), func(t *testing.T) {
			t.Parallel()
			j := job{Do: "wait", Path: filepath.Join(folder, fmt.Sprint(maker.uid, ".db")), Lock: "x", TTL: 5 * time.Minute, Umask: maker.umask}
			made := startAs(t, j, as(maker, sharingGroup))
			made.expect("ready")
			var others []*process
			for _, m := range members {
				j.Umask = m.umask
				others = append(others, startAs(t, j, as(m, sharingGroup)))
			}
			for _, p := range others {
				p.expect("ready")
			}
			pushed(t, j.Path, append(others, made))
			countTogether(t, j, members, func(m member) func(*exec.Cmd) { return as(m, sharingGroup) })
			stranger := startAs(t, j, as(member{uid: 61009}))
			if err := stranger.end(); err == nil || !strings.Contains(err.Error(), "permission denied") {
				t.Errorf("a user of another group: %v", err)
			}
			for _, p := range append(others, made) {
				if err := p.end(); err != nil {
					t.Error(err)
				}
			}
			leftOver(t, j.Path)
			for _, path := range []string{j.Path, j.Path + "-turn"} {
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
					t.Errorf("%s: %v, %v", path, info.Mode(), err)
				}
			}
		})
	}
}

// runnable returns the path of this program, for other users.
func runnable(t *testing.T, dir string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(exe)
	path := filepath.Join(dir, "test")
	if err == nil {
		err = os.WriteFile(path, data, 0o700)
	}
	for _, name := range []string{dir, path} {
		if err == nil {
			err = os.Chmod(name, 0o755)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// pushed has the processes queue up for a lock of this one, and pass it on, until each of them was notified
// by the one before it: a process that is not notified polls.
func pushed(t *testing.T, path string, ps []*process) {
	t.Helper()
	b := mustOpen(t, path)
	sess := leasetest.Session(t, b, leasetest.Long, nil)
	leasetest.Eventually(t, "every process is notified", func() bool {
		req := leasetest.Ask("x", sess)
		leasetest.Take(t, b, req)
		for _, p := range ps {
			p.tell("wait")
		}
		leasetest.InQueue(t, b, "x", len(ps))
		leasetest.Give(t, b, req)
		all := true
		for _, p := range ps {
			all = strings.HasSuffix(p.expect("had"), " false") && all
		}
		return all
	})
	closed(t, b)
}

// countTogether has a process of each member change one file under a lock.
func countTogether(t *testing.T, j job, members []member, as func(member) func(*exec.Cmd)) {
	t.Helper()
	j.Do, j.Lock, j.Count = "count", "counter", 10
	j.Data = j.Path + ".n"
	err := os.WriteFile(j.Data, []byte("0 0"), 0o600)
	if err == nil {
		err = os.Chmod(j.Data, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	var jobs []job
	for _, m := range members {
		j.Umask = m.umask
		jobs = append(jobs, j)
	}
	n := 0
	count(t, jobs, func(t *testing.T, j job) *process {
		t.Helper()
		n++
		return startAs(t, j, as(members[n-1]))
	})
	if err := os.Remove(j.Data); err != nil {
		t.Error(err)
	}
}
