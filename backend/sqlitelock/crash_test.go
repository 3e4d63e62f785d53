//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// machine is a simulated host, with clocks that a test moves.
type machine struct {
	boot       string
	since      time.Duration // of its boot clock
	wall       time.Time
	real       time.Time // when the clocks were set
	standStill bool
}

func (m *machine) host() sqlitelock.Host {
	m.real = time.Now()
	on := func() time.Duration {
		if m.standStill {
			return 0
		}
		return time.Since(m.real)
	}
	return sqlitelock.Host{
		Boot: m.boot,
		Now:  func() time.Duration { return m.since + on() },
		Wall: func() time.Time { return m.wall.Add(on()) },
	}
}

func closed(t *testing.T, b *sqlitelock.Backend) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

// rises acquires a lock that is free, whose token is greater than the last one.
func rises(t *testing.T, b *sqlitelock.Backend, name string, last fence.Token) fence.Token {
	t.Helper()
	token := leasetest.Take(t, b, lasting(name))
	if token <= last {
		t.Errorf("token %d; it has to be greater than %d", token, last)
	}
	return token
}

// TestReboot opens the file after a reboot: sessions have ended with all that lives with them,
// timed leases continue for what they have left, and tokens continue to grow.
func TestReboot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	before := machine{boot: "first", since: 1000 * time.Hour, wall: start}
	b := mustOpen(t, path, sqlitelock.WithHost(before.host()))
	sess := leasetest.Session(t, b, time.Hour, nil)
	of, short, long, abandoned := leasetest.Ask("of the session", sess), lasting("short"), lasting("long"), lasting("abandoned")
	short.TTL, long.TTL = 20*time.Minute, 10*time.Hour
	leasetest.Take(t, b, of)
	leasetest.Take(t, b, short)
	last := leasetest.Take(t, b, long)
	if err := releaseOf(true)(t.Context(), b, abandoned); err != nil {
		t.Fatal(err)
	}
	closed(t, b)

	after := machine{boot: "second", since: 10 * time.Second, wall: start.Add(30 * time.Minute)}
	b = mustOpen(t, path, sqlitelock.WithHost(after.host()))
	page, err := b.List(t.Context(), backend.ListRequest{})
	if err != nil || len(page.Locks) != 1 || len(page.Locks[0].Holders) != 1 {
		t.Fatalf("after the reboot there is %+v, %v; there has to be one timed lease", page, err)
	}
	h := page.Locks[0].Holders[0]
	if want := 10*time.Hour - 30*time.Minute; h.Lease != long.Lease || h.Left > want+time.Minute || h.Left < want-time.Minute {
		t.Errorf("after the reboot there is %+v; it has to be %q for %s", h, long.Name, want)
	}
	res, err := b.Renew(t.Context(), backend.RenewRequest{Session: sess, Leases: []backend.TimedRenewal{
		{Name: long.Name, Lease: long.Lease, TTL: time.Hour}, {Name: short.Name, Lease: short.Lease, TTL: time.Hour},
	}})
	if err != nil || !res.SessionLost || res.Leases[0].Token != last || !errors.Is(res.Leases[1].Err, backend.ErrLost) {
		t.Errorf("Renew: %+v, %v", res, err)
	}
	if _, err := b.Acquire(t.Context(), of); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("Acquire under the session: %v; it has to be ErrSessionLost", err)
	}
	if _, err := b.Acquire(t.Context(), abandoned); !errors.Is(err, backend.ErrLost) {
		t.Errorf("Acquire of the abandoned lease: %v; it has to be ErrLost", err)
	}
	rises(t, b, of.Name, last)
}

// TestRebootWithAWrongClock boots a machine whose wall clock lost its time: a timed
// lease is kept for longer then, but not for longer than it had left.
func TestRebootWithAWrongClock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	before := machine{boot: "first", since: time.Hour, wall: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	b := mustOpen(t, path, sqlitelock.WithHost(before.host()))
	last := rises(t, b, "x", 0)
	closed(t, b)
	after := machine{boot: "second", since: 3 * time.Hour, wall: time.Unix(0, 0)}
	b = mustOpen(t, path, sqlitelock.WithHost(after.host()))
	info, err := b.Inspect(t.Context(), "x")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Left > time.Hour || info.Holders[0].Left < 59*time.Minute {
		t.Errorf("after the reboot: %+v, %v", info, err)
	}
	rises(t, b, "y", last)
}

