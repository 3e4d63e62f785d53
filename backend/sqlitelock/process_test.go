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
// error that the lock file is busy, and no change may be lost.
func TestProcessesCountExactly(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	j := count(t, 24, 20, false)
	leftOver(t, j.Path)
}

// TestProcessesCountExactlyWithoutTurns is the same where every process deletes the turnstile:
// turns are for order, and SQLite's own lock is what excludes.
func TestProcessesCountExactlyWithoutTurns(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	count(t, 16, 20, true)
}

func count(t *testing.T, processes, each int, alone bool) job {
	t.Helper()
	dir := t.TempDir()
	j := job{
		Do: "count", Path: filepath.Join(dir, "locks.db"), Lock: "counter", Data: filepath.Join(dir, "n"),
		TTL: 5 * time.Minute, Count: each, Alone: alone,
	}
	var ps []*process
	for range processes {
		ps = append(ps, start(t, j))
	}
	for _, p := range ps {
		if err := p.end(); err != nil {
			t.Error(err)
		}
	}
	data, err := os.ReadFile(j.Data)
	if err != nil {
		t.Fatal(err)
	}
	if n, _, _ := strings.Cut(string(data), " "); n != strconv.Itoa(processes*each) {
		t.Errorf("the counter is at %s; it has to be %d", n, processes*each)
	}
	return j
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

// TestKilledHolder kills a process that holds the lock: the next one gets it when the session's
// time has passed, and not before.
func TestKilledHolder(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	const ttl = 2 * suiteTTL
	b := mustOpen(t, path)
	sess := mustSession(t, b, time.Minute)
	p := start(t, job{Do: "hold", Path: path, Lock: "x", TTL: ttl})
	asked := unixNano(t, p.expect("asked"))
	token := p.expect("held")
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	g, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Session: sess, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	after := time.Since(asked)
	if after < ttl {
		t.Errorf("granted %s after the session was opened for %s", after, ttl)
	}
	if after > ttl+time.Second+slack {
		t.Errorf("granted %s after the session was opened for %s", after, ttl)
	}
	if fmt.Sprint(g.Token) <= token {
		t.Errorf("token %d after %s", g.Token, token)
	}
	t.Logf("granted %s after the end of the session", after-ttl)
}

func unixNano(t *testing.T, text string) time.Time {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(0, n)
}

// TestStoppedHolder stops a holder for longer than its session lives. When it continues it has
// lost the lock and everything under the session.
func TestStoppedHolder(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	const ttl = 2 * suiteTTL
	b := mustOpen(t, path)
	sess := mustSession(t, b, time.Minute)
	p := start(t, job{Do: "hold", Path: path, Lock: "x", TTL: ttl})
	asked := unixNano(t, p.expect("asked"))
	p.expect("held")
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	req := backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Session: sess, Wait: true}
	if _, err := b.Acquire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if after := time.Since(asked); after < ttl {
		t.Errorf("granted %s after the session was opened for %s", after, ttl)
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for ask, want := range map[string]string{
		"renew":   "false <nil>",
		"release": backend.ErrLost.Error(),
		"again":   backend.ErrSessionLost.Error(),
	} {
		p.tell(ask)
		if got := p.expect(map[string]string{"renew": "renewed", "release": "released", "again": "again"}[ask]); got != want {
			t.Errorf("%s after it was stopped: %s; it has to be %s", ask, got, want)
		}
	}
	info, err := b.Inspect(t.Context(), "x")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != req.Lease {
		t.Errorf("the lock is now %+v, %v", info, err)
	}
}

// TestKilledAnywhere kills processes at random moments, also in the middle of their transactions,
// and starts others. No two processes may ever hold the lock at the same time, and the file has
// to stay sound.
func TestKilledAnywhere(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const processes, kills = 6, 24
	dir := t.TempDir()
	j := job{Do: "churn", Path: filepath.Join(dir, "locks.db"), Lock: "x", Data: filepath.Join(dir, "token"), TTL: time.Second}
	var ps, all []*process
	spawn := func() {
		p := start(t, j)
		all, ps = append(all, p), append(ps, p)
	}
	for range processes {
		spawn()
	}
	for range kills {
		i := rand.IntN(len(ps))
		p := ps[i]
		p.expect("had") // it works
		timer := time.NewTimer(rand.N(3 * time.Millisecond))
		<-timer.C
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		ps = slices.Delete(ps, i, i+1)
		spawn()
	}
	for _, p := range ps {
		p.expect("had")
		_ = p.cmd.Process.Kill()
	}
	for _, p := range all {
		_ = p.end()
		for line := range p.out {
			if strings.HasPrefix(line, "violation") {
				t.Error(line)
			}
		}
		if s := p.errs.String(); s != "" {
			t.Errorf("a child failed: %s", s)
		}
	}
	b := mustOpen(t, j.Path) // checks the file
	sess := mustSession(t, b, time.Minute)
	if _, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Session: sess, Wait: true}); err != nil {
		t.Error(err)
	}
	if sockets, err := filepath.Glob(j.Path + "-wake/*"); err != nil || len(sockets) != 1 {
		t.Errorf("sockets of the dead are left: %q, %v", sockets, err)
	}
}

