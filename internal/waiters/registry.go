package waiters

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Registry has the waiters and the listeners of a backend value. W is what the backend keeps of a waiter
// in addition, and S what it keeps of a session with a listener. Use New to make one.
type Registry[W, S any] struct {
	life  context.Context  //nolint:containedctx // ends with the backend value
	final lockstate.Losses // has a mutex of its own

	mu       sync.Mutex // guards what follows
	waiting  map[lockstate.Key][]*Waiter[W]
	sessions map[backend.SessionID]*listener[S]
}

// New returns a registry for a backend value that lives as long as life.
func New[W, S any](life context.Context) *Registry[W, S] {
	return &Registry[W, S]{
		life: life, waiting: make(map[lockstate.Key][]*Waiter[W]), sessions: make(map[backend.SessionID]*listener[S]),
	}
}

// Waiter is an Acquire. The backend adds it to the registry when its lease is in the queue.
type Waiter[W any] struct {
	Key     lockstate.Key
	Session backend.SessionID
	Timed   bool
	Own     W

	given chan Verdict // capacity 1, never closed
	gone  bool         // guarded by Registry.mu: the call has returned
}

// Verdict is the outcome for a waiter.
type Verdict struct {
	Grant backend.Grant
	Err   error
}

// Give answers the waiter. A second answer is dropped.
func (w *Waiter[W]) Give(v Verdict) {
	select {
	case w.given <- v:
	default:
	}
}

// Acquire runs a call of Backend.Acquire. ask sends the request: it returns the grant, or reports that
// the lease is in the queue. Then Acquire waits for an answer. When ctx ends during the wait, the place
// in the queue stays. Errors: those of ask and Give; ErrLost for a lease that expired on the way, or
// whose loss was reported; ErrClosed; ctx's cause.
func (g *Registry[W, S]) Acquire(ctx context.Context, req *backend.AcquireRequest, ask func(*Waiter[W]) (backend.Grant, bool, error)) (backend.Grant, error) {
	if g.final.Has(req.Session, req.Lease) && g.life.Err() == nil {
		return backend.Grant{}, backend.ErrLost
	}
	w := &Waiter[W]{Key: lockstate.Key{Name: req.Name, ID: req.Lease}, Session: req.Session, Timed: req.Timed, given: make(chan Verdict, 1)}
	defer g.remove(w)
	grant, queued, err := ask(w)
	if err == nil && queued {
		grant, err = g.wait(ctx, w)
	}
	switch {
	case err != nil:
		return backend.Grant{}, err
	case req.Timed && time.Since(grant.Asked) >= grant.Left:
		return backend.Grant{}, backend.ErrLost // it expired on the way
	case g.final.Has(req.Session, req.Lease):
		return backend.Grant{}, backend.ErrLost // an earlier grant of it was lost
	}
	return grant, nil
}

func (g *Registry[W, S]) wait(ctx context.Context, w *Waiter[W]) (backend.Grant, error) {
	select {
	case v := <-w.given:
		return v.Grant, v.Err
	case <-ctx.Done():
		return backend.Grant{}, context.Cause(ctx)
	case <-g.life.Done():
		return backend.Grant{}, backend.ErrClosed
	}
}

// Add registers a waiter, unless its call has returned.
func (g *Registry[W, S]) Add(w *Waiter[W]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !w.gone && !slices.Contains(g.waiting[w.Key], w) {
		g.waiting[w.Key] = append(g.waiting[w.Key], w)
	}
}

func (g *Registry[W, S]) remove(w *Waiter[W]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.gone = true
	ws := slices.DeleteFunc(g.waiting[w.Key], func(x *Waiter[W]) bool { return x == w })
	if len(ws) > 0 {
		g.waiting[w.Key] = ws
	} else {
		delete(g.waiting, w.Key)
	}
}

// Of returns the waiters for a lease.
func (g *Registry[W, S]) Of(k lockstate.Key) []*Waiter[W] {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.waiting[k])
}

// Leases returns the leases that have waiters, in no order.
func (g *Registry[W, S]) Leases() []lockstate.Key {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.waiting))
}

// Len returns how many leases have waiters, and how many sessions have listeners.
func (g *Registry[W, S]) Len() (int, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting), len(g.sessions)
}

// listener receives the losses of a session.
type listener[S any] struct {
	tell func(backend.Loss)
	told lockstate.Losses // so that a loss that is read again is not reported again
	open bool             // the store has confirmed the session
	own  S
	// calls counts the calls of OpenSession in progress.
	calls int
}

// Listen registers the listener of a session, or replaces it, before the request to open the session: it
// may be lost before the reply arrives. The caller calls the result when it has the reply. That removes
// the listener if no call has opened the session: a client that is refused tries a new ID each time. If
// the outcome is unknown, the session may exist, but nothing can be held under it, and another call
// registers another listener.
func (g *Registry[W, S]) Listen(id backend.SessionID, lost func(backend.Loss)) func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.sessions[id]
	if l == nil {
		l = new(listener[S])
		g.sessions[id] = l
	}
	l.tell = lost
	l.calls++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		l.calls--
		if l.calls == 0 && !l.open && g.sessions[id] == l {
			delete(g.sessions, id)
		}
	}
}

// Opened notes that the store has the session, and what the backend keeps of it.
func (g *Registry[W, S]) Opened(id backend.SessionID, own S) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.sessions[id]; l != nil {
		l.open, l.own = true, own
	}
}

// Sessions returns the sessions with listeners that the store has, in no order. The loop must not call
// the registry.
func (g *Registry[W, S]) Sessions() iter.Seq2[backend.SessionID, S] {
	return func(yield func(backend.SessionID, S) bool) {
		g.mu.Lock()
		defer g.mu.Unlock()
		for id, l := range g.sessions {
			if l.open && !yield(id, l.own) {
				return
			}
		}
	}
}

// Listened returns the sessions with listeners, in no order. The store need not have them yet.
func (g *Registry[W, S]) Listened() []backend.SessionID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.sessions))
}

// Listens reports whether the session has a listener, and whether the store is known to have it.
func (g *Registry[W, S]) Listens(id backend.SessionID) (bool, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.sessions[id]
	return l != nil, l != nil && l.open
}

// Report reports a loss to the listener of its session, once. The lease is not granted here again. The
// loss of a session removes its listener. A loss without a listener is another value's to report.
func (g *Registry[W, S]) Report(x backend.Loss) {
	g.mu.Lock()
	var tell func(backend.Loss)
	if l := g.sessions[x.Session]; l != nil {
		g.final.Add(x)
		if !l.told.Has(x.Session, x.Lease) && g.life.Err() == nil {
			tell = l.tell // another OpenSession of the session replaces it
		}
		l.told.Add(x)
	}
	if x.Lease == "" {
		delete(g.sessions, x.Session)
	}
	g.mu.Unlock()
	if tell != nil {
		tell(x)
	}
}

// Renewed notes the losses that a renewal reports. They are the answer of a call, so that the listener
// does not get them.
func (g *Registry[W, S]) Renewed(losses []backend.Loss) { g.final.Add(losses...) }

// Forget removes the listener of a session that has ended, without notifying it.
func (g *Registry[W, S]) Forget(id backend.SessionID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sessions, id)
	g.final.Drop(id)
}
