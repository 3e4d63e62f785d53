package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// Acquire makes the entry of the lease, and waits until it is held. Where the loss of the lease is reported in the
// meantime, tell and created delete the entry.
func (st store) Acquire(ctx context.Context, s *session, l *lease, req *backend.AcquireRequest) (backend.Grant, error) {
	a := &acquisition{b: st.Backend, s: s, mine: l, req: req, lock: st.lockPath(req.Name)}
	return a.run(ctx)
}

// acquisition is one Acquire in progress. It implements seqlock.Place.
type acquisition struct {
	b    *Backend
	s    *session
	mine *lease
	req  *backend.AcquireRequest
	lock string   // path
	own  standing // its entry

	waited bool
}

func (a *acquisition) run(ctx context.Context) (backend.Grant, error) {
	for {
		e, err := a.enter(ctx)
		if err == nil {
			a.own = e
			return a.stand(ctx)
		}
		full, ok := errors.AsType[*fullError](err)
		if !ok {
			return backend.Grant{}, err
		}
		if err := a.startOver(ctx, full.container); err != nil {
			return backend.Grant{}, err
		}
	}
}

// standing is an entry that was found or made.
type standing struct {
	path  string
	token fence.Token // if it was made just now; else 0
	sole  bool        // it was the only one of its lock when it was made
}

// enter finds the entry of the lease, or makes it.
func (a *acquisition) enter(ctx context.Context) (standing, error) {
	done, err := a.s.leases.Turn(ctx, a.mine)
	if err != nil {
		return standing{}, &unsent{err}
	}
	path, err := a.find(ctx)
	if path != "" || err != nil {
		done()
		return standing{path: path}, err
	}
	return a.create(ctx, done)
}

// find returns the path of the entry that an earlier request for the lease made; empty: there is none. An entry of
// another session belongs to that session, even while it waits: it may be granted by the time it is taken over, and
// then its holder would not know.
func (a *acquisition) find(ctx context.Context) (string, error) {
	a.s.leases.Lock()
	path, unsure := a.mine.Entry, a.mine.Unsure
	a.s.leases.Unlock()
	if path != "" || !unsure && a.req.Wait {
		return path, nil
	}
	q, err := a.b.look(ctx, a.s.link, a.lock, unsure)
	if err != nil {
		return "", err
	}
	i := q.Find(a.req.Lease)
	if i < 0 {
		return "", seqlock.CheckRoom(ctx, a, a.req, q)
	}
	if q.All[i].session != a.req.Session {
		return "", backend.ErrLost
	}
	path = a.lock + "/" + q.All[i].node
	a.settle(path)
	return path, nil
}

// settle records where the entry is.
func (a *acquisition) settle(path string) {
	a.s.leases.Lock()
	defer a.s.leases.Unlock()
	a.mine.Entry, a.mine.Unsure = path, false
	a.s.place(a.mine, a.req.Mode)
}

// create makes the entry. If the outcome is unknown here, a retry looks for the entry first, and so
// does the release that abandons the lease. create calls done when the attempt has ended, which may
// be after the return.
func (a *acquisition) create(ctx context.Context, done func()) (standing, error) {
	a.s.leases.Lock()
	gone := a.mine.IsGone()
	a.mine.Unsure = a.mine.Unsure || !gone
	a.s.leases.Unlock()
	if gone {
		done()
		return standing{}, backend.ErrLost
	}
	e, err := call(ctx, a.s.link, func() (standing, error) {
		defer done()
		e, err := a.join()
		if _, full := errors.AsType[*fullError](err); full {
			a.s.clear(a.mine.Key, "")
		}
		if final := a.created(e.path, err); final {
			a.s.clear(a.mine.Key, "")
			a.s.leases.Forget(a.mine)
			a.s.leases.Part(a.mine)
		}
		return e, err
	})
	if _, never := errors.AsType[*unsent](err); never {
		a.created("", err)
		done()
	}
	return e, err
}

// collected is when a lock that was not used here may have been collected: the ensemble does that with those
// that are empty, once a minute as a rule.
const collected = 20 * time.Second

// join makes the entry, in one transaction with a write to its lock. The answer reports how many
// entries there are now, and the ID of the transaction, which is the token: the leader counts them,
// over all its terms. *fullError: the entry has no place, and must be deleted.
func (a *acquisition) join() (standing, error) {
	data, err := json.Marshal(content{Owner: a.req.Owner, Note: a.req.Note, TTL: int64(a.s.TTL)})
	if err != nil {
		return standing{}, fmt.Errorf("encode the lease: %w", err)
	}
	ops := []any{
		&zk.CreateRequest{
			Path: a.lock + "/" + prefix(a.req), Acl: a.b.cfg.acl(), Flags: zk.FlagEphemeral | zk.FlagSequence, Data: data,
		},
		&zk.SetDataRequest{Path: a.lock, Version: -1},
	}
	var res []zk.MultiResponse
	for range 10 { // the container may be collected as soon as it is empty
		if !a.b.made.Has(a.lock) {
			if e, err := a.joinNew(ops); !errors.Is(err, zk.ErrNodeExists) {
				return e, err
			}
		}
		if res, err = a.s.batcher.write(&change{ops: ops, lock: a.lock}); !errors.Is(err, zk.ErrNoNode) {
			break
		}
		a.b.made.Drop(a.lock)
	}
	if err != nil {
		return standing{}, err
	}
	a.b.made.Add(a.lock)
	path, stat := res[0].String, res[1].Stat
	if at, ok := spotOf(path); !ok || !isPlace(at.place) {
		return standing{}, &fullError{stat.Czxid}
	}
	return standing{path: path, token: fence.Token(stat.Mzxid), sole: stat.NumChildren == 1}, nil //nolint:gosec // it counts up from 0
}

