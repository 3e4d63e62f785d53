package zklock

import (
	"context"
	"sync"

	"github.com/go-zookeeper/zk"
)

// watches are the watches of a link. The library adds a channel for each request that sets a watch,
// and drops it only when the watch fires: waits that end earlier, of which a lock that is held for
// long may see many, would pile up. So all waits for one node share a watch.
//
// The library calls event in the order of the events, and watches fire within that call, so they
// fire in that order, too.
type watches struct {
	mu     sync.Mutex
	nodes  map[string]*watch // of a node, by path
	queues map[string]*watch // of the nodes below it
}

// watch is closed when something has changed.
type watch struct {
	fired chan struct{}
	event zk.Event // read after fired is closed; zero: the watch could not be set

	// Guarded by watches.mu:
	set     bool
	reading *reading // in progress; nil: none
}

func newWatches() *watches {
	return &watches{nodes: make(map[string]*watch), queues: make(map[string]*watch)}
}

// done returns a channel that is closed when something has changed. Nil: never.
func (w *watch) done() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.fired
}

// join returns the watch of a path, and whether it is set: if not, the caller sets it.
func (s *watches) join(all map[string]*watch, path string) (*watch, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := all[path]
	if !ok {
		w = &watch{fired: make(chan struct{})}
		all[path] = w
	}
	return w, w.set
}

// joined records how the request that joined the watch ended. If no request has set it, all that
// joined it read again.
func (s *watches) joined(all map[string]*watch, path string, w *watch, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.set = w.set || err == nil
	if !w.set && all[path] == w {
		s.fire(all, zk.Event{Path: path})
	}
}

// event fires the watches that the event concerns.
func (s *watches) event(e zk.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := e.Type == zk.EventNodeDeleted
	if gone || e.Type == zk.EventNodeDataChanged {
		s.fire(s.nodes, e)
	}
	if gone || e.Type == zk.EventNodeChildrenChanged {
		s.fire(s.queues, e)
	}
}

// fire fires a watch. The mu is held.
func (s *watches) fire(all map[string]*watch, e zk.Event) {
	if w, ok := all[e.Path]; ok {
		delete(all, e.Path)
		w.event = e
		close(w.fired)
	}
}

// watchNode watches a node. zk.ErrNoNode: it does not exist. It reads the node even if it is watched
// already: the answer shows that the watch is in force on the present connection.
func (l *link) watchNode(ctx context.Context, path string) (*watch, error) {
	return call(ctx, l, func() (*watch, error) {
		w, set := l.watches.join(l.watches.nodes, path)
		var err error
		if set {
			_, _, err = l.conn.Get(path)
		} else {
			_, _, _, err = l.conn.GetW(path)
		}
		l.watches.joined(l.watches.nodes, path, w, err)
		return w, err
	})
}

// listing is the queue of a lock, and the watch of it.
type listing struct {
	queue  queue    // of several callers: none changes it
	stat   *zk.Stat // of the lock
	watch  *watch
	joined bool // another request had been sent before, and this is its answer
}

// reading is a request for a listing that is in progress.
type reading struct {
	watched bool          // the watch was set before
	done    chan struct{} // closed when it was answered
	queue   queue
	stat    *zk.Stat
	err     error
}

// watchQueue watches the nodes below the node of a lock, and lists them. A change wakes all that wait for the node, and
// the first of them reads for the others: those that come while its request is in progress get its answer. That
// request was sent after the change, because each change has a watch of its own.
func (l *link) watchQueue(ctx context.Context, path string) (listing, error) {
	return call(ctx, l, func() (listing, error) {
		w, _ := l.watches.join(l.watches.queues, path)
		r, mine := l.watches.read(w)
		if !mine {
			<-r.done
			return listing{r.queue, r.stat, w, true}, r.err
		}
		var nodes []string
		if r.watched {
			nodes, r.stat, r.err = l.conn.Children(path)
		} else {
			nodes, r.stat, _, r.err = l.conn.ChildrenW(path)
		}
		r.queue = newQueue(nodes)
		l.watches.joined(l.watches.queues, path, w, r.err)
		l.watches.hasRead(w, r)
		return listing{r.queue, r.stat, w, false}, r.err
	})
}

// read returns the request that lists the nodes for the watch, and whether the caller has to send it.
func (s *watches) read(w *watch) (*reading, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.reading != nil {
		return w.reading, false
	}
	w.reading = &reading{watched: w.set, done: make(chan struct{})}
	return w.reading, true
}

// hasRead passes the answer on. Later callers read again.
func (s *watches) hasRead(w *watch, r *reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.reading = nil
	close(r.done)
}
