package zklock

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// spot is a place in the queue of a lock.
type spot struct {
	lock  string // path
	place int32
}

// spotOf returns the spot of the entry with that path.
func spotOf(path string) (spot, bool) {
	place, err := strconv.ParseInt(path[strings.LastIndexByte(path, '.')+1:], 10, 32)
	return spot{path[:strings.LastIndexByte(path, '/')], int32(place)}, err == nil
}

// nodeOf returns the name of the entry with that path, below its lock.
func nodeOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// lease is what is known of a lease of a session. Its Entry is the path of its node.
type lease = seqlock.Lease[handOver]

// handOver is what a lease needs for hand-overs within the session: see follow.
type handOver struct {
	alone bool          // it is exclusive and holds the lock
	next  *lease        // the lease right behind it that waits for its end; exclusive
	moved chan struct{} // closed when the one before has ended; nil: no caller waits
}

// A hand-over from one exclusive lease of a session to another one of it needs no watch and no
// read. A waiter right behind an entry of its own session follows it: the transaction that deletes
// the entry checks that the follower's exists. If the deleted entry held the lock, which means that
// none was before it, then none is before the follower now, and none can have come between: places
// only grow. All of that follows from that one answer of the ensemble. The state that is kept here
// only determines which entry to check.
//
// Whenever the entry before ends in another way, the follower is woken to read.

// place records where the entry of an exclusive lease is, so that it can be followed. The mutex of the
// leases is held, as in all functions here that do not lock it.
func (s *session) place(l *lease, mode backend.Mode) {
	if at, ok := spotOf(l.Entry); ok && mode == backend.Exclusive && !l.IsGone() {
		s.entries[at] = l
	}
}

// unplace forgets where the entry is, and wakes the follower.
func (s *session) unplace(l *lease) {
	l.Store.alone = false
	wakeNext(l)
	l.Store.next = nil
	if l.Entry == "" {
		return
	}
	if at, ok := spotOf(l.Entry); ok && s.entries[at] == l {
		delete(s.entries, at)
	}
}

// wakeNext makes the follower read.
func wakeNext(l *lease) {
	if n := l.Store.next; n != nil && n.Store.moved != nil && !isClosed(n.Store.moved) {
		close(n.Store.moved)
	}
}

// follow returns a channel that is closed when the entry at the spot has ended, and the path of
// that entry. It returns nil if the session has no entry there.
func (s *session) follow(mine *lease, at spot) (<-chan struct{}, string) {
	s.leases.Lock()
	defer s.leases.Unlock()
	before, ok := s.entries[at]
	if !ok || before == mine {
		return nil, ""
	}
	if before.Store.next != mine {
		wakeNext(before)
		before.Store.next = mine
	}
	if mine.Store.moved == nil || isClosed(mine.Store.moved) {
		mine.Store.moved = make(chan struct{})
	}
	return mine.Store.moved, before.Entry
}

// followerOf returns the waiter that gets the lock when the entry is deleted, or nil if that has to
// be read.
func followerOf(l *lease) *lease {
	if n := l.Store.next; l.Store.alone && n != nil && n.Entry != "" && !n.Unsure && !n.IsGone() {
		return n
	}
	return nil
}

// isAlone reports whether the lease is known to hold the lock alone.
func (s *session) isAlone(l *lease) bool {
	s.leases.Lock()
	defer s.leases.Unlock()
	return l.Store.alone
}

// setAlone records that the lease holds the lock alone.
func (s *session) setAlone(l *lease) {
	s.leases.Lock()
	defer s.leases.Unlock()
	l.Store.alone = true
}

const (
	// safety is when a waiter reads although nothing woke it.
	safety = 30 * time.Second
	// lookout is when a waiter that follows an entry of its own session also watches it: another
	// client may delete the entry. Most waiters have the lock by then.
	lookout = time.Second
)

// behindOwn waits behind the entry that was made right before this one, if it belongs to the same
// session. It reports whether that entry handed the lock over. If not, the queue must be read.
func (a *acquisition) behindOwn(ctx context.Context) (bool, error) {
	at, ok := spotOf(a.own.path)
	if !ok {
		return false, nil
	}
	at.place--
	moved, before := a.s.follow(a.mine, at)
	if moved == nil {
		return false, nil
	}
	return a.await(ctx, waking{moved: moved}, before)
}

