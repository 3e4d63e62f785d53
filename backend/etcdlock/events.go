package etcdlock

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

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
	rev, err := b.scan(ctx, "watch", b.keys.locks(f.prefix), func(e *entry) bool {
		f.lock(e.name).entries[e.key] = e
		return true
	})
	if err != nil {
		return endOf(outer, err)
	}
	for _, l := range f.locks {
		l.judge()
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

// follower derives the events of locks from the changes of their entries.
type follower struct {
	keys    keys
	prefix  string
	deliver func(backend.Event)
	locks   map[string]*followed
}

// followed is a lock as of the newest revision.
type followed struct {
	name    string
	entries map[string]*entry
	held    map[string]bool // the keys of the holders
	removed []*entry        // by the revision that is being processed
}

func (f *follower) lock(lock string) *followed {
	l, ok := f.locks[lock]
	if !ok {
		l = &followed{name: lock, entries: make(map[string]*entry), held: make(map[string]bool)}
		f.locks[lock] = l
	}
	return l
}

// judge determines who holds the lock now. It returns the new holders, in order, and the waiters.
func (l *followed) judge() ([]*entry, []*entry) {
	var granted []*entry
	st := judge(slices.Collect(maps.Values(l.entries)))
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

// endings are what a revision tells about why entries ended in it.
type endings struct {
	leases map[clientv3.LeaseID]bool // etcd leases that ended: of sessions, and shared ones
	claims map[leaseKey]bool         // claims that ended
	broken map[string]brokenRecord   // notes of breaks, by lock
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

// revision processes the events of one revision, and delivers what they mean for each lock.
func (f *follower) revision(events []*clientv3.Event) {
	why := endings{leases: make(map[clientv3.LeaseID]bool), claims: make(map[leaseKey]bool), broken: make(map[string]brokenRecord)}
	var changed []*followed
	for _, ev := range events {
		p, ok := f.keys.parse(string(ev.Kv.Key))
		switch {
		case !ok:
			f.ended(&why, ev)
		case !strings.HasPrefix(p.name, f.prefix):
		case p.zone == zoneNote:
			var r brokenRecord
			if ev.Type == clientv3.EventTypePut && json.Unmarshal(ev.Kv.Value, &r) == nil {
				why.broken[p.name] = r
			}
		default:
			l := f.lock(p.name)
			l.change(f.keys, ev)
			if !slices.Contains(changed, l) {
				changed = append(changed, l)
			}
		}
	}
	for _, l := range changed {
		f.tell(l, &why, events[0].Kv.ModRevision)
	}
}

// ended records the end of a key that distinguishes an expiry from a release. The record of a
// session is deleted before its leases when the session is ended, and together with them when it
// expires. The claim of a timed lease is deleted after it when the lease is released, and together
// with it when it expires.
func (f *follower) ended(why *endings, ev *clientv3.Event) {
	if ev.Type != clientv3.EventTypeDelete {
		return
	}
	key := string(ev.Kv.Key)
	if id, ok := f.keys.parseClaim(key); ok {
		why.claims[id] = true
		return
	}
	lease, session := f.keys.parseSession(key)
	if ev.PrevKv != nil && (session && lease == "" || f.keys.isPool(key)) {
		why.leases[clientv3.LeaseID(ev.PrevKv.Lease)] = true
	}
}

// change records the change of an entry.
func (l *followed) change(k keys, ev *clientv3.Event) {
	key := string(ev.Kv.Key)
	if ev.Type == clientv3.EventTypePut {
		l.entries[key] = k.decode(ev.Kv)
	} else if e, ok := l.entries[key]; ok {
		l.removed = append(l.removed, e)
		delete(l.entries, key)
	}
}

// tell delivers the events that the changes of one revision mean for a lock.
func (f *follower) tell(l *followed, why *endings, rev int64) {
	slices.SortFunc(l.removed, byRevision)
	for _, e := range l.removed {
		kind, reason := f.end(e, l.held[e.key], why)
		f.event(kind, e, reason)
	}
	l.removed = nil
	granted, queue := l.judge()
	for _, e := range granted {
		f.event(backend.EventAcquired, e, "")
	}
	for _, e := range queue {
		if e.rev == rev {
			f.event(backend.EventWaiting, e, "")
		}
	}
	if len(l.entries) == 0 {
		delete(f.locks, l.name)
	}
}

// end reports how an entry ended.
func (f *follower) end(e *entry, held bool, why *endings) (backend.EventKind, string) {
	if !held {
		return backend.EventLeft, ""
	}
	if note, ok := why.broken[e.name]; ok && slices.Contains(note.Leases, string(e.LeaseID())) {
		return backend.EventBroken, note.Reason
	}
	if e.alone() && why.claims[leaseKey{e.name, e.LeaseID()}] || !e.alone() && why.leases[e.lease] {
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
