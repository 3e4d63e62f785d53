package etcdlock

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

// Watch delivers what happens to the locks whose names start with the prefix. It watches all keys
// of the backend, because those of the sessions distinguish an expiry from a release. The times are
// those of this machine.
//
// Errors: *InvalidError, *UnavailableError when the stream broke, ErrClosed, ctx's cause.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error {
	outer := ctx
	ctx, leave, err := b.enter(ctx, backend.ValidatePrefix(req.Prefix))
	if err != nil {
		return err
	}
	defer leave()
	f := &follower{keys: b.keys, prefix: req.Prefix, deliver: deliver, locks: make(map[string]*followed)}
	rev, err := b.preload(ctx, f)
	if err != nil {
		return endOf(outer, err)
	}
	wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	all := b.keys.all()
	ch := b.client.Watch(wctx, all.from, clientv3.WithRange(all.to), clientv3.WithRev(rev+1), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	started := false
	for resp := range ch {
		if err := resp.Err(); err != nil {
			return endOf(outer, fail(ctx, "watch", err, false))
		}
		if !started {
			started = true
			deliver(backend.Event{Kind: backend.EventWatching, At: time.Now()})
		}
		f.follow(resp.Events)
	}
	return endOf(outer, fail(ctx, "watch", errStream, false))
}

// endOf returns the cause of ctx if ctx has ended, and err otherwise.
func endOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// preload reads the current locks, all at one revision.
func (b *Backend) preload(ctx context.Context, f *follower) (int64, error) {
	sp := b.keys.locks(f.prefix)
	var opts []clientv3.OpOption
	rev := int64(0)
	for {
		r, err := b.get(ctx, "watch", sp.from, append(opts, clientv3.WithRange(sp.to), clientv3.WithLimit(listPage))...)
		if err != nil {
			return 0, err
		}
		if rev == 0 {
			rev = r.Header.Revision
			opts = append(opts, clientv3.WithRev(rev))
		}
		for _, e := range b.keys.decodeAll(r.Kvs) {
			f.lock(e.name).entries[e.key] = e
		}
		if !r.More {
			break
		}
		sp.from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
	for _, l := range f.locks {
		l.judge()
	}
	return rev, nil
}

// follower derives the events of locks from the changes of their entries.
type follower struct {
	keys    keys
	prefix  string
	deliver func(backend.Event)
	locks   map[string]*followed
}

// followed is a lock as of the newest revision.
type followed struct {
	entries map[string]*entry
	held    map[string]bool // the keys of the holders
}

func (f *follower) lock(lock string) *followed {
	l, ok := f.locks[lock]
	if !ok {
		l = &followed{entries: make(map[string]*entry), held: make(map[string]bool)}
		f.locks[lock] = l
	}
	return l
}

// judge determines who holds the lock now. It returns the new holders, in order, and the waiters.
func (l *followed) judge() ([]*entry, []*entry) {
	var granted []*entry
	es := make([]*entry, 0, len(l.entries))
	for _, e := range l.entries {
		es = append(es, e)
	}
	st := judge(es)
	was := l.held
	l.held = make(map[string]bool, st.Out)
	for _, e := range st.All[:st.Out] {
		l.held[e.key] = true
		if !was[e.key] {
			granted = append(granted, e)
		}
	}
	return granted, st.All[st.Out:]
}

// changes are those of one revision.
type changes struct {
	ended  map[clientv3.LeaseID]bool // etcd leases of sessions that ended
	claims map[leaseKey]bool         // claims that ended
	broken map[string]brokenRecord   // notes of breaks, by lock
	locks  map[string]*lockChanges
	order  []string
}

type lockChanges struct {
	added   map[string]bool
	removed []*entry
}

// follow processes events, which are in order and whole revisions.
func (f *follower) follow(events []*clientv3.Event) {
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Kv.ModRevision == events[0].Kv.ModRevision {
			n++
		}
		f.revision(events[:n])
		events = events[n:]
	}
}