// await waits for the end of another entry, and watches it; if it follows an entry of its own session, only after
// a while. It reports whether the lease certainly holds the lock. If not, the queue must be read.
func (a *acquisition) await(ctx context.Context, w waking, other string) (bool, error) {
	if w.moved != nil {
		out, err := a.rest(ctx, w, lookout)
		if out || err != nil || isClosed(w.moved) || a.mine.IsGone() {
			return out, err
		}
	}
	w.connected = a.s.link.connected.Load()
	var err error
	w.queue, w.mine, err = a.watchBoth(ctx, other)
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return a.rest(ctx, w, safety) // an occasional read costs little, and finds what no watch reported
}

// watchBoth watches the node of another entry, and its own. zk.ErrNoNode: one of them does not exist.
func (a *acquisition) watchBoth(ctx context.Context, other string) (*watch, *watch, error) {
	var watches [2]*watch
	var errs [2]error
	var both sync.WaitGroup
	for i, path := range []string{other, a.own.path} {
		both.Go(func() { watches[i], errs[i] = a.s.link.watchNode(ctx, path) })
	}
	both.Wait()
	return watches[0], watches[1], cmp.Or(errs[0], errs[1]) //nolint:wrapcheck // fail maps it
}

// waking holds the signals that may wake a waiter.
type waking struct {
	moved <-chan struct{} // the entry before, of the same session, has ended
	queue *watch          // the queue has changed
	mine  *watch          // its own entry has changed
	// sole is true if the queue is one exclusive lease that holds the lock, and then this one, and
	// both have been watched since the session was connected the given number of times.
	sole      bool
	connected int64
}

// rest waits until something may have changed. It reports whether the lease certainly holds the
// lock now.
func (a *acquisition) rest(ctx context.Context, w waking, within time.Duration) (bool, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-w.moved:
	case <-w.queue.done():
		if w.sole && w.queue.event.Type == zk.EventNodeDeleted && a.still(w) {
			return true, nil
		}
	case <-w.mine.done():
	case <-timer.C:
	case <-a.s.leases.Gone(a.mine):
		return false, nil
	case <-a.s.Life.Done():
		return false, backend.ErrSessionLost
	case <-a.s.link.life.Done():
		return false, backend.ErrSessionLost
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	return a.s.isAlone(a.mine), nil
}

// still reports whether the waiter's own entry existed when the one before it was deleted. The
// ensemble sends events in the order in which they happen, but not those that happened while the
// connection was broken.
func (a *acquisition) still(w waking) bool {
	return !isClosed(w.mine.done()) && w.connected == a.s.link.connected.Load()
}

// Wait waits until the queue has moved, and lists it, or reports that the lease is held by now.
func (a *acquisition) Wait(ctx context.Context, q queue, i int) (queue, bool, error) {
	a.waited = true
	var w waking
	behind := a.req.Mode == backend.Exclusive && i > 0 && !q.All[i].apart
	if behind && q.All[i-1].session == a.s.ID {
		w.moved, _ = a.s.follow(a.mine, spot{a.lock, q.All[i-1].place})
	}
	j, one := q.Blocker(i)
	if !one {
		q, err := a.inQueue(ctx)
		return q, false, err
	}
	w.sole = i == 1 && behind && q.All[0].claim.Mode == backend.Exclusive
	out, err := a.await(ctx, w, a.lock+"/"+q.All[j].node)
	if err != nil || out {
		return queue{}, out, err
	}
	q, err = a.Read(ctx)
	return q, false, err
}

// inQueue waits for as long as the entry stands in the queue and any change may let it in. It returns the queue
// in which it stands no more, or may be let in.
func (a *acquisition) inQueue(ctx context.Context) (queue, error) {
	node := nodeOf(a.own.path)
	for {
		now, err := a.s.link.watchQueue(ctx, a.lock)
		q := now.queue
		i := q.Find(a.req.Lease)
		if now.joined && (err != nil || i < 0 || q.All[i].node != node) { // its request may be from before the entry was made
			return a.Read(ctx)
		}
		if errors.Is(err, zk.ErrNoNode) {
			return queue{}, nil
		}
		if err != nil {
			return queue{}, err
		}
		stands := i >= q.Out && q.All[i].node == node && q.CheckLimit(a.req, i) == nil
		if !stands || a.mine.IsGone() {
			return q, nil
		}
		if _, err := a.rest(ctx, waking{queue: now.watch}, safety); err != nil {
			return queue{}, err
		}
	}
}
