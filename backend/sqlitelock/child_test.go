//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
)

// The tests run this very binary again for each process that they need. Its job is in the
// environment; it communicates with the test in lines.

const childJob = "SQLITELOCK_TEST_JOB"

// job is what a child has to do.
type job struct {
	Do    string
	Path  string // of the lock file
	Lock  string
	Data  string // a file that the lock guards
	TTL   time.Duration
	Count int
	// Alone removes the turnstile, so that every process has another one.
	Alone bool
	Umask int // 0: that of the test
}

// worker is the inside of a child.
type worker struct {
	job
	b    *sqlitelock.Backend
	sess backend.SessionID
	in   *bufio.Scanner
}

func child() int {
	var w worker
	err := json.Unmarshal([]byte(os.Getenv(childJob)), &w.job)
	if err == nil {
		err = w.work()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	return 0
}

func (w *worker) work() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	w.in = bufio.NewScanner(os.Stdin)
	if w.Umask != 0 {
		syscall.Umask(w.Umask)
	}
	if w.Do == "probe" {
		return w.probe()
	}
	var err error
	if w.Alone {
		_ = os.Remove(w.Path + "-turn")
	}
	if w.b, err = sqlitelock.Open(ctx, w.Path, sqlitelock.Config{}); err != nil {
		return err
	}
	w.sess = backend.NewSessionID()
	say("asked %d", time.Now().UnixNano())
	if err := w.b.OpenSession(ctx, backend.SessionRequest{ID: w.sess, TTL: w.TTL}); err != nil {
		return err
	}
	do := map[string]func(context.Context) error{
		"count": w.count, "hold": w.hold, "churn": w.churn, "wait": w.wait,
	}[w.Do]
	if do == nil {
		return fmt.Errorf("no job %q", w.Do)
	}
	err = do(ctx)
	if errors.Is(err, backend.ErrSessionLost) {
		return errors.Join(err, w.b.Close())
	}
	return errors.Join(err, w.b.EndSession(ctx, w.sess), w.b.Close())
}

// probe tells whether the kernel has a lock of another process on the bytes of the file that SQLite locks.
func (w *worker) probe() error {
	f, err := os.OpenFile(w.Path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	const first, size = 0x40000002, 510 // SHARED_FIRST and SHARED_SIZE
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: first, Len: size}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &lock); err != nil {
		return errors.Join(err, f.Close())
	}
	if lock.Type == syscall.F_UNLCK {
		say("free")
	} else {
		say("locked")
	}
	return f.Close()
}

func say(format string, args ...any) { _, _ = fmt.Fprintf(os.Stdout, format+"\n", args...) }

func (w *worker) acquire(ctx context.Context) (backend.AcquireRequest, backend.Grant, error) {
	req := backend.AcquireRequest{Name: w.Lock, Lease: backend.NewLeaseID(), Session: w.sess, Wait: true}
	g, err := w.b.Acquire(ctx, req)
	return req, g, err
}

func (w *worker) release(ctx context.Context, req backend.AcquireRequest) error {
	return w.b.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session})
}

// count adds 1 to the number in the file, under the lock.
func (w *worker) count(ctx context.Context) error {
	for range w.Count {
		req, g, err := w.acquire(ctx)
		if err != nil {
			return err
		}
		if err := bump(w.Data, uint64(g.Token)); err != nil {
			return err
		}
		if err := w.release(ctx, req); err != nil {
			return err
		}
	}
	return nil
}

// bump adds 1 to the number in the file and checks that the token beside it grows.
func bump(file string, token uint64) error {
	n, last := 0, uint64(0)
	data, err := os.ReadFile(file)
	if err == nil {
		_, err = fmt.Sscan(string(data), &n, &last)
	} else if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	if token <= last {
		return fmt.Errorf("token %d after token %d", token, last)
	}
	return os.WriteFile(file, fmt.Appendf(nil, "%d %d", n+1, token), 0o600)
}

// hold acquires the lock and then executes commands, line by line.
func (w *worker) hold(ctx context.Context) error {
	req, g, err := w.acquire(ctx)
	if err != nil {
		return err
	}
	say("held %d", g.Token)
	for w.in.Scan() {
		switch w.in.Text() {
		case "renew":
			res, err := w.b.Renew(ctx, backend.RenewRequest{Session: w.sess})
			say("renew %t %v", !res.SessionLost, err)
		case "release":
			say("release %v", w.release(ctx, req))
		case "again":
			_, err := w.b.Acquire(ctx, req)
			say("again %v", err)
		}
	}
	return nil
}

