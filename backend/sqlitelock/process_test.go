//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// slack is how late a busy machine may make anything.
const slack = 20 * time.Second

// TestProcessesCountExactly has many processes change one file under one lock. None may get the
// error that the lock file is busy, and no change may be lost; also where every process deletes the turnstile:
// turns are for order, and SQLite's own lock is what excludes.
func TestProcessesCountExactly(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprint("alone=", alone), func(t *testing.T) {
			t.Parallel()
			const processes, each = 20, 20
			dir := t.TempDir()
			j := job{
				Do: "count", Path: filepath.Join(dir, "locks.db"), Lock: "counter", Data: filepath.Join(dir, "n"),
				TTL: 5 * time.Minute, Count: each, Alone: alone,
			}
			count(t, slices.Repeat([]job{j}, processes), start)
			if !alone {
				leftOver(t, j.Path)
			}
		})
	}
}

// count has processes change one file, each as often as its job says.
func count(t *testing.T, jobs []job, start func(*testing.T, job) *process) {
	t.Helper()
	var ps []*process
	for _, j := range jobs {
		ps = append(ps, start(t, j))
	}
	for _, p := range ps {
		if err := p.end(); err != nil {
			t.Error(err)
		}
	}
	data, err := os.ReadFile(jobs[0].Data)
	if want := fmt.Sprint(len(jobs)*jobs[0].Count, " "); err != nil || !strings.HasPrefix(string(data), want) {
		t.Errorf("%q, %v; %s changes were made", data, err, want)
	}
}

// leftOver checks that only the file is left when no process uses it.
func leftOver(t *testing.T, path string) {
	t.Helper()
	all, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{path, path + "-turn"}; !slices.Equal(all, want) {
		t.Errorf("there is %q; there has to be %q", all, want)
	}
	b := mustOpen(t, path)
	page, err := b.List(t.Context(), backend.ListRequest{})
	if err != nil || len(page.Locks) > 0 {
		t.Errorf("List: %v, %v; there has to be nothing", page, err)
	}
}

// TestStoppedHolder stops a holder for longer than its session lives. When it continues it has
// lost the lock and everything under the session.
func TestStoppedHolder(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	const ttl = 2 * suiteTTL
	b := mustOpen(t, path)
	sess := leasetest.Session(t, b, time.Minute, nil)
	p := start(t, job{Do: "hold", Path: path, Lock: "x", TTL: ttl})
	asked, err := strconv.ParseInt(p.expect("asked"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	p.expect("held")
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	req := leasetest.Ask("x", sess)
	leasetest.Take(t, b, req)
	if after := time.Since(time.Unix(0, asked)); after < ttl {
		t.Errorf("granted %s after the session was opened for %s", after, ttl)
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for ask, want := range map[string]string{
		"renew": "false <nil>", "release": backend.ErrLost.Error(), "again": backend.ErrSessionLost.Error(),
	} {
		p.tell(ask)
		if got := p.expect(ask); got != want {
			t.Errorf("%s after it was stopped: %s; it has to be %s", ask, got, want)
		}
	}
	info, err := b.Inspect(t.Context(), "x")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != req.Lease {
		t.Errorf("the lock is now %+v, %v", info, err)
	}
}

// F2, F9: processes that hand a lock over to each other are killed, one or all of them, at any point of a transaction. No two of
// them hold the lock at the same time, no token that one of them received is issued again, and the file stays sound.
// HOLDFAST_KILLS is how often.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	const processes = 4
	kills := 6
	if text := os.Getenv("HOLDFAST_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil || kills <= 0 {
			t.Fatalf("HOLDFAST_KILLS is %q: it has to be a number above 0", text)
		}
	} else if !testing.Short() {
		kills = 24
	}
	dir := t.TempDir()
	j := job{Do: "churn", Path: filepath.Join(dir, "locks.db"), Lock: "x", Data: filepath.Join(dir, "token"), TTL: time.Second}
	told, grants := make(map[string]bool), 0
	hear := func(p *process) {
		for _, line := range p.said {
			switch word, rest, _ := strings.Cut(line, " "); {
			case word == "violation:", word == "had" && told[rest]:
				t.Error(line)
			case word == "had":
				told[rest] = true
				grants++
			}
		}
	}
	ps := make([]*process, processes)
	for n := range kills {
		for i := range ps {
			if ps[i] == nil {
				ps[i] = start(t, j)
			}
		}
		victims := []int{rand.IntN(processes)}
		if all := n%5 == 4 || n == kills-1; all {
			victims = []int{0, 1, 2, 3}
		}
		for _, i := range victims {
			ps[i].expect("had") // it works
		}
		<-time.After(rand.N(3 * time.Millisecond))
		for _, i := range victims {
			_ = ps[i].cmd.Process.Kill() // end reports when it had ended by itself
		}
		for _, i := range victims {
			if err := ps[i].end(); err == nil || err.Error() != "signal: killed: " {
				t.Errorf("a process ended by itself: %v", err)
			}
			hear(ps[i])
			ps[i] = nil
		}
	}
	t.Logf("%d grants, %d kills", grants, kills)
	b := mustOpen(t, j.Path) // checks the file
	leasetest.Take(t, b, leasetest.Ask("x", leasetest.Session(t, b, time.Minute, nil)))
	if sockets, err := filepath.Glob(j.Path + "-wake/*"); err != nil || len(sockets) != 1 {
		t.Errorf("sockets of the dead are left: %q, %v", sockets, err)
	}
}

// TestHandOverIsPushed measures how long after a release the next process has the lock: much less
// than the time after which it would poll by itself.
func TestHandOverIsPushed(t *testing.T) {
	t.Parallel()
	const rounds = 100
	path := filepath.Join(t.TempDir(), "locks.db")
	b, p := mustOpen(t, path), start(t, job{Do: "wait", Path: path, Lock: "x", TTL: time.Hour})
	sess := leasetest.Session(t, b, time.Hour, nil)
	p.expect("ready")
	var took []time.Duration
	for range rounds {
		req := leasetest.Ask("x", sess)
		leasetest.Take(t, b, req)
		p.tell("go")
		leasetest.InQueue(t, b, "x", 1)
		from, err := sqlitelock.HostNow()
		if err != nil {
			t.Fatal(err)
		}
		leasetest.Give(t, b, req)
		at, _, _ := strings.Cut(p.expect("had"), " ")
		ns, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Duration(ns)-from)
	}
	slices.Sort(took)
	t.Logf("hand-over between processes: p50 %s, p99 %s", took[rounds/2], took[rounds*99/100])
	if took[rounds/2] > sqlitelock.Recheck/4 {
		t.Errorf("the median hand-over took %s", took[rounds/2])
	}
}