// TestHandOverIsPushed measures how long after a release the next process has the lock: much less
// than the time after which it would poll by itself.
func TestHandOverIsPushed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	handOver(t, mustOpen(t, path), start(t, job{Do: "wait", Path: path, Lock: "x", TTL: time.Hour}))
}

// TestHandOverBesideManyWaiters checks that a hand-over takes no longer where the next holder's process waits
// for many other locks.
func TestHandOverBesideManyWaiters(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const others = 1000
	path := filepath.Join(t.TempDir(), "locks.db")
	b := mustOpen(t, path)
	sess := mustSession(t, b, time.Hour)
	for i := range others {
		if _, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: otherLock(i), Lease: backend.NewLeaseID(), Session: sess}); err != nil {
			t.Fatal(err)
		}
	}
	alone := handOver(t, b, start(t, job{Do: "wait", Path: path, Lock: "x", TTL: time.Hour}))
	p := start(t, job{Do: "wait", Path: path, Lock: "y", TTL: time.Hour, Count: others})
	leasetest.Eventually(t, "the other waiters", func() bool {
		page, err := b.List(t.Context(), backend.ListRequest{Limit: others})
		return err == nil && !slices.ContainsFunc(page.Locks, func(l backend.LockInfo) bool { return len(l.Waiters) == 0 })
	})
	if beside := handOver(t, b, p); beside > 4*alone+10*time.Millisecond {
		t.Errorf("the median hand-over took %s beside %d waiters, and %s without them", beside, others, alone)
	}
}

// handOver has the process wait for the lock again and again, and returns how long the median hand-over took.
func handOver(t *testing.T, b *sqlitelock.Backend, p *process) time.Duration {
	t.Helper()
	const rounds = 100
	sess := mustSession(t, b, time.Hour)
	p.expect("ready")
	var took []time.Duration
	timers := 0
	for range rounds {
		req := backend.AcquireRequest{Name: p.Lock, Lease: backend.NewLeaseID(), Session: sess, Wait: true}
		if _, err := b.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		p.tell("go")
		leasetest.Eventually(t, "a waiter", func() bool {
			info, err := b.Inspect(t.Context(), p.Lock)
			return err == nil && len(info.Waiters) == 1
		})
		from, err := sqlitelock.HostNow()
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Release(t.Context(), backend.ReleaseRequest{Name: p.Lock, Lease: req.Lease, Session: sess}); err != nil {
			t.Fatal(err)
		}
		at, byTimer, _ := strings.Cut(p.expect("had"), " ")
		ns, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Duration(ns)-from)
		if byTimer == "true" {
			timers++
		}
	}
	slices.Sort(took)
	t.Logf("hand-over between processes: p50 %s, p99 %s; %d of %d by timer", took[rounds/2], took[rounds*99/100], timers, rounds)
	if took[rounds/2] > sqlitelock.Recheck/4 {
		t.Errorf("the median hand-over took %s", took[rounds/2])
	}
	return took[rounds/2]
}

// BenchmarkProcesses measures acquires and releases by several concurrent processes: each of its
// own lock of one file, or all of one lock, which passes between them.
func BenchmarkProcesses(b *testing.B) {
	for _, one := range []bool{false, true} {
		b.Run(fmt.Sprintf("one-lock=%t", one), func(b *testing.B) {
			const processes = 8
			path := filepath.Join(b.TempDir(), "locks.db")
			mustOpen(b, path)
			each := max(1, b.N/processes)
			var ps []*process
			for i := range processes {
				j := job{Do: "pairs", Path: path, Lock: "lock", TTL: time.Hour, Count: each}
				if !one {
					j.Lock = fmt.Sprintf("lock-%d", i)
				}
				ps = append(ps, start(b, j))
			}
			for _, p := range ps {
				p.expect("ready")
			}
			b.ResetTimer()
			for _, p := range ps {
				p.tell("go")
			}
			for _, p := range ps {
				p.expect("done")
			}
			b.StopTimer()
			b.ReportMetric(float64(each*processes)/b.Elapsed().Seconds(), "pairs/s")
		})
	}
}

// TestOwnBreakIsTold checks that a break of one's own lock is reported to its session
// immediately, without a renewal.
func TestOwnBreakIsTold(t *testing.T) {
	t.Parallel()
	b := open(t, filepath.Join(t.TempDir(), "locks.db"))
	defer closed(t, b)
	id, told := backend.NewSessionID(), make(chan backend.Loss, 1)
	if err := b.OpenSession(t.Context(), backend.SessionRequest{ID: id, TTL: time.Hour, Lost: func(l backend.Loss) { told <- l }}); err != nil {
		t.Fatal(err)
	}
	req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Session: id}
	if _, err := b.Acquire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Break(t.Context(), backend.BreakRequest{Name: "n", Reason: "stuck"}); err != nil {
		t.Fatal(err)
	}
	select {
	case l := <-told:
		if l.Session != id || l.Lease != req.Lease || l.Cause != backend.CauseBroken || l.Reason != "stuck" {
			t.Errorf("told %+v", l)
		}
	case <-time.After(time.Minute):
		t.Error("nothing was told")
	}
}
