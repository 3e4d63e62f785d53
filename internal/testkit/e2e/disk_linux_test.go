package e2e_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// storing is a store that keeps its data in the folder "data" of a process.
type storing struct {
	url     string
	process func() *testserver.Process
	start   func()
}

func onDisk() map[string]func(t *testing.T) storing {
	return map[string]func(t *testing.T) storing{
		"etcd": func(t *testing.T) storing {
			t.Helper()
			s := testserver.StartEtcd(t, testserver.EtcdOptions{})[0]
			return storing{"etcd://" + s.Addr(), s.Process, s.Restart}
		},
		"zookeeper": func(t *testing.T) storing {
			t.Helper()
			s := testserver.StartZooKeeper(t, 1)[0]
			return storing{"zookeeper://" + s.Addr() + "?tick=500ms", s.Process, s.Start}
		},
		"consul": func(t *testing.T) storing {
			t.Helper()
			s := testserver.StartConsul(t, 1)[0]
			return storing{"consul://" + s.Addr() + "?min_ttl=" + testserver.ConsulMinTTL.String(), s.Process, s.Start}
		},
		"postgres": func(t *testing.T) storing {
			t.Helper()
			s := testserver.Postgres(t)
			return storing{s.URL(), s.Process, s.Start}
		},
		"postgres+advisory": func(t *testing.T) storing {
			t.Helper()
			s := testserver.Postgres(t)
			return storing{"postgres+advisory" + strings.TrimPrefix(s.URL(), "postgres"), s.Process, s.Start}
		},
		"mysql": func(t *testing.T) storing {
			t.Helper()
			s := testserver.MariaDB(t)
			return storing{s.URL(), s.Process, s.Start}
		},
		"mysql+getlock": func(t *testing.T) storing {
			t.Helper()
			s := testserver.MariaDB(t)
			return storing{"mysql+getlock" + strings.TrimPrefix(s.URL(), "mysql"), s.Process, s.Start}
		},
		"holdfast": func(t *testing.T) storing {
			t.Helper()
			s := testserver.StartHoldfast(t)
			return storing{s.URL, s.Process, s.Start}
		},
		"kubernetes": func(t *testing.T) storing {
			t.Helper()
			s := testserver.Kubernetes(t)
			etcd := s.Etcd()
			return storing{"kubernetes://default?kubeconfig=" + s.Kubeconfig(s.Addr()), etcd.Process, etcd.Restart}
		},
	}
}

// F18: the disk of the store is full, so that it refuses to grant locks, or ends. A caller is
// told so, in time; a holder keeps its lock, or is told at its deadline; a waiter is not
// granted the lock before that. When there is room again, and a store that ended has been
// started, everything works again, with greater tokens.
func TestDiskFull(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const ttl, room = 8 * time.Second, 4 << 20
	sideBySide(t, onDisk(), func(t *testing.T, _ string, start func(t *testing.T) storing) { //nolint:thelper // it is the test
		var s storing
		testserver.InTurn(func() { s = start(t) })
		s.process().Kill()
		disk := testserver.SmallDisk(t, filepath.Join(s.process().Dir(), "data"), room)
		s.start()
		connect := func(owner string) *holdfast.Client {
			b, err := open.URL(t.Context(), s.url, open.Options{})
			return client(t, opened(t, b, err), holdfast.Config{TTL: ttl, Timeout: ttl, Owner: owner})
		}
		a, b, c := connect("a"), connect("b"), connect("c")
		lock, err := a.Acquire(t.Context(), "held")
		if err != nil {
			t.Fatal(err)
		}
		got := waitFor(t, b, "held")
		renewed(t, lock)
		lag, ends := lateness(t), make(chan time.Time, 1)
		defer lag()
		go func() {
			<-lock.Context().Done()
			ends <- time.Now()
		}()
		t.Logf("refused: %v", takeAllRoom(t, disk, c, 2*ttl))
		var ended time.Time
		select {
		case <-lock.Renewed():
			t.Log("the holder keeps its lock")
		case ended = <-ends:
			t.Log("the holder loses its lock")
			inTime(t, lock, ended, lag)
		case <-time.After(2 * time.Minute):
			t.Fatal("the holder neither renews nor is told")
		}
		disk.Free()
		worksAgain(t, s, connect("d"))
		if ended.IsZero() {
			// It may have been lost since, and then its context has ended already.
			ended = time.Now()
			switch err := lock.Release(t.Context()); {
			case errors.Is(err, holdfast.ErrLost):
				ended = <-ends
				inTime(t, lock, ended, lag)
			case err != nil:
				t.Errorf("release: %v", err)
			}
		}
		r := <-got
		follows(t, r, lock, ended)
		if err := r.lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// takeAllRoom takes lock after lock, with long notes, until that is refused, and returns the
// error.
func takeAllRoom(t *testing.T, disk *testserver.Disk, c *holdfast.Client, patience time.Duration) error {
	t.Helper()
	for n := range 5000 {
		disk.Fill()
		note := strings.Repeat(rand.Text(), backend.MaxNoteLen/len(rand.Text()))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := c.Acquire(ctx, fmt.Sprintf("filler-%d", n), holdfast.Note(note))
		cancel()
		switch {
		case err == nil:
		case errors.Is(err, holdfast.ErrUnavailable), errors.Is(err, context.DeadlineExceeded): // the latter: and nothing may be held
			return err
		default:
			t.Fatalf("on a full disk: %v", err)
		}
	}
	t.Fatal("the disk is never full")
	return nil
}

// worksAgain has a client take a lock when there is room again.
func worksAgain(t *testing.T, s storing, c *holdfast.Client) {
	t.Helper()
	const again = 5 * time.Second
	until(t, "it works again", func() bool {
		select {
		case <-s.process().Ended():
			t.Log("the store ended, and is started")
			s.process().Kill()
			s.start()
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), again)
		defer cancel()
		err := c.Do(ctx, "again", func(context.Context, *holdfast.Lock) error { return nil })
		return err == nil
	})
}