func (f *follower) revision(events []*clientv3.Event) {
	c := changes{ended: make(map[clientv3.LeaseID]bool), claims: make(map[leaseKey]bool), broken: make(map[string]brokenRecord), locks: make(map[string]*lockChanges)}
	for _, ev := range events {
		key := string(ev.Kv.Key)
		switch {
		case strings.HasPrefix(key, f.keys.prefix+"q/"+f.prefix):
			f.entryChanged(&c, key, ev)
		case ev.Type == clientv3.EventTypeDelete:
			f.ended(&c, key, ev.PrevKv)
		}
	}
	for _, lock := range c.order {
		f.tell(lock, c.locks[lock], &c)
	}
}

// ended records the end of a key that distinguishes an expiry from a release. The record of a
// session is deleted before its leases when the session is ended, and together with them when it
// expires. The claim of a timed lease is deleted after it when the lease is released, and together
// with it when it expires.
func (f *follower) ended(c *changes, key string, prev *mvccpb.KeyValue) {
	if id, ok := f.keys.parseClaim(key); ok {
		c.claims[id] = true
		return
	}
	lease, session := f.keys.parseSession(key)
	if prev != nil && (session && lease == "" || f.keys.isPool(key)) {
		c.ended[clientv3.LeaseID(prev.Lease)] = true
	}
}

func (f *follower) entryChanged(c *changes, key string, ev *clientv3.Event) {
	p, ok := f.keys.parse(key)
	if !ok {
		return
	}
	if p.zone == zoneNote {
		var r brokenRecord
		if ev.Type == clientv3.EventTypePut && json.Unmarshal(ev.Kv.Value, &r) == nil {
			c.broken[p.name] = r
		}
		return
	}
	lc, ok := c.locks[p.name]
	if !ok {
		lc = &lockChanges{added: make(map[string]bool)}
		c.locks[p.name] = lc
		c.order = append(c.order, p.name)
	}
	l := f.lock(p.name)
	if ev.Type == clientv3.EventTypeDelete {
		if e, ok := l.entries[key]; ok {
			lc.removed = append(lc.removed, e)
			delete(l.entries, key)
		}
		return
	}
	if e := f.keys.decode(ev.Kv); e != nil {
		if _, known := l.entries[key]; !known {
			lc.added[key] = true
		}
		l.entries[key] = e
	}
}

// tell delivers the events that the changes of one revision mean for a lock.
func (f *follower) tell(lock string, lc *lockChanges, c *changes) {
	l := f.locks[lock]
	was := l.held
	slices.SortFunc(lc.removed, func(a, b *entry) int { return int(a.rev - b.rev) })
	for _, e := range lc.removed {
		kind, reason := f.end(e, was[e.key], c)
		f.event(kind, e, reason)
	}
	granted, queue := l.judge()
	for _, e := range granted {
		f.event(backend.EventAcquired, e, "")
	}
	for _, e := range queue {
		if lc.added[e.key] {
			f.event(backend.EventWaiting, e, "")
		}
	}
	if len(l.entries) == 0 {
		delete(f.locks, lock)
	}
}

// end reports how an entry ended.
func (f *follower) end(e *entry, held bool, c *changes) (backend.EventKind, string) {
	if !held {
		return backend.EventLeft, ""
	}
	if note, ok := c.broken[e.name]; ok && slices.Contains(note.Leases, string(e.LeaseID())) {
		return backend.EventBroken, note.Reason
	}
	if e.alone() && c.claims[leaseKey{e.name, e.LeaseID()}] || !e.alone() && c.ended[e.lease] {
		return backend.EventExpired, ""
	}
	return backend.EventReleased, ""
}

func (f *follower) event(kind backend.EventKind, e *entry, reason string) {
	ev := backend.Event{
		Kind: kind, Name: e.name, Lease: e.LeaseID(), Owner: e.Owner, Mode: e.mode(), Reason: reason, At: time.Now(),
	}
	if kind != backend.EventWaiting && kind != backend.EventLeft {
		ev.Token = e.token()
	}
	f.deliver(ev)
}
