package redlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// A user without channels releases what another client waits for: the notification is
// refused, the release is done, and the waiter has its timer.
func TestRefusedNotifications(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := start(t)
	for _, s := range c {
		s.Do("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all")
	}
	b, err := redlock.Open(t.Context(), strings.Replace(c.url(slow), "redlock://", "redlock://mute:secret@", 1), redlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	other := c.open(t, slow)
	for name, mode := range map[string]backend.Mode{"short": backend.Exclusive, "long": backend.Shared} { // the way of the release
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 12 * time.Second // the lock is released in this time
			r := ask(name, func(r *backend.AcquireRequest) { r.Mode, r.TTL = mode, ttl })
			take(t, b, r)
			done := make(chan error, 1)
			go func() {
				next := ask(name, waiting, func(r *backend.AcquireRequest) { r.TTL = ttl })
				_, err := other.Acquire(within(t, patience), next)
				if err == nil {
					err = other.Release(t.Context(), backend.ReleaseRequest{Name: name, Lease: next.Lease})
				}
				done <- err
			}()
			leasetest.Succeeds(t, func() error {
				for _, s := range c {
					if all, _ := s.Do("PUBSUB", "CHANNELS", "*w:"+name).([]any); len(all) == 0 {
						return errors.New("no client waits")
					}
				}
				return nil
			})
			if err := b.Release(t.Context(), backend.ReleaseRequest{Name: name, Lease: r.Lease}); err != nil {
				t.Errorf("release: %v", err)
			}
			if err := <-done; err != nil {
				t.Errorf("the waiter got %v", err)
			}
			// Its subscription lasts a second longer: now the short way has a notification, too.
			r = ask(name)
			take(t, b, r)
			give(t, b, r)
		})
	}
}

// Nodes that accept no more connections say so. That passes, so it is no refusal.
func TestMaxClients(t *testing.T) {
	t.Parallel()
	c := start(t)
	for _, s := range c {
		s.Crowd()
	}
	_, err := redlock.Open(within(t, patience), c.url(slow), redlock.Config{})
	if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrRefused) || !strings.Contains(err.Error(), "max number of clients") {
		t.Error(err)
	}
}
