//go:build linux || darwin || freebsd

package sqlitelock_test

import (
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

func open(t *testing.T, path string, opts ...sqlitelock.Option) *sqlitelock.Backend {
	t.Helper()
	b, err := sqlitelock.OpenWith(t.Context(), path, opts...)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return b
}

func closed(t *testing.T, b *sqlitelock.Backend) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

// TestReboot opens the file after a reboot: sessions have ended with all that lives with them,
// timed leases continue for what they have left, and tokens continue to grow.
func TestReboot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	before := machine{boot: "first", since: 1000 * time.Hour, wall: start}
	b := open(t, path, sqlitelock.WithHost(before.host()))
	sess := mustSession(t, b, time.Hour)
	take := func(name string, ttl time.Duration) (backend.AcquireRequest, backend.Grant) {
		req := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: sess, Timed: ttl > 0, TTL: ttl}
		g, err := b.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return req, g
	}
	of, _ := take("of the session", 0)
	short, _ := take("short", 20*time.Minute)
	long, last := take("long", 10*time.Hour)
	abandoned := backend.ReleaseRequest{Name: "abandoned", Lease: backend.NewLeaseID(), Abandon: true}
	if err := b.Release(t.Context(), abandoned); err != nil {
		t.Fatal(err)
	}
	closed(t, b)

	after := machine{boot: "second", since: 10 * time.Second, wall: start.Add(30 * time.Minute)}
	b = open(t, path, sqlitelock.WithHost(after.host()))
	defer closed(t, b)
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
	if err != nil || !res.SessionLost || res.Leases[0].Token != last.Token || !errors.Is(res.Leases[1].Err, backend.ErrLost) {
		t.Errorf("Renew: %+v, %v", res, err)
	}
	if _, err := b.Acquire(t.Context(), of); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("Acquire under the session: %v; it has to be ErrSessionLost", err)
	}
	if _, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: abandoned.Name, Lease: abandoned.Lease, Timed: true, TTL: time.Hour}); !errors.Is(err, backend.ErrLost) {
		t.Errorf("Acquire of the abandoned lease: %v; it has to be ErrLost", err)
	}
	g, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: of.Name, Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour})
	if err != nil || g.Token <= last.Token {
		t.Errorf("token %d, %v; it has to be greater than %d", g.Token, err, last.Token)
	}
}

// TestRebootWithAWrongClock boots a machine whose wall clock lost its time: a timed
// lease is kept for longer then, but not for longer than it had left.
func TestRebootWithAWrongClock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	before := machine{boot: "first", since: time.Hour, wall: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	b := open(t, path, sqlitelock.WithHost(before.host()))
	req := backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}
	first, err := b.Acquire(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, b)
	after := machine{boot: "second", since: 3 * time.Hour, wall: time.Unix(0, 0)}
	b = open(t, path, sqlitelock.WithHost(after.host()))
	defer closed(t, b)
	info, err := b.Inspect(t.Context(), "x")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Left > time.Hour || info.Holders[0].Left < 59*time.Minute {
		t.Errorf("after the reboot: %+v, %v", info, err)
	}
	g, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "y", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour})
	if err != nil || g.Token <= first.Token {
		t.Errorf("token %d, %v; it has to be greater than %d", g.Token, err, first.Token)
	}
}

// TestTwoBoots opens a file that processes of another boot have open, as those of a container
// that sees a boot ID of its own: it is refused, and they keep their locks. When they have gone
// it is a reboot.
func TestTwoBoots(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	one, two := machine{boot: "one", wall: time.Now()}, machine{boot: "two", wall: time.Now()}
	a := open(t, path, sqlitelock.WithHost(one.host()))
	sess := mustSession(t, a, time.Hour)
	ask := backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Session: sess}
	g, err := a.Acquire(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sqlitelock.OpenWith(t.Context(), path, sqlitelock.WithHost(two.host())); !errors.Is(err, sqlitelock.ErrOtherBoot) || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Open: %v; it has to be ErrOtherBoot", err)
	}
	if again, err := a.Acquire(t.Context(), ask); err != nil || again.Token != g.Token {
		t.Errorf("what was held is %+v, %v", again, err)
	}
	closed(t, a)
	b := mustOpen(t, path, sqlitelock.WithHost(two.host()))
	if next, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Session: mustSession(t, b, time.Hour)}); err != nil || next.Token <= g.Token {
		t.Errorf("Acquire: %+v, %v, after token %d", next, err, g.Token)
	}
}

// TestTwoMachines has a second machine use the file, as through a shared disk that is not known
// to be one, and without the first one's locks: the first one grants nothing any more.
func TestTwoMachines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	one := machine{boot: "one", wall: time.Now()}
	a := mustOpen(t, path, sqlitelock.WithHost(one.host()))
	db, err := sql.Open("sqlite", path)
	if err == nil {
		_, err = db.ExecContext(t.Context(), "UPDATE meta SET boot = 'two'")
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Acquire(t.Context(), backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}); !errors.Is(err, sqlitelock.ErrReplaced) {
		t.Errorf("Acquire: %v; it has to be ErrReplaced", err)
	}
}

