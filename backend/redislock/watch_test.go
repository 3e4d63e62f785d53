package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// watching watches until the test ends. The events follow the first one, which says that it
// has begun.
func watching(t *testing.T, b *redislock.Backend) (<-chan backend.Event, <-chan error) {
	t.Helper()
	const plenty = 64
	events, ended := make(chan backend.Event, plenty), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- b.Watch(ctx, backend.WatchRequest{}, func(e backend.Event) { events <- e })
	}()
	t.Cleanup(func() { cancel(); <-done })
	if e := next(t, events); e.Kind != backend.EventWatching {
		t.Fatalf("the first is %+v", e)
	}
	return events, ended
}

func next(t *testing.T, events <-chan backend.Event) backend.Event {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-within(t, patience).Done():
		t.Fatal("there is no event")
		return backend.Event{}
	}
}

// Two databases of a server have locks of their own, and events of their own.
func TestEventsOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	inDatabase := func(db int) *redislock.Backend {
		b, err := redislock.Open(t.Context(), fmt.Sprintf("redis://%s/%d", s.Addr(), db), redislock.Config{Quarantine: redislock.NoQuarantine, RequestTimeout: answered})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	one, other := inDatabase(0), inDatabase(1)
	events, _ := watching(t, one)
	others, _ := watching(t, other)
	acquire(t, other, backend.AcquireRequest{Name: "other", Timed: true, TTL: time.Hour})
	acquire(t, one, backend.AcquireRequest{Name: "one", Timed: true, TTL: time.Hour})
	if e := next(t, events); e.Name != "one" {
		t.Errorf("the first here is %+v", e)
	}
	if e := next(t, others); e.Name != "other" {
		t.Errorf("the first there is %+v", e)
	}
	// A second watcher does not take the events from the first.
	more, _ := watching(t, inDatabase(0))
	acquire(t, one, backend.AcquireRequest{Name: "two", Timed: true, TTL: time.Hour})
	for _, c := range []<-chan backend.Event{events, more} {
		if e := next(t, c); e.Name != "two" {
			t.Errorf("then %+v", e)
		}
	}
}

// The data is lost, and with it the key of the watchers: events were missed, and that is
// reported.
func TestEventsMissed(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	_, ended := watching(t, open(t, s, cfg))
	s.Do("DEL", "{hf0}:v")
	select {
	case err := <-ended:
		if !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("watch: %v", err)
		}
	case <-within(t, patience).Done():
		t.Error("nothing was told")
	}
}

// If the disk is not waited for while the log is rewritten, grants can be lost.
func TestDurable(t *testing.T) {
	t.Parallel()
	for want, args := range map[bool][]string{true: nil, false: {"--no-appendfsync-on-rewrite", "yes"}} {
		b := open(t, testserver.Redis(t, args...), redislock.Config{})
		if got := b.Capabilities().Durable; got != want {
			t.Errorf("%q: durable is %t", args, got)
		}
	}
}