// TestTwoBoots opens a file that processes of another boot have open, as those of a container
// that sees a boot ID of its own: it is refused, and they keep their locks. When they have gone
// it is a reboot.
func TestTwoBoots(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	one, two := machine{boot: "one", wall: time.Now()}, machine{boot: "two", wall: time.Now()}
	a := mustOpen(t, path, sqlitelock.WithHost(one.host()))
	sess := leasetest.Session(t, a, time.Hour, nil)
	ask := leasetest.Ask("x", sess)
	token := leasetest.Take(t, a, ask)
	if _, err := sqlitelock.OpenWith(t.Context(), path, sqlitelock.WithHost(two.host())); !errors.Is(err, sqlitelock.ErrOtherBoot) || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Open: %v; it has to be ErrOtherBoot", err)
	}
	if again := leasetest.Take(t, a, ask); again != token {
		t.Errorf("what was held has token %d, and had %d", again, token)
	}
	closed(t, a)
	rises(t, mustOpen(t, path, sqlitelock.WithHost(two.host())), "x", token)
}

// TestTwoMachines has a second machine use the file, as through a shared disk that is not known
// to be one, and without the first one's locks: the first one grants nothing any more.
func TestTwoMachines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	one := machine{boot: "one", wall: time.Now()}
	a := mustOpen(t, path, sqlitelock.WithHost(one.host()))
	fixture{t, path}.script("UPDATE meta SET boot = 'two'")
	if _, err := a.Acquire(t.Context(), lasting("x")); !errors.Is(err, sqlitelock.ErrReplaced) {
		t.Errorf("Acquire: %v; it has to be ErrReplaced", err)
	}
}