// A hand-over takes no longer where the next holder's value waits for many other locks: a notification names what is to be read.
func TestHandOverBesideManyWaiters(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const others, rounds = 1000, 51
	path := filepath.Join(t.TempDir(), "locks.db")
	b, next := mustOpen(t, path), mustOpen(t, path)
	mine, theirs := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, next, time.Hour, nil)
	median := func() time.Duration {
		var took []time.Duration
		for range rounds {
			held, waits := leasetest.Ask("x", mine), leasetest.Ask("x", theirs)
			leasetest.Take(t, b, held)
			got := leasetest.Start(t, next, waits)
			leasetest.InQueue(t, b, "x", 1)
			from := time.Now()
			leasetest.Give(t, b, held)
			if g := <-got; g.Err != nil {
				t.Fatal(g.Err)
			}
			took = append(took, time.Since(from))
			leasetest.Give(t, next, waits)
		}
		slices.Sort(took)
		return took[rounds/2]
	}
	alone := median()
	for i := range others {
		name := fmt.Sprint("other-", i)
		leasetest.Take(t, b, leasetest.Ask(name, mine))
		leasetest.Start(t, next, leasetest.Ask(name, theirs))
	}
	leasetest.Eventually(t, "all wait", func() bool {
		page, err := b.List(t.Context(), backend.ListRequest{Limit: others})
		return err == nil && !slices.ContainsFunc(page.Locks, func(l backend.LockInfo) bool { return len(l.Waiters) == 0 })
	})
	beside := median()
	t.Logf("a hand-over takes %s, and %s beside %d waiters", alone, beside, others)
	if beside > 4*alone+10*time.Millisecond {
		t.Error("that is too long")
	}
}

// TestOwnBreakIsTold checks that a break of one's own lock is reported to its session
// immediately, without a renewal.
func TestOwnBreakIsTold(t *testing.T) {
	t.Parallel()
	b, told := mustOpen(t, filepath.Join(t.TempDir(), "locks.db")), make(chan backend.Loss, 1)
	req := leasetest.Ask("n", leasetest.Session(t, b, time.Hour, func(l backend.Loss) { told <- l }))
	leasetest.Take(t, b, req)
	if _, err := b.Break(t.Context(), backend.BreakRequest{Name: "n", Reason: "stuck"}); err != nil {
		t.Fatal(err)
	}
	select {
	case l := <-told:
		if l != (backend.Loss{Session: req.Session, Lease: req.Lease, Cause: backend.CauseBroken, Reason: "stuck"}) {
			t.Errorf("told %+v", l)
		}
	case <-leasetest.Within(t).Done():
		t.Error("nothing was told")
	}
}
