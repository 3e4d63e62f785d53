//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package filelock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/examples/filelock"
)

// job is the environment variable that makes the test binary a process of its own: what it does, the
// directory, and the lease.
const job = "FILELOCK_TEST_JOB"

const (
	patience = time.Minute      // of a test, for anything that a busy machine delays
	childTTL = 15 * time.Second // longer than the disk takes
)

func TestMain(m *testing.M) {
	if text := os.Getenv(job); text != "" {
		do, rest, _ := strings.Cut(text, " ")
		lease, dir, _ := strings.Cut(rest, " ")
		if err := child(do, dir, backend.LeaseID(lease)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is the process.
func child(do, dir string, lease backend.LeaseID) error {
	b, err := filelock.Open(dir)
	if err != nil {
		return err
	}
	verb, at, _ := strings.Cut(do, "-")
	switch verb {
	case "count":
		return count(b, dir)
	case "full": // no file may grow beyond 64 bytes
		signal.Ignore(unix.SIGXFSZ)
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
			return err
		}
	case "kill", "stop":
		b.OnStep(func(step string) {
			if step == at {
				goesOn := make(chan os.Signal, 1) // a signal reaches this thread only some time after it was sent
				signal.Notify(goesOn, syscall.SIGCONT)
				s := map[string]syscall.Signal{"kill": syscall.SIGKILL, "stop": syscall.SIGSTOP}
				_ = syscall.Kill(os.Getpid(), s[verb])
				<-goesOn
			}
		})
	}
	g, err := b.Acquire(context.Background(), request("a", lease, childTTL))
	fmt.Println(g.Token, err)
	return nil
}

func request(name string, lease backend.LeaseID, ttl time.Duration) backend.AcquireRequest {
	return backend.AcquireRequest{Name: name, Lease: lease, Timed: true, TTL: ttl}
}

// spawn starts a child.
func spawn(t *testing.T, do, dir string, lease backend.LeaseID) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", job, do, lease, dir))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(out)
}

// TestKilledAtEachStep kills a process at each step of an acquire, in a store that knows the name and in
// one that does not. Before the rename nothing has happened. After it the lease is held until its end.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"locked", "decided", "written", "renamed", "synced"} {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,known=%t", step, known), func(t *testing.T) {
				t.Parallel()
				dir := create(t)
				b := open(t, dir)
				t.Cleanup(func() { b.Close() })
				var last uint64
				if known {
					last = take(t, b, "a", time.Minute).give(t)
				}
				victim := backend.NewLeaseID()
				cmd, _ := spawn(t, "kill-"+step, dir, victim)
				if err := cmd.Wait(); err == nil || cmd.ProcessState.Success() {
					t.Fatalf("the child was not killed: %v", err)
				}
				r := request("a", backend.NewLeaseID(), time.Minute)
				synced := false
				b.OnStep(func(step string) { synced = synced || step == "synced" })
				if step == "renamed" || step == "synced" {
					if info, err := b.Inspect(t.Context(), "a"); err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != victim || uint64(info.Token) <= last {
						t.Fatalf("Inspect returned %+v, %v; %s holds the lock", info, err, victim)
					} else {
						last = uint64(info.Token)
					}
					if !synced {
						t.Error("Inspect answered before the record was synced")
					}
				}
				r.Wait = true
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if g, err := b.Acquire(ctx, r); err != nil || uint64(g.Token) <= last {
					t.Errorf("Acquire returned %+v, %v after token %d", g, err, last)
				}
			})
		}
	}
}

// TestStoppedForLong stops a process at each step for longer than its TTL. It reports no grant after that,
// and no other process is granted the lock while it could.
func TestStoppedForLong(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"locked", "decided", "written", "renamed", "synced"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			dir := create(t)
			b := open(t, dir)
			defer b.Close()
			cmd, out := spawn(t, "stop-"+step, dir, backend.NewLeaseID())
			var status syscall.WaitStatus
			err := error(syscall.EINTR)
			for errors.Is(err, syscall.EINTR) {
				_, err = syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
			}
			if err != nil || !status.Stopped() {
				t.Fatalf("the child did not stop: %v, %v", status, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), childTTL+time.Second/2)
			defer cancel()
			r := request("a", backend.NewLeaseID(), time.Minute)
			r.Wait = true
			if g, err := b.Acquire(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Acquire returned %+v, %v while the child had the flock", g, err)
			}
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			told, err := out.ReadString('\n')
			if waited := cmd.Wait(); waited != nil || err != nil {
				t.Fatal(waited, err)
			}
			if lost := strings.Contains(told, backend.ErrLost.Error()); !lost && step != "locked" {
				t.Errorf("the child was stopped for longer than its TTL, and reported %q", told)
			} else if lost && step == "locked" { // it reads the clock after the flock
				t.Errorf("the child had its whole TTL, and reported %q", told)
			}
		})
	}
}

// count adds one to a number in a file, again and again, under the lock. It writes each token down.
func count(b *filelock.Backend, dir string) error {
	file := filepath.Join(filepath.Dir(dir), "number")
	for range rounds {
		r := request("a", backend.NewLeaseID(), time.Minute)
		r.Wait = true
		g, err := b.Acquire(context.Background(), r)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		n, _, _ := strings.Cut(string(text), " ")
		number, err := strconv.Atoi(n)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, fmt.Appendf(nil, "%d %s %d", number+1, strings.TrimPrefix(string(text), n), g.Token), 0o600); err != nil {
			return err
		}
		if err := b.Release(context.Background(), backend.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			return err
		}
	}
	return nil
}

const processes, rounds = 3, 30

// TestProcessesSideBySide has processes count together. They exclude each other, and tokens rise.
func TestProcessesSideBySide(t *testing.T) {
	t.Parallel()
	dir := create(t)
	file := filepath.Join(filepath.Dir(dir), "number")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all []*exec.Cmd
	for range processes {
		cmd, _ := spawn(t, "count", dir, "-")
		all = append(all, cmd)
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(text))
	if f[0] != strconv.Itoa(processes*rounds) || len(f) != 1+processes*rounds {
		t.Fatalf("%d processes counted %d times each: %s", processes, rounds, text)
	}
	for i := 2; i < len(f); i++ {
		if f[i] <= f[i-1] { // they have the same number of digits
			t.Errorf("token %s after token %s", f[i], f[i-1])
		}
	}
}

// TestFullDisk has a process that can write only the beginning of a file. It reports that, and the record
// that is in force stays whole.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := create(t)
	b := open(t, dir)
	defer b.Close()
	last := take(t, b, "a", time.Minute).give(t)
	cmd, out := spawn(t, "full", dir, backend.NewLeaseID())
	told, err := out.ReadString('\n')
	if waited := cmd.Wait(); waited != nil || err != nil {
		t.Fatal(waited, err)
	}
	if !strings.Contains(told, backend.ErrUnavailable.Error()) || strings.Contains(told, "may have worked") {
		t.Errorf("the child reported %q", told)
	}
	if next := take(t, b, "a", time.Minute); next.token <= last {
		t.Errorf("token %d after token %d", next.token, last)
	}
}
