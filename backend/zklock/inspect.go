package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// Inspect reads the queue and its entries.
func (st store) Inspect(ctx context.Context, lock string) (backend.LockInfo, error) {
	l, err := st.controlLink(ctx)
	if err != nil {
		return backend.LockInfo{}, err
	}
	return st.inspect(ctx, l, lock, true)
}

func (b *Backend) inspect(ctx context.Context, l *link, lock string, catchUp bool) (backend.LockInfo, error) {
	now, err := b.look(ctx, l, b.lockPath(lock), catchUp)
	if err != nil {
		return backend.LockInfo{}, err
	}
	return b.describe(ctx, l, lock, now)
}

// sawClock records the leader's wall clock, from a node that was written just now.
func (b *Backend) sawClock(stat *zk.Stat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clock.at = time.Now()
	b.clock.ahead = time.UnixMilli(stat.Mtime).Sub(b.clock.at.Round(0))
}

// leaderNow returns an estimate of the leader's wall clock.
func (b *Backend) leaderNow(ctx context.Context, l *link) (time.Time, error) {
	const fresh = time.Minute
	b.mu.Lock()
	clock := b.clock
	b.mu.Unlock()
	if time.Since(clock.at) > fresh {
		stat, err := l.touch(ctx, b.locksPath())
		if err != nil {
			return time.Time{}, err
		}
		b.sawClock(stat)
		return time.UnixMilli(stat.Mtime), nil
	}
	return time.Now().Round(0).Add(clock.ahead), nil
}

// gets bounds how many nodes are read concurrently.
const gets = 32

// describe reads the contents of the entries.
func (b *Backend) describe(ctx context.Context, l *link, lock string, now queue) (backend.LockInfo, error) {
	if len(now.All) == 0 {
		return backend.LockInfo{Name: lock}, nil
	}
	clock, err := b.leaderNow(ctx, l)
	if err != nil {
		return backend.LockInfo{}, err
	}
	renewed, err := b.renewals(ctx, l, now.All[:now.Out])
	if err != nil {
		return backend.LockInfo{}, err
	}
	nodes, err := b.readEntries(ctx, l, lock, now.All)
	if err != nil {
		return backend.LockInfo{}, err
	}
	return now.Describe(lock, func(i int) (backend.Holder, bool) {
		if nodes[i].gone {
			return backend.Holder{}, false
		}
		h := nodes[i].holder(now.All[i].session)
		at, ok := renewed[h.Session]
		if !ok {
			at = clock
		}
		h.Left = max(0, at.Add(time.Duration(nodes[i].content.TTL)).Sub(clock))
		return h, true
	}), nil
}

// entryNode is what the node of an entry contains.
type entryNode struct {
	content content
	stat    *zk.Stat
	gone    bool
}

// holder returns the entry as a holder, without the rest of its TTL.
func (n entryNode) holder(session backend.SessionID) backend.Holder {
	return backend.Holder{
		Session: session, Owner: n.content.Owner, Note: n.content.Note,
		Token: fence.Token(n.stat.Czxid), Since: time.UnixMilli(n.stat.Ctime), //nolint:gosec // it counts up from 0
	}
}

// readEntries reads the nodes of the entries, in their order.
func (b *Backend) readEntries(ctx context.Context, l *link, lock string, all []entry) ([]entryNode, error) {
	path := b.lockPath(lock)
	return readAll(all, func(e entry) (entryNode, error) {
		node, err := l.get(ctx, path+"/"+e.node)
		if errors.Is(err, zk.ErrNoNode) {
			return entryNode{gone: true}, nil
		}
		n := entryNode{stat: node.stat}
		_ = json.Unmarshal(node.data, &n.content) // for people only
		return n, err
	})
}

// renewals reads when the sessions of the entries were renewed, by the leader's wall clock.
// Sessions that are gone are omitted.
func (b *Backend) renewals(ctx context.Context, l *link, all []entry) (map[backend.SessionID]time.Time, error) {
	var ids []backend.SessionID
	for _, e := range all {
		if !slices.Contains(ids, e.session) {
			ids = append(ids, e.session)
		}
	}
	stats, err := readAll(ids, func(id backend.SessionID) (*zk.Stat, error) {
		return l.stat(ctx, b.sessionPath(id))
	})
	renewed := make(map[backend.SessionID]time.Time)
	for i, id := range ids {
		if stats[i] != nil {
			renewed[id] = time.UnixMilli(stats[i].Mtime)
		}
	}
	return renewed, err
}

// readAll calls read for each of the keys, for up to gets of them concurrently.
func readAll[K, V any](keys []K, read func(K) (V, error)) ([]V, error) {
	values, errs := make([]V, len(keys)), make([]error, len(keys))
	var wg sync.WaitGroup
	slots := make(chan struct{}, gets)
	for i, k := range keys {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			values[i], errs[i] = read(k)
		})
	}
	wg.Wait()
	return values, errors.Join(errs...)
}

// List reads the names of all locks.
func (st store) List(ctx context.Context, req *backend.ListRequest) (backend.ListPage, error) {
	l, err := st.controlLink(ctx)
	if err != nil {
		return backend.ListPage{}, err
	}
	nodes, err := l.children(ctx, st.locksPath(), true)
	if err != nil {
		return backend.ListPage{}, err
	}
	return seqlock.Page(ctx, req, nodes, func(ctx context.Context, name string) (backend.LockInfo, error) {
		return st.inspect(ctx, l, name, false)
	})
}
