package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// pauses starts processes that can be stopped.
type pauses func(t *testing.T) (url string, processes []*testserver.Process)

// pausable returns stores whose processes can be stopped, by their URL.
func pausable() map[string]pauses {
	return map[string]pauses{
		"redis": func(t *testing.T) (string, []*testserver.Process) {
			t.Helper()
			s := testserver.Redis(t)
			return "redis://" + s.Addr() + "?quarantine=off", []*testserver.Process{s.Process()}
		},
		"redlock": func(t *testing.T) (string, []*testserver.Process) {
			t.Helper()
			nodes := testserver.RedisNodes(t, redlock.MinNodes)
			var all []*testserver.Process
			for _, s := range nodes {
				all = append(all, s.Process())
			}
			return "redlock://" + testserver.RedisAddrs(nodes) + "?quarantine=off", all
		},
		"etcd": func(t *testing.T) (string, []*testserver.Process) {
			t.Helper()
			s := testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true})[0]
			return "etcd://" + s.Addr(), []*testserver.Process{s.Process()}
		},
		"zookeeper": func(t *testing.T) (string, []*testserver.Process) {
			t.Helper()
			s := testserver.StartZooKeeper(t, 1)[0]
			return "zookeeper://" + s.Addr(), []*testserver.Process{s.Process()}
		},
		"consul": func(t *testing.T) (string, []*testserver.Process) {
			t.Helper()
			s := testserver.StartConsul(t, 1)[0]
			return "consul://" + s.Addr() + "?min_ttl=" + testserver.ConsulMinTTL.String(), []*testserver.Process{s.Process()}
		},
		"holdfast": func(t *testing.T) (string, []*testserver.Process) {
			t.Helper()
			s := testserver.StartHoldfast(t)
			return s.URL, []*testserver.Process{s.Process()}
		},
		"postgres+advisory": func(t *testing.T) (string, []*testserver.Process) {
			t.Helper()
			s := testserver.Postgres(t)
			return "postgres+advisory" + strings.TrimPrefix(s.URL(), "postgres"), []*testserver.Process{s.Process()}
		},
		"mysql+getlock": func(t *testing.T) (string, []*testserver.Process) {
			t.Helper()
			s := testserver.MariaDB(t)
			return "mysql+getlock" + strings.TrimPrefix(s.URL(), "mysql"), []*testserver.Process{s.Process()}
		},
	}
}

// F8: the store is stopped for longer than a lease, and resumes. The holder is told at its
// deadline. The next has the lock when the store is back, not before that, with a greater
// token.
func TestStoreStopped(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const ttl = 15 * time.Second
	sideBySide(t, pausable(), func(t *testing.T, _ string, start pauses) { //nolint:thelper // it is the test
		var url string
		var processes []*testserver.Process
		testserver.InTurn(func() { url, processes = start(t) })
		connect := func(owner string) *holdfast.Client {
			b, err := open.URL(t.Context(), url, open.Options{})
			return client(t, opened(t, b, err), holdfast.Config{TTL: ttl, Timeout: ttl, Owner: owner})
		}
		a, b := connect("a"), connect("b")
		lock, err := a.Acquire(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		type result struct {
			lock *holdfast.Lock
			at   time.Time
			err  error
		}
		got := make(chan result, 1)
		go func() {
			l, err := b.Acquire(t.Context(), "n")
			got <- result{l, time.Now(), err}
		}()
		renewed(t, lock) // everything is running
		for _, p := range processes {
			p.Stop()
		}
		lag := lateness(t)
		<-lock.Context().Done()
		ended := time.Now()
		inTime(t, lock, ended, lag)
		time.Sleep(ttl / 3) // the lease has ended, too, if the store counted while it was stopped
		for _, p := range processes {
			p.Cont()
		}
		r := <-got
		if r.err != nil {
			t.Fatal(r.err)
		}
		if knew := knewBy(lock, ended); r.at.Before(knew) || r.lock.Token() <= lock.Token() {
			t.Errorf("granted at %s with token %d; the holder knew at %s, and had %d", r.at, r.lock.Token(), knew, lock.Token())
		}
		if err := r.lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
