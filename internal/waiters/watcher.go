package waiters

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// MaxBehind is the number of undelivered events that a watcher may have.
const MaxBehind = 1 << 16

var errBehind = errors.New("the watcher fell behind")

// Watcher is a Watch in progress: the events that it has to deliver. Use NewWatcher to make one.
type Watcher struct {
	backend, prefix string
	some            chan struct{} // capacity 1, never closed: there is something to do

	mu     sync.Mutex // guards what follows
	events []backend.Event
	err    error // why events are missing from here on
}

// NewWatcher returns a watcher of the locks of a backend whose names start with the prefix. Its first event is EventWatching.
func NewWatcher(name, prefix string, at time.Time) *Watcher {
	return &Watcher{
		backend: name, prefix: prefix, some: make(chan struct{}, 1), events: []backend.Event{{Kind: backend.EventWatching, At: at}},
	}
}

// Add adds an event, if it is of a lock that is watched.
func (w *Watcher) Add(e backend.Event) {
	if !strings.HasPrefix(e.Name, w.prefix) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
	case len(w.events) == MaxBehind:
		w.err = &backend.UnavailableError{Backend: w.backend, Op: "watch", Err: errBehind}
	default:
		w.events = append(w.events, e)
	}
	Signal(w.some)
}

// Stop ends the watcher after the events that it has.
func (w *Watcher) Stop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	Signal(w.some)
}

// Deliver delivers the events until ctx ends; the error is then ctx's cause. Other errors: ErrClosed when
// closed is closed; that of Stop; *UnavailableError where MaxBehind events wait for deliver.
func (w *Watcher) Deliver(ctx context.Context, closed <-chan struct{}, deliver func(backend.Event)) error {
	for {
		w.mu.Lock()
		events, err := w.events, w.err
		w.events = nil
		w.mu.Unlock()
		for _, e := range events {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			deliver(e)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-closed:
			return backend.ErrClosed
		case <-w.some:
		}
	}
}
