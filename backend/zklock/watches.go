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
	set   bool     // guarded by watches.mu
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

// listing is the nodes below a node, and the watch of them.
type listing struct {
	nodes []string
	watch *watch
}

// watchQueue watches the nodes below a node, and lists them.
func (l *link) watchQueue(ctx context.Context, path string) (listing, error) {
	return call(ctx, l, func() (listing, error) {
		w, set := l.watches.join(l.watches.queues, path)
		var nodes []string
		var err error
		if set {
			nodes, _, err = l.conn.Children(path)
		} else {
			nodes, _, _, err = l.conn.ChildrenW(path)
		}
		l.watches.joined(l.watches.queues, path, w, err)
		return listing{nodes, w}, err
	})
}