// wait acquires the lock on each command, reports when it had it, and releases it.
func (w *worker) wait(ctx context.Context) error {
	say("ready")
	for w.in.Scan() {
		req, g, err := w.acquire(ctx)
		if err != nil {
			return err
		}
		at, err := sqlitelock.HostNow()
		say("had %d %t", at, g.ByTimer)
		if err := errors.Join(err, w.release(ctx, req)); err != nil {
			return err
		}
		if _, err := w.b.Renew(ctx, backend.RenewRequest{Session: w.sess}); err != nil {
			return err
		}
	}
	return nil
}

// churn acquires and releases the lock until it is killed, and reports an error when it is not
// alone.
func (w *worker) churn(ctx context.Context) error {
	for ctx.Err() == nil {
		sent := time.Now()
		res, err := w.b.Renew(ctx, backend.RenewRequest{Session: w.sess})
		if err != nil {
			return err
		}
		if res.SessionLost { // the machine was busy elsewhere for that long
			w.sess = backend.NewSessionID()
			if err := w.b.OpenSession(ctx, backend.SessionRequest{ID: w.sess, TTL: w.TTL}); err != nil {
				return err
			}
			continue
		}
		if err := w.churnOnce(ctx, sent); err != nil && !errors.Is(err, backend.ErrSessionLost) && !errors.Is(err, backend.ErrLost) {
			return err
		}
	}
	return nil
}

func (w *worker) churnOnce(ctx context.Context, sent time.Time) error {
	within, cancel := context.WithDeadline(ctx, sent.Add(w.TTL/2))
	defer cancel()
	req, g, err := w.acquire(within)
	if err != nil {
		if within.Err() == nil {
			return err
		}
		return w.b.Release(ctx, backend.ReleaseRequest{Name: w.Lock, Lease: req.Lease, Session: w.sess, Abandon: true})
	}
	mine := fmt.Sprint(g.Token)
	before, _ := os.ReadFile(w.Data)
	_ = os.WriteFile(w.Data, []byte(mine), 0o600)
	after, _ := os.ReadFile(w.Data)
	if time.Since(sent) > w.TTL*3/4 {
		return w.release(ctx, req) // too late to judge: the lease may have expired
	}
	if string(after) != mine || len(before) == len(mine) && string(before) >= mine {
		say("violation: token %s, before %s, after %s", mine, before, after)
	}
	say("had %s", mine)
	return w.release(ctx, req)
}

// process is the outside of a child.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  chan string // its lines; closed when it ends
	said []string    // those that were read
	errs strings.Builder
	once sync.Once
	err  error
}

// start starts a child, and kills it and waits for it when the test ends.
func start(t *testing.T, j job) *process {
	t.Helper()
	return startAs(t, j, func(*exec.Cmd) {})
}

// startAs is start of a child that is changed before it is started.
func startAs(t *testing.T, j job, change func(*exec.Cmd)) *process {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, out: make(chan string, 1<<16)}
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), exe)
	p.cmd.Env = append(os.Environ(), childJob+"="+string(text))
	p.cmd.Stderr = &p.errs
	change(p.cmd)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.out)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.out <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.end()
	})
	return p
}

// tell sends the child a line.
func (p *process) tell(line string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.t.Fatalf("child: %v", err)
	}
}

// expect waits for a line that begins with the word, and returns the rest of it.
func (p *process) expect(word string) string {
	p.t.Helper()
	late := time.NewTimer(2 * time.Minute)
	defer late.Stop()
	for {
		select {
		case line, ok := <-p.out:
			if !ok {
				p.t.Fatalf("the child ended before it said %q: %v", word, p.end())
			}
			p.said = append(p.said, line)
			if first, rest, _ := strings.Cut(line, " "); first == word {
				return rest
			}
		case <-late.C:
			p.t.Fatalf("the child does not say %q", word)
		}
	}
}

// end waits for the child to end, and reads what it has said. Its error has the child's standard error.
func (p *process) end() error {
	p.once.Do(func() {
		_ = p.in.Close()
		for line := range p.out {
			p.said = append(p.said, line)
		}
		if err := p.cmd.Wait(); err != nil {
			p.err = fmt.Errorf("%w: %s", err, p.errs.String())
		}
	})
	return p.err
}
