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
	for _, mode := range []backend.Mode{backend.Exclusive, backend.Shared} { // the short way and the long way
		r := ask("n", func(r *backend.AcquireRequest) { r.Mode, r.TTL = mode, 30*time.Second })
		take(t, b, r)
		done := make(chan error, 1)
		go func() {
			next := ask("n", waiting, func(r *backend.AcquireRequest) { r.TTL = 30 * time.Second })
			_, err := other.Acquire(within(t, patience), next)
			if err == nil {
				err = other.Release(t.Context(), backend.ReleaseRequest{Name: "n", Lease: next.Lease})
			}
			done <- err
		}()
		leasetest.Succeeds(t, func() error {
			for _, s := range c {
				if all, _ := s.Do("PUBSUB", "CHANNELS").([]any); len(all) == 0 {
					return errors.New("no client waits")
				}
			}
			return nil
		})
		if err := b.Release(t.Context(), backend.ReleaseRequest{Name: "n", Lease: r.Lease}); err != nil {
			t.Errorf("release of a %v lease: %v", mode, err)
		}
		if err := <-done; err != nil {
			t.Errorf("the waiter got %v", err)
		}
		// Its subscription lasts a second longer: now the short way has a notification, too.
		r = ask("n")
		take(t, b, r)
		give(t, b, r)
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
