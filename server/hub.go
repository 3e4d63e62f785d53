package server

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// hub watches the backend once, for all event streams. It watches only while there is at least
// one stream.
type hub struct {
	b       backend.Backend
	backlog int
	losses  *losses

	mu     sync.Mutex
	subs   map[*subscription]struct{}
	live   bool               // the upstream watch delivers
	cancel context.CancelFunc // of the upstream watch; nil when there is none
	closed bool
	work   sync.WaitGroup
}

// subscription is one stream. Hub.mu guards lag.
type subscription struct {
	prefix string
	lag    []backend.Event // events not taken yet, at most backlog of them
	more   chan struct{}   // capacity 1: lag may have events
	ended  chan struct{}   // closed when why is set: no more events come
	why    error
}

var errSlow = errors.New("the stream was read too slowly: events were missed")

func newHub(b backend.Backend, backlog int, l *losses) *hub {
	return &hub{b: b, backlog: backlog, losses: l, subs: make(map[*subscription]struct{})}
}

// subscribe starts a stream. Its first event is EventWatching.
func (h *hub) subscribe(prefix string) *subscription {
	sub := &subscription{prefix: prefix, more: make(chan struct{}, 1), ended: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		sub.end(errStopping)
		return sub
	}
	h.subs[sub] = struct{}{}
	if h.live {
		sub.add(backend.Event{Kind: backend.EventWatching, At: time.Now()})
	}
	if h.cancel == nil {
		ctx, cancel := context.WithCancel(context.Background())
		h.cancel = cancel
		h.work.Go(func() { h.watch(ctx) })
	}
	return sub
}

// unsubscribe ends a stream. The last one ends the watch.
func (h *hub) unsubscribe(sub *subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, sub)
	if len(h.subs) == 0 {
		h.stopLocked()
	}
}

func (h *hub) stopLocked() {
	if h.cancel != nil {
		h.cancel()
		h.cancel, h.live = nil, false
	}
}

// add appends an event. Hub.mu is held.
func (sub *subscription) add(e backend.Event) {
	sub.lag = append(sub.lag, e)
	sub.wake()
}

func (sub *subscription) wake() {
	select {
	case sub.more <- struct{}{}:
	default:
	}
}

// take returns the next events. The events of a stream that has ended are lost.
func (h *hub) take(sub *subscription) []backend.Event {
	const most = 64
	h.mu.Lock()
	defer h.mu.Unlock()
	next := sub.lag[:min(len(sub.lag), most)]
	if sub.lag = sub.lag[len(next):]; len(sub.lag) > 0 {
		sub.wake()
	} else {
		sub.lag = nil
	}
	return next
}

// end is called once, by the goroutine that removed sub from the hub.
func (sub *subscription) end(why error) {
	sub.why = why
	close(sub.ended)
}

func (h *hub) endAllLocked(why error) {
	for sub := range h.subs {
		delete(h.subs, sub)
		sub.end(why)
	}
}

// watch keeps the upstream watch running until ctx ends.
func (h *hub) watch(ctx context.Context) {
	pause := 10 * time.Millisecond
	for {
		err := h.b.Watch(ctx, backend.WatchRequest{}, func(e backend.Event) {
			pause = 10 * time.Millisecond
			h.deliver(ctx, e)
		})
		h.mu.Lock()
		if ctx.Err() != nil {
			h.mu.Unlock()
			return
		}
		h.live = false
		if !errors.Is(err, backend.ErrUnavailable) {
			h.endAllLocked(err)
			h.stopLocked()
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		t := time.NewTimer(pause)
		select {
		case <-t.C:
			pause = min(2*pause, time.Second)
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// deliver passes an event to the streams. A stream whose backlog is full is ended, so that it
// never delays the others.
func (h *hub) deliver(ctx context.Context, e backend.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return // another watch has taken over
	}
	switch e.Kind { //nolint:exhaustive // the others change nothing here
	case backend.EventWatching:
		h.live = true
	case backend.EventBroken, backend.EventExpired:
		h.losses.note(e)
	}
	for sub := range h.subs {
		if e.Kind != backend.EventWatching && !strings.HasPrefix(e.Name, sub.prefix) {
			continue
		}
		if len(sub.lag) == h.backlog {
			delete(h.subs, sub)
			sub.end(errSlow)
			continue
		}
		sub.add(e)
	}
	if len(h.subs) == 0 {
		h.stopLocked()
	}
}

// close ends all streams and the watch.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	h.endAllLocked(errStopping)
	h.stopLocked()
	h.mu.Unlock()
	h.work.Wait()
}