// TestDeletedFile deletes the file while no process uses it: tokens continue to grow.
func TestDeletedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	var last fence.Token
	for range 3 {
		b := mustOpen(t, path)
		last = rises(t, b, "x", last)
		closed(t, b)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRestored restores an old copy of the file while a process uses it, as the shell's .restore does.
func TestRestored(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	transfer := func(begin func(c files) (*sqlite.Backup, error)) {
		t.Helper()
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = conn.Raw(func(c any) error {
			b, err := begin(c.(files))
			if err == nil {
				_, err = b.Step(-1)
				err = errors.Join(err, b.Finish())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	copied := path + ".copy"
	leasetest.Restored(t, func() backend.Backend { return mustOpen(t, path) }, func() func() {
		transfer(func(c files) (*sqlite.Backup, error) { return c.NewBackup(copied) })
		return func() { transfer(func(c files) (*sqlite.Backup, error) { return c.NewRestore(copied) }) }
	})
}

// files is what a connection of the driver can do with another file.
type files interface {
	NewBackup(to string) (*sqlite.Backup, error)
	NewRestore(from string) (*sqlite.Backup, error)
}

// disk keeps what is certainly on the disk: the files as they were at the start of the newest
// sync that has completed.
type disk struct {
	path  string
	mu    sync.Mutex
	safe  map[string][]byte
	syncs atomic.Int64
}

// aroundSync is called before a sync, and its result after it. The disk is slow: grants that do
// not wait for it get far ahead of it.
func (d *disk) aroundSync() func() {
	d.syncs.Add(1)
	files := d.read()
	return func() {
		const slow = 20 * time.Millisecond
		<-time.After(slow)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.safe = files
	}
}

func (d *disk) read() map[string][]byte {
	files := make(map[string][]byte)
	for _, suffix := range []string{"", "-wal"} {
		if data, err := os.ReadFile(d.path + suffix); err == nil {
			files[suffix] = data
		}
	}
	return files
}

// lose returns the path of a copy of what is left after a power failure at this moment.
func (d *disk) lose(t *testing.T) string {
	t.Helper()
	d.mu.Lock()
	files := d.safe
	d.mu.Unlock()
	path := filepath.Join(t.TempDir(), "locks.db")
	for suffix, data := range files {
		if err := os.WriteFile(path+suffix, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// TestPowerFailure loses the power after an answer was given: timed leases that were granted are
// there, and no token is issued twice, although grants under sessions do not wait for the disk.
func TestPowerFailure(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	d := &disk{path: filepath.Join(t.TempDir(), "locks.db")}
	start := machine{boot: "first", since: time.Hour, wall: time.Unix(1, 0), standStill: true} // tokens count up one by one
	b := mustOpen(t, d.path, sqlitelock.WithHost(start.host()), sqlitelock.WithReserve(16), sqlitelock.AroundSync(d.aroundSync))
	d.safe = d.read()
	sess := leasetest.Session(t, b, time.Hour, nil)
	var timed []backend.LeaseID
	const grants = 400
	for i := range grants {
		req := leasetest.Ask(fmt.Sprint("lock-", i), sess)
		if i%37 == 36 {
			req.Timed, req.TTL = true, time.Hour
			timed = append(timed, req.Lease)
		}
		if token := leasetest.Take(t, b, req); i%9 == 0 || req.Timed {
			powerless(t, d.lose(t), token, timed)
		}
	}
	n := d.syncs.Load()
	t.Logf("%d grants, %d of them timed, took %d syncs", grants, len(timed), n)
	if n >= grants/2 {
		t.Errorf("%d grants took %d syncs: grants under sessions do not have to wait for the disk", grants, n)
	}
}

// TestPowerFailureAfter loses the power after answers that must not be forgotten.
func TestPowerFailureAfter(t *testing.T) {
	t.Parallel()
	d := &disk{path: filepath.Join(t.TempDir(), "locks.db")}
	start := machine{boot: "first", since: time.Hour, wall: time.Now()}
	b := mustOpen(t, d.path, sqlitelock.WithHost(start.host()), sqlitelock.AroundSync(d.aroundSync))
	do := func(what func(context.Context, *sqlitelock.Backend, backend.AcquireRequest) error, req backend.AcquireRequest) {
		t.Helper()
		if err := what(t.Context(), b, req); err != nil {
			t.Fatal(err)
		}
	}
	reopen := func() *sqlitelock.Backend { return afterwards(t, d.lose(t)) }
	req := lasting("x")
	do(acquireOf, req)
	req.TTL = 10 * time.Hour
	do(renewOf, req)
	info, err := reopen().Inspect(t.Context(), "x")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Left < 9*time.Hour {
		t.Errorf("after a renewal for 10 hours there is %+v, %v", info, err)
	}
	do(releaseOf(false), req)
	isFree(t, reopen(), "x", "after a release")
	req = lasting("x")
	do(releaseOf(true), req)
	if err := acquireOf(t.Context(), reopen(), req); !errors.Is(err, backend.ErrLost) {
		t.Errorf("an abandoned lease: %v; it has to be ErrLost", err)
	}
	do(acquireOf, lasting("x"))
	do(breakOf, req)
	isFree(t, reopen(), "x", "after a break")
}

// afterwards opens a file after a reboot.
func afterwards(t *testing.T, path string) *sqlitelock.Backend {
	t.Helper()
	next := machine{boot: "second", since: time.Minute, wall: time.Now()}
	return mustOpen(t, path, sqlitelock.WithHost(next.host()))
}

// isFree checks that no lease holds a lock.
func isFree(t *testing.T, b *sqlitelock.Backend, name, what string) {
	t.Helper()
	if info, err := b.Inspect(t.Context(), name); err != nil || len(info.Holders) != 0 {
		t.Errorf("%s there is %+v, %v", what, info, err)
	}
}

// powerless checks what is left on a disk.
func powerless(t *testing.T, path string, last fence.Token, timed []backend.LeaseID) {
	t.Helper()
	next := machine{boot: "second", since: time.Minute, wall: time.Unix(0, 0)} // no help for tokens
	b := mustOpen(t, path, sqlitelock.WithHost(next.host()))
	defer closed(t, b)
	page, err := b.List(t.Context(), backend.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var left []backend.LeaseID
	for _, l := range page.Locks {
		left = append(left, l.Holders[0].Lease)
	}
	for _, id := range timed {
		if !slices.Contains(left, id) {
			t.Errorf("a timed lease that was granted was lost with the power")
		}
	}
	rises(t, b, "new", last)
}

// TestLostNotification removes the socket of a waiter: the waiter finds its grant by itself, and
// reports that. So does one that is busy with other requests, whose every turn sets the alarm.
func TestLostNotification(t *testing.T) {
	t.Parallel()
	t.Run("idle", func(t *testing.T) { t.Parallel(); lostNotification(t, false) })
	t.Run("busy", func(t *testing.T) { t.Parallel(); lostNotification(t, true) })
}

func lostNotification(t *testing.T, busy bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "locks.db")
	holder, waiter := mustOpen(t, path), mustOpen(t, path)
	req := leasetest.Ask("x", leasetest.Session(t, holder, time.Hour, nil))
	leasetest.Take(t, holder, req)
	got := leasetest.Start(t, waiter, leasetest.Ask("x", leasetest.Session(t, waiter, time.Hour, nil)))
	leasetest.InQueue(t, holder, "x", 1)
	if err := os.Rename(waiter.Socket(), waiter.Socket()+".gone"); err != nil {
		t.Fatal(err)
	}
	from := time.Now()
	leasetest.Give(t, holder, req)
	leasetest.Eventually(t, "it finds its grant", func() bool {
		if busy {
			if _, err := waiter.Inspect(t.Context(), "y"); err != nil {
				t.Fatal(err)
			}
		}
		return len(got) > 0
	})
	if took := time.Since(from); took > 2*sqlitelock.Recheck+slack {
		t.Errorf("it took %s", took)
	}
	if g := <-got; g.Err != nil || !g.Grant.Waited {
		t.Errorf("Acquire: %+v", g)
	}
	if err := os.Rename(waiter.Socket()+".gone", waiter.Socket()); err != nil {
		t.Fatal(err)
	}
}

// C4: a waiter is granted a lease with an end of its own by a process that waits for nothing, and dies before
// it can act. The next waiter, to which the hand-over did not matter, still has the lock in time.
func TestGrantToADeadWaiterEnds(t *testing.T) {
	t.Parallel()
	const ttl = 200 * time.Millisecond
	lag, most := time.Hour, sqlitelock.Lag+sqlitelock.Lag/8
	for end := time.Now().Add(leasetest.Patience); lag > most && time.Now().Before(end); { // a busy machine may be late
		lag = min(lag, afterADeadWaiter(t, ttl)-ttl)
	}
	if lag > most {
		t.Errorf("the lock was free %s after the end of the lease; %s is promised", lag, sqlitelock.Lag)
	}
}

// afterADeadWaiter returns how long after the grant to a waiter that died the next one is granted.
func afterADeadWaiter(t *testing.T, ttl time.Duration) time.Duration {
	t.Helper()
	path := filepath.Join(t.TempDir(), "locks.db")
	holder, dead, behind := mustOpen(t, path), mustOpen(t, path), mustOpen(t, path)
	held, dies := lasting("x"), leasetest.Ask("x", leasetest.Session(t, dead, time.Hour, nil))
	dies.Timed, dies.TTL = true, ttl
	leasetest.Take(t, holder, held)
	leasetest.Start(t, dead, dies)
	leasetest.InQueue(t, holder, "x", 1)
	got := leasetest.Start(t, behind, leasetest.Ask("x", leasetest.Session(t, behind, time.Hour, nil)))
	leasetest.InQueue(t, holder, "x", 2)
	closed(t, dead)
	from := time.Now()
	leasetest.Give(t, holder, held)
	if g := <-got; g.Err != nil {
		t.Fatal(g.Err)
	}
	return time.Since(from)
}
