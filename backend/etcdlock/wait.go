package etcdlock

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// safetyTime is when a waiter reads although nothing woke it. Watches resume by themselves and
// report when they cannot: this is for unforeseen cases.
const safetyTime = 15 * time.Second

func token(rev int64) fence.Token { return fence.Token(rev) } //nolint:gosec // revisions are positive

// verdict is what a waiter found when it read.
type verdict struct {
	own  *entry
	held bool
	need need
	rev  int64
}

// wait blocks until the entry with that create revision is at the head of the queue. seen is what
// is known of the queue.
func (a *acquisition) wait(ctx context.Context, own int64, seen verdict) (backend.Grant, error) {
	l := a.b.queues
	w := &waiter{lease: a.req.Lease, rev: own, sess: a.sess}
	if at, ok := a.b.slots.find(a.p.leaseKey); ok && at.rev == own && a.req.Mode == backend.Exclusive && !a.req.Timed {
		w.key = at.key // a timed lease has to move first
	}
	l.join(a.req.Name, w)
	defer l.leave(w)
	timer := time.NewTimer(safetyTime/2 + rand.N(safetyTime/2))
	defer timer.Stop()
	v, known := seen, true
	byTimer := false
	for failures := 0; ; {
		if known && l.await(w, v.need, v.rev) {
			byTimer = false
			select {
			case <-w.wake:
			case <-a.sess.life.Done():
				return backend.Grant{}, context.Cause(a.sess.life)
			case <-ctx.Done():
				return backend.Grant{}, context.Cause(ctx)
			case <-timer.C:
				byTimer = true
				timer.Reset(safetyTime/2 + rand.N(safetyTime/2))
			}
		}
		if asked := l.took(w); !asked.IsZero() {
			a.asked = asked
			return a.grant(grantOf{rev: own, waited: true}), nil
		}
		var err error
		known = false
		if v, err = a.look(ctx, w, own, byTimer); err == nil {
			if v.held {
				g, err := a.promote(ctx, v.own, true)
				g.ByTimer = byTimer && err == nil
				return g, err
			}
			known, failures = true, 0
			continue
		}
		if final(err) {
			return backend.Grant{}, err
		}
		if denied(err) || !retry.Until(delay(failures), ctx.Done(), a.sess.life.Done()) {
			return backend.Grant{}, a.over(ctx, err)
		}
		failures++
	}
}

// look reads where the entry stands. The result is of one moment: the entry, and with it the
// session, was alive then (a waiter that trusts the wake-up alone may be granted after its own
// death: etcd-io/etcd#11456).
func (a *acquisition) look(ctx context.Context, w *waiter, own int64, force bool) (verdict, error) {
	since := a.b.queues.check(w)
	if force {
		since = math.MaxInt64
	}
	at, ok := a.b.slots.find(a.p.leaseKey)
	if !ok { // it was released in the meantime
		return verdict{}, a.vanished(ctx)
	}
	if a.req.Mode == backend.Shared {
		return a.lookShared(ctx, w, own, since)
	}
	a.asked = time.Now()
	k := a.b.keys
	queue := k.entries(a.req.Name)
	resp, err := a.b.txn(ctx, opAcquire, false, nil, []clientv3.Op{
		clientv3.OpGet(at.key),
		queue.get(append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(own-1))...),
		clientv3.OpGet(k.session(a.sess.id), clientv3.WithKeysOnly()),
	})
	if err != nil {
		return verdict{}, err
	}
	v := verdict{rev: resp.Header.Revision}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		if e := k.decode(kv); e != nil && e.rev == own {
			v.own = e
		}
	}
	alive := len(resp.Responses[2].GetResponseRange().Kvs) > 0
	switch {
	case alive && (v.own == nil || v.own.Session != string(a.req.Session)):
		return v, backend.ErrLost // it was removed, or is the place of another session now
	case !alive:
		a.b.end(a.sess, true)
		return v, backend.ErrSessionLost
	}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		v.need = need{key: string(kv.Key), rev: kv.CreateRevision}
	}
	v.held = v.need.key == ""
	return v, nil
}

// lookShared judges the whole queue. Waiters of this process that were woken together share one
// read.
func (a *acquisition) lookShared(ctx context.Context, w *waiter, own, since int64) (verdict, error) {
	snap, err := a.b.queues.snapshot(ctx, w, max(since, own))
	if err != nil {
		return verdict{}, err
	}
	a.asked = snap.asked
	i := snap.st.Find(a.req.Lease)
	if i < 0 || snap.st.All[i].rev != own || snap.st.All[i].Session != string(a.req.Session) {
		return verdict{}, a.vanished(ctx)
	}
	v := verdict{own: snap.st.All[i], held: i < snap.st.Out, rev: snap.rev}
	if !v.held {
		v.need = needOf(&snap.st, i)
	}
	return v, nil
}

// need is what has to happen before an entry can be granted: the deletion of one entry, or of any
// one where each of them may make room.
type need struct {
	key string
	rev int64 // create revision of the entry
	any bool
}

// needOf returns what the i-th entry, which is in the queue, waits for. An exclusive entry needs all
// before it gone: the deletion of the one right before it is enough of a signal, and wakes no other
// waiter. A shared one needs the last exclusive one before it gone. If there is none, it needs
// permits, from any lease that leaves.
func needOf(st *state, i int) need {
	own := st.All[i]
	for _, e := range slices.Backward(st.All[:i]) {
		if own.mode() == backend.Exclusive || e.mode() == backend.Exclusive {
			return need{key: e.key, rev: e.rev}
		}
	}
	return need{any: true}
}

// read reads a whole lock.
func (b *Backend) read(ctx context.Context, lock string) (state, int64, error) {
	sp := b.keys.entries(lock)
	resp, err := b.get(ctx, "read a lock", sp.from, clientv3.WithRange(sp.to))
	if err != nil {
		return state{}, 0, err
	}
	return judge(b.keys.decodeAll(resp.Kvs)), resp.Header.Revision, nil
}
