package redislock_test

import (
	"context"
	"fmt"
	"testing"

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

// next returns what comes next.
func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-within(t, patience).Done():
		t.Fatal("nothing comes")
		panic("unreachable")
	}
}

// Two databases of a server have locks of their own, and events of their own. A second watcher does not take the
// events from the first.
func TestEventsOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	inDatabase := func(db int) *client {
		return withSession(t, openURL(t, fmt.Sprintf("redis://%s/%d?quarantine=off&timeout=%s", s.Addr(), db, answered)))
	}
	one, other := inDatabase(0), inDatabase(1)
	events, _ := watching(t, one.Backend)
	others, _ := watching(t, other.Backend)
	other.take("other")
	one.take("one")
	more, _ := watching(t, inDatabase(0).Backend)
	one.take("two")
	for _, c := range []struct {
		events <-chan backend.Event
		name   string
	}{{events, "one"}, {others, "other"}, {events, "two"}, {more, "two"}} {
		if e := next(t, c.events); e.Name != c.name {
			t.Errorf("the event is %+v, not of %q", e, c.name)
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
	is(t, "watch", next(t, ended), backend.ErrUnavailable)
}