// TestDeletedFile deletes the file while no process uses it: tokens continue to grow.
func TestDeletedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.db")
	var last backend.Grant
	for range 3 {
		b := open(t, path)
		g, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour})
		if err != nil || g.Token <= last.Token {
			t.Errorf("token %d, %v; it has to be greater than %d", g.Token, err, last.Token)
		}
		last = g
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
	sess := mustSession(t, b, time.Hour)
	var timed []backend.LeaseID
	const grants = 400
	for i := range grants {
		req := backend.AcquireRequest{Name: fmt.Sprint("lock-", i), Lease: backend.NewLeaseID(), Session: sess}
		if i%37 == 36 {
			req.Timed, req.TTL = true, time.Hour
			timed = append(timed, req.Lease)
		}
		g, err := b.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if i%9 == 0 || req.Timed {
			powerless(t, d.lose(t), g, timed)
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
	ask := func() backend.AcquireRequest {
		return backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute}
	}
	reopen := func() *sqlitelock.Backend {
		next := machine{boot: "second", since: time.Minute, wall: time.Now()}
		return mustOpen(t, d.lose(t), sqlitelock.WithHost(next.host()))
	}
	req := ask()
	if _, err := b.Acquire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: "x", Lease: req.Lease, TTL: 10 * time.Hour}}}); err != nil {
		t.Fatal(err)
	}
	info, err := reopen().Inspect(t.Context(), "x")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Left < 9*time.Hour {
		t.Errorf("after a renewal for 10 hours there is %+v, %v", info, err)
	}
	if err := b.Release(t.Context(), backend.ReleaseRequest{Name: "x", Lease: req.Lease}); err != nil {
		t.Fatal(err)
	}
	if info, err := reopen().Inspect(t.Context(), "x"); err != nil || len(info.Holders) != 0 {
		t.Errorf("after a release there is %+v, %v", info, err)
	}
	req = ask()
	if err := b.Release(t.Context(), backend.ReleaseRequest{Name: "x", Lease: req.Lease, Abandon: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := reopen().Acquire(t.Context(), req); !errors.Is(err, backend.ErrLost) {
		t.Errorf("an abandoned lease: %v; it has to be ErrLost", err)
	}
	if _, err := b.Acquire(t.Context(), ask()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Break(t.Context(), backend.BreakRequest{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	if info, err := reopen().Inspect(t.Context(), "x"); err != nil || len(info.Holders) != 0 {
		t.Errorf("after a break there is %+v, %v", info, err)
	}
}

// powerless checks what is left on a disk.
func powerless(t *testing.T, path string, last backend.Grant, timed []backend.LeaseID) {
	t.Helper()
	next := machine{boot: "second", since: time.Minute, wall: time.Unix(0, 0)} // no help for tokens
	b := open(t, path, sqlitelock.WithHost(next.host()))
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
	g, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "new", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour})
	if err != nil || g.Token <= last.Token {
		t.Errorf("token %d, %v; it has to be greater than %d, which was given before the power was lost", g.Token, err, last.Token)
	}
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
	req := backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Session: mustSession(t, holder, time.Hour)}
	if _, err := holder.Acquire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	sess := mustSession(t, waiter, time.Hour)
	had := make(chan result, 1)
	go func() {
		g, err := waiter.Acquire(t.Context(), backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Session: sess, Wait: true})
		had <- result{g, err}
	}()
	leasetest.Eventually(t, "a waiter", func() bool {
		info, err := holder.Inspect(t.Context(), "x")
		return err == nil && len(info.Waiters) == 1
	})
	if err := os.Rename(waiter.Socket(), waiter.Socket()+".gone"); err != nil {
		t.Fatal(err)
	}
	from := time.Now()
	if err := holder.Release(t.Context(), backend.ReleaseRequest{Name: "x", Lease: req.Lease}); err != nil {
		t.Fatal(err)
	}
	r := await(t, had, waiter, busy)
	if took := time.Since(from); took > 2*sqlitelock.Recheck+slack {
		t.Errorf("it took %s", took)
	}
	if r.err != nil || !r.grant.Waited {
		t.Errorf("Acquire: %+v, %v", r.grant, r.err)
	}
	t.Logf("found after %s, by timer: %t", time.Since(from), r.grant.ByTimer)
	if err := os.Rename(waiter.Socket()+".gone", waiter.Socket()); err != nil {
		t.Fatal(err)
	}
}

// result is the result of an Acquire.
type result struct {
	grant backend.Grant
	err   error
}

// await waits for the result. When the backend value is to be busy, it has it execute other
// requests all the time.
func await(t *testing.T, had <-chan result, b *sqlitelock.Backend, busy bool) result {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	end := time.After(2 * slack)
	for {
		select {
		case r := <-had:
			return r
		case <-end:
			t.Fatal("it never found its grant")
		case <-tick.C:
			if !busy {
				continue
			}
			if _, err := b.Inspect(t.Context(), "y"); err != nil {
				t.Fatal(err)
			}
		}
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
	held := backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}
	if _, err := holder.Acquire(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	had, at := make(chan result, 1), make(chan time.Time, 1)
	for i, b := range []*sqlitelock.Backend{dead, behind} {
		req := backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Session: mustSession(t, b, time.Hour), Wait: true}
		if b == dead {
			req.Timed, req.TTL = true, ttl
		}
		go func() {
			g, err := b.Acquire(t.Context(), req)
			if b == behind {
				at <- time.Now()
				had <- result{g, err}
			}
		}()
		leasetest.Eventually(t, "a waiter", func() bool {
			info, err := holder.Inspect(t.Context(), "x")
			return err == nil && len(info.Waiters) == i+1
		})
	}
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	from := time.Now()
	if err := holder.Release(t.Context(), backend.ReleaseRequest{Name: "x", Lease: held.Lease}); err != nil {
		t.Fatal(err)
	}
	if r := await(t, had, behind, false); r.err != nil {
		t.Fatal(r.err)
	}
	return (<-at).Sub(from)
}