// joinNew makes the container with the entry in it, in one transaction: the ensemble never collects a
// container that had no entry. zk.ErrNodeExists: the container exists.
func (a *acquisition) joinNew(ops []any) (standing, error) {
	container := &zk.CreateRequest{Path: a.lock, Acl: a.b.cfg.acl(), Flags: zk.FlagContainer}
	// The library decodes each refusal, but not the answer to the creation of a container: then it
	// returns ErrAPIError. So the change shares no transaction, and the token is read.
	_, err := a.s.batcher.multi(append([]any{container}, ops...))
	if err != nil && !errors.Is(err, zk.ErrAPIError) {
		return standing{}, err
	}
	a.b.made.Add(a.lock)
	e := standing{path: a.lock + "/" + prefix(a.req) + firstPlace}
	there, stat, err := a.s.link.conn.Exists(e.path)
	if err == nil && there {
		e.token, e.sole = fence.Token(stat.Czxid), true //nolint:gosec // it counts up from 0
	}
	return e, err
}

// created records how the create ended, also when no caller waits for it any more. It returns true if
// the lease must not be granted, and may have an entry now, because its release may have read the queue
// before the entry was made. The caller must delete the entry before it returns: nothing else would.
func (a *acquisition) created(path string, err error) bool {
	a.s.leases.Lock()
	defer a.s.leases.Unlock()
	switch {
	case a.mine.IsGone() && !refused(err):
		// clear counts as a caller, so that no other request for the lease makes an entry that would be
		// deleted, too.
		a.mine.Entry = path
		a.mine.Callers++
		return true
	case err == nil:
		a.mine.Entry, a.mine.Unsure = path, false
		a.s.place(a.mine, a.req.Mode)
	case refused(err):
		a.mine.Unsure = false
	}
	a.s.leases.Drop(a.mine)
	return false
}

// clear deletes the entries of a lease that must never be granted, because no caller will: one was
// told that nothing is left of it. If the path is not empty, it does so only if that entry exists.
func (s *session) clear(k seqlock.Key, path string) {
	for {
		there, err := true, error(nil)
		if path != "" {
			there, _, err = s.link.conn.Exists(path)
		}
		if err == nil && there {
			_, err = s.b.removeLease(s.Life, s.link, k)
		}
		if err == nil || !retry.Pause(s.Life, s.b.cfg.Tick/2) {
			return // or it went with its session
		}
	}
}

// look lists the queue. catchUp lets the server catch up with its leader first.
func (b *Backend) look(ctx context.Context, l *link, lock string, catchUp bool) (queue, error) {
	nodes, err := l.children(ctx, lock, catchUp)
	return newQueue(nodes), err
}

// stand waits until the entry is granted.
func (a *acquisition) stand(ctx context.Context) (backend.Grant, error) {
	own := &a.own
	if own.sole {
		return a.grant(), nil
	}
	fresh := own.token != 0
	if fresh && a.req.Wait && a.req.Mode == backend.Exclusive { // nodes that existed when it was made stood before it
		a.waited = true
		out, err := a.behindOwn(ctx)
		if err != nil {
			return backend.Grant{}, err
		}
		if out {
			return a.grant(), nil
		}
	}
	q, err := a.Read(ctx)
	if err == nil && !fresh {
		own.token, err = a.tokenOf(ctx)
	}
	if err == nil {
		err = seqlock.Stand(ctx, a, a.req, q, fresh)
	}
	if err != nil {
		return backend.Grant{}, err
	}
	return a.grant(), nil
}

// tokenOf reads the token of an entry that an earlier request made: the ID of the transaction.
func (a *acquisition) tokenOf(ctx context.Context) (fence.Token, error) {
	stat, err := a.s.link.stat(ctx, a.own.path)
	if err != nil {
		return 0, err
	}
	if stat == nil {
		return 0, a.vanished(ctx)
	}
	return fence.Token(stat.Czxid), nil //nolint:gosec // it counts up from 0
}

// Read reads the queue.
func (a *acquisition) Read(ctx context.Context) (queue, error) {
	return a.b.look(ctx, a.s.link, a.lock, false)
}

// Check returns an error if the entry is gone, or stands behind another one of the lease.
func (a *acquisition) Check(ctx context.Context, q queue, i int) error {
	switch {
	case i < 0 || a.mine.IsGone():
		return a.vanished(ctx)
	case q.All[i].node != nodeOf(a.own.path):
		return a.displaced(ctx, q.All[i])
	}
	return nil
}

// vanished returns the error for an entry that no longer exists: it was broken, released or
// abandoned, or the session is gone.
func (a *acquisition) vanished(ctx context.Context) error {
	if a.s.Life.Err() != nil || a.s.link.life.Err() != nil {
		return backend.ErrSessionLost
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	a.s.leases.Forget(a.mine)
	return backend.ErrLost
}

// displaced returns the error for an entry behind another one of the same lease. It deletes it,
// because it would get the lock after that one. The other one belongs to another session, which
// has the lease, or was made by a request whose outcome was unknown.
func (a *acquisition) displaced(ctx context.Context, first entry) error {
	if first.session == a.s.ID {
		if err := a.b.remove(ctx, a.s.link, a.lock+"/"+first.node); err != nil {
			return err
		}
	}
	if err := a.b.remove(ctx, a.s.link, a.own.path); err != nil {
		return err
	}
	a.s.leases.Forget(a.mine)
	return backend.ErrLost
}

// grant returns the grant of the lease, which holds the lock.
func (a *acquisition) grant() backend.Grant {
	if a.req.Mode == backend.Exclusive {
		a.s.setAlone(a.mine)
	}
	return backend.Grant{Token: a.own.token, Since: time.Now(), Waited: a.waited}
}
